//! The files of a run.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::clock::{NANOS, Stamp};
use crate::report::files::BEGUN;
use crate::request::cell::shown_text;
use crate::request::row::Row;
use crate::telemetry::csv::{RowWriter, TimeBase};

use super::error::Error;
use super::folder::Folder;
use super::plan::{Planned, RunPlan};

/// The folder that a run's files go to.
#[derive(Debug)]
pub struct Output {
    dir: PathBuf,
    note: Option<String>,
}

/// A file that has just been made.
#[derive(Debug)]
pub(super) struct NewFile {
    file: File,
    path: PathBuf,
}

/// What is known of a run before it begins, for whoever finds its folder after it was killed.
#[derive(Debug)]
pub(super) struct Begun {
    path: PathBuf,
    known: Value,
}

/// A file of rows under way.
#[derive(Debug)]
pub(super) struct Rows {
    out: RowWriter<File>,
    path: PathBuf,
}

const SCHEDULE: &str = "schedule.csv";
const REQUESTS: &str = "requests.csv";
const SUMMARY: &str = "summary.json";
/// The rows as they were when their requests ended, in that order; there only while the run goes on, or
/// when it was killed.
pub(super) const PARTIAL: &str = "requests.partial.csv";
/// The rows that are about to become [`REQUESTS`].
const UNFINISHED: &str = "requests.csv.unfinished";
const SPOOL: &str = "requests.spool";
/// What a run leaves in its folder, whatever ends it and when.
pub(super) const FILES: [&str; 7] = [
    REQUESTS, PARTIAL, SUMMARY, SCHEDULE, UNFINISHED, SPOOL, BEGUN,
];
const SCHEDULE_HEADER: &str =
    "index,scheduled_offset,input_length,output_length,request_id,data_id";

impl Output {
    /// Makes the folder of a run that begins `now`, and writes `schedule.csv`; offsets are seconds from the
    /// start of the run.
    ///
    /// # Errors
    /// The folder holds a run already, or what the system answers.
    pub fn begin(
        folder: &Folder,
        plan: &RunPlan,
        schedule: &[Planned],
        now: Stamp,
    ) -> Result<Output, Error> {
        let made = folder.make(&FILES, now)?;
        let output = Output {
            dir: made.dir,
            note: made.note,
        };
        output.write(SCHEDULE, |out| {
            writeln!(out, "{SCHEDULE_HEADER}")?;
            let mut rows = csv::Writer::from_writer(out);
            // As `requests.csv` shows them, so that the two join.
            let shown = |text: &str| shown_text(text.into()).into_owned();
            for (place, due, lengths) in plan.requests(schedule) {
                let offset = due.map(|due| format!("{}.{:09}", due / NANOS, due % NANOS));
                rows.write_record([
                    place.to_string(),
                    offset.unwrap_or_default(),
                    lengths.input.to_string(),
                    lengths.output.to_string(),
                    shown(&plan.req_id(place)),
                    shown(lengths.data_id.as_deref().unwrap_or_default()),
                ])?;
            }
            rows.flush()
        })?;
        Ok(output)
    }

    /// The folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// What the user must know of the folder.
    pub fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }

    /// A file without a name, for what is needed until the end of the run; it is gone with the process.
    ///
    /// # Errors
    /// What the system answers.
    pub(super) fn spool(&self) -> Result<File, Error> {
        let path = self.dir.join(SPOOL);
        let made = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path);
        made.and_then(|file| std::fs::remove_file(&path).map(|()| file))
            .map_err(|cause| Error::File { path, cause })
    }

    /// What is to be written when the run begins: members of `summary.json`, but for when that was.
    pub(super) fn begun(&self, known: Value) -> Begun {
        Begun {
            path: self.dir.join(BEGUN),
            known,
        }
    }

    /// Makes the file of rows as they are when their requests end.
    ///
    /// # Errors
    /// What the system answers.
    pub(super) fn partial(&self) -> Result<NewFile, Error> {
        self.new_file(PARTIAL)
    }

    /// Begins the file of rows that becomes `requests.csv` with [`Output::finish`].
    ///
    /// # Errors
    /// What the system answers.
    pub(super) fn requests(&self, base: TimeBase) -> Result<Rows, Error> {
        self.new_file(UNFINISHED)?.rows(base)
    }

    /// Puts the whole rows, as far as they could be written, in the place of the partial ones.
    ///
    /// # Errors
    /// What went wrong; the partial rows then stay.
    pub(super) fn finish(&self, rows: Result<Rows, Error>) -> Result<(), Error> {
        let path = self.dir.join(REQUESTS);
        let unfinished = self.dir.join(UNFINISHED);
        // On the disk before they have the name: after a power cut it must not lead to half a file.
        let whole = rows.and_then(|mut rows| rows.sync());
        let whole = whole.and_then(|()| {
            let renamed = std::fs::rename(&unfinished, &path);
            renamed.map_err(|cause| Error::File { path, cause })
        });
        match whole {
            // Left behind, they say nothing wrong.
            Ok(()) => drop(std::fs::remove_file(self.partial_path())),
            Err(_) => self.discard(),
        }
        whole
    }

    /// Leaves the rows as they were when their requests ended, and none that were begun anew.
    pub(super) fn discard(&self) {
        // Left behind, they are called unfinished.
        let _ = std::fs::remove_file(self.dir.join(UNFINISHED));
    }

    /// The file of the rows as they were when their requests ended.
    pub(super) fn partial_path(&self) -> PathBuf {
        self.dir.join(PARTIAL)
    }

    /// Writes `summary.json`.
    ///
    /// # Errors
    /// What the system answers.
    pub fn summary(&self, summary: &Value) -> Result<(), Error> {
        self.write(SUMMARY, |out| {
            serde_json::to_writer_pretty(&mut *out, summary)?;
            writeln!(out)
        })?;
        // Left behind, it says nothing that the summary does not.
        let _ = std::fs::remove_file(self.dir.join(BEGUN));
        Ok(())
    }

    fn new_file(&self, name: &str) -> Result<NewFile, Error> {
        let path = self.dir.join(name);
        match File::create_new(&path) {
            Ok(file) => Ok(NewFile { file, path }),
            Err(cause) => Err(Error::File { path, cause }),
        }
    }

    fn write(
        &self,
        name: &str,
        fill: impl FnOnce(&mut io::BufWriter<File>) -> io::Result<()>,
    ) -> Result<(), Error> {
        let NewFile { file, path } = self.new_file(name)?;
        let mut out = io::BufWriter::new(file);
        let written = fill(&mut out).and_then(|()| out.flush());
        written.map_err(|cause| Error::File { path, cause })
    }
}

