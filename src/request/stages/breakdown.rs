//! Where one request's time went: the stages of [`STAGES`], joined where the moment between them is missing. Where it was when it ended.

use crate::request::outcome::Outcome;
use crate::request::row::Row;
use crate::request::timeline::{Moment, Period, STAGES, Side, Stage, Timeline};

use super::StageSet;

/// A part of a request's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// What it was spent on.
    pub spent: StageSet,
    /// How long, nanoseconds; negative where moments are out of order.
    pub nanos: i64,
}

/// A request's time and its parts, which add up to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Breakdown {
    /// From its first known moment to its last byte, or to its end if it failed; nanoseconds.
    pub total_nanos: i64,
    /// Its parts, in order.
    pub parts: Vec<Part>,
}

impl Breakdown {
    /// Breaks down one row's time; `None` if its end or every start is unknown.
    ///
    /// Neighboring stages without a moment between them form one part. Stages that cannot be placed at all (the engine's clock is
    /// unknown, so both ways to and from it are) share what the others leave. The last part of a failed request is where it was
    /// last seen, up to its end.
    pub fn of(row: &Row) -> Option<Breakdown> {
        let timeline = &row.timeline;
        let last_seen = row.last_seen();
        let (to, before) = end(row, last_seen)?;
        let to_end = |stage: &Stage| {
            let from = timeline.period_of(stage)?.from;
            timeline.nanos(Period { from, to })
        };
        let mut stages = STAGES.iter().enumerate();
        let (first, total_nanos) = stages.find_map(|(at, stage)| Some((at, to_end(stage)?)))?;
        let (mut parts, mut unplaced) = measured_parts(timeline, first, before);
        if let Some(spent) = last_seen {
            match STAGES.get(before).and_then(to_end) {
                Some(nanos) => parts.push(Part { spent, nanos }),
                None if spent.stages().next().is_some() => unplaced.0 |= spent.0,
                None => return None,
            }
        }
        if unplaced != StageSet::default() {
            let rest = |rest: i64, part: &Part| rest.checked_sub(part.nanos);
            let nanos = parts.iter().try_fold(total_nanos, rest)?;
            parts.push(Part {
                spent: unplaced,
                nanos,
            });
            parts.sort_by_key(|part| part.spent.0.trailing_zeros());
        }
        correct_router_part(row, &mut parts);
        let (prompt, stall) = (row.prompt_wait, row.client_stall_until_finish);
        for (spent, nanos, period) in [
            // A client that is slow to send its prompt delays the choice of an upstream: that is not the router's time.
            (StageSet::PROMPT, prompt, Period::QUEUE_IN_ROUTER),
            // A stalled client delays what is read after it: that is not the engine's time.
            (StageSet::CLIENT_STALL, stall, Period::DECODE),
        ] {
            split_off(spent, nanos, period, &mut parts);
        }
        Some(Breakdown { total_nanos, parts })
    }

    /// Returns the parts until the first token was read; `None` if it is unknown when that was.
    #[must_use]
    pub fn until_first_token(&self) -> Option<Breakdown> {
        let decode = StageSet::of(Period::DECODE);
        self.parts.iter().find(|part| part.spent == decode)?;
        let mut parts = self.parts.clone();
        parts.retain(|part| !part.spent.is_after_first_token());
        let sum = |sum: i64, part: &Part| sum.checked_add(part.nanos);
        let total_nanos = parts.iter().try_fold(0, sum)?;
        Some(Breakdown { total_nanos, parts })
    }
}

/// Measures the stages from index `first` to before `before`: returns the parts of known length, and the stages of unknown
/// length.
fn measured_parts(timeline: &Timeline, first: usize, before: usize) -> (Vec<Part>, StageSet) {
    let stages = STAGES.iter().enumerate().take(before).skip(first);
    let mut own: Vec<(usize, Period)> = Vec::with_capacity(STAGES.len());
    own.extend(stages.filter_map(|(index, stage)| Some((index, timeline.period_of(stage)?))));
    let length = |from: usize, to: usize| {
        let (from, to) = (own.get(from)?.1.from, own.get(to)?.1.to);
        timeline.nanos(Period { from, to })
    };
    let (mut parts, mut unplaced) = (Vec::with_capacity(STAGES.len()), StageSet::default());
    let mut at = 0;
    while at < own.len() {
        // The shortest run of stages of known length; it must not contain stages that are known by themselves.
        let joined = (at..own.len()).find_map(|last| Some((last, length(at, last)?)));
        let joined =
            joined.filter(|(last, _)| (at + 1..=*last).all(|inner| length(inner, inner).is_none()));
        let last = joined.map_or(at, |(last, _)| last);
        let stages = own[at..=last].iter();
        let spent: StageSet = stages.map(|(index, _)| StageSet::one(*index)).collect();
        match joined {
            Some((_, nanos)) => parts.push(Part { spent, nanos }),
            None => unplaced.0 |= spent.0,
        }
        at = last + 1;
    }
    (parts, unplaced)
}

