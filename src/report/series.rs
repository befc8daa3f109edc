//! How much went on over time: counted from the rows of requests, and how far servers' own metrics are from that.

use std::collections::BTreeMap;

use serde::Serialize;

use super::files::{SeriesRow, ServerFile};
use super::table::Table;
use crate::clock::NANOS;
use crate::stats::{Concurrency, Interval, Window};

/// The source of rows counted from requests.
pub const RECORDS: &str = "records";
/// The source of rows that a server's `/metrics` told.
pub const METRICS: &str = "metrics";
/// The source of rows of a GPU.
pub const GPU: &str = "gpu";
/// In a batch: prefill or decode.
pub const RUNNING: &str = "running";
/// In the server's waiting queue.
pub const QUEUED: &str = "queued";
/// Under way, and nobody knows whether queued or running.
const UNKNOWN: &str = "unknown";

/// What is counted: the name, the columns of its begin and end, and whether a request counts once however many sequences
/// it has.
const COUNTED: [(&str, &str, &str, bool); 4] = [
    ("waiting", "arrival_time", "router_send_time", true),
    (QUEUED, "queue_time_start", "queue_time_end", false),
    (RUNNING, "queue_time_end", "finish_time", false),
    ("concurrency", "arrival_time", "end_time", true),
];

/// What was counted.
#[derive(Clone, Debug, Default)]
pub struct Counted {
    /// A row for each second, metric and server, and for all servers together, in order of time. Its time is the second's
    /// begin. A metric's name alone is its mean over the second, with `_max` the most at any moment of it.
    pub rows: Vec<SeriesRow>,
    /// What could not be counted.
    pub notes: Vec<String>,
}

/// How far a server's own metrics are from what was counted, over the seconds that both tell of.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Gap {
    /// The server.
    pub server: String,
    /// `running` or `queued`.
    pub metric: String,
    /// Scrapes compared.
    pub scrapes: usize,
    /// Mean of what was counted, in the seconds of the scrapes.
    pub of_records: f64,
    /// Mean of what the server told.
    pub of_metrics: f64,
    /// Mean of how far one scrape is from the mean of its second.
    pub apart: f64,
}

/// Counts from rows how many requests waited, were queued, ran, and were under way at all, second by second.
pub fn of_records(table: &Table, servers: &[ServerFile]) -> Counted {
    let mut counted = Counted::default();
    let ends = ["finish_time", "end_time"].map(|column| table.numbers(column));
    let last = ends
        .into_iter()
        .flatten()
        .copied()
        .filter(|t| t.is_finite());
    let Some(window) = seconds(last.fold(0.0, f64::max)) else {
        return counted;
    };
    for (metric, start, end, is_of_request) in COUNTED {
        let rows = (0..table.len()).filter(|row| !is_of_request || table.is_first(*row));
        let (mut known, mut all) = (0, 0);
        let mut by_server: BTreeMap<String, Vec<Interval>> = BTreeMap::new();
        for row in rows {
            all += 1;
            let Some(interval) = interval(table, row, start, end) else {
                continue;
            };
            known += 1;
            let server = server_of(table.text("host", row), servers);
            by_server.entry(server).or_default().push(interval);
        }
        if known < all {
            counted.notes.push(format!(
                "{metric}: {} of {all} have no {start} or no {end} and are not counted",
                all - known
            ));
        }
        if known == 0 {
            continue;
        }
        let together = by_server.values().flatten().copied().collect();
        // Those of no known server are in the whole alone.
        by_server.insert(String::new(), together);
        for (server, intervals) in by_server {
            counted.add(metric, &server, &Concurrency::of(intervals, &window));
        }
    }
    let unknown = unknown(table);
    if !unknown.is_empty() {
        counted.add(UNKNOWN, "", &Concurrency::of(unknown, &window));
    }
    counted.rows.sort_by(|a, b| a.time.total_cmp(&b.time));
    counted
}

/// Requests under way of which it is not known when they were queued, or running.
fn unknown(table: &Table) -> Vec<Interval> {
    let lacks = |row: &usize| {
        let mut states = COUNTED
            .iter()
            .filter(|(metric, ..)| [QUEUED, RUNNING].contains(metric));
        states.any(|(_, start, end, _)| interval(table, *row, start, end).is_none())
    };
    let firsts = (0..table.len()).filter(|row| table.is_first(*row));
    let under_way = |row| interval(table, row, "arrival_time", "end_time");
    firsts.filter(lacks).filter_map(under_way).collect()
}

