//! Writes the files of a run: `requests.csv`, `schedule.csv`, `summary.json`.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::clock::{NANOS, Stamp};
use crate::disk;
use crate::error::Error;
use crate::report::files::{BEGUN, PARTIAL, ROWS, SCHEDULE, SUMMARY};
use crate::report::load::{RunFacts, goals_ms};
use crate::request::csv::Base;
use crate::request::{Row, shown_text};
use crate::table::cells::RowWriter;

use super::folder::Folder;
use super::plan::RunPlan;

/// The file of rows during a run. After the first write error it is left as it is, and the run goes on without it.
#[derive(Debug)]
pub(super) struct RowFile {
    dir: PathBuf,
    /// `Err` after the first write error.
    out: io::Result<RowWriter<File>>,
}

/// All files that a run may leave in its folder, however it ends.
pub(super) const FILES: [&str; 5] = [ROWS, PARTIAL, SUMMARY, SCHEDULE, BEGUN];
const SCHEDULE_COLUMNS: &str =
    "index,scheduled_offset,input_length,output_length,request_id,data_id";

/// Creates the folder of a run that begins `now`, and writes `schedule.csv`, with offsets in seconds from the start of the run.
///
/// # Errors
/// The folder holds a run already, or cannot be written.
pub(super) fn begin(folder: &Folder, plan: &RunPlan, now: Stamp) -> Result<PathBuf, Error> {
    let dir = folder.create(&FILES, now)?;
    let path = dir.join(SCHEDULE);
    let written = File::create_new(&path).and_then(|file| {
        let mut rows = csv::Writer::from_writer(file);
        rows.write_record(SCHEDULE_COLUMNS.split(','))?;
        // Escaped as in `requests.csv`, so that the two files can be joined.
        let escaped = |text: &str| shown_text(text.into()).into_owned();
        for (index, due, lengths) in plan.requests() {
            let offset = due.map(|due| format!("{}.{:09}", due / NANOS, due % NANOS));
            rows.write_record([
                index.to_string(),
                offset.unwrap_or_default(),
                lengths.input.to_string(),
                lengths.output.to_string(),
                escaped(&plan.req_id(index)),
                escaped(lengths.data_id.as_deref().unwrap_or_default()),
            ])?;
        }
        rows.flush()
    });
    written.map_err(|cause| Error::write(&path, cause))?;
    Ok(dir)
}

/// Writes `summary.json`.
///
/// # Errors
/// It cannot be written.
pub(super) fn write_summary(dir: &Path, summary: &Value) -> Result<(), Error> {
    let path = dir.join(SUMMARY);
    let written = disk::replace(&path, format!("{summary:#}\n").as_bytes());
    written.map_err(|cause| Error::write(&path, cause))?;
    // The summary holds all of it; a file that cannot be removed does no harm.
    let _ = std::fs::remove_file(dir.join(BEGUN));
    Ok(())
}

impl RowFile {
    /// Creates the file of rows in `dir`, and [`BEGUN`]: what is known of the run before it begins, for reports on one that was killed.
    ///
    /// # Errors
    /// It cannot be created.
    pub(super) fn new(dir: &Path, facts: &RunFacts, time_base: Base) -> Result<RowFile, Error> {
        let path = dir.join(PARTIAL);
        let file = File::create_new(&path).map_err(|cause| Error::write(&path, cause))?;
        let begun = json!({
            "scheduled": facts.scheduled,
            "offered_rate": facts.offered_rate,
            "goodput_goals_ms": goals_ms(&facts.goodput),
            "config": facts.config,
            "started_at": facts.started.seconds(),
            "started_at_ns": facts.started.nanos(),
        });
        // Only needed if the run is killed: it goes on without.
        let _ = std::fs::write(dir.join(BEGUN), format!("{begun:#}\n"));
        Ok(RowFile {
            dir: dir.to_owned(),
            out: RowWriter::new(file, time_base.of_run(facts.started)),
        })
    }

    /// Adds the rows of a request to a buffer, which is written when it is full or by [`RowFile::flush`].
    pub(super) fn write(&mut self, rows: &[Row]) {
        self.try_write(|out| rows.iter().try_for_each(|row| out.write(row)));
    }

    /// Writes all buffered rows to the system, so that they survive this process.
    pub(super) fn flush(&mut self) {
        self.try_write(RowWriter::flush);
    }

    /// Syncs the file and gives it its final name. Returns its path, and the error if it is incomplete.
    pub(super) fn finish(mut self) -> (PathBuf, Result<(), Error>) {
        let partial = self.dir.join(PARTIAL);
        let whole = self.dir.join(ROWS);
        self.flush();
        // Synced before the rename: after a power cut the final name must not belong to half a file.
        self.try_write(|out| out.get_ref().sync_all());
        if let Err(cause) = self.out {
            let error = Error::write(&partial, cause);
            return (partial, Err(error));
        }
        match std::fs::rename(&partial, &whole) {
            Ok(()) => (whole, Ok(())),
            Err(cause) => (partial, Err(Error::write(&whole, cause))),
        }
    }

    fn try_write(&mut self, write: impl FnOnce(&mut RowWriter<File>) -> io::Result<()>) {
        if let Ok(out) = &mut self.out
            && let Err(error) = write(out)
        {
            self.out = Err(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::traffic::tests::planned;

    /// The files of a run in `dir` that has begun.
    fn begun(dir: &Path, line: &str) -> RowFile {
        let folder = Folder::new(Some(dir), true, "unused");
        let start = Stamp::from_nanos(NANOS);
        begin(&folder, &planned(line), start).unwrap();
        let facts = RunFacts {
            started: start,
            ended: start,
            offered_rate: None,
            scheduled: 1,
            config: Value::Null,
            goodput: Vec::new(),
            machine: Value::Null,
        };
        RowFile::new(dir, &facts, Base::Epoch).unwrap()
    }

    #[test]
    fn a_schedule_has_a_row_for_each_request() {
        let root = tempfile::tempdir().unwrap();
        let entry = r#"{"prompt": "a b c", "completion": "a b c d", "id": "=a,b"}"#;
        let data = root.path().join("data");
        std::fs::write(&data, entry).unwrap();
        let data = data.display();
        let line = format!(
            "--dataset-name custom --dataset-path {data} --arrival constant --request-rate 0.2 --shard 1/2 --num-prompts 3"
        );
        begun(root.path(), &line);
        let text = std::fs::read_to_string(root.path().join(SCHEDULE)).unwrap();
        let rows = format!("{SCHEDULE_COLUMNS}\n1,7.500000000,3,4,t-1,\"'=a,b\"\n");
        assert_eq!(text, rows);
    }

    #[test]
    fn only_a_complete_file_gets_the_final_name_and_all_of_an_earlier_run_are_replaced() {
        for is_full in [false, true] {
            let root = tempfile::tempdir().unwrap();
            for file in FILES {
                std::fs::write(root.path().join(file), "left").unwrap();
            }
            let mut rows = begun(root.path(), "");
            if is_full {
                let full = File::options().write(true).open("/dev/full").unwrap();
                rows.out = RowWriter::new(full, Stamp::EPOCH);
            }
            let text = std::fs::read_to_string(root.path().join(BEGUN)).unwrap();
            assert!(text.contains("\"started_at\": 1.0"), "{text}");
            rows.flush();
            let (path, written) = rows.finish();
            let name = if is_full { PARTIAL } else { ROWS };
            assert_eq!(path, root.path().join(name));
            assert!(path.exists());
            assert_eq!(written.is_err(), is_full);
        }
    }
}
