//! What the page's script is given.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::report::findings::{Finding, Level, findings};
use crate::report::reader::{Loaded, Run};
use crate::report::table::Table;
use crate::request::column::Scope;
use crate::request::columns::COLUMNS;
use crate::stats::Summary;

use super::arrivals::arrivals;
use super::curves::{bar_width, cdf, histogram, short, shorts, sorted, thinned};
use super::lives::Lives;

/// The latencies that are shown as distributions: column, what a person calls it.
const SHOWN: [(&str, &str); 5] = [
    ("ttft", "time to first token"),
    ("total_latency", "total latency"),
    ("pure_queue_time", "server queue"),
    ("queue_time_in_router", "router queue"),
    ("tpot", "time per output token"),
];
/// The latencies of the table of figures.
const LISTED: [(&str, &str); 9] = [
    ("ttft", "time to first token"),
    ("total_latency", "total latency"),
    ("queue_time_in_router", "router queue"),
    ("pure_queue_time", "server queue"),
    ("tokenize_time", "tokenize"),
    ("prefill_time", "prefill"),
    ("decode_time", "decode"),
    ("tpot", "time per output token"),
    ("schedule_lag", "client lag"),
];
/// Single requests of all runs together, of each kind (slowest, evenly chosen).
const SINGLE: usize = 1200;
/// The same of one run: at most, at least.
const OF_A_RUN: (usize, usize) = (100, 15);
/// Points of all series of a run together, and of one at least.
const POINTS: usize = 12_000;
const OF_A_SERIES: usize = 60;
/// Where the histogram's last bar begins: what is slower is counted in it.
const MOST: f64 = 0.995;

/// All of it.
pub fn data(loaded: &Loaded) -> Value {
    let (most, least) = OF_A_RUN;
    let each = (SINGLE / loaded.runs.len().max(1)).clamp(least, most);
    let samples: Vec<Samples> = loaded
        .runs
        .iter()
        .map(|run| Samples::of(&run.table))
        .collect();
    let scales = scales(&samples);
    let runs = loaded.runs.iter().zip(&samples);
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "experiment": loaded.experiment,
        "scales": scales.iter().map(|(name, (width, most))| {
            ((*name).to_owned(), json!({ "width": short(*width), "most": short(*most) }))
        }).collect::<Map<String, Value>>(),
        "shown": SHOWN.map(|(name, label)| json!({ "name": name, "label": label })),
        "runs": runs.map(|(run, samples)| of_run(run, samples, &scales, each)).collect::<Value>(),
    })
}

/// Ascending latencies of the requests that went well, by column.
struct Samples(BTreeMap<&'static str, Vec<f64>>);

impl Samples {
    fn of(table: &Table) -> Samples {
        let names = SHOWN.iter().chain(&LISTED).map(|(name, _)| *name);
        Samples(
            names
                .map(|name| (name, sample(table, name, |_| true)))
                .collect(),
        )
    }

    fn get(&self, name: &str) -> &[f64] {
        self.0.get(name).map_or(&[], Vec::as_slice)
    }
}

/// A column's values of the requests that went well, ascending; what is the request's counts once.
fn sample(table: &Table, name: &str, of: impl Fn(usize) -> bool) -> Vec<f64> {
    let column = COLUMNS.iter().find(|column| column.name == name);
    let is_once = column.is_some_and(|column| column.scope == Scope::Request);
    let rows = (0..table.len()).filter(|row| table.is_ok(*row) && of(*row));
    let rows = rows.filter(|row| !is_once || table.is_first(*row));
    sorted(rows.filter_map(|row| table.number(name, row)))
}

/// Width and end of the bars of each histogram, which all runs share.
fn scales(samples: &[Samples]) -> BTreeMap<&'static str, (f64, f64)> {
    let scale = |name: &'static str| {
        let ends = samples
            .iter()
            .filter_map(|of| crate::stats::quantile(of.get(name), MOST));
        let most = ends.fold(0.0, f64::max);
        Some((name, (bar_width(most)?, most)))
    };
    SHOWN.iter().filter_map(|(name, _)| scale(name)).collect()
}

