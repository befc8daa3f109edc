//! Reads the metrics of servers and GPUs once a second during a run, and writes them to `series.csv`.

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
use crate::report::files::{GPU, METRICS, SERIES, SeriesRow, ServerFile};
use crate::traffic::client::Client;

mod gauges;

use gauges::{parse_gauges, parse_nvidia_smi};

const SCRAPE_INTERVAL: Duration = Duration::from_secs(1);
/// The longest wait for a page, shorter than the interval.
const PAGE_TIMEOUT: Duration = Duration::from_millis(900);
/// The longest wait for `nvidia-smi`, which takes seconds with many GPUs.
const SMI_TIMEOUT: Duration = Duration::from_secs(10);
/// The arguments of `nvidia-smi`.
const QUERY: &str = "--query-gpu=index,utilization.gpu,memory.used --format=csv,noheader,nounits";

/// Scrapes a run's servers and GPUs.
#[derive(Debug, Default)]
pub struct Scraper {
    targets: Vec<Target>,
    access: Access,
    /// Why the file could not be written.
    write_error: Option<String>,
}

/// A source of metrics, and how its scrapes went.
#[derive(Debug, Default)]
struct Target {
    /// The server's name, or `GPUs`.
    name: String,
    /// The URL of a page in Prometheus's text format; or the program `nvidia-smi`.
    place: String,
    /// [`METRICS`] or [`GPU`].
    source: &'static str,
    scrapes: u64,
    failed: u64,
    /// The error of the last failed scrape.
    last_error: String,
}

/// The hint where a server responds, but not with metrics.
const NO_METRICS: &str = "start the server with --enable-metrics";

/// A value: of which server or GPU, the metric's name, and its value.
type Reading = (String, &'static str, f64);

impl Scraper {
    /// Makes a scraper of servers and, if `smi` is the path of `nvidia-smi`, GPUs.
    pub fn new(servers: &[ServerFile], access: Access, smi: Option<PathBuf>) -> Scraper {
        let page = |server: &ServerFile| Target {
            name: server.name.clone(),
            place: format!("{}/metrics", server.url),
            source: METRICS,
            ..Target::default()
        };
        let gpus = smi.map(|program| Target {
            name: "GPUs".to_owned(),
            place: program.display().to_string(),
            source: GPU,
            ..Target::default()
        });
        Scraper {
            targets: servers.iter().map(page).chain(gpus).collect(),
            access,
            write_error: None,
        }
    }

    /// Scrapes once a second until it is dropped, and writes the values to [`SERIES`] in `dir`. The time of a row is when the response was
    /// there, in seconds since `began`. If the file cannot be written, scraping stops and [`Self::notes`] says so.
    pub async fn run(&mut self, dir: &Path, began: Stamp, clock: &Clock) {
        if let Err(error) = self.scrape_all(dir, began, clock).await {
            self.write_error = Some(format!("{SERIES} ends early: {error}"));
        }
        std::future::pending().await
    }

    async fn scrape_all(&mut self, dir: &Path, began: Stamp, clock: &Clock) -> anyhow::Result<()> {
        if self.targets.is_empty() {
            return Ok(());
        }
        let rows = TimedRows::new(&dir.join(SERIES), began, clock)?;
        let targets = self.targets.iter_mut();
        try_join_all(targets.map(|target| target.run(&self.access, &rows))).await?;
        Ok(())
    }

    /// Returns notes on failed scrapes: of which target, how many, and why.
    pub fn notes(self) -> Vec<String> {
        let notes = self.targets.iter().filter_map(Target::note);
        let mut notes: Vec<String> = notes.chain(self.write_error).collect();
        notes.sort();
        notes
    }
}

impl Target {
    /// Scrapes every second until it is dropped. A failed scrape leaves a gap.
    async fn run(&mut self, access: &Access, rows: &TimedRows<SeriesRow>) -> csv::Result<()> {
        let mut ticks = interval(SCRAPE_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let limit = match self.source {
            GPU => SMI_TIMEOUT,
            _ => PAGE_TIMEOUT,
        };
        // Kept, so that the host's name is not resolved each second.
        let mut client = None;
        loop {
            ticks.tick().await;
            let readings = timeout(limit, self.scrape(access, &mut client)).await;
            let late = |_| Err(format!("no answer within {} ms", limit.as_millis()));
            let time = rows.seconds(rows.clock.now());
            self.scrapes += 1;
            match readings.unwrap_or_else(late) {
                Ok(readings) => {
                    let row = |(server, metric, value): Reading| SeriesRow {
                        time,
                        source: self.source.to_owned(),
                        server,
                        metric: metric.to_owned(),
                        value,
                    };
                    rows.write(&readings.into_iter().map(row).collect::<Vec<_>>())?;
                }
                Err(error) => {
                    self.failed += 1;
                    self.last_error = error;
                }
            }
        }
    }

    /// Returns a note on failed scrapes, if any.
    fn note(&self) -> Option<String> {
        let (scrapes, failed) = (self.scrapes, self.failed);
        let (name, place, last) = (&self.name, &self.place, &self.last_error);
        (failed > 0).then(|| {
            format!(
                "{name}: {failed} of {scrapes} scrapes of {place} failed, which leaves gaps (the last: {last})"
            )
        })
    }

    /// Scrapes once. There is at least one value.
    ///
    /// # Errors
    /// Why there is none.
    async fn scrape(
        &mut self,
        access: &Access,
        client: &mut Option<Client>,
    ) -> Result<Vec<Reading>, String> {
        let readings: Vec<Reading> = if self.source == GPU {
            let mut smi = Command::new(&self.place);
            let smi = smi
                .args(QUERY.split(' '))
                .stdin(Stdio::null())
                .kill_on_drop(true);
            let output = smi.output().await.map_err(|error| error.to_string())?;
            if !output.status.success() {
                return Err(output.status.to_string());
            }
            parse_nvidia_smi(&String::from_utf8_lossy(&output.stdout))
        } else {
            let client = match client {
                Some(client) => client,
                None => client.insert(access.client(&self.place).await?),
            };
            let (status, page) = client.fetch(Method::GET, "", Bytes::new()).await?;
            match status {
                200 => {}
                404 => return Err(format!("status {status}; {NO_METRICS}")),
                _ => return Err(format!("status {status}")),
            }
            let gauges = parse_gauges(&String::from_utf8_lossy(&page)).into_iter();
            let reading = |(metric, value)| (self.name.clone(), metric, value);
            gauges.map(reading).collect()
        };
        match readings.is_empty() {
            true if self.source == GPU => Err(format!("it reports none of {QUERY}")),
            true => Err(format!("no such value; {NO_METRICS}")),
            false => Ok(readings),
        }
    }
}
