//! Puts the moments that proxies and engines gave on the generator's clock, once the run is over and
//! all its bounds are known (design.md, section 4).

use std::collections::{BTreeMap, BTreeSet};

use crate::clock::{NANOS, Stamp};
use crate::offset::OffsetTable;
use crate::request::observer::Bound;
use crate::request::record::Record;
use crate::request::stamps::Stamps;
use crate::request::timeline::{ClockOf, Offset, Relation};

use super::client::Exchange;

/// Makes the records of `exchanges`, in their order, with all clocks related as far as the run tells.
pub(super) fn relate(mut exchanges: Vec<Exchange>, own_clock: &str) -> Vec<Record> {
    let mut seen = Vec::new();
    for exchange in &exchanges {
        let (Some(stamps), Some(at)) = (&exchange.stamps, exchange.head_time()) else {
            continue;
        };
        let front = exchange.observed.front_bounds(stamps.now);
        seen.push(Seen::new(&stamps.clock, front, at));
        if let Some(hop) = stamps.hop.as_ref().filter(|hop| hop.clock != stamps.clock) {
            seen.push(Seen::new(&hop.clock, hop_bounds(exchange, hop), at));
        }
    }
    let processes = Clocks::learned(seen);
    let mut seen = Vec::new();
    for exchange in &mut exchanges {
        if let (Some(stamps), Some(at)) = (&exchange.stamps, exchange.head_time()) {
            let observed = &mut exchange.observed;
            let relation = |clock: &str| match processes.offset(clock, at) {
                _ if clock == own_clock => Relation::Same,
                Some(offset) => Relation::Apart(offset),
                None => Relation::Unknown,
            };
            observed.relate(ClockOf::Front, relation(&stamps.clock));
            if let Some(hop) = &stamps.hop {
                observed.relate(ClockOf::Hop, relation(&hop.clock));
            }
        }
        if let (Some(engine), Some(at)) = (exchange.engine(), exchange.observed.with_engine()) {
            seen.push(Seen::new(&engine, exchange.observed.engine_bounds(), at));
        }
    }
    let engines = Clocks::learned(seen);
    let records = exchanges.into_iter().flat_map(|exchange| {
        let engine = exchange.engine().zip(exchange.observed.with_engine());
        let engine = engine.and_then(|(engine, at)| engines.offset(&engine, at));
        exchange.observed.into_records(engine)
    });
    records.collect()
}

/// What one exchange says of a clock.
struct Seen {
    clock: String,
    bounds: Vec<Bound>,
    /// From when to when its offset is asked for.
    at: (Stamp, Stamp),
}

/// When a clock is asked about: from when to when, of our clock.
type Asked = (String, (Stamp, Stamp));

/// Offsets of a whole run. The table has a memory of minutes and forgets all that came before a step, so
/// each question is answered soon after the time that it is about.
#[derive(Debug, Default)]
struct Clocks {
    table: OffsetTable,
    known: BTreeMap<Asked, Offset>,
    /// Questions by when they are asked for the last time.
    open: BTreeSet<(Stamp, Asked)>,
}

/// For so long after its time a question waits for what later requests say of a clock, nanoseconds.
const SETTLED: i64 = 60 * NANOS;

impl Seen {
    fn new(clock: &str, bounds: Vec<Bound>, at: (Stamp, Stamp)) -> Seen {
        Seen {
            clock: clock.to_owned(),
            bounds,
            at,
        }
    }

    fn is_complete_at(&self) -> Option<Stamp> {
        self.bounds.iter().map(|bound| bound.at).max()
    }
}

impl Clocks {
    /// Takes in what was seen, in the order in which it was: an early request that lasts beyond a step
    /// must not make the table forget what shorter ones said before it.
    fn learned(mut seen: Vec<Seen>) -> Clocks {
        seen.sort_by_key(Seen::is_complete_at);
        let mut clocks = Clocks::default();
        for one in seen {
            if let Some(now) = one.is_complete_at() {
                clocks.settle(now);
            }
            let Seen { clock, bounds, at } = one;
            clocks.table.add(&clock, &bounds);
            let asked = (clock, at);
            clocks.ask(&asked);
            clocks.open.insert((at.1.plus_nanos(SETTLED), asked));
        }
        clocks.settle(Stamp::from_nanos(i64::MAX));
        clocks
    }

    /// Answers for the last time what is due before `now`.
    fn settle(&mut self, now: Stamp) {
        while let Some((due, asked)) = self.open.pop_first() {
            if due >= now {
                self.open.insert((due, asked));
                return;
            }
            self.ask(&asked);
        }
    }

    /// A step makes the table forget: what was known before stays.
    fn ask(&mut self, asked: &Asked) {
        let (clock, at) = asked;
        if let Some(offset) = self.table.get_over(clock, *at) {
            self.known.insert(asked.clone(), offset);
        }
    }

    fn offset(&self, clock: &str, at: (Stamp, Stamp)) -> Option<Offset> {
        self.known.get(&(clock.to_owned(), at)).copied()
    }
}

