//! Puts the moments that proxies and engines gave on the generator's clock: at once as far as the run has
//! told by then, and once it is over and all its bounds are known.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};
use std::io;
use std::sync::Arc;

use crate::clock::{NANOS, Stamp};
use crate::offset::{Offset, OffsetBound, OffsetTable};
use crate::request::record::Record;
use crate::request::stamps::Stamps;
use crate::request::timeline::{ClockOf, Moment, Relation};

use super::client::Exchange;
use super::engine_logs::ByRid;
use super::spool::Spool;

/// The clocks as the exchanges that have ended tell them so far.
#[derive(Debug)]
pub(super) struct SoFar {
    own: String,
    processes: OffsetTable,
    engines: OffsetTable,
}

impl SoFar {
    /// Nothing is known yet; `own` is the name of our own clock.
    pub(super) fn new(own: String) -> SoFar {
        SoFar {
            own,
            processes: OffsetTable::default(),
            engines: OffsetTable::default(),
        }
    }

    /// The records of the exchange that ended last.
    pub(super) fn relate(&mut self, mut exchange: Exchange) -> Vec<Record> {
        for (clock, bounds) in exchange.process_bounds() {
            self.processes.add(&clock, &bounds);
        }
        let known = |clock: &str, at| self.processes.get_over(clock, at);
        exchange.relate(&self.own, known);
        let engine = exchange.engine().zip(exchange.observed.with_engine());
        let offset = engine.and_then(|(clock, at)| {
            self.engines.add(&clock, &exchange.observed.engine_bounds());
            self.engines.get_over(&clock, at)
        });
        exchange.observed.into_records(offset)
    }
}

/// The clocks of a run that is over.
#[derive(Debug)]
pub(super) struct Clocks {
    own: String,
    /// By exchange: the front's, and that of a hop in a process of its own.
    processes: Vec<[Option<Offset>; 2]>,
    engines: Vec<Option<Offset>>,
    /// The exchanges in order of their requests' arrival.
    order: Vec<u32>,
    /// What engines told outside of their responses.
    told: ByRid,
}

impl Clocks {
    /// Of all the exchanges of a run.
    ///
    /// # Errors
    /// What the spool answers.
    pub(super) fn of(exchanges: &Spool, own: &str, told: ByRid) -> io::Result<Clocks> {
        let mut names = Names::default();
        let mut seen = Vec::new();
        for nth in 0..exchanges.len() {
            let exchange = exchanges.get(nth)?;
            let Some(at) = exchange.head_time() else {
                continue;
            };
            for (which, (clock, bounds)) in exchange.process_bounds().into_iter().enumerate() {
                seen.push(Seen::new(2 * nth + which, names.shared(&clock), bounds, at));
            }
        }
        let processes = learned(seen, 2 * exchanges.len());
        let mut clocks = Clocks {
            own: own.to_owned(),
            processes: processes.as_chunks().0.to_vec(),
            engines: Vec::new(),
            order: Vec::new(),
            told,
        };
        drop(processes);
        let mut seen = Vec::new();
        let mut arrivals = Vec::with_capacity(exchanges.len());
        for nth in 0..exchanges.len() {
            let exchange = clocks.exchange(exchanges, nth)?;
            if let (Some(engine), Some(at)) = (exchange.engine(), exchange.observed.with_engine()) {
                let bounds = exchange.observed.engine_bounds();
                seen.push(Seen::new(nth, names.shared(&engine), bounds, at));
            }
            arrivals.push((exchange.arrival(), exchanges.planned(nth), nth as u32));
        }
        clocks.engines = learned(seen, exchanges.len());
        arrivals.sort_unstable();
        clocks.order = arrivals.into_iter().map(|(.., nth)| nth).collect();
        Ok(clocks)
    }

    /// The records of each request, in order of arrival, with all clocks related as far as the run tells.
    pub(super) fn requests<'a>(
        &'a self,
        exchanges: &'a Spool,
    ) -> impl Iterator<Item = io::Result<Vec<Record>>> + 'a {
        self.order.iter().map(|nth| {
            let nth = *nth as usize;
            let exchange = self.exchange(exchanges, nth)?;
            let engine = self.engines.get(nth).copied().flatten();
            Ok(exchange.observed.into_records(engine))
        })
    }

    /// The `nth` exchange with what engines told of it, and our processes' clocks related.
    fn exchange(&self, exchanges: &Spool, nth: usize) -> io::Result<Exchange> {
        let mut exchange = exchanges.get(nth)?;
        self.relate_processes(nth, &mut exchange);
        exchange.observed.take_told(&self.told);
        Ok(exchange)
    }

    fn relate_processes(&self, nth: usize, exchange: &mut Exchange) {
        let [front, hop] = self.processes.get(nth).copied().unwrap_or_default();
        let front_clock = exchange.stamps.as_ref().map(|stamps| stamps.clock.clone());
        let known = |clock: &str, _| match front_clock.as_deref() {
            Some(front_clock) if front_clock == clock => front,
            _ => hop,
        };
        exchange.relate(&self.own, known);
    }
}

/// Names that are the same share their bytes.
#[derive(Debug, Default)]
struct Names(HashSet<Arc<str>>);

