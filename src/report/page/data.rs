//! What the page's script is given.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::report::compare::{Comparison, Difference};
use crate::report::findings::{Finding, Level, findings, sweep};
use crate::report::phases::episodes;
use crate::report::reader::{Loaded, Run};
use crate::report::series::gaps;
use crate::report::side_by_side::Told;
use crate::request::column::Scope;
use crate::request::columns::COLUMNS;

use super::arrivals::{arrivals, poisson_rate};
use super::curves::{bar_width, cdf, histogram, short, shorts, sorted, thinned};
use super::lives::{Lives, stages};

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
/// Figures of a run or a server beside its latencies.
const RATES: [&str; 8] = [
    "duration",
    "offered_rate",
    "achieved_rate",
    "completed_rate",
    "input_throughput",
    "output_throughput",
    "mean_concurrency",
    "request_goodput",
];
/// Single requests of all runs together, of each kind (slowest, evenly chosen).
const SINGLE: usize = 1200;
/// The same of one run: at most, at least.
const OF_A_RUN: (usize, usize) = (100, 15);
/// Points of all series of a run together, and of one at least.
const POINTS: usize = 12_000;
const OF_A_SERIES: usize = 60;
/// The source of series that are counted from the rows.
const RECORDS: &str = "records";
/// Where the histogram's last bar begins: what is slower is counted in it.
const MOST: f64 = 0.995;

/// All of it.
pub fn data(loaded: &Loaded, told: &[Told<'_>], comparison: &Comparison) -> Value {
    let (most, least) = OF_A_RUN;
    let each = (SINGLE / told.len().max(1)).clamp(least, most);
    let samples: Vec<Samples> = loaded.runs.iter().map(Samples::of).collect();
    let scales = scales(&samples);
    let runs = told.iter().zip(&samples);
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "experiment": loaded.experiment,
        "comparison": comparison.differences.iter().map(difference).collect::<Value>(),
        "not_compared": comparison.notes,
        "compared": comparison.compared,
        "sweeps": comparison.sweeps.iter().map(|of| finding(&sweep(of))).collect::<Value>(),
        "scales": scales.iter().map(|(name, (width, most))| {
            ((*name).to_owned(), json!({ "width": short(*width), "most": short(*most) }))
        }).collect::<Map<String, Value>>(),
        "shown": SHOWN.map(|(name, label)| json!({ "name": name, "label": label })),
        "runs": runs.map(|(told, samples)| of_run(told, samples, &scales, each)).collect::<Value>(),
    })
}

/// Ascending latencies of the requests that went well, by column.
struct Samples(BTreeMap<&'static str, Vec<f64>>);

impl Samples {
    fn of(run: &Run) -> Samples {
        let names = SHOWN.iter().chain(&LISTED).map(|(name, _)| *name);
        Samples(names.map(|name| (name, sample(run, name))).collect())
    }

    fn get(&self, name: &str) -> &[f64] {
        self.0.get(name).map_or(&[], Vec::as_slice)
    }
}

/// A column's values of the requests that went well and that the figures are of, ascending; what is the request's counts once.
fn sample(run: &Run, name: &str) -> Vec<f64> {
    let (table, is_counted) = (&run.table, run.is_counted());
    let column = COLUMNS.iter().find(|column| column.name == name);
    let is_once = column.is_some_and(|column| column.scope == Scope::Request);
    let rows = (0..table.len()).filter(|row| table.is_ok(*row) && is_counted(*row));
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
    told: &Told<'_>,
    samples: &Samples,
    scales: &BTreeMap<&'static str, (f64, f64)>,
    each: usize,
) -> Value {
    let run = told.run;
    let table = &run.table;
    let lives = Lives::of(table);
    let spent = &told.summary.all.spent;
    let figures = told.summary.to_json();
    let member = |name: &str| run.summary.as_ref().and_then(|summary| summary.get(name));
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
        "file": run.file,
        "partial": run.is_partial,
        "notes": run.notes,
        "scheduled": run.scheduled,
        "verdict": member("verdict"),
        "config": member("config"),
        "machine": member("machine"),
        "window": member("window"),
        "mark": told.mark(),
        "all": of_group(&figures),
        "findings": findings(run, &told.summary).iter().map(finding).collect::<Value>(),
        "sentence": format!("{}.", spent.shares("a request took")),
        "stages": stages(spent),
        "mean": spent.mean_total().map(short),
        "over": lives.over_time(),
        "waterfall": lives.waterfall(table, each),
        "curves": SHOWN.iter().map(|(name, _)| curve(name)).collect::<Map<String, Value>>(),
        "arrivals": arrivals(table),
        "poisson": poisson_rate(run.summary.as_ref()),
        "hosts": hosts(run, &figures),
        "series": series(run, &figures),
        "unknown": figures.get("state_unknown_requests"),
        "gaps": gaps(&run.series),
        "faults": run.faults,
        "episodes": episodes_of(run),
    })
}

/// A difference of two settings, with what is said of it.
fn difference(difference: &Difference) -> Value {
    let mut told = json!(difference);
    told["sentence"] = difference.sentence().into();
    told
}

