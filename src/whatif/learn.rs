//! A first guess of how fast a server is, from the moments of its requests and the batches as they really were: what a step of
//! decode takes by its batch, and what a prefill takes by its tokens. `refine` then puts it to the test.

use crate::sim::engine::Profile;
use crate::stats::quantile;

use super::load::{Request, Times};
use super::replay::Model;
use super::solve::{descend, least_squares};

/// What one server was sent, and which of it is compared.
#[derive(Clone, Debug)]
pub struct Sample {
    /// The requests, by arrival: all that the server had meanwhile.
    pub requests: Vec<Request>,
    /// Which of them had all that they met among these.
    pub counted: Vec<bool>,
    /// How many the server ran at once, where that shows.
    pub slots: Option<usize>,
    /// How many servers the run had.
    pub servers: usize,
}

/// The mean time of a step by its batch: one of all, and for each request, token of all contexts, and square of the longest; and
/// how much of it a prefill spares.
const TERMS: usize = 5;
/// Tokens, and squares of tokens, count by so many.
const SCALES: [f64; TERMS] = [1.0, 10.0, 1e4, 1e6, 1.0];
/// Shorter answers tell little of a step.
const LONG_ENOUGH: u32 = 16;
/// From a prefill's end on a server told it later by at most this; those of one batch are told together: seconds.
const TOGETHER: f64 = 0.0015;
/// What a step waits for on the GPU beside its own work: seconds.
const GAP: f64 = 1e-4;

/// A prefill that was alone: no other was under way.
struct Prefill {
    took: f64,
    tokens: f64,
    /// Pairs of a token and one before it.
    pairs: f64,
    /// Whether others decoded meanwhile: their step on the GPU ends first.
    is_shared: bool,
}

/// What went on between two moments.
#[derive(Clone, Copy, Default)]
struct Span {
    at: f64,
    /// Of all spans before: seconds in prefill, seconds not in prefill, and those times requests, tokens, squares; prefills.
    sums: [f64; TERMS + 1],
}

impl Sample {
    /// The requests of which the server told, with what it told.
    pub fn seen(&self) -> impl Iterator<Item = (&Request, Times)> + Clone {
        let requests = self.requests.iter();
        requests.filter_map(|request| Some((request, request.seen?)))
    }

    /// The times in which any prompt was prefilled.
    fn in_prefill(&self) -> Vec<(f64, f64)> {
        let mut all: Vec<(f64, f64)> = self
            .seen()
            .map(|(_, times)| (times.admitted, times.prefilled))
            .collect();
        all.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut joined: Vec<(f64, f64)> = Vec::new();
        for (from, to) in all {
            match joined.last_mut() {
                Some(last) if from < last.1 => last.1 = last.1.max(to),
                _ => joined.push((from, to)),
            }
        }
        joined
    }

    /// The sums up to each moment at which anything changed.
    fn spans(&self) -> Vec<Span> {
        let prefills = self.in_prefill();
        let mut moments: Vec<f64> = prefills.iter().flat_map(|(a, b)| [*a, *b]).collect();
        let mut begins: Vec<(f64, &Request, Times)> = Vec::new();
        for (request, times) in self.seen() {
            moments.extend([times.prefilled, times.finish]);
            begins.push((times.prefilled, request, times));
        }
        begins.sort_by(|a, b| a.0.total_cmp(&b.0));
        moments.sort_by(f64::total_cmp);
        moments.dedup();
        let mut spans = vec![Span {
            at: moments.first().copied().unwrap_or(0.0),
            ..Span::default()
        }];
        let (mut begins, mut prefills) =
            (begins.into_iter().peekable(), prefills.iter().peekable());
        let mut running: Vec<(&Request, Times)> = Vec::new();
        for pair in moments.windows(2) {
            let (from, to) = (pair[0], pair[1]);
            let (middle, took) = (f64::midpoint(from, to), to - from);
            while let Some((_, request, times)) = begins.next_if(|begin| begin.0 <= from) {
                running.push((request, times));
            }
            running.retain(|(_, times)| times.finish > middle);
            let mut ended = 0.0;
            while prefills.next_if(|prefill| prefill.1 <= middle).is_some() {
                ended += 1.0;
            }
            let is_prefill = prefills.peek().is_some_and(|prefill| prefill.0 <= middle);
            let Span { mut sums, .. } = spans.last().copied().unwrap_or_default();
            sums[TERMS] += ended;
            if is_prefill {
                sums[0] += took;
            } else {
                let (mut tokens, mut longest) = (0.0, 0.0_f64);
                for (request, times) in &running {
                    let part =
                        (middle - times.prefilled) / (times.finish - times.prefilled).max(1e-9);
                    let context = f64::from(request.prompt) + part * f64::from(request.output);
                    tokens += context;
                    longest = longest.max(context);
                }
                let of = [1.0, running.len() as f64, tokens, longest * longest];
                let sums = sums.iter_mut().skip(1);
                sums.zip(of).for_each(|(sum, of)| *sum += took * of);
            }
            spans.push(Span { at: to, sums });
        }
        spans
    }

