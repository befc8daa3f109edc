//! The files of a run.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::clock::NANOS;
use crate::request::record::Record;
use crate::telemetry::csv::{RowWriter, TimeBase, shown_text};

use super::plan::Planned;

/// The folder that a run's files go to.
#[derive(Debug)]
pub struct Output {
    dir: PathBuf,
}

/// Why files could not be written.
#[derive(Debug, thiserror::Error)]
pub enum OutputError {
    /// The folder holds something else.
    #[error(
        "--output-dir {}: is not empty and holds no schedule.csv of an earlier run; name a new folder",
        .0.display()
    )]
    NotOurs(PathBuf),
    /// The system refused.
    #[error("--output-dir: {}: {cause}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
}

const SCHEDULE: &str = "schedule.csv";
const REQUESTS: &str = "requests.csv";
const SUMMARY: &str = "summary.json";
const SCHEDULE_HEADER: &str =
    "index,scheduled_offset,input_length,output_length,request_id,data_id";

impl Output {
    /// Makes the folder, or takes one that an earlier run filled; nothing in it is touched yet.
    ///
    /// # Errors
    /// The folder holds something else, or cannot be made or read.
    pub fn open(dir: &Path) -> Result<Output, OutputError> {
        let output = Output {
            dir: dir.to_owned(),
        };
        std::fs::create_dir_all(dir).map_err(|cause| output.error("", cause))?;
        let mut entries = std::fs::read_dir(dir).map_err(|cause| output.error("", cause))?;
        if entries.next().is_some() && !output.is_ours() {
            return Err(OutputError::NotOurs(dir.to_owned()));
        }
        Ok(output)
    }

    /// The folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Takes away what an earlier run wrote, whose rows must not stand beside this run's schedule, and
    /// writes `schedule.csv`; offsets are seconds from the start of the run.
    ///
    /// # Errors
    /// What the system answers.
    pub fn begin(&self, schedule: &[Planned]) -> Result<(), OutputError> {
        for file in [REQUESTS, SUMMARY] {
            match std::fs::remove_file(self.dir.join(file)) {
                Err(cause) if cause.kind() != io::ErrorKind::NotFound => {
                    return Err(self.error(file, cause));
                }
                _ => {}
            }
        }
        self.write(SCHEDULE, |out| {
            writeln!(out, "{SCHEDULE_HEADER}")?;
            let mut rows = csv::Writer::from_writer(out);
            // As `requests.csv` shows them, so that the two join.
            let shown = |text: &str| shown_text(text.into()).into_owned();
            for (index, planned) in schedule.iter().enumerate() {
                let offset = planned.offset_nanos;
                rows.write_record([
                    index.to_string(),
                    format!("{}.{:09}", offset / NANOS, offset % NANOS),
                    planned.input_length.to_string(),
                    planned.output_length.to_string(),
                    shown(&planned.req_id),
                    shown(planned.data_id.as_deref().unwrap_or_default()),
                ])?;
            }
            rows.flush()
        })
    }

    /// Writes `requests.csv`.
    ///
    /// # Errors
    /// What the system answers.
    pub fn requests(&self, records: &[Record], base: TimeBase) -> Result<(), OutputError> {
        self.write(REQUESTS, |out| {
            let mut rows = RowWriter::new(out, base)?;
            records.iter().try_for_each(|record| rows.write(record))?;
            rows.flush()
        })
    }

    /// Writes `summary.json`.
    ///
    /// # Errors
    /// What the system answers.
    pub fn summary(&self, summary: &Value) -> Result<(), OutputError> {
        self.write(SUMMARY, |out| {
            serde_json::to_writer_pretty(&mut *out, summary)?;
            writeln!(out)
        })
    }

    /// Whether an earlier run filled the folder: its schedule begins as ours do.
    fn is_ours(&self) -> bool {
        let Ok(file) = File::open(self.dir.join(SCHEDULE)) else {
            return false;
        };
        let first = BufReader::new(file).lines().next();
        matches!(first, Some(Ok(line)) if line == SCHEDULE_HEADER)
    }

    fn create(&self, name: &str) -> Result<File, OutputError> {
        File::create(self.dir.join(name)).map_err(|cause| self.error(name, cause))
    }

    fn write(
        &self,
        name: &str,
        fill: impl FnOnce(&mut io::BufWriter<File>) -> io::Result<()>,
    ) -> Result<(), OutputError> {
        let mut out = io::BufWriter::new(self.create(name)?);
        let written = fill(&mut out).and_then(|()| out.flush());
        written.map_err(|cause| self.error(name, cause))
    }

    fn error(&self, name: &str, cause: io::Error) -> OutputError {
        OutputError::Io {
            path: self.dir.join(name),
            cause,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_taken_over_only_from_an_earlier_run() {
        let root = tempfile::tempdir().unwrap();
        let new = root.path().join("a/b");
        let output = Output::open(&new).unwrap();
        output.begin(&[]).unwrap();
        output.requests(&[], TimeBase::Epoch).unwrap();
        let again = Output::open(&new).unwrap();
        assert!(
            new.join(REQUESTS).exists(),
            "kept until the next run begins"
        );
        again.begin(&[]).unwrap();
        assert!(
            !new.join(REQUESTS).exists(),
            "the earlier run's rows are gone"
        );

        let foreign = root.path().join("foreign");
        std::fs::create_dir(&foreign).unwrap();
        std::fs::write(foreign.join("schedule.csv"), "mine\n").unwrap();
        let error = Output::open(&foreign).unwrap_err().to_string();
        assert!(error.contains("name a new folder"), "{error}");
        let kept = std::fs::read_to_string(foreign.join("schedule.csv")).unwrap();
        assert_eq!(kept, "mine\n");

        let file = root.path().join("file");
        std::fs::write(&file, "").unwrap();
        let error = Output::open(&file).unwrap_err().to_string();
        assert!(error.contains("/file"), "{error}");
    }

    #[test]
    fn a_schedule_is_a_row_a_request() {
        let root = tempfile::tempdir().unwrap();
        let output = Output::open(root.path()).unwrap();
        let planned = Planned {
            offset_nanos: 2 * NANOS + 5,
            input_length: 3,
            output_length: 4,
            req_id: "qs-1-0".to_owned(),
            data_id: Some("=a,b".to_owned()),
        };
        output.begin(&[planned]).unwrap();
        let text = std::fs::read_to_string(root.path().join(SCHEDULE)).unwrap();
        let rows = format!("{SCHEDULE_HEADER}\n0,2.000000005,3,4,qs-1-0,\"'=a,b\"\n");
        assert_eq!(text, rows);
    }
}
