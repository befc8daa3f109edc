//! Why sequences waited at a server, and who held them up, as far as their own times tell.
//!
//! Each moment in which any waits has one cause, which all have that wait then; and is laid equally on those that run then. So
//! causes, and what each sequence held up others, add up to all that was waited.

mod cause;
mod limits;
mod stay;
mod sweep;

pub use cause::{ByCause, Cause};
pub use limits::Limits;
pub use stay::{Known, Stay};

use super::Interval;
use sweep::{Piece, Sweep};

/// The waiting at a server.
#[derive(Clone, Debug, Default)]
pub struct Waits {
    /// Its limits.
    pub limits: Limits,
    /// Seconds of waiting that no stay held up: nobody ran, or others than these had the server.
    pub by_nobody: f64,
    /// In order of time.
    marks: Vec<Mark>,
}

/// What had been waited by the end of a piece.
#[derive(Clone, Copy, Debug, Default)]
struct Mark {
    at: i64,
    /// By one that waited whenever any did.
    causes: ByCause,
    /// Seconds that one that always ran held up one of those that waited then, and all of them.
    held: [f64; 2],
}

/// The share of the time in which some prefill was under way where prefill keeps others out.
const COVERED: f64 = 0.8;
/// The share of the KV cache in use from which on it was full; below the other it surely had room.
const USED: (f64, f64) = (0.9, 0.5);
/// What was said of a server holds for so long, nanoseconds.
const HOLDS: i64 = 5_000_000_000;
/// The share by which the rest of a time is judged.
const MOST: f64 = 0.5;

impl Waits {
    /// Of all that is known of a server's requests.
    pub fn of(stays: &[Stay], known: &Known) -> Waits {
        let batch = Limits::batch(stays);
        let cuts = known.down.iter().chain(&known.untimed);
        let cuts = cuts.flat_map(|cut| [cut.start, cut.end]);
        let sweep = Sweep::of(stays, batch, cuts);
        let limits = Limits::of(stays, &sweep, batch, known);
        let causes = match known.cause {
            Some(cause) => vec![cause; sweep.pieces.len()],
            None => Judge { limits, known }.causes(&sweep.pieces),
        };
        let (mut by_nobody, mut mark) = (0.0, Mark::default());
        let lay = |(piece, cause): (&Piece, Cause)| {
            let (waiting, running) = (f64::from(piece.waiting), f64::from(piece.running));
            mark.at = piece.to;
            mark.causes.add(cause, piece.to - piece.from);
            let is_others = match cause {
                Cause::NotSeen | Cause::Down => true,
                Cause::Unknown => Interval::any_holds(&known.untimed, piece.from),
                _ => false,
            };
            if piece.running == 0 || is_others {
                by_nobody += seconds(piece) * waiting;
            } else {
                let each = seconds(piece) / running;
                mark.held = [mark.held[0] + each, mark.held[1] + each * waiting];
            }
            mark
        };
        let marks = sweep.pieces.iter().zip(causes).map(lay).collect();
        Waits {
            limits,
            by_nobody,
            marks,
        }
    }

    /// What a stay waited for: all of its wait.
    pub fn causes(&self, stay: &Stay) -> ByCause {
        self.between(stay.queued, stay.started).causes
    }

    /// The seconds that a stay held up others.
    pub fn held_up(&self, stay: &Stay) -> f64 {
        self.between(stay.started, stay.ended).held[1]
    }

    /// Those that held up a stay longest: places and seconds of its wait, the longest first.
    pub fn holders(&self, stays: &[Stay], waited: &Stay, most: usize) -> Vec<(usize, f64)> {
        let held = |stay: &Stay| {
            let from = stay.started.max(waited.queued);
            self.between(from, stay.ended.min(waited.started)).held[0]
        };
        let mut all: Vec<(usize, f64)> = stays.iter().map(held).enumerate().collect();
        all.retain(|(_, seconds)| *seconds > 0.0);
        all.sort_by(|a, b| b.1.total_cmp(&a.1));
        all.truncate(most);
        all
    }

    /// What was waited from one moment at which anything happened to another; nothing where that is no later.
    fn between(&self, from: i64, to: i64) -> Mark {
        let until = |at: i64| {
            let later = self.marks.partition_point(|mark| mark.at <= at);
            let last = later.checked_sub(1).and_then(|last| self.marks.get(last));
            last.copied().unwrap_or_default()
        };
        if to <= from {
            return Mark::default();
        }
        let (before, after) = (until(from), until(to));
        Mark {
            at: to,
            causes: after.causes.less(&before.causes),
            held: [0, 1].map(|which: usize| after.held[which] - before.held[which]),
        }
    }
}

