//! Infers the limits of a server from its requests: a value at which nearly all waiting was, and which was hardly ever exceeded.

use std::ops::RangeInclusive;

use super::stay::{ServerFacts, Stay};
use super::sweep::{Durations, Piece, Ran, Span, Sweep, rounded};

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
    pub ran: u32,
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
/// Slots that changed are found if at each limit so many times its number of sequences started, and at least this share of the waiting
/// there was while exactly as many ran; and if each part explains at least this share of all waiting more, and all together that share,
/// without what they must explain more.
const MIN_TURNS: u32 = 4;
const MIN_EXACT: f64 = 0.5;
const MIN_GAIN: f64 = 0.02;
const MIN_EXPLAINED: f64 = 0.75;
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
        let prefills = stays.iter();
        let prefills = prefills.filter_map(|stay| Some(stay.prefill_end()? - stay.started));
        let mut prefills: Vec<i64> = prefills.collect();
        let middle = prefills.len() / 2;
        match prefills.is_empty() {
            true => DEFAULT_BATCH,
            false => (*prefills.select_nth_unstable(middle).1).clamp(MIN_BATCH, MAX_BATCH),
        }
    }

    /// The known limits, and those inferred from a sweep: each with the begin of the time for which it holds, and the pieces of that time.
    /// Only inferred slots change.
    pub fn over_time<'s>(
        stays: &[Stay],
        sweep: &'s Sweep,
        batch: i64,
        known: &ServerFacts,
    ) -> Vec<(i64, &'s [Piece], Limits)> {
        let long = stays.iter().filter(|stay| stay.waited() > batch).count();
        let is_enough = long >= MIN_LONG_WAITS;
        let waited: f64 = sweep.pieces.iter().map(Piece::weight).sum();
        let mut parts = match is_enough && known.slots.is_none() {
            true => cut(&sweep.spans, waited),
            false => vec![&sweep.spans[..]],
        };
        if parts.len() > 1 && below(&sweep.pieces, None).0.is_some() {
            parts = vec![&sweep.spans];
        }
        let mut rest = &sweep.pieces[..];
        let of_part = |part: &[Span]| {
            let from = part.first().map_or(i64::MIN, |span| span.from);
            let end = part.last().map_or(i64::MAX, |span| span.to);
            let (pieces, later) = rest.split_at(rest.partition_point(|piece| piece.from < end));
            rest = later;
            let limits = Limits::of(part, pieces, known, is_enough);
            (from, pieces, limits)
        };
        parts.into_iter().map(of_part).collect()
    }

    /// The limits that hold at a time.
    pub fn at(limits: &[(i64, Limits)], at: i64) -> Limits {
        let begun = limits.partition_point(|(from, _)| *from <= at);
        limits
            .get(begun.saturating_sub(1))
            .map_or_else(Limits::default, |of| of.1)
    }

    fn of(spans: &[Span], pieces: &[Piece], known: &ServerFacts, is_enough: bool) -> Limits {
        let (mut all, mut ran, mut held) =
            (Span::default(), Durations::default(), Durations::default());
        for span in spans {
            all.join(span);
            span.tokens
                .all()
                .for_each(|(tokens, time)| held.add(tokens, time));
        }
        let running = all.ran.range(1..);
        running.for_each(|(running, of)| ran.add(*running, of.time));
        let found = || match below(pieces, None) {
            // A limit of memory, of which the values vary less, is no limit of slots.
            (Some(_), _) => None,
            _ => Some(slots(&all)?.0),
        };
        let slots = known.slots.or_else(|| is_enough.then(found)?);
        let from_pool = known.pool.map(|pool| pool as f64 * FULL);
        let is_told = known.is_incomplete || from_pool.is_some();
        let (found, may_be_memory) = match is_enough && !is_told {
            true => below(pieces, slots),
            false => (None, false),
        };
        Limits {
            slots,
            tokens: from_pool.or(found),
            may_be_memory,
            ran: ran.quantile(0.99).unwrap_or(0),
            held: held.quantile(0.99).unwrap_or(0),
        }
    }
}

