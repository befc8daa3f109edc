//! What runs teach of their servers, and how near a replay of them comes to what was measured.

use std::collections::BTreeMap;

use super::Error;
use super::learn::{Learnt, learn, share};
use super::load::Load;
use super::replay::{Deployment, Model};
use super::rows::Figures;

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

impl Fit {
    /// Learns of runs: of servers with a GPU of their own, where any run had one server.
    ///
    /// # Errors
    /// They do not tell what a server does.
    pub fn of(loads: &[Load]) -> Result<Fit, Error> {
        let servers: usize = loads.iter().map(|load| load.servers.len()).sum();
        let of = |load: &Load| {
            (0..load.servers.len())
                .filter_map(move |server| load.sample(server, servers))
                .collect::<Vec<_>>()
        };
        let samples: Vec<Load> = loads.iter().flat_map(of).collect();
        let (own, shared): (Vec<Load>, Vec<Load>) = samples
            .into_iter()
            .partition(|sample| sample.servers.len() == 1);
        let (taught, shared) = if own.is_empty() {
            (shared, own)
        } else {
            (own, shared)
        };
        if taught.is_empty() {
            return Err(Error::NothingToLearn);
        }
        let (model, learnt) = learn(&taught);
        let mut by_servers: BTreeMap<usize, Vec<Load>> = BTreeMap::new();
        for sample in shared {
            by_servers
                .entry(sample.servers.len())
                .or_default()
                .push(sample);
        }
        let shares = by_servers
            .iter()
            .map(|(servers, samples)| (*servers, share(&model, samples)));
        let mut fit = Fit {
            requests: taught.iter().map(|sample| sample.seen().count()).sum(),
            shares: shares.collect(),
            model,
            learnt,
            validation: Vec::new(),
        };
        fit.validation = loads.iter().map(|load| fit.replay(load)).collect();
        Ok(fit)
    }

    /// A run replayed as it was; compared is what the server told of.
    pub fn replay(&self, load: &Load) -> Replayed {
        let mut made = self.as_it_was(load).serve(load);
        let both = made.requests.iter_mut().zip(&load.requests);
        both.filter(|(_, request)| request.seen.is_none())
            .for_each(|(made, _)| made.seen = None);
        Replayed {
            name: load.name.clone(),
            slots: load.slots.clone(),
            measured: Figures::of(&load.to_run(&[])),
            predicted: Figures::of(&made.to_run(&[])),
        }
    }

    /// What served a load.
    pub fn as_it_was(&self, load: &Load) -> Deployment {
        let mut model = self.model.clone();
        model.profile.gpu_share = self.shares.get(&load.servers.len()).copied().unwrap_or(1.0);
        Deployment::of(&model, &load.slots)
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
        let least = |at| {
            if at == COMPARED.len() - 1 {
                0.0
            } else {
                SHORTEST
            }
        };
        std::array::from_fn(|at| (predicted[at] - measured[at]) / measured[at].max(least(at)))
    }
}

/// What is compared, in the order of [`COMPARED`].
pub fn compared(of: &Figures) -> Errors {
    [
        of.ttft[1],
        of.ttft[2],
        of.total[1],
        of.total[2],
        of.queue[0],
        of.throughput,
    ]
}

fn root_mean_square(all: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = all.len().max(1) as f64;
    (all.map(|one| one * one).sum::<f64>() / count).sqrt()
}
