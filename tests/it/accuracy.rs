//! Known delays laid at every stage are found in their own columns and nowhere else.
//!
//! Clients → front → a router that holds → hop → a network that holds → a simulated server with a queue.
//! Each part writes down when it did what, on the one clock of this process. Nothing is compared with a
//! nominal delay (a busy machine makes every delay longer): what follows are consequences of causality
//! alone. With the injectors' stamps
//!
//! - `asked`: the client is about to send; `router.read`, `router.sent`: the router had read the request, was
//!   about to send it on; `net_read`, `net_sent`: the same of the network with the request;
//! - `received`, `queue_start`, `queue_end`, `first_token`, `finish`: the server's own log, taken back to our
//!   clock by the skew that it was given;
//! - `first_back`, `last_back`: the network was about to pass back the bytes of the first token, of the end;
//! - `router.back`: the router had read the first event, was about to pass it on;
//! - `first_got`, `last_got`: the client had read them,
//!
//! every moment of a row lies between two of them:
//!
//! ```text
//! asked      ≤ arrival          ≤ router.read
//! router.sent ≤ router_send     ≤ net_read
//! net_sent   ≤ server_created   = received      (± the stated error of the engine's clock)
//!              queue …          = queue …       (likewise)
//! first_back ≤ first_token      ≤ first_got
//! last_back  ≤ finish           ≤ last_got
//! ```
//!
//! A duration is the difference of the moments at its ends: it holds what its injector did, and of what the neighbours did
//! nothing.

use std::net::SocketAddr;
use std::time::Duration;

use queuescope::clock::{Clock, NANOS, Stamp};
use queuescope::sim::{Served, Sim};
use serde_json::json;
use tokio::io::AsyncReadExt;
use tokio::task::JoinSet;

use crate::support::admin::{get, metric};
use crate::support::delays::{Held, Network, Piece, Router};
use crate::support::generator;
use crate::support::proxy::{Front, Row, nanos, workers};
use crate::support::wire::{Client, PATIENCE, Reader, until};

/// The delays that are laid, beside what the machine takes by itself.
#[derive(Clone, Copy, Debug, Default)]
struct Laid {
    /// Any of [`Laid::ALL`], and `stall`: the client stops reading for so long.
    what: &'static str,
    /// How far the engine's clock is ahead, seconds.
    skew_s: f64,
}

impl Laid {
    /// `router_back`: the router holds the first event of the response; `queue`: another request holds the server's only place.
    pub const ALL: &str = "router there back router_back tokenize queue prefill decode";

    fn of(&self, part: &str) -> Duration {
        let is_laid = self.what.split(' ').any(|laid| laid == part);
        if is_laid { LONG } else { Duration::ZERO }
    }

    fn stalls(&self) -> bool {
        !self.of("stall").is_zero()
    }
}

/// All parts, and what is laid out.
struct Line {
    laid: Laid,
    clock: Clock,
    router: Router,
    network: Network,
    front: Front,
    sim: Sim,
}

/// What the client wrote down.
#[derive(Clone, Copy, Debug)]
struct Asked {
    asked: Stamp,
    first_got: Stamp,
    last_got: Stamp,
    /// It knew that all before it stood still; it was about to read on.
    paused: Option<(Stamp, Stamp)>,
}

/// What all injectors wrote down, on our clock.
#[derive(Clone, Debug)]
struct Truth {
    client: Asked,
    router: Held,
    net_read: Stamp,
    net_sent: Stamp,
    first_back: Stamp,
    last_back: Stamp,
    received: Stamp,
    queue_start: Stamp,
    queue_end: Stamp,
    first_token: Stamp,
    finish: Stamp,
}

/// A delay that is laid out.
const LONG: Duration = Duration::from_millis(120);
/// Requests without any delay before the measured one, from which the engine's clock is learned.
const WARM_UP: usize = 4;
const PROMPT: usize = 100;
const TOKENS: u32 = 12;
/// Enough bytes to fill every buffer between server and client: the simulated text grows from event to event.
const MANY_TOKENS: u32 = 2_500;