fn of_run(
    run: &Run,
    samples: &Samples,
    scales: &BTreeMap<&'static str, (f64, f64)>,
    each: usize,
) -> Value {
    let table = &run.table;
    let lives = Lives::of(table);
    let file = run.file.as_ref();
    let told = |pointer: &str| {
        run.summary
            .as_ref()
            .and_then(|summary| summary.pointer(pointer))
    };
    let curve = |name: &'static str| {
        let (values, shares) = cdf(samples.get(name));
        let scale = scales.get(name);
        let bars = scale.map(|(width, most)| histogram(samples.get(name), *width, *most));
        let curve = json!({ "values": shorts(values), "shares": shorts(shares), "bars": bars });
        (name.to_owned(), curve)
    };
    json!({
        "name": run.name,
        "folder": run.dir.file_name().map(|name| name.display().to_string()),
        "file": file,
        "partial": run.is_partial,
        "notes": run.notes,
        "scheduled": run.scheduled,
        "verdict": told("/verdict"),
        "rates": rates(run),
        "config": told("/config"),
        "machine": told("/machine"),
        "window": told("/window"),
        "goodput": told("/request_goodput"),
        "outcomes": outcomes(table),
        "latencies": latencies(samples),
        "findings": findings(run, &lives.spent).iter().map(finding).collect::<Value>(),
        "sentence": format!("{}.", lives.spent.shares("a request took")),
        "stages": lives.stages(),
        "over": lives.over_time(),
        "waterfall": lives.waterfall(table, each),
        "curves": SHOWN.iter().map(|(name, _)| curve(name)).collect::<Map<String, Value>>(),
        "arrivals": arrivals(table),
        "hosts": hosts(run),
        "series": series(run),
        "faults": run.faults,
    })
}

fn finding(finding: &Finding) -> Value {
    json!({
        "kind": finding.kind,
        "level": match finding.level {
            Level::Problem => "problem",
            Level::Limit => "limit",
            Level::Note => "note",
            Level::Fine => "fine",
        },
        "title": finding.title,
        "what": finding.what,
        "advice": finding.advice,
    })
}

/// Requests a second and tokens a second, as the summary says.
fn rates(run: &Run) -> Value {
    let names = [
        "duration",
        "offered_rate",
        "achieved_rate",
        "completed_rate",
        "input_throughput",
        "output_throughput",
        "mean_concurrency",
        "peak_concurrency",
    ];
    let summary = run.summary.as_ref();
    let told = |name: &str| summary.and_then(|summary| summary.get(name)).cloned();
    names
        .map(|name| (name.to_owned(), told(name)))
        .into_iter()
        .collect()
}

/// Requests by how they ended.
fn outcomes(table: &Table) -> Value {
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    for row in (0..table.len()).filter(|row| table.is_first(*row)) {
        let outcome = match table.text("outcome", row) {
            "" if table.is_ok(row) => "ok",
            "" => "failed",
            outcome => outcome,
        };
        *counts.entry(outcome).or_default() += 1;
    }
    json!(counts)
}

fn latencies(samples: &Samples) -> Value {
    let rows = LISTED.iter().map(|(name, label)| {
        let summary = Summary::of(samples.get(name).iter().copied());
        json!({ "name": name, "label": label, "figures": summary.as_ref().map(figures) })
    });
    rows.collect()
}

fn figures(summary: &Summary) -> Value {
    json!({
        "count": summary.count,
        "mean": short(summary.mean),
        "p50": short(summary.p50),
        "p90": short(summary.p90),
        "p99": short(summary.p99),
        "max": short(summary.max),
    })
}

/// Each server: what it was given and how long its requests took.
fn hosts(run: &Run) -> Value {
    let table = &run.table;
    let servers = run.file.iter().flat_map(|file| &file.servers);
    let mut names: BTreeMap<&str, &str> = BTreeMap::new();
    names.extend(table.words("host").iter().map(|host| (host.as_str(), "")));
    names.extend(servers.map(|server| (server.host.as_str(), server.name.as_str())));
    let told = names.iter().map(|(host, name)| {
        let is_here = |row: usize| table.text("host", row) == *host;
        let rows = (0..table.len()).filter(|row| table.is_first(*row) && is_here(*row));
        let (mut requests, mut ok) = (0_u64, 0_u64);
        for row in rows {
            requests += 1;
            ok += u64::from(table.is_ok(row));
        }
        let figures = |column: &str| {
            Summary::of(sample(table, column, is_here))
                .as_ref()
                .map(figures)
        };
        json!({
            "host": host,
            "name": name,
            "requests": requests,
            "ok": ok,
            "ttft": figures("ttft"),
            "queue": figures("pure_queue_time"),
            "total": figures("total_latency"),
        })
    });
    let told: Vec<Value> = told.collect();
    // The empty word is there whether a row has it or not.
    let is_any = |host: &Value| host["host"] != "" || host["requests"] != 0;
    told.into_iter().filter(is_any).collect()
}

/// What was measured over time, by source, server and metric.
fn series(run: &Run) -> Value {
    let mut series: BTreeMap<(&str, &str, &str), Vec<(f64, f64)>> = BTreeMap::new();
    for row in &run.series {
        let key = (
            row.source.as_str(),
            row.metric.as_str(),
            row.server.as_str(),
        );
        series.entry(key).or_default().push((row.time, row.value));
    }
    let each = (POINTS / series.len().max(1)).max(OF_A_SERIES);
    let told = series
        .into_iter()
        .map(|((source, metric, server), points)| {
            let points = thinned(&points, each);
            json!({
                "source": source,
                "metric": metric,
                "server": server,
                "times": shorts(points.iter().map(|(time, _)| *time)),
                "values": shorts(points.iter().map(|(_, value)| *value)),
            })
        });
    told.collect()
}