    /// For each long answer the mean of the batches that it met in decode, the time a token without others' prefills, and how sure.
    fn steps(&self) -> Vec<([f64; TERMS], f64)> {
        let spans = self.spans();
        let until = |at: f64| {
            let place = spans.partition_point(|span| span.at < at);
            spans.get(place).map_or([0.0; TERMS + 1], |span| span.sums)
        };
        let of = |(request, times): (&Request, Times)| {
            let steps = f64::from(request.output) - 1.0;
            let (before, after) = (until(times.prefilled), until(times.finish));
            let met: [f64; TERMS + 1] = std::array::from_fn(|term| after[term] - before[term]);
            let free = met[1].max(1e-9);
            let terms = [
                1.0,
                met[2] / free,
                met[3] / free,
                met[4] / free,
                met[5] / steps,
            ];
            let took = times.finish - times.first - met[0];
            (request.output > LONG_ENOUGH && took > 0.0).then_some((terms, took / steps))
        };
        let counted = self.seen().zip(&self.counted);
        counted
            .filter(|(_, counted)| **counted)
            .filter_map(|(seen, _)| of(seen))
            .collect()
    }

    /// The prefills that nothing else delayed.
    fn prefills(&self) -> Vec<Prefill> {
        let mut all: Vec<(&Request, Times)> = self.seen().collect();
        all.sort_by(|a, b| a.1.admitted.total_cmp(&b.1.admitted));
        let mut batches: Vec<Vec<(&Request, Times)>> = Vec::new();
        for (request, times) in all {
            let is_same = |batch: &&mut Vec<(&Request, Times)>| {
                let last = batch.last();
                last.is_some_and(|(_, last)| {
                    (times.prefilled - last.prefilled).abs() < TOGETHER
                        && times.admitted - last.admitted < TOGETHER / 10.0
                })
            };
            match batches.last_mut().filter(is_same) {
                Some(batch) => batch.push((request, times)),
                None => batches.push(vec![(request, times)]),
            }
        }
        let (mut before, mut alone) = (f64::NEG_INFINITY, Vec::new());
        let mut running: Vec<f64> = Vec::new();
        for (place, batch) in batches.iter().enumerate() {
            let admitted = batch[0].1.admitted;
            let ended = batch
                .iter()
                .map(|(_, times)| times.prefilled)
                .fold(0.0, f64::max);
            let next = batches
                .get(place + 1)
                .map_or(f64::INFINITY, |next| next[0].1.admitted);
            running.retain(|finish| *finish > admitted + GAP);
            if before < admitted && next >= ended && ended > admitted {
                let sum = |of: &dyn Fn(f64, f64) -> f64| -> f64 {
                    let ends = batch
                        .iter()
                        .map(|(request, _)| (f64::from(request.cached), f64::from(request.prompt)));
                    ends.map(|(from, to)| of(from, to)).sum()
                };
                alone.push(Prefill {
                    took: ended - admitted,
                    tokens: sum(&|from, to| (to - from).max(1.0)),
                    pairs: sum(&|from, to| (to * to - from * from) / 2.0),
                    is_shared: !running.is_empty(),
                });
            }
            before = ended.max(before);
            running.extend(batch.iter().map(|(_, times)| times.finish));
        }
        alone
    }
}

