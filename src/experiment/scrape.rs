//! What servers and GPUs tell of themselves while a run goes on, once a second, as rows of `series.csv`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::future::try_join_all;

use super::launch::Access;
use super::timed::TimedRows;
use crate::clock::{Clock, Stamp};
use crate::report::files::{SERIES, ServerFile};

mod families;
mod target;

use target::Target;

/// How often is asked.
const EVERY: Duration = Duration::from_secs(1);
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

impl Scraper {
    /// One that asks servers and, by this `nvidia-smi`, GPUs.
    pub fn new(servers: &[ServerFile], access: Access, smi: Option<PathBuf>) -> Scraper {
        let servers = servers
            .iter()
            .map(|server| Target::new(&server.name, format!("{}/metrics", server.url), false));
        let gpus = smi.map(|program| Target::new("GPUs", program.display().to_string(), true));
        Scraper {
            targets: servers.chain(gpus).collect(),
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

#[cfg(test)]
mod tests;
