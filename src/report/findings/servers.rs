//! What a run says of its servers: their limits, their queues over time, whether they had equal shares.

use std::collections::{BTreeMap, BTreeSet};

use crate::report::duration;
use crate::report::load::Summary;
use crate::report::phases::{Episode, Recovery};
use crate::report::reader::Run;

use super::Finding;

/// A limit counts as reached from this share of it on: ends are stamped a little after their slot is free.
const REACHED: f64 = 0.95;
/// Requests of a server, or of a third of a run, that a mean is taken of.
const ENOUGH: usize = 30;
/// A queue that became this many times longer from the first third of a run to the last was never steady.
const GROWTH: f64 = 2.0;
/// A normal value is farther from its mean by chance once in 100 times.
const BY_CHANCE: f64 = 2.576;
/// Waits that differ by less are alike, seconds.
const DIFFERENCE: f64 = 0.050;
/// A server with this many times the requests of an equal share, or the wait of another server, has too many.
const UNEQUAL: f64 = 1.25;
const UNEQUAL_WAIT: f64 = 2.0;
/// Chance alone makes shares unequal: they must be so by this many standard deviations of chi-square.
const SIGMAS: f64 = 4.0;

/// What the servers' limit of running requests has to do with their queues, as a sentence after another; what to do.
pub fn limit(run: &Run, figures: &Summary) -> (String, String) {
    let most = run.file.iter().flat_map(|file| &file.processes);
    let most: Option<f64> = most
        .filter_map(|process| flag(&process.command, "--max-running-requests"))
        .reduce(f64::min);
    let peak = peak_running(figures);
    match (most, peak) {
        (Some(most), Some(peak)) if peak < REACHED * most => (
            format!(
                " Not for the limit of running requests: a server ran at most {peak} at once, its limit is {most}."
            ),
            "Look at `token_usage` over time: near 1, the memory for tokens is full (raise `mem_fraction_static`); else \
             prefill keeps the servers busy. More servers help in both cases."
                .to_owned(),
        ),
        (Some(most), Some(peak)) => (
            format!(
                " A server ran {} of {most} requests at once, its limit.",
                peak.min(most)
            ),
            "Raise `max_running_requests` while the time per output token allows it, or add servers.".to_owned(),
        ),
        (_, Some(peak)) => (
            format!(" A server ran at most {peak} requests at once."),
            "Raise `max_running_requests` if that is its limit, or add servers.".to_owned(),
        ),
        _ => (
            String::new(),
            "Raise `max_running_requests` or add servers.".to_owned(),
        ),
    }
}

/// The value of a flag in a command.
fn flag(command: &str, name: &str) -> Option<f64> {
    let mut words = command.split_whitespace().skip_while(|word| *word != name);
    words.nth(1)?.parse().ok()
}

/// The most requests that one server ran for a while: the highest mean of a stretch of time. A single moment tells too many,
/// as ends are stamped after their slot is free.
fn peak_running(figures: &Summary) -> Option<f64> {
    let servers = figures.hosts.values().filter_map(|host| {
        let running = host.flow.over_time.as_ref()?.running.as_ref()?;
        running.known.series.iter().copied().reduce(f64::max)
    });
    servers.reduce(f64::max).map(f64::round)
}

/// A server that was brought back and got nothing to do.
pub fn not_served(run: &Run, episodes: &[Episode]) -> Option<Finding> {
    let servers = run.file.as_ref()?.servers.len();
    let mut faults = episodes.iter().flat_map(|episode| &episode.faults);
    let fault = faults.find(|fault| {
        matches!(fault.recovery, Recovery::Never { requests, .. } if requests >= ENOUGH * servers)
    })?;
    let what = format!("{}: {}.", fault.server, fault.recovery.words());
    Some(Finding {
        title: format!("{} was not used again", fault.server),
        ..Finding::new("not_served", what)
    })
}

/// A queue that grew from the first third of the run to the last, as more came than the servers finished.
pub fn growth(run: &Run) -> Option<Finding> {
    let waits = waits(run).map(|(row, wait)| (arrival(run, row), wait));
    let mut waits: Vec<(f64, f64)> = waits.filter_map(|(at, wait)| Some((at?, wait))).collect();
    waits.sort_by(|a, b| a.0.total_cmp(&b.0));
    let third = waits.len() / 3;
    if third < ENOUGH {
        return None;
    }
    let mean =
        |part: &[(f64, f64)]| part.iter().map(|(_, wait)| wait).sum::<f64>() / part.len() as f64;
    let first = mean(waits.get(..third)?);
    let middle = mean(waits.get(third..waits.len() - third)?);
    let last = mean(waits.get(waits.len() - third..)?);
    if middle < first || last < middle {
        return None;
    }
    if last < GROWTH * first || last - first < DIFFERENCE || !run.faults.is_empty() {
        return None;
    }
    let (from, to) = (waits.get(third)?.0, waits.last()?.0);
    let (came, ended) = came_and_ended(run, from, to);
    // Where just as many can be served as come, what is left over is a random walk that is turned back at 0. Its variance is
    // this, of arrivals of a Poisson process and work that varies as much; where more can be served it stays near 0.
    if came - ended < BY_CHANCE * (2.0 * came).sqrt() {
        return None;
    }
    let what = format!(
        "The first third of the requests waited {} on average, the next {}, the last {}. More came than the servers finish \
         (from {} to {} {came} came and {ended} ended, which chance alone does in one of 100 runs at most): latencies say as \
         much of the run's length as of the servers.",
        duration(first),
        duration(middle),
        duration(last),
        duration(from),
        duration(to)
    );
    Some(Finding::new("queue_growth", what))
}

/// When a row's request was to be sent, or arrived.
fn arrival(run: &Run, row: usize) -> Option<f64> {
    let at = run.table.number("scheduled_time", row);
    at.or(run.table.number("arrival_time", row))
}

