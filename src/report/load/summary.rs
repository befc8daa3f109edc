//! The figures of a run, taken of its rows.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::panic::resume_unwind;

use crate::clock::{Stamp, seconds};
use crate::request::attempt::told;
use crate::request::columns::ColumnId;
use crate::table::Table;
use crate::table::window::Window;

use super::counts::{Counts, Tokens, most_frequent};
use super::failures::Failures;
use super::flow::Flow;
use super::goodput::Goodput;
use super::latency::Latencies;
use super::request::Request;
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
    /// By the server that served them or was the last to fail them, those with the most requests: [`HOSTS`] at most.
    pub hosts: BTreeMap<String, Group>,
    /// How many servers there are beside these, and how many requests they had.
    pub other_hosts: (usize, usize),
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
    /// The same until their first tokens, of those of which it was seen when that came.
    pub until_first: TimeSpent,
    /// What became of those that failed.
    pub failures: Failures,
    /// How many kept all goals, where there were any.
    pub goodput: Option<Goodput>,
    /// Requests that went well and are not in what was measured with two clocks.
    pub left_out: u64,
}

/// Requests by the server that served them, or was the last to fail them, those with the most first; without those of which that is not
/// known.
fn by_host<'a>(table: &'a Table, requests: &[Request]) -> Vec<(Cow<'a, str>, Vec<Request>)> {
    let text = |column, of: &Request| table.text(column, of.row());
    let hosts = requests
        .iter()
        .map(|of| (text(ColumnId::worker, of), text(ColumnId::host, of)));
    let hosts: HashMap<&str, &str> = hosts.filter(|(_, host)| !host.is_empty()).collect();
    let mut by_host: BTreeMap<Cow<'a, str>, Vec<Request>> = BTreeMap::new();
    for request in requests {
        let host = match text(ColumnId::host, request) {
            "" if request.is_ok => continue,
            "" => match told(text(ColumnId::failed_attempts, request)).last() {
                // A hop tells its own name of what it never sent on.
                Some(failed) => match hosts.get(&*failed.host) {
                    Some(host) => Cow::Borrowed(*host),
                    None => failed.host.into(),
                },
                None => continue,
            },
            host => host.into(),
        };
        by_host.entry(host).or_default().push(*request);
    }
    let mut by_host: Vec<_> = by_host.into_iter().collect();
    by_host.sort_by_key(|(_, of)| Reverse(inside(of)));
    by_host
}

fn inside(of: &[Request]) -> usize {
    of.iter().filter(|request| request.is_inside).count()
}

impl Summary {
    /// Of the rows of a run as they are believed, times of which count from its facts' zero; `window`: what the figures are to be of. How many
    /// requests are there at once, and what is completed in it, holds those that arrived before too.
    pub fn of_table(table: &Table, run: &RunFacts, window: Option<Window>) -> Summary {
        let part = window.as_ref().filter(|window| !window.is_all());
        let holds = |at: Option<i64>| match (part, at) {
            (Some(window), Some(at)) => window.holds(seconds(at - run.started.nanos())),
            // What is not known to be outside is inside.
            _ => true,
        };
        let scheduled = |row| table.whole(ColumnId::scheduled_time, row);
        let arrived = |row| table.begun(row).or_else(|| scheduled(row));
        let request = |row| {
            let rows = table.rows_of(row);
            Request {
                is_ok: table.is_ok(row),
                is_inside: holds(arrived(row)),
                ends_inside: holds(table.whole(ColumnId::finish_time, row)),
                row: rows.start as u32,
                rows: rows.len() as u32,
            }
        };
        let mut requests: Vec<Request> = table.firsts().map(request).collect();
        // A proxy and a run that was killed leave rows in the order of their ends.
        requests.sort_by_cached_key(|of| {
            let sent = || table.whole(ColumnId::router_send_time, of.row());
            let began = table.begun(of.row()).or_else(sent);
            began.or_else(|| scheduled(of.row())).unwrap_or(i64::MAX)
        });
        let mut facts = run.clone();
        if let Some(window) = part {
            facts.started = run.started.plus_seconds(window.from_s);
            facts.ended = run.started.plus_seconds(window.to_s);
        }
        let figures = |all: &[Request], spent: &[Request]| group(table, &facts, all, spent);
        let mut by_host = by_host(table, &requests);
        let others = by_host.split_off(by_host.len().min(HOSTS));
        let other_hosts = (others.len(), others.iter().map(|(_, of)| inside(of)).sum());
        let others = others.into_iter().flat_map(|(_, of)| of);
        let of_host =
            |(host, of): &(Cow<'_, str>, Vec<Request>)| (host.to_string(), figures(of, of));
        let is_unserved = |of: &&Request| table.text(ColumnId::host, of.row()).is_empty();
        let unserved = requests.iter().filter(is_unserved).copied();
        let untold: Vec<Request> = unserved.chain(others).collect();
        // The same work again, for which there may be another processor.
        let (mut all, hosts) = std::thread::scope(|scope| {
            let all = scope.spawn(|| figures(&requests, &untold));
            let hosts: BTreeMap<String, Group> = by_host.iter().map(of_host).collect();
            let all = all.join().unwrap_or_else(|panic| resume_unwind(panic));
            (all, hosts)
        });
        for group in hosts.values() {
            all.spent.add(group.spent.clone());
        }
        Summary {
            hosts,
            other_hosts,
            all,
            whole: Counts::of(table, &requests),
            began: run.started,
            window,
            run: facts,
        }
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
        let first = latencies.ttft().or(latencies.e2e());
        first.map(|latency| latency.p50)
    }

    /// Why the run counts as failed, if not one request succeeded: the errors, most frequent first.
    pub fn failure(&self) -> Option<String> {
        let counts = &self.whole;
        if counts.requests == 0 {
            return Some("no request was sent".to_owned());
        }
        let shown = most_frequent(&counts.errors).take(3);
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

/// The figures of some requests, in order of arrival; what the time of some of them was spent on.
fn group(table: &Table, run: &RunFacts, all: &[Request], spent: &[Request]) -> Group {
    let some = |of: &[Request], is: fn(&&Request) -> bool| -> Vec<Request> {
        of.iter().filter(is).copied().collect()
    };
    let inside = some(all, |of| of.is_inside);
    let ok = some(&inside, |of| of.is_ok);
    let spent = some(spent, |of| of.is_inside && of.is_ok);
    let [spent, until_first] = TimeSpent::of(table, &spent);
    let ended = || all.iter().filter(|of| of.is_ok && of.ends_inside).copied();
    let is_left_out = |request: &&Request| {
        let mut rows = request.rows();
        rows.any(|row| table.left_out.contains_key(&row))
    };
    Group {
        counts: Counts::of(table, &inside),
        tokens: Tokens::of(table, ended()),
        completed: ended().count() as u64,
        latencies: Latencies::of(table, &ok),
        flow: Flow::of(table, all, run),
        spent,
        until_first,
        failures: Failures::of(table, &inside),
        goodput: Goodput::of(table, &ok, &run.goodput),
        left_out: ok.iter().filter(is_left_out).count() as u64,
    }
}

impl Group {
    /// Where the time went, in a few sentences.
    pub fn verdict(&self) -> String {
        self.failures.verdict(&self.spent, &self.counts)
    }
}
