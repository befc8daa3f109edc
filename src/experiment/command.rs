//! `queuescope node` and `queuescope routing`: what both have.

use std::path::{Path, PathBuf};

use anyhow::Context;

use super::plan::flags::KeyFlags;
use super::plan::keys::Kind;
use super::plan::read::{self, Entry};
use super::plan::usage::Usage;
use super::plan::{Plan, words};
use super::run::folder::PLAN;
use super::run::one::RunEnd;
use super::run::{self, Finished, Order, To};
use crate::clock::Clock;
use crate::traffic::folder::Folder;
use crate::{disk, report, terminal, traffic};

/// What they can be told. Any key may be given several values (`--request-rate 5,10,20`): then each is tried.
#[derive(Clone, Debug, clap::Args)]
pub struct Args<const ROUTING: bool> {
    /// The plan, a file of TOML whose keys are the flags below with _ for - (docs/EXPERIMENTS.md). Without one the
    /// built-in example is run, changed by the flags
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// Folder for all that comes out, which must not hold an experiment already [default: a new one,
    /// results/node/DATE-TIME or results/routing/DATE-TIME; the link latest beside it leads to it]
    #[arg(long, value_name = "DIR", help_heading = EXPERIMENT)]
    output_dir: Option<PathBuf>,
    /// Replace the experiment that --output-dir holds
    #[arg(long, requires = "output_dir", help_heading = EXPERIMENT)]
    force: bool,
    /// Go on with the experiment in this folder: what is done stays, what was under way is done again
    #[arg(long, value_name = "DIR", conflicts_with_all = ["output_dir", "print_plan"], help_heading = EXPERIMENT)]
    resume: Option<PathBuf>,
    /// Show the plan, every key with its value, and do nothing
    #[arg(long, help_heading = EXPERIMENT)]
    print_plan: bool,
    /// A key of one of the tables sim, sglang, sglang_router, proxy and env, or any other: sim.decode_step_ms=8
    #[arg(long, value_name = "KEY=VALUE", value_parser = read::assignment, help_heading = EXPERIMENT)]
    set: Vec<Entry>,
    /// The keys.
    #[command(flatten)]
    keys: KeyFlags<ROUTING>,
}

const EXPERIMENT: &str = "Experiment";

/// What an experiment is to be, however it was asked for.
#[derive(Debug)]
pub struct Asked<'a> {
    /// What it is about.
    pub kind: Kind,
    /// The built-in example, as TOML.
    pub example: &'static str,
    /// The plan's file.
    pub file: Option<&'a Path>,
    /// What was given beside it.
    pub given: Vec<Entry>,
    /// The experiment to go on with.
    pub resume: Option<&'a Path>,
}

impl<const ROUTING: bool> Args<ROUTING> {
    /// Does what was asked for, and says so. `None`: the plan was only to be shown.
    ///
    /// # Errors
    /// A plan that cannot be, a folder that is not to be used, files that cannot be written.
    pub fn run(&self, kind: Kind, example: &'static str) -> anyhow::Result<Option<Finished>> {
        let given = self.keys.0.iter().chain(&self.set).cloned().collect();
        let asked = Asked {
            kind,
            example,
            file: self.file.as_deref(),
            given,
            resume: self.resume.as_deref(),
        };
        let plan = asked.plan()?;
        if self.print_plan {
            say(&plan.to_text());
            return Ok(None);
        }
        let results = format!("results/{}", kind.name());
        let to = match &self.resume {
            Some(dir) => To::Resumed(dir.clone()),
            None => To::New(Folder::new(
                self.output_dir.as_deref(),
                self.force,
                &results,
            )),
        };
        say(&format!(
            "{}\n{}\n",
            asked.headline(),
            words::announcement(&plan, &plan.runs()?)
        ));
        if let (Some(file), Some(dir)) = (&self.file, &self.output_dir)
            && disk::same(file, &[dir.join(PLAN)]).is_some()
        {
            let wrong = "is the plan that was given, and would be replaced; name another folder";
            return Err(Usage(format!("--output-dir {}: {PLAN} {wrong}", dir.display())).into());
        }
        let program = std::env::current_exe().context("the program's own file")?;
        let order = Order {
            plan,
            to,
            program,
            tell,
        };
        let runtime = traffic::runtime()?;
        let finished = runtime.block_on(run::run(order, Clock::system()))?;
        let told = finished.clone();
        let report = traffic::unless_signalled(move || reported(&told));
        let reported = runtime.block_on(report);
        say(reported.as_deref().unwrap_or_default());
        say(&text(&finished));
        reported.context("no report was made; `queuescope report` makes it")?;
        Ok(Some(finished))
    }
}

