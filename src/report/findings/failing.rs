//! Servers that broke connections or could not be connected to, and requests that waited for a fault done on purpose.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use crate::clock::seconds;
use crate::report::load::outcome_of;
use crate::report::phases::{Episode, held_by};
use crate::report::reader::Run;
use crate::request::attempt::parse_failed;
use crate::request::columns::ColumnId;
use crate::request::outcome::{OWN_SHORTAGES, Outcome};
use crate::request::wait::Wait;
use crate::stats::waits::Cause;
use crate::units;
use crate::units::duration;

use super::{ENOUGH, Facts, Finding};

/// The smallest share of a server's requests that must fail for the server to count as failed.
const MIN_FAILED_SHARE: f64 = 0.01;
/// The share of the run from which it is reported that a server served nothing at the run's end.
const SILENT_SHARE: f64 = 0.2;

/// A request waited for a fault if it took longer than any before the fault: by this share of the longest, and by this many seconds.
const LONGER: (f64, f64) = (0.5, 0.05);

/// The requests to a server.
#[derive(Clone, Copy, Debug, Default)]
struct Server {
    requests: u64,
    broken: u64,
    unconnected: u64,
    /// When the last request that it served ended, seconds.
    served: f64,
}

/// The server that failed most, in a run without faults on purpose: the table of faults reports those.
pub fn server(facts: &Facts<'_>, finding: &mut Finding) -> Option<String> {
    let (all, end) = failing(facts.run);
    let (host, server) = all.iter().max_by_key(|(_, server)| server.failed())?;
    let failures = [
        (server.broken, "at it were cut off"),
        (server.unconnected, "could not connect to it"),
    ];
    let failures = failures.into_iter().filter(|(count, _)| *count > 0);
    let failures: Vec<String> = failures
        .map(|(count, how)| format!("{} {how}", units::count(count, "attempt")))
        .collect();
    let mut what = failures.join(", ");
    if server.served > 0.0 && end - server.served >= SILENT_SHARE * end {
        let [served, end] = [server.served, end].map(duration);
        what += &format!("; it served nothing after {served} of {end}");
    }
    let others: Vec<&str> = all.keys().map(|of| &**of).filter(|of| of != host).collect();
    if !others.is_empty() {
        what += &format!("; {} failed too", others.join(", "));
    }
    finding.title = format!("{host} failed");
    Some(format!("{what}."))
}

/// A request that went well, or that was given up while a hop had it or it decoded.
struct Ended {
    row: usize,
    /// Seconds.
    arrival: f64,
    total: f64,
    /// For how long no fault of a hop may have held it, seconds; `None` if it was given up while it decoded, and that is unknown.
    inside: Option<f64>,
    /// Whether that is all its time in the server, not only its wait in the queue.
    has_server_time: bool,
}

/// Requests that spent longer outside the server during a fault than any request that ended before it. Requests that were given up
/// count while a hop held them, so that no server had them, or while they decoded; other failures are findings of their own.
pub fn waited_for_fault(facts: &Facts<'_>, _: &mut Finding) -> Option<String> {
    let (run, mut sentences) = (facts.run, Vec::new());
    let all = run.counted().filter(|_| !facts.episodes.is_empty());
    let all = all.filter_map(|row| Ended::of(run, row));
    // Only times with the same stages in them compare.
    let (timed, others): (Vec<Ended>, Vec<Ended>) = all.partition(|of| of.has_server_time);
    let compared = [
        (timed, "time in the server"),
        (others, "wait in the server queue"),
    ];
    for episode in facts.episodes {
        let found = |(all, inside): &(Vec<Ended>, &str)| held_by_fault(run, episode, all, inside);
        sentences.extend(compared.iter().filter_map(found));
    }
    (!sentences.is_empty()).then(|| sentences.join(" "))
}

impl Ended {
    fn of(run: &Run, row: usize) -> Option<Ended> {
        let table = &run.table;
        let number = |column| table.number(column, row);
        let (is_ok, is_held) = (table.is_ok(row), held_by(table, row).is_some());
        let is_given_up =
            [Outcome::Timeout, Outcome::ClientAbort].contains(&outcome_of(table, row));
        let is_decoding = is_given_up && number(ColumnId::first_token_time).is_some();
        let total = match is_ok {
            true => number(ColumnId::total_latency)?,
            false if is_given_up && (is_held || is_decoding) => {
                seconds(table.between(ColumnId::arrival_time, ColumnId::end_time, row)?)
            }
            false => return None,
        };
        let [created, finished] = [ColumnId::server_created_time, ColumnId::server_finish_time];
        // The time in a decode server includes the wait for the prefill server, so only the queue counts then.
        let has_server_time = table.has(finished) && !table.has(ColumnId::disaggregated);
        let in_server = table
            .between(created, finished, row)
            .filter(|_| has_server_time && is_ok);
        let in_queue = table.integer(ColumnId::pure_queue_time, row);
        // An attempt that failed at a server with a fault makes a request wait in the router, a full router does so without any fault.
        let before = Wait::before_server(&|column| table.value(column, row));
        let before = match before.of(Cause::Down) {
            0 => before.total(),
            _ => 0,
        };
        // As much of it is due to the error of the front's clock at most.
        let error = table.integer(ColumnId::front_clock_offset_error, row);
        let inside = in_server.or(in_queue).unwrap_or(0) + before + error.unwrap_or(0);
        Some(Ended {
            row,
            arrival: number(ColumnId::arrival_time)?,
            total,
            inside: (is_ok || !is_decoding).then_some(seconds(inside)),
            has_server_time: has_server_time && (!is_ok || in_server.is_some()),
        })
    }
}

