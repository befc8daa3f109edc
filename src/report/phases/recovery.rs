//! When traffic left a server that was down, and when it was served by it again.

use serde::Serialize;

use super::{Arrivals, FaultOf};
use crate::report::duration;

/// The quantile of TTFT that has to be back.
pub(super) const QUANTILE: f64 = 0.95;
/// Requests in a row of which it is taken: two of them may be slower.
const WINDOW: usize = 40;
/// How many of a window may be beyond the quantile.
const BEYOND: usize = 2;

/// How soon traffic left a server that was down. Seconds from the fault's begin.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Left {
    /// Rows do not tell what was tried there.
    Unknown,
    /// Requests came, and none was sent there.
    AtOnce,
    /// The last request that was sent there.
    After(f64),
    /// Until the fault was taken away, or the run was over: nobody noticed.
    Never,
    /// No request came while it was down.
    NoRequests,
}

/// How soon a server served again. Seconds from when it could.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Recovery {
    /// No row names the server.
    Unknown,
    /// The fault was never over.
    NeverOver,
    /// The first request sent there that was answered well.
    After(f64),
    /// There was none in so many seconds, until the last request came, and so many requests came, to whichever server.
    Never {
        /// How long it could have.
        seconds: f64,
        /// Requests that came meanwhile.
        requests: usize,
    },
}

/// How soon the p95 of TTFT was back under the upper bound of what it was before. Seconds from when the last fault was
/// over.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Latency {
    /// A fault was never over.
    NeverOver,
    /// Too few requests before it, or too many of them failed, to say what is usual.
    TooFewBefore {
        /// Those that were well.
        well: usize,
        /// So many it takes, at least.
        needed: u64,
    },
    /// Too few after it.
    TooFewAfter {
        /// How many came.
        requests: usize,
        /// The run would have to go on for so long, seconds; `None`: nobody can say.
        more: Option<f64>,
    },
    /// The first of so many requests in a row that were as before.
    After {
        /// When it arrived.
        seconds: f64,
        /// The bound, seconds.
        usual: f64,
    },
    /// Not before the next fault, or the end.
    Never {
        /// The bound, seconds.
        usual: f64,
    },
}

/// The sendings to a server, in order of time.
pub(super) struct Sent {
    sendings: Vec<Sending>,
    /// Whether a hop before the server told of any: others keep quiet about a server that they could not reach.
    is_by_hop: bool,
}

/// A sending of a request to a server.
struct Sending {
    at: f64,
    arrival: f64,
    is_ok: bool,
}

impl Arrivals<'_> {
    /// When requests were sent to a server, and whether it answered well. Rows name it by its host, or by its hop.
    pub(super) fn sent_to(&self, host: &str, server: &str) -> Sent {
        let table = self.table;
        let mut sent = Vec::new();
        let mut is_by_hop = false;
        for &(arrival, row) in &self.rows {
            if table.text("host", row) == host {
                is_by_hop |= !table.text("worker", row).is_empty();
                let at = table.number("router_send_time", row).unwrap_or(arrival);
                sent.push(Sending {
                    at,
                    arrival,
                    is_ok: table.is_ok(row),
                });
            } else if table
                .text("failed_attempts", row)
                .split("; ")
                .any(|attempt| is_at(attempt, host) || is_at(attempt, server))
            {
                is_by_hop = true;
                // When it was tried there is not told: not before it arrived.
                sent.push(Sending {
                    at: arrival,
                    arrival,
                    is_ok: false,
                });
            }
        }
        sent.sort_by(|a: &Sending, b| a.at.total_cmp(&b.at));
        Sent {
            sendings: sent,
            is_by_hop,
        }
    }

    pub(super) fn left(&self, sent: &Sent, fault: &FaultOf) -> Left {
        // A hop that refuses reads nothing, so it knows of no request.
        if !sent.is_by_hop || fault.kind == "refuse" {
            return Left::Unknown;
        }
        // A server that is up again may serve before anybody has seen that it is ready.
        let until = fault.up.or(fault.over()).unwrap_or(f64::INFINITY);
        let came = self.between(fault.down, Some(until));
        let Some((last_came, _)) = came.last() else {
            return Left::NoRequests;
        };
        let mut there = sent
            .sendings
            .iter()
            .filter(|sending| (fault.down..until).contains(&sending.at));
        match there.next_back() {
            None => Left::AtOnce,
            // Nobody came after it who could have been sent elsewhere.
            Some(last) if last.arrival >= *last_came => Left::Never,
            Some(last) => Left::After(last.at - fault.down),
        }
    }
}

