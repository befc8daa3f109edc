//! What a stretch of a request's time was spent on: a stage, several, or what is none.

use crate::request::timeline::{Moment, Period, STAGES, Stage, Timeline};

/// What the remainder inside a server that tells no times is called.
pub const UNSEEN: &str = "unseen in the server";

/// What a stretch of a request's time was spent on, a bit each: a stage; several, where no moment between them was seen; or what is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Spent(pub(super) u32);

/// What is no stage: its name in files, what people call it, and what they read after "was spent". Their bits are behind the stages'.
const OTHERS: [[&str; 3]; 4] = [
    ["connecting", "connecting", "connecting to the target"],
    ["proxy", "proxy", "in the proxy"],
    [
        "prompt_wait",
        "prompt wait",
        "waiting for the client to send its prompt",
    ],
    [
        "client_stall",
        "client stall",
        "waiting for the client to read",
    ],
];

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

impl Spent {
    /// The generator got no connection; what it waited before it tried is in it.
    pub const CONNECTING: Spent = Spent::one(STAGES.len());
    /// Our own proxy, where no router stands behind it: its send is then the router's.
    pub const PROXY: Spent = Spent::one(STAGES.len() + 1);
    /// The proxy waited for the client to send its prompt.
    pub const PROMPT: Spent = Spent::one(STAGES.len() + 2);
    /// Writes to the client were held up while the server decoded.
    pub const CLIENT_STALL: Spent = Spent::one(STAGES.len() + 3);

    pub(super) const fn one(index: usize) -> Spent {
        Spent(1 << index)
    }

    /// Those from one place to before another.
    pub(super) fn row(from: usize, to: usize) -> Spent {
        (from..to).fold(Spent::default(), |set, at| set.with(Spent::one(at)))
    }

    pub(super) fn with(self, other: Spent) -> Spent {
        Spent(self.0 | other.0)
    }

    /// Those that a request has.
    pub(super) fn in_life_of(self, timeline: &Timeline) -> Spent {
        let own = |stage: &&Stage| timeline.period_of(stage).is_some();
        let own = self
            .stages()
            .filter(own)
            .map(|stage| Spent::of(stage.period));
        own.fold(Spent::default(), Spent::with)
    }

    /// The stage of this period.
    pub const fn of(period: Period) -> Spent {
        Spent::one(index(period))
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

    /// What it is if it is no stage.
    fn other(self) -> Option<&'static [&'static str; 3]> {
        OTHERS.get((self.0.trailing_zeros() as usize).checked_sub(STAGES.len())?)
    }

    /// Its name in files: a stage's, several joined by `+`, or what is no stage.
    pub fn name(self) -> String {
        let names = self.stages().map(|stage| stage.name);
        let other = self.other().map(|[name, ..]| *name);
        Vec::from_iter(names.chain(other)).join("+")
    }

    /// What people call it, in little room: `prefill … decode` where there are many stages in a row.
    pub fn label(self) -> String {
        let other = self.other().map(|[_, label, _]| *label);
        let names = self.stages().map(|stage| stage.label).chain(other);
        let names: Vec<&str> = names.collect();
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
        let row = |from, to| Spent::row(index(from), index(to) + 1);
        let is_within = |from| self.0 & !row(from, Period::RETURN).0 == 0;
        let inner = row(Period::TOKENIZE, Period::DECODE_SLOT);
        let is_whole = LIVES.iter().any(|is_pair| {
            let mut inner = inner.stages().filter(|stage| stage.is_in(*is_pair));
            inner.all(|stage| self.holds(stage.period))
        });
        match is_whole && self.is_a_row() {
            true if is_within(Period::NETWORK) => Some((UNSEEN, UNSEEN)),
            true if is_within(Period::QUEUE_IN_ROUTER) => {
                Some(("router or server", "in the router or the server"))
            }
            _ => None,
        }
    }

    /// What a person reads after "was spent": "in the router queue or on the way into the server".
    pub fn place(self) -> String {
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
        let other = self.other().map(|[.., place]| *place);
        let places = stages.iter().map(|stage| stage.place).chain(other);
        let places: Vec<&str> = places.collect();
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
        let between = Spent::row(first, held.last().unwrap_or(first));
        LIVES.iter().any(|is_pair| {
            // A router holds few.
            let mut others = between
                .stages()
                .filter(|stage| stage.is_in(*is_pair) && stage.period != Period::ROUTER_HOLD);
            others.all(|stage| self.holds(stage.period))
        })
    }

    /// The place in a request's life where it comes, as an index of [`STAGES`].
    pub fn order(self) -> u32 {
        match self {
            // They stand where a router would.
            Spent::PROXY | Spent::PROMPT => index(Period::QUEUE_IN_ROUTER) as u32,
            Spent::CONNECTING => 0,
            _ => self.0.trailing_zeros().min(STAGES.len() as u32),
        }
    }

    /// Whether it was after the first token, or may have been.
    pub fn is_after_first_token(self) -> bool {
        self == Spent::CLIENT_STALL || self.holds(Period::DECODE)
    }

    /// Whether this stage is what it was spent on, or part of that.
    pub fn holds(self, period: Period) -> bool {
        let is_own_router = self == Spent::PROXY && period == Period::QUEUE_IN_ROUTER;
        self.0 & Spent::of(period).0 != 0 || is_own_router
    }
}
