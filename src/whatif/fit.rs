//! Fits the engine to measured runs, and replays these to know the error of predictions.

use std::collections::BTreeMap;

use crate::error::Error;

use super::figures::{COMPARED, Compared, Figures, by_name};
use super::learn::{Estimate, gpu_share, learn, slow_down};
use super::load::Load;
use super::replay::{Deployment, Model};
use super::settings::SLOTS;

/// The engine as fitted to runs.
#[derive(Clone, Debug, Default)]
pub struct Fit {
    /// A server that has a GPU of its own.
    pub model: Model,
    /// The fitted parameters.
    pub estimates: Vec<Estimate>,
    /// Each server's share of a GPU, by the number of servers in a run.
    pub gpu_shares: BTreeMap<usize, f64>,
    /// The number of requests that it was fitted to.
    pub requests: usize,
    /// The requests that ran at once on a server: the most, and the highest mean of a run.
    pub running: (usize, f64),
    /// Whether no run was of a single server: if the servers of each shared a GPU, the model is of such a share.
    pub may_share: bool,
    /// The runs, replayed.
    pub validation: Vec<Replayed>,
}

/// A run with its replay.
#[derive(Clone, Debug)]
pub struct Replayed {
    /// The run's name.
    pub name: String,
    /// Its measured figures.
    pub measured: Figures,
    /// Those of the replay.
    pub predicted: Figures,
}

/// Why nothing is learnt.
const NOTHING_TO_LEARN: &str = "no server has 20 requests whose rows tell when they entered and left its queue and had their first token \
    (queue_time_start, queue_time_end, server_first_token_time) on a clock that is known (clock_state): SGLang reports them \
    with --enable-metrics; `traffic --upstream-kind server` or a proxy's hops relate its clock";
/// With a larger error, as a share, nothing is predicted.
const MAX_ERROR: f64 = 0.2;
/// Servers may be slower than fitted by this factor in conditions that the rows do not show: as much as throughput was off at
/// saturation (docs/WHATIF.md).
const SLOWDOWN: f64 = 1.05;

impl Fit {
    /// Fits the engine to runs, and replays them.
    ///
    /// # Errors
    /// No server has enough requests with known times.
    pub fn of(loads: &[Load]) -> Result<Fit, Error> {
        // A run of a single server has a GPU of its own. If there is none, servers are fitted as if each had one.
        let is_own = |sample: &Load| sample.servers.len() == 1;
        let servers = loads.iter().map(|load| load.servers.len()).sum();
        let samples = loads.iter().flat_map(|load| {
            let all = 0..load.servers.len();
            all.filter_map(move |server| load.sample(server, servers))
        });
        let (mut fitted, mut shared): (Vec<Load>, Vec<Load>) = samples.partition(is_own);
        let may_share = fitted.is_empty();
        if may_share {
            std::mem::swap(&mut fitted, &mut shared);
        }
        if fitted.is_empty() {
            let names: Vec<&str> = loads.iter().map(|load| &*load.name).collect();
            let problem = format!("{}: {NOTHING_TO_LEARN}", names.join(", "));
            return Err(Error::usage(problem));
        }
        let (model, estimates) = learn(&fitted);
        shared.sort_by_key(|sample| sample.servers.len());
        let shares = shared.chunk_by(|a, b| a.servers.len() == b.servers.len());
        let of_shares =
            |samples: &[Load]| Some((samples.first()?.servers.len(), gpu_share(&model, samples)));
        let running = loads.iter().map(Load::running);
        let mut fit = Fit {
            requests: fitted.iter().map(|sample| sample.timed().count()).sum(),
            gpu_shares: shares.filter_map(of_shares).collect(),
            running: running.fold((0, 0.0), |all, of| (all.0.max(of.0), all.1.max(of.1))),
            model,
            estimates,
            may_share,
            validation: Vec::new(),
        };
        let timed = loads.iter().filter(|load| load.timed().next().is_some());
        fit.validation = timed.map(|load| fit.replay(load)).collect();
        Ok(fit)
    }

    /// Replays a run as it was. Its figures are of the requests with measured times.
    pub fn replay(&self, load: &Load) -> Replayed {
        let mut made = self.original(load).serve(load);
        let both = made.requests.iter_mut().zip(&load.requests);
        both.filter(|(_, request)| request.times.is_none())
            .for_each(|(made, _)| made.times = None);
        Replayed {
            name: load.name.clone(),
            measured: Figures::of(load),
            predicted: Figures::of(&made),
        }
    }

