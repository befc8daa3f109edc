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

use std::time::Duration;

use queuescope::clock::{NANOS, Stamp};
use tokio::task::JoinSet;

use crate::support::proxy::Row;

use self::line::{Laid, Line, Truth};

mod line;

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
/// A time or duration of a row, to the nanosecond.
fn nanos(row: &Row, column: &str) -> i64 {
    let text = &row[column];
    match text.split_once('.') {
        Some((whole, part)) if part.len() == 9 => format!("{whole}{part}").parse().unwrap(),
        _ => panic!("{column} is {text:?}"),
    }
}

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
