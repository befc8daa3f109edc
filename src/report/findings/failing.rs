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
use crate::units;
use crate::units::duration;

use super::servers::ended;
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
    let others = all.keys().filter(|other| *other != host);
    let others: Vec<&str> = others.map(|of| &**of).collect();
    if !others.is_empty() {
        what += &format!("; {} failed too", others.join(", "));
    }
    finding.title = format!("{host} failed");
    Some(format!("{what}."))
}

/// Requests that spent longer outside the server during a fault than any request that ended before it. Requests that were given up
/// count while a hop held them, so that no server had them; other failures are findings of their own.
pub fn waited_for_fault(facts: &Facts<'_>, _: &mut Finding) -> Option<String> {
    let table = &facts.run.table;
    // The time in a decode server includes the wait for the prefill server, so only the queue counts then.
    let has_server_time =
        table.has(ColumnId::server_finish_time) && !table.has(ColumnId::disaggregated);
    let what = if has_server_time {
        "time in the server"
    } else {
        "wait in the server queue"
    };
    let [created, finished] = [ColumnId::server_created_time, ColumnId::server_finish_time];
    // When a request arrived and ended, and how long it was outside the server, less the error of the front's clock.
    let times = |row| {
        let at = table.number(ColumnId::arrival_time, row)?;
        let until_end = || table.between(ColumnId::arrival_time, ColumnId::end_time, row);
        let total = match table.is_ok(row) {
            true => table.number(ColumnId::total_latency, row)?,
            false => seconds(until_end()?),
        };
        let inside = match has_server_time && table.is_ok(row) {
            true => seconds(table.between(created, finished, row)?),
            false => table.number(ColumnId::pure_queue_time, row).unwrap_or(0.0),
        };
        let error = table.number(ColumnId::front_clock_offset_error, row);
        Some((at, at + total, total - inside - error.unwrap_or(0.0)))
    };
    let is_held = |row: &usize| {
        let is_given_up =
            [Outcome::Timeout, Outcome::ClientAbort].contains(&outcome_of(table, *row));
        is_given_up && held_by(table, *row).is_some()
    };
    let which = match facts.run.counted().any(|row| is_held(&row)) {
        true => "went well or were given up",
        false => "went well",
    };
    let rows = facts.run.counted();
    let rows = rows.filter(|row| table.is_ok(*row) || is_held(row));
    let all: Vec<(f64, f64, f64)> = rows.filter_map(times).collect();
    let sentences = facts.episodes.iter().filter_map(|Episode { faults, phases }| {
        let [before, during, _] = phases;
        let (down, over) = (during.from, during.to.unwrap_or(f64::INFINITY));
        let before = all.iter().filter(|of| before.from <= of.0 && of.1 <= down);
        let longest = before.clone().map(|of| of.1 - of.0).reduce(f64::max)?;
        let usual = before.clone().map(|of| of.2).reduce(f64::max);
        let usual = usual.filter(|_| before.count() as u64 * 2 >= ENOUGH)?;
        let limit = usual + (longest * LONGER.0).max(LONGER.1);
        let arrived = all.iter().filter(|of| (down..over).contains(&of.0));
        let waited = arrived.clone().map(|of| of.2).filter(|took| *took >= limit);
        let longest = waited.clone().reduce(f64::max)?;
        let servers: BTreeSet<&str> = faults.iter().map(|of| &*of.server).collect();
        let servers = Vec::from_iter(servers).join(", ");
        let (kind, count, arrived) = (&faults.first()?.kind, waited.count(), arrived.count());
        let [limit, longest, usual] = [limit, longest, usual].map(duration);
        Some(format!(
            "While {servers} had the fault {kind}, {count} of the {arrived} requests that {which} took {limit} or longer, up to {longest}, without \
             their {what}; none that ended before took more than {usual}."
        ))
    });
    let sentences: Vec<String> = sentences.collect();
    (!sentences.is_empty()).then(|| sentences.join(" "))
}

/// Returns the servers that failed, by host, and when the last request of all ended.
fn failing(run: &Run) -> (BTreeMap<Cow<'_, str>, Server>, f64) {
    let (table, mut last) = (&run.table, 0.0_f64);
    let mut servers: BTreeMap<Cow<'_, str>, Server> = BTreeMap::new();
    for row in run.counted().filter(|_| run.faults.is_empty()) {
        let end = ended(run, row).unwrap_or(0.0);
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
    let host = error.split_once(": ").map_or("", |(host, _)| host);
    match host.contains(':') && !host.contains(' ') {
        true => host,
        false => "",
    }
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
