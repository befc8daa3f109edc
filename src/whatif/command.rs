//! `queuescope whatif`: what is read, learnt, predicted and shown.

use std::path::{Path, PathBuf};

mod show;

use crate::disk;
use crate::experiment::plan::grid;
use crate::experiment::plan::read::Entry;
use crate::experiment::run::search::{Search, Trial};
use crate::report::compare::Comparison;
use crate::report::load::Goal;
use crate::report::page;
use crate::report::reader::{self, Loaded, Run};
use crate::report::runs::{Report, RunReport};
use crate::table;

use super::Error;
use super::fit::{COMPARED, Fit};
use super::load::Load;
use super::replay::{Deployment, Model};
use super::rows::Figures;
use super::settings::{MOST_RATE, MOST_SERVERS, RATE, SERVERS, deployment, sweeps};

/// What is to be predicted, of what, and from what.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Args {
    /// Folders of runs, or files of rows (also .gz): what is to be served, and when
    #[arg(value_name = "LOAD", required = true)]
    pub loads: Vec<PathBuf>,
    /// Runs to learn the servers' speed from [default: LOAD]
    #[arg(long, value_name = "ROWS", num_args = 1..)]
    pub fit: Vec<PathBuf>,
    /// What is to be changed; several values, A,B, make a grid. Keys: rate (so many times as many requests a second),
    /// request_rate (requests a second), num_gpus (servers), servers_per_gpu, routing_policy (round_robin, random,
    /// shortest_queue, power_of_two), and flags of queuescope sim: max_running_requests, chunked_prefill_size, …
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// File for what was learnt, as a plan's table of the simulator
    #[arg(long, value_name = "FILE")]
    pub profile: Option<PathBuf>,
    /// Look for the fewest servers, or the highest rate, that keep --goodput under each combination of --set
    #[arg(long, value_enum, value_name = "WHAT", requires = "goodput")]
    pub find: Option<Find>,
    /// What a good request keeps: NAME:MILLISECONDS, such as ttft:500 e2el:4000
    #[arg(long, value_name = "GOAL", num_args = 1..)]
    pub goodput: Vec<Goal>,
    /// Share of all requests that must keep it
    #[arg(long, value_name = "SHARE", default_value_t = 0.95)]
    pub goodput_share: f64,
    /// File of a page of the load and the predictions, as `queuescope report` makes it
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// How it is shown
    #[arg(long, value_enum, value_name = "FORMAT", default_value = "text")]
    pub format: Format,
}

/// How a prediction is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For the terminal
    #[default]
    Text,
    /// For programs
    Json,
}

/// What is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Find {
    /// The fewest servers
    Servers,
    /// The highest rate, requests a second
    Rate,
}

/// A prediction.
#[derive(Clone, Debug)]
struct Prediction {
    settings: Vec<Entry>,
    figures: Figures,
    /// Requests that no server takes: longer than its KV cache.
    refused: usize,
    /// Its rows, where a page is made of them.
    run: Option<Run>,
}

/// What all predictions are made of.
struct Made<'a> {
    args: &'a Args,
    load: &'a Load,
    fit: Fit,
    /// Why there are none.
    no_prediction: Option<String>,
    predictions: Vec<Prediction>,
    /// What is to be known.
    notes: Vec<String>,
}

/// A rate is looked for until it is known to this share.
const PRECISION: f64 = 0.02;

/// More than this error, as a share, is no prediction.
pub const MOST_ERROR: f64 = 0.2;

/// Predicts: what is shown, and why nothing is predicted, where that is so.
///
/// # Errors
/// What was given cannot be read, or is wrong.
pub fn run(args: &Args) -> Result<(String, Option<String>), Error> {
    let sweeps = sweeps(&args.set)?;
    let grid = grid::combinations(&sweeps, 1)
        .map_err(|error| Error::Setting(format!("--set: {error}")))?;
    if !(0.0..=1.0).contains(&args.goodput_share) {
        return Err(Error::Setting(
            "--goodput-share: must be from 0 to 1".to_owned(),
        ));
    }
    let loads = read(&args.loads)?;
    let load = joined(&loads)?;
    // What cannot be is said before minutes of learning, and also where nothing is predicted.
    for settings in &grid {
        let was = Deployment::of(&Model::default(), &load.slots);
        deployment(was, None, load, settings)?;
    }
    let fit = match args.fit.as_slice() {
        [] => Fit::of(&loads)?,
        given => Fit::of(&read(given)?)?,
    };
    let mut made = Made {
        notes: notes(load),
        no_prediction: no_prediction(&fit),
        predictions: Vec::new(),
        args,
        load,
        fit,
    };
    for settings in grid {
        made.deployment(&settings)?;
        if made.no_prediction.is_none() {
            made.predict(settings)?;
        }
    }
    if let Some(path) = &args.profile {
        write(path, &profile(&made.fit))?;
    }
    if let Some(path) = &args.html {
        write(path, &made.page())?;
    }
    let shown = match args.format {
        Format::Json => format!("{:#}\n", made.to_json()),
        Format::Text => made.to_text(),
    };
    Ok((shown, made.no_prediction))
}