impl Line {
    async fn start(laid: Laid) -> Line {
        let clock = Clock::system();
        let decode_step_ms = 1e3 * laid.of("decode").as_secs_f64() / f64::from(TOKENS - 1);
        let sim = generator::sim(|config| {
            config.clock_skew_s = laid.skew_s;
            let profile = &mut config.profile;
            profile.max_running_requests = 1;
            profile.prefill_tokens_per_s = match laid.of("prefill").as_secs_f64() {
                0.0 => 1e6,
                seconds => PROMPT as f64 / seconds,
            };
            profile.decode_step_ms = match laid.stalls() {
                true => 2e-2,
                false => decode_step_ms.max(2.0),
            };
            profile.decode_step_per_seq_ms = 0.0;
            profile.tokenize_ms = laid.of("tokenize").as_secs_f64() * 1e3;
        });
        let network = Network::start(sim.addr(), clock.clone()).await;
        let router = Router::start(clock.clone()).await;
        let workers = workers(&[network.addr]);
        let front = Front::with(&[router.addr], |config| config.workers = workers).await;
        router.sends_to(front.hop_addr());
        Line {
            laid,
            clock,
            router,
            network,
            front,
            sim,
        }
    }

    async fn ask(&self, id: &str, prompt: usize, tokens: u32) -> Asked {
        let mut client = Client::with_small_buffer(self.front.addr()).await;
        let body = json!({
            "text": "w ".repeat(prompt), "stream": true,
            "sampling_params": { "max_new_tokens": tokens, "ignore_eos": true }
        });
        let body = body.to_string();
        let asked = self.clock.now();
        let id_header = format!("x-request-id: {id}\r\n");
        client.post("/generate", &id_header, body.as_bytes()).await;
        let mut reader = Reader::default();
        let mut first_got = None;
        let mut paused = None;
        let mut buffer = vec![0; 65_536];
        while !reader.is_whole(usize::MAX) {
            let read = tokio::time::timeout(PATIENCE, client.stream.read(&mut buffer)).await;
            let read = read.expect("the response came in time").unwrap();
            assert!(read > 0, "the response came whole");
            reader.feed(&buffer[..read]);
            if first_got.is_none() && has_first_token(&reader.body) {
                first_got = Some(self.clock.now());
                if id == "measured" && self.laid.stalls() {
                    paused = Some(self.pause(10 * LONG).await);
                }
            }
        }
        Asked {
            asked,
            first_got: first_got.expect("a token"),
            last_got: self.clock.now(),
            paused,
        }
    }

    /// Reads nothing until all that the kernels and the proxy take is full, and then for `pause` more.
    async fn pause(&self, pause: Duration) -> (Stamp, Stamp) {
        let (mut passed, mut still) = (0, 0);
        while still < 40 {
            tokio::time::sleep(Duration::from_millis(5)).await;
            let now = self.router.passed_back();
            still = if now == passed { still + 1 } else { 0 };
            passed = now;
        }
        let stands = self.clock.now();
        tokio::time::sleep(pause).await;
        (stands, self.clock.now())
    }

    /// Learns the engine's clock without delays, then lays them and sends the request that is measured. Its
    /// row, what the injectors say, and the widest that the engine's clock may be known, nanoseconds.
    async fn run(self) -> (Row, Truth, i64) {
        let mut known = Vec::new();
        for n in 0..WARM_UP {
            let id = format!("warm-up-{n}");
            let asked = self.ask(&id, 1, 2).await;
            // The bounds of one request are no wider than what lies between the router's sending and the
            // server's receipt, and between the first token and the client's reading it.
            let served = self.served(&id).await;
            let sent = self.router.last().sent;
            let there = self.ours(Some(served.received)).nanos_since(sent);
            let back = asked
                .first_got
                .nanos_since(self.ours(served.moments.first_token));
            known.push((asked.asked, there + back));
        }
        // What passed so far is forgotten.
        self.network.passed();
        let of = |part| self.laid.of(part);
        self.router.holds(of("router"), of("router_back"));
        self.network.delays([of("there"), of("back")]);
        if !of("queue").is_zero() {
            self.occupy().await;
        }
        let tokens = match self.laid.stalls() {
            true => MANY_TOKENS,
            false => TOKENS,
        };
        let client = self.ask("measured", PROMPT, tokens).await;
        let served = self.served("measured").await;
        let [there, back] = self.network.passed();
        let truth = Truth {
            client,
            router: self.router.last(),
            net_read: there.first().unwrap().read,
            // The server stamps a request when it has its head: the body may come in a later piece.
            net_sent: there.first().unwrap().sent,
            first_back: back[first_piece(&back)].sent,
            last_back: back.last().unwrap().sent,
            received: self.ours(Some(served.received)),
            queue_start: self.ours(served.moments.queue_start),
            queue_end: self.ours(served.moments.queue_end),
            first_token: self.ours(served.moments.first_token),
            finish: self.ours(served.moments.finish),
        };
        let mut rows = self.front.rows().await;
        let row = rows.pop().unwrap();
        let now = self.clock.now();
        // Half the width, and what both sides are widened by: drift since then (100 ppm), 5 µs and rounding.
        let widened = |(at, width): (Stamp, i64)| width / 2 + now.nanos_since(at) / 10_000 + 5_010;
        let known = known.into_iter().map(widened).min().unwrap();
        assert_eq!(row["req_id"], "measured");
        (row, truth, known)
    }