/// The requests that arrived during a fault and took longer than any before, without what is `inside`; `None` if there are none, or if too
/// few ended before.
fn held_by_fault(run: &Run, episode: &Episode, all: &[Ended], inside: &str) -> Option<String> {
    let (faults, [before, during, _]) = (&episode.faults, &episode.phases);
    let (down, over) = (during.from, during.to.unwrap_or(f64::INFINITY));
    let is_before = |of: &&Ended| before.from <= of.arrival && of.arrival + of.total <= down;
    let before = all.iter().filter(is_before);
    let longest = before.clone().map(|of| of.total).reduce(f64::max)?;
    // A request that was given up while it decoded was in the server no longer than any before.
    let outside = |of: &Ended| of.total - of.inside.unwrap_or(longest);
    let usual = before.clone().map(outside).reduce(f64::max);
    let usual = usual.filter(|_| before.count() as u64 * 2 >= ENOUGH)?;
    let limit = usual + (longest * LONGER.0).max(LONGER.1);
    let servers: BTreeSet<&str> = faults.iter().map(|of| &*of.server).collect();
    let had_fault = |of: &Ended| {
        let host = run.table.text(ColumnId::host, of.row);
        of.inside.is_some() || servers.contains(run.server(host))
    };
    let arrived = all
        .iter()
        .filter(|of| (down..over).contains(&of.arrival) && had_fault(of));
    let waited = arrived.clone().map(outside).filter(|took| *took >= limit);
    let longest = waited.clone().reduce(f64::max)?;
    let (kind, count, arrived) = (&faults.first()?.kind, waited.count(), arrived.count());
    let [limit, longest, usual] = [limit, longest, usual].map(duration);
    let servers = Vec::from_iter(servers).join(", ");
    Some(format!(
        "While {servers} had the fault {kind}, {count} of the {arrived} requests that went well or were given up took {limit} or longer, up to {longest}, without \
         waiting in the router and their {inside}; none that ended before took more than {usual}."
    ))
}

/// Returns the servers that failed, by host, and when the last request of all ended.
fn failing(run: &Run) -> (BTreeMap<Cow<'_, str>, Server>, f64) {
    let (table, mut last) = (&run.table, 0.0_f64);
    let mut servers: BTreeMap<Cow<'_, str>, Server> = BTreeMap::new();
    for row in run.counted().filter(|_| run.faults.is_empty()) {
        let end = table.ended(row).map_or(0.0, seconds);
        let error = table.text(ColumnId::error, row);
        last = last.max(end);
        for attempt in parse_failed(table.text(ColumnId::failed_attempts, row)) {
            let server = servers.entry(attempt.host.into()).or_default();
            server.add(attempt.outcome.unwrap_or(Outcome::Ok), false);
        }
        let host = match table.text(ColumnId::host, row) {
            "" => tried(error),
            host => host,
        };
        let server = servers.entry(host.into()).or_default();
        server.requests += 1;
        match table.is_ok(row) {
            true => server.served = server.served.max(end),
            false if is_own_shortage(error) => {}
            false => server.add(outcome_of(table, row), error.contains("refused")),
        }
    }
    servers.retain(|host, of| {
        let failed = of.failed() as f64;
        !host.is_empty() && failed > 0.0 && failed >= MIN_FAILED_SHARE * of.requests as f64
    });
    (servers, last)
}

/// The server that an error names: `a:1: connection refused`, `connect to a:1: Connection refused (os error 111)`.
fn tried(error: &str) -> &str {
    let error = error.strip_prefix("connect to ").unwrap_or(error);
    let host = error.split_once(": ").map(|(host, _)| host);
    let host = host.filter(|host| host.contains(':') && !host.contains(' '));
    host.unwrap_or_default()
}

/// Whether a connection failed because the generator had no more files or ports.
fn is_own_shortage(error: &str) -> bool {
    OWN_SHORTAGES
        .iter()
        .any(|number| error.ends_with(&format!("(os error {number})")))
}

impl Server {
    fn add(&mut self, outcome: Outcome, is_refused: bool) {
        match outcome {
            Outcome::UpstreamDied => self.broken += 1,
            Outcome::ConnectError => self.unconnected += 1,
            // The proxy's own error.
            Outcome::ProxyError if is_refused => self.unconnected += 1,
            _ => {}
        }
    }

    fn failed(&self) -> u64 {
        self.broken + self.unconnected
    }
}
