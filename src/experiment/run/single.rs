//! One run: starts servers, router and proxy, sends the load, and stops everything again.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use serde_json::Value;

use crate::error::{Error, INVALID, SIGNALLED, TOO_MANY_FAILED};
use crate::experiment::faults;
use crate::experiment::launch::{Deployment, DeploymentSpec, Router, Server, find_router, in_path};
use crate::experiment::plan::settings::Settings;
use crate::experiment::plan::{Run, deploy, grid};
use crate::experiment::scrape::Scraper;
use crate::report::files::{FAULTS, PROXY_ROWS, ROWS, RUN, RunFile, RunState, SUMMARY};
use crate::report::load::Summary;
use crate::report::reader;
use crate::report::summary_of;
use crate::table::join;
use crate::traffic::{self, FinishedRun, LiveProgress};

use super::{ExperimentRunner, read_json, run_dir, write_json};

/// A run and what is known of its result.
#[derive(Clone, Debug)]
pub struct RunResult {
    /// Its folder.
    pub dir: PathBuf,
    /// Its `run.json`.
    pub file: RunFile,
}

/// In place of an address that is only known once its listener is there.
const NOT_KNOWN: &str = "http://127.0.0.1:30000";
/// The keys that name what a run needs.
const NEEDED: [&str; 4] = ["router", "router_program", "dataset_name", "dataset_path"];

impl RunResult {
    /// Makes the folder of a run of the experiment in `dir`.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn begin(dir: &Path, run: &Run) -> anyhow::Result<RunResult> {
        let dir = run_dir(dir, &run.dir);
        std::fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
        let file = RunFile {
            label: run.label.clone(),
            settings: grid::json(&run.varied),
            repeat: run.repeat,
            state: RunState::Running,
            ..RunFile::default()
        };
        let result = RunResult { dir, file };
        result.write()?;
        Ok(result)
    }

    /// The first line of why it failed. `run.json` has all of it.
    pub fn reason(&self) -> Option<&str> {
        self.file.error.as_deref()?.lines().next()
    }

    /// Its figures, which are its `summary.json` (docs/SUMMARY.md); null if there is none.
    pub fn metrics(&self) -> Value {
        read_json(&self.dir.join(SUMMARY)).unwrap_or_default()
    }

    /// Whether the generator did not keep its schedule, so that the figures say nothing about the servers.
    pub fn is_invalid(&self) -> bool {
        self.metrics()["verdict"]["grade"] == "INVALID"
    }

    fn write(&self) -> anyhow::Result<()> {
        write_json(&self.dir.join(RUN), &self.file)
    }
}

/// Copies into the run's rows what only its proxy, which must have ended, knows: moments of pairs of servers, which report them by traces,
/// and the hops that held requests until they were given up; its summary is made anew. Returns what could not be read.
fn add_front_reports(run: &RunResult) -> anyhow::Result<Option<String>> {
    let files = [ROWS, PROXY_ROWS, SUMMARY].map(|name| run.dir.join(name));
    if !files.iter().all(|file| file.is_file()) {
        return Ok(None);
    }
    let [rows, front, summary] = files;
    let began = reader::run_of(&run.dir)?.began();
    let problem = join::add_front_reports(&rows, &front, began)?;
    for run in &reader::load(std::slice::from_ref(&run.dir))?.runs {
        write_json(&summary, &summary_of(run, &Summary::of_run(run)))?;
    }
    Ok(problem.map(|problem| format!("{PROXY_ROWS}: {problem}")))
}

impl ExperimentRunner {
    /// Runs a run that was begun. A failure is put into its result.
    ///
    /// # Errors
    /// Its folder cannot be written.
    pub(super) async fn run(&self, settings: &Settings, run: &mut RunResult) -> anyhow::Result<()> {
        let executed = self.execute(settings, run).await;
        run.file.state = executed.unwrap_or_else(|error| self.fail(&error, run));
        let sha = &run.metrics()["config"]["workload_sha256"];
        run.file.workload_sha256 = sha.as_str().map(str::to_owned);
        run.write()
    }

    /// Puts an error into a run's result. One that comes after a stop is taken for its consequence.
    fn fail(&self, error: &anyhow::Error, run: &mut RunResult) -> RunState {
        run.file.error = Some(format!("{error:#}"));
        match self.stop.is_stopped() {
            true => RunState::Stopped,
            false => RunState::Failed,
        }
    }

    async fn execute(&self, settings: &Settings, run: &mut RunResult) -> anyhow::Result<RunState> {
        let spec = deploy::spec(settings, &run.dir, &self.program)?;
        let began = self.clock.now();
        let deployment = tokio::select! {
            started = Deployment::start(&spec) => started?,
            // A start that is dropped stops what it has started.
            () = self.stop.stopped() => return Ok(RunState::Stopped),
        };
        let file = &mut run.file;
        file.start_s = Some(self.clock.now().since(began));
        let servers = deployment.servers.iter().map(|server| server.file.clone());
        file.servers = servers.collect();
        file.processes = deployment.processes();
        file.router = spec.router_name();
        file.kept_cache = !deployment.kept_caches.is_empty();
        file.notes.extend_from_slice(&deployment.kept_caches);
        run.write()?;
        let loaded = self.load(settings, &spec, &deployment, run).await;
        // Now, as a stop may still come while the processes end.
        let state = loaded.unwrap_or_else(|error| self.fail(&error, run));
        tokio::select! {
            () = deployment.stop() => {}
            // At a second signal: dropping the deployment kills its processes.
            () = self.stop.aborted() => {}
        }
        if spec.prefill > 0 || run.dir.join(FAULTS).is_file() {
            let note = add_front_reports(run).unwrap_or_else(|error| {
                Some(format!("{error:#}: what only the proxy saw is not known"))
            });
            run.file.notes.extend(note);
        }
        Ok(state)
    }

