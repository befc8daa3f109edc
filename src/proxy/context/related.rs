//! Other clocks put on ours, as far as is known when a request has ended.

use crate::clock::Stamp;
use crate::offset::OffsetBound;
use crate::request::observer::Observed;
use crate::request::record::Record;
use crate::request::timeline::{ClockOf, Relation};

use super::Context;

impl Context {
    /// The records, with the hop's and the engine's clocks related to ours.
    pub(super) fn related(
        &self,
        mut observed: Observed,
        response_head: Option<Stamp>,
    ) -> Vec<Record> {
        let now = self.shared.clock.now();
        let mut clocks = self.shared.clocks.lock();
        let own_clock = &self.shared.clock_name;
        if let Some(hop) = self.hop.as_ref().filter(|hop| hop.clock != *own_clock) {
            let bounds =
                OffsetBound::of_exchange(self.forwarded, hop.arrival, hop.now, response_head);
            clocks.add(&hop.clock, &bounds);
            let there = (self.forwarded.unwrap_or(now), response_head.unwrap_or(now));
            if let Some(offset) = clocks.get_over(&hop.clock, there) {
                observed.relate(ClockOf::Hop, Relation::Apart(offset));
            }
        }
        let apart = self.hop.as_ref().filter(|hop| hop.clock != *own_clock);
        let engine_clock = observed
            .host()
            .map(|host| apart.map_or_else(|| host.to_owned(), |hop| hop.engine_clock(host)));
        let engine = engine_clock.as_ref().and_then(|engine| {
            clocks.add(engine, &observed.engine_bounds());
            clocks.get_over(engine, observed.with_engine()?)
        });
        drop(clocks);
        let mut rows = observed.into_records(engine);
        for row in rows.iter_mut().filter(|_| self.shared.engine.is_some()) {
            row.facts.engine_clock.clone_from(&engine_clock);
        }
        self.put_passages(&mut rows);
        rows
    }
}
