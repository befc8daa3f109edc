//! The files of a run.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::clock::{NANOS, Stamp};
use crate::disk;
use crate::report::files::{BEGUN, PARTIAL, ROWS, SCHEDULE, SUMMARY};
use crate::report::load::{RunFacts, goals_ms};
use crate::request::cell::shown_text;
use crate::request::csv::Base;
use crate::request::row::Row;
use crate::table::cells::RowWriter;

use super::error::Error;
use super::folder::{Folder, Made};
use super::plan::{Planned, RunPlan};

/// Where a run's rows go, and what is known of it before it begins, for whoever finds its folder after it was killed.
#[derive(Debug)]
pub(super) struct Files {
    dir: PathBuf,
    rows: File,
    known: Value,
    times_from: Base,
}

/// A file of rows under way. One that takes no more is left as it is: the run goes on without it.
#[derive(Debug)]
pub(super) struct RowFile {
    dir: PathBuf,
    /// `Err`: it takes no more.
    out: io::Result<RowWriter<File>>,
}

/// What a run leaves in its folder, whatever ends it and when.
pub(super) const FILES: [&str; 5] = [ROWS, PARTIAL, SUMMARY, SCHEDULE, BEGUN];
const SCHEDULE_COLUMNS: [&str; 6] = [
    "index",
    "scheduled_offset",
    "input_length",
    "output_length",
    "request_id",
    "data_id",
];

/// Makes the folder of a run that begins `now`, and writes `schedule.csv`; offsets are seconds from the
/// start of the run.
///
/// # Errors
/// The folder holds a run already, or what the system answers.
pub(super) fn begin(
    folder: &Folder,
    plan: &RunPlan,
    schedule: &[Planned],
    now: Stamp,
) -> Result<Made, Error> {
    let made = folder.make(&FILES, now)?;
    let path = made.dir.join(SCHEDULE);
    let written = File::create_new(&path).and_then(|file| {
        let mut rows = csv::Writer::from_writer(file);
        rows.write_record(SCHEDULE_COLUMNS)?;
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
    });
    written.map_err(|cause| Error::file(&path, cause))?;
    Ok(made)
}

/// Writes `summary.json`.
///
/// # Errors
/// What the system answers.
pub(super) fn summary(dir: &Path, summary: &Value) -> Result<(), Error> {
    let path = dir.join(SUMMARY);
    let written = disk::replace(&path, format!("{summary:#}\n").as_bytes());
    written.map_err(|cause| Error::file(&path, cause))?;
    // Left behind, it says nothing that the summary does not.
    let _ = std::fs::remove_file(dir.join(BEGUN));
    Ok(())
}

impl Files {
    /// Makes the file of rows in `dir`, so that it costs the run no time, with what tells of it should it be killed.
    ///
    /// # Errors
    /// What the system answers.
    pub(super) fn new(dir: &Path, facts: &RunFacts, times_from: Base) -> Result<Files, Error> {
        let path = dir.join(PARTIAL);
        Ok(Files {
            dir: dir.to_owned(),
            rows: File::create_new(&path).map_err(|cause| Error::file(&path, cause))?,
            known: json!({
                "scheduled": facts.scheduled,
                "offered_rate": facts.offered_rate,
                "goodput_goals_ms": goals_ms(&facts.goodput),
                "config": facts.config,
            }),
            times_from,
        })
    }

    /// Begins the rows of a run that began at `started`.
    pub(super) fn begin(mut self, started: Stamp) -> RowFile {
        self.known["started_at"] = started.seconds().into();
        self.known["started_at_ns"] = started.nanos().into();
        // Where the disk takes it not, the run goes on without it.
        let _ = std::fs::write(self.dir.join(BEGUN), format!("{:#}\n", self.known));
        RowFile {
            dir: self.dir,
            out: RowWriter::new(self.rows, self.times_from.of_run(started)),
        }
    }
}

impl RowFile {
    /// Adds the rows of a request; they reach the file with the next [`RowFile::flush`], or when enough have gathered.
    pub(super) fn write(&mut self, records: &[Row]) {
        self.go_on(|out| records.iter().try_for_each(|record| out.write(record)));
    }

    /// Hands all rows to the system, which has them whatever becomes of this process.
    pub(super) fn flush(&mut self) {
        self.go_on(RowWriter::flush);
    }

    /// Hands all rows to the disk and gives the file its name; where it is, and why it is not whole.
    pub(super) fn finish(mut self) -> (PathBuf, Result<(), Error>) {
        let partial = self.dir.join(PARTIAL);
        let whole = self.dir.join(ROWS);
        self.flush();
        // On the disk before they have the name: after a power cut it must not lead to half a file.
        self.go_on(|out| out.get_ref().sync_all());
        if let Err(cause) = self.out {
            let error = Error::file(&partial, cause);
            return (partial, Err(error));
        }
        match std::fs::rename(&partial, &whole) {
            Ok(()) => (whole, Ok(())),
            Err(cause) => (partial, Err(Error::file(&whole, cause))),
        }
    }

    fn go_on(&mut self, write: impl FnOnce(&mut RowWriter<File>) -> io::Result<()>) {
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

    /// The files of a run in `dir`, begun.
    fn begun(dir: &Path, line: &str) -> Files {
        let folder = Folder::new(Some(dir), true, "unused");
        let plan = planned(line);
        let schedule = plan.schedule().unwrap();
        let start = Stamp::from_nanos(0);
        begin(&folder, &plan, &schedule, start).unwrap();
        let facts = RunFacts {
            started: start,
            ended: start,
            offered_rate: None,
            scheduled: 1,
            config: Value::Null,
            goodput: Vec::new(),
            machine: Value::Null,
        };
        Files::new(dir, &facts, Base::Epoch).unwrap()
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
        let heads = SCHEDULE_COLUMNS.join(",");
        let rows = format!("{heads}\n1,7.500000000,3,4,t-1,\"'=a,b\"\n");
        assert_eq!(text, rows);
    }

    #[test]
    fn a_run_takes_the_place_of_all_that_one_left_which_ended_at_any_moment() {
        let root = tempfile::tempdir().unwrap();
        for file in FILES {
            std::fs::write(root.path().join(file), "left").unwrap();
        }
        begun(root.path(), "");
    }

    #[test]
    fn whole_rows_get_their_name_and_those_of_a_full_disk_do_not() {
        for is_full in [false, true] {
            let root = tempfile::tempdir().unwrap();
            let mut files = begun(root.path(), "");
            if is_full {
                files.rows = File::options().write(true).open("/dev/full").unwrap();
            }
            let mut rows = files.begin(Stamp::from_nanos(NANOS));
            let known = std::fs::read_to_string(root.path().join(BEGUN)).unwrap();
            assert!(known.contains("\"started_at\": 1.0"), "{known}");
            rows.flush();
            let (path, written) = rows.finish();
            let name = if is_full { PARTIAL } else { ROWS };
            assert_eq!(path, root.path().join(name));
            assert!(path.exists());
            assert_eq!(written.is_err(), is_full);
        }
    }
}
