//! The guess put to the test: the samples are replayed, and the engine's figures moved until what comes out is nearest to what was
//! measured. All of it is computed the same way each time.

use crate::sim::engine::Profile;
use crate::stats::quantile;

use super::learn::Sample;
use super::load::{Request, Times};
use super::replay::{Deployment, Model};
use super::solve::solve;

/// A figure of the engine that is learnt.
pub struct Figure {
    /// Its flag of `queuescope sim`, and key of a profile.
    pub name: &'static str,
    /// The figure.
    pub of: fn(&mut Profile) -> &mut f64,
    /// How far it may be from the guess, as a share (a standard deviation).
    sure: f64,
}

/// A figure as it was learnt.
#[derive(Clone, Debug)]
pub struct Learnt {
    /// Its name.
    pub name: &'static str,
    /// What it is.
    pub value: f64,
    /// Between which bounds it lies, as far as the rows tell (95 %).
    pub bounds: [f64; 2],
}

/// What is learnt.
pub const FIGURES: [Figure; 9] = [
    Figure {
        name: "prefill_floor_ms",
        of: |profile| &mut profile.prefill_floor_ms,
        sure: 0.15,
    },
    Figure {
        name: "prefill_stall_ms",
        of: |profile| &mut profile.prefill_stall_ms,
        sure: 0.45,
    },
    Figure {
        name: "prefill_tokens_per_s",
        of: |profile| &mut profile.prefill_tokens_per_s,
        sure: 0.15,
    },
    Figure {
        name: "prefill_context_ns",
        of: |profile| &mut profile.prefill_context_ns,
        sure: 0.45,
    },
    Figure {
        name: "decode_launch_ms",
        of: |profile| &mut profile.decode_launch_ms,
        sure: 0.45,
    },
    Figure {
        name: "decode_step_ms",
        of: |profile| &mut profile.decode_step_ms,
        sure: 0.15,
    },
    Figure {
        name: "decode_step_per_seq_ms",
        of: |profile| &mut profile.decode_step_per_seq_ms,
        sure: 0.45,
    },
    Figure {
        name: "decode_context_ns",
        of: |profile| &mut profile.decode_context_ns,
        sure: 0.15,
    },
    Figure {
        name: "decode_longest_ns",
        of: |profile| &mut profile.decode_longest_ns,
        sure: 0.45,
    },
];
const COUNT: usize = FIGURES.len();
/// What is compared of each sample, and by which share it may be off: prefill, a token, to the first token, all.
const OFF: [f64; 4] = [0.05, 0.015, 0.06, 0.02];
const QUANTILES: [f64; 5] = [0.1, 0.3, 0.5, 0.7, 0.9];
/// Rounds; how far a figure is moved to see what it does; how much of a step is tried.
const ROUNDS: usize = 4;
const MOVED: f64 = 0.08;
const PARTS: [f64; 3] = [1.0, 0.5, 0.25];
/// The share of a GPU is looked for between these, in so many steps.
const SHARES: (f64, f64) = (0.2, 1.0);
const SHARE_STEPS: usize = 14;

/// Puts a guess to the test.
pub fn refine(guess: Model, samples: &[&Sample]) -> (Model, Vec<Learnt>) {
    let first: [f64; COUNT] =
        std::array::from_fn(|at| (FIGURES[at].of)(&mut guess.profile.clone()).ln());
    let with = |at: &[f64; COUNT]| {
        let mut model = guess.clone();
        let figures = FIGURES.iter().zip(at);
        figures.for_each(|(figure, at)| *(figure.of)(&mut model.profile) = at.exp());
        model
    };
    let apart = |at: &[f64; COUNT]| -> [f64; COUNT] {
        std::array::from_fn(|n| (at[n] - first[n]) / FIGURES[n].sure)
    };
    let test = |at: &[f64; COUNT]| {
        let off = residuals(&with(at), samples);
        let guessed: f64 = apart(at).iter().map(|apart| apart * apart).sum();
        (cost(&off) + guessed, off)
    };
    let mut at = first;
    let (mut least, mut off) = test(&at);
    let mut curvature = [[0.0; COUNT]; COUNT];
    for _ in 0..ROUNDS {
        let slopes: Vec<Vec<f64>> = (0..COUNT)
            .map(|n| {
                let mut moved = at;
                moved[n] += MOVED;
                let there = residuals(&with(&moved), samples);
                there
                    .iter()
                    .zip(&off)
                    .map(|(there, here)| (there - here) / MOVED)
                    .collect()
            })
            .collect();
        let mut slope = [0.0; COUNT];
        let apart = apart(&at);
        for x in 0..COUNT {
            let dot = |other: &[f64]| -> f64 {
                let terms = slopes[x].iter().zip(other).zip(&off);
                terms
                    .map(|((a, b), off)| a * b / (1.0 + off * off).sqrt())
                    .sum()
            };
            slope[x] = -dot(&off) - apart[x] / FIGURES[x].sure;
            curvature[x] = std::array::from_fn(|y| dot(&slopes[y]));
            curvature[x][x] += FIGURES[x].sure.powi(-2);
        }
        let way = solve(curvature, slope);
        let steps = PARTS.map(|part| {
            let there: [f64; COUNT] =
                std::array::from_fn(|n| at[n] + part * way[n].clamp(-1.0, 1.0));
            let (cost, off) = test(&there);
            (cost, off, there)
        });
        let best = steps.into_iter().min_by(|a, b| a.0.total_cmp(&b.0));
        let Some((cost, found, there)) = best.filter(|best| best.0 < least) else {
            break;
        };
        (least, off, at) = (cost, found, there);
    }
    (with(&at), learnt(&at, &off, curvature))
}