    /// Another request takes the server's only place, straight, and leaves when ours has waited for it.
    async fn occupy(&self) {
        let mut other = Client::connect(self.sim.addr()).await;
        // Not streamed: it costs nothing while it goes on.
        let body =
            b"{\"text\":\"a\",\"sampling_params\":{\"max_new_tokens\":30000,\"ignore_eos\":true}}";
        other.post("/generate", "", body).await;
        let server = self.sim.addr();
        let runs = until_one(server, "sglang:num_running_reqs");
        tokio::time::timeout(PATIENCE, runs).await.unwrap();
        let hold = LONG + self.laid.of("tokenize");
        tokio::spawn(async move {
            until_one(server, "sglang:num_queue_reqs").await;
            // What is being tokenized counts as waiting.
            tokio::time::sleep(hold).await;
            // Its connection closes: the server takes it out.
            drop(other);
        });
    }

    /// The server's own account of a request.
    async fn served(&self, id: &str) -> Served {
        let is_it = |one: &Served| one.x_request_id.as_deref() == Some(id);
        let find = || self.sim.served().into_iter().find(is_it);
        until("the server's account", || find().is_some()).await;
        find().unwrap()
    }

    fn ours(&self, theirs: Option<Stamp>) -> Stamp {
        let skew = (self.laid.skew_s * NANOS as f64) as i64;
        theirs.unwrap().plus_nanos(-skew)
    }
}

