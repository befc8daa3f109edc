//! Puts the moments that proxies and engines gave on the generator's clock, once the run is over and
//! all its bounds are known (design.md, section 4).

use crate::clock::Stamp;
use crate::offset::OffsetTable;
use crate::request::observer::Bound;
use crate::request::record::Record;
use crate::request::stamps::Stamps;
use crate::request::timeline::{ClockOf, Relation};

use super::client::Exchange;

/// Makes the records of `exchanges`, in their order, with all clocks related as far as the run tells.
pub(super) fn relate(mut exchanges: Vec<Exchange>, own_clock: &str) -> Vec<Record> {
    let mut processes = OffsetTable::default();
    for exchange in &exchanges {
        let Some(stamps) = &exchange.stamps else {
            continue;
        };
        let front = exchange.observed.front_bounds(stamps.now);
        processes.add(&stamps.clock, &front);
        if let Some(hop) = stamps.hop.as_ref().filter(|hop| hop.clock != stamps.clock) {
            processes.add(&hop.clock, &hop_bounds(exchange, hop));
        }
    }
    let mut engines = OffsetTable::default();
    for exchange in &mut exchanges {
        let at = exchange.moment();
        if let (Some(stamps), Some(at)) = (&exchange.stamps, at) {
            let observed = &mut exchange.observed;
            let relation = |clock: &str| match processes.get(clock, at) {
                _ if clock == own_clock => Relation::Same,
                Some(offset) => Relation::Apart(offset),
                None => Relation::Unknown,
            };
            observed.relate(ClockOf::Front, relation(&stamps.clock));
            if let Some(hop) = &stamps.hop {
                observed.relate(ClockOf::Hop, relation(&hop.clock));
            }
        }
        if let Some(host) = exchange.observed.host() {
            engines.add(host, &exchange.observed.engine_bounds());
        }
    }
    let records = exchanges.into_iter().flat_map(|exchange| {
        let host = exchange.observed.host().zip(exchange.moment());
        let engine = host.and_then(|(host, at)| engines.get(host, at));
        exchange.observed.into_records(engine)
    });
    records.collect()
}

impl Exchange {
    /// The moment at which its offsets are taken.
    fn moment(&self) -> Option<Stamp> {
        self.response_head.or(self.sent)
    }
}

/// What a hop in a process of its own says of its clock: our send came before it read the head, and it
/// wrote its header before we read the response.
fn hop_bounds(exchange: &Exchange, hop: &Stamps) -> Vec<Bound> {
    let bound = |ours: Option<Stamp>, theirs: Option<Stamp>, make: fn(Stamp, i64) -> Bound| {
        let (ours, theirs) = ours.zip(theirs)?;
        Some(make(ours, theirs.nanos_since(ours)))
    };
    let reached = bound(exchange.sent, hop.arrival, |at, nanos| Bound {
        at,
        at_least: None,
        at_most: Some(nanos),
    });
    let returned = bound(exchange.response_head, hop.now, |at, nanos| Bound {
        at,
        at_least: Some(nanos),
        at_most: None,
    });
    reached.into_iter().chain(returned).collect()
}
