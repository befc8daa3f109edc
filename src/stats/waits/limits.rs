//! Infers the limits of a server from its requests: a value at which nearly all waiting was, and which was hardly ever exceeded. A sweep
//! over their stays, in order of time, counts how many waited and ran.

use std::collections::BTreeMap;
use std::ops::{RangeBounds, RangeInclusive};

use super::{ServerFacts, Stay};

/// A time in which the same sequences waited and ran, at least one.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Piece {
    /// Its begin, nanoseconds.
    pub from: i64,
    /// Its end, exclusive.
    pub to: i64,
    /// The sequences that waited.
    pub waiting: u32,
    /// Those of them whose wait was longer than a batch in all.
    pub long: u32,
    /// The sequences that ran.
    pub running: u32,
    /// Those of them without a token yet.
    pub prefilling: u32,
    /// Tokens of KV cache for those that ran.
    pub held: u64,
    /// The same with those of the next to start.
    pub tokens: u64,
}

/// A change of a stay. At the same time, ends come before starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Change {
    /// It ends.
    End,
    /// Its first token is made.
    First,
    /// It enters the queue.
    Queue,
    /// It leaves the queue and runs.
    Start,
}

/// The time, the change, and the index of the stay.
pub type Event = (i64, Change, u32);

/// A distribution over time: how long each value lasted, possibly weighted.
#[derive(Clone, Debug, Default)]
struct Durations(BTreeMap<u64, f64>);

/// What a sweep shows of a server.
#[derive(Clone, Debug, Default)]
pub struct Load {
    /// All time, by the number of sequences that ran.
    ran: BTreeMap<u32, Ran>,
    /// How long the running sequences needed each number of tokens.
    held: Durations,
}

/// The time in which as many sequences ran.
#[derive(Clone, Debug, Default)]
struct Ran {
    /// Nanoseconds.
    time: f64,
    /// Nanoseconds of the long waits meanwhile.
    waited: f64,
    /// Those of them while prompts were prefilled.
    prefilling: f64,
    /// Nanoseconds of the long waits, times the sequences that decoded.
    decoding: f64,
    /// Nanoseconds of the long waits, by the tokens of [`Piece::tokens`].
    tokens: Durations,
}

impl Piece {
    /// Whether any sequence waited.
    pub fn is_waited_in(&self) -> bool {
        self.waiting > 0
    }

    /// Nanoseconds of long waits.
    fn weight(&self) -> f64 {
        f64::from(self.long) * (self.to - self.from) as f64
    }
}

impl Durations {
    /// The sums of durations by value.
    fn of(all: impl Iterator<Item = (u64, f64)>) -> Durations {
        let mut durations = Durations::default();
        all.for_each(|(value, weight)| durations.add(value, weight));
        durations
    }

    /// Adds a duration of a value.
    fn add(&mut self, value: u64, weight: f64) {
        *self.0.entry(value).or_default() += weight;
    }

    /// The least value that is not exceeded for this share of the time.
    fn quantile(&self, share: f64) -> Option<u64> {
        let until = self.0.values().sum::<f64>() * share;
        let mut sum = 0.0;
        let found = self.0.iter().find(|(_, weight)| {
            sum += **weight;
            sum >= until
        });
        let found = found.or_else(|| self.0.last_key_value());
        found.map(|(value, _)| *value)
    }
}

/// The tokens that a server reserves, as a linear function of time: each sequence's grow evenly from its start to its end.
#[derive(Clone, Copy, Debug, Default)]
struct Reserved {
    /// At the beginning of the sweep.
    first: f64,
    /// A nanosecond.
    rate: f64,
}

/// SGLang reserves at least this share of the tokens that are yet to be generated.
const RESERVED_SHARE: f64 = 0.1;

impl Reserved {
    /// Adds those of a stay; `times` is −1 to remove them.
    fn add(&mut self, times: f64, stay: &Stay, origin: i64) {
        let (prompt, output) = stay.tokens();
        let rate = output * (1.0 - RESERVED_SHARE) / (stay.ended - stay.started) as f64;
        self.first +=
            times * (prompt + output * RESERVED_SHARE - rate * (stay.started - origin) as f64);
        self.rate += times * rate;
    }

    fn at(&self, at: f64) -> u64 {
        (self.first + self.rate * at).max(0.0) as u64
    }
}

/// Rounds down to 7 significant bits, so that there are few different values.
fn rounded(tokens: u64) -> u64 {
    let bits = tokens.checked_ilog2().unwrap_or(0).saturating_sub(6);
    tokens >> bits << bits
}

