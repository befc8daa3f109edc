//! The way back: when a response's body passed the hop and the front, so that the router's part of it shows.

use std::time::Duration;

use crate::clock::Stamp;
use crate::proxy::join::RequestAttempts;
use crate::request::record::Record;
use crate::request::timeline::Moment;
use crate::telemetry::prometheus::Progress;

use super::Context;

impl Context {
    /// A hop passes a piece of the response's body on that was read at `at`, after it has `held` it for a fault.
    pub fn passed_on(&mut self, is_empty: bool, is_end: bool, at: Stamp, held: Option<Duration>) {
        let Some(attempt) = &mut self.attempt else {
            return;
        };
        let mut is_first = false;
        if !is_empty {
            let held = held.map_or(0, |held| i64::try_from(held.as_nanos()).unwrap_or(i64::MAX));
            let blocked = self.backpressure.blocked_at(at);
            is_first = self.passage.piece(at.plus_nanos(held), blocked);
        }
        if is_first && let Some(at_worker) = &mut self.at_worker {
            at_worker.enter(Progress::Streaming);
        }
        // Before the bytes go on: the front that reads them finds it here.
        if is_end {
            attempt.passed(&self.shared.joins, self.passage, at);
        } else if is_first {
            attempt.passed(&self.shared.joins, self.passage.so_far(), at);
        }
    }

    /// What the hop of this process that answered saw of the body that the front read.
    pub(super) fn take_passage(&mut self, closed: &RequestAttempts) {
        let answered = self.hop.as_ref().and_then(|hop| hop.span);
        let last = closed.last.as_ref();
        if let Some(last) = last.filter(|last| Some(last.span) == answered) {
            self.worker_passage = last.passage;
        }
    }

    /// Puts both passages into the rows.
    pub(super) fn put_passages(&self, rows: &mut [Record]) {
        let (here, worker) = match self.is_at_hop() {
            true => (Default::default(), self.passage),
            false => (self.passage, self.worker_passage),
        };
        for row in rows {
            row.facts.passage = here;
            row.facts.worker_passage = worker;
            // The first bytes brought the token: then they did at the hop, too.
            let brought =
                here.first.is_some() && row.timeline.raw(Moment::FirstToken) == here.first;
            if let Some(at) = worker.first.filter(|_| brought) {
                row.timeline.set(Moment::WorkerFirstToken, at);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proxy::context::tests::shared;
    use crate::proxy::identity::Trace;
    use crate::proxy::shared::Role;
    use crate::request::endpoint::Endpoint;
    use crate::request::observer::End;
    use crate::request::row::Row;
    use crate::request::timeline::Period;

    const MS: i64 = 1_000_000;
    const EVENT: &[u8] = b"data: {\"text\":\"a\",\"meta_info\":{\"completion_tokens\":1}}\n\n";

    /// A request through front, router and hop; the router holds the first event back for 12 ms and the last bytes for
    /// 2 ms. `first` is what comes before the event that brings the first token, 5 ms earlier; `is_whole` says that
    /// the hop saw the end before the front did.
    fn row(first: &[u8], is_whole: bool) -> (Record, Row) {
        let (shared, manual) = shared();
        let at = |ms: i64| manual.set(Stamp::from_nanos(ms * MS));
        let now = || shared.clock.now();
        at(1);
        let mut front = Context::new(shared.clone(), Role::Front, shared.clock.now());
        front.trace = Some(Trace::new());
        front.watch(Endpoint::Generate, "id".into());
        let parent = front.attempt_began().unwrap();
        let mut hop = Context::new(shared.clone(), Role::Hop("w0".into()), shared.clock.now());
        let mut headers = http::HeaderMap::new();
        headers.insert("traceparent", parent.parse().unwrap());
        hop.trace = Trace::of(&headers);
        hop.watch_attempt(Endpoint::Generate, Some("id".into()));
        let _ = hop.attempt_began();
        hop.response_head(200, Some("text/event-stream"), false, now());
        front.served_by(Some(hop.stamps()), None);
        front.response_head(200, Some("text/event-stream"), false, now());

        at(95);
        hop.passed_on(first.is_empty(), false, now(), None);
        at(100);
        hop.passed_on(false, false, now(), None);
        at(107);
        if !first.is_empty() {
            front.response_body(first, false, now());
        }
        at(112);
        front.response_body(EVENT, false, now());
        at(150);
        hop.passed_on(false, false, now(), None);
        if is_whole {
            hop.passed_on(true, true, now(), None);
        }
        at(152);
        front.response_body(b"data: [DONE]\n\n", true, now());

        let key = front.joins.take().unwrap();
        let closed = shared.joins.close(key, shared.clock.now());
        front.take_passage(&closed);
        let watch = front.watch.take().unwrap();
        let observed = watch.observer.finish(End::Complete, shared.clock.now());
        let record = front.related(observed, watch.response_head).remove(0);
        (record.clone(), Row::all(vec![record]).remove(0))
    }

    #[test]
    fn what_the_router_held_back_is_found_to_the_nanosecond() {
        let (record, row) = row(b"", true);
        assert_eq!(row.router_return, Some(12 * MS));
        let (here, there) = (record.facts.passage, record.facts.worker_passage);
        assert_eq!(here.last.unwrap().nanos_since(there.last.unwrap()), 2 * MS);
        assert_eq!(here.longest_gap_nanos, Some(40 * MS));
        assert_eq!(there.longest_gap_nanos, Some(50 * MS));
        assert_eq!(row.timeline.nanos(Period::ROUTER_RETURN), Some(12 * MS));
        assert_eq!(row.inconsistency, None);
    }

    #[test]
    fn the_stage_is_known_only_where_the_first_bytes_brought_the_token() {
        let (_, row) = row(b"data: {\"text\":\"\",\"meta_info\":{}}\n\n", true);
        assert_eq!(row.router_return, Some(12 * MS));
        assert!(!row.timeline.saw_way_back());
    }

    #[test]
    fn what_the_hop_had_not_told_is_not_known() {
        let (record, row) = row(b"", false);
        assert_eq!(row.router_return, Some(12 * MS));
        assert_eq!(record.facts.worker_passage.last, None);
        assert_eq!(record.facts.worker_passage.longest_gap_nanos, None);
    }

    #[test]
    fn a_piece_that_a_fault_holds_passes_later() {
        let (shared, _) = shared();
        let mut hop = Context::new(shared.clone(), Role::Hop("w0".into()), shared.clock.now());
        hop.watch_attempt(Endpoint::Generate, None);
        let now = hop.shared.clock.now();
        hop.passed_on(false, true, now, Some(Duration::from_millis(3)));
        assert_eq!(hop.passage.first, Some(now.plus_nanos(3 * MS)));
    }
}
