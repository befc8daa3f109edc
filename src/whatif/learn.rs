//! How fast a server is: its requests are replayed, and the engine's figures moved until what comes out is nearest to what was
//! measured. Nothing is drawn by chance: the same rows teach the same.

use crate::sim::engine::Profile;
use crate::stats::quantile;

use super::figures::{Latency, PREFILL, TOTAL, TPOT, TTFT};
use super::load::Load;
use super::replay::{Deployment, Model};

/// A figure as it was learnt.
#[derive(Clone, Debug)]
pub struct Learnt {
    /// Its flag of `queuescope sim`, and key of a plan's `[sim]`.
    pub name: &'static str,
    /// What it is.
    pub value: f64,
    /// Between which bounds it lies, as far as the rows tell (95 %).
    pub bounds: [f64; 2],
}

/// A figure of the engine.
type Figure = (&'static str, fn(&mut Profile) -> &mut f64);

/// What is learnt: the times of a prefill, then those of a decode step.
const FIGURES: [Figure; COUNT] = [
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
/// Of [`FIGURES`], those of a prefill, and the one of them that is a speed.
const OF_PREFILL: usize = 4;
const SPEED: usize = 2;
/// Rounds that make less of it than this have found the least.
const ENOUGH: f64 = 0.98;
/// How far a figure may be from the usual engine's, once that is as fast as this one: standard deviation of the logarithm.
const SURE: f64 = 0.2;
/// What is compared of each sample, and by which share it may be off.
const COMPARED: [(f64, Latency); 4] = [(0.05, PREFILL), (0.015, TPOT), (0.06, TTFT), (0.02, TOTAL)];
/// Of each of them, beside the mean.
const QUANTILES: [f64; 5] = [0.1, 0.3, 0.5, 0.7, 0.9];
const MARKS: usize = QUANTILES.len() + 1;
const MEDIAN: usize = 2;
/// Rounds; how far a figure is moved to see what it does; how much shorter than straight to the least a step may be.
const ROUNDS: usize = 12;
const MOVED: [f64; 3] = [0.1, -0.2, 0.4];
const DAMPED: [f64; 5] = [0.0, 0.03, 0.3, 3.0, 30.0];
/// Who waits longer for a batch waits for a slot, seconds: most do where a server is full.
const MOST_SCHEDULING: f64 = 0.002;
/// The share of a GPU is looked for in so many steps.
const SHARES: u32 = 50;

type Vector = [f64; COUNT];

/// Learns of samples of servers that have a GPU of their own.
pub fn learn(samples: &[Load]) -> (Model, Vec<Learnt>) {
    let model = usual(samples);
    let mut profile = model.profile.clone();
    let first: Vector = FIGURES.map(|(_, of)| of(&mut profile).max(1e-9).ln());
    let with = |at: &Vector| {
        let mut model = model.clone();
        let figures = FIGURES.iter().zip(at);
        figures.for_each(|((_, of), at)| *of(&mut model.profile) = at.exp());
        model
    };
    let apart = |at: &Vector| -> Vector { std::array::from_fn(|n| (at[n] - first[n]) / SURE) };
    let test = |at: Vector| {
        let off = residuals(&with(&at), samples);
        let usual: f64 = apart(&at).iter().map(|apart| apart * apart).sum();
        (cost(&off) + usual, off, at)
    };
    let (mut least, mut off, mut at) = test(first);
    let (mut curvature, mut in_vain) = ([[0.0; COUNT]; COUNT], 0);
    for moved_by in MOVED.into_iter().cycle().take(ROUNDS) {
        let slopes: [Vec<f64>; COUNT] = std::array::from_fn(|n| {
            let mut moved = at;
            moved[n] += moved_by;
            let there = residuals(&with(&moved), samples);
            let both = there.iter().zip(&off);
            both.map(|both| (both.0 - both.1) / moved_by).collect()
        });
        let mut slope = apart(&at).map(|apart| -apart / SURE);
        for (x, of) in slopes.iter().enumerate() {
            let dot = |other: &[f64]| -> f64 {
                let terms = of.iter().zip(other).zip(&off);
                let term = |((a, b), off): ((&f64, &f64), &f64)| a * b / (1.0 + off * off).sqrt();
                terms.map(term).sum()
            };
            slope[x] -= dot(&off);
            curvature[x] = std::array::from_fn(|y| dot(&slopes[y]));
            curvature[x][x] += SURE.powi(-2);
        }
        let mut steps = DAMPED.into_iter().map(|damped| {
            let mut steeper = curvature;
            (0..COUNT).for_each(|n| steeper[n][n] *= 1.0 + damped);
            let way = solve(steeper, slope);
            test(std::array::from_fn(|n| at[n] + way[n].clamp(-1.0, 1.0)))
        });
        in_vain += 1;
        if let Some(better) = steps.find(|step| step.0 < least) {
            if better.0 < ENOUGH * least {
                in_vain = 0;
            }
            (least, off, at) = better;
        }
        if in_vain == MOVED.len() {
            break;
        }
    }
    let spread = spread(&off, samples.len());
    let learnt = |n: usize| {
        let variance = solve(curvature, std::array::from_fn(|x| f64::from(x == n)))[n];
        let wide = 1.96 * (variance.max(0.0) * spread).sqrt();
        Learnt {
            name: FIGURES[n].0,
            value: at[n].exp(),
            bounds: [(at[n] - wide).exp(), (at[n] + wide).exp()],
        }
    };
    (with(&at), (0..COUNT).map(learnt).collect())
}

/// What chance makes of as many samples widens the bounds; and all that is compared of one sample hangs together.
fn spread(off: &[f64], samples: usize) -> f64 {
    let by_chance = (cost(off) / off.len().max(1) as f64).max(1.0);
    by_chance * off.len() as f64 / samples.max(1) as f64
}

/// What the moments tell at once, and of all else the usual engine, its prefill and its steps made as fast as this one's.
fn usual(samples: &[Load]) -> Model {
    let seen = || samples.iter().flat_map(Load::seen);
    let way_in = of_all(seen().map(|(of, times)| times.created - of.at), 0.5);
    let way_back = of_all(seen().map(|(_, times)| times.first - times.prefilled), 0.5);
    let scheduled = of_all(seen().map(|(_, times)| times.admitted - times.queued), 0.25);
    let mut model = Model {
        way_in,
        way_back,
        profile: Profile {
            schedule_ms: scheduled.min(MOST_SCHEDULING) * 1e3,
            ..Profile::default()
        },
    };
    // Who comes meets a step under way, so that the least of the delays is tokenizing.
    let usual = model.profile.clone();
    let slower = seen().map(|(request, times)| {
        let tokenized = usual.tokenize_s(u64::from(request.prompt));
        (times.queued - times.created) / tokenized
    });
    let slower = of_all(slower, 0.1);
    model.profile.tokenize_ms *= slower;
    model.profile.tokenize_token_us *= slower;
    // What waits for what changes with the speed: a few rounds.
    for _ in 0..3 {
        let off = residuals(&model, samples);
        let slower = |compared: usize| {
            let of_samples = off.iter().skip(compared * MARKS + MEDIAN);
            let of_samples = of_samples.step_by(COMPARED.len() * MARKS);
            let slower = -COMPARED[compared].0 * of_all(of_samples.copied(), 0.5);
            slower.clamp(-3.0, 3.0).exp()
        };
        let slower = [slower(0), slower(1)];
        slow_down(&mut model.profile, slower);
    }
    model
}

/// Makes prefills, and decode steps, last so many times as long.
pub fn slow_down(profile: &mut Profile, slower: [f64; 2]) {
    for (n, (_, of)) in FIGURES.iter().enumerate() {
        let slower = slower[usize::from(n >= OF_PREFILL)];
        *of(profile) *= if n == SPEED { slower.recip() } else { slower };
    }
}

fn of_all(values: impl Iterator<Item = f64>, q: f64) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    quantile(&values, q).unwrap_or(0.0)
}

/// What a server has of a GPU that several share, as these samples show it.
pub fn share(model: &Model, samples: &[Load]) -> f64 {
    let off = |share: f64| {
        let mut model = model.clone();
        model.profile.gpu_share = share;
        cost(&residuals(&model, samples))
    };
    let shares = (SHARES / 5..=SHARES).map(|step| f64::from(step) / f64::from(SHARES));
    let all = shares.map(|share| (off(share), share));
    let best = all.min_by(|a, b| a.0.total_cmp(&b.0));
    best.map_or(1.0, |best| best.1)
}

/// Outliers count little.
fn cost(off: &[f64]) -> f64 {
    let one = |off: &f64| 2.0 * ((1.0 + off * off).sqrt() - 1.0);
    off.iter().map(one).sum()
}

/// How far what a model makes of samples is from what was measured, in units of what it may be off.
fn residuals(model: &Model, samples: &[Load]) -> Vec<f64> {
    let mut all = Vec::new();
    for sample in samples {
        let made = Deployment::of(model, sample).replay(&sample.requests);
        let both = || {
            let both = sample.requests.iter().zip(&made);
            both.filter_map(|(request, made)| Some((request, made.seen?, request.seen?)))
        };
        for (off, of) in COMPARED {
            let made = marks(both().map(|(request, made, _)| of(request, made)));
            let seen = marks(both().map(|(request, _, seen)| of(request, seen)));
            let both = made.iter().zip(seen);
            all.extend(both.map(|(made, seen)| (made - seen) / off));
        }
    }
    all
}

/// Logarithms of what is compared of some values.
fn marks(values: impl Iterator<Item = f64>) -> [f64; MARKS] {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let mean = values.iter().sum::<f64>() / values.len().max(1) as f64;
    let mark = |n: usize| {
        QUANTILES
            .get(n)
            .map_or(Some(mean), |q| quantile(&values, *q))
    };
    std::array::from_fn(|n| mark(n).unwrap_or(1.0).max(1e-6).ln())
}

/// Solves linear equations; unknowns that nothing tells of are 0.
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
