//! The figures of a run, gathered while its records pass.

use std::collections::BTreeMap;

use crate::request::record::Record;

use super::clocks::{Usual, UsualErrors};
use super::counts::{Counts, Tokens};
use super::failures::{Failed, Failures};
use super::flow::{Flow, Times};
use super::goodput::{Goal, Goodput};
use super::latency::{Latencies, Samples};
use super::rows::{Rows, requests};
use super::run::RunFacts;
use super::spent::TimeSpent;

/// The figures of a run.
#[derive(Clone, Debug)]
pub struct Summary {
    /// What is known of the run beside its records.
    pub run: RunFacts,
    /// Of all requests.
    pub all: Group,
    /// By the server that served them.
    pub hosts: BTreeMap<String, Group>,
}

/// The figures of some of a run's requests.
#[derive(Clone, Debug)]
pub struct Group {
    /// How they ended.
    pub counts: Counts,
    /// Their tokens.
    pub tokens: Tokens,
    /// Their latencies.
    pub latencies: Latencies,
    /// How they came and went.
    pub flow: Flow,
    /// What the time of those that went well was spent on.
    pub spent: TimeSpent,
    /// What became of those that failed.
    pub failures: Failures,
    /// How many kept all goals, where there were any.
    pub goodput: Option<Goodput>,
    /// Requests that went well and are not in what was measured with two clocks.
    pub left_out: u64,
}

/// What a [`Summary`] is made of, gathered while a run's records pass: of each no more is kept than the
/// figures need.
#[derive(Clone, Debug)]
pub struct Gathering {
    usual: Usual,
    goodput: Vec<Goal>,
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

/// A request, and what its durations are taken of.
#[derive(Clone, Copy, Debug)]
struct Request<'a> {
    rows: Rows<'a>,
    /// The same rows, unless a clock of theirs is known too poorly: then without it.
    measured: Rows<'a>,
}

impl Gathering {
    /// Nothing yet; `usual` is of all records that are to come, `goodput` as in [`RunFacts`].
    pub fn new(usual: Usual, goodput: Vec<Goal>) -> Gathering {
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
    fn of(requests: &[Request<'_>], goals: &[Goal]) -> Gathered {
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

    /// How many of them failed with an error of which `is` holds.
    pub fn failed_with(&self, is: impl Fn(&str) -> bool) -> u64 {
        let errors = self.all.counts.errors.most_frequent();
        let those = errors.filter(|(error, _)| is(error));
        those.map(|(_, count)| count).sum()
    }

    /// How long a client typically waits for the first token, or for the whole answer where it is no stream: the median
    /// of those that went well, seconds from the send.
    pub fn typical_wait(&self) -> Option<f64> {
        let latencies = &self.all.latencies;
        let first = latencies.ttft.as_ref().or(latencies.e2e.as_ref());
        first.map(|latency| latency.p50)
    }

    /// Why the run counts as failed, if not one request succeeded: the errors, most frequent first.
    pub fn failure(&self) -> Option<String> {
        let counts = &self.all.counts;
        if counts.requests == 0 {
            return Some("no request was sent".to_owned());
        }
        let shown = counts.errors.most_frequent().take(3);
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
    pub fn verdict(&self) -> String {
        self.failures.verdict(&self.spent, &self.counts)
    }
}
