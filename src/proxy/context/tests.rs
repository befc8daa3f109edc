//! What a request's context promises.

use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::client::limits::Limits;
use crate::clock::{Clock, ManualClock};
use crate::offset::OffsetTable;
use crate::proxy::hop_key::HopKey;
use crate::proxy::join::Joins;
use crate::proxy::shared::{Settings, StampsPolicy};
use crate::request::record::Record;
use crate::request::row::Row;
use crate::request::timeline::Period;
use crate::telemetry::Telemetry;
use crate::telemetry::prometheus::Metrics;

use super::*;

pub(super) fn shared() -> (Arc<Shared>, ManualClock) {
    let (clock, manual) = Clock::manual(Stamp::from_nanos(1_000));
    let metrics = Metrics::new().unwrap();
    let limit = Duration::from_secs(1);
    let limits = Limits {
        drain: limit,
        client_idle_s: 1,
        client_read: limit,
        client_write: limit,
        client_head: limit,
        client_body: limit,
        client_stall: limit,
        request_head_bytes: 65_536,
        request_body_bytes: 65_536,
        connections: 1,
    };
    let shared = Shared {
        started: clock.now(),
        clock_name: "ours".into(),
        clock,
        hop_key: HopKey::of_process(),
        unsigned_stamps: std::sync::Once::new(),
        joins: Joins::new(true, metrics.clone()),
        telemetry: Arc::new(Telemetry::new(None, metrics.clone(), true)),
        engine: None,
        settings: ArcSwap::from_pointee(Settings {
            limits,
            upstream_read: limit,
            stamps: StampsPolicy::Never,
            stamps_token: None,
            admin_hosts: Vec::new(),
            ready_needs_upstream: false,
            hosts: Default::default(),
        }),
        admin_token: None,
        faults: None,
        tls: None,
        upstream_kind: UpstreamKind::Router,
        clocks: Arc::new(Mutex::new(OffsetTable::with_capacity(4))),
        phase: watch::channel(Phase::Serving).0,
        metrics,
    };
    (Arc::new(shared), manual)
}

fn context() -> (Context, ManualClock) {
    let (shared, manual) = shared();
    let mut context = Context::new(shared.clone(), Role::Front, shared.clock.now());
    context.watch(Endpoint::Generate, "id".into());
    (context, manual)
}

#[test]
fn a_hop_of_another_process_is_put_on_our_clock() {
    let theirs = |nanos: i64| Some(Stamp::from_nanos(5_000_000_000 + nanos));
    let hop = Stamps {
        clock: "theirs".into(),
        arrival: theirs(2_000),
        forwarded: theirs(2_500),
        now: theirs(8_000),
        ..Stamps::default()
    };
    let (mut context, manual) = context();
    context.attempt_began();
    manual.set(Stamp::from_nanos(9_000));
    context.served_by(Some(hop), None);
    context.response_head(200, None, false, context.shared.clock.now());
    let shared = context.shared.clone();
    context.ended(End::Complete);
    let clocks = shared.clocks.lock();
    let offset = clocks.get("theirs", Stamp::from_nanos(9_000)).unwrap();
    let off_by = (offset.nanos - 5_000_000_000).abs();
    assert!(
        off_by <= offset.error_nanos && offset.error_nanos < 20_000,
        "{offset:?}"
    );
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
    let text = metrics.text();
    assert!(
        text.contains("outcome=\"proxy_error\",worker=\"\"} 1"),
        "{text}"
    );
}

/// A request that came at 1 µs, and what sets the clock to so many microseconds.
fn request() -> (Context, impl Fn(i64)) {
    let (shared, manual) = shared();
    let mut context = Context::new(shared.clone(), Role::Front, shared.clock.now());
    context.watch(Endpoint::Generate, "id".into());
    (context, at(manual))
}

fn at(manual: ManualClock) -> impl Fn(i64) {
    move |micros| manual.set(Stamp::from_nanos(micros * 1_000))
}

fn head(context: &mut Context) {
    let now = context.shared.clock.now();
    context.response_head(200, None, false, now);
}

fn whole(context: &mut Context) {
    let now = context.shared.clock.now();
    context.response_body(b"{}", true, now);
}

/// What the proxy added to a request that ends now, microseconds.
fn overhead(context: &mut Context) -> i64 {
    let now = context.shared.clock.now();
    context.time.back(now);
    context.time.own(context.arrival, now) / 1_000
}

#[test]
fn what_no_upstream_had_is_the_proxys() {
    let (mut context, at) = request();
    at(31);
    let _ = context.attempt_began();
    at(500);
    head(&mut context);
    whole(&mut context);
    at(507);
    assert_eq!(overhead(&mut context), 30 + 7);
}

#[test]
fn the_wait_for_a_prompt_is_not_the_proxys() {
    let (mut context, at) = request();
    at(3);
    let began = context.shared.clock.now();
    at(903);
    context.prompt_waited(began);
    at(910);
    let _ = context.attempt_began();
    at(2_000);
    whole(&mut context);
    assert_eq!(context.prompt_wait, Some(900_000));
    assert_eq!(overhead(&mut context), 2 + 7);
}

