//! The metrics of requests with missing or impossible times.

use super::*;
use crate::request::sample::at;
use crate::request::{Generation, MissingReason, Unread};

type Change = fn(&mut Row);

/// The lines of `/metrics` for one request.
fn counted(rows: &[Row]) -> BTreeMap<String, f64> {
    let metrics = Metrics::new().unwrap();
    metrics.request_ended(&CountedRequest::of(rows));
    shown(&metrics)
}

/// The sum of all lines with this prefix.
fn sum(shown: &BTreeMap<String, f64>, name: &str) -> f64 {
    let lines = shown.iter().filter(|(line, _)| line.starts_with(name));
    lines.map(|(_, value)| value).sum()
}

#[test]
fn the_reason_of_a_missing_queue_time_is_counted_once_per_request() {
    let too_old: Change = |r| r.internal.generation = Some(Generation::Before0_5_5);
    let retracted: Change = |r| {
        r.internal.generation = Some(Generation::From0_5_21);
        r.num_retractions = Some(2);
    };
    let encoded: Change = |r| r.unread = Some(Unread::Encoded);
    let reported: Change = |r| r.pure_queue_time = Some(5);
    let incomplete: Change = |r| {
        r.pure_queue_time = Some(5);
        r.internal.missing_reason = Some(MissingReason::Incomplete);
    };
    // The golden file of the recordings has the others.
    let cases: [(Change, &str); 6] = [
        (too_old, "too_old"),
        (retracted, "retracted"),
        (encoded, "unread"),
        (|_| (), "other"),
        (reported, ""),
        (incomplete, MissingReason::Incomplete.name()),
    ];
    let reason = |change: &dyn Fn(&mut Row)| {
        let mut row = row(Endpoint::Generate, Outcome::Ok);
        row.timeline.clear(Moment::QueueStart);
        change(&mut row);
        let mut other = row.clone();
        other.index = 1;
        let mut sets = counted(&rows(&[row, other]));
        sets.retain(|name, _| name.starts_with("queuescope_timing_missing_total"));
        // No series but those created at 0.
        let reasons = BTreeSet::from_iter(super::super::requests::reasons());
        assert_eq!(sets.len(), reasons.len() * Endpoint::ALL.len());
        sets.retain(|_, count| *count == 1.0);
        let reasons = sets.keys().map(|name| name.split('"').nth(3).unwrap());
        reasons.collect::<Vec<_>>().join(" ")
    };
    for (change, expected) in cases {
        assert_eq!(reason(&change), expected);
    }
    for expected in MissingReason::ALL {
        let change = |row: &mut Row| row.internal.missing_reason = Some(expected);
        assert_eq!(reason(&change), expected.name());
    }
}

#[test]
fn a_background_request_is_counted_and_not_timed() {
    let mut row = row(Endpoint::Responses, Outcome::Ok);
    row.unread = Some(Unread::Background);
    let shown = counted(&rows(&[row]));
    let counts = [
        "queuescope_requests_total",
        "gen_ai_server_request_duration_seconds_count",
        "queuescope_stage_duration_seconds_count",
    ]
    .map(|name| sum(&shown, name));
    assert_eq!(counts, [1.0, 0.0, 0.0]);
}

#[test]
fn an_impossible_value_is_counted_and_in_no_other_metric() {
    let times: Change = |row| row.timeline.set(Moment::QueueStart, at(-60_000));
    let tokens: Change = |row| row.actual_output_tokens = Some(1 << 60);
    let in_stage = "queuescope_stage_duration_seconds_sum{stage=\"server_queue\"";
    let in_tokens = "queuescope_tokens_total{type=\"output\"";
    for (kind, change, metric, possible) in [
        ("times", times, in_stage, 0.08),
        ("tokens", tokens, in_tokens, 29.0),
    ] {
        let mut row = row(Endpoint::Generate, Outcome::Ok);
        let whole = counted(&rows(&[row.clone()]));
        change(&mut row);
        let found = counted(&rows(&[row]));
        for what in ["times", "clocks", "tokens"] {
            let count = found[&format!("queuescope_impossible_total{{what=\"{what}\"}}")];
            assert_eq!(count, f64::from(u8::from(what == kind)), "{what} {kind}");
        }
        assert_eq!([sum(&whole, metric), sum(&found, metric)], [possible, 0.0]);
        // No other metric is larger than without it, except those for which the server's time is not split.
        let may = "what=\"KIND reason=\"impossible\" process_ stage=\"server\" to_first_token";
        let may = may.replace("KIND", kind);
        for (name, value) in &found {
            let is_larger = *value > whole.get(name).copied().unwrap_or(0.0);
            let is_meant = may.split(' ').any(|may| name.contains(may));
            assert!(!is_larger || is_meant, "{kind}: {name} {value}");
        }
        // The request's total time is unchanged.
        let elapsed = "gen_ai_server_request_duration_seconds_sum";
        assert_eq!(sum(&whole, elapsed), sum(&found, elapsed));
    }
}