    /// Sends the load, while metrics are scraped and faults are injected.
    async fn load(
        &self,
        settings: &Settings,
        spec: &DeploymentSpec,
        deployment: &Deployment,
        run: &mut RunResult,
    ) -> anyhow::Result<RunState> {
        let args = deploy::traffic(settings, spec, &deployment.target)?;
        let (live, stop) = (Arc::<LiveProgress>::default(), self.stop.child());
        let traffic =
            traffic::run_with_progress(&args, self.clock.clone(), live.clone(), stop.clone());
        tokio::pin!(traffic);
        let servers = match settings.keys.collect_per_node_metrics {
            true => &run.file.servers[..],
            false => &[],
        };
        let has_gpus = !servers.is_empty() && spec.has_gpus_here();
        let smi = has_gpus.then(|| in_path("nvidia-smi")).flatten();
        let mut scraper = Scraper::new(servers, spec.access.clone(), smi);
        let sent = {
            let tasks = self.side_tasks(settings, &deployment.servers, &live, run, &mut scraper);
            tokio::select! {
                sent = &mut traffic => Ok(sent),
                error = deployment.ended() => Err(error),
                Err(error) = tasks => Err(error),
            }
        };
        run.file.notes.extend(scraper.notes());
        match sent {
            Ok(finished) => self.conclude(settings, finished, run),
            Err(error) => {
                let state = self.fail(&error, run);
                stop.abort();
                // So that the rows and figures so far are written.
                let _ = traffic.await;
                Ok(state)
            }
        }
    }

    /// Scrapes metrics and injects faults, once the load has begun. Ends only with an error.
    async fn side_tasks(
        &self,
        settings: &Settings,
        servers: &[Server],
        live: &LiveProgress,
        run: &mut RunResult,
        scraper: &mut Scraper,
    ) -> anyhow::Result<()> {
        let began = live.began().await;
        run.file.began = Some(began.seconds());
        run.write()?;
        let plan = deploy::faults(settings);
        let log = run.dir.join(FAULTS);
        let faults = async {
            match &plan {
                Some(plan) => faults::run(plan, servers, began, &self.clock, &log).await,
                None => Ok(()),
            }
        };
        tokio::select! {
            scraped = scraper.run(&run.dir, began, &self.clock) => scraped,
            Err(error) = faults => Err(error),
        }
    }

    /// Puts the generator's result into the run's.
    fn conclude(
        &self,
        settings: &Settings,
        finished: Result<FinishedRun, Error>,
        run: &mut RunResult,
    ) -> anyhow::Result<RunState> {
        let finished = match finished {
            Err(error) if error.code > SIGNALLED => return Ok(RunState::Stopped),
            finished => finished?,
        };
        let faults = deploy::faults(settings);
        // Failed requests are expected with injected faults, and at the rates that a search finds too high.
        let may_fail =
            settings.load.max_failed.is_none() && (settings.keys.find_max_rate || faults.is_some());
        for warning in &finished.warnings {
            self.notify(&format!("  note: {warning}"));
        }
        let file = &mut run.file;
        match finished.failure {
            Some(failure) if failure.code > SIGNALLED => {
                // That it was stopped is among the warnings.
                file.error = finished.problem;
                if let Some(error) = &file.error {
                    self.notify(&format!("  failed: {error}"));
                }
                return Ok(RunState::Stopped);
            }
            // The report reads the verdict in the summary.
            Some(failure) if failure.code == INVALID => {}
            Some(failure) if failure.code == TOO_MANY_FAILED && may_fail => {}
            Some(failure) => {
                file.has_failed_too_often = failure.code == TOO_MANY_FAILED;
                file.error = Some(failure.message);
            }
            None => {}
        }
        let duration = file.began.map(|began| self.clock.now().seconds() - began);
        if let Some((last, duration)) = faults.map(|faults| faults.last_change()).zip(duration)
            && duration < last
        {
            file.notes.push(format!(
                "the load was over after {duration:.0} s: what failure_schedule has for {last} s was not done"
            ));
        }
        Ok(RunState::Done)
    }
}

/// Checks before any run that the routers' programs and the data sets are there; data sets are downloaded if need be.
///
/// # Errors
/// Says what is missing, and how to get it.
pub async fn preflight(runs: impl Iterator<Item = &Run>, program: &Path) -> anyhow::Result<()> {
    let mut seen = HashSet::new();
    for Run { settings, .. } in runs {
        if !seen.insert(NEEDED.map(|key| settings.text(key))) {
            continue;
        }
        let spec = deploy::spec(settings, Path::new(""), program)?;
        if spec.router == Router::SglangRouter {
            find_router(spec.router_program.as_deref())?;
        }
        let known = spec.router_url.as_deref().or(spec.running().next());
        let url = known.unwrap_or(NOT_KNOWN);
        let args = deploy::traffic(settings, &spec, url)?;
        traffic::plan(&args).await?;
    }
    Ok(())
}
