//! What a request's context promises.

use arc_swap::ArcSwap;
use tokio::sync::watch;

use crate::clock::{Clock, ManualClock};
use crate::config::proxy::Config;
use crate::proxy::hop_key::HopKey;
use crate::proxy::join::Joins;
use crate::request::row::Row;
use crate::request::timeline::Period;
use crate::telemetry::Telemetry;
use crate::telemetry::prometheus::Metrics;

use super::*;

pub(super) fn shared() -> (Arc<Shared>, ManualClock) {
    let (clock, manual) = Clock::manual(Stamp::from_nanos(1_000));
    let metrics = Metrics::new().unwrap();
    let shared = Shared {
        started: clock.now(),
        clock_name: "ours".into(),
        clock,
        hop_key: HopKey::of_process(),
        unsigned_stamps: std::sync::Once::new(),
        joins: Joins::new(true, metrics.clone()),
        roles: Default::default(),
        telemetry: Arc::new(Telemetry::new(None, metrics.clone(), true)),
        engine: None,
        config: ArcSwap::from_pointee(Config {
            workers: vec!["w0=127.0.0.1:1=127.0.0.1:2".parse().unwrap()],
            ..Config::default()
        }),
        admin_token: None,
        faults: None,
        tls: None,
        clocks: Arc::default(),
        phase: watch::channel(Phase::Serving).0,
        metrics,
    };
    (Arc::new(shared), manual)
}

fn context() -> (Context, ManualClock) {
    let (shared, manual) = shared();
    let mut context = Context::new(shared.clone(), Role::Front, shared.clock.now());
    context.watch(Endpoint::Generate, Some("id"), &HeaderMap::new());
    (context, manual)
}

pub(super) fn ok() -> ResponseHeader {
    let mut head = ResponseHeader::build(200, None).unwrap();
    let stream = "text/event-stream";
    head.insert_header("content-type", stream).unwrap();
    head
}

#[test]
fn every_request_ends_once_whatever_ends_it() {
    let (mut context, _) = context();
    let metrics = context.shared.metrics.clone();
    assert_eq!(metrics.in_flight(), 1);
    context.ended(End::Complete);
    context.ended(End::Complete);
    drop(context);
    assert_eq!(metrics.in_flight(), 0);
    let (context, _) = self::context();
    let metrics = context.shared.metrics.clone();
    drop(context);
    assert_eq!(metrics.in_flight(), 0);
    let told = "outcome=\"proxy_error\",worker=\"\"} 1";
    assert!(metrics.text().contains(told));
}

/// A name, what happens at which microsecond after the arrival, which was at 1, the end, and our own time in its parts: the prompt
/// is asked for, and known; a sending begins, or fails; the answer is read whole; a write to the client is pending, and over.
const OWN_TIME: &str = "\
no upstream had it | 31 begins, 500 whole | 507 | 30 + 7
the wait for a prompt is not its | 3 asked, 903 known, 910 begins, 2000 whole | 2000 | 2 + 7
between two sendings it is its | 11 begins, 111 fails, 151 begins, 400 whole | 405 | 10 + 40 + 5
it reached no upstream | | 701 | 700
an upstream has it at the end | 21 begins | 9000 | 20
what the client holds up is not its | 2 begins, 10 pends, 60 over, 100 whole, 104 pends, 304 over | 306 | 1 + 4 + 2";

#[test]
fn the_proxys_own_time_is_what_nobody_else_had() {
    for line in OWN_TIME.lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [what, steps, end, parts] = cells[..] else {
            panic!("{line}")
        };
        let (mut context, manual) = context();
        let at = |micros: &str| Stamp::from_nanos(micros.parse::<i64>().unwrap() * 1_000);
        let mut asked = at("0");
        for step in steps.split_terminator(", ") {
            let (micros, step) = step.split_once(' ').unwrap();
            let now = at(micros);
            manual.set(now);
            match step {
                "asked" => asked = now,
                "known" => context.prompt_waited(asked),
                "begins" => drop(context.attempt_began()),
                "fails" => context.sending_failed(true),
                "pends" => context.time.began(now),
                "over" => context.time.over(now),
                _ => {
                    context.response_head(&ok(), None, now);
                    context.response_body(b"{}", true, now);
                }
            }
        }
        context.time.back(at(end));
        let own = context.time.own(context.arrival, at(end));
        let parts = parts.split(" + ").map(|part| at(part).nanos());
        assert_eq!(own, parts.sum::<i64>(), "{what}");
        if steps.contains("asked") {
            let row = context.watch.as_mut().unwrap().observer.row_mut();
            assert_eq!(row.prompt_wait, Some(900_000));
        }
    }
}

