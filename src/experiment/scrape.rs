//! What servers and GPUs tell of themselves while a run goes on, once a second, as rows of `series.csv`.

use std::path::Path;
use std::time::Duration;

use futures_util::future::try_join_all;

use super::launch::Access;
use super::timed::TimedRows;
use crate::clock::{Clock, Stamp};
use crate::report::files::{SERIES, ServerFile};

mod families;
mod target;

pub use target::Place;

use target::Target;

/// How often is asked.
const EVERY: Duration = Duration::from_secs(1);
/// Of [`SERIES`].
const COLUMNS: [&str; 5] = ["time", "source", "server", "metric", "value"];

/// Who is asked of a run, and what came of it.
#[derive(Debug)]
pub struct Scraper {
    targets: Vec<Target>,
    access: Access,
    rows: TimedRows,
    /// Why the file takes no more.
    lost: Option<String>,
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
                "it has to report DCGM_FI_DEV_GPU_UTIL and DCGM_FI_DEV_FB_USED",
                "it has to report utilization.gpu and memory.used",
            );
            let is_page = matches!(place, Place::Page(_));
            Target::new("GPUs", place, if is_page { page } else { smi })
        });
        Ok(Scraper {
            targets: servers.chain(gpus).collect(),
            access,
            rows: TimedRows::new(&dir.join(SERIES), &COLUMNS, began, clock)?,
            lost: None,
        })
    }

    /// Asks once a second, until it is dropped. Where the file takes no more, that is said and the rest let go.
    pub async fn run(&mut self) {
        let (access, rows) = (&self.access, &self.rows);
        let targets = self.targets.iter_mut();
        let asked = try_join_all(targets.map(|target| target.ask(access, rows)));
        if let Err(error) = asked.await {
            self.lost = Some(format!("{SERIES} ends early: {error}"));
        }
        std::future::pending().await
    }

    /// Who could not be asked, how often, and why.
    pub fn notes(self) -> Vec<String> {
        let notes = self.targets.iter().filter_map(Target::note);
        let mut notes: Vec<String> = notes.chain(self.lost).collect();
        notes.sort();
        notes
    }
}

#[cfg(test)]
mod tests;
