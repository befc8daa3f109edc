//! How much went on over time: counted from the rows of requests.

use std::collections::BTreeMap;

use super::files::{SeriesRow, ServerFile};
use crate::clock::NANOS;
use crate::stats::{Concurrency, Interval, Window};
use crate::table::Table;

/// The source of rows counted from requests.
pub const RECORDS: &str = "records";
/// The source of rows that a server's `/metrics` told.
pub const METRICS: &str = "metrics";
/// Tokens that the KV cache of a server holds, by the same.
pub const POOL: &str = "max_total_num_tokens";
/// The source of rows of a GPU.
pub const GPU: &str = "gpu";
/// In a batch: prefill or decode.
pub const RUNNING: &str = "running";
/// In the server queue.
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

/// Counts from rows how many requests waited, were queued, ran, and were under way at all, second by second.
pub fn of_records(table: &Table, servers: &[ServerFile]) -> Counted {
    let mut counted = Counted::default();
    let ends = ["finish_time", "end_time"].into_iter();
    let ends =
        ends.flat_map(|column| (0..table.len()).filter_map(move |row| table.whole(column, row)));
    let end = ends.fold(0, i64::max);
    if end == 0 {
        return counted;
    }
    // Whole seconds from the run's begin to its last moment.
    let window = Window {
        whole: Interval { start: 0, end },
        bucket: NANOS,
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

fn interval(table: &Table, row: usize, start: &str, end: &str) -> Option<Interval> {
    // Of a pair it is decode's batch.
    let of_pair = |column| match column {
        "queue_time_end" => table.whole("decode_start_time", row),
        _ => None,
    };
    let at = |column| table.whole(column, row).or_else(|| of_pair(column));
    Some(Interval {
        start: at(start)?,
        end: at(end)?,
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

#[cfg(test)]
mod tests;
