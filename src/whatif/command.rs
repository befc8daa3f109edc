//! `queuescope whatif`: what is read, learnt, predicted and shown.

use std::path::{Path, PathBuf};

mod page;
mod show;

use toml::Value;

use crate::disk;
use crate::experiment::plan::grid::{self, Sweep};
use crate::experiment::plan::read::Entry;
use crate::report::load::Goal;
use crate::report::outputs;
use crate::report::reader::{self, inputs};
use crate::table;

use super::Error;
use super::figures::{Compared, Figures, Latency, goals};
use super::fit::Fit;
use super::load::Load;
use super::replay::{Deployment, Model};
use super::settings::{FACTOR, MOST_RATE, MOST_SERVERS, RATE, SERVERS, deployment, sweeps};

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
    /// request_rate (requests a second), num_gpus (servers), routing_policy (round_robin, random,
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
    /// Replace the files of --html and --profile, whatever they are
    #[arg(long)]
    pub force: bool,
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

impl Find {
    /// The key of `--set` that is looked for.
    const fn key(self) -> &'static str {
        match self {
            Find::Servers => SERVERS,
            Find::Rate => RATE,
        }
    }
}

/// A prediction.
#[derive(Debug)]
struct Prediction {
    settings: Vec<Entry>,
    figures: Figures,
    /// Requests that no server takes: longer than its KV cache.
    refused: usize,
    /// What becomes of the requests, where a page is made of them.
    made: Option<Load>,
}

/// What all predictions are made of.
struct Made<'a> {
    args: &'a Args,
    goals: Vec<(Latency, f64)>,
    load: &'a Load,
    fit: Fit,
    /// How far predictions may be off.
    errors: Compared,
    /// Why there are none.
    no_prediction: Option<String>,
    predictions: Vec<Prediction>,
    /// What is to be known.
    notes: Vec<String>,
}

/// A rate is looked for until it is known to this share.
const PRECISION: f64 = 0.02;

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
    not_looked_for(&sweeps, args.find)?;
    let goals = goals(&args.goodput)?;
    let written = [args.html.as_slice(), args.profile.as_slice()].concat();
    let given = [args.loads.as_slice(), args.fit.as_slice()].concat();
    outputs::check(&written, &inputs(&given), args.force)?;
    let loads = read(&args.loads)?;
    let load = only(&loads)?;
    // What cannot be is said before it is learnt what was, and also where nothing is predicted.
    for settings in &grid {
        let was = Deployment::of(&Model::default(), &load.slots);
        deployment(was, load, settings)?;
    }
    let given = match args.fit.as_slice() {
        [] => None,
        given => Some(read(given)?),
    };
    let fitted = given.as_deref().unwrap_or(&loads);
    let mut made = Made {
        notes: notes(load, given.iter().flatten()),
        no_prediction: None,
        predictions: Vec::new(),
        args,
        goals,
        load,
        fit: Fit::of(fitted)?,
        errors: Compared::default(),
    };
    made.no_prediction = made.fit.no_prediction();
    if made.no_prediction.is_none() {
        made.errors = Fit::kept_back(fitted)?;
        for settings in grid {
            made.predict(settings)?;
        }
    }
    if let Some(path) = &args.profile {
        write(path, &made.fit.profile())?;
    }
    if let Some(path) = &args.html {
        write(path, &made.page(&sweeps)?)?;
    }
    let shown = match args.format {
        Format::Json => format!("{:#}\n", made.to_json()),
        Format::Text => made.to_text(),
    };
    Ok((shown, made.no_prediction))
}

/// Refuses a setting of what is looked for.
fn not_looked_for(sweeps: &[Sweep], find: Option<Find>) -> Result<(), Error> {
    let looked_for: &[&str] = match find {
        None => &[],
        Some(Find::Servers) => &[SERVERS],
        Some(Find::Rate) => &[RATE, FACTOR],
    };
    let twice = sweeps
        .iter()
        .find(|of| looked_for.contains(&of.key.as_str()));
    twice.map_or(Ok(()), |twice| {
        Err(Error::Setting(format!(
            "--set {}: is what --find looks for; leave it out",
            twice.key
        )))
    })
}

fn write(path: &Path, text: &str) -> Result<(), Error> {
    let written = disk::replace(path, text.as_bytes());
    Ok(written.map_err(|cause| table::Error::write(path, cause))?)
}

