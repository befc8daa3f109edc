//! What runs teach of their servers, and how near a replay of them comes to what was measured.

use std::collections::BTreeMap;

use super::Error;
use super::learn::{Sample, guess};
use super::load::{Load, Request};
use super::refine::{Learnt, refine, share};
use super::replay::{Deployment, Figures, Model};

/// What was learnt.
#[derive(Clone, Debug)]
pub struct Fit {
    /// A server that has a GPU of its own.
    pub model: Model,
    /// Its figures, with their bounds.
    pub learnt: Vec<Learnt>,
    /// What each server has of a GPU in runs of so many servers.
    pub shares: BTreeMap<usize, f64>,
    /// Requests that it was learnt from.
    pub requests: usize,
    /// Runs replayed.
    pub validation: Vec<Replayed>,
}

/// A run replayed.
#[derive(Clone, Debug)]
pub struct Replayed {
    /// Its name.
    pub name: String,
    /// The requests that each server runs at once, where that showed.
    pub slots: Vec<Option<usize>>,
    /// What was measured.
    pub measured: Figures,
    /// What came out.
    pub predicted: Figures,
}

/// By how much replays are off, each as a share of what was measured: the root of the mean square over runs.
pub type Errors = [f64; 6];

/// What is compared, in the order of [`Errors`].
pub const COMPARED: [&str; 6] = [
    "ttft_ms.p50",
    "ttft_ms.p99",
    "total_latency_ms.p50",
    "total_latency_ms.p99",
    "pure_queue_time_ms.mean",
    "request_throughput",
];
/// Shorter times than this are not told apart: seconds. A step of an engine is about as long.
const SHORTEST: f64 = 0.01;
/// Fewer requests tell nothing of a server.
const FEWEST: usize = 20;
/// A server's sample has at most so many requests, and all samples make so many tokens.
const MOST: (usize, u64) = (2_000, 400_000);
/// Loads that make up to so many tokens are replayed so often, and the median is taken.
const REPLAYS: [(u64, u32); 2] = [(500_000, 9), (5_000_000, 3)];

impl Fit {
    /// Learns of runs.
    ///
    /// # Errors
    /// They do not tell what a server does.
    pub fn of(loads: &[Load]) -> Result<Fit, Error> {
        let servers: usize = loads.iter().map(|load| load.servers.len()).sum();
        let mut samples = Vec::new();
        for load in loads {
            let all = 0..load.servers.len();
            samples.extend(all.filter_map(|server| sample(load, server, servers)));
        }
        if samples.is_empty() {
            return Err(Error::NothingToLearn);
        }
        let own: Vec<&Sample> = samples
            .iter()
            .filter(|sample| sample.servers == 1)
            .collect();
        let taught: Vec<&Sample> = match own.is_empty() {
            true => samples.iter().collect(),
            false => own,
        };
        let (model, learnt) = refine(guess(&taught), &taught);
        let mut shares = BTreeMap::new();
        for sample in &samples {
            if !taught.iter().any(|own| own.servers == sample.servers) {
                let alike = samples
                    .iter()
                    .filter(|other| other.servers == sample.servers);
                let found = || share(&model, &alike.collect::<Vec<_>>());
                shares.entry(sample.servers).or_insert_with(found);
            }
        }
        let mut fit = Fit {
            requests: taught
                .iter()
                .map(|sample| sample.counted.iter().filter(|counted| **counted).count())
                .sum(),
            model,
            learnt,
            shares,
            validation: Vec::new(),
        };
        fit.validation = loads.iter().map(|load| fit.replay(load)).collect();
        Ok(fit)
    }

    /// A run replayed as it was.
    pub fn replay(&self, load: &Load) -> Replayed {
        let as_it_was = self.as_it_was(load);
        Replayed {
            name: load.name.clone(),
            slots: load.slots.clone(),
            measured: Figures::measured(&load.requests),
            predicted: predict(&as_it_was, load),
        }
    }

