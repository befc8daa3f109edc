//! The commands `queuescope node` and `queuescope routing`; and `queuescope demo`, an experiment with simulated servers, so that a new user sees
//! a report without any setup.

use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use toml::Table;

use super::launch::EngineName;
use super::plan::deploy::ineffective_keys;
use super::plan::grid::{self, Entry};
use super::plan::keys::ExperimentKind;
use super::plan::settings::{KeyFlags, flag_text};
use super::plan::{LAST_LINE, Plan, Run, checked, masked};
use super::run::single::RunResult;
use super::run::{self, Finished, OutputDir, PLAN};
use crate::clock::Clock;
use crate::disk;
use crate::error::{Error, SIGNALLED};
use crate::report::files::{PROXY_ROWS, SUMMARY, plain};
use crate::traffic::folder::Folder;
use crate::units::{between, count, round_to_four_digits};
use crate::{report, terminal, traffic};

/// The arguments of `node` and `routing`. A key may be given several values (`--request-rate 5,10,20`): then each is tried.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The plan: TOML whose keys are the flags with _ for - (docs/EXPERIMENTS.md); without it a built-in example, changed by
    /// the flags
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// Folder for all that comes out [default: a new one, results/COMMAND/DATE-TIME; the link latest leads to it]
    ///
    /// It must not hold an experiment already.
    #[arg(short, long, value_name = "DIR")]
    output_dir: Option<PathBuf>,
    /// Go on with the experiment in this folder: what is done stays, what was under way is done again
    #[arg(long, value_name = "DIR", conflicts_with_all = ["output_dir", "print_plan", "file", "set"])]
    resume: Option<PathBuf>,
    /// Show the plan, every key with its value, and do nothing
    #[arg(long, conflicts_with = "json")]
    print_plan: bool,
    /// Print comparison.json to standard output; the text goes to standard error
    #[arg(long)]
    pub json: bool,
    /// A key of one of the tables sim, sglang, prefill, decode, sglang_router, proxy and env, or any other: sim.decode_step_ms=8
    #[arg(long, value_name = "KEY=VALUE", value_parser = grid::assignment)]
    set: Vec<Entry>,
    /// The keys.
    #[command(flatten)]
    keys: KeyFlags,
}

/// The arguments of `queuescope demo`.
#[derive(Clone, Debug, clap::Args)]
pub struct DemoArgs {
    /// Folder that gets the files, which must not hold a run already [default: a new one,
    /// results/demo/DATE-TIME; the link results/demo/latest leads to it]
    #[arg(short, long, value_name = "DIR")]
    output_dir: Option<PathBuf>,
    /// Requests to send
    #[arg(short, long, value_name = "N", default_value = "100", allow_negative_numbers = true,
        value_parser = between(1_usize, 1_000_000))]
    num_prompts: usize,
    /// Requests a second
    #[arg(short, long, value_name = "RATE", default_value = "50", allow_negative_numbers = true,
        value_parser = traffic::rate)]
    request_rate: f64,
    /// Print the run's summary.json to standard output; the text goes to standard error
    #[arg(long)]
    pub json: bool,
}

impl Args {
    /// Runs the experiment and prints its progress and report. Returns `None` if the plan was only printed.
    ///
    /// # Errors
    /// The plan is invalid, the folder must not be used, or files cannot be written.
    pub fn run(&self, kind: ExperimentKind) -> anyhow::Result<Option<Finished>> {
        let (plan, headline) = self.plan(kind)?;
        if self.print_plan {
            terminal::print(&plan.to_text());
            return Ok(None);
        }
        let announcement = announcement(&plan);
        let name = kind.name();
        terminal::print(&format!("queuescope {name}: {headline}\n{announcement}\n"));
        let resumed = self.resume.clone().map(OutputDir::Resumed);
        let to = resumed.unwrap_or_else(|| new_folder(kind, self.output_dir.as_deref()));
        run_and_print(plan, to, None).map(Some)
    }