#[test]
fn between_two_sendings_it_is_the_proxys() {
    let (mut context, at) = request();
    at(11);
    let _ = context.attempt_began();
    at(111);
    context.sending_failed(true);
    at(151);
    let _ = context.attempt_began();
    at(400);
    head(&mut context);
    whole(&mut context);
    at(405);
    assert_eq!(overhead(&mut context), 10 + 40 + 5);
}

#[test]
fn one_that_reached_no_upstream_was_the_proxys_all_the_time() {
    let (mut context, at) = request();
    at(701);
    assert_eq!(overhead(&mut context), 700);
}

#[test]
fn one_that_ends_while_an_upstream_has_it_adds_nothing_at_the_end() {
    let (mut context, at) = request();
    at(21);
    let _ = context.attempt_began();
    at(9_000);
    assert_eq!(overhead(&mut context), 20);
}

#[test]
fn what_the_client_holds_up_is_not_the_proxys() {
    let (mut context, at) = request();
    let stall = |context: &mut Context, from, to| {
        at(from);
        context.time.began(context.shared.clock.now());
        at(to);
        context.time.over(context.shared.clock.now());
    };
    at(2);
    let _ = context.attempt_began();
    head(&mut context);
    // While the server still sends: nobody's but the client's and the server's.
    stall(&mut context, 10, 60);
    at(100);
    whole(&mut context);
    stall(&mut context, 104, 304);
    at(306);
    assert_eq!(overhead(&mut context), 1 + 4 + 2);
}

const MS: i64 = 1_000_000;
const EVENT: &[u8] = b"data: {\"text\":\"a\",\"meta_info\":{\"completion_tokens\":1}}\n\n";

/// A request through front, router and hop; the router holds the first event back for 12 ms and the last bytes for
/// 2 ms. `first` is what comes before the event that brings the first token, 5 ms earlier; `is_whole` says that
/// the hop saw the end before the front did.
fn row(first: &[u8], is_whole: bool) -> (Record, Row) {
    let (shared, manual) = shared();
    let at = |ms: i64| manual.set(Stamp::from_nanos(ms * MS));
    let now = || shared.clock.now();
    at(1);
    let mut front = Context::new(shared.clone(), Role::Front, shared.clock.now());
    front.trace = Some(Trace::new());
    front.watch(Endpoint::Generate, "id".into());
    let parent = front.attempt_began().unwrap();
    let mut hop = Context::new(shared.clone(), Role::Hop("w0".into()), shared.clock.now());
    let mut headers = http::HeaderMap::new();
    headers.insert("traceparent", parent.parse().unwrap());
    hop.trace = Trace::of(&headers);
    hop.watch_attempt(Endpoint::Generate, Some("id".into()));
    let _ = hop.attempt_began();
    hop.response_head(200, Some("text/event-stream"), false, now());
    front.served_by(Some(hop.stamps()), None);
    front.response_head(200, Some("text/event-stream"), false, now());

    at(95);
    hop.passed_on(first.is_empty(), false, now(), None);
    at(100);
    hop.passed_on(false, false, now(), None);
    at(107);
    if !first.is_empty() {
        front.response_body(first, false, now());
    }
    at(112);
    front.response_body(EVENT, false, now());
    at(150);
    hop.passed_on(false, false, now(), None);
    if is_whole {
        hop.passed_on(true, true, now(), None);
    }
    at(152);
    front.response_body(b"data: [DONE]\n\n", true, now());

    let key = front.joins.take().unwrap();
    let closed = shared.joins.close(key, shared.clock.now());
    let watch = front.watch.take().unwrap();
    let now = shared.clock.now();
    let records = front.rows(watch, Some(closed), &End::Complete, now);
    (records[0].clone(), Row::all(records).remove(0))
}

#[test]
fn what_the_router_held_back_is_found_to_the_nanosecond() {
    let (record, row) = row(b"", true);
    assert_eq!(row.router_return, Some(12 * MS));
    let (here, there) = (record.facts.passage, record.facts.worker_passage);
    assert_eq!(here.last.unwrap().nanos_since(there.last.unwrap()), 2 * MS);
    assert_eq!(here.longest_gap_nanos, Some(40 * MS));
    assert_eq!(there.longest_gap_nanos, Some(50 * MS));
    assert_eq!(row.timeline.nanos(Period::ROUTER_RETURN), Some(12 * MS));
    assert_eq!(row.inconsistency, None);
}

#[test]
fn the_stage_is_known_only_where_the_first_bytes_brought_the_token() {
    let (_, row) = row(b"data: {\"text\":\"\",\"meta_info\":{}}\n\n", true);
    assert_eq!(row.router_return, Some(12 * MS));
    assert!(!row.timeline.saw_way_back());
}

#[test]
fn what_the_hop_had_not_told_is_not_known() {
    let (record, row) = row(b"", false);
    assert_eq!(row.router_return, Some(12 * MS));
    assert_eq!(record.facts.worker_passage.last, None);
    assert_eq!(record.facts.worker_passage.longest_gap_nanos, None);
}

#[test]
fn a_piece_that_a_fault_holds_passes_later() {
    let (shared, _) = shared();
    let mut hop = Context::new(shared.clone(), Role::Hop("w0".into()), shared.clock.now());
    hop.watch_attempt(Endpoint::Generate, None);
    let now = hop.shared.clock.now();
    hop.passed_on(false, true, now, Some(Duration::from_millis(3)));
    assert_eq!(hop.passage.first, Some(now.plus_nanos(3 * MS)));
}
