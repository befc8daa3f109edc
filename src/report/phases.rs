//! What faults did to requests: their figures before, during and after each fault, when the last request was sent to the server, and how
//! soon the server served again.

use std::collections::BTreeMap;

use serde::Serialize;

use super::files::{FaultRow, ServerFile};
use super::load::is_given_up;
use crate::request::{ColumnId, Period, StageSet, TypedRow as _, parse_failed};
use crate::stats::{quantile, sorted};
use crate::table::Table;
use crate::units::{count, duration};

/// One or several overlapping faults.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Episode {
    /// The faults.
    pub faults: Vec<Fault>,
    /// The requests before the first began, while one lasted, and after the last was over.
    pub phases: [Phase; 3],
}

/// Something that follows a fault, and how soon.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Effect {
    /// How soon, seconds; `None` if it did not happen, or that is unknown.
    pub seconds: Option<f64>,
    /// The same as text.
    pub said: String,
}

/// A fault of one server.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Fault {
    /// The server's name.
    pub server: String,
    /// `kill`, or a kind of the hop's.
    pub kind: String,
    /// When it began, seconds since the run began.
    pub down: f64,
    /// When it was taken away; `None` if not in this run.
    pub up: Option<f64>,
    /// When a server that was killed or refused connections was ready again.
    pub ready: Option<f64>,
    /// When the server could serve again: `ready` of one that was killed or refused connections, else `up`.
    pub over: Option<f64>,
    /// When the last request was sent to the server during the fault, from its start, if others came later.
    pub left: Effect,
    /// How soon the server served again, from when it could.
    pub recovery: Effect,
    /// If the server never served again: the number of requests, to any server, that arrived when it could have.
    pub unserved: usize,
}

/// The requests that arrived within a time. Those under way when a fault began that failed count as during the fault.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Phase {
    /// Its start, seconds since the run began.
    pub from: f64,
    /// Its end; `None` if it is the run's.
    pub to: Option<f64>,
    /// The number of requests.
    pub requests: usize,
    /// The number of failed requests by outcome, without those given up when the run was stopped.
    pub failed: BTreeMap<String, usize>,
    /// The number of requests given up when the run was stopped.
    pub given_up: usize,
    /// The TTFT of successful requests.
    pub ttft: Quantiles,
    /// The total latency of successful requests.
    pub total_latency: Quantiles,
}

/// Quantiles in seconds; `None` if there are too few requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Quantiles {
    /// Median.
    pub p50: Option<f64>,
    /// 99th percentile.
    pub p99: Option<f64>,
}

/// The quantiles, and the fewest requests that each is computed of: the p99 of fewer than 100 is the maximum.
const QUANTILES: [(f64, usize); 2] = [(0.5, 10), (0.99, 100)];
const NAMES: [&str; 3] = ["before", "during", "after"];

/// A request's arrival and its first row.
type Arrival = (f64, usize);

/// Requests in the order of arrival.
struct Arrivals<'a> {
    table: &'a Table,
    rows: Vec<Arrival>,
}

/// The requests to a server, in the order of sending.
#[derive(Default)]
struct Traffic {
    sent: Vec<SentRequest>,
    /// Whether rows name a server that refuses connections: a hop before it reported a request, or a balancing front did.
    names_refusals: bool,
    /// The arrivals of requests whose server is unknown.
    unknown: Vec<f64>,
    /// When requests were sent to other servers.
    elsewhere: Vec<f64>,
    /// Whether there are no other servers.
    is_alone: bool,
}

/// A request sent to a server; times in seconds.
struct SentRequest {
    at: f64,
    arrival: f64,
    is_ok: bool,
}

