//! Quantiles of every latency of the successful requests. And goodput: requests per second that met a goal for each latency that has
//! one (DistServe's definition, as bench_serving's `--goodput`).

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use crate::clock::seconds;
use crate::request::{COLUMNS, Column, ColumnId, Outcome, Scope, Unit};
use crate::stats::confidence::{Intervals, intervals};
use crate::stats::{Summary, sorted};
use crate::table::Table;
use crate::units;

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
    /// Its distribution, as [`curve`] has it.
    pub curve: Vec<(f64, f64)>,
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

/// The most points of a curve: enough for 400 pixels.
const POINTS: usize = 400;
/// How many of them are the largest values: the slowest requests.
const TAIL: usize = 80;

/// bench_serving's end-to-end latency: from the generator's send to the last byte read; in a proxy's rows, which have no send, from the
/// arrival.
const E2E: [ColumnId; 2] = [ColumnId::total_latency_from_send, ColumnId::total_latency];
/// bench_serving's TTFT: from the same start to the first token read.
const TTFT: [ColumnId; 2] = [ColumnId::ttft_from_send, ColumnId::ttft_observed];

/// Returns the latencies, in the order of the columns.
pub fn latencies() -> impl Iterator<Item = &'static Column> {
    COLUMNS.iter().filter(|column| column.unit == Unit::Latency)
}