const MS: i64 = 1_000_000;
const EVENT: &[u8] = b"data: {\"text\":\"a\",\"meta_info\":{\"completion_tokens\":1}}\n\n";

/// A request through front, router and hop; the router holds the first event back for 12 ms and the last bytes for
/// 2 ms. `first` is what comes before the event that brings the first token, 5 ms earlier; `is_whole` says that
/// the hop saw the end before the front did.
fn row(first: &[u8], is_whole: bool) -> Row {
    let (shared, manual) = shared();
    let at = |ms: i64| manual.set(Stamp::from_nanos(ms * MS));
    let now = || shared.clock.now();
    at(1);
    let mut front = Context::new(shared.clone(), Role::Front, shared.clock.now());
    front.trace = Some(Trace::random());
    front.watch(Endpoint::Generate, Some("id"), &HeaderMap::new());
    let parent = front.attempt_began().unwrap();
    let mut hop = Context::new(shared.clone(), Role::Hop("w0".into()), shared.clock.now());
    let mut headers = http::HeaderMap::new();
    headers.insert("traceparent", parent.parse().unwrap());
    hop.trace = Trace::of(&headers);
    hop.watch(Endpoint::Generate, Some("id"), &HeaderMap::new());
    let _ = hop.attempt_began();
    hop.response_head(&ok(), None, now());
    front.response_head(&ok(), Some(hop.stamps()), now());

    at(95);
    hop.passed_on(first.is_empty(), false, now());
    at(100);
    hop.passed_on(false, false, now());
    at(107);
    if !first.is_empty() {
        front.response_body(first, false, now());
    }
    at(112);
    front.response_body(EVENT, false, now());
    at(150);
    hop.passed_on(false, false, now());
    if is_whole {
        hop.passed_on(true, true, now());
    }
    at(152);
    front.response_body(b"data: [DONE]\n\n", true, now());

    let joined = front.joined.take().unwrap();
    let closed = shared.joins.close(&joined, shared.clock.now());
    let watch = front.watch.take().unwrap();
    let now = shared.clock.now();
    Row::ended(front.rows(watch, Some(closed), &End::Complete, now)).remove(0)
}

#[test]
fn what_the_router_held_back_is_found_to_the_nanosecond() {
    let later = b"data: {\"text\":\"\",\"meta_info\":{}}\n\n";
    // The stage is known only where the first bytes brought the token; what the hop had not told is not.
    for (first, is_whole) in [(&b""[..], true), (&later[..], true), (b"", false)] {
        let row = row(first, is_whole);
        assert_eq!(row.router_return, Some(12 * MS));
        assert_eq!(row.inconsistency, None);
        assert_eq!(row.router_return_last, is_whole.then_some(2 * MS));
        let token = row.timeline.mark(Moment::WorkerFirstToken);
        assert_eq!(token.is_some(), first.is_empty());
        if first.is_empty() {
            let stage = row.timeline.nanos(Period::ROUTER_RETURN);
            assert_eq!(stage, Some(12 * MS));
            assert_eq!(row.worker_longest_gap, is_whole.then_some(50 * MS));
            assert_eq!(row.router_gap_added, is_whole.then_some(-10 * MS));
        }
    }
}

/// The server of a leg refused it before its body had come: how long the hop waits for that, and so for the room, is no time of the
/// attempt, nor our own.
#[test]
fn the_wait_for_a_legs_room_is_not_of_its_attempt() {
    let (shared, manual) = shared();
    let at = |ms: i64| Stamp::from_nanos(ms * MS);
    manual.set(at(1));
    let mut hop = Context::new(shared.clone(), Role::Hop("w0".into()), at(1));
    hop.watch(Endpoint::Generate, None, &HeaderMap::new());
    manual.set(at(501));
    hop.request_body(b"{\"bootstrap_room\":7}", true);
    hop.room_waited(at(3));
    let end = End::ProxyError("refused".to_owned());
    hop.answered(502, end.clone());
    let told = hop.told().unwrap().clone();
    assert_eq!((told.room, told.ended), (Some(7), Some(at(3))));
    assert_eq!(told.failed().nanos, Some(2 * MS));
    let watch = hop.watch.take().unwrap();
    let row = Row::ended(hop.rows(watch, None, &end, at(501))).remove(0);
    assert_eq!((row.elapsed, row.overhead), (Some(2 * MS), Some(2 * MS)));
}
