//! Quantiles of every latency of the successful requests.

use std::ops::Range;

use crate::clock::seconds;
use crate::request::column::{Scope, Unit};
use crate::request::columns::{COLUMNS, ColumnId};
use crate::request::outcome::Outcome;
use crate::stats::Summary;
use crate::stats::interval::{Intervals, intervals};
use crate::table::Table;

use super::counts::{Request, outcome_of};

/// A latency: a column, or a difference of two times of the generator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LatencyId {
    /// A column.
    Of(ColumnId),
    /// From the generator's send to the end.
    TotalFromSend,
    /// From the generator's schedule to the end.
    TotalFromSchedule,
    /// From the generator's send to the first token.
    TtftFromSend,
}

/// The figures of a latency, in seconds.
#[derive(Clone, Debug)]
pub struct Latency {
    /// Which latency.
    pub id: LatencyId,
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
    /// The latencies, in the order of [`LatencyId::all`].
    pub all: Vec<Latency>,
    /// The mean of all gaps between tokens, seconds.
    pub itl_mean: Option<f64>,
    /// The longest gap, seconds.
    pub itl_max: Option<f64>,
}

/// bench_serving's end-to-end latency: from the generator's send to the last byte read; in a proxy's rows, which have no send, from the
/// arrival.
const E2E: [LatencyId; 2] = [
    LatencyId::TotalFromSend,
    LatencyId::Of(ColumnId::total_latency),
];
/// bench_serving's TTFT: from the same start to the first token read.
const TTFT: [LatencyId; 2] = [
    LatencyId::TtftFromSend,
    LatencyId::Of(ColumnId::ttft_observed),
];

impl From<ColumnId> for LatencyId {
    fn from(column: ColumnId) -> LatencyId {
        LatencyId::Of(column)
    }
}

impl LatencyId {
    /// Returns those of columns, in the order of the columns, then the others.
    pub fn all() -> impl Iterator<Item = LatencyId> {
        let columns = COLUMNS.iter();
        let columns = columns.filter(|column| column.unit == Unit::Latency);
        let columns = columns.map(|column| LatencyId::Of(column.id));
        columns.chain([
            LatencyId::TotalFromSend,
            LatencyId::TotalFromSchedule,
            LatencyId::TtftFromSend,
        ])
    }

    /// Returns those that a goal is for, of which the first that a row has counts; none if its name is unknown.
    pub fn of_goal(name: &str) -> Vec<LatencyId> {
        match name {
            "e2el" => E2E.into(),
            "ttft" => TTFT.into(),
            name => LatencyId::all()
                .filter(|known| known.name() == name)
                .collect(),
        }
    }

    /// Its name, that of the column if it is one.
    pub fn name(self) -> &'static str {
        self.names()[0]
    }

    /// Its label for people.
    pub fn label(self) -> &'static str {
        self.names()[1]
    }

    fn names(self) -> [&'static str; 2] {
        match self {
            LatencyId::Of(column) => [column.column().name, column.column().label],
            LatencyId::TotalFromSend => ["total_latency_from_send", "total, from send"],
            LatencyId::TotalFromSchedule => ["total_latency_from_schedule", "total, from schedule"],
            LatencyId::TtftFromSend => ["ttft_from_send", "TTFT, from send"],
        }
    }

    /// The times that it lies between, if it is one of the generator's.
    pub(super) fn ends(self) -> Option<(ColumnId, ColumnId)> {
        use ColumnId::{finish_time, first_token_time, scheduled_time, sent_time};
        Some(match self {
            LatencyId::Of(ColumnId::ttft_from_schedule) => (scheduled_time, first_token_time),
            LatencyId::Of(_) => return None,
            LatencyId::TotalFromSend => (sent_time, finish_time),
            LatencyId::TotalFromSchedule => (scheduled_time, finish_time),
            LatencyId::TtftFromSend => (sent_time, first_token_time),
        })
    }

    /// Returns its value in a row, nanoseconds.
    pub(super) fn nanos(self, table: &Table, row: usize) -> Option<i64> {
        if let LatencyId::Of(column) = self {
            return table.integer(column, row);
        }
        let (from, to) = self.ends()?;
        table.between(from, to, row)
    }

    /// Returns the rows of a request whose values count: one row, if the value is the whole request's.
    pub(super) fn rows(self, request: &Request) -> Range<usize> {
        let is_of_request = match self {
            LatencyId::Of(column) => column.column().scope == Scope::Request,
            LatencyId::TtftFromSend => false,
            LatencyId::TotalFromSend | LatencyId::TotalFromSchedule => true,
        };
        match is_of_request {
            true => request.row()..request.row() + 1,
            false => request.rows(),
        }
    }
}

impl Latencies {
    /// Computes the latencies of requests in the order of arrival, of which these were successful.
    pub(super) fn of(table: &Table, all: &[Request], ok: &[Request]) -> Latencies {
        let of = |id: LatencyId| {
            let rows = ok.iter().flat_map(|request| id.rows(request));
            let values = rows.filter_map(|row| id.nanos(table, row));
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
            all: LatencyId::all().map(of).collect(),
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
    pub fn get(&self, latency: impl Into<LatencyId>) -> Option<&Summary> {
        self.latency(latency.into())?.summary.as_ref()
    }

    /// The figures of a latency, with its intervals.
    pub fn latency(&self, id: LatencyId) -> Option<&Latency> {
        self.all.iter().find(|latency| latency.id == id)
    }
}

/// Lower bounds of a latency of all requests, seconds; see [`Latency::at_least`].
fn lower_bounds(table: &Table, requests: &[Request], latency: LatencyId) -> Option<Vec<f64>> {
    let (from, to) = latency.ends()?;
    let is_first_token = to == ColumnId::first_token_time;
    let mut values = Vec::new();
    for request in requests {
        for row in latency.rows(request) {
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