impl Sent {
    pub(super) fn recovery(&self, fault: &FaultOf, all: &Arrivals<'_>) -> Recovery {
        let Some(over) = fault.over() else {
            return Recovery::NeverOver;
        };
        if self.sendings.is_empty() {
            return Recovery::Unknown;
        }
        let served = self
            .sendings
            .iter()
            .find(|sending| sending.at >= over && sending.is_ok);
        let came = all.between(over, None);
        let never = Recovery::Never {
            seconds: came.last().map_or(0.0, |(last, _)| last - over),
            requests: came.len(),
        };
        served.map_or(never, |sending| Recovery::After(sending.at - over))
    }
}

/// An attempt begins with its server.
fn is_at(attempt: &str, host: &str) -> bool {
    let rest = attempt.strip_prefix(host);
    rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_alphanumeric()))
}

impl Latency {
    /// Of arrivals and TTFTs after a fault, of a run to which so many requests came a second.
    pub(super) fn of(after: &[(f64, f64)], usual: f64, over: f64, rate: Option<f64>) -> Latency {
        if let missing @ 1.. = WINDOW.saturating_sub(after.len()) {
            return Latency::TooFewAfter {
                requests: after.len(),
                more: rate.map(|rate| missing as f64 / rate),
            };
        }
        let is_usual = |window: &&[(f64, f64)]| {
            let slower = window.iter().filter(|(_, ttft)| *ttft > usual);
            slower.count() <= BEYOND
        };
        match after
            .windows(WINDOW)
            .find(is_usual)
            .and_then(|window| window.first())
        {
            Some((arrival, _)) => Latency::After {
                seconds: arrival - over,
                usual,
            },
            None => Latency::Never { usual },
        }
    }

    /// In words.
    pub fn words(self) -> String {
        match self {
            Latency::NeverOver => "TTFT cannot recover: the fault lasted to the end".to_owned(),
            Latency::TooFewBefore { well, needed } => format!(
                "whether TTFT recovered cannot be said: {well} requests were well before the fault, and it takes {}{needed}",
                if well as u64 >= needed {
                    "more, as they depend on each other, than "
                } else {
                    ""
                }
            ),
            Latency::TooFewAfter { requests, more } => {
                let more = more.map_or(String::new(), |more| {
                    format!("; the run would have to go on for about {more:.0} s more")
                });
                format!(
                    "whether TTFT recovered cannot be said: {requests} requests came after the fault, and it takes {WINDOW}{more}"
                )
            }
            Latency::After { seconds, usual } => format!(
                "p95 TTFT was back at what it was before (at most {}) {} after the fault",
                duration(usual),
                duration(seconds)
            ),
            Latency::Never { usual } => {
                format!(
                    "p95 TTFT did not come back to what it was before (at most {})",
                    duration(usual)
                )
            }
        }
    }
}

impl Left {
    /// In words.
    pub fn words(self) -> String {
        match self {
            Left::Unknown => {
                "when traffic left it is unknown: no row tells what was tried there (with hops rows do, but for `refuse`)"
                    .to_owned()
            }
            Left::AtOnce => "no request was sent there while it was down".to_owned(),
            Left::After(seconds) => format!("traffic left it within {}", duration(seconds)),
            Left::Never => "traffic did not leave it".to_owned(),
            Left::NoRequests => "no request came while it was down".to_owned(),
        }
    }
}

impl Recovery {
    /// In words.
    pub fn words(self) -> String {
        match self {
            Recovery::Unknown => "when it served again is unknown".to_owned(),
            Recovery::NeverOver => "it was not brought back".to_owned(),
            Recovery::After(seconds) => {
                format!("it served again {} after it was back", duration(seconds))
            }
            Recovery::Never { requests: 0, .. } => "no request came after it was back".to_owned(),
            Recovery::Never { seconds, requests } => format!(
                "it served nothing in the {} that it was back, in which {requests} requests came",
                duration(seconds)
            ),
        }
    }
}