/// Returns the episodes of a run in order. A fault that began while another lasted belongs to the same episode.
pub fn episodes(table: &Table, faults: &[FaultRow], servers: &[ServerFile]) -> Vec<Episode> {
    let arrivals = Arrivals::of(table);
    let mut grouped: Vec<Vec<Fault>> = Vec::new();
    for fault in pair_events(faults) {
        let lasts = |group: &&mut Vec<Fault>| end(group).is_none_or(|over| over > fault.down);
        match grouped.last_mut().filter(lasts) {
            Some(group) => group.push(fault),
            None => grouped.push(vec![fault]),
        }
    }
    let begins: Vec<f64> = grouped.iter().map(|faults| faults[0].down).collect();
    let mut since = 0.0;
    let mut episodes = Vec::new();
    for (n, mut faults) in grouped.into_iter().enumerate() {
        let (from, to, next) = (begins[n], end(&faults), begins.get(n + 1).copied());
        let (before, mut during) = arrivals.split_by_fault(since, Some(from));
        during.extend(arrivals.between(from, to));
        // Requests that the next fault broke count as during that one.
        let after = to.map_or(Vec::new(), |to| arrivals.split_by_fault(to, next).0);
        for fault in &mut faults {
            let traffic = arrivals.sent_to(&fault.server, servers);
            traffic.describe(fault, &arrivals);
        }
        episodes.push(Episode {
            faults,
            phases: [
                arrivals.phase(&before, since, Some(from)),
                arrivals.phase(&during, from, to),
                to.map_or_else(Phase::default, |to| arrivals.phase(&after, to, next)),
            ],
        });
        since = to.unwrap_or(f64::INFINITY);
    }
    episodes
}

/// Joins each `down` with the `up` and `ready` of the same server that follow it; in order of time.
pub fn pair_events(rows: &[FaultRow]) -> Vec<Fault> {
    let mut rows: Vec<&FaultRow> = rows.iter().collect();
    rows.sort_by(|a, b| a.time.total_cmp(&b.time));
    let mut faults: Vec<Fault> = Vec::new();
    for row in rows {
        let last = faults.iter_mut().rfind(|fault| fault.server == row.server);
        match (last, row.event.as_str(), row.kind.as_str()) {
            (_, "down", _) => faults.push(Fault {
                server: row.server.clone(),
                kind: row.kind.clone(),
                down: row.time,
                ..Fault::default()
            }),
            (Some(fault), "up", _) => fault.up = fault.up.or(Some(row.time)),
            // Servers with other faults are always ready.
            (Some(fault), "ready", "kill" | "refuse") => {
                fault.ready = fault.ready.or(Some(row.time));
            }
            _ => {}
        }
    }
    for fault in &mut faults {
        let up = fault.up.filter(|_| fault.kind != "kill");
        fault.over = fault.ready.or(up);
    }
    faults
}

/// When the last fault was over; `None` if one never was.
fn end(faults: &[Fault]) -> Option<f64> {
    let mut ends = faults.iter().map(|fault| fault.over);
    ends.try_fold(0.0, |last: f64, over| Some(last.max(over?)))
}

