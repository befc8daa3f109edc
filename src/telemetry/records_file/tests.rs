use std::collections::BTreeMap;
use std::time::Duration;

use super::*;
use crate::clock::{ManualClock, NANOS};
use crate::request::endpoint::Endpoint;
use crate::request::observer::{End, Observer};
use crate::request::row::Row;
use crate::request::timeline::{Moment, Side};

const START: i64 = 1_795_186_080 * NANOS;

struct Folder {
    folder: tempfile::TempDir,
    manual: ManualClock,
    file: RecordsFile,
    metrics: Metrics,
}

impl Folder {
    fn new(rotation: Rotation) -> Folder {
        let folder = tempfile::tempdir().unwrap();
        let (clock, manual) = Clock::manual(Stamp::from_nanos(START));
        let file = RecordsFile {
            path: folder.path().join("r.csv"),
            base: TimeBase::Epoch,
            rotation,
            clock,
        };
        Folder {
            folder,
            manual,
            file,
            metrics: Metrics::new().unwrap(),
        }
    }

    fn sink(&self) -> Sink {
        Sink::open(self.file.clone(), self.metrics.clone()).unwrap()
    }

    fn path(&self) -> &Path {
        &self.file.path
    }

    /// A line whose request ends now.
    fn line(&self, id: &str) -> Vec<u8> {
        row(id, self.file.clock.now(), self.file.base)
    }

    /// Holds all files by name, each with its rows' ids, to what is expected.
    #[track_caller]
    fn has(&self, expected: &str) {
        let files = self.files().into_iter();
        let files = files.map(|(name, ids)| format!("{name}: {}", ids.join(" ")));
        assert_eq!(files.collect::<Vec<_>>().join(", "), expected);
    }

    /// All files by name, with their rows' ids. Fails unless each has one header and whole lines.
    fn files(&self) -> BTreeMap<String, Vec<String>> {
        let entries = std::fs::read_dir(self.folder.path()).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        let named = |path: PathBuf| {
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            (name, ids(&path))
        };
        paths.map(named).collect()
    }
}

fn row(id: &str, ended: Stamp, base: TimeBase) -> Vec<u8> {
    let mut observer = Observer::new(Side::Front, Endpoint::Generate, id.into());
    let arrival = ended.plus_nanos(-NANOS);
    observer.timeline_mut().set(Moment::Arrival, arrival);
    let observed = observer.finish(End::Complete, ended);
    let mut line = Vec::new();
    csv::row(&Row::ended(observed)[0], base, &mut line);
    line
}

fn ids(path: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(path).unwrap();
    assert!(text.ends_with('\n'), "{path:?}: {text:?}");
    let mut lines = text.lines();
    let header = lines.next().unwrap();
    assert!(header.starts_with("req_id,"), "{path:?}: {header}");
    let columns = header.split(',').count();
    lines
        .map(|line| {
            assert_eq!(line.split(',').count(), columns, "{path:?}: {line}");
            line.split(',').next().unwrap().into()
        })
        .collect()
}

#[test]
fn records_that_lie_there_are_moved_aside_whatever_their_version() {
    let folder = Folder::new(Rotation::default());
    let torn = "req_id,of,another,version\n1,2,3,4\n5,6";
    std::fs::write(folder.path(), torn).unwrap();
    for id in ["a", "b"] {
        let mut sink = folder.sink();
        assert_eq!(ids(folder.path()), [""; 0]);
        sink.write(&folder.line(id)).unwrap();
        sink.close();
    }
    let theirs = folder.folder.path().join("r.csv.20261120T144800Z");
    assert_eq!(std::fs::read_to_string(&theirs).unwrap(), torn);
    std::fs::remove_file(theirs).unwrap();
    folder.has("r.csv: b, r.csv.20261120T144800Z.1: a");
}

#[test]
fn a_file_that_was_moved_or_removed_is_begun_anew() {
    let folder = Folder::new(Rotation::default());
    let mut sink = folder.sink();
    sink.write(&folder.line("a")).unwrap();
    // As logrotate moves it.
    std::fs::rename(folder.path(), folder.folder.path().join("r.csv.1")).unwrap();
    sink.write(&folder.line("b")).unwrap();
    folder.has("r.csv: b, r.csv.1: a");
    std::fs::remove_file(folder.path()).unwrap();
    sink.write(&folder.line("c")).unwrap();
    // Removed, and somebody else's is there: that one stays.
    std::fs::remove_file(folder.path()).unwrap();
    std::fs::copy(folder.folder.path().join("r.csv.1"), folder.path()).unwrap();
    sink.write(&folder.line("d")).unwrap();
    folder.has("r.csv: a, r.csv.1: a, r.csv.20261120T144800Z: d");
}

#[test]
fn a_process_writes_on_to_its_own_file_when_another_takes_the_path() {
    let mut folder = Folder::new(Rotation::default());
    // Full with the first row: the next one begins a file beside the path, which it does not take back.
    folder.file.rotation.bytes = 1;
    let mut first = folder.sink();
    first.write(&folder.line("a")).unwrap();
    let mut second = folder.sink();
    second.write(&folder.line("b")).unwrap();
    first.write(&folder.line("c")).unwrap();
    let (moved, next) = ("r.csv.20261120T144800Z", "r.csv.20261120T144800Z.1");
    folder.has(&format!("r.csv: b, {moved}: a, {next}: c"));
    // The other is gone, and its file with it.
    drop(second);
    std::fs::remove_file(folder.path()).unwrap();
    first.write(&folder.line("d")).unwrap();
    folder.has(&format!("r.csv: d, {moved}: a, {next}: c"));
}

