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

pub use clocks::{Usual, UsualErrors};
pub use goodput::{Goal, GoalError};

use counts::{Counts, Tokens};
use failures::{Failed, Failures};
use flow::{Flow, Times};
use goodput::Goodput;
use latency::{Latencies, Samples};
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

/// What a [`Summary`] is made of, gathered while a run's records pass: of each no more is kept than the
/// figures need.
#[derive(Clone, Debug)]
pub struct Gathering {
    usual: Usual,
    goodput: Vec<(String, f64)>,
    counts: Option<Counts>,
    /// By the server that served them; those that none did as well.
    by_host: BTreeMap<Option<String>, Gathered>,
}

/// Of some of a run's requests.
#[derive(Clone, Debug)]
struct Gathered {
    counts: Counts,
    tokens: Tokens,
    samples: Samples,
    times: Times,
    spent: TimeSpent,
    failed: Failed,
    goodput: Option<Goodput>,
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

impl Gathering {
    /// Nothing yet; `usual` is of all records that are to come, `goodput` as in [`RunFacts`].
    pub fn new(usual: Usual, goodput: Vec<(String, f64)>) -> Gathering {
        Gathering {
            usual,
            goodput,
            counts: None,
            by_host: BTreeMap::new(),
        }
    }

    /// Adds the records of some requests: each one's together, as the observer gives them. The more at a
    /// time, the less it costs.
    pub fn add(&mut self, records: &[Record]) {
        let requests: Vec<Rows<'_>> = requests(records).collect();
        let counts = Counts::of(&requests);
        let without = |rows: &Rows<'_>| self.usual.without_poor(rows);
        let replaced: Vec<Option<Vec<Record>>> = requests.iter().map(without).collect();
        match &mut self.counts {
            Some(known) => known.add(counts),
            none => *none = Some(counts),
        }
        let mut by_host: BTreeMap<Option<&str>, Vec<Request<'_>>> = BTreeMap::new();
        for (rows, replaced) in requests.into_iter().zip(&replaced) {
            let host = rows.first().and_then(|row| row.facts.host.as_deref());
            let measured = replaced.as_deref().unwrap_or(rows);
            by_host
                .entry(host)
                .or_default()
                .push(Request { rows, measured });
        }
        for (host, requests) in by_host {
            let gathered = Gathered::of(&requests, &self.goodput);
            match self.by_host.get_mut(&host.map(str::to_owned)) {
                Some(known) => known.add(gathered),
                None => {
                    self.by_host.insert(host.map(str::to_owned), gathered);
                }
            }
        }
    }

    /// The figures of all that were added.
    pub fn summary(self, run: &RunFacts) -> Summary {
        let hosts = self.by_host.iter().filter_map(|(host, gathered)| {
            let group = Group::of(gathered, run);
            Some((host.clone()?, group))
        });
        let hosts = hosts.collect();
        let all = self.by_host.into_values().reduce(|mut all, more| {
            all.add(more);
            all
        });
        let mut all = all.unwrap_or_else(|| Gathered::of(&[], &self.goodput));
        // Counted in the order of the run, of which it tells the first of something.
        all.counts = self.counts.unwrap_or(all.counts);
        Summary {
            run: run.clone(),
            all: Group::of(&all, run),
            hosts,
        }
    }
}

impl Gathered {
    fn of(requests: &[Request<'_>], goals: &[(String, f64)]) -> Gathered {
        let rows: Vec<Rows<'_>> = requests.iter().map(|request| request.rows).collect();
        let is_ok = |request: &&Request<'_>| request.rows.first().is_some_and(Record::is_ok);
        let good = || requests.iter().filter(is_ok);
        let ok: Vec<Rows<'_>> = good().map(|request| request.measured).collect();
        let is_left_out = |request: &&Request<'_>| !std::ptr::eq(request.rows, request.measured);
        Gathered {
            counts: Counts::of(&rows),
            tokens: Tokens::of(&ok),
            samples: Samples::of(&ok),
            times: Times::of(&rows),
            spent: TimeSpent::of(&ok),
            failed: Failed::of(&rows),
            goodput: Goodput::of(&ok, goals),
            left_out: good().filter(is_left_out).count() as u64,
        }
    }

    fn add(&mut self, more: Gathered) {
        self.counts.add(more.counts);
        self.tokens.add(more.tokens);
        self.samples.add(more.samples);
        self.times.add(more.times);
        self.spent.add(more.spent);
        self.failed.add(more.failed);
        self.left_out += more.left_out;
        if let (Some(goodput), Some(more)) = (&mut self.goodput, &more.goodput) {
            goodput.add(more);
        }
    }
}

impl Summary {
    /// Of the records of a run; the rows of one request must stand together, as the observer gives them.
    pub fn of(records: &[Record], run: &RunFacts) -> Summary {
        let mut usual = UsualErrors::default();
        usual.add(records);
        let mut gathering = Gathering::new(usual.median(), run.goodput.clone());
        gathering.add(records);
        gathering.summary(run)
    }

    /// How many requests there were.
    pub fn requests(&self) -> u64 {
        self.all.counts.requests
    }

    /// How many of them failed; those given up when the run was stopped did not.
    pub fn failed(&self) -> u64 {
        self.all.counts.failed()
    }

    /// Why the run counts as failed, if not one request succeeded: the errors, most frequent first.
    pub fn failure(&self) -> Option<String> {
        let counts = &self.all.counts;
        if counts.requests == 0 {
            return Some("no request was sent".to_owned());
        }
        let shown = counts.errors.iter().take(3);
        let shown: Vec<String> = shown
            .map(|(error, count)| format!("{error} ({count}×)"))
            .collect();
        (counts.ok() == 0).then(|| {
            format!(
                "none of {} requests succeeded: {}",
                counts.requests,
                shown.join("; ")
            )
        })
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
    fn of(gathered: &Gathered, run: &RunFacts) -> Group {
        Group {
            counts: gathered.counts.clone(),
            tokens: gathered.tokens,
            latencies: Latencies::of(&gathered.samples),
            flow: Flow::of(&gathered.times, run),
            spent: gathered.spent.clone(),
            failures: Failures::of(&gathered.failed),
            goodput: gathered.goodput.clone(),
            left_out: gathered.left_out,
        }
    }
}

impl Group {
    /// Where the time went, in a few sentences.
    fn verdict(&self) -> String {
        self.failures.verdict(&self.spent, &self.counts)
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