    /// Reads the plan. Returns it with a headline that names its source.
    fn plan(&self, kind: ExperimentKind) -> anyhow::Result<(Plan, String)> {
        let flags = [&self.keys.0[..], &self.set].concat();
        checked(kind, flags.clone()).map_err(Error::usage)?;
        let (path, text, headline) = if let Some(dir) = &self.resume {
            let (path, shown) = (dir.join(PLAN), dir.display());
            let text = disk::open(&path).and_then(std::io::read_to_string);
            let problem =
                |error| format!("--resume {shown}: holds no experiment ({PLAN}: {error})");
            (path, text.map_err(problem), format!("goes on with {shown}"))
        } else if let Some(path) = &self.file {
            let shown = path.display();
            let text = disk::read_text(path);
            let text = text.map_err(|error| format!("{shown}: {error}; {PLAN_HINT}"));
            let headline = format!("{shown}; other keys: defaults (`--print-plan` lists them)");
            (path.clone(), text, headline)
        } else {
            let headline = "the built-in example (--print-plan shows it as a file to begin from)";
            let plan = Plan::new(kind, grid::file(kind.example())?, flags)?;
            return Ok((plan, headline.to_owned()));
        };
        let text = text.map_err(Error::usage)?;
        let plan = || -> anyhow::Result<Plan> {
            // What a cut file lost must not become a default.
            ensure!(
                self.resume.is_none() || text.contains(LAST_LINE),
                "was cut, as its end is missing (\"{LAST_LINE}\"): put it back, or begin a new experiment"
            );
            let mut given: Table = grid::file(&text)?.into_iter().collect();
            given.extend(flags);
            Ok(Plan::new(kind, Vec::new(), given)?)
        };
        let named = |error| Error::usage(format!("{}: {error}", path.display()));
        let plan = plan().map_err(named)?;
        Ok((plan, headline))
    }
}

const PLAN_HINT: &str = "give the path of a plan: a text file with a line KEY = VALUE for each key (docs/EXPERIMENTS.md)";
/// The keys that are printed whether or not they vary.
const SHOWN: &str =
    "engine servers num_gpus router dataset_name num_prompts duration request_rate preset repeats";

/// Describes what will be run: the number of runs, how long they take, and the varied keys.
fn announcement(plan: &Plan) -> String {
    let settings = &plan.runs[0].settings;
    let keys = &settings.keys;
    let mut lines = if plan.is_search() {
        let share = round_to_four_digits(keys.goodput_share * 100.0);
        let goodput = settings.goodput().join(" ");
        format!(
            "search: the highest request rate at which {share} % of the requests keep {goodput}\n"
        )
    } else {
        let runs = count(plan.runs.len(), "run");
        let time = estimated_time(&plan.runs).unwrap_or_default();
        format!("{runs}{time}\n")
    };
    let sweeps = plan.sweeps();
    for (key, values) in &sweeps {
        let values = values.iter().map(|value| flag_text(&masked(key, value)));
        let values: Vec<String> = values.collect();
        lines.push_str(&format!("  {key} = {}\n", values.join(", ")));
    }
    let is_external = keys.engine == EngineName::External;
    let is_shown = |key: &&str| match *key {
        "num_gpus" => !(is_external || keys.has_pairs()),
        "repeats" => keys.repeats > 1,
        _ => true,
    } && sweeps.iter().all(|(swept, _)| swept != key);
    let value = |key: &str| Some(format!("{key} = {}", settings.text(key)?));
    let pairs = SHOWN.split(' ').filter(is_shown).filter_map(value);
    let pairs: Vec<String> = pairs.collect();
    lines.push_str(&format!("  {}\n", pairs.join(", ")));
    let notes = ineffective_keys(plan, settings).into_iter();
    lines.extend(notes.map(|note| format!("note: {note}\n")));
    lines
}

/// Estimates how long all runs take, including starts; `None` if one has neither a rate nor a duration.
fn estimated_time(runs: &[Run]) -> Option<String> {
    let seconds = |Run { settings, .. }: &Run| {
        let load = &settings.load;
        let is_sglang = settings.keys.engine == EngineName::Sglang;
        let start = if is_sglang { 60.0 } else { 2.0 };
        let count = load.num_prompts.unwrap_or(1000) as f64;
        let by_rate = Some(count / load.request_rate);
        let by_rate = by_rate.filter(|_| load.request_rate.is_finite());
        let duration = load.duration.map(|duration| duration.as_secs_f64());
        Some(start + duration.or(by_rate)?)
    };
    Some(match runs.iter().map(seconds).sum::<Option<f64>>()? {
        seconds @ ..90.0 => format!(", about {seconds:.0} s"),
        seconds => format!(", about {:.0} min", seconds / 60.0),
    })
}

/// Returns the given folder, or a new one in `results/`.
pub(super) fn new_folder(kind: ExperimentKind, given: Option<&Path>) -> OutputDir {
    let results = format!("results/{}", kind.name());
    OutputDir::New(Folder::new(given, false, &results))
}

/// Runs the experiment and prints its progress and report, which is as for [`run_and_report`].
///
/// # Errors
/// As [`run::run`], or a signal came while the report was made.
fn run_and_print(plan: Plan, to: OutputDir, rows: Option<&str>) -> anyhow::Result<Finished> {
    let program = std::env::current_exe().context("the program's own file")?;
    let on_progress = |line: &str| terminal::print_error(&format!("{line}\n"));
    let (finished, report) = run_and_report(plan, to, program, on_progress, rows)?;
    terminal::print(report.as_deref().unwrap_or_default());
    terminal::print(&closing_lines(&finished));
    let not_made = |error: Error| match error.code > SIGNALLED {
        true => error,
        false => Error::failed(error),
    };
    let hint = "no report was made; `queuescope report` makes it";
    report.map_err(not_made).context(hint)?;
    Ok(finished)
}

