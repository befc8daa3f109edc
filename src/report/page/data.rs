//! What the page's script is given: the report as `--format json` has it, and the samples that charts are drawn of.

use serde_json::{Map, Value, json};

use crate::report::load::{LatencyId, TimeSpent};
use crate::report::reader::Run;
use crate::report::runs::{Report, RunReport};
use crate::report::words::max_rate;
use crate::request::column::Scope;
use crate::request::columns::{Column, ColumnId};

use super::curves::{cdf, short, shorts, sorted};
use super::lives::{Lives, stages};
use super::over_time::series;

/// The latencies that are shown as distributions.
const SHOWN: [ColumnId; 5] = [
    ColumnId::ttft,
    ColumnId::total_latency,
    ColumnId::pure_queue_time,
    ColumnId::queue_time_in_router,
    ColumnId::tpot,
];

/// Single requests of all runs together.
const SINGLE: usize = 1200;

/// The same of one run: at most, at least.
const OF_A_RUN: (usize, usize) = (100, 15);

/// All of it.
pub fn data(report: &Report<'_>) -> Value {
    let (most, least) = OF_A_RUN;
    let each = (SINGLE / report.runs.len().max(1)).clamp(least, most);
    let listed = LatencyId::all().filter(|of| of.label() != of.name());
    let named = |of: LatencyId| json!({ "name": of.name(), "label": of.label() });
    let mut data = report.to_json();
    let runs = data["runs"].as_array_mut().into_iter().flatten();
    for (told, run) in runs.zip(&report.runs) {
        more(told, run, each);
        compact(told);
    }
    data["version"] = env!("CARGO_PKG_VERSION").into();
    data["max_rate"] = max_rate(report).join("\n").into();
    data["shown"] = SHOWN.map(LatencyId::Of).into_iter().map(named).collect();
    data["listed"] = listed.map(named).collect();
    data
}

/// Adds to what is said of a run what its charts are drawn of.
fn more(told: &mut Value, report: &RunReport<'_>, each: usize) {
    let (run, all) = (report.run, &report.summary.all);
    let lives = Lives::of(&run.table);
    let curve = |column: &ColumnId| {
        let column = column.column();
        let (values, shares) = cdf(&sample(run, column));
        let curve = json!({ "values": shorts(values), "shares": shorts(shares) });
        (column.name.to_owned(), curve)
    };
    for (host, group) in told["summary"]["hosts"]
        .as_object_mut()
        .into_iter()
        .flatten()
    {
        group["name"] = run.server(host).into();
    }
    let more = json!({
        "folder": run.dir.file_name().map(|name| name.display().to_string()),
        "file": run.file,
        "is_scheduled": report.summary.all.flow.is_scheduled,
        "all": spent_on(&all.spent, "a request took", lives.over_time(|[all, _]| all)),
        "until_first_token": spent_on(&all.until_first, "until the first token", lives.over_time(|[_, until_first]| until_first)),
        "waiting_over": lives.waiting(&run.table, &report.why),
        "waterfall": lives.waterfall(&run.table, &report.why, each),
        "curves": SHOWN.iter().map(curve).collect::<Map<String, Value>>(),
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
fn sample(run: &Run, column: &Column) -> Vec<f64> {
    let (table, is_counted) = (&run.table, run.is_counted());
    let is_once = column.scope == Scope::Request;
    let rows = (0..table.len()).filter(|row| table.is_ok(*row) && is_counted(*row));
    let rows = rows.filter(|row| !is_once || table.is_first(*row));
    sorted(rows.filter_map(|row| table.number(column.id, row)))
}
