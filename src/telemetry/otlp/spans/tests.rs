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
    assert!(
        all.iter()
            .all(|span| span.span_context.trace_id().to_bytes() == TRACE.to_be_bytes())
    );
    all
}

fn called<'a>(all: &'a [SpanData], name: &str) -> Vec<&'a SpanData> {
    all.iter().filter(|span| span.name == name).collect()
}

fn number(id: SpanId) -> u64 {
    u64::from_be_bytes(id.to_bytes())
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

#[test]
fn each_sending_and_each_attempt_of_the_router_is_a_span_in_its_place() {
    let all = of(&[sent_twice()]);
    let ways = called(&all, "POST /v1/chat/completions");
    let [request, first, last] = ways[..] else {
        panic!("{ways:?}")
    };
    assert_eq!(
        (request.span_kind.clone(), number(request.parent_span_id)),
        (SpanKind::Server, 1)
    );
    assert!(request.parent_span_is_remote);
    for (way, span) in [(first, 5), (last, 2)] {
        assert_eq!(
            (way.span_kind.clone(), number(way.span_context.span_id())),
            (SpanKind::Client, span)
        );
        assert_eq!(way.parent_span_id, request.span_context.span_id());
    }
    assert_eq!(first.end_time, system(at(5)));
    assert!(matches!(first.status, Status::Error { .. }) && last.status == Status::Unset);
    let hops = called(&all, "hop");
    let parents: Vec<u64> = hops.iter().map(|hop| number(hop.parent_span_id)).collect();
    assert_eq!(
        parents,
        [2, 9],
        "below our sending, and below the router's own span"
    );
    assert!(matches!(hops[0].status, Status::Error { .. }) && hops[1].status == Status::Unset);
}

#[test]
fn stages_follow_each_other_without_gap_or_overlap_below_the_last_sending() {
    let all = of(&[sent_twice()]);
    let stages: Vec<&SpanData> = all
        .iter()
        .filter(|span| span.span_kind == SpanKind::Internal)
        .collect();
    let names: Vec<&str> = stages.iter().map(|stage| &*stage.name).collect();
    assert_eq!(
        names,
        [
            "router_queue",
            "network",
            "tokenize",
            "server_queue",
            "prefill",
            "return",
            "router_return",
            "decode"
        ]
    );
    assert_eq!(
        stages[0].parent_span_id,
        all[0].span_context.span_id(),
        "it begins before any sending"
    );
    assert!(
        stages[1..]
            .iter()
            .all(|stage| number(stage.parent_span_id) == 2)
    );
    assert!(
        stages
            .windows(2)
            .all(|two| two[0].end_time == two[1].start_time)
    );
    assert_eq!(stages[0].start_time, all[0].start_time);
}

#[test]
fn a_way_without_a_connection_is_a_failed_span_and_an_own_answer_is_no_upstreams_status() {
    let mut row = sent_twice();
    row.outcome = Some(Outcome::ProxyError);
    row.status = Some(502);
    row.timeline.clear(Moment::ResponseHead);
    row.more.trace.sendings[1].is_connected = false;
    row.more.trace.sendings[1].broke = Some(at(7));
    let of_way = |row: &Row, key: &str| {
        let all = of(std::slice::from_ref(row));
        let last = called(&all, "POST /v1/chat/completions")[2].clone();
        let mut attributes = last.attributes.iter();
        let found = attributes.find(|attribute| attribute.key.as_str() == key);
        (last.end_time, found.map(|found| found.value.to_string()))
    };
    let (end, why) = of_way(&row, "error.type");
    assert_eq!(
        (end, why.as_deref()),
        (system(at(7)), Some("connect_error"))
    );
    row.more.trace.sendings[1].is_connected = true;
    let status = "http.response.status_code";
    assert_eq!(of_way(&row, status).1, None);
    row.timeline.set(Moment::ResponseHead, at(7));
    assert_eq!(of_way(&row, status).1.as_deref(), Some("502"));
}

#[test]
fn what_nobody_saw_or_is_out_of_order_is_no_stage() {
    let mut row = row(Side::Front);
    row.timeline.clear(Moment::QueueStart);
    row.timeline.set(Moment::ServerFirstToken, at(1));
    let all = of(&[row]);
    for (stage, many) in [
        ("tokenize", 0),
        ("server_queue", 0),
        ("prefill", 0),
        ("network", 1),
        ("return", 1),
    ] {
        assert_eq!(called(&all, stage).len(), many, "{stage}");
    }
}

#[test]
fn of_many_sequences_the_first_have_their_own_stages_and_the_requests_are_told_once() {
    let rows: Vec<Row> = (0..20)
        .map(|index| {
            let mut row = row(Side::Front);
            row.sequences = 20;
            row.index = index;
            row
        })
        .collect();
    let all = of(&rows);
    for (name, many) in [("sequence", 16), ("prefill", 16), ("router_queue", 1)] {
        assert_eq!(called(&all, name).len(), many, "{name}");
    }
}

#[test]
fn who_stands_behind_a_front_of_ours_leaves_the_stages_to_it() {
    for (side, alone) in [
        (Side::Hop, false),
        (Side::Hop, true),
        (Side::Traffic, false),
        (Side::Traffic, true),
    ] {
        let mut row = row(side);
        if alone {
            row.parent_span_id = None;
            row.timeline.clear(Moment::Arrival);
        }
        let all = of(&[row]);
        assert_eq!(!called(&all, "prefill").is_empty(), alone, "{side:?}");
        let kind = if side == Side::Hop {
            SpanKind::Server
        } else {
            SpanKind::Client
        };
        assert_eq!(all[0].span_kind, kind);
    }
}
