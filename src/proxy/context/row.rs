//! The end of a request: all that is known of it put into its rows, with other clocks put on ours.

use crate::clock::Stamp;
use crate::offset::OffsetBound;
use crate::proxy::join::RequestAttempts;
use crate::proxy::shared::{Role, ServerRole};
use crate::request::attempt::{shown, tell_lost};
use crate::request::observer::{End, Observer, engine_bounds, relate, with_engine};
use crate::request::outcome::Outcome;
use crate::request::passage::Passage;
use crate::request::row::Row;
use crate::request::stamps::Stamps;
use crate::request::timeline::{ClockOf, Moment, Relation};

use super::{Context, Watch, judged};

impl Context {
    /// The one end of a request: its rows go out, once.
    pub fn ended(&mut self, end: End) {
        self.leg_ended(self.shared.clock.now());
        let (watch, attempt) = (self.watch.take(), self.attempt.take());
        if watch.is_none() && attempt.is_none() {
            return;
        }
        let now = self.shared.clock.now();
        self.time.back(now);
        (self.under_way, self.at_worker) = (None, None);
        let joined = self.joined.take();
        let closed = joined.map(|joined| self.shared.joins.close(&joined, now));
        let leg = closed.as_ref().and_then(|closed| closed.leg.clone());
        let mut rows = watch.map(|watch| self.rows(watch, closed, &end, now));
        if let Some(leg) = leg {
            rows = rows.and_then(|rows| self.shared.joins.with_leg(&leg, rows, now));
        }
        if let Some(attempt) = attempt {
            let seen = rows.iter().flatten().next();
            let seen = seen.map(Row::outcome);
            // What waits for this leg has all of it once it has ended.
            if let Some(reply) = &rows {
                self.note_leg(&attempt, reply);
            }
            let mut told = attempt.told.lock();
            let outcome = seen.unwrap_or_else(|| judged(end, told.status));
            told.outcome = Some(outcome);
            told.ended.get_or_insert(now);
            let metrics = &self.shared.metrics;
            let attempts = &metrics.attempts;
            attempts.with(&[&told.worker, outcome.name()]).inc();
            drop(told);
            rows = self.shared.joins.ended(&attempt, rows, now);
        }
        if let Some(rows) = rows {
            self.shared.record(rows);
        }
    }

    /// The rows of one that was watched and has ended; `closed` is what hops of this process saw.
    pub(super) fn rows(
        &mut self,
        mut watch: Box<Watch>,
        closed: Option<RequestAttempts>,
        end: &End,
        now: Stamp,
    ) -> Vec<Row> {
        let mut at_worker = Passage::default();
        let head = watch.observer.timeline_mut().raw(Moment::ResponseHead);
        let row = watch.observer.row_mut();
        // What a hop says comes through the router, and so does what names a server.
        let may_be_own = head.is_some() && self.hop.is_none() && self.named.is_none();
        let status = row.status.and_then(|of| u16::try_from(of).ok());
        let error = status.filter(|of| *of >= 400 && may_be_own);
        row.more.is_routers_error = error
            .zip(closed.as_ref())
            .is_some_and(|(status, closed)| closed.leave_to_router(status));
        let lost = closed.as_ref().and_then(RequestAttempts::decoding);
        if self.role == Role::Front {
            at_worker = self.take_attempts(&mut watch.observer, closed.unwrap_or_default());
        }
        let row = watch.observer.row_mut();
        if head.is_some() {
            row.client_stall = Some(self.time.pending_at(now));
        }
        row.overhead = Some(self.time.own(self.arrival, now));
        if row.host.is_none() && self.sendings + self.unconnected > 0 {
            // No response came, but the server was tried.
            row.host = self.own_host();
        }
        let ended = watch.response_end.unwrap_or(now);
        let mut rows = watch.observer.finish(end.clone(), ended);
        self.relate(&mut rows, head, now);
        if let Some((host, outcome)) = lost {
            for row in &mut rows {
                if let Some(error) = &mut row.error {
                    tell_lost(error, ServerRole::Decode, &host, outcome);
                }
            }
        }
        self.put_passages(&mut rows, at_worker);
        if let Some(first) = rows.first().filter(|_| self.counts()) {
            let metrics = &self.shared.metrics;
            metrics.bytes.with(&["request"]).inc_by(watch.request_bytes);
            metrics
                .bytes
                .with(&["response"])
                .inc_by(watch.response_bytes);
            log_failure(&rows);
            if let Some(why) = first.unread {
                metrics.responses_unread.with(&[why.name()]).inc();
            }
            if self.sends_to_server() && self.sendings > 0 {
                let outcome = first.outcome().name();
                metrics.attempts.with(&[&self.upstream, outcome]).inc();
            }
        }
        rows
    }

