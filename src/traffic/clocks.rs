//! Puts the moments that proxies and engines gave on the generator's clock, as far as the run has told by then.

use crate::clock::Stamp;
use crate::engine::join_table::Joined;
use crate::offset::{OffsetBound, OffsetTable};
use crate::request::observer::{engine_bounds, relate, with_engine};
use crate::request::row::Row;
use crate::request::timeline::{ClockOf, Moment, Relation};

use super::client::Exchange;

/// The clocks as the exchanges that have ended tell them so far.
#[derive(Debug)]
pub(super) struct Clocks {
    own: String,
    processes: OffsetTable,
    engines: OffsetTable,
}

impl Clocks {
    /// Nothing is known yet; `own` is the name of our own clock.
    pub(super) fn new(own: String) -> Clocks {
        Clocks {
            own,
            processes: OffsetTable::default(),
            engines: OffsetTable::default(),
        }
    }

    /// The records of the exchange that ended last.
    pub(super) fn relate(&mut self, exchange: Exchange) -> Vec<Row> {
        let (sent, head) = (exchange.at(Moment::Sent), exchange.at(Moment::ResponseHead));
        let Exchange {
            mut rows, stamps, ..
        } = exchange;
        let hop = stamps.as_ref().and_then(|front| front.hop.as_deref());
        // When the processes of ours on its way stamped what they told with the response's head.
        let stamped = sent.or(head).map(|from| (from, head.unwrap_or(from)));
        if let (Some(front), Some(at)) = (&stamps, stamped) {
            let bounds = OffsetBound::of_exchange(sent, front.arrival, front.now, head);
            self.processes.add(&front.clock, &bounds);
            if let Some(hop) = hop.filter(|hop| hop.clock != front.clock) {
                // Our send came before it read the head, and it wrote its header before we read the response.
                let bounds = OffsetBound::of_exchange(sent, hop.arrival, hop.now, head);
                self.processes.add(&hop.clock, &bounds);
            }
            relate(&mut rows, ClockOf::Front, self.relation(&front.clock, at));
            if let Some(hop) = hop {
                relate(&mut rows, ClockOf::Hop, self.relation(&hop.clock, at));
            }
        }
        // The engine's clock is what its host is called by whoever told us.
        let host = rows.first().and_then(|row| row.host.as_deref());
        let engine = host.map(|host| match hop.or(stamps.as_ref()) {
            Some(told) => told.engine_clock(host),
            None => host.to_owned(),
        });
        if let Some((clock, at)) = engine.as_ref().zip(with_engine(&rows)) {
            self.engines.add(clock, &engine_bounds(&rows));
            if let Some(offset) = self.engines.get_over(clock, at) {
                relate(&mut rows, ClockOf::Engine, Relation::Apart(offset));
            }
        }
        for row in &mut rows {
            row.more.engine_clock.clone_from(&engine);
        }
        rows
    }

    /// The records of an exchange that waited for what the server's log tells.
    pub(super) fn told(&mut self, joined: Joined) -> Vec<Row> {
        joined.into_rows(&mut self.engines)
    }

    /// How the clock of a process of ours stood to our own, over some time.
    fn relation(&self, clock: &str, at: (Stamp, Stamp)) -> Relation {
        match self.processes.get_over(clock, at) {
            _ if clock == self.own => Relation::Same,
            Some(offset) => Relation::Apart(offset),
            None => Relation::Unknown,
        }
    }
}

#[cfg(test)]
mod chain;