impl Begun {
    /// Writes it, of a run that began at `started`. Where the disk takes it not, the run goes on without it.
    pub(super) fn write(mut self, started: Stamp) {
        self.known["started_at"] = started.seconds().into();
        self.known["started_at_ns"] = started.nanos().into();
        let _ = std::fs::write(&self.path, format!("{:#}\n", self.known));
    }
}

impl NewFile {
    /// Begins it with the header line.
    ///
    /// # Errors
    /// What the system answers.
    pub(super) fn rows(self, base: TimeBase) -> Result<Rows, Error> {
        let NewFile { file, path } = self;
        match RowWriter::new(file, base) {
            Ok(out) => Ok(Rows { out, path }),
            Err(cause) => Err(Error::File { path, cause }),
        }
    }
}

impl Rows {
    /// Adds the rows of a request; they reach the file with the next [`Rows::flush`], or when enough have
    /// gathered.
    ///
    /// # Errors
    /// What the system answers.
    pub(super) fn write(&mut self, records: &[Row]) -> Result<(), Error> {
        let mut rows = records.iter();
        rows.try_for_each(|record| self.out.write(record))
            .map_err(|cause| self.error(cause))
    }

    /// Hands all rows to the system, which has them whatever becomes of this process.
    ///
    /// # Errors
    /// What the system answers.
    pub(super) fn flush(&mut self) -> Result<(), Error> {
        self.out.flush().map_err(|cause| self.error(cause))
    }

    /// Hands all rows to the disk.
    fn sync(&mut self) -> Result<(), Error> {
        self.flush()?;
        let synced = self.out.get_ref().sync_all();
        synced.map_err(|cause| self.error(cause))
    }

    fn error(&self, cause: io::Error) -> Error {
        Error::File {
            path: self.path.clone(),
            cause,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::traffic::tests::planned;

    fn begun(dir: &Path, line: &str) -> Output {
        let folder = Folder::new(Some(dir), false, "unused");
        let plan = planned(line);
        let schedule = plan.schedule().unwrap();
        Output::begin(&folder, &plan, &schedule, Stamp::from_nanos(0)).unwrap()
    }

    #[test]
    fn a_schedule_is_a_row_a_request() {
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
        let rows = format!("{SCHEDULE_HEADER}\n1,7.500000000,3,4,t-1,\"'=a,b\"\n");
        assert_eq!(text, rows);
    }

    #[test]
    fn a_run_takes_the_place_of_all_that_one_left_which_ended_at_any_moment() {
        let root = tempfile::tempdir().unwrap();
        for file in [PARTIAL, UNFINISHED, SPOOL, SCHEDULE] {
            std::fs::write(root.path().join(file), "left").unwrap();
        }
        let folder = Folder::new(Some(root.path()), true, "unused");
        let output = Output::begin(&folder, &planned(""), &[], Stamp::from_nanos(0)).unwrap();
        output.spool().unwrap();
        output.partial().unwrap();
        output.requests(TimeBase::Epoch).unwrap();
    }

    #[test]
    fn whole_rows_take_the_place_of_the_partial_ones_which_stay_where_they_cannot() {
        for fails in [false, true] {
            let root = tempfile::tempdir().unwrap();
            let is_there = |file: &str| root.path().join(file).exists();
            let output = begun(root.path(), "");
            let _spool = output.spool().unwrap();
            assert!(!is_there(SPOOL), "it has no name");
            output.partial().unwrap().rows(TimeBase::Epoch).unwrap();
            let rows = output.requests(TimeBase::Epoch).unwrap();
            assert!(is_there(PARTIAL) && is_there(UNFINISHED) && !is_there(REQUESTS));
            let rows = if fails {
                Err(rows.error(io::ErrorKind::StorageFull.into()))
            } else {
                Ok(rows)
            };
            assert_eq!(output.finish(rows).is_err(), fails);
            assert_eq!((is_there(REQUESTS), is_there(PARTIAL)), (!fails, fails));
            assert!(!is_there(UNFINISHED));
        }
    }
}
