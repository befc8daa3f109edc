//! The figures of a run, gathered while its records pass.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::clock::Stamp;
use crate::report::window::{Window, begun};
use crate::request::impossible::believed;
use crate::request::row::Row;
use crate::request::timeline::Moment;

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
    /// What is known of the run beside its records; where the figures are of a window, it begins and ends with that.
    pub run: RunFacts,
    /// When the run itself began.
    pub began: Stamp,
    /// Of all requests.
    pub all: Group,
    /// Of all requests of the run, also of those that the window leaves out.
    pub whole: Counts,
    /// What the figures are of, where that was looked at.
    pub window: Option<Window>,
    /// By the server that served them, those with the most requests: [`HOSTS`] at most.
    pub hosts: BTreeMap<String, Group>,
    /// Of the other servers together, and how many those are.
    pub other_hosts: Option<(usize, Group)>,
}

/// Servers that are told apart.
pub const HOSTS: usize = 50;

/// The figures of some of a run's requests.
#[derive(Clone, Debug)]
pub struct Group {
    /// How they ended.
    pub counts: Counts,
    /// Tokens of those that ended in the time that the figures are of.
    pub tokens: Tokens,
    /// How many went well and ended in that time.
    pub completed: u64,
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
    /// Of all that were added, also outside of the window.
    whole: Option<Counts>,
    /// What the figures are of, and when the run began.
    window: Option<(Window, Stamp)>,
    /// Requests that were added.
    places: u32,
    /// By the server that served them; those that none did as well.
    by_host: BTreeMap<Option<String>, Gathered>,
}

/// Of some of a run's requests.
#[derive(Clone, Debug)]
struct Gathered {
    counts: Counts,
    tokens: Tokens,
    completed: u64,
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
    /// In the order of arrival.
    place: u32,
    rows: Rows<'a>,
    /// Without what cannot be.
    believed: Rows<'a>,
    /// The same rows, unless a clock of theirs is known too poorly: then without it.
    measured: Rows<'a>,
    /// Whether it arrived in the time that the figures are of.
    is_inside: bool,
    /// Whether it ended in it.
    ends_inside: bool,
}

impl Gathering {
    /// Nothing yet; `usual` is of all records that are to come, `goodput` as in [`RunFacts`].
    pub fn new(usual: Usual, goodput: Vec<Goal>) -> Gathering {
        Gathering {
            usual,
            goodput,
            counts: None,
            whole: None,
            window: None,
            places: 0,
            by_host: BTreeMap::new(),
        }
    }

    /// The figures are to be of a window of a run that began at `started`. How many requests are there at once, and what
    /// is completed in it, holds those that arrived before too.
    pub fn within(mut self, window: Window, started: Stamp) -> Gathering {
        self.window = Some((window, started));
        self
    }

