//! Quantiles of every latency of the requests that went well.

use crate::clock::NANOS;
use crate::request::column::{Scope, Unit};
use crate::request::columns::{COLUMNS, ColumnId};
use crate::stats::Summary;
use crate::stats::interval::{Intervals, intervals};

use super::cells::{Cells, Request};

/// A latency and what is said of it, in seconds; `None` when no request had it.
#[derive(Clone, Debug)]
pub struct Latency {
    /// Its name, a column's.
    pub name: &'static str,
    /// What is said of it.
    pub summary: Option<Summary>,
    /// What its quantiles lie between, with 95 %; values depend on each other, and are taken to.
    pub intervals: Intervals,
}

/// All latencies of some requests.
#[derive(Clone, Debug)]
pub struct Latencies {
    /// Every latency column, in the order of the table, then [`FROM_THE_CLIENT`].
    pub all: Vec<Latency>,
    /// Mean of all gaps between tokens, each request weighted by how many it had; seconds.
    pub itl_mean: Option<f64>,
    /// Longest of all gaps; seconds.
    pub itl_max: Option<f64>,
}

/// Latencies that are no columns, because their ends are: from the generator's send, from its schedule; with what people call
/// them.
pub const FROM_THE_CLIENT: [(&str, &str, Scope, ColumnId, ColumnId); 3] = [
    (
        "total_latency_from_send",
        "total, from send",
        Scope::Request,
        ColumnId::sent_time,
        ColumnId::finish_time,
    ),
    (
        "total_latency_from_schedule",
        "total, from schedule",
        Scope::Request,
        ColumnId::scheduled_time,
        ColumnId::finish_time,
    ),
    (
        "ttft_from_send",
        "TTFT, from send",
        Scope::Sequence,
        ColumnId::sent_time,
        ColumnId::first_token_time,
    ),
];

/// What people call a latency.
pub fn label(name: &str) -> &str {
    let columns = COLUMNS.iter().map(|column| (column.name, column.label));
    let others = FROM_THE_CLIENT.map(|(name, label, ..)| (name, label));
    let known = columns.chain(others).find(|(known, _)| *known == name);
    known.map_or(name, |(_, label)| label)
}

impl Latencies {
    /// Of requests that went well, in order of arrival.
    pub(super) fn of(cells: Cells<'_>, ok: &[Request]) -> Latencies {
        let rows = || ok.iter().flat_map(Request::rows);
        let of = |name: &'static str, scope, get: &dyn Fn(usize) -> Option<i64>| {
            let (summary, intervals) = described(values(ok, scope, get));
            Latency {
                name,
                summary,
                intervals,
            }
        };
        let columns = COLUMNS.iter().enumerate();
        let columns = columns.filter(|(_, column)| column.unit == Unit::Latency);
        let columns = columns
            .map(|(place, column)| of(column.name, column.scope, &|row| cells.whole(place, row)));
        let periods = FROM_THE_CLIENT.into_iter();
        let periods = periods
            .map(|(name, _, scope, from, to)| of(name, scope, &|row| cells.between(from, to, row)));
        let all: Vec<Latency> = columns.chain(periods).collect();
        let (mut itl_sum, mut gaps) = (0.0, 0.0);
        for row in rows() {
            if let (Some(mean), Some(count @ 1..)) = (
                cells.whole(ColumnId::itl_mean, row),
                later_tokens(cells, row),
            ) {
                itl_sum += seconds(mean) * count as f64;
                gaps += count as f64;
            }
        }
        let itl_max = rows()
            .filter_map(|row| cells.whole(ColumnId::itl_max, row))
            .max();
        Latencies {
            itl_mean: (gaps > 0.0).then(|| itl_sum / gaps),
            itl_max: itl_max.map(seconds),
            all,
        }
    }

    /// What bench_serving calls end-to-end latency: from the generator's send to the last byte read; in a proxy's own rows from
    /// arrival.
    pub fn e2e(&self) -> Option<&Summary> {
        let sent = self.get("total_latency_from_send");
        sent.or_else(|| self.get("total_latency"))
    }

    /// What bench_serving calls TTFT: likewise, to the first token read.
    pub fn ttft(&self) -> Option<&Summary> {
        let sent = self.get("ttft_from_send");
        sent.or_else(|| self.get("ttft_observed"))
    }

    /// The latency of this name.
    pub fn get(&self, name: &str) -> Option<&Summary> {
        self.latency(name)?.summary.as_ref()
    }

    /// The same, with its intervals.
    pub fn latency(&self, name: &str) -> Option<&Latency> {
        self.all.iter().find(|latency| latency.name == name)
    }
}

/// What is said of values in the order of arrival.
fn described(values: Vec<f64>) -> (Option<Summary>, Intervals) {
    let mut sorted = values.clone();
    sorted.sort_unstable_by(f64::total_cmp);
    (Summary::of_sorted(&sorted), intervals(&values, &sorted))
}

/// From the generator's send to the last byte read; in a proxy's own rows from arrival.
pub(super) fn end_to_end(cells: Cells<'_>, row: usize) -> Option<i64> {
    let sent = cells.between(ColumnId::sent_time, ColumnId::finish_time, row);
    sent.or_else(|| cells.whole(ColumnId::total_latency, row))
}

/// From the generator's send to the first token read; in a proxy's own rows from arrival.
pub(super) fn first_token(cells: Cells<'_>, row: usize) -> Option<i64> {
    let sent = cells.between(ColumnId::sent_time, ColumnId::first_token_time, row);
    sent.or_else(|| cells.whole(ColumnId::ttft_observed, row))
}

/// Tokens after those that the first event brought.
pub(super) fn later_tokens(cells: Cells<'_>, row: usize) -> Option<i64> {
    let first = cells.whole(ColumnId::first_event_tokens, row).unwrap_or(1);
    Some(
        cells
            .whole(ColumnId::actual_output_tokens, row)?
            .saturating_sub(first)
            .max(0),
    )
}

/// Of one latency, in seconds. A value that is the whole request's counts once, not once a sequence.
fn values(ok: &[Request], scope: Scope, get: &dyn Fn(usize) -> Option<i64>) -> Vec<f64> {
    let rows = ok.iter().flat_map(|request| match scope {
        Scope::Request => request.row()..request.row() + 1,
        Scope::Sequence => request.rows(),
    });
    rows.filter_map(get).map(seconds).collect()
}

pub fn seconds(nanos: i64) -> f64 {
    nanos as f64 / NANOS as f64
}
