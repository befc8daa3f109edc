//! What servers and GPUs tell of themselves while a run goes on, once a second, as rows of `series.csv`.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::try_join_all;
use http::Method;
use tokio::process::Command;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::launch::Access;
use super::timed::TimedRows;
use crate::clock::{Clock, Stamp};
use crate::report::files::{SERIES, SeriesRow, ServerFile};
use crate::report::series::{GPU, METRICS};
use crate::traffic::client::Client;

mod gauges;

use gauges::{gauges, of_nvidia_smi};

/// How often is asked.
const EVERY: Duration = Duration::from_secs(1);
/// Longest wait for a page: less than until the next is asked for.
const PATIENCE: Duration = Duration::from_millis(900);
/// The same for `nvidia-smi`, which takes seconds where many GPUs are.
const PATIENCE_SMI: Duration = Duration::from_secs(10);
const QUERY: [&str; 2] = [
    "--query-gpu=index,utilization.gpu,memory.used",
    "--format=csv,noheader,nounits",
];
/// Of [`SERIES`].
const COLUMNS: [&str; 5] = ["time", "source", "server", "metric", "value"];

/// Who is asked of a run, and what came of it.
#[derive(Debug, Default)]
pub struct Scraper {
    targets: Vec<Target>,
    access: Access,
    /// Why the file takes no more.
    lost: Option<String>,
}

/// Who is asked, and how that went.
#[derive(Debug)]
struct Target {
    /// As notes name it, and rows of a server.
    name: String,
    /// The URL of a page in Prometheus's text format; or the program `nvidia-smi`.
    place: String,
    is_smi: bool,
    asked: u64,
    failed: u64,
    /// It was there to be asked, if only once.
    has_answered: bool,
    /// Why the last that failed did.
    last: String,
}

impl Scraper {
    /// One that asks servers and, by this `nvidia-smi`, GPUs.
    pub fn new(servers: &[ServerFile], access: Access, smi: Option<PathBuf>) -> Scraper {
        let target = |name: &str, place, is_smi| Target {
            name: name.to_owned(),
            place,
            is_smi,
            asked: 0,
            failed: 0,
            has_answered: false,
            last: String::new(),
        };
        let page = |server: &ServerFile| {
            let url = format!("{}/metrics", server.url);
            target(&server.name, url, false)
        };
        let gpus = smi.map(|program| target("GPUs", program.display().to_string(), true));
        Scraper {
            targets: servers.iter().map(page).chain(gpus).collect(),
            access,
            lost: None,
        }
    }

    /// Asks once a second, until it is dropped, and writes what is told to [`SERIES`] in `dir`, at seconds since `began` of when each
    /// answer was there. Where the file takes no more, that is said and the rest let go.
    pub async fn run(&mut self, dir: &Path, began: Stamp, clock: &Clock) {
        if let Err(error) = self.ask(dir, began, clock).await {
            self.lost = Some(format!("{SERIES} ends early: {error}"));
        }
        std::future::pending().await
    }

    async fn ask(&mut self, dir: &Path, began: Stamp, clock: &Clock) -> anyhow::Result<()> {
        if self.targets.is_empty() {
            return Ok(());
        }
        let rows = TimedRows::new(&dir.join(SERIES), &COLUMNS, began, clock)?;
        let targets = self.targets.iter_mut();
        try_join_all(targets.map(|target| target.ask(&self.access, &rows))).await?;
        Ok(())
    }

    /// Who could not be asked, how often, and why.
    pub fn notes(self) -> Vec<String> {
        let notes = self.targets.iter().filter_map(Target::note);
        let mut notes: Vec<String> = notes.chain(self.lost).collect();
        notes.sort();
        notes
    }
}

impl Target {
    /// Asks every second, until it is dropped. One that does not answer leaves a gap.
    async fn ask(&mut self, access: &Access, rows: &TimedRows) -> csv::Result<()> {
        let mut ticks = interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let (patience, source) = match self.is_smi {
            true => (PATIENCE_SMI, GPU),
            false => (PATIENCE, METRICS),
        };
        // Made once: names and roots are not looked up each second.
        let mut client = None;
        loop {
            ticks.tick().await;
            let told = timeout(patience, self.told(access, &mut client)).await;
            let late = |_| Err(format!("no answer within {} ms", patience.as_millis()));
            let time = rows.seconds(rows.clock.now());
            self.asked += 1;
            match told.unwrap_or_else(late) {
                Ok(told) if !told.is_empty() => {
                    let row = |(server, metric, value): (String, &str, f64)| SeriesRow {
                        time,
                        source: source.to_owned(),
                        server,
                        metric: metric.to_owned(),
                        value,
                    };
                    rows.write(&told.into_iter().map(row).collect::<Vec<_>>())?;
                }
                other => {
                    self.failed += 1;
                    self.last = other.err().unwrap_or_else(|| "no such value".to_owned());
                }
            }
        }
    }

    /// What there is to say of it.
    fn note(&self) -> Option<String> {
        let (asked, failed) = (self.asked, self.failed);
        let (name, place, last) = (&self.name, &self.place, &self.last);
        let remedy = match self.is_smi {
            true => "; it has to report utilization.gpu and memory.used",
            // One that was down, or has told its figures, says nothing of how it was started.
            false if self.has_answered && failed == asked => {
                "; start the server with --enable-metrics"
            }
            false => "",
        };
        (failed > 0).then(|| {
            format!(
                "{name}: {failed} of {asked} scrapes of {place} failed, which leaves gaps (the last: {last}){remedy}"
            )
        })
    }

    /// What is told: of which server or GPU, metric and value.
    async fn told(
        &mut self,
        access: &Access,
        client: &mut Option<Client>,
    ) -> Result<Vec<(String, &'static str, f64)>, String> {
        if self.is_smi {
            let mut smi = Command::new(&self.place);
            let smi = smi.args(QUERY).stdin(Stdio::null()).kill_on_drop(true);
            let told = smi.output().await.map_err(|error| error.to_string())?;
            return match told.status.success() {
                true => Ok(of_nvidia_smi(&String::from_utf8_lossy(&told.stdout))),
                false => Err(told.status.to_string()),
            };
        }
        let client = match client {
            Some(client) => client,
            None => client.insert(access.client(&self.place).await?),
        };
        let answer = client.ask(Method::GET, "", Bytes::new()).await?;
        self.has_answered = true;
        match answer {
            (200, page) => {
                let told = gauges(&String::from_utf8_lossy(&page)).into_iter();
                let told = told.map(|(metric, value)| (self.name.clone(), metric, value));
                Ok(told.collect())
            }
            (status, _) => Err(format!("status {status}")),
        }
    }
}