fn seconds(piece: &Piece) -> f64 {
    (piece.to - piece.from) as f64 / 1e9
}

/// Who says what a piece's cause is.
struct Judge<'k> {
    limits: Limits,
    known: &'k Known,
}

impl Judge<'_> {
    /// A cause for each piece.
    fn causes(&self, pieces: &[Piece]) -> Vec<Cause> {
        let mut causes: Vec<Cause> = Vec::with_capacity(pieces.len());
        let (mut open, mut with_room, mut before) = (0.0, 0.0, None);
        let is_plain = |piece: &Piece| !self.is_full(piece) && !self.is_down(piece);
        // All the time until nobody waits, or a limit is reached.
        let goes_on = |a: &Piece, b: &Piece| a.to == b.from && is_plain(a) && is_plain(b);
        for stretch in pieces.chunk_by(goes_on) {
            let begin = stretch.first().map_or(0, |piece| piece.from);
            let before_it = before
                .filter(|(to, _)| *to == begin)
                .map(|(_, cause)| cause);
            let one = self.of_stretch(stretch, before_it);
            for piece in stretch {
                let cause = one.unwrap_or(match self.is_memory(piece) {
                    true => Cause::Memory,
                    false => Cause::Unknown,
                });
                if self.is_open(piece, cause) {
                    let waited = seconds(piece) * f64::from(piece.waiting);
                    open += waited;
                    with_room += if self.has_room(piece) { waited } else { 0.0 };
                }
                before = Some((piece.to, cause));
                causes.push(cause);
            }
        }
        if open > 0.0 && with_room >= MOST * open {
            let open = pieces.iter().zip(&mut causes);
            let open = open.filter(|(piece, cause)| self.is_open(piece, **cause));
            open.for_each(|(_, cause)| *cause = Cause::NotSeen);
        }
        causes
    }

    /// What a stretch of waiting was for, where it is one thing.
    fn of_stretch(&self, stretch: &[Piece], before: Option<Cause>) -> Option<Cause> {
        let first = stretch.first()?;
        if self.is_down(first) {
            return Some(Cause::Down);
        }
        if self.is_full(first) {
            return Some(Cause::Slots);
        }
        let length =
            |of: &dyn Fn(&&Piece) -> bool| -> f64 { stretch.iter().filter(of).map(seconds).sum() };
        let all = length(&|_| true);
        if all * 1e9 <= self.limits.batch as f64 {
            // Whoever takes the place that became free begins a batch later.
            let is_dip = before == Some(Cause::Slots);
            return Some(if is_dip { Cause::Slots } else { Cause::Prefill });
        }
        if length(&|piece| self.is_memory(piece)) >= MOST * all {
            return Some(Cause::Memory);
        }
        (length(&|piece| piece.prefilling > 0) >= COVERED * all).then_some(Cause::Prefill)
    }

    fn is_full(&self, piece: &Piece) -> bool {
        let slots = self.limits.slots;
        slots.is_some_and(|slots| piece.running >= slots)
    }

    fn is_down(&self, piece: &Piece) -> bool {
        Interval::any_holds(&self.known.down, piece.from)
    }

    /// Whether others may have had the server: nothing else is known, and no request was there that may have had a place unseen.
    fn is_open(&self, piece: &Piece, cause: Cause) -> bool {
        cause == Cause::Unknown && !Interval::any_holds(&self.known.untimed, piece.from)
    }

    fn is_memory(&self, piece: &Piece) -> bool {
        match self.usage(piece) {
            Some(usage) if usage >= USED.0 => true,
            Some(usage) if usage < USED.1 => false,
            _ => {
                let room = self.limits.tokens;
                room.is_some_and(|room| piece.tokens as f64 >= room)
            }
        }
    }

    fn usage(&self, piece: &Piece) -> Option<f64> {
        let said = &self.known.usage;
        let (at, usage) = said
            .partition_point(|(at, _)| *at <= piece.to)
            .checked_sub(1)
            .and_then(|last| said.get(last))?;
        (piece.from - at < HOLDS).then_some(*usage)
    }

    /// Whether the server has run one more, and held as many tokens: those that are seen took neither its places nor its memory.
    fn has_room(&self, piece: &Piece) -> bool {
        let most = self.limits.slots.unwrap_or(0).max(self.limits.ran);
        let is_told = self.usage(piece).is_some_and(|usage| usage < USED.1);
        let held = self.limits.tokens.unwrap_or(0.0);
        let holds = (piece.tokens as f64) <= held.max(self.limits.held as f64);
        let has_memory = is_told || holds && !self.limits.may_be_memory;
        piece.running < most && has_memory
    }
}

#[cfg(test)]
mod tests;