/// Cuts spans where the slots changed: into the parts whose limits explain most of what is `waited`.
fn cut(spans: &[Span], waited: f64) -> Vec<&[Span]> {
    // By the number of the first spans: how much their best parts explain, and where the last of these begins.
    let mut best = vec![(0.0, 0)];
    for end in 1..=spans.len() {
        let last = explained(spans[..end].iter().rev());
        let with_last =
            |(from, gain): (usize, f64)| (best[from].0 + gain - MIN_GAIN * waited, from);
        let all = (0..end).rev().zip(last).map(with_last);
        // Of equal ones the longest.
        let most = all.max_by(|a, b| a.0.total_cmp(&b.0));
        best.push(most.unwrap_or_default());
    }
    // Where little is explained, the parts are chance.
    if best[spans.len()].0 < MIN_EXPLAINED * waited {
        return vec![spans];
    }
    let (mut parts, mut rest) = (Vec::new(), spans);
    while !rest.is_empty() {
        let (before, part) = rest.split_at(best[rest.len()].1);
        parts.insert(0, part);
        rest = before;
    }
    parts
}

/// The waiting at a limit of slots of the first span, of the first two, and so on.
fn explained<'s>(spans: impl Iterator<Item = &'s Span>) -> Vec<f64> {
    let mut all = Span::default();
    let next = |span| {
        all.join(span);
        let is_sure = |(slots, waited): &(u32, f64)| {
            let exactly = all.ran.get(slots).map_or(0.0, |ran| ran.waited);
            all.started >= MIN_TURNS * slots && exactly >= MIN_EXACT * waited
        };
        let found = slots(&all).filter(is_sure);
        found.map_or(0.0, |(_, waited)| waited)
    };
    spans.map(next).collect()
}

/// The slots, and the waiting at that limit: about as many ran whenever any waited long.
fn slots(of: &Span) -> Option<(u32, f64)> {
    let by_waiting = |a: &(_, &Ran), b: &(_, &Ran)| a.1.waited.total_cmp(&b.1.waited);
    let (limit, at_limit) = of.ran.iter().max_by(by_waiting)?;
    let band = limit - limit / 16..=limit + (limit / 8).max(1);
    let sum = |range: RangeInclusive<u32>, value: fn(&Ran) -> f64| -> f64 {
        of.ran.range(range).map(|(_, ran)| value(ran)).sum()
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
    is_limit.then_some((*limit, inside))
}

/// The limit of tokens of the pieces below a number of slots, and whether an unknown one is possible.
fn below(pieces: &[Piece], slots: Option<u32>) -> (Option<f64>, bool) {
    let is_below = |piece: &&Piece| slots.is_none_or(|slots| piece.running < slots);
    tokens(&pieces.iter().filter(is_below).collect::<Vec<_>>()).unwrap_or_default()
}

/// Whether sequences held their slots to decode while others waited, not only for their prefill.
fn mostly_decodes<'p>(pieces: impl Iterator<Item = &'p Piece>) -> bool {
    let (mut decoding, mut all) = (0.0, 0.0);
    for piece in pieces {
        all += piece.weight() * f64::from(piece.running);
        decoding += piece.weight() * f64::from(piece.running - piece.prefilling);
    }
    decoding >= MIN_DECODING * all
}

/// The limit of tokens: about as many were needed whenever any waited long, however many sequences ran; and whether an unknown limit is
/// possible. `None` without numbers of tokens.
fn tokens(pieces: &[&Piece]) -> Option<(Option<f64>, bool)> {
    let (mut tokens, mut running) = (Durations::default(), Durations::default());
    for piece in pieces.iter().filter(|piece| piece.long > 0) {
        tokens.add(rounded(piece.tokens), piece.weight());
        running.add(u64::from(piece.running), piece.weight());
    }
    let spread = |of: &Durations<u64>| {
        let [low, high] = [of.quantile(0.1)?, of.quantile(0.9)?].map(|value| value as f64);
        Some((high - low) / high.max(1.0))
    };
    let least = tokens.quantile(0.1).filter(|least| *least > 0)?;
    let of_tokens = spread(&tokens)?;
    let may_be = of_tokens <= MAX_SPREAD && mostly_decodes(pieces.iter().copied());
    let is_limit = may_be && of_tokens < MAX_SPREAD_RATIO * spread(&running)?;
    let limit = is_limit.then_some(least as f64 * MIN_AT_LIMIT);
    Some((limit, may_be && !is_limit))
}
