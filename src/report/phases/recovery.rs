//! When traffic left a server with a fault, and when the server served again.

use super::{Arrivals, Effect, Fault};
use crate::report::files::ServerFile;
use crate::report::load::is_given_up;
use crate::request::attempt::parse_failed;
use crate::request::columns::ColumnId;
use crate::table::Table;
use crate::units::{count, duration};

/// Traffic has left a server if it got no more requests, and the chance of that at its share before is below this.
const MAX_CHANCE: f64 = 0.01;

/// The requests to a server, in the order of sending.
#[derive(Default)]
pub(super) struct Traffic {
    sent: Vec<SentRequest>,
    /// Whether a hop before the server, or a front that could not connect to it, reported any: else no row names a server that refuses
    /// connections.
    is_by_hop: bool,
    /// The arrivals of requests whose server is unknown.
    unknown: Vec<f64>,
    /// The arrivals of requests that were sent to other servers only.
    elsewhere: Vec<f64>,
    /// The number of servers; 0 if unknown.
    servers: usize,
}

/// A request sent to a server; times in seconds.
struct SentRequest {
    at: f64,
    arrival: f64,
    is_ok: bool,
}

impl Effect {
    /// It came after so many seconds, which stand between these texts.
    fn after(seconds: f64, [before, behind]: [&str; 2]) -> Effect {
        let said = format!("{before}{}{behind}", duration(seconds));
        let seconds = Some(seconds);
        Effect { seconds, said }
    }

    /// It did not come, or that is unknown.
    fn none(said: impl Into<String>) -> Effect {
        let (seconds, said) = (None, said.into());
        Effect { seconds, said }
    }
}

/// The hop that held a row's request, if no server had it.
fn held_by(table: &Table, row: usize) -> Option<&str> {
    let columns = [ColumnId::host, ColumnId::prefill_host, ColumnId::worker];
    let [host, prefill_host, worker] = columns.map(|of| table.text(of, row));
    let is_held = host.is_empty() && prefill_host.is_empty() && !worker.is_empty();
    is_held.then_some(worker)
}

impl Arrivals<'_> {
    /// Returns the requests to one of these servers. Rows name it by its host or its hop.
    pub(super) fn sent_to(&self, server: &str, servers: &[ServerFile]) -> Traffic {
        let file = servers.iter().find(|of| of.name == server);
        let host = file.map_or(server, |file| &file.host);
        let mut traffic = Traffic {
            servers: servers.len(),
            ..Traffic::default()
        };
        for &(arrival, row) in &self.rows {
            let text = |column| self.table.text(column, row);
            let (attempts, worker) = (text(ColumnId::failed_attempts), text(ColumnId::worker));
            let hosts = [ColumnId::host, ColumnId::prefill_host].map(text);
            let is_held = held_by(self.table, row) == Some(server);
            let mut failed = parse_failed(attempts);
            if hosts.contains(&host) {
                traffic.is_by_hop |= !worker.is_empty();
                let at = self.table.number(ColumnId::router_send_time, row);
                let (at, is_ok) = (at.unwrap_or(arrival), self.table.is_ok(row));
                traffic.sent.push(SentRequest { at, arrival, is_ok });
            } else if is_held || failed.any(|of| [host, server].contains(&&*of.host)) {
                traffic.is_by_hop = true;
                // When it was sent is unknown: not before it arrived.
                let (at, is_ok) = (arrival, false);
                traffic.sent.push(SentRequest { at, arrival, is_ok });
            } else if hosts != ["", ""] || !attempts.is_empty() || !worker.is_empty() {
                traffic.elsewhere.push(arrival);
            } else if !matches!(text(ColumnId::ended_in), "client" | "proxy") {
                traffic.unknown.push(arrival);
            }
        }
        traffic.sent.sort_by(|a, b| a.at.total_cmp(&b.at));
        traffic
    }
}