/// Returns the moment at which a request's time ends, and the index of the stage that it was in, or of the first that it may have
/// been in; one past the last if it succeeded.
fn end(row: &Row, last_seen: Option<StageSet>) -> Option<(Moment, usize)> {
    Some(match last_seen {
        None => (row.is_ok().then_some(Moment::Finish)?, STAGES.len()),
        Some(StageSet::CONNECTING) => (Moment::End, last_begun(&row.timeline)?),
        Some(place) => (Moment::End, place.order() as usize),
    })
}

/// Returns the index of the last stage that has begun.
fn last_begun(timeline: &Timeline) -> Option<usize> {
    let begun = |stage: &Stage| timeline.raw(timeline.period_of(stage)?.from);
    STAGES.iter().rposition(|stage| begun(stage).is_some())
}

/// Renames or removes the router's part if there was no router. Without one, our own send is the send to the server, and without
/// a proxy of ours there is nothing between client and server: to show a router with an empty queue would be false.
fn correct_router_part(row: &Row, parts: &mut Vec<Part>) {
    let timeline = &row.timeline;
    let [to_proxy, router] = [Period::TO_PROXY, Period::QUEUE_IN_ROUTER].map(StageSet::of);
    let is_routed = timeline.raw(Moment::WorkerArrival).is_some();
    if timeline.mark(Moment::Arrival).is_none() {
        parts.retain(|part| part.spent != to_proxy && (is_routed || part.spent != router));
    }
    let is_own = |part: &&mut Part| !is_routed && part.spent == router;
    for part in parts.iter_mut().filter(is_own) {
        part.spent = StageSet::PROXY;
    }
}

/// Splits off time that is known separately from the first part that holds the stage of `period`.
fn split_off(spent: StageSet, nanos: Option<i64>, period: Period, parts: &mut Vec<Part>) {
    let at = parts.iter().position(|part| part.spent.holds(period));
    let (Some(nanos @ 1..), Some(at)) = (nanos, at) else {
        return;
    };
    let nanos = nanos.min(parts[at].nanos.max(0));
    parts[at].nanos -= nanos;
    parts.push(Part { spent, nanos });
    if spent == StageSet::PROMPT {
        parts[at..].rotate_right(1);
    }
}

impl Row {
    /// Returns where a failed request was when it ended: as the row says, else by its moments.
    pub fn last_seen(&self) -> Option<StageSet> {
        if self.is_ok() {
            return None;
        }
        let is_pair = self.timeline.prefill().is_some();
        let told = self.ended_in.map(|stages| stages.only_of_pair(is_pair));
        // A file may say what cannot be.
        let told = told.filter(|of| ![StageSet::default(), StageSet::DONE].contains(of));
        told.or_else(|| self.find_ended_in())
    }

    /// Returns where the request was when it ended, by its moments: after the last that is known, and before the next that the
    /// observer would have seen. `None` if none is known.
    pub(in crate::request) fn find_ended_in(&self) -> Option<StageSet> {
        if self.is_ok() {
            return Some(StageSet::DONE);
        }
        if self.outcome == Some(Outcome::ConnectError) {
            return Some(StageSet::CONNECTING);
        }
        if self.internal.is_routers_error {
            return Some(StageSet::of(Period::QUEUE_IN_ROUTER));
        }
        let (timeline, side) = (&self.timeline, self.timeline.side());
        let lacks = |moment| timeline.raw(moment).is_none();
        let is_held = match side {
            Side::Hop => lacks(Moment::WorkerForwarded),
            Side::Front | Side::Traffic => {
                timeline.mark(Moment::Arrival).is_some() && lacks(Moment::Forwarded)
            }
        };
        if is_held {
            // A proxy without a hop behind it tried a server, which took no connection.
            let is_tried = side != Side::Hop && self.attempts > Some(0);
            return Some(match is_tried {
                true => StageSet::of(Period::NETWORK),
                false => StageSet::PROXY,
            });
        }
        // A body that had not been read whole by then was still on its way to us.
        if side == Side::Front && lacks(Moment::RequestEnd) && lacks(Moment::ResponseHead) {
            return Some(StageSet::of(Period::TO_PROXY));
        }
        // The hop had it and did not send it on: the server refused the connection, or the hop held it.
        if timeline.mark(Moment::WorkerArrival).is_some() && lacks(Moment::WorkerForwarded) {
            return Some(StageSet::of(Period::NETWORK));
        }
        let first = last_begun(timeline)?;
        let is_observed = |stage: &&Stage| stage.period.to.clock(side) == side.clock();
        let later = STAGES[first..].iter().take_while(|of| !is_observed(of));
        let stages = STAGES[first..=first + later.count()].iter();
        let own = stages.filter(|stage| timeline.period_of(stage).is_some());
        Some(own.map(|stage| StageSet::of(stage.period)).collect())
    }
}

#[cfg(test)]
mod tests;
