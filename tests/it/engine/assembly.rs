//! What becomes of the recorded spans: a row that holds what the `meta_info` of the same request gives, whatever way they came.

use std::collections::BTreeSet;

use proptest::prelude::*;
use queuescope::clock::Stamp;
use queuescope::engine::otlp;
use queuescope::engine::report_store::{Candidate, ReportStore};
use queuescope::request::{ColumnId, End, Endpoint, EngineReport, Row};
use serde_json::{Value, json};

use crate::golden::assert_golden;
use crate::support::observed::{STREAM, begun, in_pieces};
use crate::support::spans::{self, Case};

/// What comes of spans: of requests of which all is there, and of others.
fn assembled(spans: &[Value]) -> (Vec<EngineReport>, Vec<EngineReport>) {
    let mut held = ReportStore::new(1000);
    let mut traces = BTreeSet::new();
    for span in otlp::spans(spans::message(spans).into(), |_| {}).unwrap() {
        traces.insert(span.trace);
        held.add(span, Stamp::from_nanos(0));
    }
    let all = traces.into_iter().flat_map(|trace| held.by_trace(trace));
    let (whole, left): (Vec<_>, Vec<_>) = all.partition(|candidate| candidate.is_complete);
    let reports = |all: Vec<Candidate>| Vec::from_iter(all.into_iter().map(|one| one.report));
    (reports(whole), reports(left))
}

/// The spans that are not lost.
fn without(spans: &[Value], is_lost: impl Fn(&Value) -> bool) -> Vec<Value> {
    let kept = spans.iter().filter(|span| !is_lost(span));
    kept.cloned().collect()
}

/// The same that happened later.
fn later(span: &Value, seconds: u64) -> Value {
    let mut later = span.clone();
    for moment in ["start_ns", "end_ns"] {
        later[moment] = (span[moment].as_u64().unwrap() + seconds * 1_000_000_000).into();
    }
    later
}

fn is_scheduler(span: &Value) -> bool {
    span["attrs"]["tp_rank"] == 0
}

fn is_named(span: &Value, names: &[&str]) -> bool {
    names.contains(&span["name"].as_str().unwrap())
}

/// The columns that both give.
const TIMES: [&str; 8] = [
    "server_created_time",
    "queue_time_start",
    "queue_time_end",
    "prefill_end_time",
    "server_first_token_time",
    "pure_queue_time",
    "tokenize_time",
    "queue_time_in_server",
];
const COUNTS: [&str; 5] = [
    "actual_prompt_tokens",
    "actual_output_tokens",
    "cached_tokens",
    "num_retractions",
    "dp_rank",
];

/// A cell as a number: nanoseconds, or a count.
fn cell(row: &Row, name: &str) -> Option<i64> {
    (ColumnId::named(name).unwrap().column().get)(row).integer()
}

/// A row of chat with what was told, and one of `/generate` by its `meta_info`, hold the same.
fn assert_same_rows(told: &EngineReport, meta_info: &Value, case: &str) {
    let finished = told.finished.unwrap();
    let theirs = meta_info["request_finished_ts"].as_f64().unwrap();
    let theirs = Stamp::from_seconds(theirs).unwrap();
    assert!(finished.nanos_since(theirs).abs() <= 1_000, "{case}");
    let row = |endpoint, event: Value| {
        let event = format!("data: {event}\n\n");
        in_pieces(begun(endpoint, STREAM), [(0, event)], End::Complete).remove(0)
    };
    let ended = |row: &Row| Row::ended(vec![row.clone()]).remove(0);
    let delta = json!([{"index": 0, "delta": {"content": "x"}}]);
    let chat = json!({"id": meta_info["id"], "choices": delta});
    let mut by_trace = row(Endpoint::Chat, chat);
    told.put(&mut by_trace);
    assert_eq!(by_trace.timing_source.unwrap().name(), "trace");
    let generate = json!({"text": "x", "meta_info": meta_info});
    let mut by_meta = row(Endpoint::Generate, generate);
    let (ours, theirs) = (ended(&by_trace), ended(&by_meta));
    // Told of both, a row stays as meta_info has it, and nothing differs.
    told.put(&mut by_meta);
    let both = ended(&by_meta);
    assert_eq!(both.inconsistency, None, "{case}");
    for name in TIMES {
        let [ours, theirs, both] = [&ours, &theirs, &both].map(|row| cell(row, name).unwrap());
        // A float of epoch seconds resolves 0.24 µs, and the engine converts each moment twice.
        let apart = ours - theirs;
        assert!(apart.abs() <= 1_000, "{case}: {name} {apart}");
        assert_eq!(both, theirs, "{case}: {name}");
    }
    for name in COUNTS {
        let [ours, theirs] = [&ours, &theirs].map(|row| cell(row, name));
        assert_eq!(ours, theirs, "{case}: {name}");
    }
}

fn assert_told(case: &Case, told: &[EngineReport]) -> usize {
    let traced = !case.spans.is_empty();
    // The warm-up of n > 1 generates nothing, and no scheduler's span names it.
    let is_told = |meta: &&Value| meta["completion_tokens"] != 0 && traced;
    let told_of = case.meta_info.iter().filter(is_told);
    let same = told_of.map(|meta| {
        let mut all = told.iter();
        let told = all.find(|told| told.rid.as_deref() == meta["id"].as_str());
        assert_same_rows(told.unwrap(), meta, &case.name);
    });
    same.count()
}

