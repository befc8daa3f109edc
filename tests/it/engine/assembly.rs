//! What becomes of the recorded spans: the moments that `meta_info` tells of the same request, whatever way they came.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use queuescope::clock::Stamp;
use queuescope::engine::otlp;
use queuescope::engine::span::EngineSpan;
use queuescope::engine::spans::{Report, Spans};
use queuescope::request::told::Told;
use serde_json::Value;

use crate::support::spans::{self, Case};

const ROOM: usize = 1000;

fn read(spans: &[Value]) -> Vec<EngineSpan> {
    otlp::spans(spans::message(spans).into(), |_| {}).unwrap()
}

fn at(second: i64) -> Stamp {
    Stamp::from_nanos(second * 1_000_000_000)
}

fn held(spans: &[Value]) -> Spans {
    let mut held = Spans::new(ROOM);
    for span in read(spans) {
        held.add(span, at(0));
    }
    held
}

/// What comes of spans: of requests of which all is there, and of others.
pub fn assembled(spans: &[Value]) -> (Vec<Told>, Vec<Told>) {
    let held = held(spans);
    let traces: BTreeSet<u128> = read(spans).iter().map(|span| span.trace).collect();
    let reports = traces.into_iter().flat_map(|trace| held.by_trace(trace));
    let (whole, left): (Vec<Report>, Vec<Report>) = reports.partition(|report| report.is_whole);
    let told = |reports: Vec<Report>| reports.into_iter().map(|report| report.told).collect();
    (told(whole), told(left))
}

pub fn by_rid(told: &[Told]) -> BTreeMap<&str, &Told> {
    let named = told.iter();
    let named = named.filter_map(|told| Some((told.rid.as_deref()?, told)));
    named.collect()
}

/// The moments that both know, within 1 µs: a float of epoch seconds resolves 0.24 µs, and the engine converts each moment
/// twice.
fn assert_equal_moments(told: &Told, meta_info: &Value, case: &str) {
    let seconds = |name: &str| meta_info[name].as_f64();
    let moment =
        |name: &str, after: f64| Some(Stamp::from_seconds(seconds(name)? + after).unwrap());
    let queue_time = seconds("queue_time").unwrap();
    let first_token = seconds("first_token_latency").unwrap();
    for (ours, theirs) in [
        (told.received, moment("request_received_ts", 0.0)),
        (told.queue_start, moment("forward_entry_time", -queue_time)),
        (told.queue_end, moment("forward_entry_time", 0.0)),
        (told.prefill_end, moment("prefill_finished_time", 0.0)),
        (told.first_token, moment("request_received_ts", first_token)),
        (told.finished, moment("request_finished_ts", 0.0)),
    ] {
        let (ours, theirs) = (ours.unwrap(), theirs.unwrap());
        let apart = ours.nanos_since(theirs).abs();
        assert!(apart <= 1_000, "{case}: {apart} ns apart: {told:?}");
    }
    let queue_nanos = told.queue_nanos.unwrap() as f64;
    assert!((queue_nanos - queue_time * 1e9).abs() <= 1_000.0, "{case}");
    for (ours, theirs) in [
        (told.prompt_tokens, "prompt_tokens"),
        (told.cached_tokens, "cached_tokens"),
        (told.output_tokens, "completion_tokens"),
        (told.num_retractions, "num_retractions"),
        (told.dp_rank, "dp_rank"),
    ] {
        assert_eq!(ours, meta_info[theirs].as_u64(), "{case}: {theirs}");
    }
}

fn assert_told(case: &Case, told: &[Told]) -> usize {
    let told = by_rid(told);
    let traced = !case.spans.is_empty();
    // The warm-up of n > 1 generates nothing, and no scheduler's span names it.
    let told_of = case
        .meta_info
        .iter()
        .filter(|meta| meta["completion_tokens"] != 0 && traced);
    told_of
        .map(|meta| {
            let id = meta["id"].as_str().unwrap();
            assert_equal_moments(told[id], meta, &case.name);
        })
        .count()
}

#[test]
fn a_trace_that_the_engine_began_has_the_upper_half_zero() {
    let case = spans::named("direct/generate_stream");
    let (told, left) = assembled(&case.spans);
    assert_eq!(left, []);
    assert_eq!(told.len(), 1);
    assert_eq!(told[0].trace.unwrap() >> 64, 0);
    assert_eq!(told[0].parent, None);
}

