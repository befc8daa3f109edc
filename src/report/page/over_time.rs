//! How many requests were where over time: counted from the rows, beside what servers and GPUs told.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::curves::{shorts, thinned};
use crate::clock::NANOS;
use crate::report::load::Presence;
use crate::report::runs::RunReport;
use crate::report::series::{QUEUED, RECORDS, RUNNING};
use crate::request::columns::ColumnId;
use crate::stats::{Concurrency, Interval, Window};

/// Points of all series of a run together, and of one at least.
const POINTS: usize = 12_000;
const OF_A_SERIES: usize = 60;
/// Stretches of a long run in which requests are counted, at most; none is shorter than a second then.
const SLOTS: i64 = 600;

/// A series: who says so, what, and of which server (empty: of all together).
type Of<'a> = (&'a str, &'a str, &'a str);

/// All series of a run.
pub fn series(report: &RunReport<'_>) -> Value {
    let mut series: BTreeMap<Of<'_>, Vec<(f64, f64)>> = BTreeMap::new();
    // Older runs wrote what is counted here.
    let told = report.run.series.iter().filter(|row| row.source != RECORDS);
    for row in told {
        let of = (&*row.source, &*row.metric, &*row.server);
        series.entry(of).or_default().push((row.time, row.value));
    }
    series.extend(counted(report));
    let each = (POINTS / series.len().max(1)).max(OF_A_SERIES);
    let series = series.into_iter();
    let told = series.map(|((source, metric, server), points)| {
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

/// How many requests waited for the router, were queued, ran, and were under way at all: means of each stretch of the run,
/// at its middle; of all servers together, and of those whose figures are told apart.
fn counted<'a>(report: &'a RunReport<'_>) -> BTreeMap<Of<'a>, Vec<(f64, f64)>> {
    let table = &report.run.table;
    let mut all: BTreeMap<Of<'a>, Vec<Interval>> = BTreeMap::new();
    let mut add = |server, found: Presence| {
        let places = [
            ("waiting", found.in_router),
            (QUEUED, found.queued),
            (RUNNING, found.running),
            ("concurrency", found.in_flight),
            ("unknown", found.unknown),
        ];
        let known = places.into_iter().filter(|(_, of)| !of.is_empty());
        all.extend(known.map(|(metric, of)| ((RECORDS, metric, server), of)));
    };
    add("", Presence::of_table(table, |_| true));
    for host in report.summary.hosts.keys() {
        let is_there = |row| table.text(ColumnId::host, row) == host;
        add(report.server(host), Presence::of_table(table, is_there));
    }
    let ends = all.values().flatten().map(|interval| interval.end);
    let end = ends.max().unwrap_or(0);
    let Some(mut window) = Window::new(Interval { start: 0, end }) else {
        return BTreeMap::new();
    };
    window.bucket = window.bucket.min(NANOS.max(end / SLOTS));
    let middle = |at: usize| (at as f64 + 0.5) * window.bucket as f64 / NANOS as f64;
    let points = all.into_iter().map(|(of, intervals)| {
        let means = Concurrency::of(intervals, &window).series.into_iter();
        (
            of,
            means
                .enumerate()
                .map(|(at, mean)| (middle(at), mean))
                .collect(),
        )
    });
    points.collect()
}

#[cfg(test)]
mod tests;
