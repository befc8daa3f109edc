//! Servers: growing queues, unequal shares, servers that were not used again, and what limits pairs of prefill and decode servers.

use std::collections::{BTreeMap, BTreeSet};

use crate::clock::seconds;
use crate::report::reader::Run;
use crate::request::{ColumnId, Period, ServerRole, StageSet};
use crate::stats::waits::Cause;
use crate::table::Table;
use crate::units::{duration, percent};

use super::{Finding, Level, QUEUE_SHARE, RunReport};

/// The fewest requests of a server, or of a third of a run, that a mean is taken of.
const ENOUGH: usize = 30;
/// How many times longer the queue of the last third of a run is than that of the first, at least, if it grew.
const GROWTH: f64 = 2.0;
/// A normal value is farther from its mean than so many standard deviations in 1 of 100 cases.
const Z_99: f64 = 2.576;
/// Waits that differ by less count as equal, seconds.
const MIN_DIFFERENCE_S: f64 = 0.050;
/// A server with this many times an equal share of the requests has too many.
const UNEQUAL: f64 = 1.25;
/// A server whose requests wait this many times longer than those of another has too many.
const UNEQUAL_WAIT: f64 = 2.0;
/// Chance alone makes shares unequal: chi-square must be this many of its standard deviations above its mean.
const SIGMAS: f64 = 4.0;

/// A server that was brought back and got no requests.
pub fn not_served(report: &RunReport<'_>, finding: &mut Finding) -> Option<String> {
    let servers = report.run.file.as_ref()?.servers.len();
    let mut faults = report.episodes.iter().flat_map(|episode| &episode.faults);
    let fault = faults.find(|fault| fault.unserved > 0 && fault.unserved >= ENOUGH * servers)?;
    let server = &fault.server;
    finding.title = format!("{server} was not used again");
    Some(format!("{server}: {}.", fault.recovery.said))
}

/// A queue that grew from the first third of the run to the last because more requests arrived than ended.
pub fn growth(run: &Run) -> Option<String> {
    let waits = run.counted();
    let waits = waits.filter_map(|row| Some((seconds(run.table.began(row)?), wait(run, row)?)));
    let mut waits: Vec<(f64, f64)> = waits.collect();
    waits.sort_by(|a, b| a.0.total_cmp(&b.0));
    let third = waits.len() / 3;
    if third < ENOUGH || !run.faults.is_empty() {
        return None;
    }
    let (begin, rest) = waits.split_at(third);
    let (middle, end) = rest.split_at(rest.len() - third);
    let [first, middle, last] =
        [begin, middle, end].map(|part| mean(part.iter().map(|(_, wait)| *wait)));
    let is_rising = first <= middle && middle <= last;
    if !is_rising || last < GROWTH * first || last - first < MIN_DIFFERENCE_S {
        return None;
    }
    let (from, to) = (rest.first()?.0, rest.last()?.0);
    // Also those outside the window.
    let count = |time: fn(&Table, usize) -> Option<i64>| {
        let times = run.table.first_rows();
        let times = times.filter_map(|row| time(&run.table, row).map(seconds));
        times.filter(|at| from < *at && *at <= to).count() as f64
    };
    let (arrived, ended) = (count(Table::began), count(Table::ended));
    // At exactly the highest rate that can be served, the backlog is a random walk that cannot go below 0. Its variance is 2 per
    // arrival, for Poisson arrivals and work that varies as much. Below that rate it stays near 0.
    if arrived - ended < Z_99 * (2.0 * arrived).sqrt() {
        return None;
    }
    let [first, middle, last, from, to] = [first, middle, last, from, to].map(duration);
    Some(format!(
        "The first third of the requests waited {first} on average, the next {middle}, the last {last}. More came than the \
         servers finish (from {from} to {to} {arrived} came and {ended} ended, which chance alone does in one of 100 runs at \
         most): latencies say as much of the run's length as of the servers."
    ))
}

fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len() as f64;
    values.sum::<f64>() / count
}

/// How long a row's request waited in the server queue, if it succeeded.
fn wait(run: &Run, row: usize) -> Option<f64> {
    let wait = run.table.number(ColumnId::pure_queue_time, row);
    wait.filter(|_| run.table.is_ok(row))
}

/// The requests of a server, their known waits, and their models.
#[derive(Default)]
struct Load<'a> {
    requests: u64,
    waits: Vec<f64>,
    models: BTreeSet<&'a str>,
}

type Host<'a> = (&'a str, &'a Load<'a>);

/// Unequal shares of the requests, or unequal queues, among servers of the same models.
pub fn imbalance(report: &RunReport<'_>, finding: &mut Finding) -> Option<String> {
    let run = report.run;
    // A server that was down got fewer requests.
    let has_problem = report.findings.iter().any(|of| of.level == Level::Problem);
    if has_problem || !run.faults.is_empty() {
        return None;
    }
    let table = &run.table;
    let mut hosts: BTreeMap<&str, Load<'_>> = BTreeMap::new();
    let servers = run.servers().iter();
    // Prefill servers do not respond to clients.
    for server in servers.filter(|server| server.role != Some(ServerRole::Prefill)) {
        hosts.entry(&server.host).or_default();
    }
    for row in run.counted() {
        let host = hosts.entry(table.text(ColumnId::host, row)).or_default();
        host.requests += 1;
        host.waits.extend(wait(run, row));
        let model = Some(table.text(ColumnId::model, row));
        host.models.extend(model.filter(|model| !model.is_empty()));
    }
    // A failed request may name its prefill server as its host.
    for row in table.first_rows() {
        hosts.remove(table.text(ColumnId::prefill_host, row));
    }
    // The server of a request without a response is unknown.
    hosts.remove("");
    let used = hosts.values().filter(|load| load.requests > 0);
    let kinds: BTreeSet<&BTreeSet<&str>> = used.map(|load| &load.models).collect();
    kinds.iter().find_map(|models| {
        // One that got no request could have got some if all others are of the same models.
        let is_alike = |load: &Load<'_>| match load.requests {
            0 => kinds.len() == 1,
            _ => load.models == **models,
        };
        let hosts = hosts.iter().filter(|(_, load)| is_alike(load));
        let hosts: Vec<Host<'_>> = hosts.map(|(host, load)| (*host, load)).collect();
        let requests: u64 = hosts.iter().map(|(_, load)| load.requests).sum();
        let equal = requests as f64 / hosts.len() as f64;
        if hosts.len() < 2 || equal < ENOUGH as f64 {
            return None;
        }
        unequal_shares(&hosts, equal).or_else(|| {
            let queues = unequal_queues(&hosts)?;
            finding.title = "Servers had unequal queues".to_owned();
            Some(queues)
        })
    })
}