/// Whole seconds from the run's begin to its last moment.
fn seconds(last: f64) -> Option<Window> {
    let end = nanos(last)?;
    (end > 0).then_some(Window {
        whole: Interval { start: 0, end },
        bucket: NANOS,
    })
}

fn nanos(seconds: f64) -> Option<i64> {
    seconds
        .is_finite()
        .then(|| (seconds * NANOS as f64).round() as i64)
}

fn interval(table: &Table, row: usize, start: &str, end: &str) -> Option<Interval> {
    Some(Interval {
        start: nanos(table.number(start, row)?)?,
        end: nanos(table.number(end, row)?)?,
    })
}

/// The name of the server that a row's host is, the host itself where it has none; empty: nobody knows.
pub fn server_of(host: &str, servers: &[ServerFile]) -> String {
    let known = servers.iter().find(|server| server.host == host);
    known.map_or(host, |server| &server.name).to_owned()
}

impl Counted {
    fn add(&mut self, metric: &str, server: &str, counted: &Concurrency) {
        let buckets = counted.series.iter().zip(&counted.peaks);
        for (second, (mean, peak)) in buckets.enumerate() {
            let row = |metric: String, value: f64| SeriesRow {
                time: second as f64,
                source: RECORDS.to_owned(),
                server: server.to_owned(),
                metric,
                value,
            };
            self.rows.push(row(metric.to_owned(), *mean));
            self.rows.push(row(format!("{metric}_max"), *peak as f64));
        }
    }
}

/// How far what each server told is from what was counted, for `running` and `queued`. Empty where one is missing.
pub fn gaps(rows: &[SeriesRow]) -> Vec<Gap> {
    let mut counted: BTreeMap<(&str, &str, i64), f64> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.source == RECORDS) {
        counted.insert(
            (&row.server, &row.metric, row.time.floor() as i64),
            row.value,
        );
    }
    let mut gaps: BTreeMap<(&str, &str), Gap> = BTreeMap::new();
    for row in rows
        .iter()
        .filter(|row| row.source == METRICS && row.value.is_finite())
    {
        let key = (row.server.as_str(), row.metric.as_str());
        let Some(of_records) = counted.get(&(key.0, key.1, row.time.floor() as i64)) else {
            continue;
        };
        let gap = gaps.entry(key).or_insert_with(|| Gap {
            server: row.server.clone(),
            metric: row.metric.clone(),
            scrapes: 0,
            of_records: 0.0,
            of_metrics: 0.0,
            apart: 0.0,
        });
        gap.scrapes += 1;
        gap.of_records += of_records;
        gap.of_metrics += row.value;
        gap.apart += (row.value - of_records).abs();
    }
    let mean = |mut gap: Gap| {
        let scrapes = gap.scrapes as f64;
        gap.of_records /= scrapes;
        gap.of_metrics /= scrapes;
        gap.apart /= scrapes;
        gap
    };
    gaps.into_values().map(mean).collect()
}

/// The gaps as lines, and why there are any; empty where there is nothing to compare.
pub fn gaps_text(gaps: &[Gap]) -> String {
    if gaps.is_empty() {
        return String::new();
    }
    let mut text = String::from("Counted from requests, and told by servers' /metrics (means):\n");
    for gap in gaps {
        text += &format!(
            "  {:<12} {:<8} {:>7.1} counted {:>7.1} told, one scrape apart by {:.1} ({} scrapes)\n",
            gap.server, gap.metric, gap.of_records, gap.of_metrics, gap.apart, gap.scrapes
        );
    }
    text += "  A scrape is a moment and a count the mean of its second; a server renews its gauges every few steps, and\n  \
             tells of everybody's requests, these count those of the run; a request runs here until its last byte is read.\n";
    text
}

/// The same of all servers together, in a line.
pub fn gaps_line(gaps: &[Gap]) -> Option<String> {
    let words = [RUNNING, QUEUED].into_iter().filter_map(|metric| {
        let gaps = gaps.iter().filter(|gap| gap.metric == metric);
        let most = gaps.clone().map(|gap| gap.apart).reduce(f64::max)?;
        let sum = |of: fn(&Gap) -> f64| gaps.clone().map(of).sum::<f64>();
        let (counted, told) = (sum(|gap| gap.of_records), sum(|gap| gap.of_metrics));
        Some(format!(
            "{metric} {counted:.1} counted {told:.1} told, one scrape of a server apart by {most:.1} at most"
        ))
    });
    let words: Vec<String> = words.collect();
    (!words.is_empty()).then(|| words.join("; "))
}

#[cfg(test)]
mod tests;
