//! One run: what it needs is started, it is loaded, all is ended again.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use serde_json::Value;

use crate::clock::Clock;
use crate::experiment::faults;
use crate::experiment::launch::{Deployment, DeploymentSpec, Router, Server, router};
use crate::experiment::plan::line::Settings;
use crate::experiment::plan::{Run, deploy, grid};
use crate::experiment::scrape::Scraper;
use crate::report::files::{FAULTS, PARTIAL, PROXY_ROWS, ROWS, RUN, RunFile, RunState, SUMMARY};
use crate::table::join;
use crate::traffic::{self, FinishedRun, Live, Stop, Unfit};

use super::{of_run, read_json, write_json};

/// What the runs of an experiment share.
#[derive(Debug)]
pub struct RunContext {
    /// The program `queuescope`.
    pub program: PathBuf,
    /// The time.
    pub clock: Clock,
    /// Ends all of it.
    pub stop: Stop,
    /// Who hears how it goes, a line at a time.
    pub tell: fn(&str),
}

/// How a run ended.
#[derive(Clone, Debug)]
pub struct RunEnd {
    /// Its folder.
    pub dir: PathBuf,
    /// Its `run.json`.
    pub file: RunFile,
    /// Warnings of its summary.
    pub warnings: Vec<String>,
}

/// The keys that say of which files a load is made.
const DATA: [&str; 2] = ["dataset_name", "dataset_path"];

impl RunEnd {
    /// Begins a run of the experiment in `dir`, whose own folder is not there yet.
    ///
    /// # Errors
    /// Its folder cannot be written.
    pub fn begin(dir: &Path, run: &Run) -> anyhow::Result<RunEnd> {
        let dir = of_run(dir, &run.dir);
        std::fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
        let file = RunFile {
            label: run.label.clone(),
            settings: grid::json(&run.varied),
            repeat: run.repeat,
            state: RunState::Running,
            ..RunFile::default()
        };
        let end = RunEnd::read(dir, file);
        end.write()?;
        Ok(end)
    }

    /// One of whose summary nothing is known.
    pub fn read(dir: PathBuf, file: RunFile) -> RunEnd {
        RunEnd {
            dir,
            file,
            warnings: Vec::new(),
        }
    }

    /// Why it failed, the first line: all of it was told when it failed, and is in its `run.json`.
    pub fn why(&self) -> Option<&str> {
        self.file.error.as_deref()?.lines().next()
    }

    /// Its figures: its `summary.json` (docs/SUMMARY.md); null where it came to none.
    pub fn metrics(&self) -> Value {
        read_json(&self.dir.join(SUMMARY)).unwrap_or_default()
    }

    /// One of them, if it is there.
    pub fn summary(&self, pointer: &str) -> Option<Value> {
        self.metrics().pointer(pointer).cloned()
    }

    /// Whether its figures say nothing of the servers.
    pub fn is_invalid(&self) -> bool {
        self.summary("/verdict/grade")
            .is_some_and(|grade| grade == "INVALID")
    }

    fn write(&self) -> anyhow::Result<()> {
        write_json(&self.dir.join(RUN), &self.file)
    }
}

/// Puts into a run's rows what its proxy, which has ended, knows of pairs of servers: those tell it by traces.
fn tell_pairs(end: &mut RunEnd) {
    let mut rows = [ROWS, PARTIAL].into_iter().map(|name| end.dir.join(name));
    let front = end.dir.join(PROXY_ROWS);
    let Some(rows) = rows.find(|rows| rows.is_file()) else {
        return;
    };
    let note = match join::tell_pairs(&rows, &front, end.file.began) {
        Ok(left_out) => left_out.map(|what| format!("{PROXY_ROWS}: {what}")),
        Err(error) => Some(format!("{error}: most waits of a pair are not known")),
    };
    end.file.notes.extend(note);
}

impl RunContext {
    /// Does a run that was begun. What goes wrong is in its end.
    ///
    /// # Errors
    /// Its folder cannot be written.
    pub async fn run(&self, settings: &Settings, end: &mut RunEnd) -> anyhow::Result<()> {
        match self.whole(settings, end).await {
            Ok(state) => end.file.state = state,
            Err(error) => {
                end.file.error = Some(format!("{error:#}"));
                end.file.state = match self.stop.is_stopped() {
                    true => RunState::Stopped,
                    false => RunState::Failed,
                };
            }
        }
        let sha = end.summary("/config/workload_sha256");
        end.file.workload_sha256 = sha.and_then(|sha| sha.as_str().map(str::to_owned));
        end.write()
    }