/// A sweep over stays at one server, of which the `events` are all changes: at each, the piece that it ends, if that was of any length. The
/// pieces are made anew at each sweep: a list of them would take 40 bytes for each of millions. Waits longer than `batch` nanoseconds
/// are long.
pub fn sweep<'s>(
    stays: &'s [Stay],
    events: &'s [Event],
    batch: i64,
) -> impl Iterator<Item = (Event, Option<Piece>)> + 's {
    let starts = events.iter();
    let mut starts = starts.filter(|event| event.1 == Change::Start).peekable();
    let origin = events.first().map_or(0, |event| event.0);
    let (mut now, mut reserved) = (Piece::default(), Reserved::default());
    now.from = origin;
    events.iter().map(move |event| {
        let (at, change, index) = *event;
        let piece = (at > now.from && now.running + now.waiting > 0).then(|| {
            let length = (at - now.from) as f64;
            let held = reserved.at((at - origin) as f64 - length / 2.0);
            let next = starts.peek().and_then(|start| stays.get(start.2 as usize));
            let (prompt, output) = next.map_or((0.0, 0.0), Stay::tokens);
            let tokens = held + (prompt + output) as u64;
            Piece {
                to: at,
                held,
                tokens,
                ..now
            }
        });
        now.from = at;
        let Some(stay) = stays.get(index as usize) else {
            return (*event, piece);
        };
        let is_long = u32::from(stay.waited() > batch);
        let has_first = u32::from(stay.prefill_end().is_some());
        match change {
            Change::Queue => (now.waiting, now.long) = (now.waiting + 1, now.long + is_long),
            Change::Start => {
                starts.next();
                (now.waiting, now.long) = (now.waiting - 1, now.long - is_long);
                if stay.runs() {
                    now.running += 1;
                    now.prefilling += has_first;
                    reserved.add(1.0, stay, origin);
                }
            }
            Change::First => now.prefilling -= has_first,
            Change::End => {
                now.running -= 1;
                reserved.add(-1.0, stay, origin);
                if now.running == 0 {
                    // Without rounding errors of the past.
                    reserved = Reserved::default();
                }
            }
        }
        (*event, piece)
    })
}

impl Load {
    /// The load of all pieces.
    pub fn of(pieces: impl Iterator<Item = Piece>) -> Load {
        let mut load = Load::default();
        for piece in pieces {
            let ran = load.ran.entry(piece.running).or_default();
            let (time, waited) = ((piece.to - piece.from) as f64, piece.weight());
            ran.time += time;
            ran.waited += waited;
            ran.prefilling += if piece.prefilling > 0 { waited } else { 0.0 };
            ran.decoding += waited * f64::from(piece.running - piece.prefilling);
            if piece.long > 0 {
                ran.tokens.add(rounded(piece.tokens), waited);
            }
            if piece.running > 0 {
                load.held.add(rounded(piece.held), time);
            }
        }
        load
    }
}

/// All changes in order of time, and the cuts, which have no stay. Stays that never ran have no end and no first token.
pub fn events(stays: &[Stay], cuts: impl Iterator<Item = i64>) -> Vec<Event> {
    let mut events: Vec<Event> = Vec::with_capacity(stays.len() * 4);
    for (stay, index) in stays.iter().zip(0..) {
        events.push((stay.queued, Change::Queue, index));
        events.push((stay.started, Change::Start, index));
        if stay.runs() {
            events.push((stay.ended, Change::End, index));
            events.extend(stay.prefill_end().map(|at| (at, Change::First, index)));
        }
    }
    let times = || events.iter().map(|event| event.0);
    let (first, last) = (times().min(), times().max());
    let inside = cuts.filter(|at| (first..last).contains(&Some(*at)));
    events.extend(inside.map(|at| (at, Change::Queue, u32::MAX)));
    events.sort_unstable();
    events
}

/// The limits of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Limits {
    /// The most requests that run at once.
    pub slots: Option<u32>,
    /// The tokens from which on its KV cache counts as full.
    pub tokens: Option<f64>,
    /// Whether an unknown limit of memory is possible: about as many tokens were held whenever any waited long.
    pub may_be_memory: bool,
    /// The 99th percentile of the running sequences.
    pub ran: u64,
    /// The 99th percentile of the tokens that those needed.
    pub held: u64,
}

/// The fewest long waits that a limit is inferred from.
const MIN_LONG_WAITS: usize = 5;
/// The least share of the waiting that must be at a limit: without the turns of prefill, and of all waiting.
const MIN_AT_LIMIT: f64 = 0.85;
const MIN_OF_ALL: f64 = 0.5;
/// The most of the time at a limit or above that may be above it: ends are stamped after their slot is free.
const MAX_EXCEEDED: f64 = 0.10;
/// If a smaller share of the running sequences decoded, prefill keeps others out, not the slots.
const MIN_DECODING: f64 = 0.25;
/// Values with a relative spread up to this may be at one limit; they are, if it is also this much less than the spread of the running
/// sequences.
const MAX_SPREAD: f64 = 0.18;
const MAX_SPREAD_RATIO: f64 = 0.85;
/// Bounds on the time of a batch, and its default; nanoseconds.
const MIN_BATCH: i64 = 5_000_000;
const MAX_BATCH: i64 = 1_000_000_000;
const DEFAULT_BATCH: i64 = 50_000_000;
/// The share of the KV cache from which on it is full, as servers reserve some for tokens to come.
const FULL: f64 = 0.9;

