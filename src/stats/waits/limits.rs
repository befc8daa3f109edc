//! Infers the limits of a server from its requests: a value at which nearly all waiting was, and which was hardly ever exceeded.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use super::sweep::{Durations, Piece, Ran, Sweep, rounded};
use super::{ServerFacts, Stay};

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

    /// The known limits, and those inferred from a sweep.
    pub fn of(stays: &[Stay], sweep: &Sweep, batch: i64, known: &ServerFacts) -> Limits {
        let long = stays.iter().filter(|stay| stay.waited() > batch).count();
        let is_enough = long >= MIN_LONG_WAITS;
        let mut ran = Durations::default();
        let running = sweep.ran.range(1..);
        running.for_each(|(running, of)| ran.add(u64::from(*running), of.time));
        let found = || match below(&sweep.pieces, None) {
            // A limit of memory, of which the values vary less, is no limit of slots.
            (Some(_), _) => None,
            _ => slots(&sweep.ran),
        };
        let slots = known.slots.or_else(|| is_enough.then(found)?);
        let from_pool = known.pool.map(|pool| pool as f64 * FULL);
        let is_told = known.is_incomplete || from_pool.is_some();
        let found = (is_enough && !is_told).then(|| below(&sweep.pieces, slots));
        let (found, may_be_memory) = found.unwrap_or_default();
        Limits {
            slots,
            tokens: from_pool.or(found),
            may_be_memory,
            ran: ran.quantile(0.99).unwrap_or(0),
            held: sweep.tokens.quantile(0.99).unwrap_or(0),
        }
    }
}

/// The slots: about as many ran whenever any waited long.
fn slots(ran: &BTreeMap<u32, Ran>) -> Option<u32> {
    let by_waiting = |a: &(_, &Ran), b: &(_, &Ran)| a.1.waited.total_cmp(&b.1.waited);
    let (limit, at_limit) = ran.iter().max_by(by_waiting)?;
    let band = limit - limit / 16..=limit + (limit / 8).max(1);
    let sum = |range: RangeInclusive<u32>, value: fn(&Ran) -> f64| -> f64 {
        ran.range(range).map(|(_, ran)| value(ran)).sum()
    };
    let (inside, all) = (
        sum(band.clone(), |ran| ran.waited),
        sum(0..=u32::MAX, |ran| ran.waited),
    );
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

/// The limit of tokens of the pieces below a number of slots, and whether an unknown one is possible.
fn below(pieces: &[Piece], slots: Option<u32>) -> (Option<f64>, bool) {
    let is_below = |piece: &&Piece| slots.is_none_or(|slots| piece.running < slots);
    tokens(&pieces.iter().filter(is_below).collect::<Vec<_>>()).unwrap_or_default()
}

/// The limit of tokens: about as many were needed whenever any waited long, however many sequences ran; and whether an unknown limit is
/// possible. `None` without numbers of tokens.
fn tokens(pieces: &[&Piece]) -> Option<(Option<f64>, bool)> {
    let (mut tokens, mut running) = (Durations::default(), Durations::default());
    for piece in pieces.iter().filter(|piece| piece.long > 0) {
        tokens.add(rounded(piece.tokens), piece.weight());
        running.add(u64::from(piece.running), piece.weight());
    }
    let spread = |of: &Durations| {
        let [low, high] = [of.quantile(0.1)?, of.quantile(0.9)?].map(|value| value as f64);
        Some((high - low) / high.max(1.0))
    };
    let least = tokens.quantile(0.1).filter(|least| *least > 0)?;
    let of_tokens = spread(&tokens)?;
    let sum = |running: fn(&Piece) -> u32| -> f64 {
        let weighted = pieces.iter();
        weighted
            .map(|of| of.weight() * f64::from(running(of)))
            .sum()
    };
    // Sequences held their slots to decode while others waited, not only for their prefill.
    let decoding = sum(|piece| piece.running - piece.prefilling);
    let mostly_decodes = decoding >= MIN_DECODING * sum(|piece| piece.running);
    let may_be = of_tokens <= MAX_SPREAD && mostly_decodes;
    let is_limit = may_be && of_tokens < MAX_SPREAD_RATIO * spread(&running)?;
    let limit = is_limit.then_some(least as f64 * MIN_AT_LIMIT);
    Some((limit, may_be && !is_limit))
}
