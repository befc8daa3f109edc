//! What of a request nobody saw.

use super::cell::{Cell, Value};
use super::row::Row;
use super::silence::Silence;
use super::timeline::{ClockOf, Moment, Relation};

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

/// What of a request nobody saw.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unseens {
    router: bool,
    engine: Option<Silence>,
    engine_clock: bool,
    proxy_clock: bool,
    first_token: bool,
}

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

    /// Why the engine's moments are unknown, where some are.
    pub const fn engine(self) -> Option<Silence> {
        self.engine
    }

    /// Each of them.
    pub fn iter(self) -> impl Iterator<Item = Unseen> {
        let all = [
            self.router.then_some(Unseen::Router),
            self.engine.map(Unseen::Engine),
            self.engine_clock.then_some(Unseen::EngineClock),
            self.proxy_clock.then_some(Unseen::ProxyClock),
            self.first_token.then_some(Unseen::FirstToken),
        ];
        all.into_iter().flatten()
    }
}

impl Cell for Unseens {
    fn value(&self) -> Value<'_> {
        let names: Vec<&str> = self.iter().map(Unseen::name).collect();
        Value::Text(names.join(";").into())
    }

    fn of(value: Value<'_>) -> Option<Unseens> {
        let Value::Text(names) = value else {
            return None;
        };
        let mut unseen = Unseens::default();
        for one in names.split(';').filter_map(Unseen::named) {
            match one {
                Unseen::Router => unseen.router = true,
                Unseen::Engine(silence) => unseen.engine = Some(silence),
                Unseen::EngineClock => unseen.engine_clock = true,
                Unseen::ProxyClock => unseen.proxy_clock = true,
                Unseen::FirstToken => unseen.first_token = true,
            }
        }
        Some(unseen)
    }
}

impl Unseen {
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
