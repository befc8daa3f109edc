//! Fits the parameters of the simulator's engine to measured requests: replays them and minimises the differences of latencies by
//! the Levenberg–Marquardt method, with a prior around the default engine. It is deterministic: the same rows give the same fit.

use serde::Serialize;

use crate::sim::engine::Profile;
use crate::stats::{quantile, sorted};

use super::figures::{Latency, PREFILL, QUEUE, TOTAL, TPOT, TTFT};
use super::load::Load;
use super::replay::{Deployment, Model};

/// The fitted value of a parameter.
#[derive(Clone, Debug, Serialize)]
pub struct Estimate {
    /// The name of the parameter: a flag of `queuescope sim`, and a key of a plan's `[sim]`.
    #[serde(skip)]
    pub name: &'static str,
    /// The fitted value.
    pub value: f64,
    /// The lower bound of its 95 % confidence interval.
    pub low: f64,
    /// The upper bound.
    pub high: f64,
}

/// A parameter of the engine: its name, and its field.
type Parameter = (&'static str, fn(&mut Profile) -> &mut f64);

/// The parameters that are fitted, by their logarithms: those of a prefill, then those of a decode step.
const PARAMETERS: [Parameter; COUNT] = [
    ("prefill_floor_ms", |p| &mut p.prefill_floor_ms),
    ("prefill_stall_ms", |p| &mut p.prefill_stall_ms),
    ("prefill_tokens_per_s", |p| &mut p.prefill_tokens_per_s),
    ("prefill_context_ns", |p| &mut p.prefill_context_ns),
    ("decode_launch_ms", |p| &mut p.decode_launch_ms),
    ("decode_step_ms", |p| &mut p.decode_step_ms),
    ("decode_step_per_seq_ms", |p| &mut p.decode_step_per_seq_ms),
    ("decode_context_ns", |p| &mut p.decode_context_ns),
    ("decode_longest_ns", |p| &mut p.decode_longest_ns),
];
const COUNT: usize = 9;
/// The number of [`PARAMETERS`] of a prefill, and the index of the only one that is a rate instead of a time.
const PREFILL_COUNT: usize = 4;
const PREFILL_RATE: usize = 2;
/// A step that leaves more than this share of the cost has not helped.
const MIN_PROGRESS: f64 = 0.98;
/// The standard deviation of a parameter's logarithm around the initial model's (the prior).
const PRIOR_SD: f64 = 0.2;
/// The latencies that are compared, each with the relative error that weighs 1.
const LATENCIES: [(f64, Latency); 4] =
    [(0.05, PREFILL), (0.015, TPOT), (0.06, TTFT), (0.02, TOTAL)];
/// The quantiles of each latency that are compared, besides its mean.
const QUANTILES: [f64; 5] = [0.1, 0.3, 0.5, 0.7, 0.9];
const STATISTICS: usize = QUANTILES.len() + 1;
const MEDIAN: usize = 2;
const MAX_ROUNDS: usize = 12;
/// By how much a logarithm is moved for its slope, in turn: replays are step functions, so that one width may mislead.
const DELTAS: [f64; 3] = [0.1, -0.2, 0.4];
/// Damping factors that are tried until a step helps.
const DAMPING: [f64; 5] = [0.0, 0.03, 0.3, 3.0, 30.0];
/// A request that waits longer for its batch waits for a slot, not for the scheduler; seconds.
const MAX_SCHEDULING_S: f64 = 0.002;
/// The resolution at which the share of a GPU is searched.
const SHARE_STEPS: u32 = 50;

type Vector = [f64; COUNT];

/// Fits a model to samples of servers that have a GPU of their own.
pub fn learn(samples: &[Load]) -> (Model, Vec<Estimate>) {
    let model = initial_model(samples);
    let mut profile = model.profile.clone();
    let first: Vector = PARAMETERS.map(|(_, of)| of(&mut profile).max(1e-9).ln());
    let with = |at: &Vector| {
        let mut model = model.clone();
        let parameters = PARAMETERS.iter().zip(at);
        parameters.for_each(|((_, of), at)| *of(&mut model.profile) = at.exp());
        model
    };
    let prior = |at: &Vector| -> Vector { std::array::from_fn(|n| (at[n] - first[n]) / PRIOR_SD) };
    let test = |at: Vector| {
        let errors = residuals(&with(&at), samples);
        let penalty: f64 = prior(&at).iter().map(|term| term * term).sum();
        (cost(&errors) + penalty, errors, at)
    };
    let (mut min_cost, mut errors, mut at) = test(first);
    let (mut curvature, mut without_progress) = ([[0.0; COUNT]; COUNT], 0);
    for delta in DELTAS.into_iter().cycle().take(MAX_ROUNDS) {
        let slopes: [Vec<f64>; COUNT] = std::array::from_fn(|n| {
            let mut moved = at;
            moved[n] += delta;
            let there = residuals(&with(&moved), samples);
            let both = there.iter().zip(&errors);
            both.map(|both| (both.0 - both.1) / delta).collect()
        });
        let mut slope = prior(&at).map(|term| -term / PRIOR_SD);
        for (x, of) in slopes.iter().enumerate() {
            let dot = |other: &[f64]| -> f64 {
                let terms = of.iter().zip(other).zip(&errors);
                let term = |((a, b), e): ((&f64, &f64), &f64)| a * b / (1.0 + e * e).sqrt();
                terms.map(term).sum()
            };
            slope[x] -= dot(&errors);
            curvature[x] = std::array::from_fn(|y| dot(&slopes[y]));
            curvature[x][x] += PRIOR_SD.powi(-2);
        }
        let mut steps = DAMPING.into_iter().map(|damping| {
            let mut damped = curvature;
            (0..COUNT).for_each(|n| damped[n][n] *= 1.0 + damping);
            let step = solve(damped, slope);
            test(std::array::from_fn(|n| at[n] + step[n].clamp(-1.0, 1.0)))
        });
        without_progress += 1;
        if let Some(better) = steps.find(|step| step.0 < min_cost) {
            if better.0 < MIN_PROGRESS * min_cost {
                without_progress = 0;
            }
            (min_cost, errors, at) = better;
        }
        if without_progress == DELTAS.len() {
            break;
        }
    }
    // Errors that are larger than assumed, and the correlation of all statistics of one sample.
    let larger = (cost(&errors) / errors.len().max(1) as f64).max(1.0);
    let inflation = larger * errors.len() as f64 / samples.len().max(1) as f64;
    let estimate = |n: usize| {
        let variance = solve(curvature, std::array::from_fn(|x| f64::from(x == n)))[n];
        let half = 1.96 * (variance.max(0.0) * inflation).sqrt();
        Estimate {
            name: PARAMETERS[n].0,
            value: at[n].exp(),
            low: (at[n] - half).exp(),
            high: (at[n] + half).exp(),
        }
    };
    (with(&at), (0..COUNT).map(estimate).collect())
}

/// The model that the fit begins with: delays that the times of requests show directly, and else the default engine with its prefill
/// and decode scaled to the measured medians.
fn initial_model(samples: &[Load]) -> Model {
    let timed = || samples.iter().flat_map(Load::timed);
    let delay = |of: Latency, q| quantile_of(timed().map(|(request, times)| of(request, times)), q);
    let mut model = Model {
        inbound_s: delay(|of, times| times.created - of.arrival, 0.5).max(0.0),
        return_s: delay(|_, times| times.first - times.prefilled, 0.5),
        profile: Profile {
            schedule_ms: delay(QUEUE, 0.25).min(MAX_SCHEDULING_S) * 1e3,
            ..Profile::default()
        },
    };
    // A request usually arrives during a step and waits for its end, so only the shortest delays are tokenizing alone.
    let default = model.profile.clone();
    let ratios = timed().map(|(request, times)| {
        let tokenized = default.tokenize_s(u64::from(request.prompt));
        (times.queued - times.created) / tokenized
    });
    let ratio = quantile_of(ratios, 0.1);
    model.profile.tokenize_ms *= ratio;
    model.profile.tokenize_token_us *= ratio;
    // Latencies contain waiting, which depends on the speed: a few rounds.
    for _ in 0..3 {
        let errors = residuals(&model, samples);
        let slower = |latency: usize| {
            let of_samples = errors.iter().skip(latency * STATISTICS + MEDIAN);
            let of_samples = of_samples.step_by(LATENCIES.len() * STATISTICS);
            let slower = -LATENCIES[latency].0 * quantile_of(of_samples.copied(), 0.5);
            slower.clamp(-3.0, 3.0).exp()
        };
        let slower = [slower(0), slower(1)];
        slow_down(&mut model.profile, slower);
    }
    model
}

/// Makes prefills, and decode steps, take so many times as long.
pub fn slow_down(profile: &mut Profile, [prefill, decode]: [f64; 2]) {
    for (n, (_, of)) in PARAMETERS.iter().enumerate() {
        *of(profile) *= match n {
            PREFILL_RATE => prefill.recip(),
            ..PREFILL_COUNT => prefill,
            _ => decode,
        };
    }
}

/// A quantile of any values; 0 of none.
fn quantile_of(values: impl Iterator<Item = f64>, q: f64) -> f64 {
    quantile(&sorted(values), q).unwrap_or(0.0)
}

/// The share of a GPU that fits samples of servers that have one in common, each with the same share.
pub fn gpu_share(model: &Model, samples: &[Load]) -> f64 {
    let cost_of = |share: f64| {
        let mut model = model.clone();
        model.profile.gpu_share = share;
        cost(&residuals(&model, samples))
    };
    let shares = SHARE_STEPS / 5..=SHARE_STEPS;
    let shares = shares.map(|step| f64::from(step) / f64::from(SHARE_STEPS));
    let all = shares.map(|share| (cost_of(share), share));
    let best = all.min_by(|a, b| a.0.total_cmp(&b.0));
    best.map_or(1.0, |best| best.1)
}

/// The sum of squares of errors, of which large ones count linearly (pseudo-Huber loss), so that outliers weigh little.
fn cost(errors: &[f64]) -> f64 {
    let one = |error: &f64| 2.0 * ((1.0 + error * error).sqrt() - 1.0);
    errors.iter().map(one).sum()
}

/// The differences of logarithms between replayed and measured latencies, in units of the expected errors.
fn residuals(model: &Model, samples: &[Load]) -> Vec<f64> {
    let mut all = Vec::new();
    for sample in samples {
        let made = Deployment::of(model, sample).serve(sample);
        let both = || {
            let both = sample.requests.iter().zip(&made.requests);
            both.filter_map(|(request, made)| Some((request, made.times?, request.times?)))
        };
        for (expected, of) in LATENCIES {
            let made = log_statistics(both().map(|(request, made, _)| of(request, made)));
            let measured = log_statistics(both().map(|(request, _, times)| of(request, times)));
            let both = made.iter().zip(measured);
            all.extend(both.map(|(made, measured)| (made - measured) / expected));
        }
    }
    all
}

/// The logarithms of the [`QUANTILES`] and the mean of some values.
fn log_statistics(values: impl Iterator<Item = f64>) -> [f64; STATISTICS] {
    let values = sorted(values);
    let mean = values.iter().sum::<f64>() / values.len().max(1) as f64;
    let statistic = |n: usize| match QUANTILES.get(n) {
        Some(q) => quantile(&values, *q),
        None => Some(mean),
    };
    std::array::from_fn(|n| statistic(n).unwrap_or(1.0).max(1e-6).ln())
}

/// Solves a system of linear equations by Gauss–Jordan elimination; unknowns without an equation are 0.
fn solve(mut a: [Vector; COUNT], mut b: Vector) -> Vector {
    for at in 0..COUNT {
        let best = (at..COUNT).max_by(|x, y| a[*x][at].abs().total_cmp(&a[*y][at].abs()));
        let best = best.unwrap_or(at);
        a.swap(at, best);
        b.swap(at, best);
        if a[at][at] == 0.0 {
            continue;
        }
        for row in (0..COUNT).filter(|row| *row != at) {
            let factor = a[row][at] / a[at][at];
            (0..COUNT).for_each(|column| a[row][column] -= factor * a[at][column]);
            b[row] -= factor * b[at];
        }
    }
    let known = |at: usize| (a[at][at] != 0.0).then(|| b[at] / a[at][at]);
    std::array::from_fn(|at| known(at).unwrap_or(0.0))
}
