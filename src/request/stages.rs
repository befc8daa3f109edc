//! Where one request's time went: the stages of [`STAGES`], joined where the moment between them is missing.

use crate::request::outcome::Outcome;
use crate::request::row::Row;
use crate::request::timeline::{Moment, Period, STAGES, Side, Stage, Timeline};

/// What a part of a request's time was spent on: a set of stages, one bit each, several if the moments between them are missing.
/// Four bits stand for time that is no stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StageSet(u32);

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

/// The label of the time inside a server that reports no times.
pub const UNSEEN: &str = "unseen in the server";

/// Time that is no stage: its name in files, its label, and what people read after "was spent". The bits follow those of the
/// stages.
const NO_STAGES: [[&str; 3]; 4] = [
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
    let timeline = &row.timeline;
    let begin = |stage: &Stage| timeline.raw(timeline.period_of(stage)?.from);
    let is_seen = |stage: &Stage| begin(stage).is_some();
    Some(match last_seen {
        None => (row.is_ok().then_some(Moment::Finish)?, STAGES.len()),
        Some(StageSet::CONNECTING) => (Moment::End, STAGES.iter().rposition(is_seen)?),
        Some(place) => (Moment::End, place.order() as usize),
    })
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
        let is_pair = self.timeline.prefill().is_some();
        let named = self.ended_in.as_deref();
        let named = named.and_then(|name| StageSet::named(name, is_pair));
        named.or_else(|| self.find_last_seen())
    }

    /// The same by its moments: after the last that is known, and before the next that the observer would have seen. `None` if none
    /// is known.
    pub(super) fn find_last_seen(&self) -> Option<StageSet> {
        if self.is_ok() {
            return None;
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
        let begun = |stage: &Stage| timeline.period_of(stage).is_some_and(|of| !lacks(of.from));
        let first = STAGES.iter().rposition(begun)?;
        let is_observed = |stage: &&Stage| stage.period.to.clock(side) == side.clock();
        let later = STAGES[first..].iter().take_while(|of| !is_observed(of));
        let stages = STAGES[first..=first + later.count()].iter();
        let own = stages.filter(|stage| timeline.period_of(stage).is_some());
        Some(own.map(|stage| StageSet::of(stage.period)).collect())
    }
}

/// Returns where a request was last seen, for people: "last seen in the router".
pub fn place(last_seen: StageSet) -> String {
    match last_seen.ended_in(|stage| stage.name).as_str() {
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

    /// Its words: one of each stage or, if it is no stage, that of [`NO_STAGES`] at `index`.
    fn words(self, of: impl Fn(&Stage) -> &'static str, index: usize) -> Vec<&'static str> {
        let bit = (self.0.trailing_zeros() as usize).checked_sub(STAGES.len());
        let other = bit.and_then(|bit| NO_STAGES.get(bit));
        let other = other.map(|words| words[index]);
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

    /// Returns the stages of a name in the column `ended_in`.
    fn named(name: &str, is_pair: bool) -> Option<StageSet> {
        let of = |name: &str| match name {
            "connecting" => Some(StageSet::CONNECTING),
            "proxy" => Some(StageSet::PROXY),
            "server" => {
                let all = StageSet::range(Period::NETWORK, Period::RETURN);
                let own = all.stages().filter(|stage| stage.is_in(is_pair));
                Some(own.map(|stage| StageSet::of(stage.period)).collect())
            }
            name => {
                let at = STAGES.iter().position(|stage| stage.name == name);
                at.map(StageSet::one)
            }
        };
        name.split('+').map(of).collect()
    }

    /// Returns where a request was last seen, by the stages' names; `server` stands for all stages between the send to the server
    /// and the first token.
    pub fn ended_in(self, name: impl Fn(&Stage) -> &'static str) -> String {
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
        match names.is_empty() {
            true => self.name(),
            false => names.join("+"),
        }
    }
}

#[cfg(test)]
mod tests;
