//! What runs teach of their servers, and how near a replay of them comes to what was measured.

use std::collections::BTreeMap;

use super::Error;
use super::figures::{COMPARED, Compared, Figures};
use super::learn::{Learnt, learn, share, slow_down};
use super::load::Load;
use super::replay::{Deployment, Model};

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
    /// How many of them ran at once on a server: at most, and on average.
    pub running: (usize, f64),
    /// Runs replayed.
    pub validation: Vec<Replayed>,
}

/// A run replayed.
#[derive(Clone, Debug)]
pub struct Replayed {
    /// Its name.
    pub name: String,
    /// What was measured.
    pub measured: Figures,
    /// What came out.
    pub predicted: Figures,
}

/// More than this error, as a share, is no prediction.
const MOST_ERROR: f64 = 0.2;
/// Servers may be slower than learnt by so much, where they do what the rows do not show: as much as throughput is off at saturation
/// (docs/WHATIF.md).
const SLOWER: f64 = 1.05;

impl Fit {
    /// Learns of runs, and replays them.
    ///
    /// # Errors
    /// They do not tell what a server does.
    pub fn of(loads: &[Load]) -> Result<Fit, Error> {
        // Of servers with a GPU of their own, where any run had one server.
        let is_own = |sample: &Load| sample.servers.len() == 1;
        let (mut taught, mut shared): (Vec<Load>, Vec<Load>) =
            samples(loads).into_iter().partition(is_own);
        if taught.is_empty() {
            std::mem::swap(&mut taught, &mut shared);
        }
        if taught.is_empty() {
            return Err(Error::NothingToLearn);
        }
        let (model, learnt) = learn(&taught);
        shared.sort_by_key(|sample| sample.servers.len());
        let shares = shared.chunk_by(|a, b| a.servers.len() == b.servers.len());
        let of_shares =
            |samples: &[Load]| Some((samples.first()?.servers.len(), share(&model, samples)));
        let running = loads.iter().map(Load::running);
        let mut fit = Fit {
            requests: taught.iter().map(|sample| sample.seen().count()).sum(),
            shares: shares.filter_map(of_shares).collect(),
            running: running.fold((0, 0.0), |all, of| (all.0.max(of.0), all.1.max(of.1))),
            model,
            learnt,
            validation: Vec::new(),
        };
        let told = loads.iter().filter(|load| load.seen().next().is_some());
        fit.validation = told.map(|load| fit.replay(load)).collect();
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
            measured: Figures::of(load, &[]),
            predicted: Figures::of(&made, &[]),
        }
    }

    /// What served a load.
    pub fn as_it_was(&self, load: &Load) -> Deployment {
        let mut model = self.model.clone();
        model.profile.gpu_share = self.shares.get(&load.servers.len()).copied().unwrap_or(1.0);
        Deployment::of(&model, load)
    }

    /// Why nothing is to be predicted from this.
    pub fn no_prediction(&self) -> Option<String> {
        let error = self.error();
        let by_name = COMPARED.iter().zip(self.errors());
        let ((name, _), worst) = by_name.max_by(|a, b| a.1.total_cmp(&b.1))?;
        (error > MOST_ERROR || error.is_nan()).then(|| {
            format!(
                "no prediction is to be had: replayed, the rows of --fit are off by {:.0} %, more than {:.0} % ({name} most, by {:.0} %): \
                 the engine does not explain what these servers did",
                error * 100.0,
                MOST_ERROR * 100.0,
                worst * 100.0
            )
        })
    }

    /// What was learnt, as a plan's `[sim]`.
    pub fn profile(&self) -> String {
        let model = &self.model.profile;
        let learnt = self.learnt.iter().map(|learnt| (learnt.name, learnt.value));
        let figures = learnt.chain([
            ("tokenize_ms", model.tokenize_ms),
            ("tokenize_token_us", model.tokenize_token_us),
            ("schedule_ms", model.schedule_ms),
        ]);
        let (mut flags, mut lines) = (String::new(), String::new());
        for (name, value) in figures {
            flags += &format!(" --{} {value:.6}", name.replace('_', "-"));
            lines += &format!("{name} = {value:.6}\n");
        }
        format!("# queuescope sim{flags}\n[sim]\n{lines}")
    }

    /// How far replays are off.
    pub fn errors(&self) -> Compared {
        let all: Vec<Compared> = self.validation.iter().map(Replayed::errors).collect();
        std::array::from_fn(|figure| root_mean_square(all.iter().map(|errors| errors[figure])))
    }

    /// How far what these servers make of a load may be off: as much as replays are, and as what slower ones would make of it, which
    /// is much where they are nearly full.
    pub fn may_be_off(&self, servers: &Deployment, load: &Load, made: &Figures) -> Compared {
        let mut slower = servers.clone();
        slow_down(&mut slower.model.profile, [SLOWER; 2]);
        let slower = Figures::of(&slower.serve(load), &[]).off_from(made);
        let replays = self.errors();
        std::array::from_fn(|figure| replays[figure].hypot(slower[figure]))
    }

    /// The same in one number: the root of the mean square over all that is compared.
    pub fn error(&self) -> f64 {
        root_mean_square(self.errors().into_iter())
    }
}

impl Replayed {
    /// How far each figure is off, with its sign.
    pub fn errors(&self) -> Compared {
        self.predicted.off_from(&self.measured)
    }
}

/// What runs teach of each server.
fn samples(loads: &[Load]) -> Vec<Load> {
    let servers: usize = loads.iter().map(|load| load.servers.len()).sum();
    let all = loads.iter();
    let all = all.flat_map(|load| (0..load.servers.len()).map(move |server| (load, server)));
    all.filter_map(|(load, server)| load.sample(server, servers))
        .collect()
}

/// Not a number of none.
fn root_mean_square(all: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = all.len() as f64;
    (all.map(|one| one * one).sum::<f64>() / count).sqrt()
}
