//! Who is asked once a second.

use std::future::pending;
use std::process::Stdio;
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::EVERY;
use super::families::{Told, gauges, of_nvidia_smi};
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

/// Who is asked, and how that went.
#[derive(Debug)]
pub(super) struct Target {
    /// As notes name it, and rows of a server.
    name: String,
    /// The URL of a page in Prometheus's text format; or the program `nvidia-smi`, of the machine that the experiment runs on.
    place: String,
    is_smi: bool,
    asked: u64,
    failed: u64,
    /// Why the last that failed did.
    last: String,
}

impl Target {
    pub(super) fn new(name: &str, place: String, is_smi: bool) -> Target {
        Target {
            name: name.to_owned(),
            place,
            is_smi,
            asked: 0,
            failed: 0,
            last: String::new(),
        }
    }

    /// Asks every second, until it is dropped. One that does not answer leaves a gap.
    ///
    /// # Errors
    /// The file takes no more.
    pub(super) async fn ask(&mut self, access: &Access, rows: &TimedRows) -> csv::Result<()> {
        if self.is_smi {
            return self.read(rows).await;
        }
        let mut ticks = interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut client = None;
        loop {
            ticks.tick().await;
            let told = timeout(PATIENCE, told(&self.place, access, &mut client)).await;
            let late = |_| Err(format!("no answer within {} ms", PATIENCE.as_millis()));
            self.take(told.unwrap_or_else(late), rows)?;
        }
    }

    /// Writes what was told, or keeps why nothing was.
    fn take(&mut self, told: Result<Vec<Told>, String>, rows: &TimedRows) -> csv::Result<()> {
        self.asked += 1;
        self.last = match told {
            Ok(told) if told.is_empty() => "no such value".to_owned(),
            Ok(told) => return rows.write(&self.rows(told, rows.seconds(rows.clock.now()))),
            Err(why) => why,
        };
        self.failed += 1;
        Ok(())
    }

    /// Reads what `nvidia-smi` tells each second, until it ends: to start it takes seconds where many GPUs are. Killed from
    /// outside, this process leaves it without a reader, which ends it.
    async fn read(&mut self, rows: &TimedRows) -> csv::Result<()> {
        let mut command = Command::new(&self.place);
        command.args(QUERY).stdin(Stdio::null()).kill_on_drop(true);
        let started = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        let ended = match started {
            Ok(mut child) => {
                let out = child.stdout.take();
                let mut lines = out.map(|out| BufReader::new(out).lines());
                while let Some(lines) = &mut lines
                    && let Ok(Some(line)) = lines.next_line().await
                {
                    self.take(Ok(of_nvidia_smi(&line)), rows)?;
                }
                child.wait().await.map(|status| status.to_string())
            }
            Err(error) => Err(error),
        };
        self.take(Err(ended.unwrap_or_else(|error| error.to_string())), rows)?;
        pending().await
    }

    fn rows(&self, told: Vec<Told>, time: f64) -> Vec<SeriesRow> {
        let row = |(gpu, metric, value): Told| SeriesRow {
            time,
            source: if gpu.is_some() { GPU } else { METRICS }.to_owned(),
            server: gpu.map_or_else(|| self.name.clone(), |gpu| format!("gpu-{gpu}")),
            metric: metric.to_owned(),
            value,
        };
        told.into_iter().map(row).collect()
    }

    /// What there is to say of it.
    pub(super) fn note(&self) -> Option<String> {
        let (name, place, last) = (&self.name, &self.place, &self.last);
        let (asked, failed) = (self.asked, self.failed);
        let remedy = match self.is_smi {
            true => "it has to report utilization.gpu and memory.used",
            false => "start the server with --enable-metrics",
        };
        (failed > 0).then(|| {
            format!(
                "{name}: {failed} of {asked} scrapes of {place} failed, which leaves gaps (the last: {last}); {remedy}"
            )
        })
    }
}

/// What a page tells. Its `client` is made once: names and roots are not looked up each second.
async fn told(
    url: &str,
    access: &Access,
    client: &mut Option<Client>,
) -> Result<Vec<Told>, String> {
    let client = match client {
        Some(client) => client,
        None => client.insert(access.client(url).await?),
    };
    match client.ask(Method::GET, "", Bytes::new()).await? {
        (200, page) => Ok(gauges(&String::from_utf8_lossy(&page))),
        (status, _) => Err(format!("status {status}")),
    }
}
