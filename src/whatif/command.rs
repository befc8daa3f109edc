//! `queuescope whatif`: reads loads, fits the engine, predicts and prints.

use std::path::{Path, PathBuf};

mod show;

use serde_json::{Value as Json, json};
use toml::Value;

use crate::disk;
use crate::error::Error;
use crate::experiment::plan::grid::{self, Entry};
use crate::report::load::{Goal, Summary, goals_ms};
use crate::report::outputs;
use crate::report::reader::{self, Run, inputs};
use crate::table::rows;
use crate::units::{at_least, one_decimal, round_to_four_digits, share};
use crate::upstream::Policy;

use super::figures::{Figures, goal};
use super::fit::Fit;
use super::load::Load;
use super::replay::{Deployment, Model};
use super::settings::{
    MAX_RATE, MAX_SERVERS, MIN_RATE, NO_CACHE, RATE, SERVERS, SLOTS, deployment, each_once,
    predicted, sweeps, value,
};

/// Arguments of `queuescope whatif`.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Args {
    /// Folders of runs, or files of rows (also .gz): what is to be served, and when; each is predicted by itself
    #[arg(value_name = "LOAD", required = true)]
    pub loads: Vec<PathBuf>,
    /// Runs to learn the servers' speed from [default: LOAD]
    #[arg(long, value_name = "ROWS", num_args = 1..)]
    pub fit: Vec<PathBuf>,
    /// The most requests that each server of LOAD and --fit ran at once [default: what their commands or the rows tell]
    #[arg(long, value_name = "N", value_parser = at_least(1_u32))]
    pub max_running_requests: Option<u32>,
    /// Tokens that the KV cache of each of them held [default: what their commands or /metrics tell]
    #[arg(long, value_name = "N", value_parser = at_least(1_u64))]
    pub max_total_tokens: Option<u64>,
    /// What is to be changed
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = grid::assignment, help = format!(
        "What is to be changed; several values, A,B, make a grid. Keys: rate (a factor on the request rate), request_rate \
         (requests a second), num_gpus (servers), routing_policy ({}), and flags of queuescope sim: max_running_requests, \
         chunked_prefill_size, …", Policy::listed(predicted)))]
    pub set: Vec<Entry>,
    /// File for what was learnt, as a plan's table of the simulator; not written if nothing can be predicted
    #[arg(long, value_name = "FILE")]
    pub profile: Option<PathBuf>,
    /// Look for the fewest servers, or the highest rate, that keep --goodput under each combination of --set
    #[arg(long, value_enum, value_name = "WHAT", requires = "goodput")]
    pub find: Option<Find>,
    /// What a good request keeps: NAME:MILLISECONDS, such as ttft:500 e2el:4000
    #[arg(long, value_name = "GOAL", num_args = 1.., value_parser = goal)]
    pub goodput: Vec<Goal>,
    /// Share of all requests that must keep it
    #[arg(long, value_name = "SHARE", default_value_t = 0.95, value_parser = share(0.0, 1.0), requires = "goodput")]
    pub goodput_share: f64,
    /// File of a page of the load and the predictions, as `queuescope report` makes it
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Replace the files of --html and --profile, whatever they are
    #[arg(long)]
    pub force: bool,
    /// How it is shown
    #[arg(long, value_name = "FORMAT", value_parser = ["text", "json"], default_value = "text")]
    pub format: String,
    /// Print it as JSON, as --format json does
    #[arg(long, conflicts_with = "format")]
    pub json: bool,
}

impl Args {
    /// Reads each LOAD. Returns the runs, and why others cannot be read.
    fn read(&self) -> (Vec<Run>, Vec<String>) {
        let (mut runs, mut problems) = (Vec::new(), Vec::new());
        for path in rows::without_duplicates(&self.loads) {
            match reader::load(&[path]) {
                Ok(loaded) => runs.extend(loaded.runs),
                Err(problem) => problems.push(problem.message),
            }
        }
        (reader::each_once(runs), problems)
    }