/// Returns the latencies that a goal is for; none if its name is unknown.
fn of_goal(name: &str) -> Vec<ColumnId> {
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
fn nanos(table: &Table, latency: ColumnId, row: usize) -> Option<i64> {
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
            let sorted = sorted(values.iter().copied());
            Latency {
                id,
                summary: Summary::of_sorted(&sorted),
                at_least: lower_bounds(table, all, id).and_then(|of| Summary::of_sorted(&of)),
                curve: curve(&sorted),
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

/// The cumulative distribution of an ascending sample: values, and the share that is no larger. Of a large sample it has every so
/// many-th value, and the largest ones.
fn curve(sorted: &[f64]) -> Vec<(f64, f64)> {
    let count = sorted.len();
    let tail = count.saturating_sub(TAIL);
    let step = count.div_ceil(POINTS - TAIL).max(1);
    let kept = (0..tail).step_by(step).chain(tail..count);
    let point = |at: usize| (sorted[at], (at + 1) as f64 / count as f64);
    kept.map(point).collect()
}

/// Lower bounds of a latency of all requests, seconds, ascending; see [`Latency::at_least`].
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
    Some(sorted(values))
}

/// The number of tokens after those of the first event.
fn later_tokens(table: &Table, row: usize) -> Option<i64> {
    let first = table.integer(ColumnId::first_event_tokens, row);
    let tokens = table.integer(ColumnId::actual_output_tokens, row)?;
    Some(tokens.saturating_sub(first.unwrap_or(1)).max(0))
}

/// A goal of one request, written `name:milliseconds` or with a unit: `ttft:500`, `ttft:0.5s`. Names are those of vLLM's and SGLang's
/// clients (`ttft` and `e2el` from the send as the client reads them, `tpot`), or a latency of the summary.
#[derive(Clone, Debug, PartialEq)]
pub struct Goal {
    /// The name of the latency.
    pub name: String,
    /// Its limit, milliseconds.
    pub limit_ms: f64,
    /// The latencies that it is for, of which the first that a row has counts.
    latencies: Vec<ColumnId>,
}

/// The requests that met all goals.
#[derive(Clone, Debug)]
pub struct Goodput {
    /// The number of requests that met all goals.
    pub good: u64,
    /// The number of those that ended within the window and met all goals; `None` if of none it is known whether it did.
    pub completed: Option<u64>,
    /// The number of successful requests that lack a latency that a goal names. They are not good.
    pub unknown: u64,
}

impl fmt::Display for Goal {
    /// The form that [`Goal::from_str`] parses.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.name, self.limit_ms)
    }
}

impl FromStr for Goal {
    type Err = String;

    fn from_str(text: &str) -> Result<Goal, String> {
        let (name, limit) = text.split_once(':').ok_or_else(|| {
            format!("`{text}` is no goal: write NAME:MILLISECONDS, such as ttft:500")
        })?;
        let name = name.trim();
        let latencies = of_goal(name);
        if latencies.is_empty() {
            let known: Vec<&str> = self::latencies().map(|known| known.name).collect();
            let known = known.join(", ");
            return Err(format!(
                "goal `{name}` names no latency: use ttft, tpot, e2el or one of {known}"
            ));
        }
        let limit = limit.trim();
        // A plain number is in milliseconds.
        let seconds = || units::seconds(limit).map(|seconds| seconds * 1e3);
        let limit = limit.parse().ok().or_else(seconds);
        let limit_ms = limit.filter(|ms: &f64| ms.is_finite() && *ms > 0.0);
        let limit_ms = limit_ms.ok_or_else(|| {
            format!("the limit of goal `{text}` must be a number of milliseconds above 0, such as ttft:500 or ttft:0.5s")
        })?;
        Ok(Goal {
            name: name.to_owned(),
            limit_ms,
            latencies,
        })
    }
}

impl Goal {
    /// Checks that no latency of `--goodput` has two limits.
    ///
    /// # Errors
    /// One has.
    pub fn each_once(goals: &[Goal]) -> Result<(), String> {
        let mut names: Vec<&str> = goals.iter().map(|goal| &*goal.name).collect();
        names.sort_unstable();
        match names.windows(2).find(|two| two[0] == two[1]) {
            Some([name, _]) => Err(format!(
                "--goodput: {name} must have one limit, not several"
            )),
            _ => Ok(()),
        }
    }
}

impl Goodput {
    /// Counts the successful requests of the window, and those that `ended` in it, that met all goals; `None` without goals.
    pub(super) fn of(
        table: &Table,
        ok: &[Request],
        ended: impl Iterator<Item = Request>,
        goals: &[Goal],
    ) -> Option<Goodput> {
        let judge = |of| is_good(table, of, goals);
        let ok: Vec<Option<bool>> = ok.iter().copied().map(judge).collect();
        let ended: Vec<Option<bool>> = ended.map(judge).collect();
        let count =
            |of: &[Option<bool>], value| of.iter().filter(|of| **of == value).count() as u64;
        let is_known = ended.is_empty() || ended.iter().any(Option::is_some);
        (!goals.is_empty()).then(|| Goodput {
            good: count(&ok, Some(true)),
            completed: is_known.then(|| count(&ended, Some(true))),
            unknown: count(&ok, None),
        })
    }
}

/// Whether every sequence of a request met all goals; `None` if a latency is missing.
fn is_good(table: &Table, request: Request, goals: &[Goal]) -> Option<bool> {
    let mut all = Some(true);
    for row in request.rows() {
        for goal in goals {
            let mut latencies = goal.latencies.iter();
            match latencies.find_map(|of| nanos(table, *of, row)) {
                Some(nanos) if nanos as f64 > goal.limit_ms * 1e6 => return Some(false),
                Some(_) => {}
                // A single token has no time between tokens, and meets any goal for it.
                None if goal.name == "tpot" && later_tokens(table, row) == Some(0) => {}
                None => all = None,
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_keeps_its_ends_and_is_bounded() {
        assert_eq!(curve(&[1.0, 3.0]), [(1.0, 0.5), (3.0, 1.0)]);
        let large: Vec<f64> = (1..=100_000).map(f64::from).collect();
        let points = curve(&large);
        assert!(points.len() > POINTS / 2 && points.len() <= POINTS);
        assert_eq!(points.last(), Some(&(100_000.0, 1.0)));
        let (middle, _) = points.iter().find(|(_, share)| *share >= 0.5).unwrap();
        assert!((middle - 50_000.0).abs() < 400.0, "{middle}");
        assert_eq!(curve(&[]), []);
    }
}
