//! Stays in order of time: how many waited, and ran, at each moment.

use std::collections::BTreeMap;

use super::stay::Stay;
use crate::stats::Interval;

/// A stretch of time in which the same sequences waited and ran.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Piece {
    /// Its first nanosecond.
    pub from: i64,
    /// The first one after it.
    pub to: i64,
    /// Those that waited.
    pub waiting: u32,
    /// Those of them that waited longer than a batch takes.
    pub long: u32,
    /// Those that ran.
    pub running: u32,
    /// Those of them that had no token yet.
    pub prefilling: u32,
    /// Tokens that those that ran, and the next to start, needed room for.
    pub tokens: u64,
}

/// What happens to a stay. At one moment whoever ends makes room for those who start.
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

/// When, what, and whose: the place of the stay.
type Event = (i64, Change, u32);

/// How long each of some values held.
#[derive(Clone, Debug, Default)]
pub struct Held<V>(BTreeMap<V, f64>);

/// A server's time.
#[derive(Clone, Debug, Default)]
pub struct Sweep {
    /// The time in which any waited.
    pub pieces: Vec<Piece>,
    /// How long so many ran, whether any waited or not.
    pub ran: Held<u32>,
    /// How long those that ran needed room for so many tokens.
    pub tokens: Held<u64>,
}

impl<V: Ord + Copy> Held<V> {
    /// A value held so long.
    pub fn add(&mut self, value: V, weight: f64) {
        *self.0.entry(value).or_default() += weight;
    }

    /// All of them, in order.
    pub fn all(&self) -> impl DoubleEndedIterator<Item = (V, f64)> + '_ {
        self.0.iter().map(|(value, weight)| (*value, *weight))
    }

    /// How long any held.
    pub fn total(&self) -> f64 {
        self.0.values().sum()
    }

    /// The value that this share of the time does not exceed.
    pub fn quantile(&self, share: f64) -> Option<V> {
        let until = self.total() * share;
        let mut sum = 0.0;
        let mut all = self.all();
        let found = all.find(|(_, weight)| {
            sum += weight;
            sum >= until
        });
        found
            .or_else(|| self.all().next_back())
            .map(|(value, _)| value)
    }
}

/// Tokens that a server keeps room for, which grow as those that run make them, evenly: so many at the beginning of the sweep, and so many
/// more a nanosecond.
#[derive(Clone, Copy, Debug, Default)]
struct Kept {
    first: f64,
    rate: f64,
}

/// Of what is yet to be made SGLang keeps room for this share, at the least.
const TO_COME: f64 = 0.1;

impl Kept {
    /// Adds those of a stay so many times.
    fn add(&mut self, times: f64, stay: &Stay, origin: i64) {
        let (prompt, output) = stay.tokens();
        let rate = output * (1.0 - TO_COME) / (stay.ended - stay.started) as f64;
        self.first += times * (prompt + output * TO_COME - rate * (stay.started - origin) as f64);
        self.rate += times * rate;
    }

    fn at(&self, at: f64) -> u64 {
        (self.first + self.rate * at).max(0.0) as u64
    }
}

/// Three digits of a number: so that few of them are told apart.
pub fn rounded(tokens: u64) -> u64 {
    let bits = tokens.checked_ilog2().unwrap_or(0).saturating_sub(6);
    tokens >> bits << bits
}

impl Sweep {
    /// Of stays at one server; one that waited longer than `batch` nanoseconds waited long. A piece ends at each of the `cuts`.
    pub fn of(stays: &[Stay], batch: i64, cuts: impl Iterator<Item = i64>) -> Sweep {
        let mut sweep = Sweep::default();
        let events = events(stays, cuts);
        let starts = events.iter();
        let mut starts = starts.filter(|event| event.1 == Change::Start).peekable();
        let (mut now, mut kept) = (Piece::default(), Kept::default());
        let origin = events.first().map_or(0, |event| event.0);
        for (at, change, place) in &events {
            let length = (at - now.from) as f64;
            now.tokens = kept.at((at - origin) as f64 - length / 2.0);
            if *at > now.from && now.running > 0 {
                sweep.ran.add(now.running, length);
                sweep.tokens.add(rounded(now.tokens), length);
            }
            if *at > now.from && now.waiting > 0 {
                let next = starts
                    .peek()
                    .and_then(|(_, _, next)| stays.get(*next as usize));
                let tokens = now.tokens + next.map_or(0, Stay::room);
                sweep.pieces.push(Piece {
                    to: *at,
                    tokens,
                    ..now
                });
            }
            now.from = *at;
            let Some(stay) = stays.get(*place as usize) else {
                continue;
            };
            let is_long = u32::from(stay.waited() > batch);
            let has_first = u32::from(stay.first_seen().is_some());
            match change {
                Change::Queue => (now.waiting, now.long) = (now.waiting + 1, now.long + is_long),
                Change::Start => {
                    starts.next();
                    (now.waiting, now.long) = (now.waiting - 1, now.long - is_long);
                    if stay.runs() {
                        now.running += 1;
                        now.prefilling += has_first;
                        kept.add(1.0, stay, origin);
                    }
                }
                Change::First => now.prefilling -= has_first,
                Change::End => {
                    now.running -= 1;
                    kept.add(-1.0, stay, origin);
                    if now.running == 0 {
                        // What was rounded is forgotten.
                        kept = Kept::default();
                    }
                }
            }
        }
        sweep
    }
}

/// What happens, in order of time. Nothing ends, or is at its first token, that does not run by then. To no stay a cut happens.
fn events(stays: &[Stay], cuts: impl Iterator<Item = i64>) -> Vec<Event> {
    let mut events: Vec<Event> = Vec::with_capacity(stays.len() * 4);
    for (stay, place) in stays.iter().zip(0..) {
        events.push((stay.queued, Change::Queue, place));
        events.push((stay.started, Change::Start, place));
        if stay.runs() {
            events.push((stay.ended, Change::End, place));
            events.extend(stay.first_seen().map(|at| (at, Change::First, place)));
        }
    }
    let ends = stays.iter().map(|stay| stay.ended.max(stay.started));
    let whole = Interval {
        start: stays.iter().map(|stay| stay.queued).min().unwrap_or(0),
        end: ends.max().unwrap_or(0),
    };
    let cuts = cuts.filter(|at| Interval::any_holds(&[whole], *at));
    events.extend(cuts.map(|at| (at, Change::Queue, u32::MAX)));
    events.sort_unstable();
    events
}
