//! What is counted of requests without times.

use super::{MS, row, shown};
use crate::clock::Stamp;
use crate::request::endpoint::Endpoint;
use crate::request::generation::Generation;
use crate::request::outcome::Outcome;
use crate::request::response::Unread;
use crate::request::row::Row;
use crate::request::sample::rows as all;
use crate::request::sequence::Untold;
use crate::request::timeline::Moment;
use crate::telemetry::counted::Counted;
use crate::telemetry::prometheus::Metrics;

/// Rows that lack a queue time, each reason at least once, and one that has it.
fn lacking() -> Vec<Row> {
    let without_queue = |endpoint, stream| {
        let mut row = row(endpoint, Outcome::Ok);
        row.timeline.clear(Moment::QueueStart);
        row.stream = Some(stream);
        row
    };
    let mut rows = Vec::new();
    for endpoint in Endpoint::ALL {
        rows.extend([true, false].map(|stream| without_queue(endpoint, stream)));
    }
    // `/generate`, streamed and not: metrics off, retracted; then told, too old, unknown, hidden; a chat's reply that
    // asked for its `meta_info`.
    let off = Some(Generation::From0_5_12MetricsOff);
    rows[0].more.generation = off;
    rows[1].more.generation = Some(Generation::From0_5_22);
    rows[1].num_retractions = Some(2);
    for (endpoint, generation) in [
        (Endpoint::Generate, Some(Generation::From0_4_6)),
        (Endpoint::Generate, None),
        (Endpoint::Chat, off),
    ] {
        let mut row = without_queue(endpoint, endpoint == Endpoint::Generate);
        row.more.generation = generation;
        rows.push(row);
    }
    rows.push(row(Endpoint::Generate, Outcome::Ok));
    let mut hidden = rows[0].clone();
    hidden.unread = Some(Unread::Encoded);
    rows.push(hidden);
    let mut told = rows[0].clone();
    told.pure_queue_time = Some(5);
    rows.push(told);
    for why in Untold::ALL {
        let mut untold = rows[0].clone();
        untold.more.untold = Some(why);
        rows.push(untold);
    }
    rows
}

#[test]
fn why_there_is_no_queue_time_is_told() {
    let metrics = Metrics::new().unwrap();
    let rows = lacking();
    rows.iter()
        .for_each(|row| metrics.request_ended(&Counted::of(&all(std::slice::from_ref(row)))));
    // Both sequences of one request lack it.
    metrics.request_ended(&Counted::of(&all(&rows[..2])));
    let shown = shown(&metrics);
    let sets = shown
        .keys()
        .filter(|name| name.starts_with("queuescope_timing_missing_total"));
    assert_eq!(
        sets.count(),
        5 + 7 + 3 * 4 + 6 * 5,
        "none but those that were there at 0"
    );
    let counted = |reason: &str| -> f64 {
        let end = format!(",reason=\"{reason}\"}}");
        let of = |name: &str| {
            name.starts_with("queuescope_timing_missing_total") && name.ends_with(&end)
        };
        let lines = shown.iter().filter(|(name, _)| of(name));
        lines.map(|(_, value)| value).sum()
    };
    let reasons = [
        "metrics_off",
        "too_old",
        "retracted",
        "unread",
        "openai_stream",
        "openai_reply",
        "other",
    ];
    assert_eq!(reasons.map(counted), [3.0, 1.0, 1.0, 1.0, 4.0, 4.0, 1.0]);
    assert_eq!(Untold::ALL.map(|why| counted(why.name())), [1.0; 6]);
}

#[test]
fn what_is_generated_in_the_background_is_counted_and_not_timed() {
    let metrics = Metrics::new().unwrap();
    let mut row = row(Endpoint::Responses, Outcome::Ok);
    row.unread = Some(Unread::Background);
    metrics.request_ended(&Counted::of(&all(&[row])));
    let shown = shown(&metrics);
    let count = |family: &str| -> f64 {
        let lines = shown.iter().filter(|(name, _)| name.starts_with(family));
        lines.map(|(_, value)| value).sum()
    };
    assert_eq!(count("queuescope_requests_total"), 1.0);
    assert_eq!(count("gen_ai_server_request_duration_seconds_count"), 0.0);
    assert_eq!(count("queuescope_stage_duration_seconds_count"), 0.0);
}

#[test]
fn what_cannot_be_is_counted_and_in_no_other_metric() {
    let sum = |change: fn(&mut Row)| {
        let metrics = Metrics::new().unwrap();
        let mut row = row(Endpoint::Generate, Outcome::Ok);
        change(&mut row);
        metrics.request_ended(&Counted::of(&all(&[row])));
        shown(&metrics)
    };
    let whole = sum(|_| ());
    for (kind, change) in [
        (
            "times",
            (|row| {
                row.timeline
                    .set(Moment::QueueStart, Stamp::from_nanos(-60_000 * MS))
            }) as fn(&mut Row),
        ),
        ("tokens", |row| row.actual_output_tokens = Some(1 << 60)),
    ] {
        let found = sum(change);
        for what in ["times", "clocks", "tokens"] {
            let count = found[&format!("queuescope_impossible_total{{what=\"{what}\"}}")];
            assert_eq!(count, f64::from(u8::from(what == kind)), "{what} {kind}");
        }
        // Nothing is larger than it is without it, but where the server's time is not seen apart.
        let larger = found
            .iter()
            .filter(|(name, value)| **value > whole.get(*name).copied().unwrap_or(0.0));
        let larger: Vec<&str> = larger.map(|(name, _)| name.as_str()).collect();
        let may = [
            "queuescope_impossible_total",
            "reason=\"impossible\"",
            "process_",
            "stage=\"server\"",
            "time_to_first_token",
        ];
        assert!(
            larger
                .iter()
                .all(|name| may.iter().any(|may| name.contains(may))),
            "{larger:?}"
        );
    }
}
