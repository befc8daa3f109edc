//! A server that broke connections off or could not be connected to: what follows from that is no fault of who shares requests
//! out.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use crate::clock::seconds;
use crate::report::load::outcome_of;
use crate::report::phases::Episode;
use crate::report::reader::Run;
use crate::request::attempt::told;
use crate::request::columns::ColumnId;
use crate::request::outcome::{OWN_WANTS, Outcome};
use crate::units;
use crate::units::duration;

use super::servers::ended;
use super::{ENOUGH, Finding, Seen};

/// Fewer of a server's requests than this say nothing of it: 1 of 100.
const LEAST: f64 = 0.01;
/// From this share of the run's time on it is said that a server served nothing at its end: a fifth.
const SILENT: f64 = 0.2;

/// Who takes longer than any did before a fault, by this share of the longest and so many seconds, waited for it.
const LONGER: (f64, f64) = (0.5, 0.05);

/// What became of the requests to a server.
#[derive(Clone, Copy, Debug, Default)]
struct Server {
    requests: u64,
    broken: u64,
    unconnected: u64,
    /// When the last request that it served ended, seconds.
    served: f64,
}

/// The server that failed most, if one did; where that was done on purpose the table of faults says so.
pub fn server(of: &Seen<'_>, found: Finding) -> Option<Finding> {
    let (all, end) = failing(of.run);
    let (host, most) = all.iter().max_by_key(|(_, server)| server.failed())?;
    let said = [
        (most.broken, "attempt", "at it broke off"),
        (most.unconnected, "attempt", "could not connect to it"),
    ];
    let said = said.into_iter().filter(|(count, ..)| *count > 0);
    let said: Vec<String> = said
        .map(|(count, one, what)| format!("{} {what}", units::count(count, one)))
        .collect();
    let mut what = said.join(", ");
    if most.served > 0.0 && end - most.served >= SILENT * end {
        let [served, end] = [most.served, end].map(duration);
        what += &format!("; it served nothing after {served} of {end}");
    }
    let others = all.keys().filter(|other| *other != host);
    let others: Vec<&str> = others.map(|of| &**of).collect();
    if !others.is_empty() {
        what += &format!("; {} failed too", others.join(", "));
    }
    Some(Finding {
        title: format!("{host} failed"),
        ..found.saying(format!("{what}."))
    })
}

/// Requests that took longer outside the server while a fault lasted than any that had ended before it: what makes servers slow is no
/// fault on the way to them. What failed is told by itself.
pub fn waited_for_fault(of: &Seen<'_>, found: Finding) -> Option<Finding> {
    let table = &of.run.table;
    // Of a pair the decode server's time holds the wait for the prefill server.
    let is_told = table.has(ColumnId::server_finish_time) && !table.has(ColumnId::disaggregated);
    let what = if is_told {
        "time in the server"
    } else {
        "wait in the server queue"
    };
    let [created, finished] = [ColumnId::server_created_time, ColumnId::server_finish_time];
    // When it came and ended, and how long it took without that at least, as far as the front's clock is known.
    let times = |row| {
        let error = table.number(ColumnId::front_clock_offset_error, row);
        let at = table.number(ColumnId::arrival_time, row)?;
        let total = table.number(ColumnId::total_latency, row)?;
        let without = match is_told {
            true => seconds(table.between(created, finished, row)?),
            false => table.number(ColumnId::pure_queue_time, row).unwrap_or(0.0),
        };
        Some((at, at + total, total - without - error.unwrap_or(0.0)))
    };
    let well = of.run.counted().filter(|row| table.is_ok(*row));
    let well: Vec<(f64, f64, f64)> = well.filter_map(times).collect();
    let said = of.episodes.iter().filter_map(|Episode { faults, phases }| {
        let [before, during, _] = phases;
        let (down, over) = (during.from, during.to.unwrap_or(f64::INFINITY));
        let before = well.iter().filter(|of| before.from <= of.0 && of.1 <= down);
        let longest = before.clone().map(|of| of.1 - of.0).reduce(f64::max)?;
        let usual = before.clone().map(|of| of.2).reduce(f64::max);
        let usual = usual.filter(|_| before.count() as u64 * 2 >= ENOUGH)?;
        let limit = usual + (longest * LONGER.0).max(LONGER.1);
        let came = well.iter().filter(|of| (down..over).contains(&of.0));
        let waited = came.clone().map(|of| of.2).filter(|took| *took >= limit);
        let longest = waited.clone().reduce(f64::max)?;
        let servers: BTreeSet<&str> = faults.iter().map(|of| &*of.server).collect();
        let servers = Vec::from_iter(servers).join(", ");
        let (kind, count, came) = (&faults.first()?.kind, waited.count(), came.count());
        let [limit, longest, usual] = [limit, longest, usual].map(duration);
        Some(format!(
            "While {servers} had the fault {kind}, {count} of the {came} requests that went well took {limit} or longer, up to {longest}, without \
             their {what}; none that ended before took more than {usual}."
        ))
    });
    let said: Vec<String> = said.collect();
    (!said.is_empty()).then(|| found.saying(said.join(" ")))
}

/// Servers that failed, by their hosts, and when the last request of all ended.
fn failing(run: &Run) -> (BTreeMap<Cow<'_, str>, Server>, f64) {
    let (table, mut last) = (&run.table, 0.0_f64);
    let mut servers: BTreeMap<Cow<'_, str>, Server> = BTreeMap::new();
    for row in run.counted().filter(|_| run.faults.is_empty()) {
        let end = ended(run, row).unwrap_or(0.0);
        let error = table.text(ColumnId::error, row);
        last = last.max(end);
        for attempt in told(table.text(ColumnId::failed_attempts, row)) {
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
            false if is_own_want(error) => {}
            false => server.add(outcome_of(table, row), error.contains("refused")),
        }
    }
    servers.retain(|host, of| {
        let failed = of.failed() as f64;
        !host.is_empty() && failed > 0.0 && failed >= LEAST * of.requests as f64
    });
    (servers, last)
}

/// The server that an error tells of: `a:1: connection refused`, `connect to a:1: Connection refused (os error 111)`.
fn tried(error: &str) -> &str {
    let error = error.strip_prefix("connect to ").unwrap_or(error);
    let host = error.split_once(": ").map_or("", |(host, _)| host);
    match host.contains(':') && !host.contains(' ') {
        true => host,
        false => "",
    }
}

/// Whether a connection failed for want of the generator's own files or ports.
fn is_own_want(error: &str) -> bool {
    OWN_WANTS
        .iter()
        .any(|number| error.ends_with(&format!("(os error {number})")))
}

impl Server {
    fn add(&mut self, outcome: Outcome, is_refused: bool) {
        match outcome {
            Outcome::UpstreamDied => self.broken += 1,
            Outcome::ConnectError => self.unconnected += 1,
            // The proxy's own words.
            Outcome::ProxyError if is_refused => self.unconnected += 1,
            _ => {}
        }
    }

    fn failed(&self) -> u64 {
        self.broken + self.unconnected
    }
}
