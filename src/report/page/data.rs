//! The data of the page, of bounded size: the report as `--format json` has it; tables as on the terminal; and what its charts show:
//! distributions, series, the stages of requests over time and of single requests.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use crate::clock::seconds;
use crate::report::Report;
use crate::report::files::RECORDS;
use crate::report::findings::RunReport;
use crate::report::load::{OverTime, latencies};
use crate::report::render::{have_goals, lines_of, max_rate, named, servers_table, table};
use crate::report::why::WaitReport;
use crate::request::{Breakdown, Column, ColumnId, StageSet, TimeSpent};
use crate::stats::waits::{ByCause, Cause};
use crate::table::Table;
use crate::threads::in_parallel;

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

/// The most points of all series of a run together, unless each has the minimum.
const MAX_POINTS: usize = 12_000;
const MIN_OF_SERIES: usize = 60;

/// The most slots of time that a run is divided into.
const SLOTS: usize = 48;

/// The data of the page of a report.
pub(super) fn data(report: &Report<'_>) -> Value {
    let each = (REQUESTS / report.runs.len().max(1)).clamp(MIN_OF_RUN, MAX_OF_RUN);
    let listed = latencies().filter(|of| of.label != of.name);
    let named = |of: &Column| json!({ "name": of.name, "label": of.label });
    let mut data = report.to_json();
    let runs = data["runs"].as_array_mut().into_iter().flatten();
    let has_goals = have_goals(&report.runs);
    for (json, run) in runs.zip(&report.runs) {
        add_chart_data(json, run, each, has_goals);
        // Shown as tables and charts.
        if let Some(summary) = json["summary"].as_object_mut() {
            summary.retain(|name, _| !["hosts", "series"].contains(&name.as_str()));
        }
    }
    data["version"] = env!("CARGO_PKG_VERSION").into();
    data["heads"] = table("run", has_goals, Vec::new()).heads.into();
    data["max_rate"] = max_rate(report).join("\n").into();
    data["shown"] = SHOWN.iter().map(|of| named(of.column())).collect();
    data["listed"] = listed.map(named).collect();
    data
}

/// Adds the data of its charts to the JSON of a run.
fn add_chart_data(json: &mut Value, report: &RunReport<'_>, each: usize, has_goals: bool) {
    let (run, all) = (report.run, &report.summary.all);
    let requests = Requests::of(&run.table);
    let curve = |latency: &ColumnId| {
        let curve = all.latencies.latency(*latency)?.curve.iter();
        let curve = points(curve.map(|(value, share)| (*value, share * 100.0)));
        Some((latency.column().name.to_owned(), curve))
    };
    let servers = servers_table(&report.summary, |host| named(report, host));
    let more = json!({
        "folder": run.dir.file_name().map(|name| name.display().to_string()),
        "file": run.file,
        "is_scheduled": all.is_scheduled,
        "lines": lines_of(report, has_goals),
        "all": spent_on(&all.spent, requests.over_time(|[all, _]| all)),
        "until_first_token": spent_on(&all.until_first, requests.over_time(|[_, until_first]| until_first)),
        "waiting_over": waiting(&run.table, &report.why),
        "waterfall": requests.waterfall(&run.table, each),
        "tables": { "servers": servers, "waiting": report.why.tables() },
        "other_servers": report.summary.other_servers(),
        "fault_lines": report.fault_lines().join("\n"),
        "curves": SHOWN.iter().filter_map(curve).collect::<Map<String, Value>>(),
        "series": series(report),
        "off": (!run.prediction_errors.is_empty()).then_some(&run.prediction_errors),
    });
    if let (Value::Object(json), Value::Object(more)) = (json, more) {
        json.extend(more);
    }
}

/// The stages of requests: their means, and `over` time.
fn spent_on(spent: &TimeSpent, over: Value) -> Value {
    json!({
        "stages": stages(spent),
        "mean": spent.mean_total().map(short),
        "over": over,
    })
}

/// A series: its source, metric, and server (empty: all together).
type Key<'a> = (&'a str, &'a str, &'a str);

