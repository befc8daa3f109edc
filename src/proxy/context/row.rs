//! The end of a request: its rows, with the clocks of hop and engine related to ours.

use crate::client::listener::Phase;
use crate::clock::Stamp;
use crate::proxy::failure;
use crate::proxy::join::RequestAttempts;
use crate::proxy::shared::Role;
use crate::request::{
    BodyTiming, ClockOf, End, Moment, Observer, Row, ServerRole, Stamps, append_lost_server,
    name_engine_clock, relate_engine, relate_process,
};

use super::{Context, outcome_of};

impl Context {
    /// Ends the request and hands on its rows. Does nothing when called again.
    pub fn end(&mut self, mut end: End) {
        let (observer, attempt) = (self.observer.take(), self.attempt.take());
        if observer.is_none() && attempt.is_none() {
            return;
        }
        if end == End::ClientGone && *self.shared.phase.borrow() == Phase::Aborting {
            // To a stream of HTTP/2 that is cut off it looks as if its client were gone.
            end = self.cut_off();
        }
        let now = self.shared.clock.now();
        self.timing.upstream_ended(now);
        (self.in_flight, self.attempt_in_flight) = (None, None);
        let (request, joins) = (self.request.take(), &self.shared.joins);
        let rows = match attempt {
            None => {
                let attempts = request
                    .map(|request| joins.close(&request, self.so_far.forwarded.is_some(), now));
                let leg = attempts.as_ref().and_then(|all| all.prefill_leg.clone());
                let rows = observer.map(|observer| self.rows(observer, attempts, &end, now));
                match leg {
                    Some(leg) => rows.and_then(|rows| joins.with_leg(&leg, rows, now)),
                    None => rows,
                }
            }
            Some(attempt) => {
                let rows = observer.map(|observer| match self.is_leg {
                    true => observer.finish(End::Complete, now),
                    false => self.rows(observer, None, &end, now),
                });
                let mut data = attempt.lock();
                if data.role != Some(ServerRole::Decode) {
                    let rows = rows.iter().flatten();
                    data.prefill = rows.map(|row| row.timeline.as_prefill()).collect();
                }
                // The front here has the row of a leg.
                let rows = rows.filter(|_| !self.is_leg);
                let recorded = rows.iter().flatten().next().map(Row::outcome);
                let outcome = recorded.unwrap_or_else(|| outcome_of(end, data.status));
                data.outcome = Some(outcome);
                data.ended.get_or_insert(now);
                let attempts = &self.shared.metrics.attempts;
                attempts.with(&[&data.worker, outcome.name()]).inc();
                drop(data);
                joins.end(&attempt, request, rows, now)
            }
        };
        if let Some(rows) = rows {
            self.shared.record(rows);
        }
    }

    /// Makes the rows of a request that has ended; `attempts` are those that hops of this process saw.
    pub(super) fn rows(
        &self,
        mut observer: Box<Observer>,
        attempts: Option<RequestAttempts>,
        end: &End,
        now: Stamp,
    ) -> Vec<Row> {
        let row = observer.row_mut();
        let head = row.timeline.raw(Moment::ResponseHead);
        // A response with a hop's stamps, or one that names a server, is from a server.
        let may_be_routers =
            head.is_some() && self.so_far.hop.is_none() && self.so_far.host.is_none();
        let error = row.status.filter(|status| *status >= 400 && may_be_routers);
        row.internal.is_routers_error = error
            .zip(attempts.as_ref())
            .is_some_and(|(status, attempts)| attempts.leave_to_router(status));
        let decode = attempts.as_ref().and_then(RequestAttempts::decode_leg);
        let (mut here, mut at_hop) = (BodyTiming::default(), self.body_timing);
        if self.role == Role::Front {
            let attempts = attempts.unwrap_or_default();
            (here, at_hop) = (self.body_timing, attempts.body_timing);
            self.put_attempts(&mut observer, attempts);
        }
        let row = observer.row_mut();
        if head.is_some() {
            row.client_stall = Some(self.timing.write_wait_at(now));
        }
        row.overhead = Some(self.timing.overhead(self.arrival, now));
        if row.host.is_none() && self.has_tried_upstream() {
            // No response came.
            row.host = self.own_host();
        }
        let ended = self.response_end.unwrap_or(now);
        let mut rows = observer.finish(end.clone(), ended);
        self.relate_clocks(&mut rows);
        if let Some((host, outcome)) = decode {
            for row in &mut rows {
                if let Some(error) = &mut row.error {
                    append_lost_server(error, ServerRole::Decode, &host, outcome);
                }
            }
        }
        put_body_timings(&mut rows, here, at_hop);
        if let Some(first) = rows.first().filter(|_| self.is_counted()) {
            let metrics = &self.shared.metrics;
            let bytes = &metrics.bytes;
            bytes.with(&["request"]).inc_by(self.request_bytes);
            bytes.with(&["response"]).inc_by(self.response_bytes);
            if !first.is_ok() {
                let (path, outcome) = (first.endpoint().path(), first.outcome());
                let trace = first.trace_id.as_deref();
                failure::log(path, outcome, first.own_error(), first.request_id(), trace);
            }
            if let Some(why) = first.unread {
                metrics.responses_unread.with(&[why.name()]).inc();
            }
            if self.is_at_server && self.so_far.forwarded.is_some() {
                let outcome = first.outcome().name();
                metrics.attempts.with(&[&self.upstream, outcome]).inc();
            }
        }
        rows
    }

    /// Puts the attempts that hops of this process saw into the row.
    fn put_attempts(&self, observer: &mut Observer, attempts: RequestAttempts) {
        if let Some(last) = &attempts.last {
            // Stamps on the response may be those of its other leg.
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
        let row = observer.row_mut();
        let room = attempts.last.as_ref().and_then(|last| last.room);
        row.internal.room = row.internal.room.or(room);
        let (count, failed) = self.attempts_of(attempts.count, attempts.failed);
        row.attempts = Some(count.into());
        row.failed_attempts = Some(failed);
        // The server's spans are children of the hop's.
        if self.shared.telemetry.traces.is_some() || self.shared.engine.is_some() {
            row.internal.trace.attempts = attempts.others;
            row.internal.trace.attempts.extend(attempts.last);
        }
    }

    /// Relates the clocks of hop and engine to ours, where their offsets are known.
    fn relate_clocks(&self, rows: &mut [Row]) {
        let clocks = &mut *self.shared.clocks.lock();
        let hop = self.so_far.hop.as_deref();
        let hop = hop.filter(|hop| hop.clock != self.shared.clock_name);
        relate_process(rows, clocks, (ClockOf::Hop, hop));
        name_engine_clock(rows, hop);
        relate_engine(rows, clocks, true);
    }
}

/// Sets when the response's body passed the hop and the front, which shows how long the router held it.
fn put_body_timings(rows: &mut [Row], here: BodyTiming, at_hop: BodyTiming) {
    for row in rows {
        row.set_body_timings(here, at_hop);
        // The first event came in the first bytes, here as at the hop. Of a later one read with it that is not known.
        let is_at_first =
            row.internal.begins_with_token && row.timeline.raw(Moment::FirstToken) == here.first;
        if let Some(at) = at_hop.first.filter(|_| is_at_first) {
            row.timeline.set(Moment::WorkerFirstToken, at);
        }
    }
}
