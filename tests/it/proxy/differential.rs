//! The header rules are ours, and security stands on them: whatever a client sends, the upstream receives what it would
//! through bare Pingora, and the client gets back the same, but for a short list of wanted differences.
//!
//! A table of known framing and smuggling cases, and random ones from a fixed seed. `DIFFERENTIAL=10000 cargo test
//! differential` runs that many random ones of each version of HTTP, as `scripts/test.sh` does; without it there are few.

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::*;

use self::cases::{Case, LAST, known, random, random_http2};
use self::server::Message;

mod bare;
mod cases;
mod server;

/// What became of a case.
#[derive(Debug, PartialEq)]
struct Outcome {
    /// The whole requests that the upstream received.
    received: Vec<Message>,
    /// The responses that the client got.
    answers: Vec<Message>,
}

/// Ours and Pingora's, each with a server of its own.
struct Pair {
    ours: Front,
    our_server: Upstream,
    bare: Listening,
    bare_server: Upstream,
}

/// Fields that ours adds or writes by itself.
const OURS: [&str; 4] = ["x-request-id", "traceparent", "tracestate", "date"];

/// Stands for the status of a stream that was reset.
const RESET: u16 = 999;

/// Why ours may refuse what Pingora passes on, or refuses otherwise, with this status.
fn may_refuse(case: &Case, status: u16) -> Option<&'static str> {
    let text = String::from_utf8_lossy(&case.bytes).to_ascii_lowercase();
    let is_control = |b: u8| b.is_ascii_control() && !b"\r\n\t".contains(&b);
    let has_control = text.bytes().any(is_control);
    let has_escape = text.contains("%0") || text.contains("%1") || text.contains("%7f");
    match status {
        501 if text.contains("transfer-encoding") => {
            Some("a coding other than chunked is told so, and not passed on")
        }
        405 if text.contains("connect ") => Some("CONNECT is refused, even where it is broken too"),
        400 if !text.split("\r\n\r\n").next()?.contains("\nhost:") => {
            Some("HTTP/1.1 without Host is refused: RFC 9112, section 3.2")
        }
        400 if has_control || has_escape => {
            Some("a control byte in the target goes nowhere, escaped or not")
        }
        502 if case.answer == cases::UNASKED_SWITCH => {
            Some("a 101 that nobody asked for breaks the exchange")
        }
        _ => None,
    }
}

/// Why ours differs; `None` where it may not.
fn reason(case: &Case, ours: &Outcome, bare: &Outcome) -> Option<&'static str> {
    // What it refuses ends the connection: before that all is the same, and nothing was sent on that Pingora would not.
    let answers = ours.answers.iter().zip(&bare.answers);
    let alike = answers.take_while(|(ours, bare)| ours == bare).count();
    let is_prefix = bare.received.starts_with(&ours.received);
    if let [refused] = &ours.answers[alike..]
        && refused.is_refusal()
        && is_prefix
    {
        return may_refuse(case, refused.status());
    }
    let is_old = case.bytes.windows(8).any(|bytes| bytes == b"HTTP/1.0");
    let statuses = |of: &Outcome| {
        let all = of.answers.iter().map(Message::status);
        all.filter(|status| *status >= 200).collect::<Vec<_>>()
    };
    if is_old && is_prefix && statuses(bare).starts_with(&statuses(ours)) {
        return Some(
            "a client of HTTP/1.0 gets no 1xx and no chunks: its body ends with the connection",
        );
    }
    let has_length_twice = case.http2.is_some() && case.answer == cases::LENGTH_TWICE;
    (has_length_twice && ours.received == bare.received)
        .then_some("a length told twice goes on once: clients of HTTP/2 refuse the other")
}