    /// What served a load.
    pub fn as_it_was(&self, load: &Load) -> Deployment {
        let share = self.shares.get(&load.servers.len()).copied();
        let server = |slots: &Option<usize>| {
            let mut model = self.model.clone();
            model.profile.max_running_requests = slots.unwrap_or(usize::MAX);
            model.profile.gpu_share = share.unwrap_or(1.0);
            model
        };
        Deployment {
            servers: load.slots.iter().map(server).collect(),
            policy: None,
            pace: 1.0,
        }
    }

    /// How far replays are off.
    pub fn errors(&self) -> Errors {
        let all: Vec<Errors> = self.validation.iter().map(Replayed::errors).collect();
        std::array::from_fn(|figure| root_mean_square(all.iter().map(|errors| errors[figure])))
    }

    /// The same in one number: the root of the mean square over all that is compared.
    pub fn error(&self) -> f64 {
        root_mean_square(self.errors().into_iter())
    }
}

impl Replayed {
    /// How far each figure is off, with its sign.
    pub fn errors(&self) -> Errors {
        let [measured, predicted] = [&self.measured, &self.predicted].map(compared);
        std::array::from_fn(|at| {
            let least = if at == COMPARED.len() - 1 {
                0.0
            } else {
                SHORTEST
            };
            (predicted[at] - measured[at]) / measured[at].max(least)
        })
    }
}

/// What is compared, in the order of [`COMPARED`].
pub fn compared(figures: &Figures) -> Errors {
    let Figures {
        ttft,
        total,
        queue,
        throughput,
    } = figures;
    [ttft[1], ttft[2], total[1], total[2], queue[0], *throughput]
}

/// What a deployment would make of a load.
pub fn predict(deployment: &Deployment, load: &Load) -> Figures {
    let tokens: u64 = load
        .requests
        .iter()
        .map(|request| u64::from(request.output))
        .sum();
    let replays = REPLAYS.iter().find(|(most, _)| tokens <= *most);
    let runs = (0..replays.map_or(1, |(_, replays)| *replays)).map(|chance| {
        let made = deployment.replay(&load.requests, chance);
        let both = load.requests.iter().zip(&made);
        Figures::of(both.filter_map(|(request, made)| {
            Some((deployment.arrives(&load.requests, request), (*made)?))
        }))
    });
    Figures::median(&runs.collect::<Vec<_>>())
}

fn root_mean_square(all: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = all.len().max(1) as f64;
    (all.map(|one| one * one).sum::<f64>() / count).sqrt()
}

/// Of a server's requests those that came closest together; `of` servers share the room for samples.
fn sample(load: &Load, server: usize, of: usize) -> Option<Sample> {
    let all: Vec<Request> = load.of_server(server).copied().collect();
    let tokens: u64 = all.iter().map(|request| u64::from(request.output)).sum();
    let room = MOST.1 / of.max(1) as u64 * all.len() as u64 / tokens.max(1);
    let size = (room as usize).min(MOST.0).max(5 * FEWEST).min(all.len());
    let span = |from: &usize| all[from + size - 1].at - all[*from].at;
    let starts = (0..=all.len() - size).step_by(size / 2 + 1);
    let from = starts.min_by(|a, b| span(a).total_cmp(&span(b)))?;
    let (before, rest) = all.split_at(from);
    let (requests, after) = rest.split_at(size);
    let end = |request: &Request| request.seen.map_or(0.0, |seen| seen.finish);
    // Who met others that are not in the sample is replayed, but not compared.
    let from = before.iter().map(end).fold(f64::NEG_INFINITY, f64::max);
    let to = after.first().map_or(f64::INFINITY, |next| next.at);
    let counted = |request: &Request| {
        request
            .seen
            .is_some_and(|seen| request.at >= from && seen.finish <= to)
    };
    let counted: Vec<bool> = requests.iter().map(counted).collect();
    (counted.iter().filter(|counted| **counted).count() >= FEWEST).then(|| Sample {
        requests: requests.to_vec(),
        counted,
        slots: load.slots[server],
        servers: load.servers.len(),
    })
}