    /// Adds the records of some requests: each one's together, as the observer gives them, in order of arrival. The more
    /// at a time, the less it costs.
    pub fn add(&mut self, records: &[Row]) {
        let requests: Vec<Rows<'_>> = requests(records).collect();
        let believed: Vec<Cow<'_, [Row]>> = requests.iter().map(|rows| believed(rows)).collect();
        let without = |rows: &Cow<'_, [Row]>| self.usual.without_poor(rows);
        let replaced: Vec<Option<Vec<Row>>> = believed.iter().map(without).collect();
        let mut by_host: BTreeMap<Option<&str>, Vec<Request<'_>>> = BTreeMap::new();
        let mut inside = Vec::new();
        for ((rows, believed), replaced) in requests.iter().zip(&believed).zip(&replaced) {
            let first = rows.first();
            let host = first.and_then(|row| row.host.as_deref());
            let arrived = first.and_then(|row| {
                begun(&row.timeline).or_else(|| row.timeline.raw(Moment::Scheduled))
            });
            let ended = first.and_then(|row| row.timeline.on_own_clock(Moment::Finish));
            let request = Request {
                place: self.places,
                rows,
                believed,
                measured: replaced.as_deref().unwrap_or(believed),
                is_inside: self.holds(arrived),
                ends_inside: self.holds(ended),
            };
            self.places = self.places.saturating_add(1);
            if request.is_inside {
                inside.push(*rows);
            }
            by_host.entry(host).or_default().push(request);
        }
        add_to(&mut self.counts, Counts::of(&inside));
        add_to(&mut self.whole, Counts::of(&requests));
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

    /// Whether a moment is in the time that the figures are of; what is not known to be outside is.
    fn holds(&self, at: Option<Stamp>) -> bool {
        let (Some((window, started)), Some(at)) = (&self.window, at) else {
            return true;
        };
        window.is_all() || window.holds(at.since(*started))
    }

    /// The figures of all that were added.
    pub fn summary(self, run: &RunFacts) -> Summary {
        let (began, mut run) = (run.started, run.clone());
        if let Some((window, started)) = self.window.as_ref().filter(|(window, _)| !window.is_all())
        {
            run.started = started.plus_seconds(window.from_s);
            run.ended = started.plus_seconds(window.to_s);
        }
        let run = &run;
        let mut hosts: Vec<(&String, &Gathered)> = self
            .by_host
            .iter()
            .filter_map(|(host, gathered)| Some((host.as_ref()?, gathered)))
            .collect();
        hosts.sort_by_key(|(_, gathered)| Reverse(gathered.counts.requests));
        let others = hosts.split_off(hosts.len().min(HOSTS));
        let other_hosts = others.split_first().map(|((_, first), more)| {
            let mut together = (*first).clone();
            more.iter()
                .for_each(|(_, gathered)| together.add((*gathered).clone()));
            (others.len(), Group::of(&together, run))
        });
        let hosts = hosts.into_iter();
        let hosts = hosts.map(|(host, gathered)| (host.clone(), Group::of(gathered, run)));
        let hosts = hosts.collect();
        let all = self.by_host.into_values().reduce(|mut all, more| {
            all.add(more);
            all
        });
        let mut all = all.unwrap_or_else(|| Gathered::of(&[], &self.goodput));
        // Counted in the order of the run, of which it tells the first of something.
        all.counts = self.counts.unwrap_or(all.counts);
        Summary {
            whole: self.whole.unwrap_or_else(|| all.counts.clone()),
            window: self.window.map(|(window, _)| window),
            run: run.clone(),
            began,
            all: Group::of(&all, run),
            hosts,
            other_hosts,
        }
    }
}

fn add_to(known: &mut Option<Counts>, more: Counts) {
    match known {
        Some(known) => known.add(more),
        none => *none = Some(more),
    }
}

impl Gathered {
    fn of(requests: &[Request<'_>], goals: &[Goal]) -> Gathered {
        let rows = |is_inside: bool| -> Vec<Rows<'_>> {
            let those = requests
                .iter()
                .filter(|request| request.is_inside == is_inside);
            those.map(|request| request.believed).collect()
        };
        let (outside, rows) = (rows(false), rows(true));
        let counted = requests.iter().filter(|request| request.is_inside);
        let counted: Vec<Rows<'_>> = counted.map(|request| request.rows).collect();
        let is_ok = |request: &&Request<'_>| request.rows.first().is_some_and(Row::is_ok);
        let all_good = || requests.iter().filter(is_ok);
        let good = || all_good().filter(|request| request.is_inside);
        let ok: Vec<Rows<'_>> = good().map(|request| request.measured).collect();
        let ended = all_good().filter(|request| request.ends_inside);
        let ended: Vec<Rows<'_>> = ended.map(|request| request.measured).collect();
        let mut times = Times::of(&rows);
        if !outside.is_empty() {
            times.add(Times::presence(&outside));
        }
        let placed = good().map(|request| (request.place, request.measured));
        let placed: Vec<(u32, Rows<'_>)> = placed.collect();
        let is_left_out =
            |request: &&Request<'_>| !std::ptr::eq(request.believed, request.measured);
        Gathered {
            counts: Counts::of(&counted),
            tokens: Tokens::of(&ended),
            completed: ended.len() as u64,
            samples: Samples::of(&placed),
            times,
            spent: TimeSpent::of(&ok),
            failed: Failed::of(&rows),
            goodput: Goodput::of(&ok, goals),
            left_out: good().filter(is_left_out).count() as u64,
        }
    }

    fn add(&mut self, more: Gathered) {
        self.counts.add(more.counts);
        self.tokens.add(more.tokens);
        self.completed += more.completed;
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
    /// The same of records.
    #[cfg(test)]
    pub fn of_records(records: &[crate::request::record::Record], run: &RunFacts) -> Summary {
        Summary::of(&crate::request::sample::rows(records), run)
    }

    /// Of the rows of a run; those of one request must stand together, as the observer gives them.
    pub fn of(records: &[Row], run: &RunFacts) -> Summary {
        let mut usual = UsualErrors::default();
        usual.add(records);
        let mut gathering = Gathering::new(usual.median(), run.goodput.clone());
        gathering.add(records);
        gathering.summary(run)
    }

    /// How many requests there were.
    pub fn requests(&self) -> u64 {
        self.whole.requests
    }

    /// How many of them failed; those given up when the run was stopped did not.
    pub fn failed(&self) -> u64 {
        self.whole.failed()
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
        let counts = &self.whole;
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
            completed: gathered.completed,
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
