use std::collections::{BTreeMap, BTreeSet};
use std::net::UdpSocket;

use prometheus::proto::MetricType;

use crate::request::sample::{Sample, ms, rows};
use crate::request::{Endpoint, GAP_BOUNDS, GapCounts, Moment, Outcome, Row};
use crate::stats::waits::Cause;
use crate::telemetry::CountedRequest;

use super::*;

mod missing;
mod stages;

/// A row of a front, before its request has ended.
fn row(endpoint: Endpoint, outcome: Outcome) -> Row {
    let seen = Sample::whole().at(Moment::WorkerFirstToken, 203);
    let of_front = seen.without(&[Moment::Scheduled, Moment::Sent]);
    let mut row = of_front.ended(outcome, "").open_row();
    row.endpoint = Some(endpoint);
    row.worker = Some("w0".into());
    row.client_stall = Some(ms(4));
    row.client_stall_until_finish = Some(ms(4));
    row.overhead = Some(ms(1));
    row.cached_tokens = Some(20);
    row.internal.gaps = Some(GapCounts {
        counts: vec![0; GAP_BOUNDS.len() + 1].into(),
        sum_nanos: 0,
    });
    row
}

/// The value of each line of `/metrics`.
pub(crate) fn shown(metrics: &Metrics) -> BTreeMap<String, f64> {
    let text = metrics.text();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let values = lines.map(|line| {
        let (name, value) = line.rsplit_once(' ').unwrap();
        (name.to_owned(), value.parse().unwrap())
    });
    values.collect()
}

/// Counts everything once.
fn count_all(metrics: &Metrics, name: &str) {
    let mut incomplete = row(Endpoint::Generate, Outcome::Ok);
    incomplete.timeline.clear(Moment::QueueStart);
    let complete = [Outcome::Ok, Outcome::Timeout].map(|outcome| row(Endpoint::Chat, outcome));
    for mut row in [incomplete].into_iter().chain(complete) {
        for text in [&mut row.model, &mut row.host, &mut row.worker] {
            *text = Some(format!("{name}:1"));
        }
        row.labels = Some(format!("x-tenant={name}"));
        metrics.request_ended(&CountedRequest::of(&rows(&[row])));
    }
    metrics.engine_joins.with(&["trace", "joined"]);
    drop(metrics.begin_attempt(name));
    metrics.add_wait(name, Cause::Slots, 5);
    metrics.attempts.with(&[name, "ok"]).inc();
    metrics.connections.with(&[name, "true"]).inc();
    metrics.bytes.with(&["request"]).inc_by(5);
    metrics.runtime_lag.with(&[]).observe(0.001);
    metrics.join_entries.with(&["spans"]).set(3);
    metrics.faults_injected.with(&["stall", name]).inc();
    metrics.joins.with(&["span"]).inc();
}

#[test]
fn all_metrics_of_the_table_are_shown_and_follow_the_conventions_of_prometheus() {
    let metrics = Metrics::new().unwrap();
    count_all(&metrics, "w0");
    let upstream = Arc::new(UpstreamFigures::default());
    metrics.show_upstream(&upstream);
    let text = metrics.text();
    let types = text.lines().filter(|line| line.starts_with("# TYPE"));
    let types: BTreeSet<String> = types.map(str::to_owned).collect();
    let table = METRICS.iter();
    let table = table.map(|of| {
        let kind = format!("{:?}", of.kind).to_lowercase();
        format!("# TYPE {} {kind}", of.name)
    });
    assert_eq!(types, BTreeSet::from_iter(table));
    // That names are valid the crate checks at creation.
    for metric in &METRICS {
        let name = metric.name;
        let is_counter = metric.kind == MetricType::COUNTER;
        assert_eq!(name.ends_with("_total"), is_counter, "{name}");
        let is_histogram = metric.kind == MetricType::HISTOGRAM;
        assert!(!is_histogram || name.ends_with("_seconds"), "{name}");
        assert!(metric.help.ends_with(['.', ')']), "{name}");
    }
}