    /// Returns the runs that can be replayed, and the load of each. The first load has notes on the others, and on the problems before.
    ///
    /// # Errors
    /// None can.
    fn loads_of(
        &self,
        read: Vec<Run>,
        mut problems: Vec<String>,
    ) -> Result<(Vec<Run>, Vec<Load>), Error> {
        let (mut runs, mut loads) = (Vec::new(), Vec::new());
        for mut run in read {
            run.given_slots = self.max_running_requests;
            run.given_pool = self.max_total_tokens;
            match Load::of(&run) {
                Ok(load) => {
                    runs.push(run);
                    loads.push(load);
                }
                Err(problem) => problems.push(problem.message),
            }
        }
        match loads.first_mut() {
            Some(first) => first.notes.extend(problems),
            None => return Err(Error::usage(problems.join("; "))),
        }
        Ok((runs, loads))
    }
}

/// What `--find` searches for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Find {
    /// The fewest servers
    Servers,
    /// The highest rate, requests a second
    Rate,
}

impl Find {
    /// The key of `--set` that is varied by the search.
    const fn key(self) -> &'static str {
        match self {
            Find::Servers => SERVERS,
            Find::Rate => RATE,
        }
    }

    /// The value of a candidate, counted from 1. Each has more capacity to spare than the one before: one server more, or a rate that
    /// is lower by `PRECISION`.
    fn candidate(self, at: i64) -> Value {
        match self {
            Find::Servers => at.into(),
            Find::Rate => {
                round_to_four_digits(MAX_RATE * (1.0 + PRECISION).powi(-at as i32)).into()
            }
        }
    }
}

/// All loads with their predictions, one after another, and the fit that these are made with.
#[derive(Default)]
struct Results {
    args: Args,
    fit: Fit,
    /// Whether there are several loads: predictions are then labelled with their load's name.
    are_several: bool,
    /// Why nothing is predicted.
    no_prediction: Option<String>,
    /// Why nothing was found for a load.
    nothing_found: Option<String>,
    /// Members of the JSON output.
    loads: Vec<Json>,
    predictions: Vec<Json>,
    not_found: Vec<Json>,
    /// The rows of the table of runs, and the notes below it.
    lines: Vec<Vec<String>>,
    notes: Vec<String>,
    /// The runs of the page, if it is written.
    runs: Vec<Run>,
}

/// A load replayed under some settings.
struct Prediction {
    settings: Vec<Entry>,
    servers: Deployment,
    /// The load with the predicted times of its requests.
    load: Load,
    /// The same as a run, with its figures.
    run: Run,
    summary: Summary,
}

/// The relative distance between two rates that `--find rate` tries.
const PRECISION: f64 = 0.02;
/// With more than this many times as many requests at once as in the rows of `--fit`, the prediction has a note.
const MAX_EXTRAPOLATION: f64 = 2.5;
/// Servers are nearly full from this mean share of their slots in use on. A prediction of such servers has a note if those of the rows
/// of `--fit` were less than `MIN_FITTED` times as full.
const NEARLY_FULL: f64 = 0.9;
const MIN_FITTED: f64 = 0.7;

/// Runs the command: returns its output, and the reason if nothing was predicted or found.
///
/// # Errors
/// An argument is wrong, or a file cannot be read or written.
pub fn run(args: &Args) -> Result<(String, Option<String>), Error> {
    Goal::each_once(&args.goodput).map_err(Error::usage)?;
    let sweeps = sweeps(&args.set);
    each_once(&sweeps, args.find.map(Find::key))?;
    let grid =
        grid::combinations(&sweeps, 1).map_err(|error| Error::usage(format!("--set: {error}")))?;
    let written = [args.html.as_slice(), args.profile.as_slice()].concat();
    let given = [args.loads.as_slice(), args.fit.as_slice()].concat();
    outputs::check(&written, &inputs(&given), args.force)?;
    // Wrong settings are reported before the fit, which takes long, and even if nothing is predicted.
    for settings in &grid {
        let any = Deployment::of(&Model::default(), &Load::default());
        deployment(any, 1.0, settings)?;
    }
    let (read, unread) = args.read();
    let (runs, mut loads) = args.loads_of(read, unread)?;
    let fitted = match args.fit.as_slice() {
        [] => None,
        // All figures are learnt from them, so each must be readable.
        given => Some(args.loads_of(reader::load(given)?.runs, Vec::new())?.1),
    };
    let of_fit = fitted.as_deref().unwrap_or(&loads);
    let fit = Fit::of(of_fit)?;
    let mut results = Results {
        no_prediction: fit.no_prediction(of_fit),
        args: args.clone(),
        fit,
        are_several: loads.len() > 1,
        ..Results::default()
    };
    let notes = fitted.into_iter().flatten().flat_map(|load| load.notes);
    loads[0].notes.extend(notes);
    for (run, load) in runs.into_iter().zip(&loads) {
        results.predict(run, load, &grid)?;
    }
    let is_good = results.no_prediction.is_none();
    if let Some(path) = args.profile.as_ref().filter(|_| is_good) {
        write(path, &results.fit.profile(&loads[0]))?;
    }
    let shown = match args.json || args.format == "json" {
        true => format!("{:#}\n", results.to_json()),
        false => results.to_text(),
    };
    if let Some(path) = &args.html {
        write(path, &results.page(&sweeps))?;
    }
    Ok((shown, results.no_prediction.or(results.nothing_found)))
}

