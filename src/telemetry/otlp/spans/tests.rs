use super::*;
use crate::request::attempt::CameWith;
use crate::request::endpoint::Endpoint;
use crate::request::row::Row;
use crate::request::timeline::{ClockOf, Relation};

const TRACE: u128 = 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736;

fn id(number: u64) -> attempt::SpanId {
    attempt::SpanId::new(number).unwrap()
}

fn at(number: i64) -> Stamp {
    Stamp::from_nanos(number * 1_000_000)
}

/// Every moment 1 ms after the one before, all on one clock.
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

fn of(rows: &[Row]) -> Vec<SpanData> {
    let scope = InstrumentationScope::builder("t").build();
    let rows = crate::request::sample::rows(rows);
    let all = spans(&rows, trace_of(&rows), Kept::Ratio, &scope);
    for span in &all {
        assert_eq!(
            span.span_context.trace_id(),
            TraceId::from_bytes(TRACE.to_be_bytes())
        );
    }
    all
}

fn called<'a>(all: &'a [SpanData], name: &str) -> Vec<&'a SpanData> {
    all.iter().filter(|span| span.name == name).collect()
}

/// A line a span: its kind, the end of its name, its id where we chose it and that of the span above it, milliseconds from and to.
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

/// A request that was sent twice over a router that tried two hops.
fn sent_twice() -> Row {
    let mut row = row(Side::Front);
    let sending = |span, from, broke: Option<i64>| Sending {
        span: id(span),
        upstream: "router:1".into(),
        at: at(from),
        broke: broke.map(at),
        is_connected: true,
    };
    row.more.trace.sendings = vec![sending(5, 4, Some(5)), sending(2, 5, None)];
    let attempt = |span, came: Option<(u128, u64)>, status| {
        let mut attempt = Attempt::new(id(span), "w0".into(), "gpu0:1".into(), at(6));
        attempt.came_with = came.map(|(trace, span)| CameWith {
            trace,
            span: id(span),
        });
        attempt.status = Some(status);
        attempt.outcome = (status >= 400).then_some(Outcome::ServerError);
        attempt
    };
    // The second came with a span of the router's in this trace, the first in one of the router's own.
    row.more.trace.attempts = vec![
        attempt(8, Some((9, 9)), 503),
        attempt(10, Some((TRACE, 9)), 200),
    ];
    row
}

/// Below our last sending, and below the router's own span where a hop got one of this trace.
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
fn each_sending_and_each_attempt_of_the_router_is_a_span_and_stages_follow_below_the_last() {
    let all = of(&[sent_twice()]);
    assert!(all[0].parent_span_is_remote);
    assert_eq!(tree(&all), TREE);
}

#[test]
fn a_way_without_a_connection_is_a_failed_span_and_an_own_answer_is_no_upstreams_status() {
    let mut row = sent_twice();
    row.outcome = Some(Outcome::ProxyError);
    row.status = Some(502);
    row.timeline.clear(Moment::ResponseHead);
    row.more.trace.sendings[1].is_connected = false;
    row.more.trace.sendings[1].broke = Some(at(7));
    let last =
        |row: &Row| called(&of(std::slice::from_ref(row)), "POST /v1/chat/completions")[2].clone();
    let says = |span: &SpanData, key: &str| {
        let mut attributes = span.attributes.iter();
        let found = attributes.find(|attribute| attribute.key.as_str() == key);
        found.map(|found| found.value.to_string())
    };
    let unconnected = last(&row);
    assert_eq!(unconnected.end_time, system(at(7)));
    let why = says(&unconnected, "error.type");
    assert_eq!(why.as_deref(), Some("connect_error"));
    row.more.trace.sendings[1].is_connected = true;
    let status = "http.response.status_code";
    assert_eq!(says(&last(&row), status), None);
    row.timeline.set(Moment::ResponseHead, at(7));
    assert_eq!(says(&last(&row), status).as_deref(), Some("502"));
}

/// How many spans have each of these names.
fn many(rows: &[Row], names: &str) -> Vec<usize> {
    let all = of(rows);
    let count = |name| called(&all, name).len();
    names.split(' ').map(count).collect()
}

#[test]
fn what_nobody_saw_or_is_out_of_order_is_no_stage() {
    let mut row = row(Side::Front);
    row.timeline.clear(Moment::QueueStart);
    row.timeline.set(Moment::ServerFirstToken, at(1));
    let stages = "tokenize server_queue prefill network return";
    assert_eq!(many(&[row], stages), [0, 0, 0, 1, 1]);
}

#[test]
fn of_many_sequences_the_first_have_their_own_stages_and_the_requests_are_told_once() {
    let rows = (0..20).map(|index| Row {
        index,
        sequences: 20,
        ..row(Side::Front)
    });
    let found = many(&Vec::from_iter(rows), "sequence prefill router_queue");
    assert_eq!(found, [16, 16, 1]);
}

#[test]
fn who_stands_behind_a_front_of_ours_leaves_the_stages_to_it() {
    for (side, kind) in [
        (Side::Hop, SpanKind::Server),
        (Side::Traffic, SpanKind::Client),
    ] {
        let behind = row(side);
        assert_eq!(of(std::slice::from_ref(&behind))[0].span_kind, kind);
        let mut alone = behind.clone();
        alone.parent_span_id = None;
        alone.timeline.clear(Moment::Arrival);
        let found = [behind, alone].map(|row| many(&[row], "prefill"));
        assert_eq!(found, [[0], [1]], "{side:?}");
    }
}
