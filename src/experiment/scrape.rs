//! What servers and GPUs tell of themselves while a run goes on, once a second, as rows of `series.csv`.

use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use futures_util::future::join_all;

use super::launch::Access;
use super::timed::TimedRows;
use crate::clock::{Clock, Stamp};
use crate::report::files::{SERIES, SeriesRow, ServerFile};

mod families;
mod target;

pub use target::Place;

use target::Target;

/// How often is asked.
const EVERY: Duration = Duration::from_secs(1);

/// Who is asked of a run, and what came of it.
#[derive(Debug)]
pub struct Scraper {
    targets: Vec<Target>,
    access: Access,
    log: Log,
}

/// Where those write who ask.
#[derive(Debug)]
struct Log {
    rows: TimedRows,
    /// Why it takes no more.
    lost: OnceLock<String>,
}

impl Scraper {
    /// Asks the servers and the GPUs, and writes what they tell to [`SERIES`] in `dir`, at seconds since `began`
    /// of when each answer was there.
    ///
    /// # Errors
    /// The file cannot be made.
    pub fn begin(
        servers: &[ServerFile],
        access: Access,
        gpus: Option<Place>,
        dir: &Path,
        began: Stamp,
        clock: &Clock,
    ) -> anyhow::Result<Scraper> {
        let servers = servers.iter().map(|server| {
            let page = Place::Page(format!("{}/metrics", server.url));
            Target::new(&server.name, page, "start the server with --enable-metrics")
        });
        let gpus = gpus.map(|place| {
            let (page, smi) = (
                "it has to tell DCGM_FI_DEV_GPU_UTIL and DCGM_FI_DEV_FB_USED",
                "it has to tell utilization.gpu and memory.used",
            );
            let is_page = matches!(place, Place::Page(_));
            Target::new("GPUs", place, if is_page { page } else { smi })
        });
        Ok(Scraper {
            targets: servers.chain(gpus).collect(),
            access,
            log: Log::begin(dir, began, clock)?,
        })
    }

    /// Asks once a second, until it is dropped.
    pub async fn run(&mut self) {
        let (access, log) = (&self.access, &self.log);
        let targets = self.targets.iter_mut();
        join_all(targets.map(|target| target.ask(access, log))).await;
        std::future::pending().await
    }

    /// Who could not be asked, how often, and why.
    pub fn notes(self) -> Vec<String> {
        let notes = self.targets.iter().filter_map(Target::note);
        let mut notes: Vec<String> = notes.chain(self.log.lost.into_inner()).collect();
        notes.sort();
        notes
    }
}

impl Log {
    fn begin(dir: &Path, began: Stamp, clock: &Clock) -> anyhow::Result<Log> {
        let columns = ["time", "source", "server", "metric", "value"];
        Ok(Log {
            rows: TimedRows::new(&dir.join(SERIES), &columns, began, clock)?,
            lost: OnceLock::new(),
        })
    }

    /// Seconds since the run began.
    fn now(&self) -> f64 {
        self.rows.seconds(self.rows.clock.now())
    }

    /// Writes what was told. Where the file takes no more, that is said and the rest let go.
    fn write(&self, rows: &[SeriesRow]) {
        if self.lost.get().is_none()
            && let Err(error) = self.rows.write(rows)
        {
            let _ = self.lost.set(format!("{SERIES} ends early: {error}"));
        }
    }
}

#[cfg(test)]
mod tests;
