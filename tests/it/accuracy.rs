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
//! So a column lies between the differences of its ends' bounds: it holds what its injector did, and of what the
//! neighbours did nothing.

use std::time::Duration;

use queuescope::clock::{Clock, NANOS, Stamp};
use queuescope::proxy::Worker;
use queuescope::sim::Served;
use queuescope::sim::engine::Profile;
use queuescope::sim::server::{Config as SimConfig, Sim};
use tokio::io::AsyncReadExt;
use tokio::task::JoinSet;

use crate::support::delays::{Held, Network, Piece, Router};
use crate::support::proxy::{Front, Row};
use crate::support::wire::{Client, PATIENCE, Reader, until};

/// What is laid where, beside what the machine takes by itself.
#[derive(Clone, Copy, Debug, Default)]
struct Laid {
    router: Duration,
    there: Duration,
    back: Duration,
    tokenize: Duration,
    /// Another request holds the server's only place.
    queue: bool,
    prefill: Duration,
    decode: Duration,
    /// The client stops reading for so long.
    stall: Option<Duration>,
    /// How far the engine's clock is ahead, seconds.
    skew_s: f64,
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

/// Times of a request that are all of it, in their order.
const STAGES: [&str; 6] = [
    "queue_time_in_router",
    "network_time",
    "tokenize_time",
    "pure_queue_time",
    "prefill_time",
    "decode_time",
];
/// The engine tells its stamps as floats of seconds, whose steps are 0.24 µs; a duration has two.
const FLOAT: i64 = 1_000;
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
        let is_stalled = laid.stall.is_some();
        let decode_step = laid.decode.as_secs_f64() / f64::from(TOKENS - 1);
        let profile = Profile {
            max_running_requests: 1,
            prefill_tokens_per_s: match laid.prefill.as_secs_f64() {
                0.0 => 1e6,
                seconds => PROMPT as f64 / seconds,
            },
            decode_step_s: if is_stalled {
                2e-5
            } else {
                decode_step.max(1e-4)
            },
            decode_step_per_seq_s: 0.0,
            ..Profile::default()
        };
        let config = SimConfig {
            port: 0,
            profile,
            tokenize_ms: laid.tokenize.as_secs_f64() * 1e3,
            clock_skew_s: laid.skew_s,
            ..SimConfig::default()
        };
        let sim = Sim::start(config, clock.clone()).unwrap();
        let network = Network::start(sim.addr(), clock.clone()).await;
        let router = Router::start(clock.clone()).await;
        let worker = Worker {
            name: "w0".into(),
            listen: "127.0.0.1:0".into(),
            upstream: network.addr.to_string(),
        };
        let front = Front::with(&[router.addr], |config| config.workers = vec![worker]).await;
        router.sends_to(front.proxy.worker_addrs()[0]);
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
        let mut client = Client::with_small_buffer(self.front.proxy.front_addr().unwrap()).await;
        let body = format!(
            "{{\"text\":\"{}\",\"stream\":true,\"sampling_params\":{{\"max_new_tokens\":{tokens},\
             \"ignore_eos\":true}}}}",
            "w ".repeat(prompt)
        );
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
                if let Some(pause) = self.laid.stall.filter(|_| id == "measured") {
                    paused = Some(self.pause(pause).await);
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
    /// row, what the injectors say, and the widest that the engine's clock may be known.
    async fn run(self) -> (Row, Truth, i64) {
        let mut known = Vec::new();
        for n in 0..WARM_UP {
            let id = format!("warm-up-{n}");
            let asked = self.ask(&id, 1, 2).await;
            // The bounds of one request are no wider than what lies between the router's sending and the
            // server's receipt, and between the first token and the client's reading it.
            let served = self.served(&id).await;
            let there = self
                .ours(served.received)
                .nanos_since(self.router.last().sent);
            let back = asked.first_got.nanos_since(self.ours(served.first_token));
            known.push((asked.asked, there + back));
        }
        self.network.forget();
        self.router.holds(self.laid.router);
        self.network.delays(self.laid.there, self.laid.back);
        if self.laid.queue {
            self.occupy().await;
        }
        let tokens = if self.laid.stall.is_some() {
            MANY_TOKENS
        } else {
            TOKENS
        };
        let client = self.ask("measured", PROMPT, tokens).await;
        let served = self.served("measured").await;
        let (there, back) = (self.network.there(), self.network.back());
        let truth = Truth {
            client,
            router: self.router.last(),
            net_read: there.first().unwrap().read,
            net_sent: there.last().unwrap().sent,
            first_back: back[first_piece(&back)].sent,
            last_back: back.last().unwrap().sent,
            received: self.ours(served.received),
            queue_start: self.ours(served.queue_start),
            queue_end: self.ours(served.queue_end),
            first_token: self.ours(served.first_token),
            finish: self.ours(served.finish),
        };
        let mut rows = self.front.rows().await;
        let row = rows.pop().unwrap();
        let now = self.clock.now();
        // Half the width, and what both sides are widened by: drift since then (100 ppm) and 5 µs.
        let widest = |(at, width): (Stamp, i64)| width / 2 + now.nanos_since(at) / 10_000 + 5_002;
        let error_bound = known.into_iter().map(widest).min().unwrap();
        assert_eq!(row["req_id"], "measured");
        (row, truth, error_bound)
    }

    /// Another request takes the server's only place, straight.
    async fn occupy(&self) {
        let mut other = Client::connect(self.sim.addr()).await;
        let body = format!(
            "{{\"text\":\"a\",\"stream\":true,\"sampling_params\":{{\"max_new_tokens\":{},\
             \"ignore_eos\":true}}}}",
            // It goes on while ours is held before the server, and for as long again.
            self.steps_of(self.laid.router + self.laid.there + self.laid.tokenize + 2 * LONG),
        );
        other
            .post("/generate", "x-request-id: other\r\n", body.as_bytes())
            .await;
        let begun = other
            .read_until(|reader| has_first_token(&reader.body))
            .await;
        assert_eq!(begun.status(), 200);
        tokio::spawn(async move { other.response().await });
    }

    fn steps_of(&self, time: Duration) -> u32 {
        let step = (self.laid.decode.as_secs_f64() / f64::from(TOKENS - 1)).max(1e-4);
        (time.as_secs_f64() / step).ceil() as u32
    }

    /// The server's own account of a request.
    async fn served(&self, id: &str) -> Served {
        let find = || {
            let all = self.sim.served();
            all.into_iter()
                .find(|one| one.x_request_id.as_deref() == Some(id))
        };
        until("the server's account", || find().is_some()).await;
        find().unwrap()
    }

    fn ours(&self, theirs: Option<Stamp>) -> Stamp {
        let skew = (self.laid.skew_s * NANOS as f64) as i64;
        theirs.unwrap().plus_nanos(-skew)
    }
}

/// Whether the first event is there to its end.
fn has_first_token(body: &[u8]) -> bool {
    let text = String::from_utf8_lossy(body);
    let event = text
        .split_once("data: ")
        .and_then(|(_, rest)| rest.split_once("\n\n"));
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

/// A time or duration of a row, to the nanosecond.
fn nanos(row: &Row, column: &str) -> i64 {
    let text = &row[column];
    let (whole, part) = text
        .split_once('.')
        .unwrap_or_else(|| panic!("{column} is {text:?}"));
    assert_eq!(part.len(), 9, "{column} is {text:?}");
    format!("{whole}{part}").parse().unwrap()
}

/// Fails unless `low ≤ value ≤ high`, each widened by `error`.
fn assert_between(what: &str, low: i64, value: i64, high: i64, error: i64, context: &str) {
    assert!(
        low <= high,
        "{what}: the injectors contradict each other: {low} > {high}\n{context}"
    );
    assert!(
        low - error <= value && value <= high + error,
        "{what} is {value} ns, not from {low} to {high} ± {error}\n{context}"
    );
}

/// Every moment lies where the injectors' stamps say.
fn assert_moments(row: &Row, truth: &Truth, error: i64, context: &str) {
    let client = &truth.client;
    let ours = [
        ("arrival_time", client.asked, truth.router.read),
        ("router_send_time", truth.router.sent, truth.net_read),
        ("first_token_time", truth.first_back, client.first_got),
        ("finish_time", truth.last_back, client.last_got),
    ];
    for (column, low, high) in ours {
        let (low, high) = (low.nanos(), high.nanos());
        assert_between(column, low, nanos(row, column), high, 0, context);
    }
    let engines = [
        ("server_created_time", truth.received),
        ("queue_time_start", truth.queue_start),
        ("queue_time_end", truth.queue_end),
        ("server_first_token_time", truth.first_token),
    ];
    for (column, at) in engines {
        let at = at.nanos();
        assert_between(column, at, nanos(row, column), at, error + FLOAT, context);
    }
}

/// Every column holds what its injector did, and of the others nothing.
fn assert_columns(row: &Row, truth: &Truth, error: i64, context: &str) {
    let client = &truth.client;
    let between = |from: Stamp, to: Stamp| to.nanos_since(from);
    // Least, most, and how well the clocks of the two ends are known to each other.
    let across = error + FLOAT;
    let columns = [
        (
            "queue_time_in_router",
            between(truth.router.read, truth.router.sent),
            between(client.asked, truth.net_read),
            0,
        ),
        (
            "network_time",
            between(truth.net_read, truth.received),
            between(truth.router.sent, truth.received),
            across,
        ),
        (
            "tokenize_time",
            between(truth.received, truth.queue_start),
            between(truth.received, truth.queue_start),
            FLOAT,
        ),
        (
            "pure_queue_time",
            between(truth.queue_start, truth.queue_end),
            between(truth.queue_start, truth.queue_end),
            FLOAT,
        ),
        (
            "prefill_time",
            between(truth.queue_end, truth.first_token),
            between(truth.queue_end, truth.first_token),
            FLOAT,
        ),
        (
            "decode_time",
            between(client.first_got, truth.last_back),
            between(truth.first_back, client.last_got),
            0,
        ),
    ];
    for ((column, low, high, error), stage) in columns.into_iter().zip(STAGES) {
        assert_eq!(column, stage);
        assert_between(column, low, nanos(row, column), high, error, context);
    }
    let back = nanos(row, "first_token_time") - nanos(row, "server_first_token_time");
    let (low, high) = (
        between(truth.first_token, truth.first_back),
        between(truth.first_token, client.first_got),
    );
    assert_between("the way back", low, back, high, across, context);
    let whole: i64 = STAGES.iter().map(|column| nanos(row, column)).sum();
    // To the nanosecond, but for what the engine says of its queue in a float of its own.
    let total = nanos(row, "total_latency");
    assert_between(
        "the stages together",
        total,
        whole + back,
        total,
        FLOAT,
        context,
    );
}

/// The stall lies within decoding and holds the client's pause; without a pause there is none.
fn assert_stall(row: &Row, truth: &Truth, context: &str) {
    let (stall, decode) = (nanos(row, "client_stall"), nanos(row, "decode_time"));
    let client = &truth.client;
    match client.paused {
        None => assert_eq!(stall, 0, "{context}"),
        Some((from, to)) => {
            let (low, high) = (
                to.nanos_since(from),
                client.last_got.nanos_since(client.asked),
            );
            assert_between("client_stall", low, stall, high, 0, context);
            assert!(decode >= low, "{context}");
            // The engine was done long before: none of the pause is its.
            assert!(truth.finish < to, "{context}");
        }
    }
}

async fn check(laid: Laid) {
    let (row, truth, error_bound) = Line::start(laid).await.run().await;
    let context = format!("{laid:?}\n{truth:?}\n{row:?}");
    assert_eq!(row["outcome"], "ok", "{context}");
    assert_eq!(row["inconsistency"], "", "{context}");
    assert_eq!(row["clock_state"], "offset", "{context}");
    let error = nanos(&row, "clock_offset_error");
    assert!(error <= error_bound, "{error} > {error_bound}\n{context}");
    let skew = (laid.skew_s * NANOS as f64) as i64;
    assert_between(
        "clock_offset",
        skew,
        nanos(&row, "clock_offset"),
        skew,
        error,
        &context,
    );
    // The injectors did what they were told: no stage is checked against nothing.
    let between = |from: Stamp, to: Stamp| to.nanos_since(from);
    let did = [
        (laid.router, between(truth.router.read, truth.router.sent)),
        (laid.there, between(truth.net_read, truth.net_sent)),
        (laid.back, between(truth.first_token, truth.first_back)),
        (laid.tokenize, between(truth.received, truth.queue_start)),
        (
            if laid.queue { LONG / 2 } else { Duration::ZERO },
            between(truth.queue_start, truth.queue_end),
        ),
        (laid.prefill, between(truth.queue_end, truth.first_token)),
        // The log has a first token when it was told, which may be late; the last is not sooner for it.
        (
            laid.prefill + laid.decode,
            between(truth.queue_end, truth.finish),
        ),
    ];
    for (place, (told, did)) in did.into_iter().enumerate() {
        let told = i64::try_from(told.as_nanos()).unwrap();
        assert!(
            did >= told - FLOAT,
            "injector {place} did {did} of {told} ns\n{context}"
        );
    }
    assert!(truth.net_sent <= truth.received, "{context}");
    assert!(truth.net_read >= truth.router.sent, "{context}");
    assert_moments(&row, &truth, error, &context);
    assert_columns(&row, &truth, error, &context);
    assert_stall(&row, &truth, &context);
}

/// One stage at a time, and all of them.
fn cases(skew_s: f64) -> Vec<Laid> {
    let none = Laid {
        skew_s,
        ..Laid::default()
    };
    let all = Laid {
        router: LONG,
        there: LONG / 2,
        back: LONG / 3,
        tokenize: LONG / 4,
        queue: true,
        prefill: LONG / 2,
        decode: LONG,
        stall: None,
        skew_s,
    };
    vec![
        none,
        Laid {
            router: LONG,
            ..none
        },
        Laid {
            there: LONG,
            ..none
        },
        Laid { back: LONG, ..none },
        Laid {
            tokenize: LONG,
            ..none
        },
        Laid {
            queue: true,
            ..none
        },
        Laid {
            prefill: LONG,
            ..none
        },
        Laid {
            decode: LONG,
            ..none
        },
        all,
    ]
}

async fn check_all(skew_s: f64) {
    let mut cases: JoinSet<()> = cases(skew_s).into_iter().map(check).collect();
    while let Some(checked) = cases.join_next().await {
        checked.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_delay_is_found_in_its_own_column() {
    check_all(0.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_the_engines_clock_an_hour_ahead_too() {
    check_all(3600.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_the_engines_clock_an_hour_behind_too() {
    check_all(-3600.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_stops_reading_is_no_decoding() {
    let laid = Laid {
        stall: Some(3 * LONG),
        ..Laid::default()
    };
    check(laid).await;
}