fn unequal_shares(hosts: &[Host<'_>], equal: f64) -> Option<String> {
    let all = || hosts.iter().map(|(host, load)| (host, load.requests));
    let (most, requests) = all().max_by_key(|(_, requests)| *requests)?;
    let (least, fewest) = all().min_by_key(|(_, requests)| *requests)?;
    let apart: f64 = all().map(|(_, n)| (n as f64 - equal).powi(2) / equal).sum();
    let degrees = hosts.len() as f64 - 1.0;
    let by_chance = degrees + SIGMAS * (2.0 * degrees).sqrt();
    (requests as f64 >= UNEQUAL * equal && apart >= by_chance).then(|| {
        format!(
            "{most} had {requests} requests, {least} {fewest}; an equal share is {equal:.0}. Chance alone does not do that."
        )
    })
}

fn unequal_queues(hosts: &[Host<'_>]) -> Option<String> {
    let known = hosts.iter().filter(|(_, load)| load.waits.len() >= ENOUGH);
    let means: Vec<_> = known
        .map(|(host, load)| (host, mean(load.waits.iter().copied())))
        .collect();
    let (worst, longest) = means.iter().max_by(|a, b| a.1.total_cmp(&b.1))?;
    let (best, shortest) = means.iter().min_by(|a, b| a.1.total_cmp(&b.1))?;
    (*longest >= UNEQUAL_WAIT * shortest && longest - shortest >= MIN_DIFFERENCE_S).then(|| {
        format!(
            "A request waited {} on average at {worst} and {} at {best}.",
            duration(*longest),
            duration(*shortest)
        )
    })
}

/// What can limit a pair of a prefill and a decode server.
///
/// A request that waits for memory of the decode server waits for those that hold it. They may be decoding, or wait themselves: for
/// prefill, for the transfer or for a slot.
struct Bottleneck {
    /// The wait that shows it, and its text.
    wait: (Period, &'static str),
    /// The stages that it prolongs for requests that hold memory of the decode server, and their text.
    stages: (&'static [Period], &'static str),
    title: &'static str,
    cause: Cause,
}

const BOTTLENECKS: [Bottleneck; 4] = [
    Bottleneck {
        wait: (Period::DECODE_MEMORY, "until decode had memory for it"),
        stages: (&[Period::DECODE], "decoding"),
        title: "Decode is full: prefill waits for its memory",
        cause: Cause::DecodeMemory,
    },
    Bottleneck {
        wait: (Period::PREFILL_QUEUE, "in prefill's queue"),
        stages: (
            &[Period::PREFILL_QUEUE, Period::PREFILL],
            "in prefill or its queue",
        ),
        title: "Prefill is too slow: requests wait in its queue",
        cause: Cause::PrefillQueue,
    },
    Bottleneck {
        wait: (Period::KV_TRANSFER, "for its KV cache"),
        stages: (&[Period::KV_TRANSFER], "in the transfer of their KV cache"),
        title: "The link is too slow: requests wait for their KV cache",
        cause: Cause::Transfer,
    },
    Bottleneck {
        wait: (Period::DECODE_SLOT, "for a slot of decode's batch"),
        stages: (&[Period::DECODE_SLOT], "waiting for a slot"),
        title: "Decode's batch is full: requests wait for a slot",
        cause: Cause::DecodeSlots,
    },
];

/// Names what requests of pairs waited for most, if the four waits are a large part of their time.
pub fn pair(report: &RunReport<'_>, finding: &mut Finding) -> Option<String> {
    let part = |period: &Period| report.part(StageSet::of(*period));
    let nanos = |period: &Period| part(period).map_or(0, |part| part.nanos);
    let longest = BOTTLENECKS.iter().max_by_key(|one| nanos(&one.wait.0))?;
    let share_of = |one: &Bottleneck| report.summary.all.spent.share(part(&one.wait.0)?);
    let shares = BOTTLENECKS.iter().filter_map(share_of);
    let took = (shares.sum::<f64>() >= QUEUE_SHARE)
        .then(|| report.stage(StageSet::of(longest.wait.0), 0.0))??;
    let mut what = format!("A request waited {took} {}", longest.wait.1);
    let mut bottleneck = longest;
    if longest.wait.0 == Period::DECODE_MEMORY {
        let held = |one: &Bottleneck| one.stages.0.iter().map(nanos).sum::<i128>();
        bottleneck = BOTTLENECKS.iter().max_by_key(|one| held(one))?;
        let part =
            held(bottleneck) as f64 / BOTTLENECKS.iter().map(held).sum::<i128>().max(1) as f64;
        let (at, part) = (bottleneck.stages.1, percent(part));
        what += &format!("; those that had it were {at} for {part} of the time that they had it");
    }
    finding.title = bottleneck.title.to_owned();
    finding.advice = bottleneck.cause.advice().to_owned();
    Some(format!("{what}."))
}
