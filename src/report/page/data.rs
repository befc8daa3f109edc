//! The data of the page: the report as `--format json` has it, and the series of the charts.

use serde_json::{Map, Value, json};

use crate::report::load::{TimeSpent, latencies};
use crate::report::phases::lines;
use crate::report::reader::Run;
use crate::report::render::{max_rate, named, servers_table};
use crate::report::runs::{Report, RunReport};
use crate::report::why::tables::tables;
use crate::request::{Column, ColumnId, Scope};

use super::downsample::{cdf, short, shorts};
use super::over_time::series;
use super::waterfall::{Requests, stages};

/// The latencies with a chart of their distribution.
const SHOWN: [ColumnId; 5] = [
    ColumnId::ttft,
    ColumnId::total_latency,
    ColumnId::pure_queue_time,
    ColumnId::queue_time_in_router,
    ColumnId::tpot,
];

/// The single requests that are shown, of all runs together; and the bounds for each run.
const REQUESTS: usize = 1200;
const MAX_OF_RUN: usize = 100;
const MIN_OF_RUN: usize = 15;

/// The data of the page of a report.
pub fn data(report: &Report<'_>) -> Value {
    let each = (REQUESTS / report.runs.len().max(1)).clamp(MIN_OF_RUN, MAX_OF_RUN);
    let listed = latencies().filter(|of| of.label != of.name);
    let named = |of: &Column| json!({ "name": of.name, "label": of.label });
    let mut data = report.to_json();
    let runs = data["runs"].as_array_mut().into_iter().flatten();
    for (json, run) in runs.zip(&report.runs) {
        add_chart_data(json, run, each);
        // Shown as tables and charts.
        if let Some(summary) = json["summary"].as_object_mut() {
            summary.retain(|name, _| !["hosts", "series"].contains(&name.as_str()));
        }
    }
    data["version"] = env!("CARGO_PKG_VERSION").into();
    data["max_rate"] = max_rate(report).join("\n").into();
    data["shown"] = SHOWN.iter().map(|of| named(of.column())).collect();
    data["listed"] = listed.map(named).collect();
    data
}

/// Adds the data of its charts to the JSON of a run.
fn add_chart_data(json: &mut Value, report: &RunReport<'_>, each: usize) {
    let (run, all) = (report.run, &report.summary.all);
    let requests = Requests::of(&run.table);
    let curve = |column: &ColumnId| {
        let column = column.column();
        let (values, shares) = cdf(&sample(run, column));
        let curve = json!({ "values": shorts(values), "shares": shorts(shares) });
        (column.name.to_owned(), curve)
    };
    let mut servers = servers_table(&report.summary, |host| named(report, host));
    let started = run.file.iter().flat_map(|file| &file.servers);
    let idle = started.filter(|server| !report.summary.hosts.contains_key(&server.host));
    servers
        .rows
        .extend(idle.map(|server| vec![server.name.clone(), "0".to_owned(), "0".to_owned()]));
    let more = json!({
        "folder": run.dir.file_name().map(|name| name.display().to_string()),
        "file": run.file,
        "is_scheduled": report.summary.all.flow.is_scheduled,
        "all": spent_on(&all.spent, all.spent.sentence("a request took"), requests.over_time(|[all, _]| all)),
        "until_first_token": spent_on(&all.until_first, all.until_first.shares("until the first token") + ".", requests.over_time(|[_, until_first]| until_first)),
        "waiting_over": requests.waiting(&run.table, &report.why),
        "waterfall": requests.waterfall(&run.table, each),
        "tables": { "servers": servers, "waiting": tables(&report.why) },
        "window_note": report.summary.of_window(),
        "fault_lines": lines(&report.episodes).join("\n"),
        "curves": SHOWN.iter().map(curve).collect::<Map<String, Value>>(),
        "series": series(report),
        "off": (!run.prediction_errors.is_empty()).then_some(&run.prediction_errors),
    });
    if let (Value::Object(json), Value::Object(more)) = (json, more) {
        json.extend(more);
    }
}

/// The stages of requests: a sentence, their means, and `over` time.
fn spent_on(spent: &TimeSpent, sentence: String, over: Value) -> Value {
    json!({
        "sentence": sentence,
        "stages": stages(spent),
        "mean": spent.mean_total().map(short),
        "over": over,
    })
}

/// The values of a column in successful rows that count in the figures, ascending; one per request for a column of requests.
fn sample(run: &Run, column: &Column) -> Vec<f64> {
    let (table, is_counted) = (&run.table, run.is_counted());
    let is_once = column.scope == Scope::Request;
    let rows = (0..table.len()).filter(|row| table.is_ok(*row) && is_counted(*row));
    let rows = rows.filter(|row| !is_once || table.is_first(*row));
    let values = rows.filter_map(|row| table.number(column.id, row));
    let mut sorted: Vec<f64> = values.filter(|value| value.is_finite()).collect();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted
}
