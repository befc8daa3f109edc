//! What servers and GPUs tell of themselves while a run goes on, once a second, as rows of `series.csv`.
//!
//! On a thread of its own, so that it never holds up the load.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;

use crate::clock::{Clock, Stamp};
use crate::disk;
use crate::report::files::{SERIES, SeriesRow, ServerFile};
use crate::report::series::of_records;
use crate::report::table::Table;

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
    stop: watch::Sender<bool>,
    ended: oneshot::Receiver<ScrapeEnd>,
}

/// What there is to say when scraping is over.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScrapeEnd {
    /// Who could not be asked, how often, and why.
    pub notes: Vec<String>,
}

/// What the one who asks shares with the one who writes.
#[derive(Clone, Debug)]
struct Asking {
    began: Stamp,
    clock: Clock,
    rows: mpsc::UnboundedSender<Vec<SeriesRow>>,
    stop: watch::Receiver<bool>,
}

impl Scraper {
    /// Begins to ask `targets` (a server's name, and the URL of its `/metrics`) and the GPUs, once a second, and to write
    /// what they tell to [`SERIES`] in `dir`, at seconds since `began` of when each answer was there.
    ///
    /// # Errors
    /// The file cannot be made, or no thread be started.
    pub fn start(
        targets: Vec<(String, String)>,
        gpu: Option<Gpu>,
        dir: &Path,
        began: Stamp,
        clock: &Clock,
    ) -> anyhow::Result<Scraper> {
        let path = dir.join(SERIES);
        let file = File::create(&path).with_context(|| path.display().to_string())?;
        let mut file = csv::Writer::from_writer(file);
        // A file without rows says what it would hold.
        let header = ["time", "source", "server", "metric", "value"];
        let header = file.write_record(header).and_then(|()| Ok(file.flush()?));
        header.with_context(|| path.display().to_string())?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let (stop, stopped) = watch::channel(false);
        let (end, ended) = oneshot::channel();
        let clock = clock.clone();
        std::thread::Builder::new()
            .name("scrape".to_owned())
            .spawn(move || {
                let notes = runtime.block_on(all(targets, gpu, file, began, clock, stopped));
                // Nobody waits for it when the run was given up.
                let _ = end.send(ScrapeEnd { notes });
            })?;
        Ok(Scraper { stop, ended })
    }

    /// Ends it; what was told is in the file.
    pub async fn stop(self) -> ScrapeEnd {
        self.stop.send_replace(true);
        self.ended.await.unwrap_or_default()
    }
}

/// Asks everybody until it is stopped; what there is to say of each.
async fn all(
    targets: Vec<(String, String)>,
    gpu: Option<Gpu>,
    file: csv::Writer<File>,
    began: Stamp,
    clock: Clock,
    stop: watch::Receiver<bool>,
) -> Vec<String> {
    let (rows, told) = mpsc::unbounded_channel();
    let asking = Asking {
        began,
        clock,
        rows,
        stop,
    };
    let mut asked = JoinSet::new();
    for (server, url) in targets {
        let target = Target::server(server, url);
        asked.spawn(target.ask(asking.clone()));
    }
    match gpu {
        Some(Gpu::Dcgm(url)) => {
            asked.spawn(Target::dcgm(url).ask(asking.clone()));
        }
        Some(Gpu::NvidiaSmi(program)) => {
            asked.spawn(gpu::nvidia_smi(program, asking.clone()));
        }
        None => {}
    }
    drop(asking);
    let mut notes: Vec<String> = write(file, told).await.into_iter().collect();
    while let Some(note) = asked.join_next().await {
        notes.extend(note.ok().flatten());
    }
    notes.sort();
    notes
}

/// Writes what is told, until nobody asks any more. Where the file takes no more, says so and lets the rest go.
async fn write(
    mut file: csv::Writer<File>,
    mut told: mpsc::UnboundedReceiver<Vec<SeriesRow>>,
) -> Option<String> {
    let mut lost = None;
    while let Some(rows) = told.recv().await {
        if lost.is_some() {
            continue;
        }
        let written = rows
            .iter()
            .try_for_each(|row| file.write_record(fields(row)))
            .and_then(|()| Ok(file.flush()?));
        if let Err(error) = written {
            lost = Some(format!("{SERIES} ends early: {error}"));
        }
    }
    lost
}

/// A row as it is written: times to the microsecond.
fn fields(row: &SeriesRow) -> [String; 5] {
    let time = format!("{:.6}", row.time);
    let value = row.value.to_string();
    [
        time,
        row.source.clone(),
        row.server.clone(),
        row.metric.clone(),
        value,
    ]
}

/// Puts what is counted from a run's rows among what was told, in order of time. What could not be counted, in words.
///
/// # Errors
/// The file cannot be read or written.
pub fn add_records(
    dir: &Path,
    table: &Table,
    servers: &[ServerFile],
) -> anyhow::Result<Vec<String>> {
    let path = dir.join(SERIES);
    let mut rows: Vec<SeriesRow> = match csv::Reader::from_path(&path) {
        Ok(reader) => {
            let told = reader.into_deserialize().collect::<Result<_, _>>();
            told.with_context(|| path.display().to_string())?
        }
        // Nobody was asked.
        Err(error) if is_missing(&error) => Vec::new(),
        Err(error) => return Err(error).with_context(|| path.display().to_string()),
    };
    let counted = of_records(table, servers);
    rows.extend(counted.rows);
    rows.sort_by(|a, b| a.time.total_cmp(&b.time));
    let mut file = csv::Writer::from_writer(Vec::new());
    for row in &rows {
        file.serialize(row)?;
    }
    let replaced = disk::replace(&path, &file.into_inner()?);
    replaced.with_context(|| path.display().to_string())?;
    Ok(counted.notes)
}

fn is_missing(error: &csv::Error) -> bool {
    matches!(error.kind(), csv::ErrorKind::Io(error) if error.kind() == std::io::ErrorKind::NotFound)
}

#[cfg(test)]
mod tests;