#[test]
fn a_request_that_was_aborted_in_the_queue_has_its_start_alone() {
    for name in "chat_stream chat_nostream generate_stream generate_nostream".split(' ') {
        let case = spans::named(&format!("direct/abort_in_queue/queued_{name}"));
        let (told, left) = assembled(&case.spans);
        assert_eq!(left, []);
        let [told] = &told[..] else {
            panic!("{told:?}");
        };
        let queued = told.queue_start.unwrap();
        assert_eq!(told.queue_end, None);
        assert_eq!(told.queue_nanos, None);
        assert_eq!(told.prefill_end, None);
        assert_eq!(told.first_token, None);
        assert_eq!(told.output_tokens, None);
        // Until the engine noticed.
        let waited = told.finished.unwrap().nanos_since(queued);
        assert!((500_000_000..5_000_000_000).contains(&waited), "{waited}");
        assert!(queued > told.received.unwrap());
    }
}

#[test]
fn a_request_that_was_aborted_as_it_ran_has_all_its_moments() {
    let case = spans::named("direct/abort_stream");
    let (told, left) = assembled(&case.spans);
    assert_eq!(left, []);
    assert_eq!(told[0].output_tokens, Some(62));
    assert!(told[0].queue_end.unwrap() < told[0].prefill_end.unwrap());
    assert!(told[0].prefill_end.unwrap() < told[0].first_token.unwrap());
}

#[test]
fn prefill_that_an_abort_ended_has_no_end() {
    let mut case = spans::named("direct/abort_stream");
    let end = |spans: &[Value]| {
        let thread = spans.iter().find(|span| span["attrs"]["tp_rank"] == 0);
        thread.unwrap()["end_ns"].clone()
    };
    let end = end(&case.spans);
    for span in &mut case.spans {
        if span["name"] == "prefill_forward" {
            span["end_ns"] = end.clone();
        }
    }
    let (told, _) = assembled(&case.spans);
    assert_eq!(told[0].prefill_end, None);
    assert!(told[0].queue_end.is_some());
}

#[test]
fn a_request_that_was_turned_away_is_nothing() {
    let case = spans::named("direct/err_toolong");
    assert_eq!(assembled(&case.spans), (Vec::new(), Vec::new()));
}

#[test]
fn phantoms_of_several_choices_have_no_tokens() {
    let case = spans::named("direct/chat_stream_n2");
    let (told, left) = assembled(&case.spans);
    let generated = |told: &&Told| told.output_tokens.is_some_and(|tokens| tokens > 0);
    assert_eq!(told.iter().filter(generated).count(), 2);
    assert_eq!(left.iter().filter(generated).count(), 0);
    assert_eq!(told.len() + left.len(), 4);
}

#[test]
fn a_routers_request_id_comes_with_the_request_or_after_it() {
    for (case, request_id) in [
        (
            "router_old_trace/chat_stream_tp",
            "chatcmpl-d8WqrroZZxcHVktODOs5Iz2A",
        ),
        (
            "smg113_trace/chat_stream_tp",
            "chatcmpl-o5PB7ZLBcZLZ5SSkifVB7dSH",
        ),
    ] {
        let mut case = spans::named(case);
        assert_eq!(case.spans[0]["name"], "http_request");
        let (told, _) = assembled(&case.spans);
        assert_eq!(told.len(), 1);
        assert_eq!(told[0].request_id.as_deref(), Some(request_id));
        let (without, _) = assembled(&case.spans[1..]);
        assert_eq!(without[0].request_id, None);
        case.spans.rotate_left(1);
        let held = held(&case.spans);
        assert_eq!(held.by_name(request_id)[0].told, told[0]);
        assert_eq!(assembled(&case.spans).0, told);
    }
}

#[test]
fn of_a_retracted_request_the_first_wait_counts() {
    let mut case = spans::named("direct/chat_stream");
    let (told, _) = assembled(&case.spans);
    let again = |span: &Value| {
        let mut again = span.clone();
        for moment in ["start_ns", "end_ns"] {
            again[moment] = (again[moment].as_u64().unwrap() + 1_000_000_000).into();
        }
        again["span_id"] = "00000000000000aa".into();
        again
    };
    let stages = case.spans.iter();
    let stages = stages.filter(|span| {
        ["prefill_waiting", "prefill_forward"].contains(&span["name"].as_str().unwrap())
    });
    let mut all: Vec<Value> = stages.map(again).collect();
    all.append(&mut case.spans);
    let event = |name: &str| serde_json::json!({"name": name, "ns": 1, "attrs": {}});
    for span in &mut all {
        if span["attrs"]["tp_rank"] == 0 {
            span["events"] = ["retract", "schedule", "retract"]
                .map(event)
                .to_vec()
                .into();
        }
    }
    let (retracted, _) = assembled(&all);
    let expected = Told {
        num_retractions: Some(2),
        queue_nanos: None,
        ..told[0].clone()
    };
    assert_eq!(retracted, [expected]);
}

