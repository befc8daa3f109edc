//! When traffic left a server that was down, and when it was served by it again.

use super::{Arrivals, FaultOf, Outcome};
use crate::report::files::ServerFile;
use crate::request::attempt::told;
use crate::request::columns::ColumnId;
use crate::units::duration;

/// The sendings to a server, in order of time.
pub(super) struct Sent {
    sendings: Vec<Sending>,
    /// Whether a hop before the server told of any: without one, a connection that was refused is in no row.
    is_by_hop: bool,
    /// When requests arrived that were sent to a server of which nobody told.
    untold: Vec<f64>,
    /// Whether there is another server.
    has_others: bool,
}

/// A sending of a request to a server.
struct Sending {
    at: f64,
    arrival: f64,
    is_ok: bool,
}

impl Outcome {
    /// It came about after so many seconds.
    fn after(seconds: f64, said: impl FnOnce(String) -> String) -> Outcome {
        Outcome {
            seconds: Some(seconds),
            said: said(duration(seconds)),
        }
    }

    /// It did not, or nobody can say.
    fn none(said: impl Into<String>) -> Outcome {
        Outcome {
            seconds: None,
            said: said.into(),
        }
    }
}

impl Arrivals<'_> {
    /// When requests were sent to one of these servers, and whether it answered well. Rows name it by its host, or by its hop.
    pub(super) fn sent_to(&self, server: &str, servers: &[ServerFile]) -> Sent {
        let file = servers.iter().find(|of| of.name == server);
        let host = file.map_or(server, |file| &file.host);
        let table = self.table;
        let mut sent = Sent {
            sendings: Vec::new(),
            is_by_hop: false,
            untold: Vec::new(),
            has_others: servers.len() != 1,
        };
        for &(arrival, row) in &self.rows {
            let mut failed = told(table.text(ColumnId::failed_attempts, row));
            let hosts =
                [ColumnId::host, ColumnId::prefill_host].map(|column| table.text(column, row));
            let (at, is_ok) = if hosts.contains(&host) {
                sent.is_by_hop |= !table.text(ColumnId::worker, row).is_empty();
                let at = table
                    .number(ColumnId::router_send_time, row)
                    .unwrap_or(arrival);
                (at, table.is_ok(row))
            } else if failed.any(|failed| [host, server].contains(&&*failed.host)) {
                sent.is_by_hop = true;
                // When it was tried there is not told: not before it arrived.
                (arrival, false)
            } else {
                let is_ours = matches!(table.text(ColumnId::ended_in, row), "client" | "proxy");
                let is_told = !table.text(ColumnId::failed_attempts, row).is_empty();
                if hosts == ["", ""] && !is_told && !is_ours {
                    sent.untold.push(arrival);
                }
                continue;
            };
            sent.sendings.push(Sending { at, arrival, is_ok });
        }
        sent.sendings.sort_by(|a, b| a.at.total_cmp(&b.at));
        sent
    }
}

impl Sent {
    /// Says of a fault how soon traffic left its server, and how soon that served again.
    pub(super) fn tell(&self, fault: &mut FaultOf, all: &Arrivals<'_>) {
        fault.left = self.left(fault, all);
        let served = |over: f64| {
            let mut sendings = self.sendings.iter();
            sendings.find(|sending| sending.at >= over && sending.is_ok)
        };
        fault.recovery = match fault.over.map(|over| (over, served(over))) {
            None => Outcome::none("it was not brought back"),
            Some(_) if self.sendings.is_empty() => Outcome::none("when it served again is unknown"),
            Some((over, Some(served))) => Outcome::after(served.at - over, |after| {
                format!("it served again {after} after it was back")
            }),
            Some((over, None)) => {
                let came = all.between(over, None);
                fault.unserved = came.len();
                Outcome::none(match came.last() {
                    None => "no request came after it was back".to_owned(),
                    Some((last, _)) => format!(
                        "it served nothing in the {} that it was back, in which {} requests came",
                        duration(last - over),
                        came.len()
                    ),
                })
            }
        };
    }

    fn left(&self, fault: &FaultOf, all: &Arrivals<'_>) -> Outcome {
        if !self.has_others {
            return Outcome::none("it is the only server: traffic had nowhere else to go");
        }
        // A hop that refuses reads nothing, so it knows of no request.
        if fault.kind == "refuse" {
            let why = "when traffic moved away is unknown: a refused connection is in no row";
            return Outcome::none(why);
        }
        if !self.is_by_hop {
            return Outcome::none(
                "when traffic moved away is unknown: failed connects are not recorded without hops (`hops = true`)",
            );
        }
        // A server that is up again may serve before anybody has seen that it is ready.
        let until = fault.up.or(fault.over).unwrap_or(f64::INFINITY);
        let Some((last_came, _)) = all.between(fault.down, Some(until)).last() else {
            return Outcome::none("no request came while it was down");
        };
        let is_meanwhile = |at: &f64| (fault.down..until).contains(at);
        let mut sendings = self.sendings.iter();
        let last = sendings.rfind(|sending| is_meanwhile(&sending.at));
        let known = last.map_or(f64::NEG_INFINITY, |last| last.arrival);
        let untold = self
            .untold
            .iter()
            .filter(|at| is_meanwhile(at) && **at > known);
        match (last, untold.count()) {
            (_, untold @ 1..) => Outcome::none(format!(
                "when traffic moved away is unknown: of {untold} later requests no row tells which server had them"
            )),
            (None, _) => Outcome::none("no request was sent there while it was down"),
            // Nobody came after it who could have been sent elsewhere.
            (Some(last), _) if last.arrival >= *last_came => {
                Outcome::none("traffic did not leave it")
            }
            (Some(last), _) => Outcome::after(last.at - fault.down, |after| {
                format!("traffic left it within {after}")
            }),
        }
    }
}
