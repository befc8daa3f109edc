use std::collections::BTreeMap;
use std::path::PathBuf;

use super::*;
use crate::clock::{Clock, ManualClock, NANOS};
use crate::request::endpoint::Endpoint;
use crate::request::observer::{End, Observer};
use crate::request::timeline::{Moment, Side};
use crate::telemetry::recorder::Recorder;
use crate::telemetry::rotation::Rotation;

const START: i64 = 1_795_186_080 * NANOS;

struct Folder {
    folder: tempfile::TempDir,
    hand: ManualClock,
    file: RecordsFile,
    metrics: Metrics,
}

impl Folder {
    fn new(rotation: Rotation) -> Folder {
        let folder = tempfile::tempdir().unwrap();
        let (clock, hand) = Clock::manual(Stamp::from_nanos(START));
        let file = RecordsFile {
            path: folder.path().join("r.csv"),
            base: TimeBase::Epoch,
            rotation,
            clock,
        };
        Folder {
            folder,
            hand,
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
    csv::row(&observed.into_records(None)[0], base, &mut line);
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

fn torn(path: &Path, bytes: &[u8]) {
    let mut file = OpenOptions::new().append(true).open(path).unwrap();
    file.write_all(bytes).unwrap();
}

fn map(expected: &[(&str, &[&str])]) -> BTreeMap<String, Vec<String>> {
    let owned = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect();
    let files = expected.iter();
    files
        .map(|(name, ids)| ((*name).to_owned(), owned(ids)))
        .collect()
}

#[test]
fn rows_go_to_the_file_that_stands_there_now() {
    let folder = Folder::new(Rotation::default());
    let mut sink = folder.sink();
    sink.write(&folder.line("a")).unwrap();
    std::fs::rename(folder.path(), folder.folder.path().join("r.csv.1")).unwrap();
    std::fs::File::create(folder.path()).unwrap();
    sink.write(&folder.line("b")).unwrap();
    assert_eq!(
        folder.files(),
        map(&[("r.csv", &["b"]), ("r.csv.1", &["a"])])
    );
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
    folder.hand.advance(Duration::from_secs(3000));
    // As logrotate's copytruncate does.
    let other = OpenOptions::new().write(true).open(folder.path()).unwrap();
    other.set_len(0).unwrap();
    sink.write(&folder.line("b")).unwrap();
    // It is as old as its first row now.
    folder.hand.advance(Duration::from_secs(3000));
    sink.write(&folder.line("c")).unwrap();
    assert_eq!(folder.files(), map(&[("r.csv", &["b", "c"])]));
}

#[test]
fn a_line_torn_by_a_killed_process_costs_no_row_of_another() {
    let folder = Folder::new(Rotation::default());
    let mut sink = folder.sink();
    // Short of a line end; within the header; the header without its end.
    let header = sink.header.clone();
    sink.write(&folder.line("a")).unwrap();
    torn(folder.path(), b"b,Tru");
    sink.write(&folder.line("c")).unwrap();
    assert_eq!(folder.files(), map(&[("r.csv", &["a", "c"])]));
    // Longer than one look back.
    torn(folder.path(), &[b'x'; 10_000]);
    folder.sink();
    assert_eq!(folder.files(), map(&[("r.csv", &["a", "c"])]));
    for cut in [1, 20, header.len() - 1] {
        std::fs::write(folder.path(), &header[..cut]).unwrap();
        sink.write(&folder.line("d")).unwrap();
        assert_eq!(folder.files(), map(&[("r.csv", &["d"])]));
        std::fs::write(folder.path(), &header[..cut]).unwrap();
        folder.sink();
        assert_eq!(folder.files(), map(&[("r.csv", &[])]));
    }
}

#[test]
fn a_file_that_is_full_moves_away() {
    let mut folder = Folder::new(Rotation::default());
    let line = folder.line("a").len() as u64;
    let header = folder.sink().header.len() as u64;
    folder.file.rotation.bytes = header + 2 * line;
    let mut sink = folder.sink();
    for id in ["a", "b", "c", "d", "e"] {
        sink.write(&folder.line(id)).unwrap();
        folder.hand.advance(Duration::from_millis(400));
    }
    // Longer than the limit by itself: it gets a file of its own, and no file is left without a row.
    let block: Vec<u8> = ["f", "g", "h"]
        .iter()
        .flat_map(|id| folder.line(id))
        .collect();
    sink.write(&block).unwrap();
    sink.write(&folder.line("i")).unwrap();
    assert_eq!(
        folder.files(),
        map(&[
            ("r.csv", &["i"]),
            ("r.csv.20261120T144800Z", &["a", "b"]),
            ("r.csv.20261120T144801Z", &["c", "d"]),
            ("r.csv.20261120T144802Z", &["e"]),
            ("r.csv.20261120T144802Z.1", &["f", "g", "h"]),
        ])
    );
    let text = String::from_utf8(folder.metrics.text().unwrap()).unwrap();
    assert!(
        text.contains("queuescope_records_rotations_total 4"),
        "{text}"
    );
}

#[test]
fn a_file_ages_from_its_first_row_whoever_wrote_it() {
    for base in [TimeBase::Epoch, TimeBase::Since(Stamp::from_nanos(START))] {
        let mut folder = Folder::new(Rotation {
            age_nanos: 3600 * NANOS,
            ..Rotation::default()
        });
        folder.file.base = base;
        let write = |sink: &mut Sink, minutes: i64, id: &str| {
            let now = Stamp::from_nanos(START + minutes * 60 * NANOS);
            folder.hand.set(now);
            sink.write(&folder.line(id)).unwrap();
        };
        let mut ours = folder.sink();
        // An empty file does not age.
        write(&mut ours, 100, "a");
        let mut theirs = folder.sink();
        write(&mut ours, 159, "b");
        write(&mut theirs, 159, "c");
        write(&mut theirs, 160, "d");
        write(&mut ours, 219, "e");
        // Opened anew by a process that wrote none of its rows; opening alone moves nothing.
        folder.hand.set(Stamp::from_nanos(START + 300 * 60 * NANOS));
        let mut third = folder.sink();
        assert_eq!(folder.files().len(), 2);
        write(&mut third, 300, "f");
        write(&mut ours, 301, "g");
        assert_eq!(
            folder.files(),
            map(&[
                ("r.csv", &["f", "g"]),
                ("r.csv.20261120T172800Z", &["a", "b", "c"]),
                ("r.csv.20261120T194800Z", &["d", "e"]),
            ]),
            "{base:?}"
        );
    }
}

#[test]
fn who_holds_the_lock_for_ever_costs_rows_not_the_thread() {
    let folder = Folder::new(Rotation::default());
    let mut sink = folder.sink();
    sink.patience = 20;
    let other = File::open(folder.path()).unwrap();
    other.lock().unwrap();
    let error = sink.write(&folder.line("a")).unwrap_err();
    assert!(error.to_string().contains("another process"), "{error}");
    other.unlock().unwrap();
    sink.write(&folder.line("b")).unwrap();
    assert_eq!(folder.files(), map(&[("r.csv", &["b"])]));
}

#[test]
fn a_file_that_cannot_be_moved_grows_on() {
    let folder = Folder::new(Rotation {
        bytes: 1,
        ..Rotation::default()
    });
    let mut sink = folder.sink();
    sink.write(&folder.line("a")).unwrap();
    // Its name is as long as a name may be: the rotated one's would be longer.
    let long = folder.folder.path().join("r".repeat(255));
    std::fs::rename(folder.path(), &long).unwrap();
    let mut target = folder.file.clone();
    target.path = long.clone();
    let mut sink = Sink::open(target, folder.metrics.clone()).unwrap();
    sink.write(&folder.line("b")).unwrap();
    sink.write(&folder.line("c")).unwrap();
    assert_eq!(ids(&long), ["a", "b", "c"]);
}

#[test]
fn another_files_header_is_not_written_under() {
    let folder = Folder::new(Rotation::default());
    let mut sink = folder.sink();
    std::fs::remove_file(folder.path()).unwrap();
    std::fs::write(folder.path(), "time,what\n1,2\nx").unwrap();
    let error = sink.write(&folder.line("a")).unwrap_err();
    assert!(error.to_string().contains("another file"), "{error}");
    let text = std::fs::read_to_string(folder.path()).unwrap();
    assert_eq!(text, "time,what\n1,2\nx");
}

/// Several writers as two processes have them, each with files of its own opening.
#[test]
fn writers_in_parallel_lose_and_double_nothing() {
    const WRITERS: usize = 3;
    const ROWS: usize = 1500;
    let mut folder = Folder::new(Rotation::default());
    folder.file.clock = Clock::system();
    folder.file.rotation.bytes = 30_000;
    let writer = |writer: usize| {
        let recorder = Recorder::start(folder.file.clone(), ROWS, folder.metrics.clone()).unwrap();
        for n in 0..ROWS {
            let observer = Observer::new(Side::Front, Endpoint::Generate, format!("{writer}-{n}"));
            let now = folder.file.clock.now();
            recorder.record(observer.finish(End::Complete, now).into_records(None));
            if n % 40 == writer {
                std::thread::yield_now();
            }
            // As if a process had been killed while it wrote: it holds the lock until it is gone.
            if n % 500 == 250 {
                kill_in_the_middle(folder.path());
            }
        }
        recorder.close();
    };
    std::thread::scope(|scope| {
        for n in 0..WRITERS {
            scope.spawn(move || writer(n));
        }
    });
    let files = folder.files();
    let mut all: Vec<String> = files.values().flatten().cloned().collect();
    all.sort();
    let writers = 0..WRITERS;
    let mut expected: Vec<String> = writers
        .flat_map(|writer| (0..ROWS).map(move |n| format!("{writer}-{n}")))
        .collect();
    expected.sort();
    assert!(all == expected, "{} rows of {}", all.len(), expected.len());
    assert!(files.len() > 1, "{} files", files.len());
    let text = String::from_utf8(folder.metrics.text().unwrap()).unwrap();
    let rotations = format!("queuescope_records_rotations_total {}", files.len() - 1);
    assert!(text.lines().any(|line| line == rotations), "{text}");
}

/// Writes a piece of a line under the lock, and goes.
fn kill_in_the_middle(path: &Path) {
    let Ok(mut file) = OpenOptions::new().append(true).open(path) else {
        return;
    };
    file.lock().unwrap();
    let len = file.metadata().unwrap().len();
    let is_there =
        std::fs::metadata(path).is_ok_and(|there| there.ino() == file.metadata().unwrap().ino());
    if is_there && len > 0 {
        file.write_all(b"torn,True,").unwrap();
    }
}