impl Exchange {
    /// The engine's clock: what its host is called, by whoever told us.
    fn engine(&self) -> Option<String> {
        let host = self.observed.host()?;
        let told = self.stamps.as_ref();
        let told = told.map(|front| front.hop.as_deref().unwrap_or(front));
        Some(told.map_or_else(|| host.to_owned(), |stamps| stamps.engine_clock(host)))
    }

    /// When the processes of ours on its way stamped what they told with the response's head.
    fn head_time(&self) -> Option<(Stamp, Stamp)> {
        let sent = self.sent.or(self.response_head)?;
        Some((sent, self.response_head.unwrap_or(sent)))
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

#[cfg(test)]
mod chain;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::endpoint::Endpoint;
    use crate::request::observer::{End, Observer};
    use crate::request::timeline::{Moment, Side};

    /// So many seconds into the run.
    fn at(seconds: f64) -> Stamp {
        Stamp::from_nanos(1_795_000_000 * NANOS).plus_seconds(seconds)
    }

    /// An exchange with a server whose clock is ahead by `ahead(now)` seconds, 10 ms away.
    fn exchange(sent: f64, read: f64, ahead: impl Fn(f64) -> f64) -> Exchange {
        exchange_over(0.01, sent, read, ahead)
    }

    /// The same, `way` seconds away.
    fn exchange_over(way: f64, sent: f64, read: f64, ahead: impl Fn(f64) -> f64) -> Exchange {
        let theirs = |now: f64| at(now + ahead(now)).seconds();
        let mut observer = Observer::new(Side::Traffic, Endpoint::Generate, "r".to_owned());
        observer.facts_mut().host = Some("a:1".to_owned());
        observer.timeline_mut().set(Moment::Sent, at(sent));
        observer.response_head(200, Some("text/event-stream"), false, at(read));
        let body = format!(
            "data: {{\"text\":\"a\",\"meta_info\":{{\"id\":\"e\",\"finish_reason\":{{\"type\":\"stop\"}},\
             \"completion_tokens\":1,\"request_received_ts\":{:.6},\
             \"response_sent_to_client_ts\":{:.6}}}}}\n\ndata: [DONE]\n\n",
            theirs(sent + way),
            theirs(read - way),
        );
        observer.response_body(body.as_bytes(), at(read), 0);
        Exchange {
            observed: observer.finish(End::Complete, at(read)),
            stamps: None,
            sent: Some(at(sent)),
            response_head: Some(at(read)),
            connect_nanos: 0,
        }
    }

    /// Whether the record's offset is known and holds the truth, which is within 10 ms of its middle.
    fn holds(record: &Record, ahead: f64) -> bool {
        let truth = (ahead * NANOS as f64) as i64;
        match record.timeline.relation(ClockOf::Engine) {
            Relation::Apart(offset) => {
                let off_by = (offset.nanos - truth).abs();
                off_by <= offset.error_nanos && offset.error_nanos < NANOS / 50
            }
            Relation::Same | Relation::Unknown => false,
        }
    }

    #[test]
    fn what_came_before_a_step_keeps_the_offset_known_then() {
        for (before, after) in [(10.0, 3.0), (3.0, 10.0)] {
            let ahead = |now| if now < 4.5 { before } else { after };
            let all = (0..10).map(|n| exchange(f64::from(n), f64::from(n) + 0.1, ahead));
            let records = relate(all.collect(), "ours");
            assert_eq!(records.len(), 10);
            for (n, record) in records.iter().enumerate() {
                let truth = if n < 5 { before } else { after };
                let is_unknown = record.timeline.relation(ClockOf::Engine) == Relation::Unknown;
                // The one that shows the step may be given up.
                let is_right = holds(record, truth) || (n == 5 && is_unknown);
                assert!(is_right, "{n}: {:?}", record.timeline);
            }
        }
    }

    #[test]
    fn the_first_row_knows_what_later_ones_said() {
        let first = exchange_over(0.107, 0.0, 0.3, |_| 5.0);
        let others = (1..50).map(|n| {
            let sent = f64::from(n) * 0.5;
            exchange_over(0.001, sent, sent + 0.1, |_| 5.0)
        });
        let records = relate([first].into_iter().chain(others).collect(), "ours");
        assert!(holds(&records[0], 5.0));
        let Relation::Apart(offset) = records[0].timeline.relation(ClockOf::Engine) else {
            panic!("{:?}", records[0].timeline);
        };
        // 1 ms of the others' ways, and the drift of ten seconds.
        assert!(offset.error_nanos < 2_100_000, "{offset:?}");
    }

    #[test]
    fn one_that_outlasts_the_step_spoils_none_before_it() {
        for (before, after) in [(10.0, 3.0), (3.0, 10.0)] {
            let ahead = |now| if now < 4.5 { before } else { after };
            let times = [(0.0, 9.0), (1.0, 2.0), (3.0, 4.0), (5.0, 6.0), (7.0, 8.0)];
            let all = times.map(|(sent, read)| exchange(sent, read, ahead));
            let records = relate(all.into(), "ours");
            for (n, truth) in [(1, before), (2, before), (4, after)] {
                assert!(holds(&records[n], truth), "{n}: {:?}", records[n].timeline);
            }
        }
    }
}
