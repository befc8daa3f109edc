//! A sweep over the stays at a server, in order of time: how many waited and ran.

use std::collections::BTreeMap;

use super::Stay;

/// A stretch of time in which the same sequences waited and ran.
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
    /// Tokens of KV cache for those that ran and the next to start.
    pub tokens: u64,
}

/// A change of a stay. At the same time, ends come before starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Change {
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
type Event = (i64, Change, u32);

/// A distribution over time: how long each value lasted, possibly weighted.
#[derive(Clone, Debug, Default)]
pub struct Durations(BTreeMap<u64, f64>);

/// The result of a sweep.
#[derive(Clone, Debug, Default)]
pub struct Sweep {
    /// The time in which any sequence waited, in order.
    pub pieces: Vec<Piece>,
    /// All time, by the number of sequences that ran.
    pub ran: BTreeMap<u32, Ran>,
    /// How long the running sequences needed each number of tokens.
    pub tokens: Durations,
}

/// The time in which as many sequences ran.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ran {
    /// Nanoseconds.
    pub time: f64,
    /// Nanoseconds of the long waits meanwhile.
    pub waited: f64,
    /// Those of them while prompts were prefilled.
    pub prefilling: f64,
    /// Those, times the sequences that decoded.
    pub decoding: f64,
}

impl Piece {
    /// Nanoseconds of long waits.
    pub fn weight(&self) -> f64 {
        f64::from(self.long) * (self.to - self.from) as f64
    }
}

impl Durations {
    /// Adds a duration of a value.
    pub fn add(&mut self, value: u64, weight: f64) {
        *self.0.entry(value).or_default() += weight;
    }

    /// The least value that is not exceeded for this share of the time.
    pub fn quantile(&self, share: f64) -> Option<u64> {
        let until = self.0.values().sum::<f64>() * share;
        let mut sum = 0.0;
        let found = self.0.iter().find(|(_, weight)| {
            sum += **weight;
            sum >= until
        });
        found
            .or_else(|| self.0.last_key_value())
            .map(|(value, _)| *value)
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
pub fn rounded(tokens: u64) -> u64 {
    let bits = tokens.checked_ilog2().unwrap_or(0).saturating_sub(6);
    tokens >> bits << bits
}

impl Sweep {
    fn add(&mut self, piece: &Piece) {
        let ran = self.ran.entry(piece.running).or_default();
        let (time, waited) = ((piece.to - piece.from) as f64, piece.weight());
        ran.time += time;
        ran.waited += waited;
        ran.prefilling += if piece.prefilling > 0 { waited } else { 0.0 };
        ran.decoding += waited * f64::from(piece.running - piece.prefilling);
        if piece.running > 0 {
            self.tokens.add(rounded(piece.tokens), time);
        }
    }

    /// Sweeps over stays at one server. Waits longer than `batch` nanoseconds are long. A piece ends at each of the `cuts`.
    pub fn of(stays: &[Stay], batch: i64, cuts: impl Iterator<Item = i64>) -> Sweep {
        let mut sweep = Sweep::default();
        let events = events(stays, cuts);
        let starts = events.iter();
        let mut starts = starts.filter(|event| event.1 == Change::Start).peekable();
        let origin = events.first().map_or(0, |event| event.0);
        let (mut now, mut reserved) = (Piece::default(), Reserved::default());
        now.from = origin;
        for (at, change, index) in &events {
            let length = (at - now.from) as f64;
            now.tokens = reserved.at((at - origin) as f64 - length / 2.0);
            now.to = *at;
            if *at > now.from && now.running + now.waiting > 0 {
                sweep.add(&now);
            }
            if *at > now.from && now.waiting > 0 {
                let next = starts.peek().and_then(|start| stays.get(start.2 as usize));
                let (prompt, output) = next.map_or((0.0, 0.0), Stay::tokens);
                let tokens = now.tokens + (prompt + output) as u64;
                sweep.pieces.push(Piece { tokens, ..now });
            }
            now.from = *at;
            let Some(stay) = stays.get(*index as usize) else {
                continue;
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
        }
        sweep
    }
}

/// All changes in order of time, and the cuts, which have no stay. Stays that never ran have no end and no first token.
fn events(stays: &[Stay], cuts: impl Iterator<Item = i64>) -> Vec<Event> {
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
    let cuts: Vec<i64> = cuts
        .filter(|at| (first..last).contains(&Some(*at)))
        .collect();
    events.extend(cuts.into_iter().map(|at| (at, Change::Queue, u32::MAX)));
    events.sort_unstable();
    events
}
