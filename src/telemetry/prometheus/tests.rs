use std::collections::BTreeMap;
use std::sync::Arc;

use crate::clock::Stamp;
use crate::offset::Offset;
use crate::request::endpoint::Endpoint;
use crate::request::gaps::{GAP_BOUNDS, GapCounts, GapFigures};
use crate::request::record::{Facts, Outcome, Record};
use crate::request::row::Row;
use crate::request::sample::rows;
use crate::request::sequence::Sequence;
use crate::request::timeline::{ClockOf, Moment, Relation, Side, Timeline};
use crate::request::token_count::TokenCountSource;
use crate::telemetry::metric::Kind;
use crate::telemetry::upstreams::UpstreamFigures;

use super::*;

mod missing;
mod stages;

const MS: i64 = 1_000_000;

/// A row of a request in which all moments were seen, a millisecond apart.
pub(super) fn row(endpoint: Endpoint, outcome: Outcome) -> Record {
    let mut timeline = Timeline::new(Side::Front);
    for (moment, n) in Moment::ALL.into_iter().zip(1..) {
        timeline.set(moment, Stamp::from_nanos(n * MS));
    }
    for clock in [ClockOf::Traffic, ClockOf::Hop, ClockOf::Engine] {
        let (nanos, error_nanos) = (0, 3 * MS);
        timeline.relate(clock, Relation::Apart(Offset { nanos, error_nanos }));
    }
    let mut facts = Facts::new(endpoint, "r".into());
    facts.outcome = outcome;
    facts.host = Some("10.0.0.7:30000".into());
    facts.worker = Some("w0".into());
    facts.model = Some("llama".into());
    facts.client_stall_nanos = Some(MS / 2);
    facts.stall_until_read_nanos = Some(MS / 2);
    facts.overhead_nanos = Some(MS / 10);
    facts.passage.first = Some(Stamp::from_nanos(9 * MS));
    facts.worker_passage.first = Some(Stamp::from_nanos(7 * MS));
    let mut counts = vec![0; GAP_BOUNDS.len() + 1];
    counts[0] = 4;
    let sequence = Sequence {
        prompt_tokens: Some(30),
        output_tokens: Some(5),
        token_source: Some(TokenCountSource::MetaInfo),
        first_event_tokens: Some(1),
        token_events: 5,
        cached_tokens: Some(20),
        token_gaps: GapFigures {
            mean_nanos: Some(MS),
            ..GapFigures::default()
        },
        gap_counts: Some(GapCounts {
            counts: counts.into(),
            sum_nanos: 4 * MS,
        }),
        ..Sequence::default()
    };
    Record {
        facts,
        sequence,
        sequences: 1,
        timeline,
    }
}

/// What `/metrics` says: the value of each line.
fn shown(metrics: &Metrics) -> BTreeMap<String, f64> {
    let text = metrics.text();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let values = lines.map(|line| {
        let (name, value) = line.rsplit_once(' ').unwrap();
        (name.to_owned(), value.parse().unwrap())
    });
    values.collect()
}

/// Everything that can happen, once.
fn used(metrics: &Metrics, name: &str) {
    let mut lacking = row(Endpoint::Generate, Outcome::Ok);
    lacking.timeline.clear(Moment::QueueStart);
    for row in [
        lacking,
        row(Endpoint::Chat, Outcome::Ok),
        row(Endpoint::Chat, Outcome::Timeout),
    ] {
        let mut row = row;
        for text in [
            &mut row.facts.model,
            &mut row.facts.host,
            &mut row.facts.worker,
        ] {
            *text = Some(format!("{name}:1"));
        }
        metrics.request_ended(&rows(&[row]));
    }
    metrics.expect_engine_joins("trace");
    drop(metrics.attempt_began(name));
    metrics.attempt_ended(name, "ok");
    metrics.connected(name, true);
    metrics.bytes_passed(5, 7);
    metrics.runtime_lag.with(&[]).observe(0.001);
    metrics.join_entries.with(&["spans"]).set(3);
    metrics.response_unread(Unread::Encoded);
    metrics.rows_lost(Loss::Write, 1);
    metrics.reloaded(true);
    metrics.client_limit(Limit::Stall);
    metrics.faults_injected.with(&["stall", name]).inc();
    metrics.joins.with(&["span"]).inc();
}

