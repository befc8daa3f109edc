//! What servers and GPUs tell of themselves while a run goes on, once a second, as rows of `series.csv`.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use futures_util::future::{join, join_all};
use parking_lot::Mutex;

use super::launch::Access;
use crate::clock::{Clock, Stamp};
use crate::report::files::{SERIES, SeriesRow};

mod families;
mod gpu;
mod target;

pub use gpu::Gpu;

use target::Target;

/// How often is asked.
const EVERY: Duration = Duration::from_secs(1);

/// Who is asked of a run, and what came of it.
#[derive(Debug)]
pub struct Scraper {
    targets: Vec<Target>,
    access: Access,
    nvidia_smi: Option<PathBuf>,
    /// What there is to say of `nvidia-smi`.
    told: Option<String>,
    log: Log,
}

/// Where those write who ask.
#[derive(Debug)]
struct Log {
    began: Stamp,
    clock: Clock,
    file: Mutex<(csv::Writer<File>, Option<String>)>,
}

impl Scraper {
    /// Asks the servers (by name and URL) and the GPUs, and writes what they tell to [`SERIES`] in `dir`, at seconds since `began`
    /// of when each answer was there.
    ///
    /// # Errors
    /// The file cannot be made.
    pub fn begin(
        servers: Vec<(String, String)>,
        access: Access,
        gpu: Option<Gpu>,
        dir: &Path,
        began: Stamp,
        clock: &Clock,
    ) -> anyhow::Result<Scraper> {
        let (dcgm, nvidia_smi) = match gpu {
            Some(Gpu::Dcgm(url)) => (Some(Target::dcgm(&url)), None),
            Some(Gpu::NvidiaSmi(program)) => (None, Some(program)),
            None => (None, None),
        };
        Ok(Scraper {
            targets: servers
                .into_iter()
                .map(Target::server)
                .chain(dcgm)
                .collect(),
            access,
            nvidia_smi,
            told: None,
            log: Log::begin(dir, began, clock)?,
        })
    }

    /// Asks once a second, until it is dropped.
    pub async fn run(&mut self) {
        let (access, log) = (&self.access, &self.log);
        let asked = join_all(
            self.targets
                .iter_mut()
                .map(|target| target.ask(access, log)),
        );
        let gpus = async {
            if let Some(program) = &self.nvidia_smi {
                gpu::nvidia_smi(program, log, &mut self.told).await;
            }
        };
        join(asked, gpus).await;
        std::future::pending().await
    }

    /// Who could not be asked, how often, and why.
    pub fn notes(self) -> Vec<String> {
        let notes = self.targets.iter().filter_map(Target::note);
        let lost = self.log.file.into_inner().1;
        let mut notes: Vec<String> = notes.chain(self.told).chain(lost).collect();
        notes.sort();
        notes
    }
}

impl Log {
    /// A file without rows says what it would hold.
    fn begin(dir: &Path, began: Stamp, clock: &Clock) -> anyhow::Result<Log> {
        let path = dir.join(SERIES);
        let named = || path.display().to_string();
        let mut file = csv::Writer::from_path(&path).with_context(named)?;
        let header = file.write_record(["time", "source", "server", "metric", "value"]);
        header
            .and_then(|()| Ok(file.flush()?))
            .with_context(named)?;
        Ok(Log {
            began,
            clock: clock.clone(),
            file: Mutex::new((file, None)),
        })
    }

    /// Seconds since the run began.
    fn now(&self) -> f64 {
        self.clock.now().since(self.began)
    }

    /// Writes what was told, times to the microsecond. Where the file takes no more, that is said and the rest let go.
    fn write(&self, rows: &[SeriesRow]) {
        let mut file = self.file.lock();
        let (file, lost) = &mut *file;
        if lost.is_some() {
            return;
        }
        let mut write = |row: &SeriesRow| {
            let (time, value) = (format!("{:.6}", row.time), row.value.to_string());
            file.write_record([&time, &row.source, &row.server, &row.metric, &value])
        };
        let written = rows.iter().try_for_each(&mut write);
        let written = written.and_then(|()| Ok(file.flush()?));
        *lost = written
            .err()
            .map(|error| format!("{SERIES} ends early: {error}"));
    }
}

#[cfg(test)]
mod tests;
