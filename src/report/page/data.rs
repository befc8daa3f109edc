//! What the page's script is given: the report as `--format json` has it, and the samples that charts are drawn of.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::report::load::{Group, OverTime, TimeSpent, label};
use crate::report::reader::Run;
use crate::report::runs::{Report, RunReport};
use crate::report::words::max_rate;
use crate::request::column::Scope;
use crate::request::columns::COLUMNS;
use crate::stats::Concurrency;

use super::arrivals::{arrivals, poisson_rate};
use super::curves::{cdf, short, shorts, sorted, thinned};
use super::lives::{Lives, stages};

/// The latencies that are shown as distributions.
const SHOWN: [&str; 5] = [
    "ttft",
    "total_latency",
    "pure_queue_time",
    "queue_time_in_router",
    "tpot",
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

/// All of it.
pub fn data(report: &Report<'_>) -> Value {
    let (most, least) = OF_A_RUN;
    let each = (SINGLE / report.runs.len().max(1)).clamp(least, most);
    let latencies = report
        .runs
        .first()
        .map(|run| &run.summary.all.latencies.all);
    let listed = latencies.into_iter().flatten().map(|latency| latency.name);
    let listed = listed.filter(|name| label(name) != *name);
    let named = |name: &str| json!({ "name": name, "label": label(name) });
    let mut data = report.to_json();
    let runs = data["runs"].as_array_mut().into_iter().flatten();
    for (told, run) in runs.zip(&report.runs) {
        more(told, run, each);
        compact(told);
    }
    data["version"] = env!("CARGO_PKG_VERSION").into();
    data["compared"] = json!(report.comparison.compared);
    data["max_rate"] = max_rate(report).join("\n").into();
    data["shown"] = SHOWN.into_iter().map(named).collect();
    data["listed"] = listed.map(named).collect();
    data
}

/// Adds to what is said of a run what its charts are drawn of.
fn more(told: &mut Value, report: &RunReport<'_>, each: usize) {
    let (run, all) = (report.run, &report.summary.all);
    let lives = Lives::of(&run.table);
    let curve = |name: &&str| {
        let (values, shares) = cdf(&sample(run, name));
        let curve = json!({ "values": shorts(values), "shares": shorts(shares) });
        ((*name).to_owned(), curve)
    };
    for (host, group) in told["summary"]["hosts"]
        .as_object_mut()
        .into_iter()
        .flatten()
    {
        group["name"] = report.server(host).into();
    }
    let more = json!({
        "folder": run.dir.file_name().map(|name| name.display().to_string()),
        "file": run.file,
        "is_scheduled": report.summary.all.flow.is_scheduled,
        "all": spent_on(&all.spent, "a request took", lives.over_time(|[all, _]| all)),
        "until_first_token": spent_on(&all.until_first, "until the first token", lives.over_time(|[_, until_first]| until_first)),
        "waiting_over": lives.waiting(&report.why),
        "waterfall": lives.waterfall(&run.table, &report.why, each),
        "curves": SHOWN.iter().map(curve).collect::<Map<String, Value>>(),
        "arrivals": arrivals(&run.table),
        "poisson": poisson_rate(run.summary.as_ref()),
        "series": series(report),
    });
    if !run.off.is_empty() {
        told["off"] = json!(run.off);
    }
    if let (Value::Object(told), Value::Object(more)) = (told, more) {
        told.extend(more);
    }
}

/// What the time of requests was spent on; `over`: by when they arrived.
fn spent_on(spent: &TimeSpent, whose: &str, over: Value) -> Value {
    json!({
        "sentence": format!("{}.", spent.shares(whose)),
        "stages": stages(spent),
        "mean": spent.mean_total().map(short),
        "over": over,
    })
}

/// Rounds numbers to what a chart shows, and leaves out figures of latencies that no request had, and series, which the
/// page has as points.
fn compact(value: &mut Value) {
    match value {
        Value::Number(number) if number.is_f64() => {
            *value = number.as_f64().map_or(Value::Null, short);
        }
        Value::Array(all) => all.iter_mut().for_each(compact),
        Value::Object(members) => {
            let is_empty = |value: &Value| value.get("count") == Some(&json!(0));
            members
                .retain(|name, value| !(is_empty(value) || name == "series" && value.is_object()));
            members.values_mut().for_each(compact);
        }
        _ => {}
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

/// A series: who says so, what, and of which server (empty: of all together).
type Of = (String, String, String);

/// What was measured over time; where nobody counted the requests, as the figures count them.
fn series(report: &RunReport<'_>) -> Value {
    let run = report.run;
    let mut series: BTreeMap<Of, Vec<(f64, f64)>> = BTreeMap::new();
    for row in &run.series {
        let of = (row.source.clone(), row.metric.clone(), row.server.clone());
        series.entry(of).or_default().push((row.time, row.value));
    }
    if !run.series.iter().any(|row| row.source == RECORDS) {
        let figures = &report.summary;
        // Those of a window count from its beginning.
        let from = figures.window.as_ref().map_or(0.0, |window| window.from_s);
        series.extend(counted("", &figures.all, from));
        for (host, group) in &figures.hosts {
            series.extend(counted(report.server(host), group, from));
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

/// Requests by the figures of a run, or of a server: means of each stretch of time, at its middle.
fn counted(server: &str, group: &Group, from: f64) -> Vec<(Of, Vec<(f64, f64)>)> {
    let Some(over_time) = &group.flow.over_time else {
        return Vec::new();
    };
    let of = |(metric, concurrency): (&str, Option<&Concurrency>)| {
        let values = concurrency?.series.iter().zip(0..);
        let middle = |at: u32| from + (f64::from(at) + 0.5) * over_time.bucket_s;
        let points = values.map(|(value, at)| (middle(at), *value)).collect();
        let of = (RECORDS.to_owned(), metric.to_owned(), server.to_owned());
        Some((of, points))
    };
    let all = OverTime::NAMES.into_iter().zip(over_time.series());
    all.filter_map(of).collect()
}