#[test]
fn the_table_is_what_is_shown() {
    let metrics = Metrics::new().unwrap();
    used(&metrics, "w0");
    let upstream = Arc::new(UpstreamFigures::new("a:1".into()));
    metrics.upstreams.add(upstream.clone());
    let text = metrics.text();
    let lines = text.lines().filter(|line| line.starts_with("# TYPE"));
    let mut lines: Vec<String> = lines.map(str::to_owned).collect();
    lines.sort();
    let kinds = TABLES.iter().copied().flatten();
    let kinds = kinds.map(|m| format!("# TYPE {} {}", m.name, m.kind.name()));
    let mut kinds: Vec<String> = kinds.collect();
    kinds.sort();
    assert_eq!(lines, kinds);
}

#[test]
fn names_are_as_prometheus_wants_them() {
    let is_name = |name: &str| {
        let is_letter = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
        name.bytes().all(is_letter) && name.as_bytes()[0].is_ascii_lowercase()
    };
    for metric in TABLES.iter().copied().flatten() {
        let name = metric.name;
        assert!(
            is_name(name) && metric.labels.iter().all(|label| is_name(label)),
            "{name}"
        );
        assert_eq!(
            name.ends_with("_total"),
            matches!(metric.kind, Kind::Counter),
            "{name}"
        );
        assert!(
            metric.help.ends_with('.') || metric.help.ends_with(')'),
            "{name}"
        );
        if let Kind::Histogram(bounds) = metric.kind {
            assert_eq!(metric.unit(), "seconds", "{name}");
            assert!(bounds.is_sorted_by(|a, b| a < b), "{name}");
        }
    }
}