/// How many requests came in a time, and how many ended in it; also those that no figure is of.
fn came_and_ended(run: &Run, from: f64, to: f64) -> (f64, f64) {
    let table = &run.table;
    let firsts = || table.firsts();
    let ended = |row| {
        let end = table.number("end_time", row);
        end.or(table.number("finish_time", row))
    };
    let count = |times: &mut dyn Iterator<Item = f64>| {
        times.filter(|at| from < *at && *at <= to).count() as f64
    };
    let came = count(&mut firsts().filter_map(|row| arrival(run, row)));
    (came, count(&mut firsts().filter_map(ended)))
}

/// Requests that the figures are of, that went well and of which the wait in the server's queue is known, by their first row.
fn waits(run: &Run) -> impl Iterator<Item = (usize, f64)> {
    let table = &run.table;
    let rows = counted(run).filter(|row| table.is_ok(*row));
    rows.filter_map(|row| Some((row, table.number("pure_queue_time", row)?)))
}

/// The first rows of the requests that the figures are of.
pub fn counted(run: &Run) -> impl Iterator<Item = usize> {
    let (table, is_counted) = (&run.table, run.is_counted());
    (0..table.len()).filter(move |row| table.is_first(*row) && is_counted(*row))
}

/// A server's requests: how many, those waits that are known, of which models.
#[derive(Default)]
struct Load<'a> {
    requests: u64,
    waits: Vec<f64>,
    models: BTreeSet<&'a str>,
}

type Hosts<'a> = BTreeMap<&'a str, Load<'a>>;

/// Servers that had unequal shares of the requests, or unequal queues. Those of different models had different ones to serve.
pub fn imbalance(run: &Run) -> Option<Finding> {
    // A server that was down on purpose had less to do.
    if !run.faults.is_empty() {
        return None;
    }
    let table = &run.table;
    let mut hosts: Hosts<'_> = BTreeMap::new();
    for server in run.file.iter().flat_map(|file| &file.servers) {
        hosts.entry(&server.host).or_default();
    }
    for row in counted(run) {
        let host = hosts.entry(table.text("host", row)).or_default();
        host.requests += 1;
        host.models.insert(table.text("model", row));
    }
    for (row, wait) in waits(run) {
        let host = hosts.entry(table.text("host", row)).or_default();
        host.waits.push(wait);
    }
    // Of a request that nobody answered the server is unknown.
    hosts.remove("");
    of_one_model(hosts).iter().find_map(|hosts| {
        let requests: u64 = hosts.values().map(|host| host.requests).sum();
        let equal = requests as f64 / hosts.len() as f64;
        let is_enough = hosts.len() > 1 && equal >= ENOUGH as f64;
        is_enough.then(|| shares(hosts, equal).or_else(|| queues(hosts)))?
    })
}

/// Servers put together that have a model in common; one that had no request is with the first.
fn of_one_model(hosts: Hosts<'_>) -> Vec<Hosts<'_>> {
    let mut groups: Vec<(BTreeSet<&str>, Hosts<'_>)> = Vec::new();
    let (idle, hosts): (Hosts<'_>, Hosts<'_>) =
        hosts.into_iter().partition(|(_, load)| load.requests == 0);
    for (host, load) in hosts {
        let mut alike: Vec<(BTreeSet<&str>, Hosts<'_>)> = groups
            .extract_if(.., |(known, _)| !known.is_disjoint(&load.models))
            .collect();
        let (mut models, mut together) = alike.pop().unwrap_or_default();
        for (others, more) in alike {
            models.extend(others);
            together.extend(more);
        }
        models.extend(&load.models);
        together.insert(host, load);
        groups.push((models, together));
    }
    if let [(_, group)] = groups.as_mut_slice() {
        group.extend(idle);
    }
    groups.into_iter().map(|(_, hosts)| hosts).collect()
}

fn shares(hosts: &Hosts<'_>, equal: f64) -> Option<Finding> {
    let all = || hosts.iter().map(|(host, load)| (host, load.requests));
    let (most, requests) = all().max_by_key(|(_, requests)| *requests)?;
    let (least, fewest) = all().min_by_key(|(_, requests)| *requests)?;
    let apart = all().map(|(_, n)| (n as f64 - equal).powi(2) / equal);
    let degrees = hosts.len() as f64 - 1.0;
    let by_chance = degrees + SIGMAS * (2.0 * degrees).sqrt();
    if (requests as f64) < UNEQUAL * equal || apart.sum::<f64>() < by_chance {
        return None;
    }
    let what = format!(
        "{most} had {requests} requests, {least} {fewest}; an equal share is {equal:.0}. Chance alone does not do that."
    );
    Some(Finding::new("imbalance", what))
}

fn queues(hosts: &Hosts<'_>) -> Option<Finding> {
    let all = hosts.iter().map(|(host, load)| (host, &load.waits));
    let known = all.filter(|(_, waits)| waits.len() >= ENOUGH);
    let means = known.map(|(host, waits)| (host, waits.iter().sum::<f64>() / waits.len() as f64));
    let means: Vec<_> = means.collect();
    let (worst, longest) = means.iter().max_by(|a, b| a.1.total_cmp(&b.1))?;
    let (best, shortest) = means.iter().min_by(|a, b| a.1.total_cmp(&b.1))?;
    if *longest < UNEQUAL_WAIT * shortest || longest - shortest < DIFFERENCE {
        return None;
    }
    let what = format!(
        "A request waited {} on average at {worst} and {} at {best}.",
        duration(*longest),
        duration(*shortest)
    );
    Some(Finding {
        title: "Servers had unequal queues".to_owned(),
        ..Finding::new("imbalance", what)
    })
}