impl Asked<'_> {
    /// The plan.
    ///
    /// # Errors
    /// It cannot be; or it is another than that of the experiment to go on with.
    pub fn plan(&self) -> anyhow::Result<Plan> {
        if let Some(dir) = self.resume {
            return self.resumed(dir);
        }
        let (example, mut given) = match self.file {
            Some(path) => {
                let text = std::fs::read_to_string(path);
                let text = text.map_err(|error| Usage(format!("{}: {error}", path.display())))?;
                let of_file = |error: Usage| Usage(format!("{}: {error}", path.display()));
                (Vec::new(), read::file(&text).map_err(of_file)?)
            }
            None => (read::file(self.example)?, Vec::new()),
        };
        put(&mut given, &self.given);
        let named = |error: Usage| match self.file {
            Some(path) => Usage(format!("{}: {error}", path.display())),
            None => error,
        };
        Ok(Plan::new(self.kind, example, given).map_err(named)?)
    }

    /// The plan of the experiment in `dir`, if what is given now does not say otherwise.
    fn resumed(&self, dir: &Path) -> anyhow::Result<Plan> {
        let entries = read::file(&run::begun(dir)?)?;
        let plan = Plan::new(self.kind, Vec::new(), entries.clone())?;
        if self.file.is_none() && self.given.is_empty() {
            return Ok(plan);
        }
        let asked = match self.file {
            Some(_) => Asked {
                resume: None,
                given: self.given.clone(),
                ..*self
            }
            .plan()?,
            // Flags alone: over what the experiment was begun with.
            None => {
                let mut given = entries;
                put(&mut given, &self.given);
                Plan::new(self.kind, Vec::new(), given)?
            }
        };
        let differ = plan.differs(&asked);
        if differ.is_empty() {
            return Ok(plan);
        }
        let right = "is not the plan that the experiment was begun with; leave file and flags out, or begin anew";
        Err(Usage(format!(
            "--resume {}: {right}; it differs in {}",
            dir.display(),
            differ.join(", ")
        ))
        .into())
    }

    /// Where the plan is from.
    fn headline(&self) -> String {
        let name = self.kind.name();
        match (self.resume, self.file) {
            (Some(dir), _) => format!("queuescope {name}: goes on with {}", dir.display()),
            (None, Some(path)) => format!(
                "queuescope {name}: {}, and the manual's defaults for what it does not say",
                path.display()
            ),
            (None, None) if self.given.is_empty() => {
                format!(
                    "queuescope {name}: the built-in example (--print-plan shows it as a file to begin from)"
                )
            }
            (None, None) => format!("queuescope {name}: the built-in example with your flags"),
        }
    }
}

/// Puts entries over others, each in the place of the one with its key.
fn put(all: &mut Vec<Entry>, more: &[Entry]) {
    for (key, value) in more {
        match all.iter_mut().find(|(known, _)| known == key) {
            Some((_, old)) => *old = value.clone(),
            None => all.push((key.clone(), value.clone())),
        }
    }
}

fn say(text: &str) {
    terminal::say(text, terminal::width());
}

fn tell(line: &str) {
    terminal::complain(&format!("{line}\n"));
}

/// The report on all runs: also its files, in the experiment's folder.
pub(super) fn reported(finished: &Finished) -> String {
    let is_there = |end: &RunEnd| end.file.began.is_some();
    if !finished.runs.iter().any(is_there) {
        return String::new();
    }
    let args = report::command::Args {
        dirs: vec![finished.dir.clone()],
        ..report::command::Args::default()
    };
    match report::command::run(&args, terminal::width()) {
        Ok(reported) => reported.text,
        Err(error) => format!("note: no report could be made: {error}\n"),
    }
}

/// What came out, for the terminal.
fn text(finished: &Finished) -> String {
    let mut text = String::new();
    for end in finished.failed() {
        // All of it was told when it failed, and is in its run.json.
        let why = end.file.error.as_deref().and_then(|why| why.lines().next());
        let why = why.unwrap_or("no reason is known");
        text.push_str(&format!("failed: {}: {why}\n", end.file.label));
    }
    for note in &finished.notes {
        text.push_str(&format!("note: {note}\n"));
    }
    text.push_str(&format!("files: {}\n", finished.dir.display()));
    if finished.signal.is_some() {
        text.push_str(&format!(
            "stopped before its end; go on with: queuescope {} --resume {}\n",
            finished.file.kind,
            finished.dir.display()
        ));
    }
    text
}

/// Whether what was asked for is to blame, rather than how it went.
pub fn is_usage(error: &anyhow::Error) -> bool {
    error.is::<Usage>() || error.downcast_ref().is_some_and(traffic::Error::is_usage)
}