fn write(path: &Path, text: &str) -> Result<(), Error> {
    let written = disk::replace(path, text.as_bytes());
    Ok(written.map_err(|cause| table::Error::write(path, cause))?)
}

impl Made<'_> {
    /// Under these settings, or of what is looked for under them.
    fn predict(&mut self, settings: Vec<Entry>) -> Result<(), Error> {
        let keeps = |of: &Prediction| of.figures.kept >= self.args.goodput_share;
        let found = match self.args.find {
            None => Some(self.under(settings.clone())?),
            Some(Find::Servers) => self.fewest(&settings, &keeps)?,
            Some(Find::Rate) => self.highest(&settings, &keeps)?,
        };
        let goals: Vec<String> = self
            .args
            .goodput
            .iter()
            .map(|goal| format!("{}:{}", goal.name, goal.most_ms))
            .collect();
        let looked_for = match self.args.find {
            Some(Find::Servers) => format!("number of servers up to {MOST_SERVERS}"),
            _ => "rate".to_owned(),
        };
        match found {
            Some(found) => self.predictions.push(found),
            None => self.notes.push(format!(
                "{}: no {looked_for} keeps {} in {:.1} % of the requests",
                grid::label(&settings),
                goals.join(" "),
                self.args.goodput_share * 100.0
            )),
        }
        Ok(())
    }

    fn deployment(&self, settings: &[Entry]) -> Result<Deployment, Error> {
        let (fit, load) = (&self.fit, self.load);
        deployment(fit.as_it_was(load), Some(&fit.shares), load, settings)
    }

    fn under(&self, settings: Vec<Entry>) -> Result<Prediction, Error> {
        let mut made = self.deployment(&settings)?.serve(self.load);
        let (served, all) = (made.seen().count(), made.requests.len());
        made.name = format!("predicted: {}", grid::label(&settings));
        let mut run = made.to_run(&self.args.goodput);
        let off = COMPARED.iter().zip(self.fit.errors());
        let off: Vec<String> = off
            .map(|(name, error)| format!("{name} ± {:.1} %", error * 100.0))
            .collect();
        run.notes
            .push(format!("predicted, not measured: {}", off.join(", ")));
        let mut figures = Figures::of(&run);
        // Who is refused keeps no goal.
        figures.kept *= served as f64 / all.max(1) as f64;
        Ok(Prediction {
            figures,
            refused: all - served,
            settings,
            run: self.args.html.is_some().then_some(run),
        })
    }

    fn fewest(
        &self,
        settings: &[Entry],
        keeps: &dyn Fn(&Prediction) -> bool,
    ) -> Result<Option<Prediction>, Error> {
        let with = |servers: usize| self.under(with(settings, SERVERS, (servers as i64).into())?);
        let (mut too_few, mut servers) = (0, 1);
        let mut found = with(servers)?;
        while !keeps(&found) {
            (too_few, servers) = (servers, servers * 2);
            if servers > MOST_SERVERS {
                return Ok(None);
            }
            found = with(servers)?;
        }
        while servers - too_few > 1 {
            let middle = usize::midpoint(too_few, servers);
            let tried = with(middle)?;
            match keeps(&tried) {
                true => (servers, found) = (middle, tried),
                false => too_few = middle,
            }
        }
        Ok(Some(found))
    }

    fn highest(
        &self,
        settings: &[Entry],
        keeps: &dyn Fn(&Prediction) -> bool,
    ) -> Result<Option<Prediction>, Error> {
        let mut search = Search::new(self.load.rate(), PRECISION);
        let mut best = None;
        while let Some(rate) = search.next() {
            if rate > MOST_RATE {
                return Err(Error::Setting(
                    "--find rate: any rate keeps --goodput, also all requests at once; give a stricter one"
                        .to_owned(),
                ));
            }
            let tried = self.under(with(settings, RATE, rate.into())?)?;
            let is_met = keeps(&tried);
            search.tell(rate, if is_met { Trial::Met } else { Trial::Missed });
            if search.met == Some(rate) {
                best = Some(tried);
            }
        }
        Ok(best)
    }

    /// The load and the predictions, as a report of runs shows them. What differs is not tested: chance is not what it is off by.
    fn page(&self) -> String {
        let measured = self.load.to_run(&self.args.goodput);
        let runs = std::iter::once(measured)
            .chain(self.predictions.iter().filter_map(|of| of.run.clone()));
        let loaded = Loaded {
            runs: runs.collect(),
            ..Loaded::default()
        };
        page::render(&Report {
            runs: loaded.runs.iter().map(RunReport::of).collect(),
            comparison: Comparison::default(),
            loaded: &loaded,
        })
    }
}