/// A first guess.
pub fn guess(samples: &[&Sample]) -> Model {
    let seen = || samples.iter().flat_map(|sample| sample.seen());
    let sorted = |of: &dyn Fn(&Request, Times) -> f64| {
        let mut values: Vec<f64> = seen().map(|(request, times)| of(request, times)).collect();
        values.sort_by(f64::total_cmp);
        values
    };
    let at = |values: &[f64], q| quantile(values, q).unwrap_or(0.0);
    let way_in = at(&sorted(&|request, times| times.created - request.at), 0.5);
    let back = at(&sorted(&|_, times| times.first - times.prefilled), 0.5);
    let mut profile = Profile {
        schedule_ms: at(&sorted(&|_, times| times.admitted - times.queued), 0.25).max(0.0) * 1e3,
        step_gap_ms: GAP * 1e3,
        prefill_stall_share: 1.0,
        ..Profile::default()
    };
    decode(samples, &mut profile);
    prefill(samples, &mut profile);
    // Who comes meets a step under way, so that the least of the delays is tokenizing.
    let delays: Vec<(f64, f64)> = seen()
        .map(|(request, times)| {
            (
                f64::from(request.prompt),
                (times.queued - times.created).max(1e-5),
            )
        })
        .collect();
    let least = at(&sorted(&|_, times| times.queued - times.created), 0.1).max(1e-5);
    let mean = delays.iter().map(|delay| delay.0).sum::<f64>() / delays.len().max(1) as f64;
    let [fixed, token] = descend([least / 2.0, least / 2.0 / mean.max(1.0)], &|[
        fixed,
        token,
    ]| {
        let over = |(tokens, delay): &(f64, f64)| delay - fixed - token * tokens;
        delays
            .iter()
            .map(over)
            .map(|over| if over > 0.0 { 0.1 * over } else { -0.9 * over })
            .sum()
    });
    (profile.tokenize_ms, profile.tokenize_token_us) = (fixed * 1e3, token * 1e6);
    Model {
        profile,
        way_in,
        // The end of an answer comes back as its first token does, and about a millisecond after the server has it.
        way_back: [back, back],
    }
}

/// The terms of a decode step.
fn decode(samples: &[&Sample], profile: &mut Profile) {
    let steps: Vec<([f64; TERMS], f64)> =
        samples.iter().flat_map(|sample| sample.steps()).collect();
    let rows: Vec<[f64; TERMS]> = steps
        .iter()
        .map(|(terms, _)| std::array::from_fn(|term| terms[term] / SCALES[term]))
        .collect();
    let took: Vec<f64> = steps.iter().map(|(_, took)| *took * 1e3).collect();
    let found = least_squares(&rows, &took, TERMS - 1);
    let found: [f64; TERMS] = std::array::from_fn(|term| found[term] / SCALES[term]);
    profile.decode_step_ms = (found[0] - GAP * 1e3).max(0.05);
    // Nothing costs nothing: what is 0 could not be refined.
    let least = profile.decode_step_ms * 1e-3;
    profile.decode_step_per_seq_ms = found[1].max(least);
    profile.decode_context_ns = found[2].max(least / 1e3) * 1e6;
    profile.decode_longest_ns = found[3].max(least / 1e7) * 1e6;
    profile.decode_launch_ms = profile.decode_step_ms * 0.3;
}

/// What a prefill takes: its launch, or its tokens on the GPU.
fn prefill(samples: &[&Sample], profile: &mut Profile) {
    let all: Vec<Prefill> = samples
        .iter()
        .flat_map(|sample| sample.prefills())
        .collect();
    let mut took: Vec<f64> = all.iter().map(|prefill| prefill.took).collect();
    took.sort_by(f64::total_cmp);
    let (Some(low), Some(most)) = (
        quantile(&took, 0.2),
        all.iter().max_by(|a, b| a.tokens.total_cmp(&b.tokens)),
    ) else {
        return;
    };
    let step = (profile.decode_step_ms + profile.schedule_ms) / 1e3;
    let gpu = |prefill: &Prefill, token: f64, pair: f64| {
        prefill.tokens * token + prefill.pairs * pair + if prefill.is_shared { step } else { 0.0 }
    };
    let token = most.took / most.tokens;
    let off = |[launch, token, pair]: [f64; 3]| {
        let off = |prefill: &Prefill| {
            (prefill.took / gpu(prefill, token, pair).max(launch))
                .ln()
                .abs()
        };
        all.iter().map(off).sum()
    };
    let starts =
        [0.2, 0.5, 0.8].map(|part| [low, token * part, token / most.tokens * (1.0 - part)]);
    let found = starts.map(|start| descend(start, &off));
    let [launch, token, pair] = found
        .into_iter()
        .min_by(|a, b| off(*a).total_cmp(&off(*b)))
        .unwrap_or(starts[0]);
    let launched = all
        .iter()
        .filter(|prefill| gpu(prefill, token, pair) < 0.8 * launch);
    let mut launched: Vec<f64> = launched.map(|prefill| prefill.took).collect();
    launched.sort_by(f64::total_cmp);
    let least = quantile(&launched, 0.05).unwrap_or(launch);
    let usual = launched.len() - launched.len() / 50;
    let mean = launched.iter().take(usual).sum::<f64>() / usual.max(1) as f64;
    let late = (mean - least).max(0.02 * least);
    profile.prefill_floor_ms = (least - 0.05 * late) * 1e3;
    profile.prefill_stall_ms = late * 1e3;
    profile.prefill_tokens_per_s = 1.0 / token.max(1e-12);
    profile.prefill_context_ns = (pair * 1e9).max(1e-3);
}