#[test]
fn bounds_include_those_of_sglang() {
    let folder = env!("CARGO_MANIFEST_DIR");
    let recorded = format!("{folder}/tests/data/sglang-0.5.23/info_metrics.body");
    let recorded = std::fs::read_to_string(recorded).unwrap();
    let theirs = |name: &str| -> Vec<f64> {
        let start = format!("sglang:{name}_seconds_bucket{{");
        let lines = recorded.lines().filter(|line| line.starts_with(&start));
        let bounds = lines.map(|line| line.split("le=\"").nth(1).unwrap());
        let bounds = bounds.map(|rest| rest.split('"').next().unwrap());
        // Only those of the first series.
        let bounds = bounds.take_while(|le| *le != "+Inf");
        bounds.map(|le| le.parse().unwrap()).collect()
    };
    let (first, gap) = ("time_to_first_token", "inter_token_latency");
    for (ours, theirs_name, last) in [
        ("gen_ai_server_time_to_first_token", first, 3600.0),
        ("gen_ai_server_request_duration", first, 3600.0),
        ("gen_ai_server_time_per_output_token", gap, 3600.0),
        ("queuescope_inter_token", gap, 8.0),
    ] {
        let name = format!("{ours}_seconds");
        let metric = METRICS.iter().find(|metric| metric.name == name);
        let bounds = metric.unwrap().bounds;
        let theirs = theirs(theirs_name);
        let range = theirs[0]..=theirs[theirs.len() - 1];
        let common = bounds.iter().filter(|bound| range.contains(*bound));
        assert!(common.eq(&theirs), "{name}: {bounds:?} {theirs:?}");
        assert!(bounds.is_sorted_by(|a, b| a < b), "{name}: {bounds:?}");
        assert_eq!(bounds.last(), Some(&last), "{name}");
    }
}

#[test]
fn no_metric_has_too_many_label_sets() {
    for max_sets in [8, 64] {
        let metrics = Metrics::with_label_sets(max_sets).unwrap();
        let mut upstreams = Vec::new();
        for n in 0..300 {
            let upstream = Arc::new(UpstreamFigures {
                name: format!("u{n}:1"),
                ..UpstreamFigures::default()
            });
            metrics.show_upstream(&upstream);
            upstreams.push(upstream);
            count_all(&metrics, &format!("junk {n}\n\"{{}}\\"));
        }
        for family in metrics.registry.gather() {
            let sets = family.get_metric().len();
            // Closed labels, whose values are all our own, may add sets beyond the limit.
            assert!(sets < max_sets + 200, "{}: {sets}", family.name());
        }
        // Nothing is lost.
        let requests = metrics.requests.sets();
        let total: u64 = requests.iter().map(|(_, series)| series.get()).sum();
        assert_eq!(total, 900);
        assert!(requests.iter().any(|(labels, _)| labels[2] == "other"));
    }
}

#[test]
fn upstreams_are_shown_while_they_are_in_use() {
    let metrics = Metrics::new().unwrap();
    let upstreams = ["a:1", "a:1", "b:1"].map(|name| {
        let upstream = Arc::new(UpstreamFigures {
            name: name.into(),
            in_flight: 1.into(),
            ..UpstreamFigures::default()
        });
        metrics.show_upstream(&upstream);
        upstream
    });
    upstreams[1].is_out.store(true, Relaxed);
    let figures = |name: &str| {
        let shown = shown(&metrics);
        ["healthy", "in_flight"].map(|figure| {
            let line = format!("queuescope_upstream_{figure}{{upstream=\"{name}\"}}");
            shown.get(&line).copied()
        })
    };
    // A second scrape shows the same numbers.
    for _ in 0..2 {
        assert_eq!(figures("a:1"), [0.0, 2.0].map(Some));
        assert_eq!(figures("b:1"), [1.0, 1.0].map(Some));
    }
    let [first, second, gone] = upstreams;
    drop((second, gone));
    first.in_flight.fetch_sub(1, Relaxed);
    assert_eq!(figures("a:1"), [1.0, 0.0].map(Some));
    assert_eq!(figures("b:1"), [None; 2]);
}

#[test]
fn the_figures_are_those_of_this_process_and_its_build() {
    let metrics = Metrics::new().unwrap();
    let before = shown(&metrics);
    let sockets = (0..100).map(|_| UdpSocket::bind("127.0.0.1:0").unwrap());
    let held = (Vec::from_iter(sockets), vec![1_u8; 64 << 20]);
    let now = shown(&metrics);
    drop(held);
    let more = |name: &str| now[name] - before[name];
    // Other tests open and close some meanwhile.
    assert!(more("process_open_fds") > 50.0);
    let resident = "process_resident_memory_bytes";
    assert!(more(resident) > 32e6);
    assert!(now["process_max_fds"] >= 100.0);
    let usage = getrusage(UsageWho::RUSAGE_SELF).unwrap();
    let spent = usage.user_time() + usage.system_time();
    let (cpu, spent) = (
        "process_cpu_seconds_total",
        spent.num_microseconds() as f64 / 1e6,
    );
    assert!(0.0 < before[cpu] && before[cpu] <= now[cpu] && now[cpu] <= spent);
    let age = Clock::system().now().seconds() - now["process_start_time_seconds"];
    assert!((0.0..600.0).contains(&age), "{age}");
    let version = env!("CARGO_PKG_VERSION");
    let build = format!("queuescope_build_info{{version=\"{version}\"}}");
    assert_eq!(now[&build], 1.0);
}
