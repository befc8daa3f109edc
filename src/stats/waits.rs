//! Why sequences waited at a server, and which others held them up, inferred from their times.
//!
//! At any time all that wait at a server have the same cause, and the waiting is attributed in equal parts to the sequences that
//! run then. So the causes, and the seconds for which each sequence held up others, add up to all waiting.

mod cause;
mod limits;

pub use cause::{ByCause, Cause};
pub use limits::Limits;

use super::Interval;
use limits::{Change, Load, Piece, events, sweep};

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

/// The waiting at a server, by cause and by the sequences that held others up. Those are named by their index among its stays.
#[derive(Clone, Debug, Default)]
pub struct Waits {
    /// The limits of the server.
    pub limits: Limits,
    /// The causes of all waiting.
    pub all: ByCause,
    /// Seconds of waiting that are attributed to no stay: none ran, or unknown requests occupied the server.
    pub unattributed_s: f64,
    /// By cause, the stretches in which all that waited had it, in order of time: few for each change, of which a run has millions.
    stretches: [Vec<Stretch>; Cause::ALL.len()],
    /// For each stay; what it held up is a difference of two.
    held: Vec<HeldUntil>,
}

/// A time in which all waiting has the same cause.
#[derive(Clone, Copy, Debug)]
struct Stretch {
    from: i64,
    to: i64,
    /// Nanoseconds of this cause before it, of a stay that waited whenever any did.
    before: i64,
}

/// Seconds from the beginning up to a time.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    /// For which a stay that always ran held up a single other that always waited.
    one: f64,
    /// For which it held up all others.
    all: f64,
}

