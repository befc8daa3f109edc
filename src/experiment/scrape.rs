//! What servers tell of themselves while a run goes on, once a second, as rows of `series.csv`.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::try_join_all;
use http::Method;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::launch::Access;
use super::timed::TimedRows;
use crate::clock::{Clock, Stamp};
use crate::report::files::{SERIES, SeriesRow, ServerFile};
use crate::report::series::METRICS;
use crate::traffic::client::Client;

mod gauges;

use gauges::gauges;

/// How often is asked.
const EVERY: Duration = Duration::from_secs(1);
/// Longest wait for an answer: less than until the next is asked for.
const PATIENCE: Duration = Duration::from_millis(900);
/// Of [`SERIES`].
const COLUMNS: [&str; 5] = ["time", "source", "server", "metric", "value"];

/// The servers that are asked of a run, and what came of it.
#[derive(Debug, Default)]
pub struct Scraper {
    targets: Vec<Target>,
    access: Access,
    /// Why the file takes no more.
    lost: Option<String>,
}

/// A server's page in Prometheus's text format, and how asking for it went.
#[derive(Debug)]
struct Target {
    server: String,
    url: String,
    asked: u64,
    failed: u64,
    /// Why the last that failed did.
    last: String,
}

impl Scraper {
    /// One that asks these servers.
    pub fn new(servers: &[ServerFile], access: Access) -> Scraper {
        let target = |server: &ServerFile| Target {
            server: server.name.clone(),
            url: format!("{}/metrics", server.url),
            asked: 0,
            failed: 0,
            last: String::new(),
        };
        Scraper {
            targets: servers.iter().map(target).collect(),
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
        // Made once: names and roots are not looked up each second.
        let mut client = None;
        loop {
            ticks.tick().await;
            let told = timeout(PATIENCE, told(&self.url, access, &mut client)).await;
            let late = |_| Err(format!("no answer within {} ms", PATIENCE.as_millis()));
            let time = rows.seconds(rows.clock.now());
            self.asked += 1;
            match told.unwrap_or_else(late) {
                Ok(told) => {
                    let row = |(metric, value): (&str, f64)| SeriesRow {
                        time,
                        source: METRICS.to_owned(),
                        server: self.server.clone(),
                        metric: metric.to_owned(),
                        value,
                    };
                    rows.write(&told.into_iter().map(row).collect::<Vec<_>>())?;
                }
                Err(why) => {
                    self.failed += 1;
                    self.last = why;
                }
            }
        }
    }

    /// What there is to say of it.
    fn note(&self) -> Option<String> {
        let (asked, failed) = (self.asked, self.failed);
        let (server, url, last) = (&self.server, &self.url, &self.last);
        (failed > 0).then(|| {
            format!(
                "{server}: {failed} of {asked} scrapes of {url} failed, which leaves gaps (the last: {last}); start the server \
                 with --enable-metrics"
            )
        })
    }
}

/// What a page tells.
async fn told(
    url: &str,
    access: &Access,
    client: &mut Option<Client>,
) -> Result<Vec<(&'static str, f64)>, String> {
    let client = match client {
        Some(client) => client,
        None => client.insert(access.client(url).await?),
    };
    match client.ask(Method::GET, "", Bytes::new()).await? {
        (200, page) => match gauges(&String::from_utf8_lossy(&page)) {
            told if told.is_empty() => Err("no such value".to_owned()),
            told => Ok(told),
        },
        (status, _) => Err(format!("status {status}")),
    }
}

#[cfg(test)]
mod tests;