/// Settings and the key that is looked for.
fn with(settings: &[Entry], key: &str, value: toml::Value) -> Result<Vec<Entry>, Error> {
    if settings.iter().any(|(known, _)| known == key) {
        return Err(Error::Setting(format!(
            "--set {key}: is what --find looks for; leave it out"
        )));
    }
    let found = std::iter::once((key.to_owned(), value));
    Ok(settings.iter().cloned().chain(found).collect())
}

fn read(given: &[PathBuf]) -> Result<Vec<Load>, Error> {
    let loaded = reader::load(given)?;
    Ok(loaded
        .runs
        .iter()
        .map(Load::of)
        .filter(|load| !load.requests.is_empty())
        .collect())
}

/// Several loads are one after the other: only one can be replayed.
fn joined(loads: &[Load]) -> Result<&Load, Error> {
    match loads {
        [] => Err(Error::Empty),
        [load] => Ok(load),
        several => Err(Error::Setting(format!(
            "LOAD: {} runs were given ({}): one is replayed at a time, as FOLDER/runs/NAME; the others can teach by --fit",
            several.len(),
            several
                .iter()
                .map(|of| of.name.as_str())
                .collect::<Vec<_>>()
                .join(", ")
        ))),
    }
}

/// Why nothing is to be predicted from this.
fn no_prediction(fit: &Fit) -> Option<String> {
    let error = fit.error();
    (error > MOST_ERROR || error.is_nan()).then(|| {
        let errors = fit.errors();
        let worst = COMPARED.iter().zip(errors).max_by(|a, b| a.1.total_cmp(&b.1));
        let (name, worst) = worst.unwrap_or((&"", error));
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
fn profile(fit: &Fit) -> String {
    let model = &fit.model.profile;
    let mut figures: Vec<(&str, f64)> = fit
        .learnt
        .iter()
        .map(|learnt| (learnt.name, learnt.value))
        .collect();
    figures.extend([
        ("tokenize_ms", model.tokenize_ms),
        ("tokenize_token_us", model.tokenize_token_us),
        ("schedule_ms", model.schedule_ms),
    ]);
    let flags = figures
        .iter()
        .map(|(name, value)| format!(" --{} {value:.6}", name.replace('_', "-")));
    let lines = figures
        .iter()
        .map(|(name, value)| format!("{name} = {value:.6}\n"));
    format!(
        "# queuescope sim{}\n[sim]\n{}",
        flags.collect::<String>(),
        lines.collect::<String>()
    )
}

/// What the reader must know of the load.
fn notes(load: &Load) -> Vec<String> {
    let mut notes = Vec::new();
    if load.left_out > 0 {
        notes.push(format!(
            "{} rows of {} are left out: they failed, or tell no arrival or no numbers of tokens",
            load.left_out, load.name
        ));
    }
    if load.slots.iter().all(Option::is_none) {
        notes.push(
            "no request waited for a slot: how many the servers run at once is not known, and no limit is assumed; \
             --set max_running_requests=N says it"
                .to_owned(),
        );
    }
    if load.shares_prefixes() {
        notes.push(
            "cached tokens are taken as measured: rows do not tell which prompts share a beginning, so what more servers or another \
             policy would do to the prefix cache is not predicted"
                .to_owned(),
        );
    }
    notes
}
