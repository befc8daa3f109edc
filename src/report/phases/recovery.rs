//! When traffic left a server with a fault, and when the server served again.

use super::{Arrival, Arrivals, Effect, Fault};
use crate::report::files::ServerFile;
use crate::report::load::is_given_up;
use crate::request::attempt::parse_failed;
use crate::request::columns::ColumnId;
use crate::units::{count, duration};

/// Traffic has left a server if it got no more requests, and the chance of that at its share before is below this.
const MAX_CHANCE: f64 = 0.01;

/// The requests to a server, in the order of sending.
#[derive(Default)]
pub(super) struct Traffic {
    sent: Vec<SentRequest>,
    /// Whether rows name a server that refuses connections: a hop before it reported a request, or a balancing front did.
    names_refusals: bool,
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
            // A hop may have held a request that no server had.
            let is_held = hosts == ["", ""] && worker == server;
            let mut failed = parse_failed(attempts);
            if hosts.contains(&host) {
                traffic.names_refusals |= !worker.is_empty();
                let at = self.table.number(ColumnId::router_send_time, row);
                let (at, is_ok) = (at.unwrap_or(arrival), self.table.is_ok(row));
                traffic.sent.push(SentRequest { at, arrival, is_ok });
            } else if is_held || failed.any(|of| [host, server].contains(&&*of.host)) {
                traffic.names_refusals = true;
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
        let Some(over) = fault.over else {
            fault.recovery = Effect::none("the fault lasted to the end of the run");
            return;
        };
        let served = self.sent.iter().find(|sent| sent.at >= over && sent.is_ok);
        let arrived = all.between(over, None);
        fault.recovery = match (served, arrived) {
            (None, [.., (last, _)]) if !self.sent.is_empty() => {
                let has_ended = |(_, row): &&Arrival| !is_given_up(all.table, *row);
                fault.unserved = arrived.iter().filter(has_ended).count();
                let (after, arrived) = (duration(last - over), count(arrived.len(), "request"));
                Effect::none(format!(
                    "it served nothing in the {after} after the fault, in which {arrived} came"
                ))
            }
            _ if matches!(&*fault.kind, "stall" | "slow" | "cut") => {
                Effect::none("it could be reached all the time")
            }
            (Some(served), _) => {
                Effect::after(served.at - over, ["it served again ", " after it was back"])
            }
            _ => {
                Effect::none("when it served again is unknown: no later request or no row names it")
            }
        };
    }

    fn left(&self, fault: &Fault, all: &Arrivals<'_>) -> Effect {
        // A server that is up again may serve before it is seen to be ready.
        let until = fault.up.or(fault.over).unwrap_or(f64::INFINITY);
        let is_during = |at: &f64| (fault.down..until).contains(at);
        let last = self.sent.iter().rfind(|sent| is_during(&sent.at));
        let known = last.map_or(f64::NEG_INFINITY, |last| last.arrival);
        let is_later = |at: &&f64| is_during(at) && **at > known;
        let later = |arrivals: &[f64]| arrivals.iter().filter(is_later).count();
        // A refused connection is in no row, not even in a hop's.
        let is_unknown = fault.kind == "refuse" || !self.names_refusals;
        match last {
            _ if self.servers == 1 => {
                Effect::none("it is the only server: traffic had nowhere else to go")
            }
            _ if is_unknown || later(&self.unknown) > 0 => Effect::none(
                "when traffic moved away is unknown: not every row names the server that its request was sent to",
            ),
            _ if all.between(fault.down, Some(until)).is_empty() => {
                Effect::none("no request came during the fault")
            }
            None => Effect::none("no request was sent there during the fault"),
            Some(last) if self.chance(fault.down, later(&self.elsewhere)) < MAX_CHANCE => {
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
