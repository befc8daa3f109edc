//! What a stretch of a request's time was spent on: a stage, several, or what is none.

use crate::request::timeline::{Moment, Period, STAGES, Stage, Timeline};

/// What the remainder inside a server that tells no times is called.
pub const UNSEEN: &str = "unseen in the server";

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

/// Whether it is the life of a request that two servers served; each kind.
const LIVES: [bool; 2] = [false, true];

/// The place of a stage in a request's life; constant where the period is, as mostly.
const fn index(period: Period) -> usize {
    let mut index = 0;
    while index < STAGES.len() {
        let of = STAGES[index].period;
        if of.from as u8 == period.from as u8 && of.to as u8 == period.to as u8 {
            break;
        }
        index += 1;
    }
    index
}

impl StageSet {
    pub(super) const fn one(index: usize) -> StageSet {
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
    pub(super) const fn of(period: Period) -> StageSet {
        StageSet::one(index(period))
    }

    /// Its stages, in order.
    pub fn stages(self) -> impl Iterator<Item = &'static Stage> {
        let mut left = self.0;
        std::iter::from_fn(move || {
            let next = STAGES.get(left.trailing_zeros() as usize)?;
            left &= left - 1;
            Some(next)
        })
    }

    /// The stages' names: `router`, or `router+network` where they are known together only.
    pub fn name(self) -> String {
        let names: Vec<&str> = self.stages().map(|stage| stage.name).collect();
        names.join("+")
    }

    /// What people call them, in little room: `prefill … decode` where there are many in a row.
    fn label(self) -> String {
        let names: Vec<&str> = self.stages().map(|stage| stage.label).collect();
        match (self.unseen(), names.as_slice()) {
            (Some((label, _)), _) => label.to_owned(),
            (None, [first, _, .., last]) if self.is_a_row() || names.len() > 3 => {
                format!("{first} … {last}")
            }
            (None, names) => names.join("+"),
        }
    }

    /// The remainder inside a server or a pair that tells no times, with a router that nobody saw forward or without: its label
    /// and place.
    fn unseen(self) -> Option<(&'static str, &'static str)> {
        let row = |from, to| StageSet::row(index(from), index(to) + 1);
        let is_within = |from| self.0 & !row(from, Period::RETURN).0 == 0;
        let inner = row(Period::TOKENIZE, Period::DECODE_SLOT);
        let is_whole = LIVES.iter().any(|is_pair| {
            let mut inner = inner.stages().filter(|stage| stage.is_in(*is_pair));
            inner.all(|stage| Spent::Stages(self).holds(stage.period))
        });
        match is_whole && self.is_a_row() {
            true if is_within(Period::NETWORK) => Some((UNSEEN, UNSEEN)),
            true if is_within(Period::QUEUE_IN_ROUTER) => {
                Some(("router or server", "in the router or the server"))
            }
            _ => None,
        }
    }

    /// What a person reads: "in the router queue or on the way into the server".
    fn place(self) -> String {
        if let Some((_, place)) = self.unseen() {
            return place.to_owned();
        }
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
        let mut held = self.stages().map(|stage| index(stage.period));
        let Some(first) = held.next() else {
            return true;
        };
        let between = StageSet::row(first, held.last().unwrap_or(first));
        LIVES.iter().any(|is_pair| {
            // A router holds few.
            let mut others = between
                .stages()
                .filter(|stage| stage.is_in(*is_pair) && stage.period != Period::ROUTER_HOLD);
            others.all(|stage| Spent::Stages(self).holds(stage.period))
        })
    }
}

impl Spent {
    /// Its name in files: a stage's, several joined by `+`, or what is no stage.
    pub fn name(self) -> String {
        match self {
            Spent::Stages(stages) => stages.name(),
            Spent::Connecting => "connecting".to_owned(),
            Spent::Proxy => "proxy".to_owned(),
            Spent::Prompt => "prompt_wait".to_owned(),
            Spent::ClientStall => "client_stall".to_owned(),
        }
    }

    /// What people call it.
    pub fn label(self) -> String {
        match self {
            Spent::Stages(stages) => stages.label(),
            Spent::Prompt => "prompt wait".to_owned(),
            Spent::ClientStall => "client stall".to_owned(),
            Spent::Connecting | Spent::Proxy => self.name(),
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
        match self {
            Spent::Stages(stages) => stages.0.trailing_zeros(),
            // It stands where a router would.
            Spent::Proxy | Spent::Prompt => index(Period::QUEUE_IN_ROUTER) as u32,
            Spent::Connecting => 0,
            Spent::ClientStall => STAGES.len() as u32,
        }
    }

    /// Whether it was after the first token, or may have been.
    pub fn is_after_first_token(self) -> bool {
        self == Spent::ClientStall || self.holds(Period::DECODE)
    }

    /// Whether this stage is what it was spent on, or part of that.
    pub fn holds(self, period: Period) -> bool {
        match self {
            Spent::Stages(stages) => stages.0 & StageSet::of(period).0 != 0,
            Spent::Proxy => period == Period::QUEUE_IN_ROUTER,
            Spent::Connecting | Spent::Prompt | Spent::ClientStall => false,
        }
    }
}