    async fn whole(&self, settings: &Settings, end: &mut RunEnd) -> anyhow::Result<RunState> {
        let spec = deploy::spec(settings, &end.dir, &self.program)?;
        let began = self.clock.now();
        let deployment = tokio::select! {
            started = Deployment::start(&spec) => started?,
            // Dropped, a start ends what it has started.
            () = self.stop.stopped() => return Ok(RunState::Stopped),
        };
        let file = &mut end.file;
        file.start_s = Some(self.clock.now().since(began));
        let servers = deployment.servers.iter().map(|server| server.file.clone());
        file.servers = servers.collect();
        file.processes = deployment.processes();
        file.router = spec.router_name();
        file.kept_cache = !deployment.kept_caches.is_empty();
        file.notes.extend_from_slice(&deployment.kept_caches);
        end.write()?;
        let ended = self.loaded(settings, &spec, &deployment, end).await;
        tokio::select! {
            () = deployment.stop() => {}
            // Asked a second time: dropped, it kills what was started.
            () = self.stop.aborted() => {}
        }
        if spec.prefill > 0 {
            tell_pairs(end);
        }
        ended
    }

    /// Sends the load to what runs.
    async fn loaded(
        &self,
        settings: &Settings,
        spec: &DeploymentSpec,
        deployment: &Deployment,
        end: &mut RunEnd,
    ) -> anyhow::Result<RunState> {
        let (url, answers) = (&deployment.target, spec.upstream_kind());
        let args = deploy::traffic(settings, url, answers, &end.dir)?;
        let (live, stop) = (Arc::<Live>::default(), self.stop.child());
        let traffic = traffic::run_watched(&args, self.clock.clone(), live.clone(), stop.clone());
        tokio::pin!(traffic);
        let asked = match settings.keys.collect_per_node_metrics {
            true => &end.file.servers[..],
            false => &[],
        };
        let is_asked = !asked.is_empty() && spec.has_gpus_here();
        let smi = is_asked.then(|| router::in_path("nvidia-smi")).flatten();
        let mut scraper = Scraper::new(asked, spec.access.clone(), smi);
        let sent = {
            let beside = self.beside(settings, &deployment.servers, &live, end, &mut scraper);
            tokio::select! {
                sent = &mut traffic => Ok(sent),
                error = deployment.ended() => Err(error),
                Err(error) = beside => Err(error),
            }
        };
        end.file.notes.extend(scraper.notes());
        match sent {
            Ok(finished) => self.finished(settings, finished, end),
            Err(error) => {
                stop.abort();
                // Its rows are kept, and its figures.
                let _ = traffic.await;
                Err(error)
            }
        }
    }

    /// What goes on beside the load, once it has begun. Ends only where it fails.
    async fn beside(
        &self,
        settings: &Settings,
        servers: &[Server],
        live: &Live,
        end: &mut RunEnd,
        scraper: &mut Scraper,
    ) -> anyhow::Result<()> {
        let began = live.began().await;
        end.file.began = Some(began.seconds());
        end.write()?;
        let plan = deploy::faults(settings);
        let log = end.dir.join(FAULTS);
        let failing = async {
            match &plan {
                Some(plan) => faults::run(plan, servers, began, &self.clock, &log).await,
                None => Ok(()),
            }
        };
        tokio::select! {
            () = scraper.run(&end.dir, began, &self.clock) => Ok(()),
            Err(error) = failing => Err(error),
        }
    }

    fn finished(
        &self,
        settings: &Settings,
        finished: Result<FinishedRun, traffic::Error>,
        end: &mut RunEnd,
    ) -> anyhow::Result<RunState> {
        let finished = match finished {
            Err(traffic::Error::Interrupted(_)) => return Ok(RunState::Stopped),
            finished => finished?,
        };
        let faults = deploy::faults(settings);
        // Of faults done on purpose, and at a rate that is beyond what a search looks for.
        let may_fail = settings.keys.find_max_rate || faults.is_some();
        let RunEnd { file, warnings, .. } = end;
        *warnings = finished.warnings;
        file.error = finished.failure;
        match finished.unfit {
            Some(Unfit::Stopped(_)) => return Ok(RunState::Stopped),
            // The report reads the verdict where it stands, in the summary.
            Some(Unfit::Invalid) | None => {}
            Some(Unfit::Failed { most: None, .. }) if may_fail => {}
            Some(unfit) => {
                file.has_failed_too_often = true;
                file.error.get_or_insert(unfit.to_string());
            }
        }
        let lasted = file.began.map(|began| self.clock.now().seconds() - began);
        if let Some((last, lasted)) = faults.map(|faults| faults.last()).zip(lasted)
            && lasted < last
        {
            file.notes.push(format!(
                "the load was over after {lasted:.0} s: what failure_schedule has for {last} s was not done"
            ));
        }
        Ok(RunState::Done)
    }
}

/// Fails early if what none of the runs would find is missing: the router's program, or the data set, which is brought if need
/// be.
///
/// # Errors
/// What is missing, and how to get it.
pub async fn preflight(runs: impl Iterator<Item = &Run>, program: &Path) -> anyhow::Result<()> {
    let mut seen = Vec::new();
    for Run { settings, .. } in runs {
        let spec = deploy::spec(settings, Path::new(""), program)?;
        if spec.router == Router::SglangRouter {
            router::find(spec.router_program.as_deref())?;
        }
        let data = DATA.map(|key| settings.text(key));
        if !seen.contains(&data) {
            traffic::provide(&settings.load).await?;
            seen.push(data);
        }
    }
    Ok(())
}
