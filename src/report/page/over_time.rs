//! How many requests were where over time: as the figures have it, beside what servers and GPUs told.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::curves::{shorts, thinned};
use crate::report::load::OverTime;
use crate::report::runs::RunReport;
use crate::report::series::RECORDS;

/// Points of all series of a run together, and of one at least.
const POINTS: usize = 12_000;
const OF_A_SERIES: usize = 60;

/// A series: who says so, what, and of which server (empty: of all together).
type Of<'a> = (&'a str, &'a str, &'a str);

/// All series of a run.
pub fn series(report: &RunReport<'_>) -> Value {
    let mut series: BTreeMap<Of<'_>, Vec<(f64, f64)>> = BTreeMap::new();
    // Older runs wrote what the figures have.
    let told = report.run.series.iter().filter(|row| row.source != RECORDS);
    for row in told {
        let of = (&*row.source, &*row.metric, &*row.server);
        series.entry(of).or_default().push((row.time, row.value));
    }
    let hosts = report.summary.hosts.iter();
    let hosts = hosts.map(|(host, group)| (report.run.server(host), group));
    for (server, group) in hosts.chain([("", &report.summary.all)]) {
        let Some(counted) = &group.flow.over_time else {
            continue;
        };
        let known = OverTime::NAMES.into_iter().zip(counted.series());
        for (metric, counts) in known.chain([("waiting", counted.in_router.as_ref())]) {
            let Some(counts) = counts.filter(|counts| counts.peak > 0) else {
                continue;
            };
            // At the middle of each bucket.
            let at = |n: usize| counted.from_s + (n as f64 + 0.5) * counted.bucket_s;
            let means = counts.series.iter().enumerate();
            let points = means.map(|(n, mean)| (at(n), *mean)).collect();
            series.insert((RECORDS, metric, server), points);
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

#[cfg(test)]
mod tests;