/// Waits until one of a server's gauges is 1.
async fn until_one(server: SocketAddr, gauge: &str) {
    while metric(&get(server, "/metrics").await.text(), gauge) != 1.0 {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Whether the first event is there to its end.
fn has_first_token(body: &[u8]) -> bool {
    let text = String::from_utf8_lossy(body);
    let event = text.split_once("\n\n");
    event.is_some_and(|(event, _)| event.contains("\"completion_tokens\":1,"))
}

/// The piece with which the first event is complete.
fn first_piece(pieces: &[Piece]) -> usize {
    let mut all = Vec::new();
    let whole = pieces.iter().position(|piece| {
        all.extend_from_slice(&piece.bytes);
        has_first_token(&all)
    });
    whole.unwrap()
}

/// Times of a request that are all of it but for the way back, in their order, with the columns of their ends.
const STAGES: [(&str, &str, &str); 6] = [
    ("queue_time_in_router", "arrival_time", "router_send_time"),
    ("network_time", "router_send_time", "server_created_time"),
    ("tokenize_time", "server_created_time", "queue_time_start"),
    ("pure_queue_time", "queue_time_start", "queue_time_end"),
    ("prefill_time", "queue_time_end", "server_first_token_time"),
    ("decode_time", "first_token_time", "finish_time"),
];
/// The engine tells its stamps as floats of seconds, whose steps are 0.24 µs; a duration has two.
const FLOAT: i64 = 1_000;
/// Fails unless `low ≤ value ≤ high`, each widened by `error`.
fn assert_between(what: &str, low: i64, value: i64, high: i64, error: i64, context: &str) {
    let bounds = format!("from {low} to {high} ± {error} ns\n{context}");
    assert!(low <= high, "{what}: the injectors disagree: {bounds}");
    let is_between = low - error <= value && value <= high + error;
    assert!(is_between, "{what} is {value}, not {bounds}");
}

/// Every moment lies where the injectors' stamps say.
fn assert_moments(row: &Row, truth: &Truth, engine: i64, context: &str) {
    let client = &truth.client;
    for (column, low, high) in [
        ("arrival_time", client.asked, truth.router.read),
        ("router_send_time", truth.router.sent, truth.net_read),
        ("first_token_time", truth.first_back, client.first_got),
        ("finish_time", truth.last_back, client.last_got),
    ] {
        let (low, high) = (low.nanos(), high.nanos());
        assert_between(column, low, nanos(row, column), high, 0, context);
    }
    // The engine's are as far off as its clock, all by the same.
    let off = nanos(row, "server_created_time") - truth.received.nanos();
    assert_between("server_created_time", 0, off, 0, engine + FLOAT, context);
    for (column, at) in [
        ("queue_time_start", truth.queue_start),
        ("queue_time_end", truth.queue_end),
        ("server_first_token_time", truth.first_token),
    ] {
        let at = at.nanos() + off;
        assert_between(column, at, nanos(row, column), at, FLOAT, context);
    }
}

/// Every duration is that between its moments, and the stages are all of a request.
fn assert_columns(row: &Row, context: &str) {
    let between = |from, to| nanos(row, to) - nanos(row, from);
    for (column, from, to) in STAGES {
        let apart = between(from, to);
        assert_between(column, apart, nanos(row, column), apart, FLOAT, context);
    }
    let back = between("server_first_token_time", "first_token_time");
    let whole: i64 = STAGES.iter().map(|(column, ..)| nanos(row, column)).sum();
    let total = nanos(row, "total_latency");
    let what = "the stages together";
    assert_between(what, total, whole + back, total, FLOAT, context);
}

/// The stall lies within decoding and holds the client's pause; without a pause there is none.
fn assert_stall(row: &Row, truth: &Truth, context: &str) {
    let (stall, decode) = (nanos(row, "client_stall"), nanos(row, "decode_time"));
    let client = &truth.client;
    match client.paused {
        None => assert_eq!(stall, 0, "{context}"),
        Some((from, to)) => {
            let low = to.nanos_since(from);
            let high = client.last_got.nanos_since(client.asked);
            assert_between("client_stall", low, stall, high, 0, context);
            // By contract it holds the stall; what is left is no more than the client read.
            assert!(decode >= low && decode - stall <= high - low, "{context}");
            // No gap between chunks holds it.
            assert!(nanos(row, "chunk_gap_max") < low, "{context}");
            // The engine was done long before: none of the pause is its.
            assert!(truth.finish < to, "{context}");
        }
    }
}

async fn check(laid: Laid) {
    let (row, truth, known) = Line::start(laid).await.run().await;
    let context = format!("{laid:?}\n{truth:?}\n{row:?}");
    assert_eq!(row["outcome"], "ok", "{context}");
    assert_eq!(row["inconsistency"], "", "{context}");
    assert_eq!(row["clock_state"], "offset", "{context}");
    let error = nanos(&row, "clock_offset_error");
    assert!(error <= known, "{error} > {known}\n{context}");
    assert_eq!(row["hop_clock_offset_error"], "", "{context}");
    let skew = (laid.skew_s * NANOS as f64) as i64;
    let offset = nanos(&row, "clock_offset");
    assert_between("clock_offset", skew, offset, skew, error, &context);
    // The injectors did what they were told: no stage is checked against nothing.
    let between = |from: Stamp, to: Stamp| to.nanos_since(from);
    let (read_back, sent_back) = truth.router.back.unwrap();
    let nanos_of = |delay: Duration| i64::try_from(delay.as_nanos()).unwrap();
    let did = [
        ("router", between(truth.router.read, truth.router.sent)),
        ("there", between(truth.net_read, truth.net_sent)),
        ("back", between(truth.first_token, truth.first_back)),
        ("router_back", between(read_back, sent_back)),
        ("tokenize", between(truth.received, truth.queue_start)),
        // A part of it is enough, since the server's thread may be late to let it in.
        ("queue", 8 * between(truth.queue_start, truth.queue_end)),
        ("prefill", between(truth.queue_end, truth.first_token)),
        // The log has a first token when it was told, which may be late; the last is not sooner for it.
        (
            "decode",
            between(truth.queue_end, truth.finish) - nanos_of(laid.of("prefill")),
        ),
    ];
    for (part, did) in did {
        let told = nanos_of(laid.of(part));
        let is_done = did >= told - FLOAT;
        assert!(is_done, "{part} did {did} of {told} ns\n{context}");
    }
    assert!(truth.net_sent <= truth.received, "{context}");
    assert!(truth.net_read >= truth.router.sent, "{context}");
    assert_moments(&row, &truth, error, &context);
    assert_columns(&row, &context);
    assert_stall(&row, &truth, &context);
    // The router's part of the way back.
    let most = between(truth.first_back, truth.client.first_got);
    let told = nanos(&row, "router_return");
    let least = between(read_back, sent_back);
    assert_between("router_return", least, told, most, 0, &context);
}

/// With the engine's clock as ours, and an hour ahead or behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_delay_is_found_in_its_own_column() {
    for skew_s in [0.0, 3600.0, -3600.0] {
        // One stage at a time, none, and all of them.
        let cases = Laid::ALL.split(' ').chain(["", Laid::ALL]);
        let cases = cases.map(|what| check(Laid { what, skew_s }));
        cases.collect::<JoinSet<()>>().join_all().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_stops_reading_is_no_decoding() {
    let (what, skew_s) = ("stall", 0.0);
    check(Laid { what, skew_s }).await;
}