/// The figures with their bounds, from their logarithms and how the cost grows beside these.
fn learnt(at: &[f64; COUNT], off: &[f64], curvature: [[f64; COUNT]; COUNT]) -> Vec<Learnt> {
    // What chance makes of as many samples widens the bounds.
    let spread = (off
        .iter()
        .map(|off| off * off / (1.0 + off * off).sqrt())
        .sum::<f64>()
        / off.len().max(1) as f64)
        .max(1.0);
    let all = FIGURES.iter().enumerate().map(|(n, figure)| {
        let variance = solve(curvature, std::array::from_fn(|x| f64::from(x == n)))[n];
        let wide = 1.96 * (variance.max(0.0) * spread).sqrt().min(2.0 * figure.sure);
        Learnt {
            name: figure.name,
            value: at[n].exp(),
            bounds: [(at[n] - wide).exp(), (at[n] + wide).exp()],
        }
    });
    all.collect()
}

/// What a server has of a GPU that several share, as these samples show it.
pub fn share(model: &Model, samples: &[&Sample]) -> f64 {
    let off = |share: f64| {
        let mut model = model.clone();
        model.profile.gpu_share = share;
        cost(&residuals(&model, samples))
    };
    let (low, high) = SHARES;
    let at = |step: usize| low + (high - low) * step as f64 / SHARE_STEPS as f64;
    let best = |all: &mut dyn Iterator<Item = f64>| {
        let all = all.map(|share| (off(share), share));
        all.min_by(|a, b| a.0.total_cmp(&b.0))
            .map_or(high, |best| best.1)
    };
    let near = best(&mut (0..=SHARE_STEPS).map(at));
    let step = (high - low) / SHARE_STEPS as f64;
    best(&mut (-3..=3).map(|n| (near + step * f64::from(n) / 4.0).min(high)))
}

/// Outliers count little.
fn cost(off: &[f64]) -> f64 {
    off.iter()
        .map(|off| 2.0 * ((1.0 + off * off).sqrt() - 1.0))
        .sum()
}

/// How far what a model makes of samples is from what was measured, in units of [`OFF`].
fn residuals(model: &Model, samples: &[&Sample]) -> Vec<f64> {
    let mut off = Vec::new();
    for sample in samples {
        let mut model = model.clone();
        model.profile.max_running_requests = sample.slots.unwrap_or(usize::MAX);
        let deployment = Deployment {
            servers: vec![model],
            policy: None,
            pace: 1.0,
        };
        let made = deployment.replay(&sample.requests, 0);
        let counted = || {
            let both = sample.requests.iter().zip(&made).zip(&sample.counted);
            both.filter(|(_, counted)| **counted)
                .filter_map(|((request, made), _)| Some((request, (*made)?, request.seen?)))
        };
        let made = marks(counted().map(|(request, made, _)| (request, made)));
        let seen = marks(counted().map(|(request, _, seen)| (request, seen)));
        off.extend(made.iter().zip(&seen).map(|(made, seen)| made - seen));
    }
    off
}

/// One of the times that are compared.
type Mark = dyn Fn(&Request, Times) -> f64;

/// What is compared of requests.
fn marks<'a>(all: impl Iterator<Item = (&'a Request, Times)> + Clone) -> Vec<f64> {
    let of: [&Mark; 4] = [
        &|_, times| times.first - times.admitted,
        &|request, times| match request.output {
            0..=1 => f64::NAN,
            output => (times.finish - times.first) / f64::from(output - 1),
        },
        &|request, times| times.first - request.at,
        &|request, times| times.finish - request.at,
    ];
    let mut marks = Vec::new();
    for (of, off) in of.into_iter().zip(OFF) {
        let mut values: Vec<f64> = all
            .clone()
            .map(|(request, times)| of(request, times))
            .collect();
        values.retain(|value| value.is_finite());
        values.sort_by(f64::total_cmp);
        let mean = values.iter().sum::<f64>() / values.len().max(1) as f64;
        let quantiles = QUANTILES.map(|q| quantile(&values, q).unwrap_or(1.0));
        marks.extend(
            quantiles
                .into_iter()
                .chain([mean])
                .map(|value| value.max(1e-6).ln() / off),
        );
    }
    marks
}