/// All series of a run.
fn series(report: &RunReport<'_>) -> Value {
    let mut series: BTreeMap<Key<'_>, Vec<(f64, f64)>> = BTreeMap::new();
    // Series files of older runs also have what the figures have.
    let measured = report.run.series.iter().filter(|row| row.source != RECORDS);
    for row in measured {
        let key = (&*row.source, &*row.metric, &*row.server);
        series.entry(key).or_default().push((row.time, row.value));
    }
    let hosts = report.summary.hosts.iter();
    let hosts = hosts.map(|(host, group)| (report.run.server(host), group));
    for (server, group) in hosts.chain([("", &report.summary.all)]) {
        let Some(counted) = &group.over_time else {
            continue;
        };
        let known = OverTime::NAMES.into_iter().zip(&counted.series);
        for (metric, counts) in known.chain([("waiting", &counted.in_router)]) {
            let Some(counts) = counts.as_ref().filter(|counts| counts.peak > 0) else {
                continue;
            };
            // At the middle of each bucket.
            let at = |n: usize| counted.from_s + (n as f64 + 0.5) * counted.bucket_s;
            let means = counts.series.iter().enumerate();
            let points = means.map(|(n, mean)| (at(n), *mean)).collect();
            series.insert((RECORDS, metric, server), points);
        }
    }
    let each = (MAX_POINTS / series.len().max(1)).max(MIN_OF_SERIES);
    let shown = |((source, metric, server), values): (Key<'_>, Vec<(f64, f64)>)| {
        let points = points(thinned(&values, each));
        json!({ "source": source, "metric": metric, "server": server, "points": points })
    };
    series.into_iter().map(shown).collect()
}

/// The requests of a run, by their stages.
#[derive(Clone)]
struct Requests {
    /// The length of a slot, seconds.
    slot: f64,
    /// The stages of successful requests by the slot of their arrival: all stages, and those until the first token.
    slots: Vec<[TimeSpent; 2]>,
    all: Vec<Request>,
}

/// A request: its row, and its time in nanoseconds: in all, and until its first token (0 if unknown).
type Request = (usize, [i128; 2]);

impl Requests {
    /// Reads the requests of a table.
    fn of(table: &Table) -> Requests {
        let began = |row| table.began(row).map_or(0.0, seconds).max(0.0);
        let last = table.first_rows().map(began).fold(0.0, f64::max);
        let slot = slot_of(last, SLOTS as f64 - 1.0);
        let none = Requests {
            slot,
            slots: vec![<[TimeSpent; 2]>::default(); (last / slot) as usize + 1],
            all: Vec::new(),
        };
        let of_some = |firsts: &[usize]| {
            let mut some = none.clone();
            for row in firsts {
                let record = table.row(*row);
                let mut spent = <[TimeSpent; 2]>::default();
                TimeSpent::count_both(&mut spent, &record, Breakdown::of(&record).as_ref());
                if spent[0].requests == 0 {
                    continue;
                }
                let total = spent.each_ref().map(|spent| spent.total_nanos);
                some.all.push((*row, total));
                let slot = some.slots.get_mut((began(*row) / slot) as usize);
                if let Some(slot) = slot.filter(|_| record.is_ok()) {
                    TimeSpent::add_both(slot, spent);
                }
            }
            some
        };
        let firsts: Vec<usize> = table.first_rows().collect();
        let parts = in_parallel(&firsts, of_some);
        let mut requests = none;
        for more in parts {
            requests.all.extend(more.all);
            let slots = requests.slots.iter_mut().zip(more.slots);
            slots.for_each(|(slot, more)| TimeSpent::add_both(slot, more));
        }
        requests
    }

    /// The mean seconds of each stage by the time of arrival; null if a stage was not measured.
    fn over_time(&self, of: fn(&[TimeSpent; 2]) -> &TimeSpent) -> Value {
        let slots = || self.slots.iter().map(of);
        let means = slots().map(|slot| {
            let mean = |part| slot.mean(part).map(|mean| short(mean.max(0.0)));
            let parts = slot.parts.iter();
            let parts = parts.map(|part| (part.spent.name(), json!(mean(part))));
            json!({
                "requests": slot.requests,
                "mean": slot.mean_total().map(short),
                "seconds": parts.collect::<Value>(),
            })
        });
        let parts = slots().flat_map(|slot| &slot.parts);
        json!({
            "slot": short(self.slot),
            "slots": means.collect::<Value>(),
            "stages": in_order(parts.map(|part| part.spent)),
        })
    }

    /// Single requests: the `each` slowest by their whole time, and by that until the first token.
    fn waterfall(&self, table: &Table, each: usize) -> Value {
        let mut slowest: Vec<&Request> = self.all.iter().collect();
        let mut rows = BTreeSet::new();
        for which in 0..2 {
            slowest.sort_by_key(|(_, total)| Reverse(total.get(which)));
            rows.extend(slowest.iter().take(each).map(|(row, _)| row));
        }
        let breakdown = |row: &usize| Some((*row, Breakdown::of(&table.row(*row))?));
        let shown: Vec<(usize, Breakdown)> = rows.iter().filter_map(breakdown).collect();
        let requests = shown.iter().map(|(row, breakdown)| {
            let parts = breakdown.parts.iter();
            let parts = parts.map(|part| (part.spent.name(), short(seconds(part.nanos))));
            json!({
                "id": table.text(ColumnId::req_id, *row),
                "start": table.began(*row).map(|at| short(seconds(at))),
                "total": short(seconds(breakdown.total_nanos)),
                "until_first_token": breakdown.until_first_token().map(|until| short(seconds(until.total_nanos))),
                "host": table.text(ColumnId::host, *row),
                "outcome": table.text(ColumnId::outcome, *row),
                "ttft": table.number(ColumnId::ttft, *row).map(short),
                "seconds": parts.collect::<Value>(),
            })
        });
        let parts = shown.iter().flat_map(|(_, breakdown)| &breakdown.parts);
        json!({
            "stages": in_order(parts.map(|part| part.spent)),
            "of": self.all.len(),
            "each": each,
            "requests": requests.collect::<Value>(),
        })
    }
}

