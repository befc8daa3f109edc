//! One run: what it needs is started, it is loaded, all is ended again.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use serde_json::Value;

use crate::clock::Clock;
use crate::experiment::faults;
use crate::experiment::launch::{Deployment, Failure, Lasts, Router, Servers, Wanted, router};
use crate::experiment::plan::keys::Kind;
use crate::experiment::plan::settings::Settings;
use crate::experiment::plan::{Run, deploy, generator, grid, words};
use crate::experiment::scrape::{self, Gpu, Scraper};
use crate::report::files::{FAULTS, RUN, RunFile, RunState, SERIES, ServerFile};
use crate::report::reader;
use crate::traffic::{self, FinishedRun, Live, Stop, Unfit};

use super::folder;

/// What the runs of an experiment share.
#[derive(Debug)]
pub struct Bench {
    /// What it is about.
    pub kind: Kind,
    /// The experiment's folder.
    pub dir: PathBuf,
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
    /// Of a run whose processes could not be started, whether others would fail as well.
    pub not_started: Option<Lasts>,
    /// Warnings of its summary.
    pub warnings: Vec<String>,
}

/// A run under way.
struct Under<'a> {
    bench: &'a Bench,
    settings: &'a Settings,
    wanted: Wanted,
    scraper: Option<Scraper>,
    end: RunEnd,
}

const SUMMARY: &str = "summary.json";
const ROWS: &str = "requests.csv";
/// The keys that say of which files a load is made.
const DATA: [&str; 3] = ["dataset_name", "dataset_path", "workload"];

impl RunEnd {
    /// What an earlier run of this folder left.
    pub fn read(dir: PathBuf, file: RunFile) -> RunEnd {
        RunEnd {
            dir,
            file,
            not_started: None,
            warnings: Vec::new(),
        }
    }

    /// A member of its `summary.json`; `None` where there is none.
    pub fn summary(&self, pointer: &str) -> Option<Value> {
        let summary: Value = folder::read_json(&self.dir.join(SUMMARY)).ok()?;
        summary.pointer(pointer).cloned()
    }

    /// Whether all that it needs was ready.
    pub fn has_started(&self) -> bool {
        !self.file.servers.is_empty()
    }

    /// Whether its figures say nothing of the servers.
    pub fn is_invalid(&self) -> bool {
        self.summary("/verdict/grade")
            .is_some_and(|grade| grade == "INVALID")
    }
}

impl Bench {
    /// Does a run, whose folder is not there yet. What goes wrong is in its end.
    ///
    /// # Errors
    /// Its folder cannot be written.
    pub async fn run(&self, run: &Run) -> anyhow::Result<RunEnd> {
        let dir = folder::of_run(&self.dir, &run.dir);
        std::fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
        let file = RunFile {
            label: run.label.clone(),
            settings: grid::json(&run.varied),
            repeat: run.repeat,
            state: RunState::Running,
            ..RunFile::default()
        };
        let mut end = RunEnd::read(dir, file);
        end.write()?;
        let wanted = wanted(self.kind, &run.settings, &end.dir, &self.program);
        let ended = match wanted {
            Err(error) => Err(error),
            Ok(wanted) => {
                let mut under = Under {
                    bench: self,
                    settings: &run.settings,
                    wanted,
                    scraper: None,
                    end,
                };
                let ended = under.whole().await;
                end = under.end;
                ended
            }
        };
        match ended {
            Ok(state) => end.file.state = state,
            Err(error) if self.stop.is_stopped() => {
                end.file.state = RunState::Stopped;
                end.file.error = Some(format!("{error:#}"));
            }
            Err(error) => {
                let failure = error.downcast_ref::<Failure>();
                end.not_started = failure.filter(|_| !end.has_started()).map(Failure::lasts);
                end.file.state = RunState::Failed;
                end.file.error = Some(format!("{error:#}"));
            }
        }
        if end.dir.join(ROWS).is_file() {
            let notes = counted(end.dir.clone(), end.file.servers.clone()).await;
            end.file.notes.extend(notes);
        }
        let sha = end.summary("/config/workload_sha256");
        end.file.workload_sha256 = sha.and_then(|sha| sha.as_str().map(str::to_owned));
        end.write()?;
        Ok(end)
    }
}