#[test]
fn a_displaced_process_without_a_row_leaves_no_file() {
    let folder = Folder::new(Rotation::default());
    let first = folder.sink();
    let mut second = folder.sink();
    second.write(&folder.line("b")).unwrap();
    first.close();
    folder.has("r.csv: b");
}

#[test]
fn what_is_no_records_file_is_not_moved() {
    let folder = Folder::new(Rotation::default());
    std::fs::write(folder.path(), "[proxy]\n").unwrap();
    let refused = Sink::open(folder.file.clone(), Metrics::new().unwrap());
    assert!(refused.unwrap_err().to_string().contains("something else"));
    assert_eq!(std::fs::read(folder.path()).unwrap(), b"[proxy]\n");
}

#[test]
fn a_process_without_a_row_leaves_the_link_to_its_file() {
    let folder = Folder::new(Rotation::default());
    std::os::unix::fs::symlink("far.csv", folder.path()).unwrap();
    folder.sink().close();
    assert!(folder.path().is_symlink());
    assert!(!folder.folder.path().join("far.csv").exists());
}

#[test]
fn a_link_stays_where_it_is_and_what_it_leads_to_moves_within_its_own_folder() {
    let folder = Folder::new(Rotation::default());
    let far = folder.folder.path().join("far");
    std::fs::create_dir(&far).unwrap();
    std::os::unix::fs::symlink("far/real.csv", folder.path()).unwrap();
    for id in ["a", "b"] {
        folder.sink().write(&folder.line(id)).unwrap();
        assert_eq!(ids(&far.join("real.csv")), [id]);
    }
    assert!(folder.path().is_symlink());
    assert_eq!(std::fs::read_dir(far).unwrap().count(), 2);
}

#[test]
fn a_file_cut_off_under_us_gets_a_header_again() {
    let folder = Folder::new(Rotation {
        age_nanos: 3600 * NANOS,
        ..Rotation::default()
    });
    let mut sink = folder.sink();
    for id in ["a", "a"] {
        sink.write(&folder.line(id)).unwrap();
    }
    folder.manual.advance(Duration::from_secs(3000));
    // As logrotate's copytruncate does.
    let other = OpenOptions::new().write(true).open(folder.path()).unwrap();
    other.set_len(0).unwrap();
    sink.write(&folder.line("b")).unwrap();
    // It is as old as its first row now.
    folder.manual.advance(Duration::from_secs(3000));
    sink.write(&folder.line("c")).unwrap();
    folder.has("r.csv: b c");
}

#[test]
fn a_file_that_is_full_moves_away() {
    let mut folder = Folder::new(Rotation::default());
    let line = folder.line("a").len() as u64;
    let sink = folder.sink();
    let header = sink.header.len() as u64;
    sink.close();
    folder.file.rotation.bytes = header + 2 * line;
    let mut sink = folder.sink();
    for id in ["a", "b", "c", "d", "e"] {
        sink.write(&folder.line(id)).unwrap();
        folder.manual.advance(Duration::from_millis(400));
    }
    // Longer than the limit by itself: it gets a file of its own, and no file is left without a row.
    let block: Vec<u8> = ["f", "g", "h"]
        .iter()
        .flat_map(|id| folder.line(id))
        .collect();
    sink.write(&block).unwrap();
    sink.write(&folder.line("i")).unwrap();
    folder.has("r.csv: i, r.csv.20261120T144800Z: a b, r.csv.20261120T144801Z: c d, r.csv.20261120T144802Z: e, r.csv.20261120T144802Z.1: f g h");
    let text = folder.metrics.text();
    assert!(
        text.contains("queuescope_records_rotations_total 4"),
        "{text}"
    );
}

#[test]
fn a_file_ages_from_its_first_row() {
    for base in [TimeBase::Epoch, TimeBase::Since(Stamp::from_nanos(START))] {
        let mut folder = Folder::new(Rotation {
            age_nanos: 3600 * NANOS,
            ..Rotation::default()
        });
        folder.file.base = base;
        let mut sink = folder.sink();
        // An empty file does not age.
        for (minutes, id) in [(100, "a"), (159, "b"), (160, "c"), (219, "d")] {
            let now = Stamp::from_nanos(START + minutes * 60 * NANOS);
            folder.manual.set(now);
            sink.write(&folder.line(id)).unwrap();
        }
        folder.has("r.csv: c d, r.csv.20261120T172800Z: a b");
    }
}

#[test]
fn a_file_that_cannot_be_moved_grows_on() {
    let mut folder = Folder::new(Rotation {
        bytes: 1,
        ..Rotation::default()
    });
    // Its name is as long as a name may be: the rotated one's would be longer.
    folder.file.path = folder.folder.path().join("r".repeat(255));
    let mut sink = folder.sink();
    for id in ["a", "b", "c"] {
        sink.write(&folder.line(id)).unwrap();
    }
    assert_eq!(ids(folder.path()), ["a", "b", "c"]);
}

#[test]
fn files_without_a_row_push_out_none_that_have_some() {
    let folder = Folder::new(Rotation {
        keep: 2,
        ..Rotation::default()
    });
    for id in ["a", "b", "c"] {
        folder.sink().write(&folder.line(id)).unwrap();
        // Killed before it had a row, three times.
        for _ in 0..3 {
            folder.sink();
        }
        folder.manual.advance(Duration::from_secs(1));
    }
    let files = folder.files();
    let rows: Vec<&String> = files.values().flatten().collect();
    assert_eq!(rows, ["b", "c"]);
}