/// Makes the two comparable: what each writes of itself, and what ours makes plain on purpose.
fn comparable(mut outcome: Outcome) -> Outcome {
    for message in outcome.received.iter_mut().chain(&mut outcome.answers) {
        message.fields.retain(|(name, _)| !OURS.contains(&&**name));
        // A length told twice goes on once.
        message
            .fields
            .dedup_by(|one, other| one.0 == "content-length" && other.0 == one.0);
        for (name, value) in &mut message.fields {
            if name == "content-length" {
                value.truncate(value.find(',').unwrap_or(value.len()));
            }
        }
    }
    for answer in &mut outcome.answers {
        // Fields of the upstream's connection, and trailers announced that do not pass, stop at ours.
        let stops = "keep-alive proxy-connection trailer x-of-connection";
        let stops = |name: &str| stops.split(' ').any(|one| one == name);
        answer.fields.retain(|(name, _)| !stops(name));
        if answer.status() >= 400 && !answer.is_servers() {
            // Errors have bodies of ours, and close: the status is compared.
            *answer = Message::refusal(answer.status());
        }
    }
    outcome
}

impl Pair {
    async fn new() -> Pair {
        let (our_server, bare_server) = (server::start().await, server::start().await);
        Pair {
            ours: Front::start(our_server.addr).await,
            bare: bare::start(bare_server.addr).await,
            our_server,
            bare_server,
        }
    }

    async fn check(&self, number: usize, case: &Case) {
        let mut last = None;
        // Either may meet a kept connection that the server was just closing: once, but not twice.
        for _ in 0..2 {
            let ours = outcome(self.ours.addr(), &self.our_server, case).await;
            let bare = outcome(self.bare.addr, &self.bare_server, case).await;
            if ours == bare || reason(case, &ours, &bare).is_some() {
                return;
            }
            last = Some((ours, bare));
        }
        panic!("case {number}:\n{}\nours and bare: {last:#?}", case.shown());
    }
}

/// Sends a case on a connection of its own, and reads to the end.
async fn outcome(proxy: SocketAddr, server: &Upstream, case: &Case) -> Outcome {
    let before = server.seen().len();
    let answers = match &case.http2 {
        Some((request, body)) => vec![stream(proxy, request, body).await],
        None => connection(proxy, &case.bytes).await,
    };
    let seen = &server.seen()[before..];
    let whole = seen.iter().filter(|seen| seen.whole);
    comparable(Outcome {
        received: whole.map(Message::of_request).collect(),
        answers,
    })
}

async fn connection(proxy: SocketAddr, bytes: &[u8]) -> Vec<Message> {
    let mut client = Client::connect(proxy).await;
    // It may be refused before it is sent.
    let _ = client.stream.write_all(&[bytes, LAST].concat()).await;
    let all = client.read_to_close().await;
    Message::all(&all, bytes.starts_with(b"HEAD"))
}

async fn stream(proxy: SocketAddr, request: &http::Request<()>, body: &str) -> Message {
    let mut client = Http2::connect(proxy).await;
    match client.exchange(request.clone(), body.as_bytes()).await {
        Some(answer) => Message::of_http2(answer),
        None => Message::refusal(RESET),
    }
}

/// Checks few random cases, or as many as are asked for, some at a time.
async fn check_random(few: usize, random: fn(&mut ChaCha8Rng) -> Case) {
    let asked = std::env::var("DIFFERENTIAL").ok();
    let total = asked.map_or(few, |number| number.parse().unwrap());
    let workers: JoinSet<()> = (0..8)
        .map(|first| async move {
            let pair = Pair::new().await;
            for number in (first..total).step_by(8) {
                let case = random(&mut ChaCha8Rng::seed_from_u64(number as u64));
                pair.check(number, &case).await;
            }
        })
        .collect();
    workers.join_all().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn known_cases_of_framing_and_smuggling_are_as_through_pingora() {
    let pair = Pair::new().await;
    for (number, case) in known().iter().enumerate() {
        pair.check(number, case).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_requests_of_http_1_are_as_through_pingora() {
    check_random(400, random).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_requests_of_http_2_are_as_through_pingora() {
    check_random(200, random_http2).await;
}
