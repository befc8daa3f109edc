//! The header rules are ours, and security stands on them: whatever a client sends, the upstream receives what it would
//! through bare Pingora, and the client gets back the same, but for a short list of wanted differences.
//!
//! A table of known framing and smuggling cases, and random ones from a fixed seed. `DIFFERENTIAL=10000 cargo test
//! differential` runs that many random ones of each version of HTTP, as `scripts/test.sh` does; without it there are few.

mod cases;

use async_trait::async_trait;
use pingora::apps::{HttpServerOptions, ServerApp};
use pingora::protocols::l4::stream::Stream;
use pingora::proxy::{HttpProxy, ProxyHttp, Session};
use pingora::server::configuration::ServerConf;
use pingora::upstreams::peer::HttpPeer;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use tokio::sync::watch;

use self::cases::{Case, LAST, answer, known, random, random_http2, table};
use super::*;

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
pub const OURS: [&str; 4] = ["x-request-id", "traceparent", "tracestate", "date"];

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
        let (our_server, bare_server) = (server_of_answers().await, server_of_answers().await);
        Pair {
            ours: Front::start(our_server.addr).await,
            bare: bare_proxy(bare_server.addr).await,
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
    let all = wire::responses(&all, bytes.starts_with(b"HEAD")).into_iter();
    all.map(|one| Message::of(&one.head, &one.body, one.whole))
        .collect()
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

/// A message, its framing taken off.
#[derive(Debug, PartialEq)]
struct Message {
    /// The first line.
    line: String,
    /// Names in lower case and values, by name.
    fields: Vec<(String, String)>,
    /// As it is shown; nothing of one that was cut.
    body: String,
    /// It came to the end of its framing.
    whole: bool,
}

/// Gives each request the answer that it asks for.
async fn server_of_answers() -> Upstream {
    Upstream::start(|_, request| {
        let asked = request.header("x-answer").and_then(|n| n.parse().ok());
        let (answer, closes) = answer(asked.unwrap_or(0) % table("answers").len());
        let answer = match request.head.starts_with("HEAD ") {
            true => without_body(answer),
            false => answer,
        };
        let then = closes.then_some(Step::Close);
        let sends = [Step::Send(answer.into())].into_iter();
        sends.chain(then).collect()
    })
    .await
}

/// An answer to a HEAD: up to the end of the head that this server marks as the last.
fn without_body(answer: &str) -> &str {
    let last = answer.find("x-server").unwrap_or(0);
    let end = answer[last..].find("\r\n\r\n");
    &answer[..end.map_or(answer.len(), |end| last + end + 4)]
}

impl Message {
    fn of(head: &str, body: &[u8], whole: bool) -> Message {
        let mut lines = head.trim_end_matches("\r\n").split("\r\n");
        let line = lines.next().unwrap().to_owned();
        let fields = lines.map(|line| line.split_once(':').unwrap_or((line, "")));
        let fields = fields.map(|(k, v)| (k.to_ascii_lowercase(), v.trim().to_owned()));
        let mut fields: Vec<_> = fields.collect();
        fields.sort();
        let body = if whole { body } else { &[] };
        Message {
            line,
            fields,
            body: body.escape_ascii().to_string(),
            whole,
        }
    }

    /// What stands for any refusal of a proxy's own.
    fn refusal(status: u16) -> Message {
        Message::of(&format!("HTTP/1.1 {status} refused"), b"", true)
    }

    fn of_request(seen: &Seen) -> Message {
        Message::of(&seen.head, &seen.body, seen.whole)
    }

    fn of_http2(answer: Answer) -> Message {
        let mut head = format!("HTTP/2 {}", answer.status);
        for (name, value) in &answer.headers {
            head += &format!("\r\n{name}: {}", String::from_utf8_lossy(value.as_bytes()));
        }
        Message::of(&head, &answer.body, answer.broken.is_none())
    }

    /// Of a response; 0 of a request.
    fn status(&self) -> u16 {
        let rest = self.line.strip_prefix("HTTP/");
        let status = rest.and_then(|rest| rest.split(' ').nth(1)?.parse().ok());
        status.unwrap_or(0)
    }

    /// Whether it stands for a refusal of a proxy's own.
    fn is_refusal(&self) -> bool {
        self.line.ends_with(" refused")
    }

    /// Whether the server said it, and not a proxy.
    fn is_servers(&self) -> bool {
        self.fields.iter().any(|(name, _)| name == "x-server")
    }
}

struct To(SocketAddr);

#[async_trait]
impl ProxyHttp for To {
    type CTX = ();

    fn new_ctx(&self) {}

    async fn upstream_peer(
        &self,
        session: &mut Session,
        (): &mut (),
    ) -> pingora::Result<Box<HttpPeer>> {
        session.as_downstream_mut().set_pipelining_enabled(true);
        Ok(Box::new(HttpPeer::new(self.0, false, String::new())))
    }
}

/// Pingora's proxy with no hooks. It listens until it is dropped.
async fn bare_proxy(upstream: SocketAddr) -> Listening {
    let conf = ServerConf {
        ca_file: Some("/dev/null".into()),
        ..ServerConf::default()
    };
    let mut proxy = HttpProxy::new(To(upstream), Arc::new(conf));
    let mut options = HttpServerOptions::default();
    options.h2c = true;
    proxy.server_options = Some(options);
    proxy.handle_init_modules();
    let proxy = Arc::new(proxy);
    Listening::start(move |_, stream| {
        let proxy = proxy.clone();
        async move {
            let (_stop, shutdown) = watch::channel(false);
            let stream = Box::new(Stream::from(stream));
            proxy.process_new(stream, &shutdown).await;
        }
    })
    .await
}