impl Made<'_> {
    /// Under these settings, or of what is looked for under them.
    fn predict(&mut self, settings: Vec<Entry>) -> Result<(), Error> {
        let Some(what) = self.args.find else {
            self.predictions.push(self.under(settings)?);
            return Ok(());
        };
        if let Some(found) = self.find(&settings, what)? {
            self.predictions.push(found);
            return Ok(());
        }
        let looked_for = match what {
            Find::Servers => format!("number of servers up to {MOST_SERVERS}"),
            Find::Rate => "rate".to_owned(),
        };
        let goals = self.args.goodput.iter();
        let goals: Vec<String> = goals
            .map(|goal| format!("{}:{}", goal.name, goal.most_ms))
            .collect();
        self.notes.push(format!(
            "{}: no {looked_for} keeps {} in {:.1} % of the requests",
            grid::label(&settings),
            goals.join(" "),
            self.args.goodput_share * 100.0
        ));
        Ok(())
    }

    fn under(&self, settings: Vec<Entry>) -> Result<Prediction, Error> {
        let was = self.fit.as_it_was(self.load);
        let made = deployment(was, self.load, &settings)?.serve(self.load);
        Ok(Prediction {
            figures: Figures::of(&made, &self.goals),
            refused: made.requests.len() - made.seen().count(),
            made: self.args.html.is_some().then_some(made),
            settings,
        })
    }

    /// The fewest servers, or the highest rate, that keep the goals. Looked for is the least room that does: servers, or by how
    /// much the load's own rate is divided.
    fn find(&self, settings: &[Entry], what: Find) -> Result<Option<Prediction>, Error> {
        let own = self.load.rate();
        let (mut missed, mut kept, mut room) = (0.0, None, 1.0);
        while room <= MOST_SERVERS as f64 {
            let value = match what {
                Find::Servers => Value::from(room as i64),
                Find::Rate => Value::from(four_digits(own / room)),
            };
            let looked_for = (what.key().to_owned(), value);
            let found = self.under([settings, &[looked_for]].concat())?;
            match found.figures.goodput_share >= Some(self.args.goodput_share) {
                true => kept = Some((room, found)),
                false => missed = room,
            }
            let Some((enough, _)) = &kept else {
                room *= 2.0;
                continue;
            };
            let is_close = match what {
                Find::Servers => enough - missed <= 1.0,
                Find::Rate => enough - missed <= PRECISION * missed,
            };
            if is_close {
                break;
            }
            room = f64::midpoint(missed, *enough);
            match what {
                Find::Servers => room = room.floor(),
                Find::Rate if own / room > MOST_RATE => {
                    return Err(Error::Setting(
                        "--find rate: any rate keeps --goodput, also all requests at once; give a stricter one"
                            .to_owned(),
                    ));
                }
                Find::Rate => {}
            }
        }
        Ok(kept.map(|(_, found)| found))
    }
}

/// A rate as a person would write it.
fn four_digits(rate: f64) -> f64 {
    let scale = 10_f64.powi(3 - rate.log10().floor() as i32);
    (rate * scale).round() / scale
}

fn read(given: &[PathBuf]) -> Result<Vec<Load>, Error> {
    let loads = reader::load(given)?.runs;
    let loads = loads.iter().map(Load::of);
    let has_any =
        |load: &Result<Load, Error>| !matches!(load, Ok(load) if load.requests.is_empty());
    loads.filter(has_any).collect()
}

/// Several loads are one after the other: only one can be replayed.
fn only(loads: &[Load]) -> Result<&Load, Error> {
    match loads {
        [] => Err(Error::Empty),
        [load] => Ok(load),
        several => {
            let names: Vec<&str> = several.iter().map(|of| of.name.as_str()).collect();
            Err(Error::Setting(format!(
                "LOAD: {} runs were given ({}): one is replayed at a time, as FOLDER/runs/NAME; the others can teach by --fit",
                several.len(),
                names.join(", ")
            )))
        }
    }
}

/// What the reader must know of the load, and of what taught.
fn notes<'l>(load: &'l Load, taught: impl Iterator<Item = &'l Load>) -> Vec<String> {
    let mut notes = Vec::new();
    for of in std::iter::once(load).chain(taught) {
        notes.extend(of.notes.iter().map(|note| format!("{}: {note}", of.name)));
        if of.left_out > 0 {
            notes.push(format!(
                "{}: {} rows are left out: they failed, or tell no arrival or no numbers of tokens",
                of.name, of.left_out
            ));
        }
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
