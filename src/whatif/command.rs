//! `queuescope whatif`: what is read, learnt, predicted and shown.

use std::path::{Path, PathBuf};

mod page;
mod show;

use toml::Value;

use crate::disk;
use crate::experiment::plan::grid;
use crate::experiment::plan::read::Entry;
use crate::report::figures::figures;
use crate::report::load::Goal;
use crate::report::reader::{Run, inputs, load};
use crate::report::{outputs, words};
use crate::table;
use crate::units::{four_digits, share};

use super::Error;
use super::figures::{Compared, Figures, goal};
use super::fit::Fit;
use super::load::{Load, together};
use super::replay::{Deployment, Model};
use super::settings::{
    LEAST_RATE, MOST_RATE, MOST_SERVERS, RATE, SERVERS, SLOTS, deployment, sweeps,
};

/// What is to be predicted, of what, and from what.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Args {
    /// Folders of runs, or files of rows (also .gz): what is to be served, and when; each is predicted by itself, but records of
    /// several proxies of one time are one load
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
    /// Whether programs read what is shown.
    pub fn is_json(&self) -> bool {
        self.json || self.format == "json"
    }
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
    /// How far they may be off.
    errors: Compared,
    /// What is to be known of it.
    note: Option<String>,
    /// Requests that no server takes: longer than its KV cache.
    refused: usize,
    /// It in the table of runs.
    line: Vec<String>,
    /// Its rows, where a page is made of them.
    run: Option<Run>,
}

/// What is predicted of a load.
struct Predicted<'a> {
    load: &'a Load,
    /// What was measured of it, and that in the table of runs.
    measured: Figures,
    line: Vec<String>,
    predictions: Vec<Prediction>,
    /// Settings under which nothing was found that is looked for.
    not_found: Vec<Vec<Entry>>,
    /// What is to be known.
    notes: Vec<String>,
}

/// What all predictions are made of.
struct Made<'a> {
    args: &'a Args,
    fit: Fit,
    /// Whether the loads are several, which their names tell apart.
    are_several: bool,
    /// Why there are none.
    no_prediction: Option<String>,
    loads: Vec<Predicted<'a>>,
}

/// What would serve a load under some settings, and what becomes of its requests.
type Served = (Vec<Entry>, Deployment, Load, Figures);

/// Rates that are looked at differ by this share.
const PRECISION: f64 = 0.02;
/// Beyond so many times as many requests at once as rows tell of nothing is known.
const FAR: f64 = 2.5;
/// From this share of their places in use on servers are nearly full; the rows of `--fit` tell of that where they had this share of it.
const BUSY: f64 = 0.9;
const AS_BUSY: f64 = 0.7;

/// Predicts: what is shown, and why nothing is predicted or found, where that is so.
///
/// # Errors
/// What was given cannot be read, or is wrong.
pub fn run(args: &Args) -> Result<(String, Option<String>), Error> {
    Goal::each_once(&args.goodput).map_err(Error::Setting)?;
    let sweeps = sweeps(&args.set)?;
    let grid = grid::combinations(&sweeps, 1)
        .map_err(|error| Error::Setting(format!("--set: {error}")))?;
    let written = [args.html.as_slice(), args.profile.as_slice()].concat();
    let given = [args.loads.as_slice(), args.fit.as_slice()].concat();
    outputs::check(&written, &inputs(&given), args.force)?;
    let (runs, loads) = read(&args.loads)?;
    if loads.is_empty() {
        return Err(Error::Empty);
    }
    // What cannot be is said before it is learnt what was, and also where nothing is predicted.
    let looked_for = args.find.map(|of| (of.key().to_owned(), Value::from(1)));
    for load in &loads {
        for settings in &grid {
            let was = Deployment::of(&Model::default(), load);
            let all: Vec<Entry> = settings.iter().chain(&looked_for).cloned().collect();
            deployment(was, load, &all)?;
        }
    }
    let taught = match args.fit.as_slice() {
        [] => None,
        given => Some(read(given)?.1),
    };
    let fit = Fit::of(taught.as_deref().unwrap_or(&loads))?;
    let mut made = Made {
        no_prediction: fit.no_prediction(),
        args,
        fit,
        are_several: loads.len() > 1,
        loads: Vec::new(),
    };
    for (run, load) in runs.iter().zip(&loads) {
        made.loads.push(made.predicted(run, load, &grid)?);
    }
    if let (Some(first), Some(taught)) = (made.loads.first_mut(), &taught) {
        first
            .notes
            .extend(taught.iter().flat_map(|of| of.notes.clone()));
    }
    if let Some(path) = &args.profile {
        write(path, &made.fit.profile())?;
    }
    let shown = match args.is_json() {
        true => format!("{:#}\n", made.to_json()),
        false => made.to_text(),
    };
    let nothing = made.loads.iter().find(|of| of.predictions.is_empty());
    let nothing = nothing.map(|of| made.none_keeps(of.load));
    let nothing = made.no_prediction.take().or(nothing);
    if let Some(path) = &args.html {
        write(path, &made.page(runs, &sweeps))?;
    }
    Ok((shown, nothing))
}