/// What is told of the one request of a case.
fn only(spans: &[Value]) -> EngineReport {
    let (mut told, left) = assembled(spans);
    assert_eq!((told.len(), left), (1, Vec::new()));
    told.remove(0)
}

/// A request that was aborted in the queue has its start alone, one that was turned away is nothing, and phantoms of several choices have
/// no tokens.
#[test]
fn each_recording_tells_what_it_did() {
    let mut text = String::new();
    for case in spans::all() {
        text += &format!("\n{}\n", case.name);
        let (whole, left) = assembled(&case.spans);
        for (what, reports) in [("whole", whole), ("in part", left)] {
            let fields = reports.iter().map(|report| format!("{report:?}"));
            let known = fields.map(|fields| {
                let known = fields
                    .split(", ")
                    .filter(|field| !field.ends_with(": None"));
                format!("  {what}: {}\n", known.collect::<Vec<_>>().join(", "))
            });
            text.extend(known.collect::<BTreeSet<_>>());
        }
    }
    assert_golden("spans.txt", text.trim_start());
}

#[test]
fn a_prefill_that_was_cut_has_no_end() {
    let mut case = spans::named("direct/abort_stream");
    let scheduler = case.spans.iter().find(|span| is_scheduler(span));
    let end = scheduler.unwrap()["end_ns"].clone();
    let mut all = case.spans.iter_mut();
    let prefill = all.find(|span| is_named(span, &["prefill_forward"]));
    prefill.unwrap()["end_ns"] = end;
    let cut = only(&case.spans);
    assert!(cut.prefill_end.is_none() && cut.queue_end.is_some());
}

#[test]
fn of_a_retracted_request_the_first_wait_counts() {
    let mut case = spans::named("direct/chat_stream");
    let (told, _) = assembled(&case.spans);
    let first = without(&case.spans, |span| {
        !is_named(span, &["prefill_waiting", "prefill_forward"])
    });
    let mut all: Vec<Value> = first.iter().map(|span| later(span, 1)).collect();
    for span in &mut all {
        span["span_id"] = "00000000000000aa".into();
    }
    all.append(&mut case.spans);
    let event = |name: &str| json!({"name": name, "ns": 1, "attrs": {}});
    let events = ["retract", "schedule", "retract"].map(event);
    let scheduler = all.iter_mut().find(|span| is_scheduler(span));
    scheduler.unwrap()["events"] = events.to_vec().into();
    let expected = EngineReport {
        num_retractions: Some(2),
        queue_nanos: None,
        ..told[0].clone()
    };
    assert_eq!(assembled(&all).0, [expected]);
}

#[test]
fn the_lowest_rank_is_heard() {
    let case = spans::named("direct/chat_stream");
    let (told, _) = assembled(&case.spans);
    // A second rank, whose clock is an hour ahead, comes first.
    let stages = ["request_process", "prefill_waiting", "prefill_forward"];
    let own = without(&case.spans, |span| {
        !is_scheduler(span) && !is_named(span, &stages)
    });
    for rank in ["tp_rank", "pp_rank"] {
        let mut all = own.clone();
        for span in &mut all {
            *span = later(span, 3600);
            let scheduler = "00000000000000bb".into();
            match is_scheduler(span) {
                true => {
                    span["attrs"][rank] = 1.into();
                    span["span_id"] = scheduler;
                }
                false => span["parent"] = scheduler,
            }
        }
        all.extend(case.spans.clone());
        assert_eq!(assembled(&all).0, told, "{rank}");
    }
}

#[test]
fn a_lost_span_costs_what_it_told() {
    let case = spans::named("direct/chat_stream");
    let whole = only(&case.spans);
    let told_without = |is_lost: fn(&Value) -> bool| {
        let (told, mut left) = assembled(&without(&case.spans, is_lost));
        assert_eq!((told.len(), left.len()), (0, 1));
        let told = left.remove(0);
        assert_eq!(told.trace, whole.trace);
        (told.rid, told.queue_end, told.prefill_end)
    };
    let (queue_end, prefill_end) = (whole.queue_end, whole.prefill_end);
    let root = told_without(|span| span["attrs"]["rid"].is_string());
    assert_eq!(root, (None, queue_end, prefill_end));
    let stage = told_without(|span| is_named(span, &["prefill_waiting"]));
    assert_eq!(stage, (whole.rid.clone(), None, prefill_end));
    // What the stages hang by.
    let scheduler = told_without(is_scheduler);
    assert_eq!(scheduler, (whole.rid.clone(), None, None));
}

/// A client may use one trace for whatever it sends.
#[test]
fn what_still_runs_is_not_taken_with_what_has_ended() {
    let running = spans::named("direct/chat_stream");
    let mut ended = spans::named("direct/chat_stream_tp").spans;
    for span in &mut ended {
        span["trace_id"] = running.spans[0]["trace_id"].clone();
    }
    let is_late = |span: &Value| span["attrs"]["rid"].is_string() || is_scheduler(span);
    let ended = without(&ended, |span| is_named(span, &["prefill_waiting"]));
    let (late, early): (Vec<Value>, Vec<Value>) = running.spans.into_iter().partition(is_late);
    let mut now = [early, ended].concat();
    let (told, left) = assembled(&now);
    assert_eq!((told.len(), left.len()), (0, 1));
    let rid = "d93591b00063428fb88051cb1de5137c";
    let running = (left[0].rid.as_deref(), left[0].queue_end);
    assert_eq!(running, (Some(rid), None));
    now.extend(late);
    assert_told(&spans::named("direct/chat_stream"), &assembled(&now).0);
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
