//! The series of the page: how many requests were in each state over time, and the metrics of servers and GPUs.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::downsample::{shorts, thinned};
use crate::report::files::RECORDS;
use crate::report::load::OverTime;
use crate::report::runs::RunReport;

/// The most points of all series of a run together, unless each has the minimum.
const MAX_POINTS: usize = 12_000;
const MIN_OF_SERIES: usize = 60;

/// A series: its source, metric, and server (empty: all together).
type Key<'a> = (&'a str, &'a str, &'a str);

/// All series of a run.
pub fn series(report: &RunReport<'_>) -> Value {
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
        let Some(counted) = &group.flow.over_time else {
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
    let all = series
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
    all.collect()
}

#[cfg(test)]
mod tests;