    /// Takes in what hops of this process saw of the request. Gives when the body that the front read passed its hop.
    fn take_attempts(&self, observer: &mut Observer, closed: RequestAttempts) -> Passage {
        let mut passage = Passage::default();
        if let Some(last) = &closed.last {
            if closed.is_named {
                passage = last.passage;
            }
            // Another leg of it may have answered.
            let by = self.hop.as_ref().map(|hop| hop.span);
            if by.is_none_or(|by| by.is_some_and(|by| by != last.span)) {
                let stamps = Stamps {
                    clock: self.shared.clock_name.clone(),
                    arrival: Some(last.arrival),
                    forwarded: last.forwarded,
                    host: Some(last.host.clone()),
                    worker: Some(last.worker.clone()),
                    ..Stamps::default()
                };
                observer.stamps(&stamps, &self.shared.clock_name);
            }
        }
        let row = observer.row_mut();
        let room = closed.last.as_ref().and_then(|last| last.room);
        row.more.room = row.more.room.or(room);
        let (attempts, failed) = self.attempts_of(closed.count, closed.failed);
        row.attempts = Some(attempts.into());
        row.failed_attempts = shown(&failed);
        // The server's spans lie below the hop's.
        if self.shared.telemetry.traces() || self.shared.engine.is_some() {
            row.more.trace.attempts = closed.others;
            row.more.trace.attempts.extend(closed.last);
        }
        passage
    }

    /// Relates the hop's and the engine's clocks to ours in the rows, as far as is known.
    fn relate(&self, rows: &mut [Row], response_head: Option<Stamp>, now: Stamp) {
        let mut clocks = self.shared.clocks.lock();
        let own_clock = &self.shared.clock_name;
        let apart = self.hop.as_ref().filter(|hop| hop.clock != *own_clock);
        if let Some(hop) = apart {
            let bounds =
                OffsetBound::of_exchange(self.forwarded, hop.arrival, hop.now, response_head);
            clocks.add(&hop.clock, &bounds);
            let there = (self.forwarded.unwrap_or(now), response_head.unwrap_or(now));
            if let Some(offset) = clocks.get_over(&hop.clock, there) {
                relate(rows, ClockOf::Hop, Relation::Apart(offset));
            }
        }
        let host = rows.first().and_then(|row| row.host.as_deref());
        let engine_clock =
            host.map(|host| apart.map_or_else(|| host.to_owned(), |hop| hop.engine_clock(host)));
        let engine = engine_clock.as_ref().and_then(|engine| {
            clocks.add(engine, &engine_bounds(rows));
            clocks.get_over(engine, with_engine(rows)?)
        });
        drop(clocks);
        if let Some(offset) = engine {
            relate(rows, ClockOf::Engine, Relation::Apart(offset));
        }
        for row in rows.iter_mut().filter(|_| self.shared.engine.is_some()) {
            row.more.engine_clock.clone_from(&engine_clock);
        }
    }

    /// When the response's body passed the hop and the front, so that the router's part of its way back shows.
    fn put_passages(&self, rows: &mut [Row], at_worker: Passage) {
        let (here, worker) = match self.role {
            Role::Hop(_) => (Passage::default(), self.passage),
            Role::Front => (self.passage, at_worker),
        };
        for row in rows {
            row.passed(here, worker);
            // The first bytes brought the token: then they did at the hop, too.
            let brought =
                here.first.is_some() && row.timeline.raw(Moment::FirstToken) == here.first;
            if let Some(at) = worker.first.filter(|_| brought) {
                row.timeline.set(Moment::WorkerFirstToken, at);
            }
        }
    }
}

/// Says in the log that a request failed, with its trace: what a client did is news for whoever asks for it.
fn log_failure(rows: &[Row]) {
    let Some(first) = rows.first().filter(|row| !row.is_ok()) else {
        return;
    };
    let outcome = first.outcome();
    let level = match outcome {
        Outcome::ServerError | Outcome::UpstreamDied | Outcome::Timeout | Outcome::ProxyError => {
            log::Level::Info
        }
        _ => log::Level::Debug,
    };
    if log::log_enabled!(level) {
        let (path, outcome, id) = (first.endpoint().path(), outcome.name(), first.request_id());
        let trace = first.trace_id.as_deref().unwrap_or("none");
        let error = first.own_error();
        log::log!(
            level,
            "{path} failed: {outcome}: {error}; request {id:?}; trace_id={trace}"
        );
    }
}
