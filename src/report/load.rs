//! The summary of a run (level 2 of design.md, section 1).
//!
//! A request that failed is counted and told apart, and enters no latency and no token figure. Rows are per sequence; what
//! speaks of the whole request counts once. What nobody saw is null, never 0.

mod clocks;
mod counts;
mod failures;
mod flow;
mod goodput;
mod json;
mod latency;
mod spent;
mod text;
mod way_back;

use std::collections::BTreeMap;

use serde_json::Value;

use crate::clock::Stamp;
use crate::request::record::Record;

pub use goodput::{Goal, GoalError};

use counts::{Counts, Tokens};
use failures::Failures;
use flow::Flow;
use goodput::Goodput;
use latency::Latencies;
use spent::TimeSpent;

use super::machine::Machine;

/// What is known of a run beside its records.
#[derive(Clone, Debug)]
pub struct RunFacts {
    /// When the run began, on the clock of the records' observer.
    pub started: Stamp,
    /// When its last request had ended.
    pub ended: Stamp,
    /// Requests a second that were asked for; `None` when there was no such limit (`inf`, or a proxy).
    pub offered_rate: Option<f64>,
    /// How many requests the schedule held.
    pub scheduled: usize,
    /// The configuration of the run, as it is to stand in the summary.
    pub config: Value,
    /// What a request must keep to count as good: a name and milliseconds; see [`Goal`].
    pub goodput: Vec<(String, f64)>,
    /// The machine, where it is known.
    pub machine: Option<Machine>,
}

/// The figures of a run.
#[derive(Clone, Debug)]
pub struct Summary {
    run: RunFacts,
    all: Group,
    /// By the server that served them.
    hosts: BTreeMap<String, Group>,
}

/// The figures of some of a run's requests.
#[derive(Clone, Debug)]
struct Group {
    counts: Counts,
    tokens: Tokens,
    latencies: Latencies,
    flow: Flow,
    spent: TimeSpent,
    failures: Failures,
    goodput: Option<Goodput>,
    /// Requests that went well and are not in what was measured with two clocks.
    left_out: u64,
}

/// The rows of one request.
type Rows<'a> = &'a [Record];

/// A request, and what its durations are taken of.
#[derive(Clone, Copy, Debug)]
struct Request<'a> {
    rows: Rows<'a>,
    /// The same rows, unless a clock of theirs is known too poorly: then without it.
    measured: Rows<'a>,
}

impl Summary {
    /// Of the records of a run; the rows of one request must stand together, as the observer gives them.
    pub fn of(records: &[Record], run: &RunFacts) -> Summary {
        let whole: Vec<Rows<'_>> = requests(records).collect();
        let replaced = clocks::without_poor(whole.iter().copied());
        let requests = whole.iter().enumerate().map(|(place, rows)| Request {
            rows,
            measured: replaced.get(&place).map_or(*rows, Vec::as_slice),
        });
        let requests: Vec<Request<'_>> = requests.collect();
        let mut by_host: BTreeMap<&str, Vec<Request<'_>>> = BTreeMap::new();
        for request in &requests {
            let first = request.rows.first();
            if let Some(host) = first.and_then(|row| row.facts.host.as_deref()) {
                by_host.entry(host).or_default().push(*request);
            }
        }
        let hosts = by_host.into_iter();
        Summary {
            run: run.clone(),
            all: Group::of(&requests, run),
            hosts: hosts
                .map(|(host, requests)| (host.to_owned(), Group::of(&requests, run)))
                .collect(),
        }
    }

    /// The summary as `summary.json` holds it.
    ///
    /// Keys and units that SGLang's bench_serving has for the same thing are its own (`…_ms`, tokens a
    /// second). The seed's `avg_server_latency`, `avg_total_latency`, `avg_ttft` and `p99_server_latency`
    /// are milliseconds. Under `latency` every figure is seconds. bench_serving's quantiles of ITL are left
    /// out: they take the gaps of all requests as one sample, which rows do not hold.
    pub fn to_json(&self) -> Value {
        json::summary(self)
    }

    /// The summary as the terminal shows it: at most 40 lines, the last one ended.
    pub fn to_text(&self) -> String {
        text::summary(self)
    }
}

impl Group {
    fn of(requests: &[Request<'_>], run: &RunFacts) -> Group {
        let rows: Vec<Rows<'_>> = requests.iter().map(|request| request.rows).collect();
        let is_ok = |request: &&Request<'_>| request.rows.first().is_some_and(Record::is_ok);
        let good = || requests.iter().filter(is_ok);
        let ok: Vec<Rows<'_>> = good().map(|request| request.measured).collect();
        let is_left_out = |request: &&Request<'_>| !std::ptr::eq(request.rows, request.measured);
        Group {
            left_out: good().filter(is_left_out).count() as u64,
            counts: Counts::of(&rows),
            tokens: Tokens::of(&ok),
            latencies: Latencies::of(&ok),
            flow: Flow::of(&rows, run),
            spent: TimeSpent::of(&ok),
            failures: Failures::of(&rows),
            goodput: Goodput::of(&ok, &run.goodput),
        }
    }
}

impl Group {
    /// Where the time went, in a few sentences.
    fn verdict(&self) -> String {
        self.failures.verdict(&self.spent, self.counts.requests)
    }
}

impl RunFacts {
    /// How long the run took, seconds; `None` when it took no time.
    fn duration(&self) -> Option<f64> {
        Some(self.ended.since(self.started)).filter(|seconds| *seconds > 0.0)
    }

    /// So many things, a second of the run.
    fn a_second(&self, things: impl Into<f64>) -> Option<f64> {
        Some(things.into() / self.duration()?)
    }
}

/// The rows, a request at a time.
fn requests(records: &[Record]) -> impl Iterator<Item = Rows<'_>> {
    records.chunk_by(|a, b| !b.is_first_of_request() && a.facts.req_id == b.facts.req_id)
}

#[cfg(test)]
mod tests;
