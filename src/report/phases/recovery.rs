//! When the last request was sent to a server with a fault, and when the server served again.

use super::{Arrival, Arrivals, Effect, Fault};
use crate::report::files::ServerFile;
use crate::report::load::is_given_up;
use crate::request::{ColumnId, parse_failed};
use crate::units::{count, duration};

/// The requests to a server, in the order of sending.
#[derive(Default)]
pub(super) struct Traffic {
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

impl Effect {
    fn new(seconds: Option<f64>, said: impl Into<String>) -> Effect {
        let said = said.into();
        Effect { seconds, said }
    }
}

impl Arrivals<'_> {
    /// Returns the requests to one of these servers. Rows name it by its host or its hop.
    pub(super) fn sent_to(&self, server: &str, servers: &[ServerFile]) -> Traffic {
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
                if is_unknown && !matches!(text(ColumnId::ended_in), "client" | "proxy") {
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
}

impl Traffic {
    /// Fills in when the last request was sent to a fault's server, and how soon the server served again.
    pub(super) fn describe(&self, fault: &mut Fault, all: &Arrivals<'_>) {
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
        let newest = during
            .clone()
            .map(|sent| sent.arrival)
            .max_by(f64::total_cmp);
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