impl Names {
    fn shared(&mut self, name: &str) -> Arc<str> {
        if let Some(known) = self.0.get(name) {
            return known.clone();
        }
        let name: Arc<str> = name.into();
        self.0.insert(name.clone());
        name
    }
}

/// What one exchange says of a clock.
#[derive(Debug)]
struct Seen {
    /// Where what is known of it then goes.
    place: usize,
    clock: Arc<str>,
    bounds: Box<[OffsetBound]>,
    /// From when to when its offset is asked for.
    at: (Stamp, Stamp),
}

/// For so long after its time a question waits for what later requests say of a clock, nanoseconds.
const SETTLED: i64 = 60 * NANOS;

impl Seen {
    fn new(place: usize, clock: Arc<str>, bounds: Vec<OffsetBound>, at: (Stamp, Stamp)) -> Seen {
        Seen {
            place,
            clock,
            bounds: bounds.into(),
            at,
        }
    }

    fn is_complete_at(&self) -> Option<Stamp> {
        self.bounds.iter().map(|bound| bound.at).max()
    }

    /// A step makes the table forget: what was known before stays.
    fn ask(&self, table: &OffsetTable, known: &mut [Option<Offset>]) {
        if let Some(offset) = table.get_over(&self.clock, self.at)
            && let Some(place) = known.get_mut(self.place)
        {
            *place = Some(offset);
        }
    }
}

/// Takes in what was seen of a whole run, in the order in which it was: an early request that lasts beyond
/// a step must not make the table forget what shorter ones said before it. The table has a memory of
/// minutes and forgets all that came before a step, so each question is answered soon after the time that
/// it is about. Gives what is known, in `places` places.
fn learned(mut seen: Vec<Seen>, places: usize) -> Vec<Option<Offset>> {
    seen.sort_by_key(Seen::is_complete_at);
    let mut table = OffsetTable::default();
    let mut known = vec![None; places];
    // Questions by when they are asked for the last time.
    let mut open: BinaryHeap<Reverse<(Stamp, usize)>> = BinaryHeap::new();
    for (number, one) in seen.iter().enumerate() {
        let now = one.is_complete_at();
        while let Some(Reverse((due, asked))) = open.pop() {
            if now.is_none_or(|now| due >= now) {
                open.push(Reverse((due, asked)));
                break;
            }
            seen[asked].ask(&table, &mut known);
        }
        table.add(&one.clock, &one.bounds);
        one.ask(&table, &mut known);
        open.push(Reverse((one.at.1.plus_nanos(SETTLED), number)));
    }
    for Reverse((_, asked)) in open {
        seen[asked].ask(&table, &mut known);
    }
    known
}

impl Exchange {
    /// What it says of the clocks of our processes on its way: the front's, then that of a hop in a process
    /// of its own.
    fn process_bounds(&self) -> Vec<(String, Vec<OffsetBound>)> {
        let Some(stamps) = self.stamps.as_ref().filter(|_| self.head_time().is_some()) else {
            return Vec::new();
        };
        let front = self.observed.front_bounds(stamps.now);
        let hop = stamps.hop.as_ref();
        let hop = hop.filter(|hop| hop.clock != stamps.clock);
        let hop = hop.map(|hop| (hop.clock.clone(), hop_bounds(self, hop)));
        [(stamps.clock.clone(), front)]
            .into_iter()
            .chain(hop)
            .collect()
    }

    /// Puts the moments of our processes on its way on our clock, which is called `own`; `known` gives the
    /// offset of another over some time.
    fn relate(&mut self, own: &str, known: impl Fn(&str, (Stamp, Stamp)) -> Option<Offset>) {
        let (Some(stamps), Some(at)) = (&self.stamps, self.head_time()) else {
            return;
        };
        let relation = |clock: &str| match known(clock, at) {
            _ if clock == own => Relation::Same,
            Some(offset) => Relation::Apart(offset),
            None => Relation::Unknown,
        };
        self.observed
            .relate(ClockOf::Front, relation(&stamps.clock));
        if let Some(hop) = &stamps.hop {
            self.observed.relate(ClockOf::Hop, relation(&hop.clock));
        }
    }

    /// When it arrived, for the order of rows; of one that was never sent, when it was due.
    fn arrival(&self) -> Option<Stamp> {
        let timeline = self.observed.timeline()?;
        let arrived = timeline.time(Moment::Arrival);
        arrived.or_else(|| timeline.raw(Moment::Scheduled))
    }

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
fn hop_bounds(exchange: &Exchange, hop: &Stamps) -> Vec<OffsetBound> {
    OffsetBound::of_exchange(exchange.sent, hop.arrival, hop.now, exchange.response_head)
}

#[cfg(test)]
/// Records in the order of the exchanges.
fn relate(exchanges: Vec<Exchange>, own: &str) -> Vec<Record> {
    let mut spool = Spool::default();
    for exchange in &exchanges {
        spool.push(spool.len(), exchange).unwrap();
    }
    let mut clocks = Clocks::of(&spool, own, ByRid::new()).unwrap();
    clocks.order.sort_unstable();
    let requests = clocks.requests(&spool);
    requests.flat_map(Result::unwrap).collect()
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
