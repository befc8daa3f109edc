//! What of a row nobody saw, and why.

use crate::request::columns::Row;
use crate::request::endpoint::Endpoint;
use crate::request::generation::Generation;
use crate::request::sequence::{TimingSource, Untold};
use crate::request::silence::Silence;
use crate::request::timeline::{ClockOf, Moment, Relation};
use crate::request::unseen::Unseens;

impl Unseens {
    /// What of a row was not seen: as it tells, else by what it has.
    pub fn of(row: &Row) -> Unseens {
        if let Some(unseen) = row.unseen {
            return unseen;
        }
        let timeline = &row.timeline;
        let lacks = |moment| timeline.raw(moment).is_none();
        let unknown = |clock| timeline.relation(clock) == Relation::Unknown;
        let engine = [
            Moment::ServerCreated,
            Moment::QueueStart,
            Moment::QueueEnd,
            Moment::ServerFirstToken,
        ];
        let apart = |moment| !lacks(moment) && timeline.on_own_clock(moment).is_none();
        Unseens {
            router: lacks(Moment::RouterSend),
            engine: engine.into_iter().any(lacks).then(|| Silence::of(row)),
            engine_clock: unknown(ClockOf::Engine) && !engine.into_iter().all(lacks),
            proxy_clock: [Moment::Arrival, Moment::RouterSend].into_iter().any(apart),
            first_token: lacks(Moment::FirstToken),
        }
    }
}

impl Silence {
    /// Why it is so for a row that went well.
    pub fn of(row: &Row) -> Silence {
        if let Some(told) = row.unseen.and_then(Unseens::engine) {
            return told;
        }
        let streamed = row.stream == Some(true);
        if row.more.untold == Some(Untold::Impossible) {
            return Silence::Impossible;
        }
        if row.unread.is_some() {
            return Silence::Hidden;
        }
        if let Some(TimingSource::Trace | TimingSource::Log) = row.timing_source {
            return Silence::Joined;
        }
        match (row.more.generation, row.endpoint()) {
            (Some(generation), _) if generation.is_too_old() => Silence::TooOld,
            (Some(generation), _) if generation.metrics_on() == Some(false) => Silence::MetricsOff,
            (Some(generation), _) => Silence::of_part(row, generation, streamed),
            (None, Endpoint::Generate) => Silence::NoMeta,
            (None, _) if streamed => Silence::Stream,
            (None, Endpoint::Chat) => Silence::ChatReply,
            (None, _) => Silence::Reply,
        }
    }

    /// Why not all is told by an SGLang that tells some.
    fn of_part(row: &Row, generation: Generation, streamed: bool) -> Silence {
        let lacks = |moment| row.timeline.raw(moment).is_none();
        let is_retracted = row.num_retractions.unwrap_or(0) > 0;
        match generation {
            _ if is_retracted && lacks(Moment::QueueStart) => Silence::Retracted,
            Generation::V0_5_5 if streamed && lacks(Moment::ServerFirstToken) => {
                Silence::FirstToken
            }
            Generation::V0_5_5 | Generation::V0_5_6
                if !streamed && lacks(Moment::ServerFirstToken) =>
            {
                Silence::FirstTokenOfReply
            }
            Generation::V0_5_21 | Generation::From0_5_22 => Silence::Incomplete,
            _ => Silence::Part,
        }
    }
}