fn write(path: &Path, text: &str) -> Result<(), Error> {
    let written = disk::replace(path, text.as_bytes());
    Ok(written.map_err(|cause| table::Error::write(path, cause))?)
}

/// The runs of what is given of which any request can be replayed, with these.
fn read(given: &[PathBuf]) -> Result<(Vec<Run>, Vec<Load>), Error> {
    if let Some([inner, outer]) = nested(given) {
        return Err(Error::Inside(inner, outer));
    }
    let mut all = Vec::new();
    for run in together(self::load(given)?.runs)? {
        let load = Load::of(&run)?;
        all.extend((!load.requests.is_empty()).then_some((run, load)));
    }
    Ok(all.into_iter().unzip())
}

/// What is given and lies in a folder that is given, too; and that.
fn nested(given: &[PathBuf]) -> Option<[String; 2]> {
    let real = |path: &PathBuf| Some((path.canonicalize().ok()?, path.display().to_string()));
    let all: Vec<(PathBuf, String)> = given.iter().filter_map(real).collect();
    let mut both = all
        .iter()
        .flat_map(|one| all.iter().map(move |other| (one, other)));
    let is_in = |(one, other): &(&(PathBuf, _), &(PathBuf, _))| {
        one.0 != other.0 && one.0.starts_with(&other.0)
    };
    let (inner, outer) = both.find(is_in)?;
    Some([inner.1.clone(), outer.1.clone()])
}

