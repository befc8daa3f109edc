//! Why sequences waited at a server, and which others held them up, inferred from their times.
//!
//! At any time all that wait at a server have the same cause, and the waiting is attributed in equal parts to the sequences that
//! run then. So the causes, and the seconds for which each sequence held up others, add up to all waiting.

mod cause;
mod limits;

pub use cause::{ByCause, Cause};
pub use limits::Limits;

use super::Interval;
use limits::{Piece, Sweep};

/// A sequence at a server. Times are nanoseconds on any one clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stay {
    /// When it entered the waiting queue.
    pub queued: i64,
    /// When it left the queue for its first batch.
    pub started: i64,
    /// When its first token was made; [`Stay::started`] if unknown.
    pub first: i64,
    /// When it left the server; [`Stay::started`] if unknown.
    pub ended: i64,
    /// Prompt tokens without those that were in the prefix cache.
    pub prompt: u64,
    /// Generated tokens.
    pub output: u64,
}

/// What is known of a server besides its requests.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServerFacts {
    /// The most requests that it runs at once.
    pub slots: Option<u32>,
    /// Tokens that its KV cache holds.
    pub pool: Option<u64>,
    /// The measured share of those in use, with its time, in order of time.
    pub usage: Vec<(i64, f64)>,
    /// When it was down or starting, in order of time.
    pub down: Vec<Interval>,
    /// When there were requests of unknown waiting and running times, as an [`Interval::union`].
    pub untimed: Vec<Interval>,
    /// Whether others may have run of which nothing is known: nothing is concluded from what its requests leave free.
    pub is_incomplete: bool,
    /// The cause of all waiting there, if rows have it (servers of pairs).
    pub cause: Option<Cause>,
}

/// The waiting at a server, by cause and by the sequences that held others up.
#[derive(Clone, Debug, Default)]
pub struct Waits {
    /// The limits of the server.
    pub limits: Limits,
    /// Seconds of waiting that are attributed to no stay: none ran, or unknown requests occupied the server.
    pub unattributed_s: f64,
    /// By cause, the stretches in which all that waited had it, in order of time: few for each piece, of which a run has millions.
    causes: [Vec<Stretch>; Cause::ALL.len()],
    /// Prefix sums at the end of each piece, in order of time: what a stay held up is the difference of two.
    held: Vec<Held>,
}

/// A time in which all waiting has the same cause.
#[derive(Clone, Copy, Debug)]
struct Stretch {
    from: i64,
    to: i64,
    /// Nanoseconds of this cause before it, of a stay that waited whenever any did.
    before: i64,
}

/// The waiting from the beginning up to a time.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    at: i64,
    /// Seconds for which a stay that always ran held up a single other that always waited, and all others.
    seconds: [f64; 2],
}

/// Prefill is the cause if some prefill was under way for at least this share of the time.
const MIN_PREFILLING: f64 = 0.8;
/// From the first share of the KV cache in use on, it was full; below the second it surely had room.
const FULL_USAGE: f64 = 0.9;
const FREE_USAGE: f64 = 0.5;
/// A measured usage is valid for so long, nanoseconds.
const USAGE_VALID: i64 = 5_000_000_000;
/// A cause that holds for this share of a time is taken for all of it.
const MAJORITY: f64 = 0.5;

impl Stay {
    /// Its wait, nanoseconds.
    pub fn waited(&self) -> i64 {
        self.started - self.queued
    }

    /// Whether it is known to have run.
    pub fn runs(&self) -> bool {
        self.ended > self.started
    }

    /// The end of its prefill, if known: at least a nanosecond before its end, so that both are in order.
    pub fn prefill_end(&self) -> Option<i64> {
        Some(self.first.min(self.ended - 1)).filter(|first| *first > self.started)
    }

    /// Tokens of its prompt, and generated tokens; bounded, so that absurd numbers of a server do not overflow sums.
    pub fn tokens(&self) -> (f64, f64) {
        let [prompt, output] = [self.prompt, self.output].map(|tokens| tokens.min(u32::MAX.into()));
        (prompt as f64, output as f64)
    }
}

impl Stretch {
    /// Nanoseconds of its cause up to a time that is not before it.
    fn until(&self, at: i64) -> i64 {
        self.before + (at.min(self.to) - self.from)
    }
}