impl Arrivals<'_> {
    fn of(table: &Table) -> Arrivals<'_> {
        let arrived = |row| Some((table.number(ColumnId::arrival_time, row)?, row));
        let mut rows: Vec<Arrival> = table.first_rows().filter_map(arrived).collect();
        rows.sort_by(|a, b| a.0.total_cmp(&b.0));
        Arrivals { table, rows }
    }

    /// The requests that arrived from `from` on and before `to`.
    fn between(&self, from: f64, to: Option<f64>) -> &[Arrival] {
        let place = |at: f64| self.rows.partition_point(|(arrival, _)| *arrival < at);
        let end = to.map_or(self.rows.len(), place);
        self.rows.get(place(from)..end).unwrap_or(&[])
    }

    /// Splits the requests that arrived since a time and before a fault: those that the fault did not break, and those under way when it
    /// began that failed. Successful ones are in the first part however long they took, as it would look faster without the slowest;
    /// so are those given up when the run was stopped.
    fn split_by_fault(&self, since: f64, fault: Option<f64>) -> (Vec<Arrival>, Vec<Arrival>) {
        let is_unbroken = |(_, row): &Arrival| {
            let end = self.table.number(ColumnId::end_time, *row);
            let is_over = end.zip(fault).is_none_or(|(end, fault)| end < fault);
            is_over || self.table.is_ok(*row) || is_given_up(self.table, *row)
        };
        let all = self.between(since, fault).iter().copied();
        all.partition(is_unbroken)
    }

    /// Returns the requests to one of these servers. Rows name it by its host or its hop.
    fn sent_to(&self, server: &str, servers: &[ServerFile]) -> Traffic {
        let file = servers.iter().find(|of| of.name == server);
        let host = file.map_or(server, |file| &file.host);
        let mut traffic = Traffic {
            is_alone: servers.len() == 1,
            ..Traffic::default()
        };
        for &(arrival, row) in &self.rows {
            let text = |column| self.table.text(column, row);
            let (attempts, worker) = (text(ColumnId::failed_attempts), text(ColumnId::worker));
            let hosts = [ColumnId::host, ColumnId::prefill_host].map(text);
            // A hop may have held a request that no server had.
            let is_held = hosts == ["", ""] && worker == server;
            let mut failed = parse_failed(attempts);
            let (at, is_ok) = if hosts.contains(&host) {
                traffic.names_refusals |= !worker.is_empty();
                let at = self.table.number(ColumnId::router_send_time, row);
                (at.unwrap_or(arrival), self.table.is_ok(row))
            } else if is_held || failed.any(|of| [host, server].contains(&&*of.host)) {
                traffic.names_refusals = true;
                // When it was sent is unknown: not before it arrived.
                (arrival, false)
            } else {
                let is_unknown = hosts == ["", ""] && attempts.is_empty() && worker.is_empty();
                let cell = |column| self.table.value(column, row);
                // On the way to a server: that may have refused it.
                let is_sent = |of: StageSet| of.holds(Period::NETWORK) || !of.is_before_server();
                if is_unknown && cell.ended_in().is_none_or(is_sent) {
                    traffic.unknown.push(arrival);
                }
                let sent = self.table.number(ColumnId::router_send_time, row);
                traffic.elsewhere.extend(sent);
                continue;
            };
            traffic.sent.push(SentRequest { at, arrival, is_ok });
        }
        traffic.sent.sort_by(|a, b| a.at.total_cmp(&b.at));
        traffic
    }

    fn phase(&self, rows: &[Arrival], from: f64, to: Option<f64>) -> Phase {
        let (table, mut ok) = (self.table, Vec::new());
        let (mut failed, mut given_up) = (BTreeMap::new(), 0);
        for &(_, row) in rows {
            let outcome = table.text(ColumnId::outcome, row).to_owned();
            match (table.is_ok(row), is_given_up(table, row)) {
                (true, _) => ok.push(row),
                (_, true) => given_up += 1,
                _ => *failed.entry(outcome).or_insert(0) += 1,
            }
        }
        let quantiles = |column| {
            let values = sorted(ok.iter().filter_map(|row| table.number(column, *row)));
            let [p50, p99] =
                QUANTILES.map(|(q, min)| quantile(&values, q).filter(|_| values.len() >= min));
            Quantiles { p50, p99 }
        };
        Phase {
            from,
            to,
            requests: rows.len(),
            ttft: quantiles(ColumnId::ttft),
            total_latency: quantiles(ColumnId::total_latency),
            failed,
            given_up,
        }
    }
}

impl Effect {
    fn new(seconds: Option<f64>, said: impl Into<String>) -> Effect {
        let said = said.into();
        Effect { seconds, said }
    }
}

impl Traffic {
    /// Fills in when the last request was sent to a fault's server, and how soon the server served again.
    fn describe(&self, fault: &mut Fault, all: &Arrivals<'_>) {
        fault.left = self.left(fault, all);
        let Some(over) = fault.over else {
            fault.recovery = Effect::new(None, "the fault lasted to the end of the run");
            return;
        };
        let served = self.sent.iter().find(|sent| sent.at >= over && sent.is_ok);
        let arrived = all.between(over, None);
        fault.recovery = match (served, arrived) {
            (None, [.., (last, _)]) if !self.sent.is_empty() => {
                let has_ended = |(_, row): &&Arrival| !is_given_up(all.table, *row);
                fault.unserved = arrived.iter().filter(has_ended).count();
                let (after, arrived) = (duration(last - over), count(arrived.len(), "request"));
                let said = format!(
                    "it served nothing in the {after} after the fault, in which {arrived} came"
                );
                Effect::new(None, said)
            }
            _ if matches!(&*fault.kind, "stall" | "slow" | "cut") => {
                Effect::new(None, "it could be reached all the time")
            }
            (Some(served), _) => {
                let after = served.at - over;
                let said = format!("it served again {} after it was back", duration(after));
                Effect::new(Some(after), said)
            }
            _ => Effect::new(
                None,
                "when it served again is unknown: no later request or no row names it",
            ),
        };
    }