impl<'a> Made<'a> {
    /// All that is predicted of a load, the rows of which are those of a run.
    fn predicted(
        &self,
        run: &Run,
        load: &'a Load,
        grid: &[Vec<Entry>],
    ) -> Result<Predicted<'a>, Error> {
        let is_said = |settings: &Vec<Entry>| settings.iter().any(|(key, _)| key == SLOTS);
        let of_run = figures(run);
        let mut made = Predicted {
            notes: notes(load, !grid.iter().all(is_said)),
            line: words::line_of(format!("measured: {}", load.name), &of_run),
            measured: Figures::measured(&of_run, load, &self.args.goodput),
            predictions: Vec::new(),
            not_found: Vec::new(),
            load,
        };
        for settings in grid.iter().filter(|_| self.no_prediction.is_none()) {
            let served = match self.args.find {
                None => Some(self.under(load, settings.clone())?),
                Some(what) => self.find(load, settings, what)?,
            };
            match served {
                Some(served) => made.predictions.push(self.prediction(load, served)),
                None => made.not_found.push(settings.clone()),
            }
        }
        Ok(made)
    }

    fn under(&self, load: &Load, settings: Vec<Entry>) -> Result<Served, Error> {
        let servers = deployment(self.fit.as_it_was(load), load, &settings)?;
        let made = servers.serve(load);
        let figures = Figures::of(&made, &self.args.goodput);
        Ok((settings, servers, made, figures))
    }

    fn prediction(&self, load: &Load, (settings, servers, made, of): Served) -> Prediction {
        let errors = self.fit.may_be_off(&servers, load, &of);
        let note = self.far(&servers, &made);
        let ok = made.seen().count();
        let refused = made.requests.len() - ok;
        let name = format!("predicted: {}", self.label(&settings, load));
        let run = || self.run_of(&name, &settings, errors, note.as_ref(), &made);
        Prediction {
            run: self.args.html.is_some().then(run),
            line: of.line(name, &made, [ok, refused]),
            refused,
            figures: of,
            settings,
            errors,
            note,
        }
    }

    /// What tells a prediction from the others: its settings, behind the name of its load where there are several.
    fn label(&self, settings: &[Entry], load: &Load) -> String {
        match (self.are_several, settings) {
            (false, _) => grid::label(settings),
            (true, []) => load.name.clone(),
            (true, _) => format!("{}: {}", load.name, grid::label(settings)),
        }
    }

    /// What is said of a prediction that is far from all that the rows of `--fit` tell of.
    fn far(&self, servers: &Deployment, made: &Load) -> Option<String> {
        let ((most, mean), (seen, taught)) = (made.running(), self.fit.running);
        if most as f64 > FAR * seen as f64 {
            return Some(format!(
                "up to {most} requests run at once on a server, and at most {seen} did in the rows of --fit: these do not tell how fast it is \
                 then, and ± does not hold that; give --fit rows of more requests at once"
            ));
        }
        let slots = servers.slots.iter().map(|slots| *slots as f64).sum::<f64>()
            / servers.slots.len() as f64;
        let [busy, taught] = [mean / slots, taught / slots];
        (busy >= BUSY && taught < AS_BUSY * busy).then(|| {
            format!(
                "{:.0} % of the servers' slots are in use on average, and at most {:.0} % were in the rows of --fit: these do not tell what \
                 becomes of a queue then, and ± is too narrow; give --fit rows of busier servers",
                busy * 100.0,
                taught * 100.0
            )
        })
    }

    /// The fewest servers, or the highest rate, that keep the goals. Looked at first is what was measured, then twice as many servers
    /// or half the rate, or the other way round, until one keeps them and one does not; then what is between those.
    fn find(&self, load: &Load, settings: &[Entry], what: Find) -> Result<Option<Served>, Error> {
        // Of places in order each has more room than the one before: a server more, or a rate that is a share lower.
        let rate = load.rate();
        let place = |of: f64| ((rate / of).ln() / PRECISION.ln_1p()) as i64;
        let (first, mut at, last) = match what {
            Find::Servers => (1, load.servers.len() as i64, MOST_SERVERS as i64),
            Find::Rate => (place(MOST_RATE), 0, place(least_rate(load))),
        };
        let (mut missed, mut enough, mut found) = (first - 1, last + 1, None);
        at = at.clamp(first, last);
        while enough - missed > 1 {
            let (value, lower, higher) = match what {
                Find::Servers => (Value::from(at), at / 2, at * 2),
                Find::Rate => {
                    let (tried, far) =
                        (rate * (1.0 + PRECISION).powi(-at as i32), place(rate / 2.0));
                    (Value::from(four_digits(tried)), at - far, at + far)
                }
            };
            let looked_for = (what.key().to_owned(), value);
            let served = self.under(load, [settings, &[looked_for]].concat())?;
            match served.3.goodput_share >= Some(self.args.goodput_share) {
                true => (enough, found) = (at, Some(served)),
                false => missed = at,
            }
            at = match (missed < first, enough > last) {
                (true, _) => lower.max(first),
                (_, true) => higher.min(last),
                _ => i64::midpoint(missed, enough),
            };
        }
        match (what, enough == first) {
            (Find::Rate, true) => Err(Error::Setting(
                "--find rate: any rate keeps --goodput, also all requests at once; give a stricter one"
                    .to_owned(),
            )),
            _ => Ok(found),
        }
    }

    /// Why nothing was found.
    fn none_keeps(&self, load: &Load) -> String {
        let goals: Vec<String> = self.args.goodput.iter().map(Goal::to_string).collect();
        let (goals, least) = (goals.join(" "), four_digits(least_rate(load)));
        let looked_for = match self.args.find {
            Some(Find::Servers) => format!("number of servers up to {MOST_SERVERS}"),
            _ => format!("rate from {least} requests a second on"),
        };
        let share = self.args.goodput_share * 100.0;
        format!("no {looked_for} keeps {goals} in {share:.1} % of the requests")
    }
}

/// The lowest rate that is looked at, requests a second.
fn least_rate(load: &Load) -> f64 {
    (load.rate() / MOST_SERVERS as f64).max(LEAST_RATE)
}

/// What the reader must know of a load.
fn notes(load: &Load, needs_slots: bool) -> Vec<String> {
    let mut notes = Vec::new();
    if needs_slots && load.slots.iter().all(Option::is_none) {
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
    let named = notes.iter().map(|note| format!("{}: {note}", load.name));
    load.notes.iter().cloned().chain(named).collect()
}
