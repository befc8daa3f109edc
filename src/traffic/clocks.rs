//! Relates the clocks of proxies and engines to the generator's, from the exchanges that have ended so far.

use crate::engine::join_table::Joined;
use crate::offset::{OffsetBound, OffsetTable};
use crate::request::observer::{engine_bounds, engine_window, relate};
use crate::request::row::Row;
use crate::request::timeline::{ClockOf, Moment, Relation};

use super::client::Exchange;

/// The offsets of other clocks, as known from the exchanges so far.
#[derive(Debug)]
pub(super) struct Clocks {
    own: String,
    processes: OffsetTable,
    engines: OffsetTable,
}

impl Clocks {
    /// No offset is known yet; `own` is the name of the generator's clock.
    pub(super) fn new(own: String) -> Clocks {
        Clocks {
            own,
            processes: OffsetTable::default(),
            engines: OffsetTable::default(),
        }
    }

    /// Learns from an exchange that has ended, and returns its rows with their clocks related.
    pub(super) fn relate(&mut self, exchange: Exchange) -> Vec<Row> {
        let (sent, head) = (exchange.at(Moment::Sent), exchange.at(Moment::ResponseHead));
        let Exchange {
            mut rows, stamps, ..
        } = exchange;
        let hop = stamps.as_ref().and_then(|front| front.hop.as_deref());
        // The time in which front and hop took their stamps.
        let window = sent.or(head).map(|from| (from, head.unwrap_or(from)));
        if let (Some(front), Some(at)) = (&stamps, window) {
            for (clock, stamps) in [(ClockOf::Front, Some(front)), (ClockOf::Hop, hop)] {
                let Some(stamps) = stamps else { continue };
                // The hop, too, read the request after our send, and wrote its stamps before we read the response.
                let bounds = OffsetBound::of_exchange(sent, stamps.arrival, stamps.now, head);
                self.processes.add(&stamps.clock, &bounds);
                let relation = match self.processes.get_over(&stamps.clock, at) {
                    _ if stamps.clock == self.own => Relation::Same,
                    Some(offset) => Relation::Apart(offset),
                    None => Relation::Unknown,
                };
                relate(&mut rows, clock, relation);
            }
        }
        // The name of the engine's clock is its host as seen by the process nearest to it.
        let host = rows.first().and_then(|row| row.host.as_deref());
        let engine = host.map(|host| match hop.or(stamps.as_ref()) {
            Some(nearest) => nearest.engine_clock(host),
            None => host.to_owned(),
        });
        if let Some((clock, at)) = engine.as_ref().zip(engine_window(&rows)) {
            self.engines.add(clock, &engine_bounds(&rows));
            if let Some(offset) = self.engines.get_over(clock, at) {
                relate(&mut rows, ClockOf::Engine, Relation::Apart(offset));
            }
        }
        for row in &mut rows {
            row.internal.engine_clock.clone_from(&engine);
        }
        rows
    }

    /// Learns from a request whose rows waited for the server's log, and returns them.
    pub(super) fn relate_joined(&mut self, joined: Joined) -> Vec<Row> {
        joined.into_rows(&mut self.engines)
    }
}

#[cfg(test)]
mod chain;