/// What was done to servers, with what is said of how soon that was noticed and over.
fn episodes_of(run: &Run) -> Value {
    let servers = run.file.as_ref().map_or(&[][..], |file| &file.servers);
    let told = episodes(&run.table, &run.faults, servers)
        .into_iter()
        .map(|episode| {
            let faults = episode.faults.iter().map(|fault| {
                json!({
                    "server": fault.server,
                    "kind": fault.kind,
                    "down": fault.down,
                    "up": fault.up,
                    "ready": fault.ready,
                    "said": [fault.left.words(), fault.recovery.words()],
                })
            });
            json!({
                "faults": faults.collect::<Value>(),
                "phases": episode.phases,
                "said": episode.latency.words(),
            })
        });
    told.collect()
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

/// Of all requests, or of one server's, by the names of `summary.json`.
fn of_group(group: &Value) -> Value {
    let latencies = LISTED.iter().filter_map(|(name, label)| {
        let figures = group.pointer(&format!("/latency/{name}"))?;
        Some(json!({ "name": name, "label": label, "figures": figures_of(figures)? }))
    });
    json!({
        "requests": group.get("requests"),
        "ok": group.get("completed"),
        "outcomes": group.get("outcomes"),
        "rates": RATES.iter().map(|name| ((*name).to_owned(), json!(group.get(*name)))).collect::<Map<String, Value>>(),
        "latencies": latencies.collect::<Value>(),
    })
}

/// The figures of a latency that any request had.
fn figures_of(latency: &Value) -> Option<Value> {
    let count = latency
        .get("count")
        .and_then(Value::as_u64)
        .filter(|count| *count > 0)?;
    let mut figures = json!({ "count": count });
    for name in ["mean", "p50", "p90", "p99", "max"] {
        figures[name] = latency
            .get(name)
            .and_then(Value::as_f64)
            .map_or(Value::Null, short);
    }
    // Bounds of the quantiles, null where there are too few requests for them.
    if let Some(bounds) = latency.get("ci95").and_then(Value::as_object) {
        let ends = |bounds: &Value| {
            let ends = bounds.as_array()?.iter().map(Value::as_f64);
            ends.map(|end| end.map(short)).collect::<Option<Value>>()
        };
        let bounds = bounds
            .iter()
            .map(|(name, of)| (name.clone(), json!(ends(of))));
        figures["bounds"] = bounds.collect::<Map<String, Value>>().into();
    }
    Some(figures)
}

/// Each server, also one that no request reached.
fn hosts(run: &Run, figures: &Value) -> Value {
    let mut groups: BTreeMap<&str, Value> = BTreeMap::new();
    let known = figures.get("hosts").and_then(Value::as_object);
    for (host, group) in known.into_iter().flatten() {
        groups.insert(host, of_group(group));
    }
    for server in run.file.iter().flat_map(|file| &file.servers) {
        let group = groups
            .entry(&server.host)
            .or_insert_with(|| json!({ "requests": 0, "ok": 0, "latencies": [] }));
        group["name"] = server.name.clone().into();
    }
    let told = groups.into_iter().map(|(host, mut group)| {
        group["host"] = host.into();
        group
    });
    told.collect()
}

/// A series: who says so, what, and of which server (empty: of all together).
type Of = (String, String, String);

/// What was measured over time; where nobody counted the requests, as the figures count them.
fn series(run: &Run, figures: &Value) -> Value {
    let mut series: BTreeMap<Of, Vec<(f64, f64)>> = BTreeMap::new();
    for row in &run.series {
        let of = (row.source.clone(), row.metric.clone(), row.server.clone());
        series.entry(of).or_default().push((row.time, row.value));
    }
    if !run.series.iter().any(|row| row.source == RECORDS) {
        // Those of a window count from its beginning.
        let from = figures.pointer("/window/from_s").and_then(Value::as_f64);
        let from = from.unwrap_or(0.0);
        series.extend(counted("", figures, from));
        let hosts = figures.get("hosts").and_then(Value::as_object);
        for (host, group) in hosts.into_iter().flatten() {
            series.extend(counted(name_of(run, host), group, from));
        }
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

/// A server's name, as series and faults call it.
fn name_of<'a>(run: &'a Run, host: &'a str) -> &'a str {
    let mut servers = run.file.iter().flat_map(|file| &file.servers);
    let server = servers.find(|server| server.host == host);
    server.map_or(host, |server| &server.name)
}

/// Requests by the figures of a run, or of a server: means of each stretch of time, at its middle.
fn counted(server: &str, group: &Value, from: f64) -> Vec<(Of, Vec<(f64, f64)>)> {
    let Some(bucket) = group.pointer("/series/bucket_s").and_then(Value::as_f64) else {
        return Vec::new();
    };
    let told = ["concurrency", "queued", "running", "unknown"]
        .into_iter()
        .filter_map(|metric| {
            let values = group.pointer(&format!("/series/{metric}"))?.as_array()?;
            let points = values.iter().zip(0..);
            let points = points.filter_map(|(value, at)| {
                Some((from + (f64::from(at) + 0.5) * bucket, value.as_f64()?))
            });
            Some((
                (RECORDS.to_owned(), metric.to_owned(), server.to_owned()),
                points.collect(),
            ))
        });
    told.collect()
}
