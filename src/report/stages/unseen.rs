//! What of a request nobody saw.

use crate::report::silence::Silence;
use crate::request::record::Record;
use crate::request::timeline::{ClockOf, Moment, Relation};

/// Something of a request that nobody saw, so that stages run together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Unseen {
    /// When the router forwarded it.
    Router,
    /// The engine's moments, some or all.
    Engine(Silence),
    /// How far the engine's clock is from ours.
    EngineClock,
    /// How far the front's or the hop's clock is from ours.
    ProxyClock,
    /// When the first token came: the reply was no stream.
    FirstToken,
}

impl Unseen {
    /// What of a row was not seen.
    pub fn of(record: &Record) -> Vec<Unseen> {
        let timeline = &record.timeline;
        let lacks = |moment| timeline.raw(moment).is_none();
        let unknown = |clock| timeline.relation(clock) == Relation::Unknown;
        let engine = [
            Moment::ServerCreated,
            Moment::QueueStart,
            Moment::QueueEnd,
            Moment::ServerFirstToken,
        ];
        let found = [
            (Unseen::Router, lacks(Moment::RouterSend)),
            (
                Unseen::Engine(Silence::of(record)),
                engine.into_iter().any(lacks),
            ),
            (
                Unseen::EngineClock,
                unknown(ClockOf::Engine) && !engine.into_iter().all(lacks),
            ),
            (
                Unseen::ProxyClock,
                [Moment::Arrival, Moment::RouterSend]
                    .into_iter()
                    .any(|moment| !lacks(moment) && timeline.on_own_clock(moment).is_none()),
            ),
            (Unseen::FirstToken, lacks(Moment::FirstToken)),
        ];
        let found = found.into_iter().filter(|(_, is)| *is);
        found.map(|(unseen, _)| unseen).collect()
    }

    /// The one of this short name.
    pub fn named(name: &str) -> Option<Unseen> {
        let known = [
            Unseen::Router,
            Unseen::EngineClock,
            Unseen::ProxyClock,
            Unseen::FirstToken,
        ];
        let known = known.into_iter().find(|unseen| unseen.name() == name);
        known.or_else(|| Silence::named(name).map(Unseen::Engine))
    }

    /// Short name, as in the summary.
    pub const fn name(self) -> &'static str {
        match self {
            Unseen::Router => "router",
            Unseen::Engine(silence) => silence.name(),
            Unseen::EngineClock => "engine_clock",
            Unseen::ProxyClock => "proxy_clock",
            Unseen::FirstToken => "first_token",
        }
    }

    /// What a person reads.
    pub fn sentence(self) -> String {
        let sentence = match self {
            Unseen::Router => {
                "the router could not be seen: no worker hop (`--upstream-kind server` if none stands there)"
            }
            Unseen::Engine(silence) => {
                return format!(
                    "inside the server not all could be seen: {} (what would show it: {})",
                    silence.why(),
                    silence.remedy()
                );
            }
            Unseen::EngineClock => "the server's clock could not be compared with ours",
            Unseen::ProxyClock => "the proxy's clock could not be compared with ours",
            Unseen::FirstToken => "the first token could not be seen: not streamed",
        };
        sentence.to_owned()
    }
}
