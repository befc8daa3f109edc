//! Sets of stages: what a part of a request's time was spent on, and where a request was when it ended.

use std::borrow::Cow;

use super::cell::{Value, cells};
use super::timeline::{Moment, Period, STAGES, Stage};

mod breakdown;

pub use breakdown::{Breakdown, Part};

/// What a part of a request's time was spent on, or where it was when it ended: a set of stages, one bit each, several if the moments
/// between them are missing. Further bits stand for what is no stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StageSet(u32);

/// The label of the time inside a server that reports no times.
pub const UNSEEN: &str = "unseen in the server";

/// What is no stage: its name in files, its label, and what people read after "was spent". The bits follow those of the stages.
const NO_STAGES: [[&str; 3]; 5] = [
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
    ["done", "done", "done"],
];

cells! {
    StageSet: Value::Text(names) => StageSet::named(&names),
        |all| Value::Text(all.ended_in(|stage| stage.name));
}

/// Returns where a request was last seen, for people: "last seen in the router".
pub fn place(last_seen: StageSet) -> String {
    match &*last_seen.ended_in(|stage| stage.name) {
        "server" => "in the server, before its first token".to_owned(),
        "router+server" => "in the router or the server, before the first token".to_owned(),
        _ => last_seen.place(),
    }
}

/// Returns the index of the stage with this period in [`STAGES`].
fn index(period: Period) -> usize {
    let index = STAGES.iter().position(|stage| stage.period == period);
    index.unwrap_or(STAGES.len())
}

impl FromIterator<StageSet> for StageSet {
    fn from_iter<I: IntoIterator<Item = StageSet>>(all: I) -> StageSet {
        StageSet(all.into_iter().fold(0, |bits, one| bits | one.0))
    }
}

impl StageSet {
    /// The generator got no connection; its wait before the try is included.
    pub const CONNECTING: StageSet = StageSet::one(STAGES.len());
    /// Our own proxy, without a router behind it: its send is then the router's.
    pub const PROXY: StageSet = StageSet::one(STAGES.len() + 1);
    /// The proxy waited for the client to send its prompt.
    pub const PROMPT: StageSet = StageSet::one(STAGES.len() + 2);
    /// Writes to the client were held up while the server decoded.
    pub const CLIENT_STALL: StageSet = StageSet::one(STAGES.len() + 3);
    /// A request that went well was in no stage when it ended.
    pub const DONE: StageSet = StageSet::one(STAGES.len() + 4);

    const fn one(index: usize) -> StageSet {
        StageSet(1 << index)
    }

    /// The stages from one to another.
    fn range(from: Period, to: Period) -> StageSet {
        (index(from)..=index(to)).map(StageSet::one).collect()
    }

    /// The set of the stage with this period.
    pub fn of(period: Period) -> StageSet {
        StageSet::one(index(period))
    }