fn write(path: &Path, text: &str) -> Result<(), Error> {
    let written = disk::replace(path, text.as_bytes());
    written.map_err(|cause| Error::write(path, cause))
}

impl Results {
    /// Predicts the load of a run under every combination of settings.
    fn predict(&mut self, mut run: Run, load: &Load, grid: &[Vec<Entry>]) -> Result<(), Error> {
        run.summary["goodput_goals_ms"] = goals_ms(&self.args.goodput);
        self.add_measured(run, load, self.notes(load, grid));
        if self.no_prediction.is_some() {
            return Ok(());
        }
        let (before, mut nothing) = (self.predictions.len(), None);
        for settings in grid {
            let prediction = match self.args.find {
                None => Ok(self.replay(load, settings.clone())?),
                Some(what) => self.find(load, settings, what)?,
            };
            match prediction {
                Ok(prediction) => self.add(load, prediction),
                Err(reason) => {
                    let settings = grid::json(settings);
                    self.not_found
                        .push(json!({ "load": load.name, "settings": settings, "reason": reason }));
                    self.notes.push(reason.clone());
                    nothing.get_or_insert(reason);
                }
            }
        }
        if self.predictions.len() == before {
            self.nothing_found = self.nothing_found.take().or(nothing);
        }
        Ok(())
    }

    fn replay(&self, load: &Load, settings: Vec<Entry>) -> Result<Prediction, Error> {
        let servers = deployment(self.fit.original(load), load.rate(), &settings);
        let servers = servers.map_err(|error| Error::usage(format!("{}: {error}", load.name)))?;
        let load = servers.serve(load);
        let run = self.run_of(&settings, &load);
        Ok(Prediction {
            summary: Summary::of_run(&run),
            settings,
            servers,
            load,
            run,
        })
    }

    /// The label of a prediction: its settings, after the name of its load if there are several.
    fn label(&self, settings: &[Entry], load: &Load) -> String {
        match (self.are_several, settings) {
            (false, []) => "as measured".to_owned(),
            (false, _) => grid::label(settings),
            (true, []) => load.name.clone(),
            (true, _) => format!("{}: {}", load.name, grid::label(settings)),
        }
    }

    /// A warning about a prediction far from all that the rows of `--fit` show.
    fn extrapolation_note(&self, servers: &Deployment, predicted: &Load) -> Option<String> {
        let ((max, mean), (max_fitted, fitted)) = (predicted.running(), self.fit.running);
        let slots = servers.slots.iter().map(|slots| *slots as f64);
        let slots = slots.sum::<f64>() / servers.slots.len() as f64;
        let is_more = max as f64 > MAX_EXTRAPOLATION * max_fitted as f64;
        let more = is_more.then(|| {
            format!(
                "up to {max} requests run at once on a server, and at most {max_fitted} did in the rows of --fit, which do not show how \
                 fast it is then"
            )
        });
        let is_full = mean >= NEARLY_FULL * slots && fitted < MIN_FITTED * mean;
        let full = is_full.then(|| {
            format!(
                "{mean:.1} of the {slots:.0} slots of a server are in use on average, and {fitted:.1} were in the rows of --fit, which do \
                 not show what becomes of a queue then"
            )
        });
        let reasons: Vec<String> = more.into_iter().chain(full).collect();
        let advice = "so ± is too narrow; give --fit rows of busier servers";
        (!reasons.is_empty()).then(|| format!("{}: {advice}", reasons.join("; ")))
    }