impl Limits {
    /// About the longest time of a batch: the median of the prefills, nanoseconds.
    pub fn batch(stays: &[Stay]) -> i64 {
        let prefill = |stay: &Stay| Some(stay.prefill_end()? - stay.started);
        let mut prefills: Vec<i64> = stays.iter().filter_map(prefill).collect();
        prefills.sort_unstable();
        let median = prefills.get(prefills.len() / 2).copied();
        median.map_or(DEFAULT_BATCH, |nanos| nanos.clamp(MIN_BATCH, MAX_BATCH))
    }

    /// The known limits, and those inferred from the load.
    pub fn of(stays: &[Stay], load: &Load, batch: i64, known: &ServerFacts) -> Limits {
        let long = stays.iter().filter(|stay| stay.waited() > batch).count();
        let is_enough = long >= MIN_LONG_WAITS;
        let running = load.ran.range(1..);
        let running = Durations::of(running.map(|(running, of)| (u64::from(*running), of.time)));
        let found = || match load.tokens(..) {
            // A limit of memory, of which the values vary less, is no limit of slots.
            Some((Some(_), _)) => None,
            _ => load.slots(),
        };
        let slots = known.slots.or_else(|| is_enough.then(found)?);
        let from_pool = known.pool.map(|pool| pool as f64 * FULL);
        let is_told = known.is_incomplete || from_pool.is_some();
        let below_slots = ..slots.unwrap_or(u32::MAX);
        let found = (is_enough && !is_told)
            .then(|| load.tokens(below_slots))
            .flatten();
        let (found, may_be_memory) = found.unwrap_or_default();
        Limits {
            slots,
            tokens: from_pool.or(found),
            may_be_memory,
            ran: running.quantile(0.99).unwrap_or(0),
            held: load.held.quantile(0.99).unwrap_or(0),
        }
    }
}

impl Load {
    /// The slots: about as many ran whenever any waited long.
    fn slots(&self) -> Option<u32> {
        let by_waiting = |a: &(_, &Ran), b: &(_, &Ran)| a.1.waited.total_cmp(&b.1.waited);
        let (limit, at_limit) = self.ran.iter().max_by(by_waiting)?;
        let band = limit - limit / 16..=limit + (limit / 8).max(1);
        let sum = |range: RangeInclusive<u32>, value: fn(&Ran) -> f64| -> f64 {
            self.ran.range(range).map(|(_, ran)| value(ran)).sum()
        };
        let inside = sum(band.clone(), |ran| ran.waited);
        let all = sum(0..=u32::MAX, |ran| ran.waited);
        // If many end at once, their slots are refilled one prefill batch at a time: waiting below the limit is for a turn of prefill.
        let turns = sum(0..=band.start().saturating_sub(1), |ran| ran.prefilling);
        let ran_from = |min: u32| sum(min..=u32::MAX, |ran| ran.time);
        let is_limit = *limit > 0
            && at_limit.waited > 0.0
            && inside >= MIN_AT_LIMIT * (all - turns)
            && inside >= MIN_OF_ALL * all
            && ran_from(band.end() + 1) <= MAX_EXCEEDED * ran_from(*band.start())
            && at_limit.decoding >= MIN_DECODING * at_limit.waited * f64::from(*limit);
        is_limit.then_some(*limit)
    }

    /// The limit of tokens while so many ran: about as many were needed whenever any waited long, however many sequences ran; and whether
    /// an unknown limit is possible. `None` without numbers of tokens.
    fn tokens(&self, running: impl RangeBounds<u32> + Clone) -> Option<(Option<f64>, bool)> {
        let ran = || self.ran.range(running.clone());
        let tokens = ran().flat_map(|(_, of)| &of.tokens.0);
        let tokens = Durations::of(tokens.map(|(tokens, waited)| (*tokens, *waited)));
        let running = Durations::of(ran().map(|(running, of)| (u64::from(*running), of.waited)));
        let spread = |of: &Durations| {
            let [low, high] = [of.quantile(0.1)?, of.quantile(0.9)?].map(|value| value as f64);
            Some((high - low) / high.max(1.0))
        };
        let least = tokens.quantile(0.1).filter(|least| *least > 0)?;
        let of_tokens = spread(&tokens)?;
        // Sequences held their slots to decode while others waited, not only for their prefill.
        let decoding: f64 = ran().map(|(_, of)| of.decoding).sum();
        let all: f64 = ran()
            .map(|(running, of)| of.waited * f64::from(*running))
            .sum();
        let may_be = of_tokens <= MAX_SPREAD && decoding >= MIN_DECODING * all;
        let is_limit = may_be && of_tokens < MAX_SPREAD_RATIO * spread(&running)?;
        let limit = is_limit.then_some(least as f64 * MIN_AT_LIMIT);
        Some((limit, may_be && !is_limit))
    }
}
