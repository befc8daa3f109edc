//! Puts the moments that proxies and engines gave on the generator's clock, once the run is over and
//! all its bounds are known (design.md, section 4).

use std::collections::BTreeMap;

use crate::clock::Stamp;
use crate::offset::OffsetTable;
use crate::request::observer::Bound;
use crate::request::record::Record;
use crate::request::stamps::Stamps;
use crate::request::timeline::{ClockOf, Offset, Relation};

use super::client::Exchange;

/// Makes the records of `exchanges`, in their order, with all clocks related as far as the run tells.
pub(super) fn relate(mut exchanges: Vec<Exchange>, own_clock: &str) -> Vec<Record> {
    let mut processes = Clocks::default();
    for exchange in &exchanges {
        let (Some(stamps), Some(at)) = (&exchange.stamps, exchange.moment()) else {
            continue;
        };
        let front = exchange.observed.front_bounds(stamps.now);
        processes.learn(&stamps.clock, &front, at);
        if let Some(hop) = stamps.hop.as_ref().filter(|hop| hop.clock != stamps.clock) {
            processes.learn(&hop.clock, &hop_bounds(exchange, hop), at);
        }
    }
    let mut engines = Clocks::default();
    for exchange in &mut exchanges {
        let at = exchange.moment();
        if let (Some(stamps), Some(at)) = (&exchange.stamps, at) {
            let observed = &mut exchange.observed;
            let mut relation = |clock: &str| match processes.offset(clock, at) {
                _ if clock == own_clock => Relation::Same,
                Some(offset) => Relation::Apart(offset),
                None => Relation::Unknown,
            };
            observed.relate(ClockOf::Front, relation(&stamps.clock));
            if let Some(hop) = &stamps.hop {
                observed.relate(ClockOf::Hop, relation(&hop.clock));
            }
        }
        if let (Some(host), Some(at)) = (exchange.observed.host(), at) {
            engines.learn(host, &exchange.observed.engine_bounds(), at);
        }
    }
    let records = exchanges.into_iter().flat_map(|exchange| {
        let host = exchange.observed.host().zip(exchange.moment());
        let engine = host.and_then(|(host, at)| engines.offset(host, at));
        exchange.observed.into_records(engine)
    });
    records.collect()
}

/// Offsets of a whole run. What was known at the time is kept beside what is known in the end: once a
/// clock has stepped, the table has forgotten how it stood before.
#[derive(Debug, Default)]
struct Clocks {
    table: OffsetTable,
    then: BTreeMap<(String, Stamp), Offset>,
}

impl Clocks {
    fn learn(&mut self, clock: &str, bounds: &[Bound], at: Stamp) {
        self.table.add(clock, bounds);
        if let Some(offset) = self.table.get(clock, at) {
            self.then.insert((clock.to_owned(), at), offset);
        }
    }

    fn offset(&mut self, clock: &str, at: Stamp) -> Option<Offset> {
        let known_then = self.then.get(&(clock.to_owned(), at)).copied();
        self.table.get(clock, at).or(known_then)
    }
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
