use std::collections::BTreeMap;
use std::sync::Arc;

use crate::clock::Stamp;
use crate::offset::Offset;
use crate::request::endpoint::Endpoint;
use crate::request::gaps::{GAP_BOUNDS, GapCounts};
use crate::request::outcome::Outcome;
use crate::request::passage::Passage;
use crate::request::row::Row;
use crate::request::sample::rows;
use crate::request::timeline::{ClockOf, Moment, Relation, Side};
use crate::request::token_count::TokenCountSource;
use crate::stats::waits::Cause;
use crate::telemetry::counted::Counted;
use crate::telemetry::metric::Kind;
use crate::telemetry::upstreams::UpstreamFigures;

use super::*;

mod missing;
mod stages;

const MS: i64 = 1_000_000;

/// A row of a request in which all moments were seen, a millisecond apart.
pub(super) fn row(endpoint: Endpoint, outcome: Outcome) -> Row {
    let mut row = Row::new(Side::Front, endpoint, "r".into());
    let timeline = &mut row.timeline;
    for (moment, n) in Moment::ALL.into_iter().zip(1..) {
        timeline.set(moment, Stamp::from_nanos(n * MS));
    }
    for clock in [ClockOf::Traffic, ClockOf::Hop, ClockOf::Engine] {
        let (nanos, error_nanos) = (0, 3 * MS);
        timeline.relate(clock, Relation::Apart(Offset { nanos, error_nanos }));
    }
    row.outcome = Some(outcome);
    row.host = Some("10.0.0.7:30000".into());
    row.worker = Some("w0".into());
    row.model = Some("llama".into());
    row.client_stall = Some(MS / 2);
    row.client_stall_until_finish = Some(MS / 2);
    row.overhead = Some(MS / 10);
    let [mut here, mut worker] = [Passage::default(); 2];
    here.first = Some(Stamp::from_nanos(9 * MS));
    worker.first = Some(Stamp::from_nanos(7 * MS));
    row.passed(here, worker);
    let mut counts = vec![0; GAP_BOUNDS.len() + 1];
    counts[0] = 4;
    row.actual_prompt_tokens = Some(30);
    row.actual_output_tokens = Some(5);
    row.token_count_source = Some(TokenCountSource::MetaInfo);
    row.first_event_tokens = Some(1);
    row.token_chunks = Some(5);
    row.cached_tokens = Some(20);
    row.itl_mean = Some(MS);
    row.more.gaps = Some(GapCounts {
        counts: counts.into(),
        sum_nanos: 4 * MS,
    });
    row
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
        for text in [&mut row.model, &mut row.host, &mut row.worker] {
            *text = Some(format!("{name}:1"));
        }
        row.labels = Some(format!("x-tenant={name}"));
        metrics.request_ended(&Counted::of(&rows(&[row])));
    }
    metrics.engine_joins.with(&["trace", "joined"]);
    drop(metrics.attempt_began(name));
    metrics.waited(name, Cause::Slots, 5);
    metrics.attempts.with(&[name, "ok"]).inc();
    metrics.connections.with(&[name, "true"]).inc();
    metrics.bytes.with(&["request"]).inc_by(5);
    metrics.runtime_lag.with(&[]).observe(0.001);
    metrics.join_entries.with(&["spans"]).set(3);
    metrics.faults_injected.with(&["stall", name]).inc();
    metrics.joins.with(&["span"]).inc();
}

#[test]
fn the_table_is_what_is_shown() {
    let metrics = Metrics::new().unwrap();
    used(&metrics, "w0");
    let upstream = Arc::new(UpstreamFigures::default());
    metrics.upstreams.add(upstream.clone());
    let text = metrics.text();
    let lines = text.lines().filter(|line| line.starts_with("# TYPE"));
    let mut lines: Vec<String> = lines.map(str::to_owned).collect();
    lines.sort();
    let kinds = METRICS.iter();
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
    for metric in &METRICS {
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
fn whatever_comes_in_no_metric_has_too_many_label_sets() {
    for most in [8, 64] {
        let metrics = Metrics::with_label_sets(most).unwrap();
        let upstreams = (0..300).map(|n| {
            Arc::new(UpstreamFigures {
                name: format!("u{n}:1"),
                ..UpstreamFigures::default()
            })
        });
        let upstreams: Vec<_> = upstreams.collect();
        for (n, upstream) in upstreams.iter().enumerate() {
            metrics.upstreams.add(upstream.clone());
            used(&metrics, &format!("junk {n}\n\"{{}}\\"));
        }
        let families = metrics.registry.gather();
        for family in &families {
            let sets = family.get_metric().len();
            // Beyond its most a metric has sets only by labels of which all values are ours.
            assert!(sets < most + 200, "{}: {sets}", family.name());
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
        assert!(others.count() > 0);
    }
}
