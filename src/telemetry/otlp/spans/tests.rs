use std::time::SystemTime;

use super::*;
use crate::request::{ClockOf, ParentSpan, Relation, Row};

const TRACE: u128 = 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736;

fn id(number: u64) -> attempt::SpanId {
    attempt::SpanId::new(number).unwrap()
}

fn at(number: i64) -> Stamp {
    Stamp::from_nanos(number * 1_000_000)
}

/// A row with each moment 1 ms after the one before, all on one clock.
fn row(side: Side) -> Row {
    let mut row = Row::new(side, Endpoint::Chat, "r".into());
    let timeline = &mut row.timeline;
    timeline.hop_shares_front();
    for clock in [ClockOf::Traffic, ClockOf::Front, ClockOf::Engine] {
        timeline.relate(clock, Relation::Same);
    }
    for (moment, n) in Moment::ALL.into_iter().zip(1..) {
        timeline.set(moment, at(n));
    }
    row.outcome = Some(Outcome::Ok);
    row.host = Some("gpu1:30000".into());
    row.trace_id = Some(format!("{TRACE:032x}"));
    row.parent_span_id = Some(id(1));
    row.span_id = Some(id(2));
    row
}

fn spans_of(rows: &[Row]) -> Vec<SpanData> {
    let rows = crate::request::sample::rows(rows);
    let all = spans(&rows, trace_of(&rows), KeepReason::Ratio);
    let trace = TraceId::from_bytes(TRACE.to_be_bytes());
    for span in &all {
        assert_eq!(span.span_context.trace_id(), trace);
    }
    all
}

fn named<'a>(all: &'a [SpanData], name: &str) -> Vec<&'a SpanData> {
    all.iter().filter(|span| span.name == name).collect()
}

