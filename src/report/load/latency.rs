//! Quantiles of every latency of the successful requests.

use std::ops::Range;

use crate::clock::seconds;
use crate::request::{COLUMNS, Column, ColumnId, Outcome, Scope, Unit};
use crate::stats::Summary;
use crate::stats::confidence::{Intervals, intervals};
use crate::table::Table;

use super::counts::{Request, outcome_of};

/// The figures of a latency, in seconds.
#[derive(Clone, Debug)]
pub struct Latency {
    /// Its column.
    pub id: ColumnId,
    /// Its figures; `None` if no request had it.
    pub summary: Option<Summary>,
    /// Lower bounds over all requests, if it is one of the generator's. Requests that were given up count with their time until then,
    /// other failed ones as infinite. `None` if a successful request lacks the latency.
    pub at_least: Option<Summary>,
    /// 95 % intervals of its quantiles, which allow for values that depend on each other.
    pub intervals: Intervals,
}

/// All latencies of some requests.
#[derive(Clone, Debug)]
pub struct Latencies {
    /// The latencies, in the order of their columns.
    pub all: Vec<Latency>,
    /// The mean of all gaps between tokens, seconds.
    pub itl_mean: Option<f64>,
    /// The longest gap, seconds.
    pub itl_max: Option<f64>,
}

/// bench_serving's end-to-end latency: from the generator's send to the last byte read; in a proxy's rows, which have no send, from the
/// arrival.
const E2E: [ColumnId; 2] = [ColumnId::total_latency_from_send, ColumnId::total_latency];
/// bench_serving's TTFT: from the same start to the first token read.
const TTFT: [ColumnId; 2] = [ColumnId::ttft_from_send, ColumnId::ttft_observed];

/// Returns the latencies, in the order of the columns.
pub fn latencies() -> impl Iterator<Item = &'static Column> {
    COLUMNS.iter().filter(|column| column.unit == Unit::Latency)
}

/// Returns the latencies that a goal is for, of which the first that a row has counts; none if its name is unknown.
pub(super) fn of_goal(name: &str) -> Vec<ColumnId> {
    match name {
        "e2el" => E2E.into(),
        "ttft" => TTFT.into(),
        name => {
            let named = latencies().filter(|known| known.name == name);
            named.map(|known| known.id).collect()
        }
    }
}

/// The times that a latency lies between, if it is one of the generator's.
pub(super) fn ends(latency: ColumnId) -> Option<(ColumnId, ColumnId)> {
    use ColumnId::{finish_time, first_token_time, scheduled_time, sent_time};
    Some(match latency {
        ColumnId::ttft_from_schedule => (scheduled_time, first_token_time),
        ColumnId::ttft_from_send => (sent_time, first_token_time),
        ColumnId::total_latency_from_schedule => (scheduled_time, finish_time),
        ColumnId::total_latency_from_send => (sent_time, finish_time),
        _ => return None,
    })
}

/// Returns the value of a latency in a row, nanoseconds.
pub(super) fn nanos(table: &Table, latency: ColumnId, row: usize) -> Option<i64> {
    match ends(latency) {
        // Rows of older versions lack the other columns, and have the times.
        Some((from, to)) if latency != ColumnId::ttft_from_schedule => table.between(from, to, row),
        _ => table.integer(latency, row),
    }
}

/// Returns the rows of a request whose values count: one row, if the value is the whole request's.
fn rows(latency: ColumnId, request: &Request) -> Range<usize> {
    match latency.column().scope {
        Scope::Request => request.row()..request.row() + 1,
        Scope::Sequence => request.rows(),
    }
}

impl Latencies {
    /// Computes the latencies of requests in the order of arrival, of which these were successful.
    pub(super) fn of(table: &Table, all: &[Request], ok: &[Request]) -> Latencies {
        let of = |id| {
            let rows = ok.iter().flat_map(|request| rows(id, request));
            let values = rows.filter_map(|row| nanos(table, id, row));
            let values: Vec<f64> = values.map(seconds).collect();
            let mut sorted = values.clone();
            sorted.sort_unstable_by(f64::total_cmp);
            Latency {
                id,
                summary: Summary::of_sorted(&sorted),
                at_least: lower_bounds(table, all, id).and_then(Summary::with_infinite),
                intervals: intervals(&values, &sorted),
            }
        };
        let rows = || ok.iter().flat_map(Request::rows);
        let gaps = |row| {
            let count = later_tokens(table, row).filter(|count| *count > 0)? as f64;
            let mean = table.integer(ColumnId::itl_mean, row)?;
            Some((seconds(mean) * count, count))
        };
        let add = |sum: (f64, f64), of: (f64, f64)| (sum.0 + of.0, sum.1 + of.1);
        let gaps = rows().filter_map(gaps).reduce(add);
        let itl_max = rows()
            .filter_map(|row| table.integer(ColumnId::itl_max, row))
            .max();
        Latencies {
            itl_mean: gaps.map(|(sum, count)| sum / count),
            itl_max: itl_max.map(seconds),
            all: latencies().map(|column| of(column.id)).collect(),
        }
    }

    /// bench_serving's end-to-end latency.
    pub fn e2e(&self) -> Option<&Summary> {
        E2E.into_iter().find_map(|id| self.get(id))
    }

    /// bench_serving's TTFT.
    pub fn ttft(&self) -> Option<&Summary> {
        TTFT.into_iter().find_map(|id| self.get(id))
    }

    /// The figures of a latency.
    pub fn get(&self, latency: ColumnId) -> Option<&Summary> {
        self.latency(latency)?.summary.as_ref()
    }

    /// The figures of a latency, with its intervals.
    pub fn latency(&self, id: ColumnId) -> Option<&Latency> {
        self.all.iter().find(|latency| latency.id == id)
    }
}

/// Lower bounds of a latency of all requests, seconds; see [`Latency::at_least`].
fn lower_bounds(table: &Table, requests: &[Request], latency: ColumnId) -> Option<Vec<f64>> {
    let (from, to) = ends(latency)?;
    let is_first_token = to == ColumnId::first_token_time;
    let mut values = Vec::new();
    for request in requests {
        for row in rows(latency, request) {
            let is_over = request.is_ok || is_first_token;
            match table.between(from, to, row).filter(|_| is_over) {
                Some(nanos) => values.push(seconds(nanos)),
                None if request.is_ok => return None,
                None => {
                    let seen = table.between(from, ColumnId::end_time, row).map(seconds);
                    values.extend(seen.map(|seen| match outcome_of(table, row) {
                        Outcome::Timeout | Outcome::ClientAbort => seen,
                        _ => f64::INFINITY,
                    }));
                }
            }
        }
    }
    Some(values)
}

/// The number of tokens after those of the first event.
pub(super) fn later_tokens(table: &Table, row: usize) -> Option<i64> {
    let first = table
        .integer(ColumnId::first_event_tokens, row)
        .unwrap_or(1);
    let tokens = table.integer(ColumnId::actual_output_tokens, row)?;
    Some(tokens.saturating_sub(first).max(0))
}