impl RunEnd {
    fn write(&self) -> anyhow::Result<()> {
        folder::write_json(&self.dir.join(RUN), &self.file)
    }
}

/// Looks, before the first run, for what none of them would find: the router's program, and the data set, which is brought
/// if need be.
///
/// # Errors
/// What is missing, and how to get it.
pub async fn provide(kind: Kind, runs: &[&Settings], program: &Path) -> anyhow::Result<()> {
    let mut seen = Vec::new();
    for settings in runs {
        wanted(kind, settings, Path::new(""), program)?;
        let data = DATA.map(|key| settings.text(key));
        if !seen.contains(&data) {
            let args = generator::parse(&deploy::traffic_flags(settings))?;
            traffic::provide(&args).await?;
            seen.push(data);
        }
    }
    Ok(())
}

fn wanted(kind: Kind, settings: &Settings, dir: &Path, own: &Path) -> anyhow::Result<Wanted> {
    let mut wanted = deploy::wanted(kind, settings, dir, own)?;
    if let Router::SglangRouter { program, .. } = &mut wanted.router {
        let given = (!program.as_os_str().is_empty()).then_some(program.as_path());
        *program = router::find(given)?;
    }
    Ok(wanted)
}

impl Under<'_> {
    async fn whole(&mut self) -> anyhow::Result<RunState> {
        let began = self.bench.clock.now();
        let mut deployment = tokio::select! {
            started = Deployment::start(&self.wanted) => started?,
            // Dropped, a start ends what it has started.
            () = self.bench.stop.stopped() => return Ok(RunState::Stopped),
        };
        let start_s = self.bench.clock.now().since(began);
        self.end.file.start_s = Some(start_s);
        if let Some(note) = words::back_too_late(self.settings, start_s) {
            (self.bench.tell)(&format!("  note: {note}"));
        }
        self.end.file.servers = deployment.servers().to_vec();
        self.end.file.processes = deployment.processes();
        self.end.file.router = deployment.router_name();
        self.end.file.kept_cache = !deployment.kept_caches().is_empty();
        let kept = deployment.kept_caches().iter().cloned();
        self.end.file.notes.extend(kept);
        self.end.write()?;
        let ended = self.loaded(&mut deployment).await;
        self.scraped().await;
        tokio::select! {
            () = deployment.stop() => {}
            // Asked a second time: dropped, it kills what was started.
            () = self.bench.stop.aborted() => {}
        }
        ended
    }

    /// Sends the load to what runs.
    async fn loaded(&mut self, deployment: &mut Deployment) -> anyhow::Result<RunState> {
        let args = deploy::traffic(
            self.settings,
            deployment.target(),
            deployment.upstream_kind(),
            &self.end.dir,
        )?;
        let (live, stop) = (Arc::<Live>::default(), Stop::new());
        let traffic =
            traffic::run_watched(&args, self.bench.clock.clone(), live.clone(), stop.clone());
        tokio::pin!(traffic);
        let servers = deployment.handle();
        let stopping = passed_on(self.bench.stop.clone(), &stop);
        let metrics = deployment.metrics_urls();
        let error = {
            let beside = self.beside(&live, &servers, metrics);
            tokio::select! {
                finished = &mut traffic => return self.finished(finished),
                error = deployment.ended() => error,
                error = beside => error,
                never = stopping => never,
            }
        };
        stop.abort();
        // Its rows are kept, and its figures.
        let _ = traffic.await;
        Err(error)
    }

    /// What goes on beside the load, once it has begun. Ends only where it fails.
    async fn beside(
        &mut self,
        live: &Live,
        servers: &Servers,
        metrics: Vec<(String, String)>,
    ) -> anyhow::Error {
        let began = live.began().await;
        self.end.file.began = Some(began.seconds());
        let failed = async {
            self.end.write()?;
            if self.settings.is("collect_per_node_metrics") {
                let gpu = self.gpu();
                let clock = &self.bench.clock;
                self.scraper = Some(Scraper::start(metrics, gpu, &self.end.dir, began, clock)?);
            }
            if let Some(plan) = deploy::faults(self.settings)? {
                let file = self.end.dir.join(FAULTS);
                faults::run(&plan, servers, began, &self.bench.clock, &file).await?;
            }
            Ok(())
        };
        match failed.await {
            Ok(()) => std::future::pending().await,
            Err(error) => error,
        }
    }

    /// Whether most of its requests may fail where nobody has said how many: of faults done on purpose, and at a rate that is
    /// beyond what a search looks for.
    fn may_fail(&self) -> anyhow::Result<bool> {
        Ok(self.settings.is("find_max_rate") || deploy::faults(self.settings)?.is_some())
    }

    /// What was planned and not done, because the load was over before.
    fn faults_to_come(&self) -> Option<String> {
        let last = deploy::faults(self.settings).ok()??.last();
        let lasted = self.bench.clock.now().seconds() - self.end.file.began?;
        (lasted < last).then(|| {
            format!("the load was over after {lasted:.0} s: what failure_schedule has for {last} s was not done")
        })
    }

    /// Who tells of GPUs, where there are any.
    fn gpu(&self) -> Option<Gpu> {
        match self.settings.text("dcgm_url") {
            Some(url) => Some(Gpu::Dcgm(url)),
            None if self.wanted.engine.has_gpus_here() => Gpu::here(),
            None => None,
        }
    }

    /// What is told over time is whole.
    async fn scraped(&mut self) {
        if let Some(scraper) = self.scraper.take() {
            self.end.file.notes.extend(scraper.stop().await.notes);
        }
    }

    fn finished(
        &mut self,
        finished: Result<FinishedRun, traffic::Error>,
    ) -> anyhow::Result<RunState> {
        let finished = match finished {
            Err(traffic::Error::Interrupted(_)) => return Ok(RunState::Stopped),
            finished => finished?,
        };
        self.end.warnings = finished.warnings;
        self.end.file.error = finished.failure;
        match finished.unfit {
            Some(Unfit::Stopped(_)) => return Ok(RunState::Stopped),
            // The report reads the verdict where it stands, in the summary.
            Some(Unfit::Invalid) | None => {}
            Some(Unfit::Failed { most: None, .. }) if self.may_fail()? => {}
            Some(unfit) => {
                self.end.file.has_failed_too_often = true;
                self.end.file.error.get_or_insert(unfit.to_string());
            }
        }
        self.end.file.notes.extend(self.faults_to_come());
        Ok(RunState::Done)
    }
}

/// Adds what is counted from a run's rows to what was told over time; what there is to say of it.
async fn counted(dir: PathBuf, servers: Vec<ServerFile>) -> Vec<String> {
    let counted = traffic::unless_signalled(move || {
        let loaded = reader::load(std::slice::from_ref(&dir))?;
        let mut notes = Vec::new();
        for run in loaded.runs {
            notes.extend(scrape::add_records(&dir, &run.table, &servers)?);
        }
        anyhow::Ok(notes)
    });
    match counted.await.map_err(anyhow::Error::from).flatten() {
        Ok(notes) => notes,
        Err(error) => vec![format!(
            "what was counted from the rows is not in {SERIES}: {error:#}"
        )],
    }
}

/// Hands on that all is to end.
async fn passed_on(from: Stop, to: &Stop) -> anyhow::Error {
    from.stopped().await;
    to.stop();
    from.aborted().await;
    to.abort();
    std::future::pending().await
}