    /// The fewest servers, or the highest rate, that keep the goals, by bisection; why there is none.
    fn find(
        &self,
        load: &Load,
        settings: &[Entry],
        what: Find,
    ) -> Result<Result<Prediction, String>, Error> {
        let last = match what {
            Find::Servers => MAX_SERVERS as i64,
            Find::Rate => ((MAX_RATE / min_rate(load)).ln() / PRECISION.ln_1p()) as i64,
        };
        let (mut missed, mut kept, mut found) = (0, last + 1, None);
        while kept - missed > 1 {
            let at = match what {
                // Between them by factors: many servers take long to replay.
                Find::Servers => ((missed + 1) as f64 * kept as f64).sqrt() as i64,
                Find::Rate => i64::midpoint(missed, kept),
            };
            let looked_for = (what.key().to_owned(), what.candidate(at));
            let prediction = self.replay(load, [settings, &[looked_for]].concat())?;
            let figures = Figures::of_run(&prediction.summary);
            match figures.goodput_share >= Some(self.args.goodput_share) {
                true => (kept, found) = (at, Some(prediction)),
                false => missed = at,
            }
        }
        let keeps_any = what == Find::Rate && kept == 1;
        let found = found.filter(|_| !keeps_any);
        Ok(found.ok_or_else(|| self.not_found_reason(load, settings, keeps_any)))
    }

    /// What the reader of a load's predictions must know.
    fn notes(&self, load: &Load, grid: &[Vec<Entry>]) -> Vec<String> {
        let needs_slots = !grid.iter().all(|of| value(of, SLOTS).is_some());
        let has_no_slots = needs_slots && load.slots.iter().all(Option::is_none);
        let slots = has_no_slots.then_some(
            "how many requests the servers run at once is not known, and no limit is assumed; give it by --max-running-requests, or \
             what it is to be by --set max_running_requests=N",
        );
        let has_cache = |of: &Vec<Entry>| value(of, NO_CACHE) != Some(&Value::from(true));
        let is_cached = load.shares_prefixes() && grid.iter().any(has_cache);
        let cache = is_cached.then_some(
            "cached tokens are taken as measured: rows do not tell which prompts share a beginning, so what more servers or another \
             policy would do to the prefix cache is not predicted",
        );
        let is_set = grid.iter().any(|of| value(of, SERVERS).is_some());
        let may_share = self.fit.may_share && (is_set || self.args.find == Some(Find::Servers));
        let share = may_share.then_some(
            "no run of --fit has a single server: if its servers shared a GPU, those of num_gpus are as slow as with a share of one",
        );
        let wait = load.unexplained_wait();
        let notes = [slots, wait.as_deref(), cache, share].into_iter().flatten();
        let named = notes.map(|note| format!("{}: {note}", load.name));
        load.notes.iter().cloned().chain(named).collect()
    }

    /// Why `--find` found nothing for a load: any rate keeps the goals, or nothing does.
    fn not_found_reason(&self, load: &Load, settings: &[Entry], keeps_any: bool) -> String {
        let goals: Vec<String> = self.args.goodput.iter().map(Goal::to_string).collect();
        let (goals, min_rate) = (goals.join(" "), round_to_four_digits(min_rate(load)));
        let looked_for = match self.args.find {
            Some(Find::Servers) => format!("no number of servers up to {MAX_SERVERS} keeps"),
            _ if keeps_any => "give a stricter goal: any rate, also all at once, keeps".to_owned(),
            _ => format!("no rate from {min_rate} requests a second on keeps"),
        };
        let share = one_decimal(self.args.goodput_share);
        let set = match settings {
            [] => String::new(),
            set => format!("{}: ", grid::label(set)),
        };
        let name = &load.name;
        format!("{name}: {set}{looked_for} {goals} in {share} of the requests")
    }
}

/// The lowest rate that `--find` tries, requests a second.
fn min_rate(load: &Load) -> f64 {
    (load.rate() / MAX_SERVERS as f64).max(MIN_RATE)
}