#[test]
fn the_lowest_rank_is_heard() {
    let case = spans::named("direct/chat_stream");
    let (told, _) = assembled(&case.spans);
    // A second rank, whose clock is an hour ahead, comes first.
    let other = |span: &Value| {
        let mut other = span.clone();
        for moment in ["start_ns", "end_ns"] {
            other[moment] = (other[moment].as_u64().unwrap() + 3_600_000_000_000).into();
        }
        let scheduler = "00000000000000bb";
        if span["attrs"]["tp_rank"] == 0 {
            other["attrs"]["tp_rank"] = 1.into();
            other["span_id"] = scheduler.into();
        } else {
            other["parent"] = scheduler.into();
        }
        other
    };
    let of_scheduler = |span: &&Value| {
        let stages = ["request_process", "prefill_waiting", "prefill_forward"];
        span["attrs"]["tp_rank"] == 0 || stages.contains(&span["name"].as_str().unwrap())
    };
    let mut all: Vec<Value> = case.spans.iter().filter(of_scheduler).map(other).collect();
    all.extend(case.spans);
    assert_eq!(assembled(&all).0, told);
}

#[test]
fn a_lost_span_costs_what_it_told() {
    let case = spans::named("direct/chat_stream");
    let (whole, _) = assembled(&case.spans);
    let without = |is_lost: fn(&Value) -> bool| {
        let kept: Vec<Value> = case
            .spans
            .iter()
            .filter(|span| !is_lost(span))
            .cloned()
            .collect();
        let (told, mut left) = assembled(&kept);
        assert_eq!(told, []);
        assert_eq!(left.len(), 1);
        left.remove(0)
    };
    let no_root = without(|span| span["attrs"]["rid"].is_string());
    assert_eq!(no_root.rid, None);
    assert_eq!(no_root.trace, whole[0].trace);
    assert_eq!(no_root.queue_end, whole[0].queue_end);
    let no_stage = without(|span| span["name"] == "prefill_waiting");
    assert_eq!(no_stage.queue_end, None);
    assert_eq!(no_stage.prefill_end, whole[0].prefill_end);
    // What the stages hang by.
    let no_scheduler = without(|span| span["attrs"]["tp_rank"] == 0);
    assert_eq!(no_scheduler.rid, whole[0].rid);
    assert_eq!(no_scheduler.queue_end, None);
}

/// A client may use one trace for whatever it sends.
#[test]
fn what_still_runs_is_not_taken_with_what_has_ended() {
    let running = spans::named("direct/chat_stream");
    let mut ended = spans::named("direct/chat_stream_tp").spans;
    for span in &mut ended {
        span["trace_id"] = running.spans[0]["trace_id"].clone();
    }
    let is_early =
        |span: &Value| !span["attrs"]["rid"].is_string() && span["attrs"]["tp_rank"] != 0;
    let (early, late): (Vec<Value>, Vec<Value>) = running.spans.into_iter().partition(is_early);
    let is_kept = |span: &&Value| span["name"] != "prefill_waiting";
    let ended: Vec<Value> = ended.iter().filter(is_kept).cloned().collect();
    let mut now = [early, ended].concat();
    let (told, left) = assembled(&now);
    assert_eq!((told.len(), left.len()), (0, 1));
    assert_eq!(
        left[0].rid.as_deref(),
        Some("d93591b00063428fb88051cb1de5137c")
    );
    assert_eq!(left[0].queue_end, None);
    now.extend(late);
    assert_told(&spans::named("direct/chat_stream"), &assembled(&now).0);
}

#[test]
fn an_incomplete_request_is_found_by_its_id() {
    let case = spans::named("direct/chat_stream");
    let kept: Vec<Value> = case
        .spans
        .iter()
        .filter(|span| span["name"] != "prefill_forward")
        .cloned()
        .collect();
    let mut held = held(&kept);
    let id = case.meta_info[0]["id"].as_str().unwrap();
    let [report] = &held.by_rid(id)[..] else {
        panic!("one");
    };
    assert!(
        !report.is_whole && report.told.queue_end.is_some() && report.told.prefill_end.is_none()
    );
    held.take(report);
    let trace = report.told.trace.unwrap();
    assert!(held.by_rid(id).is_empty() && held.by_trace(trace).is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    /// All cases at once, in any order.
    #[test]
    fn any_order_tells_the_same(mixed in any::<u64>()) {
        let cases = spans::all();
        let mut all: Vec<Value> = cases.iter().flat_map(|case| case.spans.clone()).collect();
        // Fisher and Yates, with a congruential generator that the seed begins.
        let mut state = mixed;
        for i in (1..all.len()).rev() {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            all.swap(i, (state >> 33) as usize % (i + 1));
        }
        let (told, _) = assembled(&all);
        let compared: usize = cases.iter().map(|case| assert_told(case, &told)).sum();
        prop_assert_eq!(compared, 31);
    }
}