impl Waits {
    /// Attributes the waiting of all stays at a server.
    pub fn of(stays: &[Stay], known: &ServerFacts) -> Waits {
        let batch = Limits::batch(stays);
        let cuts = known.down.iter().chain(&known.untimed);
        let cuts = cuts.flat_map(|cut| [cut.start, cut.end]);
        let sweep = Sweep::of(stays, batch, cuts);
        let limits = Limits::of(stays, &sweep, batch, known);
        let judge = Judge {
            limits: &limits,
            batch,
            known,
        };
        let mut waits = Waits::default();
        let mut seconds_held = [0.0; 2];
        for (piece, cause) in sweep.pieces.iter().zip(judge.causes(&sweep.pieces)) {
            let stretches = &mut waits.causes[cause as usize];
            match stretches.last_mut() {
                Some(last) if last.to == piece.from => last.to = piece.to,
                last => {
                    let before = last.map_or(0, |last| last.until(last.to));
                    let (from, to) = (piece.from, piece.to);
                    stretches.push(Stretch { from, to, before });
                }
            }
            let (waiting, running) = (f64::from(piece.waiting), f64::from(piece.running));
            let by_unknown = matches!(cause, Cause::NotSeen | Cause::Down)
                || cause == Cause::Unknown && Interval::any_contains(&known.untimed, piece.from);
            if piece.running == 0 || by_unknown {
                waits.unattributed_s += seconds(piece) * waiting;
            } else {
                let each = seconds(piece) / running;
                seconds_held[0] += each;
                seconds_held[1] += each * waiting;
            }
            let (at, seconds) = (piece.to, seconds_held);
            waits.held.push(Held { at, seconds });
        }
        waits.limits = limits;
        waits
    }

    /// The causes of the whole wait of a stay.
    pub fn causes(&self, stay: &Stay) -> ByCause {
        let mut causes = ByCause::default();
        for (cause, stretches) in Cause::ALL.into_iter().zip(&self.causes) {
            let until = |at: i64| {
                let later = stretches.partition_point(|stretch| stretch.from < at);
                stretches[..later].last().map_or(0, |last| last.until(at))
            };
            causes.add(cause, (until(stay.started) - until(stay.queued)).max(0));
        }
        causes
    }

    /// The seconds for which a stay held up others.
    pub fn held_up(&self, stay: &Stay) -> f64 {
        self.held_between(stay.started, stay.ended)[1]
    }

    /// The `max` stays that held up another longest: their indices, and the seconds of its wait, the longest first.
    pub fn holders(&self, stays: &[Stay], waited: &Stay, max: usize) -> Vec<(usize, f64)> {
        let held = |stay: &Stay| {
            let from = stay.started.max(waited.queued);
            self.held_between(from, stay.ended.min(waited.started))[0]
        };
        let mut all: Vec<(usize, f64)> = stays.iter().map(held).enumerate().collect();
        all.retain(|(_, seconds)| *seconds > 0.0);
        all.sort_by(|a, b| b.1.total_cmp(&a.1));
        all.truncate(max);
        all
    }

    /// The seconds of [`Held`] between two times at which a stay changed; none if the second is no later.
    fn held_between(&self, from: i64, to: i64) -> [f64; 2] {
        let until = |at: i64| {
            let later = self.held.partition_point(|held| held.at <= at);
            self.held[..later].last().copied().unwrap_or_default()
        };
        if to <= from {
            return [0.0; 2];
        }
        let (before, after) = (until(from).seconds, until(to).seconds);
        [after[0] - before[0], after[1] - before[1]]
    }
}

fn seconds(piece: &Piece) -> f64 {
    (piece.to - piece.from) as f64 / 1e9
}

/// Finds the cause of each piece.
struct Judge<'k> {
    limits: &'k Limits,
    batch: i64,
    known: &'k ServerFacts,
}

