//! What a stretch of a request's time was spent on: a stage, several, or what is none.

use crate::request::timeline::{Moment, Period, STAGES, Stage, Timeline};

/// A set of stages whose time is known together only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StageSet(pub(super) u16);

/// What a stretch of a request's time was spent on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Spent {
    /// These stages; one alone, unless a moment between them was not seen.
    Stages(StageSet),
    /// The generator got no connection; what it waited before it tried is in it.
    Connecting,
    /// Our own proxy, where no router stands behind it: its send is then the router's.
    Proxy,
    /// The proxy waited for the client to send its prompt.
    Prompt,
    /// Writes to the client were held up while the server decoded.
    ClientStall,
}

impl StageSet {
    pub(super) fn one(index: usize) -> StageSet {
        StageSet(1 << index)
    }

    /// Those from one place to before another.
    pub(super) fn row(from: usize, to: usize) -> StageSet {
        (from..to).fold(StageSet::default(), |set, at| set.with(StageSet::one(at)))
    }

    pub(super) fn with(self, other: StageSet) -> StageSet {
        StageSet(self.0 | other.0)
    }

    /// Those that a request has.
    pub(super) fn in_life_of(self, timeline: &Timeline) -> StageSet {
        let own = |stage: &&Stage| timeline.period_of(stage).is_some();
        let own = self
            .stages()
            .filter(own)
            .map(|stage| StageSet::of(stage.period));
        own.fold(StageSet::default(), StageSet::with)
    }

    /// The stage of this period.
    pub(super) fn of(period: Period) -> StageSet {
        let index = STAGES.iter().position(|stage| stage.period == period);
        index.map_or(StageSet::default(), StageSet::one)
    }

    /// The others than the stage of this period.
    pub(super) fn without(self, period: Period) -> StageSet {
        StageSet(self.0 & !StageSet::of(period).0)
    }

    /// Its stages, in order.
    pub fn stages(self) -> impl Iterator<Item = &'static Stage> {
        let held = STAGES.iter().zip(0..);
        held.filter(move |(_, index)| self.0 & (1_u16 << index) != 0)
            .map(|(stage, _)| stage)
    }

    /// The stages' names: `router`, or `router+network` where they are known together only.
    pub fn name(self) -> String {
        let names: Vec<&str> = self.stages().map(|stage| stage.name).collect();
        names.join("+")
    }

    /// The names in little room: `network … return` where there are many in a row.
    pub fn short_name(self) -> String {
        let names: Vec<&str> = self.stages().map(|stage| stage.name).collect();
        match names.as_slice() {
            [first, _, .., last] if self.is_a_row() || names.len() > 3 => {
                format!("{first} … {last}")
            }
            names => names.join("+"),
        }
    }

    /// What a person reads: "in the router or on the way into the server".
    fn place(self) -> String {
        let stages: Vec<&Stage> = self.stages().collect();
        if let ([first, _, .., last], true) = (stages.as_slice(), self.is_a_row()) {
            let word = |moment: Moment| match moment {
                // Where no hop saw it, it is the first token that we read.
                Moment::WorkerFirstToken => "first token".to_owned(),
                moment => moment.name().replace('_', " "),
            };
            let (from, to) = (word(first.period.from), word(last.period.to));
            return format!("somewhere between {from} and {to}");
        }
        let places: Vec<&str> = stages.iter().map(|stage| stage.place).collect();
        match places.split_last() {
            None => "nowhere".to_owned(),
            Some((last, [])) => (*last).to_owned(),
            Some((last, others)) => format!("{} or {last}", others.join(", ")),
        }
    }

    /// Whether they follow each other without others between, in the life of a request that one server served or two did.
    fn is_a_row(self) -> bool {
        let mut held = self.stages().map(|stage| stage.period);
        let Some(first) = held.next() else {
            return true;
        };
        let last = held.last().unwrap_or(first);
        let until = |period| STAGES.iter().position(|stage| stage.period == period);
        let (from, to) = (until(first).unwrap_or(0), until(last).unwrap_or(0));
        [false, true].into_iter().any(|is_pair| {
            let others = STAGES.iter().take(to).skip(from);
            // A router holds few.
            let mut others = others.filter(|stage| stage.period != Period::ROUTER_HOLD);
            others.all(|stage| {
                stage.is_of_pair == Some(!is_pair) || Spent::Stages(self).holds(stage.period)
            })
        })
    }
}

impl Spent {
    /// The same without the stage of this period.
    #[must_use]
    pub fn without(self, period: Period) -> Spent {
        match self {
            Spent::Stages(stages) => Spent::Stages(stages.without(period)),
            other => other,
        }
    }

    /// The same without the router's way back, unless that is all of it: nobody sees where a token is there.
    #[must_use]
    pub fn before_router_return(self) -> Spent {
        match self.without(Period::ROUTER_RETURN) {
            Spent::Stages(rest) if rest == StageSet::default() => self,
            rest => rest,
        }
    }

    /// Short name, as in the summary: a stage's, several joined by `+`, or what is no stage.
    pub fn name(self) -> String {
        match self {
            Spent::Stages(stages) => stages.name(),
            Spent::Connecting => "connecting".to_owned(),
            Spent::Proxy => "proxy".to_owned(),
            Spent::Prompt => "prompt_wait".to_owned(),
            Spent::ClientStall => "client_stall".to_owned(),
        }
    }

    /// What a person reads after "was spent".
    pub fn place(self) -> String {
        match self {
            Spent::Stages(stages) => stages.place(),
            Spent::Connecting => "connecting to the target".to_owned(),
            Spent::Proxy => "in the proxy".to_owned(),
            Spent::Prompt => "waiting for the client to send its prompt".to_owned(),
            Spent::ClientStall => "waiting for the client to read".to_owned(),
        }
    }

    /// The place in a request's life where it comes, as an index of [`STAGES`].
    pub fn order(self) -> u32 {
        let router = STAGES
            .iter()
            .position(|stage| stage.period == Period::QUEUE_IN_ROUTER);
        match self {
            Spent::Stages(stages) => stages.0.trailing_zeros(),
            // It stands where a router would.
            Spent::Proxy | Spent::Prompt => router.map_or(0, |index| index as u32),
            Spent::Connecting => 0,
            Spent::ClientStall => STAGES.len() as u32,
        }
    }

    /// Whether this stage is what it was spent on, or part of that.
    pub fn holds(self, period: Period) -> bool {
        match self {
            Spent::Stages(stages) => stages.stages().any(|stage| stage.period == period),
            Spent::Proxy => period == Period::QUEUE_IN_ROUTER,
            Spent::Connecting | Spent::Prompt | Spent::ClientStall => false,
        }
    }
}
