//! When traffic left a server that was down, and when it was served by it again.

use super::{Arrivals, FaultOf, Outcome};
use crate::report::files::ServerFile;
use crate::report::load::is_given_up;
use crate::request::attempt::told;
use crate::request::columns::ColumnId;
use crate::units::{count, duration};

/// Below this chance that a server got no more requests, traffic has left it.
const BY_CHANCE: f64 = 0.01;

/// The sendings to a server, in order of time.
#[derive(Default)]
pub(super) struct Sent {
    sendings: Vec<Sending>,
    /// Whether a hop before the server told of any: without one, a connection that was refused is in no row.
    is_by_hop: bool,
    /// When requests arrived that were sent to a server of which nobody told.
    untold: Vec<f64>,
    /// When requests arrived that were sent to other servers only.
    elsewhere: Vec<f64>,
    /// How many servers there are; 0: nobody knows.
    servers: usize,
}

/// A sending of a request to a server.
struct Sending {
    at: f64,
    arrival: f64,
    is_ok: bool,
}

impl Outcome {
    /// It came about after so many seconds, which stand between these words.
    fn after(seconds: f64, [before, behind]: [&str; 2]) -> Outcome {
        let said = format!("{before}{}{behind}", duration(seconds));
        let seconds = Some(seconds);
        Outcome { seconds, said }
    }

    /// It did not, or nobody can say.
    fn none(said: impl Into<String>) -> Outcome {
        let (seconds, said) = (None, said.into());
        Outcome { seconds, said }
    }
}

impl Arrivals<'_> {
    /// When requests were sent to one of these servers, and whether it answered well. Rows name it by its host, or by its hop.
    pub(super) fn sent_to(&self, server: &str, servers: &[ServerFile]) -> Sent {
        let file = servers.iter().find(|of| of.name == server);
        let host = file.map_or(server, |file| &file.host);
        let mut sent = Sent {
            servers: servers.len(),
            ..Sent::default()
        };
        for &(arrival, row) in &self.rows {
            let text = |column| self.table.text(column, row);
            let attempts = text(ColumnId::failed_attempts);
            let hosts = [ColumnId::host, ColumnId::prefill_host].map(text);
            if hosts.contains(&host) {
                sent.is_by_hop |= !text(ColumnId::worker).is_empty();
                let at = self.table.number(ColumnId::router_send_time, row);
                let (at, is_ok) = (at.unwrap_or(arrival), self.table.is_ok(row));
                sent.sendings.push(Sending { at, arrival, is_ok });
            } else if told(attempts).any(|failed| [host, server].contains(&&*failed.host)) {
                sent.is_by_hop = true;
                // When it was tried there is not told: not before it arrived.
                let (at, is_ok) = (arrival, false);
                sent.sendings.push(Sending { at, arrival, is_ok });
            } else if hosts != ["", ""] || !attempts.is_empty() {
                sent.elsewhere.push(arrival);
            } else if !matches!(text(ColumnId::ended_in), "client" | "proxy") {
                sent.untold.push(arrival);
            }
        }
        sent.sendings.sort_by(|a, b| a.at.total_cmp(&b.at));
        sent
    }
}

impl Sent {
    /// Says of a fault how soon traffic left its server, and how soon that served again.
    pub(super) fn tell(&self, fault: &mut FaultOf, all: &Arrivals<'_>) {
        fault.left = self.left(fault, all);
        // One that took requests all the time is never back.
        let went_on = match fault.kind.as_str() {
            "stall" => Some("what was held went on"),
            "slow" | "cut" => Some("it could be reached all the time"),
            _ => None,
        };
        let over = fault.over.unwrap_or(f64::INFINITY);
        let mut sendings = self.sendings.iter();
        let served = sendings.find(|sending| sending.at >= over && sending.is_ok);
        let came = all.between(over, None);
        fault.recovery = match (served, came, went_on) {
            (_, _, None) if fault.over.is_none() => Outcome::none("it was not brought back"),
            _ if fault.over.is_none() => Outcome::none("the fault was not taken away"),
            (None, [.., (last, _)], _) if !self.sendings.is_empty() => {
                let ended = came.iter().filter(|(_, row)| !is_given_up(all.table, *row));
                fault.unserved = ended.count();
                let since = went_on.map_or("that it was back", |_| "after that");
                let (back, came) = (duration(last - over), count(came.len(), "request"));
                Outcome::none(format!(
                    "it served nothing in the {back} {since}, in which {came} came"
                ))
            }
            (_, _, Some(went_on)) => Outcome::none(went_on),
            (Some(served), ..) => {
                Outcome::after(served.at - over, ["it served again ", " after it was back"])
            }
            _ if self.sendings.is_empty() => Outcome::none("when it served again is unknown"),
            _ => Outcome::none("no request came after it was back"),
        };
    }

    fn left(&self, fault: &FaultOf, all: &Arrivals<'_>) -> Outcome {
        let unknown =
            |why: &str| Outcome::none(format!("when traffic moved away is unknown: {why}"));
        // A server that is up again may serve before anybody has seen that it is ready.
        let until = fault.up.or(fault.over).unwrap_or(f64::INFINITY);
        let is_meanwhile = |at: &f64| (fault.down..until).contains(at);
        let mut sendings = self.sendings.iter();
        let last = sendings.rfind(|sending| is_meanwhile(&sending.at));
        let known = last.map_or(f64::NEG_INFINITY, |last| last.arrival);
        let is_later = |at: &&f64| is_meanwhile(at) && **at > known;
        let later = |of: &[f64]| of.iter().filter(is_later).count();
        match (last, later(&self.untold), later(&self.elsewhere)) {
            _ if self.servers == 1 => {
                Outcome::none("it is the only server: traffic had nowhere else to go")
            }
            // A hop that refuses reads nothing, so it knows of no request.
            _ if fault.kind == "refuse" => unknown("a refused connection is in no row"),
            _ if !self.is_by_hop => {
                unknown("failed connects are not recorded without hops (`hops = true`)")
            }
            _ if all.between(fault.down, Some(until)).is_empty() => {
                Outcome::none("no request came during the fault")
            }
            (_, untold @ 1.., _) => {
                let untold = count(untold, "later request");
                unknown(&format!("of {untold} no row tells which server had them"))
            }
            (None, ..) => Outcome::none("no request was sent there during the fault"),
            (Some(last), _, others) if self.chance(fault.down, others) < BY_CHANCE => {
                Outcome::after(last.at - fault.down, ["traffic left it within ", ""])
            }
            // That so few went elsewhere may be chance.
            _ => Outcome::none("traffic did not leave it"),
        }
    }

    /// How likely it is that none of so many requests comes to the server, by its share of those that arrived before.
    fn chance(&self, before: f64, requests: usize) -> f64 {
        let ours = self.sendings.iter().filter(|of| of.arrival < before);
        let others = self.elsewhere.iter().filter(|at| **at < before);
        // One more for each server, so that after few requests no share is none or all.
        let ours = (ours.count() + 1) as f64;
        let others = (others.count() + self.servers.max(2) - 1) as f64;
        (others / (ours + others)).powf(requests as f64)
    }
}