/// Renders a line per span: kind, the end of the name, the id if the test chose it, the parent's id, start and end.
fn tree(all: &[SpanData]) -> String {
    let name = |id: SpanId| match u64::from_be_bytes(id.to_bytes()) {
        _ if id == all[0].span_context.span_id() => "the request".to_owned(),
        chosen @ 0..100 => chosen.to_string(),
        _ => "its own".to_owned(),
    };
    let line = |span: &SpanData| {
        let since = |at: SystemTime| at.duration_since(SystemTime::UNIX_EPOCH).unwrap();
        let (id, above) = (name(span.span_context.span_id()), name(span.parent_span_id));
        let is_failed = matches!(span.status, Status::Error { .. });
        let failed = if is_failed { " failed" } else { "" };
        let (from, to) = (since(span.start_time), since(span.end_time));
        let what = span.name.trim_start_matches("POST /v1/chat/");
        format!(
            "{:?} {what}, {id} below {above}, {from:?} to {to:?}{failed}",
            span.span_kind
        )
    };
    all.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// A request that was sent at the second try, over a router that tried two hops.
fn sent_twice() -> Row {
    let mut row = row(Side::Front);
    let sending = |span, from, failed: Option<i64>| Sending {
        span: id(span),
        upstream: "router:1".into(),
        at: at(from),
        failed: failed.map(at),
    };
    row.internal.trace.sendings = vec![sending(5, 4, Some(5)), sending(2, 5, None)];
    let attempt = |own, (trace, parent), status| {
        let mut attempt = Attempt::new(id(own), "w0".into(), "gpu0:1".into(), at(6));
        let span = id(parent);
        attempt.parent = Some(ParentSpan { trace, span });
        attempt.status = Some(status);
        attempt.outcome = (status >= 400).then_some(Outcome::ServerError);
        attempt
    };
    // The second came with a span of the router's in this trace, the first in one of the router's own.
    row.internal.trace.attempts = vec![attempt(8, (9, 9), 503), attempt(10, (TRACE, 9), 200)];
    row
}

/// The attempts are below our last sending, or below the router's own span if it is in this trace.
const TREE: &str = "\
Server completions, the request below 1, 3ms to 25ms
Client completions, 5 below the request, 4ms to 5ms failed
Client completions, 2 below the request, 5ms to 25ms
Client hop, 8 below 2, 6ms to 25ms failed
Client hop, 10 below 9, 6ms to 25ms
Internal router_queue, its own below the request, 3ms to 6ms
Internal network, its own below 2, 6ms to 9ms
Internal tokenize, its own below 2, 9ms to 10ms
Internal server_queue, its own below 2, 10ms to 12ms
Internal prefill, its own below 2, 12ms to 16ms
Internal return, its own below 2, 16ms to 20ms
Internal router_return, its own below 2, 20ms to 22ms
Internal decode, its own below 2, 22ms to 24ms";

#[test]
fn each_sending_and_attempt_is_a_span_and_the_stages_are_below_the_last_sending() {
    let all = spans_of(&[sent_twice()]);
    assert!(all[0].parent_span_is_remote);
    assert_eq!(tree(&all), TREE);
}

#[test]
fn a_sending_without_a_connection_failed_and_our_own_responses_status_is_not_shown() {
    let mut row = sent_twice();
    row.outcome = Some(Outcome::ProxyError);
    row.status = Some(502);
    row.timeline.clear(Moment::ResponseHead);
    row.internal.trace.sendings[1].failed = Some(at(7));
    let last = |row: &Row| {
        let all = spans_of(std::slice::from_ref(row));
        named(&all, "POST /v1/chat/completions")[2].clone()
    };
    let attribute = |span: &SpanData, key: &str| {
        let mut pairs = span.attributes.iter();
        let found = pairs.find(|pair| pair.key.as_str() == key)?;
        Some(found.value.to_string())
    };
    let unconnected = last(&row);
    assert_eq!(unconnected.end_time, SystemTime::from(at(7)));
    let error_type = attribute(&unconnected, "error.type");
    assert_eq!(error_type.as_deref(), Some("connect_error"));
    row.internal.trace.sendings[1].failed = None;
    let status = "http.response.status_code";
    assert_eq!(attribute(&last(&row), status), None);
    row.timeline.set(Moment::ResponseHead, at(7));
    assert_eq!(attribute(&last(&row), status).as_deref(), Some("502"));
}

/// Counts the spans with each of these names.
fn counts(rows: &[Row], names: &str) -> Vec<usize> {
    let all = spans_of(rows);
    let count = |name| named(&all, name).len();
    names.split(' ').map(count).collect()
}

#[test]
fn a_stage_with_a_missing_end_or_out_of_order_is_left_out() {
    let mut row = row(Side::Front);
    row.timeline.clear(Moment::QueueStart);
    row.timeline.set(Moment::ServerFirstToken, at(1));
    let stages = "tokenize server_queue prefill network return";
    assert_eq!(counts(&[row], stages), [0, 0, 0, 1, 1]);
}

#[test]
fn the_first_sequences_have_stages_of_their_own_and_the_requests_stages_appear_once() {
    let rows = (0..20).map(|index| Row {
        index,
        sequences: 20,
        ..row(Side::Front)
    });
    let found = counts(&Vec::from_iter(rows), "sequence prefill router_queue");
    assert_eq!(found, [16, 16, 1]);
}

#[test]
fn behind_a_front_of_ours_the_stages_are_left_to_it() {
    for (side, kind) in [
        (Side::Hop, SpanKind::Server),
        (Side::Traffic, SpanKind::Client),
    ] {
        let behind = row(side);
        assert_eq!(spans_of(std::slice::from_ref(&behind))[0].span_kind, kind);
        let mut alone = behind.clone();
        alone.parent_span_id = None;
        alone.timeline.clear(Moment::Arrival);
        let found = [behind, alone].map(|row| counts(&[row], "prefill"));
        assert_eq!(found, [[0], [1]], "{side:?}");
    }
}