    fn left(&self, fault: &Fault, all: &Arrivals<'_>) -> Effect {
        // A server that is up again may serve before it is seen to be ready.
        let until = fault.up.or(fault.over).unwrap_or(f64::INFINITY);
        let is_during = |at: &f64| (fault.down..until).contains(at);
        let mut during = self.sent.iter().filter(|sent| is_during(&sent.at));
        // The last may have been held while others that came later were sent.
        let arrivals = during.clone().map(|sent| sent.arrival);
        let newest = arrivals.max_by(f64::total_cmp);
        let last = during.next_back();
        let known = last.map_or(f64::NEG_INFINITY, |last| last.arrival);
        let is_later = |at: &f64| is_during(at) && *at > known;
        // A refused connection is in no row, not even in a hop's.
        let is_unknown = fault.kind == "refuse" || !self.names_refusals;
        let text = match last {
            _ if self.is_alone => "it is the only server: traffic had nowhere else to go",
            _ if is_unknown || self.unknown.iter().any(is_later) => {
                "when traffic moved away is unknown: not every row names the server that its request was sent to"
            }
            None => "no request was sent there during the fault",
            Some(last) => {
                let came = all.between(fault.down, Some(until)).iter();
                let later = came.filter(|(arrival, _)| Some(*arrival) > newest).count();
                // Where requests wait before they are sent, all may have come before.
                let mut elsewhere = self.elsewhere.iter();
                if later > 0 || elsewhere.any(|at| is_during(at) && *at > last.at) {
                    let after = last.at - fault.down;
                    let mut said = format!(
                        "the last request was sent there {} after it began",
                        duration(after)
                    );
                    if later > 0 {
                        said += &format!("; {} came later", count(later, "request"));
                    }
                    return Effect::new(Some(after), said);
                }
                "traffic did not leave it: none came after the last that was sent there"
            }
        };
        Effect::new(None, text)
    }
}

/// Returns the episodes as lines of text.
pub fn lines(episodes: &[Episode]) -> Vec<String> {
    let mut lines = Vec::new();
    for episode in episodes {
        for fault in &episode.faults {
            let over = fault.over.map(|over| format!("until {over:.1} s"));
            let over = over.unwrap_or_else(|| "to the end of the run".to_owned());
            let (server, kind, down) = (&fault.server, &fault.kind, fault.down);
            lines.push(format!("Fault: {server} {kind} from {down:.1} s {over}"));
            lines.push(format!("  {}; {}", fault.left.said, fault.recovery.said));
        }
        lines.push(format!(
            "  {:<7} {:>8} {:>7}  {:>19}  {:>19}  failed as",
            "", "requests", "failed", "TTFT p50 / p99", "total p50 / p99"
        ));
        let phases = NAMES.iter().zip(&episode.phases);
        lines.extend(phases.map(|(name, phase)| format!("  {name:<7} {}", phase.line())));
    }
    lines
}

impl Phase {
    fn line(&self) -> String {
        let failed: usize = self.failed.values().sum();
        let given_up = format!("{} given up when the run was stopped", self.given_up);
        let outcomes = self.failed.iter().map(|(name, n)| format!("{name} {n}"));
        let outcomes = outcomes.chain((self.given_up > 0).then_some(given_up));
        let line = format!(
            "{:>8} {failed:>7}  {:>19}  {:>19}  {}",
            self.requests,
            self.ttft.text(),
            self.total_latency.text(),
            outcomes.collect::<Vec<_>>().join(", ")
        );
        line.trim_end().to_owned()
    }
}

impl Quantiles {
    fn text(&self) -> String {
        let text = |value: Option<f64>| value.map_or_else(|| "too few".to_owned(), duration);
        format!("{} / {}", text(self.p50), text(self.p99))
    }
}

#[cfg(test)]
mod tests;