/// The seconds of waiting by the time at which it began, for each cause of any importance.
fn waiting(table: &Table, why: &WaitReport) -> Value {
    // It may begin long after the last arrival.
    let mut last = 0.0_f64;
    why.each(table, |at, _| last = last.max(at));
    let slot = slot_of(last, SLOTS as f64 - 1.0);
    let mut sums = vec![ByCause::default(); SLOTS];
    why.each(table, |at, waited| {
        if let Some(sum) = sums.get_mut((at.max(0.0) / slot) as usize) {
            sum.add_all(&waited());
        }
    });
    while sums.pop_if(|last| last.total() == 0).is_some() {}
    let causes = Cause::ALL.into_iter().filter_map(|cause| {
        let of = || sums.iter().map(|sums| seconds(sums.of(cause)));
        let is_visible = of().sum::<f64>() >= 0.0005 * seconds(why.causes.total());
        is_visible.then(
            || json!({ "cause": cause.heading(), "seconds": of().map(short).collect::<Value>() }),
        )
    });
    json!({ "slot": short(slot), "causes": causes.collect::<Value>() })
}

/// Stages without duplicates, in the order in which a request passes them.
fn in_order(sets: impl Iterator<Item = StageSet>) -> Value {
    let all: BTreeSet<(u32, StageSet)> = sets.map(|set| (set.order(), set)).collect();
    all.into_iter().map(|(_, set)| stage(set)).collect()
}

/// The stages of requests with their means and shares, the largest first.
pub fn stages(all: &TimeSpent) -> Value {
    let parts = all.parts.iter().map(|part| {
        let mut json = stage(part.spent);
        json["mean"] = json!(all.mean(part).map(short));
        json["share"] = json!(all.share(part).map(short));
        json["seconds"] = json!(short(part.nanos.max(0) as f64 / 1e9));
        json["of"] = json!(all.of_requests(part));
        json
    });
    parts.collect()
}

/// What pages say of a stage, or of several.
pub fn stage(set: StageSet) -> Value {
    json!({ "name": set.name(), "label": set.label(), "place": set.place(), "order": set.order(), "is_after": set.is_after_first_token() })
}

/// A number rounded to six digits or, if it has more, to a whole number: more than any chart shows. Null if it is not finite.
fn short(value: f64) -> Value {
    if value.abs() >= 1e5 {
        return json!(value.round());
    }
    json!(format!("{value:.5e}").parse::<f64>().ok())
}

/// The points of a line, rounded.
fn points(points: impl IntoIterator<Item = (f64, f64)>) -> Value {
    let point = |(x, y)| json!([short(x), short(y)]);
    points.into_iter().map(point).collect()
}

/// A round length of time, of which `whole` seconds have at most `max`.
fn slot_of(whole: f64, max: f64) -> f64 {
    const LENGTHS: [f64; 15] = [
        0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 300.0, 600.0, 3600.0,
    ];
    let fits = |length: &f64| whole / length <= max;
    LENGTHS.into_iter().find(fits).unwrap_or(whole / max)
}

/// At most about `max` points of a series: the minimum and the maximum of each chunk, so that no peak is lost.
fn thinned(points: &[(f64, f64)], max: usize) -> Vec<(f64, f64)> {
    if points.len() <= max {
        return points.to_vec();
    }
    let chunk = points.len().div_ceil((max / 2).max(1));
    let mut kept = Vec::new();
    for points in points.chunks(chunk) {
        let by_value = |a: &&(f64, f64), b: &&(f64, f64)| a.1.total_cmp(&b.1);
        let lowest = points.iter().min_by(by_value).copied();
        let highest = points.iter().max_by(by_value).copied();
        let mut pair: Vec<(f64, f64)> = lowest.into_iter().chain(highest).collect();
        pair.sort_by(|a, b| a.0.total_cmp(&b.0));
        pair.dedup();
        kept.extend(pair);
    }
    kept
}

#[cfg(test)]
mod tests;
