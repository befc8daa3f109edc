//! When traffic left a server that was down, and when it was served by it again.

use super::{Arrivals, FaultOf, Outcome};
use crate::request::attempt::told;
use crate::request::columns::ColumnId;
use crate::units::duration;

/// The sendings to a server, in order of time.
pub(super) struct Sent {
    sendings: Vec<Sending>,
    /// Whether a hop before the server told of any: without one, a connection that was refused is in no row.
    is_by_hop: bool,
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
    /// When requests were sent to a server, and whether it answered well. Rows name it by its host, or by its hop.
    pub(super) fn sent_to(&self, host: &str, server: &str) -> Sent {
        let table = self.table;
        let mut sent = Sent {
            sendings: Vec::new(),
            is_by_hop: false,
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
        let mut sendings = self.sendings.iter();
        match sendings.rfind(|sending| (fault.down..until).contains(&sending.at)) {
            None => Outcome::none("no request was sent there while it was down"),
            // Nobody came after it who could have been sent elsewhere.
            Some(last) if last.arrival >= *last_came => Outcome::none("traffic did not leave it"),
            Some(last) => Outcome::after(last.at - fault.down, |after| {
                format!("traffic left it within {after}")
            }),
        }
    }
}
