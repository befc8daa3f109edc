//! What servers and GPUs tell of themselves while a run goes on, once a second, as rows of `series.csv`.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::launch::Access;
use crate::clock::{Clock, Stamp};
use crate::report::files::{SERIES, SeriesRow};

mod exposition;
mod families;
mod gpu;
mod target;

pub use gpu::Gpu;

use target::Target;

/// How often is asked.
const EVERY: Duration = Duration::from_secs(1);

/// Scrapes until it is stopped or dropped.
#[derive(Debug)]
pub struct Scraper {
    stop: oneshot::Sender<()>,
    task: JoinHandle<Vec<String>>,
}

/// Where those write who ask.
struct Log {
    began: Stamp,
    clock: Clock,
    file: Mutex<(csv::Writer<File>, Option<String>)>,
}

impl Scraper {
    /// Begins to ask the servers (by name and URL) and the GPUs, once a second, and to write what they tell to [`SERIES`] in
    /// `dir`, at seconds since `began` of when each answer was there.
    ///
    /// # Errors
    /// The file cannot be made.
    pub fn start(
        servers: Vec<(String, String)>,
        access: Access,
        gpu: Option<Gpu>,
        dir: &Path,
        began: Stamp,
        clock: &Clock,
    ) -> anyhow::Result<Scraper> {
        let log = Log::begin(dir, began, clock)?;
        let (stop, stopped) = oneshot::channel();
        let mut targets: Vec<Target> = servers.into_iter().map(Target::server).collect();
        if let Some(Gpu::Dcgm(url)) = &gpu {
            targets.push(Target::dcgm(url));
        }
        let task = tokio::spawn(async move {
            let mut told = None;
            let asked = join_all(targets.iter_mut().map(|target| target.ask(&access, &log)));
            let gpus = async {
                if let Some(Gpu::NvidiaSmi(program)) = gpu {
                    gpu::nvidia_smi(&program, &log, &mut told).await;
                }
            };
            tokio::select! {
                _ = futures_util::future::join(asked, gpus) => {}
                // Also where nobody is left who could.
                _ = stopped => {}
            }
            let notes = targets.iter().filter_map(Target::note);
            let lost = log.file.into_inner().1;
            let mut notes: Vec<String> = notes.chain(told).chain(lost).collect();
            notes.sort();
            notes
        });
        Ok(Scraper { stop, task })
    }

    /// Ends it; what was told is in the file. Gives who could not be asked, how often, and why.
    pub async fn stop(self) -> Vec<String> {
        // It may have ended already.
        let _ = self.stop.send(());
        self.task.await.unwrap_or_default()
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