    /// Returns its stages, in order.
    pub fn stages(self) -> impl Iterator<Item = &'static Stage> {
        let mut left = self.0;
        std::iter::from_fn(move || {
            let next = STAGES.get(left.trailing_zeros() as usize)?;
            left &= left - 1;
            Some(next)
        })
    }

    /// Its line of [`NO_STAGES`], if it is no stage.
    fn no_stage(self) -> Option<&'static [&'static str; 3]> {
        let bit = (self.0.trailing_zeros() as usize).checked_sub(STAGES.len());
        NO_STAGES.get(bit?)
    }

    /// Its words: one of each stage or, if it is no stage, that of [`NO_STAGES`] at `index`.
    fn words(self, of: impl Fn(&Stage) -> &'static str, index: usize) -> Vec<&'static str> {
        let other = self.no_stage().map(|words| words[index]);
        self.stages().map(of).chain(other).collect()
    }

    /// Returns its name in files: several stages are joined by `+`.
    pub fn name(self) -> String {
        self.words(|stage| stage.name, 0).join("+")
    }

    /// Returns its label: `prefill … decode` for more than three stages.
    pub fn label(self) -> String {
        let labels = self.words(|stage| stage.label, 1);
        match (self.unmeasured(), labels.as_slice()) {
            (Some((label, _)), _) => label.to_owned(),
            (None, [first, _, _, .., last]) => format!("{first} … {last}"),
            (None, labels) => labels.join("+"),
        }
    }

    /// If it is all time inside a server, or a pair, that reports no times, perhaps with the router's: its label and text.
    fn unmeasured(self) -> Option<(&'static str, &'static str)> {
        let is_within = |from| self.0 & !StageSet::range(from, Period::RETURN).0 == 0;
        let inner = StageSet::range(Period::TOKENIZE, Period::DECODE_SLOT);
        let is_whole = [false, true].iter().any(|is_pair| {
            let mut inner = inner.stages().filter(|stage| stage.is_in(*is_pair));
            inner.all(|stage| self.holds(stage.period))
        });
        match is_whole {
            true if is_within(Period::NETWORK) => Some((UNSEEN, UNSEEN)),
            true if is_within(Period::QUEUE_IN_ROUTER) => {
                Some(("router or server", "in the router or the server"))
            }
            _ => None,
        }
    }

    /// Returns what people read after "was spent": "in the router queue or on the way into the server".
    pub fn place(self) -> String {
        if let Some((_, place)) = self.unmeasured() {
            return place.to_owned();
        }
        let stages: Vec<&Stage> = self.stages().collect();
        if let [first, _, _, .., last] = stages.as_slice() {
            let word = |moment: Moment| match moment {
                // If no hop saw it, it is the first token that we read.
                Moment::WorkerFirstToken => "first token".to_owned(),
                moment => moment.name().replace('_', " "),
            };
            let (from, to) = (word(first.period.from), word(last.period.to));
            return format!("somewhere between {from} and {to}");
        }
        match self.words(|stage| stage.place, 2).split_last() {
            None => "nowhere".to_owned(),
            Some((last, [])) => (*last).to_owned(),
            Some((last, others)) => format!("{} or {last}", others.join(", ")),
        }
    }

    /// Returns its place in a request's life, as an index of [`STAGES`].
    pub fn order(self) -> u32 {
        match self {
            // They take the router's place.
            StageSet::PROXY | StageSet::PROMPT => index(Period::QUEUE_IN_ROUTER) as u32,
            StageSet::CONNECTING => 0,
            _ => self.0.trailing_zeros().min(STAGES.len() as u32),
        }
    }

    /// Whether it was after the first token, or may have been.
    pub fn is_after_first_token(self) -> bool {
        self == StageSet::CLIENT_STALL || self.holds(Period::DECODE)
    }

    /// Whether it holds the stage with this period.
    pub fn holds(self, period: Period) -> bool {
        let is_own_router = self == StageSet::PROXY && period == Period::QUEUE_IN_ROUTER;
        self.0 & StageSet::of(period).0 != 0 || is_own_router
    }

    /// Whether all that it holds is before the server, so that a request that ended there was at none.
    pub fn is_before_server(self) -> bool {
        let before = StageSet::range(Period::SCHEDULE_LAG, Period::NETWORK);
        let before = [before, StageSet::CONNECTING, StageSet::PROXY];
        self.0 != 0 && self.0 & !StageSet::from_iter(before).0 == 0
    }

    /// Without the stages that a request of a pair, or else one of one server, does not have.
    fn only_of_pair(self, is_pair: bool) -> StageSet {
        let others = STAGES.iter().filter(|stage| !stage.is_in(is_pair));
        let others: StageSet = others.map(|stage| StageSet::of(stage.period)).collect();
        StageSet(self.0 & !others.0)
    }

    /// Returns the stages of a name in the column `ended_in`. Those of `server` are of one server as well as of a pair.
    fn named(name: &str) -> Option<StageSet> {
        let mut alone = [StageSet::CONNECTING, StageSet::PROXY, StageSet::DONE].into_iter();
        let alone = alone.find(|of| of.no_stage().is_some_and(|[own, ..]| *own == name));
        let stages = |name| match name {
            "server" => Some(StageSet::range(Period::NETWORK, Period::RETURN)),
            name => {
                let at = STAGES.iter().position(|stage| stage.name == name);
                at.map(StageSet::one)
            }
        };
        alone.or_else(|| name.split('+').map(stages).collect())
    }

    /// Returns where a request was when it ended, by the stages' names; `server` stands for all stages between the send to the
    /// server and the first token.
    pub fn ended_in(self, name: impl Fn(&Stage) -> &'static str) -> Cow<'static, str> {
        if let Some([name, ..]) = self.no_stage() {
            return Cow::Borrowed(name);
        }
        let mut names: Vec<&str> = Vec::new();
        let mut server = None;
        for stage in self.stages() {
            if stage.period.from == Moment::RouterSend {
                server = Some(names.len());
            }
            names.push(name(stage));
            if let (Some(from), Moment::WorkerFirstToken | Moment::FirstToken) =
                (server, stage.period.to)
            {
                names.truncate(from);
                names.push("server");
            }
        }
        names.join("+").into()
    }
}