#[test]
fn what_is_counted_is_shown() {
    let metrics = Metrics::new().unwrap();
    let mut first = metrics.request_began();
    let second = metrics.request_began();
    first.enter(Progress::Waiting);
    drop(second);
    metrics.request_ended(&rows(&[row(Endpoint::Chat, Outcome::ClientAbort)]));
    metrics.rows_lost(Loss::Write, 3);
    metrics.clone().broken_heads.with(&[]).inc();
    let shown = shown(&metrics);
    for (name, value) in [
        (
            r#"queuescope_requests_total{endpoint="/v1/chat/completions",outcome="client_abort",worker="w0"}"#,
            1.0,
        ),
        (r#"queuescope_rows_lost_total{reason="write"}"#, 3.0),
        ("queuescope_broken_heads_total", 1.0),
        (r#"queuescope_in_flight{phase="receiving"}"#, 0.0),
        (r#"queuescope_in_flight{phase="waiting"}"#, 1.0),
        (r#"queuescope_in_flight{phase="streaming"}"#, 0.0),
        (r#"queuescope_passed_through_total{endpoint="other"}"#, 0.0),
        (
            r#"queuescope_ended_in_total{outcome="client_abort",stage="decode"}"#,
            1.0,
        ),
    ] {
        assert_eq!(shown.get(name), Some(&value), "{name}\n{shown:#?}");
    }
}

/// The sums of all histograms of a good request and one that timed out, by name with `#` for `_sum`.
fn sums_of_both() -> Vec<(String, f64)> {
    let g = "gen_ai_operation_name=\"text_completion\",gen_ai_provider_name=\"sglang\",gen_ai_request_model=\"llama\",\
        http_route=\"/generate\",server_address=\"10.0.0.7\",server_port=\"30000\"";
    let ms = |a: Moment, b: Moment| (b as i64 - a as i64) as f64 / 1e3;
    let stage =
        |name| format!("queuescope_stage_duration_seconds#{{stage=\"{name}\",worker=\"w0\"}}");
    let elapsed = ms(Moment::Arrival, Moment::End);
    let named =
        |family: &str, error: &str| format!("gen_ai_server_{family}_seconds#{{{error}{g}}}");
    vec![
        (named("request_duration", "error_type=\"\","), elapsed),
        (
            named("request_duration", "error_type=\"timeout\","),
            elapsed,
        ),
        (
            named("time_to_first_token", ""),
            ms(Moment::Arrival, Moment::ServerFirstToken),
        ),
        (named("time_per_output_token", ""), 0.001 / 4.0),
        (
            stage("router_queue"),
            ms(Moment::Arrival, Moment::WorkerArrival),
        ),
        (
            stage("network"),
            ms(Moment::WorkerArrival, Moment::ServerCreated),
        ),
        (stage("tokenize"), 0.001),
        (stage("server_queue"), 0.001),
        (
            stage("prefill"),
            ms(Moment::QueueEnd, Moment::ServerFirstToken),
        ),
        (
            stage("return"),
            ms(Moment::ServerFirstToken, Moment::WorkerFirstToken),
        ),
        (stage("router_return"), 0.001),
        (
            stage("decode"),
            ms(Moment::FirstToken, Moment::Finish) - 0.0005,
        ),
        (stage("client_stall"), 0.0005),
        ("queuescope_overhead_seconds#".into(), 0.0001),
        (
            "queuescope_inter_token_seconds#{worker=\"w0\"}".into(),
            0.004,
        ),
    ]
}

#[test]
fn a_good_request_is_in_every_latency_and_a_bad_one_in_its_duration() {
    let metrics = Metrics::new().unwrap();
    metrics.request_ended(&rows(&[row(Endpoint::Generate, Outcome::Ok)]));
    metrics.request_ended(&rows(&[row(Endpoint::Generate, Outcome::Timeout)]));
    let shown = shown(&metrics);
    let ok = sums_of_both();
    for (name, sum) in &ok {
        let get = |end: &str| shown.get(&name.replace('#', end)).copied();
        let found = get("_sum").unwrap_or_else(|| panic!("{name}: {shown:#?}"));
        assert!((found - sum).abs() < 1e-9, "{name}: {found}, not {sum}");
        let count = if name.contains("inter_token") {
            4.0
        } else {
            1.0
        };
        assert_eq!(get("_count"), Some(count), "{name}");
    }
    let sums = shown.keys().filter(|name| name.contains("_seconds_sum"));
    assert_eq!(sums.count(), ok.len() + 1, "the lag's beside them");
    for (kind, tokens) in [("prompt", 60.0), ("cached", 40.0), ("output", 10.0)] {
        let name = format!("queuescope_tokens_total{{type=\"{kind}\",worker=\"w0\"}}");
        assert_eq!(shown[&name], tokens);
    }
    let clock = "queuescope_clock_offset_error_seconds{clock=\"10.0.0.7:30000\"}";
    assert_eq!(shown[clock], 0.003);
}

#[test]
fn bounds_are_those_of_sglang() {
    let recorded = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/data/sglang-0.5.23/info_metrics.body"
    );
    let recorded = std::fs::read_to_string(recorded).unwrap();
    let theirs = |name: &str| -> Vec<f64> {
        let start = format!("sglang:{name}_bucket{{");
        let lines = recorded.lines().filter(|line| line.starts_with(&start));
        let bounds = lines.map(|line| line.split("le=\"").nth(1).unwrap());
        let bounds = bounds.map(|rest| rest.split('"').next().unwrap());
        // Of its first series.
        bounds
            .take_while(|le| *le != "+Inf")
            .map(|le| le.parse().unwrap())
            .collect()
    };
    let ours = |name: &str| {
        let metric = table::METRICS.iter().find(|metric| metric.name == name);
        match metric.unwrap().kind {
            Kind::Histogram(bounds) => bounds,
            _ => panic!("{name}"),
        }
    };
    let latency = theirs("time_to_first_token_seconds");
    assert_eq!(latency[0], 0.1);
    for name in ["time_to_first_token", "request_duration"] {
        let ours = ours(&format!("gen_ai_server_{name}_seconds"));
        let common = ours
            .iter()
            .filter(|bound| (0.1..=latency[latency.len() - 1]).contains(*bound));
        assert_eq!(common.copied().collect::<Vec<f64>>(), latency, "{name}");
        assert_eq!(ours.last(), Some(&3600.0));
    }
    let gaps = theirs("inter_token_latency_seconds");
    assert_eq!(ours("queuescope_inter_token_seconds"), gaps);
    let per_token = ours("gen_ai_server_time_per_output_token_seconds");
    assert_eq!(&per_token[..gaps.len()], gaps);
    assert_eq!(per_token.last(), Some(&3600.0));
}

#[test]
fn what_is_the_requests_counts_once_and_what_is_a_sequences_each_time() {
    let metrics = Metrics::new().unwrap();
    let mut rows = [
        row(Endpoint::Generate, Outcome::Ok),
        row(Endpoint::Generate, Outcome::Ok),
    ];
    for (index, row) in rows.iter_mut().enumerate() {
        row.sequence.index = index as u32;
        row.sequences = 2;
        row.facts.n = 2;
    }
    metrics.request_ended(&Row::all(rows.to_vec()));
    let shown = shown(&metrics);
    let count = |family: &str| -> f64 {
        let lines = shown.iter().filter(|(name, _)| name.starts_with(family));
        lines.map(|(_, value)| value).sum()
    };
    assert_eq!(count("gen_ai_server_request_duration_seconds_count"), 1.0);
    assert_eq!(
        count("gen_ai_server_time_to_first_token_seconds_count"),
        2.0
    );
    assert_eq!(count("queuescope_requests_total"), 1.0);
    assert_eq!(
        count("queuescope_stage_duration_seconds_count{stage=\"router_queue\""),
        1.0
    );
    assert_eq!(
        count("queuescope_stage_duration_seconds_count{stage=\"prefill\""),
        2.0
    );
    assert_eq!(count("queuescope_overhead_seconds_count"), 1.0);
    assert_eq!(count("queuescope_tokens_total{type=\"prompt\""), 30.0);
    assert_eq!(count("queuescope_tokens_total{type=\"output\""), 10.0);
    assert_eq!(count("queuescope_inter_token_seconds_count"), 8.0);
}

#[test]
fn whatever_comes_in_no_metric_has_too_many_label_sets() {
    for most in [8, 64] {
        let metrics = Metrics::with_label_sets(most).unwrap();
        let upstreams = (0..300).map(|n| Arc::new(UpstreamFigures::new(format!("u{n}:1"))));
        let upstreams: Vec<_> = upstreams.collect();
        for (n, upstream) in upstreams.iter().enumerate() {
            metrics.upstreams.add(upstream.clone());
            used(&metrics, &format!("junk {n}\n\"{{}}\\"));
        }
        let families = metrics.registry.gather();
        let mut fullest = 0;
        for family in &families {
            let sets = family.get_metric().len();
            // Of those that are left out all values are ours.
            let shown = TABLES
                .iter()
                .copied()
                .flatten()
                .find(|metric| metric.name == family.name());
            let is_ours = |label: &&str| {
                [
                    "reason", "endpoint", "what", "phase", "outcome", "stage", "by",
                ]
                .contains(label)
            };
            if shown.unwrap().labels.iter().all(is_ours) {
                assert!(sets < 200, "{}: {sets}", family.name());
                continue;
            }
            assert!(sets <= most, "{}: {sets}", family.name());
            fullest = fullest.max(sets);
        }
        // Nothing is lost.
        let shown = shown(&metrics);
        let requests = shown
            .iter()
            .filter(|(name, _)| name.starts_with("queuescope_requests_total"));
        assert_eq!(requests.map(|(_, count)| count).sum::<f64>(), 900.0);
        let others = shown
            .keys()
            .filter(|name| name.contains("worker=\"other\""));
        assert!(others.count() > 0 && fullest > most / 2, "{fullest}");
    }
}

/// Run it as `cargo test --release --lib full_house -- --ignored --nocapture`.
#[test]
#[ignore = "measures"]
#[expect(clippy::print_stdout, reason = "what it measures is for a person")]
fn a_scrape_of_a_full_house() {
    let metrics = Metrics::new().unwrap();
    (0..300).for_each(|n| used(&metrics, &format!("meta-llama/Llama-3.1-8B-{n}")));
    let clock = crate::clock::Clock::system();
    for _ in 0..5 {
        let start = clock.now();
        let text = metrics.text();
        let ms = clock.now().nanos_since(start) as f64 / 1e6;
        println!(
            "{} lines, {} bytes in {ms:.2} ms",
            text.lines().count(),
            text.len()
        );
    }
    let rows = rows(&[row(Endpoint::Generate, Outcome::Ok)]);
    let start = clock.now();
    (0..10_000).for_each(|_| metrics.request_ended(&rows));
    let micros = clock.now().nanos_since(start) as f64 / 1e7;
    println!("{micros:.2} µs a request");
}
