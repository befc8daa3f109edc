//! What a run says of its servers: their limits, their queues over time, whether they had equal shares.

use std::collections::BTreeMap;

use crate::report::duration;
use crate::report::load::Summary;
use crate::report::phases::{Recovery, episodes};
use crate::report::reader::Run;

use super::{Finding, Level};

/// A limit counts as reached from this share of it on: ends are stamped a little after their slot is free.
const REACHED: f64 = 0.95;
/// Requests of a server, or of a third of a run, that a mean is taken of.
const ENOUGH: usize = 30;
/// A queue that became this many times longer from the first third of a run to the last was never steady.
const GROWTH: f64 = 2.0;
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
pub fn not_served(run: &Run) -> Option<Finding> {
    let servers = run.file.as_ref()?.servers.as_slice();
    let episodes = episodes(&run.table, &run.faults, servers);
    let mut faults = episodes.into_iter().flat_map(|episode| episode.faults);
    let fault = faults.find(|fault| {
        matches!(fault.recovery, Recovery::Never { requests, .. } if requests >= ENOUGH * servers.len())
    })?;
    Some(Finding {
        kind: "not_served",
        level: Level::Limit,
        title: format!("{} was not used again", fault.server),
        what: format!("{}: {}.", fault.server, fault.recovery.words()),
        advice: "What shares requests out still takes it for dead: sglang-router looks at its workers once a minute \
                 (`health_check_interval_secs`, `cb_timeout_duration_secs`)."
            .to_owned(),
    })
}

/// A queue that grew from the first third of the run to the last.
pub fn growth(run: &Run) -> Option<Finding> {
    let table = &run.table;
    let waits = waits(run).map(|(row, wait)| {
        let at = table.number("scheduled_time", row);
        (at.or(table.number("arrival_time", row)), wait)
    });
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
    Some(Finding {
        kind: "queue_growth",
        level: Level::Limit,
        title: "The queue grew as long as the run lasted".to_owned(),
        what: format!(
            "The first third of the requests waited {} on average, the next {}, the last {}. More came than the servers finish: \
             latencies say as much of the run's length as of the servers.",
            duration(first),
            duration(middle),
            duration(last)
        ),
        advice: "Lower the rate until the queue is steady, or add servers; `--find-max-rate` searches the highest rate that \
            meets an objective."
            .to_owned(),
    })
}

/// Rows that went well with a known wait in the server's queue.
fn waits(run: &Run) -> impl Iterator<Item = (usize, f64)> {
    let table = &run.table;
    let rows = (0..table.len()).filter(|row| table.is_ok(*row));
    rows.filter_map(|row| Some((row, table.number("pure_queue_time", row)?)))
}

/// Servers that had unequal shares of the requests, or unequal queues.
pub fn imbalance(run: &Run) -> Option<Finding> {
    // A server that was down on purpose had less to do.
    if !run.faults.is_empty() {
        return None;
    }
    let table = &run.table;
    let mut hosts: BTreeMap<&str, (u64, Vec<f64>)> = BTreeMap::new();
    for server in run.file.iter().flat_map(|file| &file.servers) {
        hosts.entry(&server.host).or_default();
    }
    for row in (0..table.len()).filter(|row| table.is_first(*row)) {
        hosts.entry(table.text("host", row)).or_default().0 += 1;
    }
    for (row, wait) in waits(run) {
        hosts
            .entry(table.text("host", row))
            .or_default()
            .1
            .push(wait);
    }
    // Of a request that nobody answered the server is unknown.
    hosts.remove("");
    let servers = hosts.len() as f64;
    let requests: u64 = hosts.values().map(|(requests, _)| requests).sum();
    let equal = requests as f64 / servers;
    if hosts.len() < 2 || equal < ENOUGH as f64 {
        return None;
    }
    shares(&hosts, equal).or_else(|| queues(&hosts))
}

const ADVICE: &str = "Try a policy that looks at the servers' load (`shortest_queue`, `power_of_two`); with `cache_aware`, lower \
    its balance thresholds.";

fn shares(hosts: &BTreeMap<&str, (u64, Vec<f64>)>, equal: f64) -> Option<Finding> {
    let (most, (requests, _)) = hosts.iter().max_by_key(|(_, (requests, _))| *requests)?;
    let (least, (fewest, _)) = hosts.iter().min_by_key(|(_, (requests, _))| *requests)?;
    let apart = hosts
        .values()
        .map(|(n, _)| (*n as f64 - equal).powi(2) / equal);
    let degrees = hosts.len() as f64 - 1.0;
    let by_chance = degrees + SIGMAS * (2.0 * degrees).sqrt();
    if (*requests as f64) < UNEQUAL * equal || apart.sum::<f64>() < by_chance {
        return None;
    }
    Some(Finding {
        kind: "imbalance",
        level: Level::Limit,
        title: "Servers had unequal shares".to_owned(),
        what: format!(
            "{most} had {requests} requests, {least} {fewest}; an equal share is {equal:.0}. Chance alone does not do that."
        ),
        advice: ADVICE.to_owned(),
    })
}

fn queues(hosts: &BTreeMap<&str, (u64, Vec<f64>)>) -> Option<Finding> {
    let known = hosts.iter().filter(|(_, (_, waits))| waits.len() >= ENOUGH);
    let means = known.map(|(host, (_, waits))| {
        let mean = waits.iter().sum::<f64>() / waits.len() as f64;
        (host, mean)
    });
    let means: Vec<_> = means.collect();
    let (worst, longest) = means.iter().max_by(|a, b| a.1.total_cmp(&b.1))?;
    let (best, shortest) = means.iter().min_by(|a, b| a.1.total_cmp(&b.1))?;
    if *longest < UNEQUAL_WAIT * shortest || longest - shortest < DIFFERENCE {
        return None;
    }
    Some(Finding {
        kind: "imbalance",
        level: Level::Limit,
        title: "Servers had unequal queues".to_owned(),
        what: format!(
            "A request waited {} on average at {worst} and {} at {best}.",
            duration(*longest),
            duration(*shortest)
        ),
        advice: ADVICE.to_owned(),
    })
}