impl Traffic {
    /// Fills in how soon traffic left a fault's server, and how soon the server served again.
    pub(super) fn describe(&self, fault: &mut Fault, all: &Arrivals<'_>) {
        fault.left = self.left(fault, all);
        // The text for a fault during which the server can be reached.
        let went_on = match fault.kind.as_str() {
            "stall" => Some("the stalled requests went on"),
            "slow" | "cut" => Some("it could be reached all the time"),
            _ => None,
        };
        let over = fault.over.unwrap_or(f64::INFINITY);
        let mut sent = self.sent.iter();
        let served = sent.find(|sent| sent.at >= over && sent.is_ok);
        let arrived = all.between(over, None);
        fault.recovery = match (served, arrived, went_on) {
            (_, _, None) if fault.over.is_none() => Effect::none("it was not brought back"),
            _ if fault.over.is_none() => Effect::none("the fault was not taken away"),
            (None, [.., (last, _)], _) if !self.sent.is_empty() => {
                let ended = arrived
                    .iter()
                    .filter(|(_, row)| !is_given_up(all.table, *row));
                fault.unserved = ended.count();
                let since = went_on.map_or("that it was back", |_| "after that");
                let (back, arrived) = (duration(last - over), count(arrived.len(), "request"));
                Effect::none(format!(
                    "it served nothing in the {back} {since}, in which {arrived} came"
                ))
            }
            (_, _, Some(went_on)) => Effect::none(went_on),
            (Some(served), ..) => {
                Effect::after(served.at - over, ["it served again ", " after it was back"])
            }
            _ if self.sent.is_empty() => Effect::none("when it served again is unknown"),
            _ => Effect::none("no request came after it was back"),
        };
    }

    fn left(&self, fault: &Fault, all: &Arrivals<'_>) -> Effect {
        let unknown =
            |why: &str| Effect::none(format!("when traffic moved away is unknown: {why}"));
        // A server that is up again may serve before it is seen to be ready.
        let until = fault.up.or(fault.over).unwrap_or(f64::INFINITY);
        let is_during = |at: &f64| (fault.down..until).contains(at);
        let last = self.sent.iter().rfind(|sent| is_during(&sent.at));
        let known = last.map_or(f64::NEG_INFINITY, |last| last.arrival);
        let is_later = |at: &&f64| is_during(at) && **at > known;
        let later = |arrivals: &[f64]| arrivals.iter().filter(is_later).count();
        match (last, later(&self.unknown), later(&self.elsewhere)) {
            _ if self.servers == 1 => {
                Effect::none("it is the only server: traffic had nowhere else to go")
            }
            // A hop that refuses connections reads no request.
            _ if fault.kind == "refuse" => unknown("a refused connection is in no row"),
            _ if !self.is_by_hop => {
                unknown("failed connects are not recorded without hops (`hops = true`)")
            }
            _ if all.between(fault.down, Some(until)).is_empty() => {
                Effect::none("no request came during the fault")
            }
            (_, later @ 1.., _) => {
                let later = count(later, "later request");
                unknown(&format!("of {later} no row tells which server had them"))
            }
            (None, ..) => Effect::none("no request was sent there during the fault"),
            (Some(last), _, others) if self.chance(fault.down, others) < MAX_CHANCE => {
                Effect::after(last.at - fault.down, ["traffic left it within ", ""])
            }
            // So few requests may have gone elsewhere by chance.
            _ => Effect::none("traffic did not leave it"),
        }
    }

    /// The chance that none of so many requests is sent to the server, by its share of those that arrived before a time.
    fn chance(&self, before: f64, requests: usize) -> f64 {
        let ours = self.sent.iter().filter(|sent| sent.arrival < before);
        let others = self.elsewhere.iter().filter(|at| **at < before);
        // One more for each server, so that no share is 0 or 1 after few requests (Laplace's rule).
        let ours = (ours.count() + 1) as f64;
        let others = (others.count() + self.servers.max(2) - 1) as f64;
        (others / (ours + others)).powf(requests as f64)
    }
}
