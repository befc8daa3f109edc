//! Rows read from files: their clocks and moments, taken from their cells.

use crate::clock::Stamp;
use crate::offset::Offset;
use crate::request::cell::Cell;
use crate::request::column::Origin;
use crate::request::columns::{COLUMNS, Row};
use crate::request::outcome::Outcome;
use crate::request::timeline::{ClockOf, Moment, PrefillTimes, Relation, Side, Timeline};

use super::ClockState;

impl Row {
    /// Completes the rows of a request after all their cells have been set.
    pub fn finish_reading(rows: &mut [Row]) {
        let sequences = u32::try_from(rows.len()).unwrap_or(u32::MAX);
        for (row, index) in rows.iter_mut().zip(0..) {
            row.index = index;
            row.sequences = sequences;
            // An outcome that this version does not know is none of the known ones.
            let is_ok = row.success == Some(true);
            row.outcome = row.outcome.or(is_ok.then_some(Outcome::Ok));
            row.outcome.get_or_insert(Outcome::ProxyError);
            // Nothing else ends in the router alone.
            row.internal.is_routers_error = row.ended_in.as_deref() == Some("router");
            row.timeline = row.read_timeline();
        }
    }

    fn read_timeline(&self) -> Timeline {
        // Rows written before the column `seen_by` existed: `sent_time` is known to the generator only.
        let side = self.seen_by.or(self.sent_time.map(|_| Side::Traffic));
        let mut timeline = Timeline::new(side.unwrap_or(Side::Front));
        self.relate(&mut timeline);
        if self.disaggregated == Some(true) {
            timeline.set_pair(PrefillTimes {
                queue: self.prefill_queue_time,
                forward: self.prefill_time,
                sending: self.kv_send_time,
            });
        }
        for column in &COLUMNS {
            if let Origin::Moment(moment) = column.origin
                && let Some(at) = Stamp::of((column.get)(self))
            {
                self.mark(&mut timeline, moment, at);
            }
        }
        if let Some(at) = self.worker_first_token_time {
            self.mark(&mut timeline, Moment::WorkerFirstToken, at);
        }
        timeline
    }

    /// Sets a moment from the row's time of it: converts the time from the row's clock to the clock that read it.
    fn mark(&self, timeline: &mut Timeline, moment: Moment, at: Stamp) {
        let (clock, moment) = match moment {
            Moment::Arrival if !self.has_front() => return,
            // Without a hop, the router's send is our own, as the upstream is the server.
            Moment::RouterSend if self.worker.is_none() && self.worker_forwarded_time.is_none() => {
                return timeline.upstream_is_server(true);
            }
            Moment::RouterSend => (ClockOf::Hop, Moment::WorkerArrival),
            moment => (moment.clock(timeline.side()), moment),
        };
        let clock = match clock {
            ClockOf::Hop if self.hop_clock_offset.is_none() => ClockOf::Front,
            clock => clock,
        };
        let ahead = timeline.offset(clock).map_or(0, |offset| offset.nanos);
        timeline.set(moment, at.plus_nanos(ahead));
    }

    /// Sets how the other clocks relate to that of the row.
    fn relate(&self, timeline: &mut Timeline) {
        let apart = |nanos: Option<i64>, error: Option<i64>| {
            let (nanos, error_nanos) = (nanos?, error?);
            Some(Relation::Apart(Offset { nanos, error_nanos }))
        };
        // If two times are present and the duration between them is not, the distance of their clocks was unknown.
        let relation = |from: Option<Stamp>, to: Option<Stamp>, between: Option<i64>| match between
        {
            None if from.and(to).is_some() => Relation::Unknown,
            _ => Relation::Same,
        };
        if self.clock_state == Some(ClockState::Offset) {
            let engine = apart(self.clock_offset, self.clock_offset_error);
            timeline.relate(ClockOf::Engine, engine.unwrap_or(Relation::Same));
        }
        let front = apart(self.front_clock_offset, self.front_clock_offset_error);
        let default = relation(self.arrival_time, self.finish_time, self.total_latency);
        timeline.relate(ClockOf::Front, front.unwrap_or(default));
        let (arrival, send) = (self.arrival_time, self.router_send_time);
        let default = relation(arrival, send, self.queue_time_in_router);
        // Without a hop's moment there may still be a hop, in a process of its own.
        let is_shared = default == Relation::Same && timeline.side() != Side::Hop && send.is_some();
        match apart(self.hop_clock_offset, self.hop_clock_offset_error) {
            None if is_shared => timeline.hop_shares_front(),
            hop => timeline.relate(ClockOf::Hop, hop.unwrap_or(Relation::Unknown)),
        }
    }

    /// Whether a front took part: a generator's row has an arrival of its own only if a front reported it; else the send stands
    /// there.
    fn has_front(&self) -> bool {
        self.forwarded_time.is_some()
            || self.request_end_time.is_some()
            || self.sent_time != self.arrival_time
    }
}