/// Runs the experiment and makes the report, which a signal may interrupt, on all of it or on these `rows` of its only run. It is empty
/// if no run began, or has no such rows yet. `program` is queuescope's own.
///
/// # Errors
/// As [`run::run`].
pub(super) fn run_and_report(
    plan: Plan,
    to: OutputDir,
    program: PathBuf,
    on_progress: fn(&str),
    rows: Option<&str>,
) -> anyhow::Result<(Finished, Result<String, Error>)> {
    let runtime = traffic::runtime()?;
    let finished = runtime.block_on(run::run(plan, to, program, on_progress, Clock::system()))?;
    let (dir, runs) = (&finished.dir, &finished.runs);
    let rows = rows.zip(runs.first()).map(|(rows, run)| run.dir.join(rows));
    let began = |run: &RunResult| run.file.began.is_some();
    if !runs.iter().any(began) || rows.as_ref().is_some_and(|rows| !rows.exists()) {
        return Ok((finished, Ok(String::new())));
    }
    let args = report::command::Args {
        html: rows.is_some().then(|| dir.join(report::command::PAGE)),
        dirs: vec![rows.unwrap_or_else(|| dir.clone())],
        ..report::command::Args::default()
    };
    let report = move || report::command::run(&args, terminal::width());
    let report = runtime.block_on(traffic::unless_signalled(report));
    // A run that was stopped or failed may have no row, and says why itself.
    let is_told = finished.signal.is_some() || finished.failed().next().is_some();
    let text = report.and_then(|made| match made {
        Err(error) if is_told => Ok(format!("note: no report could be made: {error}\n")),
        made => made,
    });
    Ok((finished, text))
}

/// Returns the last lines on the terminal: failed runs, notes, and where the files are.
fn closing_lines(finished: &Finished) -> String {
    let failed = |run: &RunResult| {
        let reason = run.reason().unwrap_or("no reason is known");
        format!("failed: {}: {reason}\n", run.file.label)
    };
    let (kind, dir) = (&finished.file.kind, finished.dir.display());
    // That of a single run was the last line of its progress.
    let failures = finished.failed().filter(|_| finished.runs.len() > 1);
    let mut text: String = failures.map(failed).collect();
    text.extend(finished.notes.iter().map(|note| format!("note: {note}\n")));
    text += &format!("files: {dir}\n");
    if finished.signal.is_some() {
        text += &format!("stopped before its end; go on with: queuescope {kind} --resume {dir}\n");
    }
    text
}

/// The plan of the demo. Few requests run at once in each server, so that a queue forms. The front, which is their router, sends on more
/// than they run and fewer than arrive, so that both have a queue.
const DEMO: &str = "
    router = 'builtin'
    routing_policy = 'round_robin'
    num_gpus = 2
    base_port = 0
    hops = true
    max_running_requests = 4
    proxy.max_concurrent_requests = 20
    sim.tokenize_ms = 1
    backend = 'sglang-oai-chat'
    random_input_len = 320
    random_output_len = 40
    random_range_ratio = 0.6
";

/// Runs the demo and prints its report and what ran.
///
/// # Errors
/// Files cannot be written, or a signal came while the report was made.
pub fn run_demo(args: &DemoArgs) -> anyhow::Result<Finished> {
    let (count, rate) = (args.num_prompts, args.request_rate);
    let plan = format!("{DEMO}num_prompts = {count}\nrequest_rate = {rate:?}");
    let plan = Plan::new(ExperimentKind::Routing, [], grid::file(&plan)?)?;
    let folder = Folder::new(args.output_dir.as_deref(), false, "results/demo");
    // The proxy's rows, as with its one clock all is known of the first requests, too: nothing that a new user must ask about.
    let finished = run_and_print(plan, OutputDir::New(folder), Some(PROXY_ROWS))?;
    for run in &finished.runs {
        terminal::print_json_file(&run.dir.join(SUMMARY));
        let verdict = &run.metrics()["verdict"];
        for reason in verdict["reasons"].as_array().into_iter().flatten() {
            terminal::print(&format!(
                "{}: {}\n",
                plain(&verdict["grade"]),
                plain(reason)
            ));
        }
        if let [first, second] = &run.file.servers[..] {
            terminal::print(&format!(
                "\nWhat ran:\n\n\
                 traffic -> front -> worker hop -> simulated SGLang {}\n                 \
                 -> worker hop -> simulated SGLang {}\n\
                 (All on 127.0.0.1. The front is the router: it sends 20 requests on at once,\n\
                 the others wait in it. A server runs 4 at once, the others wait in its\n\
                 queue. Chat is streamed; servers tell the proxy of it by request logs.)\n",
                first.host, second.host
            ));
        }
    }
    Ok(finished)
}

#[cfg(test)]
mod tests;
