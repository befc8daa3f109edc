//! What of a row was not measured, and why.

use crate::request::columns::Row;
use crate::request::endpoint::Endpoint;
use crate::request::generation::Generation;
use crate::request::sequence::{MissingReason, TimingSource};
use crate::request::timeline::{ClockOf, Moment, PrefillTimes, Relation};
use crate::request::unseen::{Unseen, Unseens};

impl Unseens {
    /// Returns what of a row was not measured: as the row says, else by what it lacks.
    pub fn of(row: &Row) -> Unseens {
        row.unseen.unwrap_or_else(|| Unseens::found(row))
    }

    /// Returns what a row lacks. A row that was read from a file keeps its reason for the engine's moments.
    pub(super) fn found(row: &Row) -> Unseens {
        let timeline = &row.timeline;
        let lacks = |moment| timeline.raw(moment).is_none();
        // No stage needs the others.
        let is_needed =
            |moment: &Moment| !matches!(moment, Moment::PrefillEnd | Moment::ServerFinish);
        let engine = || timeline.engine_moments().iter().copied().filter(is_needed);
        let is_complete = |times: PrefillTimes| times.queue.is_some() && times.forward.is_some();
        let no_leg = timeline.prefill().is_some_and(|times| !is_complete(times));
        let apart = |moment| !lacks(moment) && timeline.on_own_clock(moment).is_none();
        let is_engine_apart = timeline.relation(ClockOf::Engine) == Relation::Unknown;
        let all = [
            (Unseen::Router, lacks(Moment::RouterSend)),
            (Unseen::of_engine(row), no_leg || engine().any(lacks)),
            (Unseen::EngineClock, is_engine_apart && !engine().all(lacks)),
            (
                Unseen::ProxyClock,
                apart(Moment::Arrival) || apart(Moment::RouterSend),
            ),
            (Unseen::FirstToken, lacks(Moment::FirstToken)),
        ];
        all.into_iter()
            .filter_map(|(one, is)| is.then_some(one))
            .collect()
    }
}

impl Unseen {
    /// Returns why the engine's moments are unknown, for a row that succeeded.
    pub fn of_engine(row: &Row) -> Unseen {
        let is_stream = row.stream == Some(true);
        if row.internal.missing_reason == Some(MissingReason::Impossible) {
            return Unseen::Impossible;
        }
        if let Some(reason) = row.unseen.and_then(Unseens::engine) {
            return reason;
        }
        if row.unread.is_some() {
            return Unseen::Hidden;
        }
        if let Some(TimingSource::Trace | TimingSource::Log) = row.timing_source {
            return Unseen::Joined;
        }
        let is_retracted =
            row.num_retractions > Some(0) && row.timeline.raw(Moment::QueueStart).is_none();
        let by_response = match (row.internal.generation, row.endpoint()) {
            (Some(Generation::Before0_5_5), _) => Unseen::TooOld,
            (Some(Generation::MetricsOff), _) => Unseen::MetricsOff,
            (Some(_), _) if row.timeline.prefill().is_some() => Unseen::Pair,
            (Some(_), _) if is_retracted => Unseen::Retracted,
            (Some(_), _) => Unseen::Part,
            (None, Endpoint::Generate) => Unseen::NoMeta,
            (None, _) if is_stream => Unseen::Stream,
            (None, Endpoint::Chat) => Unseen::ChatReply,
            (None, _) => Unseen::Reply,
        };
        match row.internal.front_joins_engine && by_response.is_elsewhere() {
            true => Unseen::InProxy,
            false => by_response,
        }
    }
}
