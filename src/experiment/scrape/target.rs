//! Who is asked once a second.

use std::future::pending;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use http::Method;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::EVERY;
use super::families::{gauges, of_nvidia_smi};
use crate::experiment::launch::Access;
use crate::experiment::timed::TimedRows;
use crate::report::files::SeriesRow;
use crate::report::series::{GPU, METRICS};
use crate::traffic::client::Client;

/// Longest wait for an answer: less than until the next is asked for.
const PATIENCE: Duration = Duration::from_millis(900);
const QUERY: [&str; 3] = [
    "--query-gpu=index,utilization.gpu,memory.used",
    "--format=csv,noheader,nounits",
    "--loop=1",
];

/// What is asked.
#[derive(Clone, Debug)]
pub enum Place {
    /// A page in Prometheus's text format.
    Page(String),
    /// `nvidia-smi`, of the machine that the experiment runs on.
    NvidiaSmi(PathBuf),
}

/// Who is asked, and how that went.
#[derive(Debug)]
pub(super) struct Target {
    /// As notes name it, and rows of what is no GPU's.
    name: String,
    place: Place,
    /// What one that tells nothing wants.
    remedy: &'static str,
    asked: u64,
    failed: u64,
    /// Answers that told nothing.
    empty: u64,
    /// Why the last that failed did.
    last: String,
}

impl Target {
    pub(super) fn new(name: &str, place: Place, remedy: &'static str) -> Target {
        Target {
            name: name.to_owned(),
            place,
            remedy,
            asked: 0,
            failed: 0,
            empty: 0,
            last: String::new(),
        }
    }

    /// Asks every second, until it is dropped. One that does not answer leaves a gap.
    ///
    /// # Errors
    /// The file takes no more.
    pub(super) async fn ask(&mut self, access: &Access, rows: &TimedRows) -> csv::Result<()> {
        let url = match &self.place {
            Place::NvidiaSmi(program) => return self.read(&program.clone(), rows).await,
            Place::Page(url) => url.clone(),
        };
        let mut ticks = interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut client = None;
        loop {
            ticks.tick().await;
            let told = timeout(PATIENCE, self.told(&url, access, &mut client)).await;
            let late = |_| Err(format!("no answer within {} ms", PATIENCE.as_millis()));
            self.asked += 1;
            match told.unwrap_or_else(late) {
                Ok(told) => {
                    self.empty += u64::from(told.is_empty());
                    rows.write(&self.rows(told, rows.seconds(rows.clock.now())))?;
                }
                Err(why) => {
                    self.failed += 1;
                    self.last = why;
                }
            }
        }
    }

    /// Reads what `nvidia-smi` tells each second, until it ends: to start it takes seconds where many GPUs are. Killed from
    /// outside, this process leaves it without a reader, which ends it.
    async fn read(&mut self, program: &Path, rows: &TimedRows) -> csv::Result<()> {
        let mut command = Command::new(program);
        command.args(QUERY).stdin(Stdio::null()).kill_on_drop(true);
        let started = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        let ended = match started {
            Ok(mut child) => {
                let out = child.stdout.take();
                let mut lines = out.map(|out| BufReader::new(out).lines());
                while let Some(lines) = &mut lines
                    && let Ok(Some(line)) = lines.next_line().await
                {
                    self.asked += 1;
                    let told = of_nvidia_smi(&line);
                    self.empty += u64::from(told.is_empty());
                    rows.write(&self.rows(told, rows.seconds(rows.clock.now())))?;
                }
                child.wait().await.map(|status| status.to_string())
            }
            Err(error) => Err(error),
        };
        (self.asked, self.failed) = (self.asked + 1, 1);
        self.last = ended.unwrap_or_else(|error| error.to_string());
        pending().await
    }

    /// The GPU that it is of, if it is of one, metric and value.
    async fn told(
        &self,
        url: &str,
        access: &Access,
        client: &mut Option<Client>,
    ) -> Result<Vec<(String, &'static str, f64)>, String> {
        let client = match client {
            Some(client) => client,
            none => none.insert(access.client(url).await?),
        };
        match client.ask(Method::GET, "", bytes::Bytes::new()).await? {
            (200, page) => Ok(gauges(&String::from_utf8_lossy(&page))),
            (404, _) => Err(format!("404 Not Found: {}", self.remedy)),
            (status, _) => Err(format!("status {status}")),
        }
    }

    fn rows(&self, told: Vec<(String, &str, f64)>, time: f64) -> Vec<SeriesRow> {
        let row = |(gpu, metric, value): (String, &str, f64)| {
            let (source, server) = match gpu.is_empty() {
                true => (METRICS, self.name.clone()),
                false => (GPU, format!("gpu-{gpu}")),
            };
            SeriesRow {
                time,
                source: source.to_owned(),
                server,
                metric: metric.to_owned(),
                value,
            }
        };
        told.into_iter().map(row).collect()
    }

    /// What there is to say of it.
    pub(super) fn note(&self) -> Option<String> {
        let (asked, remedy) = (self.asked, self.remedy);
        let place = match &self.place {
            Place::Page(url) => url.clone(),
            Place::NvidiaSmi(program) => program.display().to_string(),
        };
        let said = match (self.failed, self.empty) {
            (0, 0) => return None,
            (0, empty) => {
                format!("{empty} of {asked} answers of {place} had no such value: {remedy}")
            }
            (failed, _) => format!(
                "{failed} of {asked} scrapes of {place} failed, which leaves gaps (the last: {})",
                self.last
            ),
        };
        Some(format!("{}: {said}", self.name))
    }
}
