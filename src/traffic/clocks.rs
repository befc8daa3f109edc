//! Relates the clocks of proxies and engines to the generator's, from the exchanges that have ended so far.

use crate::engine::join::Joined;
use crate::offset::OffsetTable;
use crate::request::{ClockOf, Row, name_engine_clock, relate_engine, relate_process};

use super::client::Exchange;

/// The offsets of other clocks, as known from the exchanges so far.
#[derive(Debug, Default)]
pub(super) struct Clocks {
    processes: OffsetTable,
    engines: OffsetTable,
}

impl Clocks {
    /// Learns from an exchange that has ended, and returns its rows with their clocks related.
    pub(super) fn relate(&mut self, exchange: Exchange) -> Vec<Row> {
        let Exchange {
            mut rows, stamps, ..
        } = exchange;
        let front = stamps.as_ref();
        let hop = front.and_then(|front| front.hop.as_deref());
        // The hop, too, read the request after our send, and wrote its stamps before we read the response.
        for process in [(ClockOf::Front, front), (ClockOf::Hop, hop)] {
            relate_process(&mut rows, &mut self.processes, process);
        }
        name_engine_clock(&mut rows, hop.or(front));
        relate_engine(&mut rows, &mut self.engines, true);
        rows
    }

    /// Learns from a request whose rows waited for the server's log, and returns them.
    pub(super) fn relate_joined(&mut self, joined: Joined) -> Vec<Row> {
        joined.into_rows(&mut self.engines)
    }
}

#[cfg(test)]
mod chain;