    /// The servers of a load as they were.
    pub fn original(&self, load: &Load) -> Deployment {
        let mut model = self.model.clone();
        let share = self.gpu_shares.get(&load.servers.len());
        model.profile.gpu_share = share.copied().unwrap_or(1.0);
        Deployment::of(&model, load)
    }

    /// Why nothing is predicted from this fit to `loads`: its error is too large. `None` if it is good enough.
    pub fn no_prediction(&self, loads: &[Load]) -> Option<String> {
        let error = self.error();
        let errors = by_name(self.errors()).into_iter();
        let (name, worst) = errors.max_by(|a, b| a.1.total_cmp(&b.1))?;
        let wait = |load: &Load| Some(format!("; {}: {}", load.name, load.unexplained_wait()?));
        let waits: String = loads.iter().filter_map(wait).collect();
        (error > MAX_ERROR || error.is_nan()).then(|| {
            format!(
                "no prediction is possible: replayed, the rows of --fit are off by {:.0} %, more than {:.0} % ({name} most, by {:.0} %): \
                 the engine does not explain what these servers did{waits}",
                error * 100.0,
                MAX_ERROR * 100.0,
                worst * 100.0
            )
        })
    }

    /// The first server of a load as keys of a plan, below the command of `queuescope sim`. Unknown slots are left out.
    pub fn profile(&self, load: &Load) -> String {
        let server = self.original(load);
        let model = &server.model.profile;
        let estimates = self.estimates.iter().map(|of| (of.name, of.value));
        let fitted = estimates.chain([
            ("tokenize_ms", model.tokenize_ms),
            ("tokenize_token_us", model.tokenize_token_us),
            ("schedule_ms", model.schedule_ms),
        ]);
        let slots = load.slots.first().copied().flatten();
        let slots = slots.map(|slots| (SLOTS, slots.to_string()));
        let known = [
            ("max_total_tokens", model.max_total_tokens.to_string()),
            ("gpu_share", model.gpu_share.to_string()),
        ];
        let fitted = fitted.map(|(name, value)| (name, format!("{value:.6}")));
        let (mut flags, mut plan, mut sim) = (String::new(), String::new(), String::new());
        for (name, value) in slots.into_iter().chain(known).chain(fitted) {
            flags += &format!(" --{} {value}", name.replace('_', "-"));
            // A plan has the slots of any engine outside of `[sim]`.
            let lines = if name == SLOTS { &mut plan } else { &mut sim };
            *lines += &format!("{name} = {value}\n");
        }
        format!("# queuescope sim{flags}\n{plan}[sim]\n{sim}")
    }

    /// The errors of replays: the root mean square of each figure's.
    pub fn errors(&self) -> Compared {
        let all: Vec<Compared> = self.validation.iter().map(Replayed::errors).collect();
        std::array::from_fn(|figure| root_mean_square(all.iter().map(|errors| errors[figure])))
    }

    /// The expected errors of a prediction: those of replays, and the change if servers were slower by [`SLOWDOWN`], which is large
    /// if they are nearly full. `NaN` if nothing is served.
    pub fn expected_errors(&self, servers: &Deployment, load: &Load, made: &Figures) -> Compared {
        // Where nothing is served, no figure can be off.
        if made.compared().iter().any(|figure| figure.is_nan()) {
            return [f64::NAN; COMPARED.len()];
        }
        let mut slower = servers.clone();
        slow_down(&mut slower.model.profile, [SLOWDOWN; 2]);
        let slower = Figures::of(&slower.serve(load)).errors_against(made);
        let replays = self.errors();
        std::array::from_fn(|figure| replays[figure].hypot(slower[figure]))
    }

    /// The root mean square of all errors.
    pub fn error(&self) -> f64 {
        root_mean_square(self.errors().into_iter())
    }
}

impl Replayed {
    /// The signed error of each figure, as a share.
    pub fn errors(&self) -> Compared {
        self.predicted.errors_against(&self.measured)
    }
}

/// `NaN` of no values.
fn root_mean_square(all: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = all.len() as f64;
    (all.map(|one| one * one).sum::<f64>() / count).sqrt()
}
