//! Why sequences waited at a server, and who held them up, as far as their own times tell.
//!
//! Each moment in which any waits has one cause, which all have that wait then; and is laid equally on those that run then. So
//! causes, and what each sequence held up others, add up to all that was waited.

mod limits;
mod stay;
mod sweep;

pub use limits::Limits;
pub use stay::{Cause, Known, Stay};

use super::Interval;
use sweep::{Change, Piece, Sweep};

/// What each of the causes took, in the order of [`Cause::ALL`]; nanoseconds.
pub type ByCause = [i64; Cause::ALL.len()];

/// The waiting at a server.
#[derive(Clone, Debug, Default)]
pub struct Waits {
    /// Its limits.
    pub limits: Limits,
    /// Of each stay, what it waited for; together they are what it waited.
    pub causes: Vec<ByCause>,
    /// Of each stay, the seconds that it held up others.
    pub held_up: Vec<f64>,
    /// Seconds of waiting that no stay held up: nobody ran, or others than these had the server.
    pub by_nobody: f64,
    /// The time in which any waited, with its cause.
    pieces: Vec<(Piece, Cause)>,
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
        let sweep = Sweep::of(stays, batch);
        let limits = Limits::of(stays, &sweep, batch, known);
        let causes = Judge { limits, known }.causes(&sweep.pieces);
        let mut waits = Waits {
            limits,
            causes: vec![ByCause::default(); stays.len()],
            held_up: vec![0.0; stays.len()],
            by_nobody: 0.0,
            pieces: sweep.pieces.into_iter().zip(causes).collect(),
        };
        waits.lay(stays, &sweep.events);
        waits
    }

    /// Lays the pieces on those that waited, and on those that ran meanwhile.
    fn lay(&mut self, stays: &[Stay], events: &[sweep::Event]) {
        let (mut causes, mut held) = (ByCause::default(), 0.0);
        let mut pieces = self.pieces.iter().peekable();
        for (at, change, place) in events {
            while let Some((piece, cause)) = pieces.next_if(|(piece, _)| piece.to <= *at) {
                causes[*cause as usize] += piece.to - piece.from;
                match share(piece, *cause) {
                    Some(each) => held += each * f64::from(piece.waiting),
                    None => self.by_nobody += seconds(piece) * f64::from(piece.waiting),
                }
            }
            let place = *place as usize;
            if let (Change::Queue | Change::Start, Some(of)) = (change, self.causes.get_mut(place))
            {
                let sum = |(so_far, now): (&mut i64, &i64)| *so_far = *now - *so_far;
                of.iter_mut().zip(&causes).for_each(sum);
            }
            let runs = stays.get(place).is_some_and(Stay::runs);
            if let (Change::Start | Change::End, true, Some(of)) =
                (change, runs, self.held_up.get_mut(place))
            {
                *of = held - *of;
            }
        }
    }

    /// What most of a stay's wait was for.
    pub fn main(&self, place: usize) -> Option<Cause> {
        let causes = Cause::ALL.into_iter().zip(self.causes.get(place)?);
        causes
            .max_by_key(|(_, nanos)| **nanos)
            .map(|(cause, _)| cause)
    }

    /// Those that held up a stay longest: places and seconds of its wait, the longest first.
    pub fn holders(&self, stays: &[Stay], place: usize, most: usize) -> Vec<(usize, f64)> {
        let Some(waited) = stays.get(place) else {
            return Vec::new();
        };
        let first = self
            .pieces
            .partition_point(|(piece, _)| piece.to <= waited.queued);
        let pieces = self.pieces.get(first..).unwrap_or_default().iter();
        let mut sums: Vec<(i64, f64)> = vec![(waited.queued, 0.0)];
        for (piece, cause) in pieces.take_while(|(piece, _)| piece.to <= waited.started) {
            let before = sums.last().map_or(0.0, |(_, sum)| *sum);
            sums.push((piece.to, before + share(piece, *cause).unwrap_or(0.0)));
        }
        let until = |at: i64| {
            let after = sums.partition_point(|(to, _)| *to <= at);
            sums.get(after.saturating_sub(1))
                .map_or(0.0, |(_, sum)| *sum)
        };
        let held = |(place, stay): (usize, &Stay)| {
            let (from, to) = (
                stay.started.max(waited.queued),
                stay.ended.min(waited.started),
            );
            (from < to).then(|| (place, until(to) - until(from)))
        };
        let mut all: Vec<(usize, f64)> = stays.iter().enumerate().filter_map(held).collect();
        all.retain(|(_, seconds)| *seconds > 0.0);
        all.sort_by(|a, b| b.1.total_cmp(&a.1));
        all.truncate(most);
        all
    }
}

fn seconds(piece: &Piece) -> f64 {
    (piece.to - piece.from) as f64 / 1e9
}

/// The seconds of one's waiting that each of those that ran in a piece is told to have held it; `None`: none of them has.
fn share(piece: &Piece, cause: Cause) -> Option<f64> {
    let is_theirs = piece.running > 0 && !matches!(cause, Cause::NotSeen | Cause::Down);
    is_theirs.then(|| seconds(piece) / f64::from(piece.running))
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
        let is_plain = |piece: &Piece| !self.is_full(piece) && !self.is_down(piece);
        let (mut open, mut with_room) = (0.0, 0.0);
        while let Some((first, rest)) = pieces.get(causes.len()..).and_then(<[_]>::split_first) {
            if !is_plain(first) {
                let is_down = self.is_down(first);
                causes.push(if is_down { Cause::Down } else { Cause::Slots });
                continue;
            }
            // All the time until nobody waits, or a limit is reached.
            let mut end = first.to;
            let more = rest.iter().take_while(|piece| {
                let goes_on = piece.from == end && is_plain(piece);
                end = piece.to;
                goes_on
            });
            let count = 1 + more.count();
            let stretch = pieces.get(causes.len()..causes.len() + count);
            let stretch = stretch.unwrap_or_default();
            let before = causes.len().checked_sub(1);
            let before = before.filter(|at| pieces.get(*at).is_some_and(|of| of.to == first.from));
            let before = before.and_then(|at| causes.get(at)).copied();
            match self.of_stretch(stretch, before) {
                Some(cause) => causes.extend(std::iter::repeat_n(cause, count)),
                None => {
                    for piece in stretch {
                        let is_memory = self.is_memory(piece);
                        let seconds = seconds(piece) * f64::from(piece.waiting);
                        open += if is_memory { 0.0 } else { seconds };
                        with_room += if self.has_room(piece) { seconds } else { 0.0 };
                        causes.push(if is_memory {
                            Cause::Memory
                        } else {
                            Cause::Unknown
                        });
                    }
                }
            }
        }
        if open > 0.0 && with_room >= MOST * open {
            let unknown = causes.iter_mut().filter(|cause| **cause == Cause::Unknown);
            unknown.for_each(|cause| *cause = Cause::NotSeen);
        }
        causes
    }

    /// What a stretch of waiting below the limit was for, where it is one thing.
    fn of_stretch(&self, stretch: &[Piece], before: Option<Cause>) -> Option<Cause> {
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
        let down = &self.known.down;
        let next = down.partition_point(|down| down.end <= piece.from);
        let overlap = |down: &Interval| down.end.min(piece.to) - down.start.max(piece.from);
        let next = down.get(next);
        next.is_some_and(|down| overlap(down) * 2 >= piece.to - piece.from)
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
        let has_memory = is_told || (piece.tokens as f64) <= held.max(self.limits.held as f64);
        piece.running < most && has_memory
    }
}

#[cfg(test)]
mod tests;