impl Judge<'_> {
    /// The cause of each piece.
    fn causes(&self, pieces: &[Piece]) -> Vec<Cause> {
        let mut causes: Vec<Cause> = Vec::with_capacity(pieces.len());
        let is_plain = |piece: &Piece| !self.is_full(piece) && !self.is_down(piece);
        // A stretch lasts until nobody waits, or a limit is reached.
        let continues = |a: &Piece, b: &Piece| a.to == b.from && is_plain(a) && is_plain(b);
        for stretch in pieces.chunk_by(continues) {
            let before = causes.len().checked_sub(1);
            let before = before.filter(|last| pieces[*last].to == stretch[0].from);
            let common = self.of_stretch(stretch, before.map(|last| causes[last]));
            let of_piece = |piece| common.unwrap_or_else(|| self.of_piece(piece));
            causes.extend(stretch.iter().map(of_piece));
        }
        // Others took the room only if there was some for most of the time.
        let unexplained = pieces.iter().zip(&causes);
        let unexplained = unexplained.filter(|(_, cause)| **cause == Cause::NotSeen);
        let with_room = unexplained.map(|(piece, _)| {
            let waited = seconds(piece) * f64::from(piece.waiting);
            if self.has_room(piece) {
                waited
            } else {
                -waited
            }
        });
        if with_room.sum::<f64>() < 0.0 {
            let all = causes.iter_mut().filter(|cause| **cause == Cause::NotSeen);
            all.for_each(|cause| *cause = Cause::Unknown);
        }
        causes
    }

    /// The cause of a piece whose stretch has several.
    fn of_piece(&self, piece: &Piece) -> Cause {
        let is_untimed = Interval::any_contains(&self.known.untimed, piece.from);
        match self.is_memory(piece) {
            true => Cause::Memory,
            false if self.known.is_incomplete || is_untimed => Cause::Unknown,
            false => Cause::NotSeen,
        }
    }

    /// The cause of a stretch, if all of it has the same.
    fn of_stretch(&self, stretch: &[Piece], before: Option<Cause>) -> Option<Cause> {
        let first = stretch.first()?;
        if self.known.cause.is_some() {
            return self.known.cause;
        }
        if self.is_down(first) {
            return Some(Cause::Down);
        }
        if self.is_full(first) {
            return Some(Cause::Slots);
        }
        let length =
            |of: &dyn Fn(&&Piece) -> bool| -> f64 { stretch.iter().filter(of).map(seconds).sum() };
        let all = length(&|_| true);
        if all * 1e9 <= self.batch as f64 {
            // A free slot is taken only with the next batch, so a short dip below the limit is still waiting for slots.
            let is_dip = before == Some(Cause::Slots);
            return Some(if is_dip { Cause::Slots } else { Cause::Prefill });
        }
        if length(&|piece| self.is_memory(piece)) >= MAJORITY * all {
            return Some(Cause::Memory);
        }
        (length(&|piece| piece.prefilling > 0) >= MIN_PREFILLING * all).then_some(Cause::Prefill)
    }

    fn is_full(&self, piece: &Piece) -> bool {
        let slots = self.limits.slots;
        slots.is_some_and(|slots| piece.running >= slots)
    }

    fn is_down(&self, piece: &Piece) -> bool {
        Interval::any_contains(&self.known.down, piece.from)
    }

    fn is_memory(&self, piece: &Piece) -> bool {
        match self.usage(piece) {
            Some(usage) if usage >= FULL_USAGE => true,
            Some(usage) if usage < FREE_USAGE => false,
            _ => (self.limits.tokens).is_some_and(|limit| piece.tokens as f64 >= limit),
        }
    }

    fn usage(&self, piece: &Piece) -> Option<f64> {
        let measured = &self.known.usage;
        let until = measured.partition_point(|(at, _)| *at <= piece.to);
        let (at, usage) = measured[..until].last()?;
        (piece.from.saturating_sub(*at) < USAGE_VALID).then_some(*usage)
    }

    /// Whether the server could have run one more of these requests: it has run more, and held as many tokens.
    fn has_room(&self, piece: &Piece) -> bool {
        let limits = self.limits;
        let max = u64::from(limits.slots.unwrap_or(0)).max(limits.ran);
        let is_free = self.usage(piece).is_some_and(|usage| usage < FREE_USAGE);
        let held = limits.tokens.unwrap_or(0.0);
        let fits = (piece.tokens as f64) <= held.max(limits.held as f64);
        let has_memory = is_free || fits && !limits.may_be_memory;
        u64::from(piece.running) < max && has_memory
    }
}

#[cfg(test)]
mod tests;