/// The same, up to each change of a stay.
#[derive(Clone, Copy, Debug, Default)]
struct HeldUntil {
    /// Only that of one other.
    queued: f64,
    started: Held,
    ended: Held,
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
        let events = events(stays, cuts.flat_map(|cut| [cut.start, cut.end]));
        let pieces = || sweep(stays, &events, batch).filter_map(|(_, piece)| piece);
        let limits = Limits::of(stays, &Load::of(pieces()), batch, known);
        let judge = Judge {
            limits: &limits,
            batch,
            known,
        };
        let mut causes = judge
            .causes(pieces().filter(Piece::is_waited_in))
            .into_iter();
        let mut waits = Waits {
            limits,
            held: vec![HeldUntil::default(); stays.len()],
            ..Waits::default()
        };
        let mut now = Held::default();
        for ((_, change, stay), piece) in sweep(stays, &events, batch) {
            if let Some(piece) = piece.filter(Piece::is_waited_in)
                && let Some(cause) = causes.next()
            {
                waits.add(&piece, cause, known, &mut now);
            }
            let Some(held) = waits.held.get_mut(stay as usize) else {
                continue;
            };
            match change {
                Change::Queue => held.queued = now.one,
                // One that never runs has no end.
                Change::Start => (held.started, held.ended) = (now, now),
                Change::First => {}
                Change::End => held.ended = now,
            }
        }
        waits
    }

    /// Adds the waiting of a piece, which is later than those before, and what a stay that always ran held up in it.
    fn add(&mut self, piece: &Piece, cause: Cause, known: &ServerFacts, held: &mut Held) {
        let stretches = &mut self.stretches[cause as usize];
        match stretches.last_mut() {
            Some(last) if last.to == piece.from => last.to = piece.to,
            last => {
                let before = last.map_or(0, |last| last.until(last.to));
                let (from, to) = (piece.from, piece.to);
                stretches.push(Stretch { from, to, before });
            }
        }
        let (length, waiting) = (piece.to - piece.from, f64::from(piece.waiting));
        self.all
            .add(cause, length.saturating_mul(piece.waiting.into()));
        let by_unknown = matches!(cause, Cause::NotSeen | Cause::Down)
            || cause == Cause::Unknown && Interval::any_contains(&known.untimed, piece.from);
        if piece.running == 0 || by_unknown {
            self.unattributed_s += seconds(piece) * waiting;
        } else {
            let each = seconds(piece) / f64::from(piece.running);
            held.one += each;
            held.all += each * waiting;
        }
    }

    /// The causes of the whole wait of a stay.
    pub fn causes(&self, stay: &Stay) -> ByCause {
        let mut causes = ByCause::default();
        for (cause, stretches) in Cause::ALL.into_iter().zip(&self.stretches) {
            let until = |at: i64| {
                let later = stretches.partition_point(|stretch| stretch.from < at);
                stretches[..later].last().map_or(0, |last| last.until(at))
            };
            causes.add(cause, (until(stay.started) - until(stay.queued)).max(0));
        }
        causes
    }

    /// The seconds for which a stay held up others.
    pub fn held_up(&self, stay: usize) -> f64 {
        let held = &self.held[stay];
        held.ended.all - held.started.all
    }

    /// The `max` stays that held up another longest: with the seconds of its wait, the longest first.
    pub fn holders(&self, waited: usize, max: usize) -> Vec<(usize, f64)> {
        let (queued, started) = (self.held[waited].queued, self.held[waited].started.one);
        // Negative if they were not there at the same time.
        let held = |of: &HeldUntil| of.ended.one.min(started) - of.started.one.max(queued);
        let all = self.held.iter().map(held).enumerate();
        let mut all: Vec<(usize, f64)> = all.filter(|(_, seconds)| *seconds > 0.0).collect();
        all.sort_by(|a, b| b.1.total_cmp(&a.1));
        all.truncate(max);
        all
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

/// Seconds of a stretch.
#[derive(Default)]
struct Lengths {
    all: f64,
    /// While the memory was full.
    memory: f64,
    /// While prompts were prefilled.
    prefilling: f64,
    /// Of waiting whose cause nothing here explains: nanoseconds while there was room, less those while there was none.
    with_room: i128,
}

impl Judge<'_> {
    /// The cause of each piece.
    fn causes(&self, pieces: impl Iterator<Item = Piece>) -> Vec<Cause> {
        let is_plain = |piece: &Piece| !self.is_full(piece) && !self.is_down(piece);
        // A stretch lasts until nobody waits, or a limit is reached.
        let continues = |a: &Piece, b: &Piece| a.to == b.from && is_plain(a) && is_plain(b);
        let (mut causes, mut pieces) = (Vec::new(), pieces.peekable());
        let (mut until, mut with_room) = (None, 0_i128);
        while let Some(first) = pieces.next() {
            let at = causes.len();
            let before = causes.last().filter(|_| until == Some(first.from)).copied();
            let (mut last, mut lengths) = (first, Lengths::default());
            loop {
                causes.push(self.count(&last, &mut lengths));
                match pieces.next_if(|next| continues(&last, next)) {
                    Some(next) => last = next,
                    None => break,
                }
            }
            until = Some(last.to);
            match self.of_stretch(&first, &lengths, before) {
                Some(cause) => causes[at..].fill(cause),
                None => with_room += lengths.with_room,
            }
        }
        // Others took the room only if there was some for most of the time.
        if with_room < 0 {
            let all = causes.iter_mut().filter(|cause| **cause == Cause::NotSeen);
            all.for_each(|cause| *cause = Cause::Unknown);
        }
        causes
    }

    /// Adds a piece to the lengths of its stretch; returns its cause, if the stretch has several.
    fn count(&self, piece: &Piece, lengths: &mut Lengths) -> Cause {
        let (length, is_memory) = (seconds(piece), self.is_memory(piece));
        lengths.all += length;
        lengths.memory += if is_memory { length } else { 0.0 };
        lengths.prefilling += if piece.prefilling > 0 { length } else { 0.0 };
        if is_memory {
            return Cause::Memory;
        }
        if self.known.is_incomplete || Interval::any_contains(&self.known.untimed, piece.from) {
            return Cause::Unknown;
        }
        let waited = i128::from(piece.to - piece.from) * i128::from(piece.waiting);
        lengths.with_room += match self.has_room(piece) {
            true => waited,
            false => -waited,
        };
        Cause::NotSeen
    }

    /// The cause of a stretch, if all of it has the same.
    fn of_stretch(&self, first: &Piece, of: &Lengths, before: Option<Cause>) -> Option<Cause> {
        if self.known.cause.is_some() {
            return self.known.cause;
        }
        if self.is_down(first) {
            return Some(Cause::Down);
        }
        if self.is_full(first) {
            return Some(Cause::Slots);
        }
        if of.all * 1e9 <= self.batch as f64 {
            // A free slot is taken only with the next batch, so a short dip below the limit is still waiting for slots.
            let is_dip = before == Some(Cause::Slots);
            return Some(if is_dip { Cause::Slots } else { Cause::Prefill });
        }
        if of.memory >= MAJORITY * of.all {
            return Some(Cause::Memory);
        }
        (of.prefilling >= MIN_PREFILLING * of.all).then_some(Cause::Prefill)
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
