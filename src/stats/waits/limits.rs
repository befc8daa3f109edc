//! What a server's limits are, as far as its requests tell: a value at which nearly all of the waiting was, and which it
//! hardly ever passed.

use super::stay::{Known, Stay};
use super::sweep::{Held, Piece, Sweep, rounded};

/// A server's limits.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Limits {
    /// Requests that run at once.
    pub slots: Option<u32>,
    /// Tokens for which it has room; from a share of that on it counts as full.
    pub tokens: Option<f64>,
    /// Whether a limit of memory, though it is not known, cannot be ruled out: about as many tokens were held whenever any waited long.
    pub may_be_memory: bool,
    /// What it was seen to run, nearly at most.
    pub ran: u32,
    /// The tokens that those needed room for, nearly at most.
    pub held: u64,
    /// Longer than this a batch does not take, nanoseconds.
    pub batch: i64,
}

/// Long waits that a limit is found of, at least.
const ENOUGH: usize = 5;
/// The share of the waiting that is at a limit, where it is one; of that beside the prefills' turns, and of all.
const NEARLY_ALL: f64 = 0.85;
const OF_ALL: f64 = 0.5;
/// The share of the time at a limit or above in which it may seem to be passed: ends are stamped after their place is free.
const PASSED: f64 = 0.10;
/// Where less of those that ran decoded, prefill keeps others out, and not the places.
const DECODED: f64 = 0.25;
/// Values that spread less than this may be one limit; and are one if it is so much less than how requests at once spread.
const SPREAD: f64 = 0.18;
const OF_RUNNING: f64 = 0.85;
/// The least and the most that a batch is taken to last, and what it is where nobody knows; nanoseconds.
const BATCH: (i64, i64, i64) = (5_000_000, 1_000_000_000, 50_000_000);
/// Room is kept for what may come: from here on the pool is full.
const FULL: f64 = 0.9;

impl Limits {
    /// How long a batch takes at most, about: half of the prefills take less. Nanoseconds.
    pub fn batch(stays: &[Stay]) -> i64 {
        let prefills = stays.iter();
        let prefills = prefills.filter_map(|stay| Some(stay.first_seen()? - stay.started));
        let mut prefills: Vec<i64> = prefills.collect();
        let middle = prefills.len() / 2;
        match prefills.is_empty() {
            true => BATCH.2,
            false => (*prefills.select_nth_unstable(middle).1).clamp(BATCH.0, BATCH.1),
        }
    }

    /// Those that are known, and those that the sweep tells.
    pub fn of(stays: &[Stay], sweep: &Sweep, batch: i64, known: &Known) -> Limits {
        let long = stays.iter().filter(|stay| stay.waited() > batch).count();
        let below = |slots: Option<u32>| {
            let is_below = |piece: &&Piece| slots.is_none_or(|slots| piece.running < slots);
            tokens(&sweep.pieces.iter().filter(is_below).collect::<Vec<_>>()).unwrap_or_default()
        };
        let found = || match below(None) {
            // Memory is the steadier of the two: it is no limit of places.
            (Some(_), _) => None,
            _ => slots(sweep),
        };
        let is_enough = long >= ENOUGH;
        let slots = known.slots.or_else(|| is_enough.then(found)?);
        let told = known.pool.map(|pool| pool as f64 * FULL);
        let (found, may_be_memory) = match is_enough && told.is_none() {
            true => below(slots),
            false => (None, false),
        };
        Limits {
            slots,
            tokens: told.or(found),
            may_be_memory,
            ran: sweep.ran.quantile(0.99).unwrap_or(0),
            held: sweep.tokens.quantile(0.99).unwrap_or(0),
            batch,
        }
    }
}

fn weight(piece: &Piece) -> f64 {
    f64::from(piece.long) * (piece.to - piece.from) as f64
}

/// So many ran whenever any waited long.
fn slots(sweep: &Sweep) -> Option<u32> {
    let mut waited = Held::default();
    let pieces = || sweep.pieces.iter().filter(|piece| piece.long > 0);
    pieces().for_each(|piece| waited.add(piece.running, weight(piece)));
    let (most, _) = waited.all().max_by(|a, b| a.1.total_cmp(&b.1))?;
    let band = most.saturating_sub(most / 16)..=most + (most / 8).max(1);
    let inside: f64 = waited
        .all()
        .filter(|of| band.contains(&of.0))
        .map(|of| of.1)
        .sum();
    // Where many end at once, their places are taken a prefill batch at a time: below the limit the turn is waited for.
    let is_turn = |piece: &&Piece| piece.prefilling > 0 && piece.running < *band.start();
    let turns: f64 = pieces().filter(is_turn).map(weight).sum();
    let ran = |least: u32| -> f64 {
        let above = sweep.ran.all().filter(|(running, _)| *running >= least);
        above.map(|(_, time)| time).sum()
    };
    let is_limit = most > 0
        && inside >= NEARLY_ALL * (waited.total() - turns)
        && inside >= OF_ALL * waited.total()
        && ran(band.end() + 1) <= PASSED * ran(*band.start())
        && decode(pieces().filter(|piece| piece.running == most));
    is_limit.then_some(most)
}

/// Whether those that ran while others waited held their places to decode, and not for their prefill alone.
fn decode<'p>(pieces: impl Iterator<Item = &'p Piece>) -> bool {
    let (mut decoding, mut all) = (0.0, 0.0);
    for piece in pieces {
        all += weight(piece) * f64::from(piece.running);
        decoding += weight(piece) * f64::from(piece.running - piece.prefilling);
    }
    decoding >= DECODED * all
}

/// Those that ran needed room for so many tokens whenever any waited long, however many they were; and whether that may be.
fn tokens(pieces: &[&Piece]) -> Option<(Option<f64>, bool)> {
    let (mut tokens, mut running) = (Held::default(), Held::default());
    for piece in pieces.iter().filter(|piece| piece.long > 0) {
        tokens.add(rounded(piece.tokens), weight(piece));
        running.add(u64::from(piece.running), weight(piece));
    }
    let spread = |of: &Held<u64>| {
        let [low, high] = [of.quantile(0.1)?, of.quantile(0.9)?].map(|value| value as f64);
        Some((high - low) / high.max(1.0))
    };
    // Rows may not tell of tokens.
    let least = tokens.quantile(0.1).filter(|least| *least > 0)?;
    let of_tokens = spread(&tokens)?;
    let may_be = of_tokens <= SPREAD && decode(pieces.iter().copied());
    let is_limit = may_be && of_tokens < OF_RUNNING * spread(&running)?;
    let limit = is_limit.then_some(least as f64 * NEARLY_ALL);
    Some((limit, may_be && !is_limit))
}
