//! Puts the moments that proxies and engines gave on the generator's clock, as far as the run has told by then.

use crate::clock::Stamp;
use crate::offset::{Offset, OffsetBound, OffsetTable};
use crate::request::record::Record;
use crate::request::stamps::Stamps;
use crate::request::timeline::{ClockOf, Relation};

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

impl Exchange {
    /// What it says of the clocks of our processes on its way: the front's, then that of a hop in a process
    /// of its own.
    fn process_bounds(&self) -> Vec<(String, Vec<OffsetBound>)> {
        let Some(stamps) = self
            .seen
            .stamps
            .as_ref()
            .filter(|_| self.head_time().is_some())
        else {
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
        let (Some(stamps), Some(at)) = (&self.seen.stamps, self.head_time()) else {
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

    /// The engine's clock: what its host is called, by whoever told us.
    fn engine(&self) -> Option<String> {
        let host = self.observed.host()?;
        let told = self.seen.stamps.as_ref();
        let told = told.map(|front| front.hop.as_deref().unwrap_or(front));
        Some(told.map_or_else(|| host.to_owned(), |stamps| stamps.engine_clock(host)))
    }

    /// When the processes of ours on its way stamped what they told with the response's head.
    fn head_time(&self) -> Option<(Stamp, Stamp)> {
        let sent = self.seen.sent.or(self.seen.response_head)?;
        Some((sent, self.seen.response_head.unwrap_or(sent)))
    }
}

/// What a hop in a process of its own says of its clock: our send came before it read the head, and it
/// wrote its header before we read the response.
fn hop_bounds(exchange: &Exchange, hop: &Stamps) -> Vec<OffsetBound> {
    OffsetBound::of_exchange(
        exchange.seen.sent,
        hop.arrival,
        hop.now,
        exchange.seen.response_head,
    )
}

#[cfg(test)]
mod chain;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::NANOS;
    use crate::request::endpoint::Endpoint;
    use crate::request::observer::{End, Observer};
    use crate::request::timeline::{Moment, Side};
    use crate::traffic::client::Seen;

    /// So many seconds into the run.
    fn at(seconds: f64) -> Stamp {
        Stamp::from_nanos(1_795_000_000 * NANOS).plus_seconds(seconds)
    }

    /// An exchange with a server whose clock is ahead by five seconds, `way` seconds away.
    fn exchange(way: f64, sent: f64, read: f64) -> Exchange {
        let theirs = |now: f64| at(now + 5.0).seconds();
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
            seen: Seen {
                sent: Some(at(sent)),
                response_head: Some(at(read)),
                ..Seen::default()
            },
        }
    }

    /// What is known of the engine's clock with each of these, as they end.
    fn offsets(exchanges: impl IntoIterator<Item = Exchange>) -> Vec<Option<Offset>> {
        let mut clocks = Clocks::new("ours".to_owned());
        let relation = |record: Record| match record.timeline.relation(ClockOf::Engine) {
            Relation::Apart(offset) => Some(offset),
            _ => None,
        };
        let records = exchanges.into_iter().flat_map(|one| clocks.relate(one));
        records.map(relation).collect()
    }

    #[test]
    fn a_row_has_the_tightest_offset_that_was_known_when_its_request_ended() {
        let ways = [0.107, 0.107, 0.001, 0.107];
        let all = (0..).zip(ways).map(|(n, way)| {
            let sent = f64::from(n);
            exchange(way, sent, sent + 0.3)
        });
        let known: Vec<Offset> = offsets(all).into_iter().flatten().collect();
        let holds = |offset: &Offset| (offset.nanos - 5 * NANOS).abs() <= offset.error_nanos;
        assert!(known.iter().all(holds), "{known:?}");
        let errors: Vec<i64> = known
            .iter()
            .map(|offset| offset.error_nanos / 1_000_000)
            .collect();
        assert_eq!(errors, [107, 107, 1, 1]);
    }
}
