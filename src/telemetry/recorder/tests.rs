use std::collections::BTreeMap;
use std::time::Duration;

use super::*;
use crate::clock::{ManualClock, NANOS};
use crate::request::sample::Sample;

const START: i64 = 1_795_186_080 * NANOS;

/// A folder with the records file `r.csv`.
struct Folder {
    folder: tempfile::TempDir,
    manual: ManualClock,
    file: RecordsFile,
}

impl Folder {
    fn new() -> Folder {
        let folder = tempfile::tempdir().unwrap();
        let (clock, manual) = Clock::manual(Stamp::from_nanos(START));
        let file = RecordsFile {
            path: folder.path().join("r.csv"),
            base: Stamp::EPOCH,
            rotation: Rotation::default(),
            clock,
        };
        Folder {
            folder,
            manual,
            file,
        }
    }

    /// A folder in which files are rotated after an hour.
    fn rotating_hourly() -> Folder {
        let mut folder = Folder::new();
        folder.file.rotation.age_nanos = 3600 * NANOS;
        folder
    }

    fn writer(&self) -> FileWriter {
        FileWriter::open(self.file.clone()).unwrap()
    }

    fn path(&self) -> &Path {
        &self.file.path
    }

    fn beside(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Asserts the names of all files, each with the ids of its rows.
    #[track_caller]
    fn has(&self, expected: &str) {
        let files = self.files().into_iter();
        let files = files.map(|(name, ids)| format!("{name}: {}", ids.join(" ")));
        assert_eq!(files.collect::<Vec<_>>().join(", "), expected);
    }

    /// All files by name, with the ids of their rows.
    fn files(&self) -> BTreeMap<String, Vec<String>> {
        let entries = std::fs::read_dir(self.folder.path()).unwrap();
        let named = |entry: std::io::Result<std::fs::DirEntry>| {
            let entry = entry.unwrap();
            (entry.file_name().into_string().unwrap(), ids(&entry.path()))
        };
        entries.map(named).collect()
    }
}

/// The lines of requests with these ids.
fn lines(ids: &str) -> Vec<u8> {
    let (mut row, mut lines) = (Sample::whole().row(), Vec::new());
    for id in ids.split(' ') {
        row.req_id = Some(id.to_owned());
        csv::row(&row, Stamp::EPOCH, &mut lines);
    }
    lines
}

/// Writes the lines of requests with these ids, one after another.
#[track_caller]
fn write(writer: &mut FileWriter, ids: &str) {
    ids.split(' ')
        .for_each(|id| writer.write(&lines(id)).unwrap());
}

/// The ids of the rows. Fails unless the file has one header and complete lines.
fn ids(path: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(path).unwrap();
    assert!(text.ends_with('\n'), "{path:?}: {text:?}");
    let mut rows = ::csv::Reader::from_reader(text.as_bytes());
    assert_eq!(&rows.headers().unwrap()[0], "req_id", "{path:?}");
    // The reader itself rejects a row with more or fewer cells than the header.
    let ids = rows.records().map(|row| row.unwrap()[0].to_owned());
    ids.collect()
}

#[test]
fn existing_records_of_any_version_are_moved_aside() {
    let folder = Folder::new();
    let torn = "req_id,of,another,version\n1,2,3,4\n5,6";
    std::fs::write(folder.path(), torn).unwrap();
    for id in ["a", "b"] {
        let mut writer = folder.writer();
        assert_eq!(ids(folder.path()), [""; 0]);
        write(&mut writer, id);
        writer.close();
    }
    let theirs = folder.beside("r.csv.20261120T144800Z");
    assert_eq!(std::fs::read_to_string(&theirs).unwrap(), torn);
    std::fs::remove_file(theirs).unwrap();
    folder.has("r.csv: b, r.csv.20261120T144800Z.1: a");
}

#[test]
fn a_moved_or_removed_file_is_replaced_by_a_new_one_as_soon_as_there_is_a_folder() {
    let folder = Folder::new();
    let mut writer = folder.writer();
    write(&mut writer, "a");
    // As logrotate moves it.
    std::fs::rename(folder.path(), folder.beside("r.csv.1")).unwrap();
    write(&mut writer, "b");
    folder.has("r.csv: b, r.csv.1: a");
    std::fs::remove_file(folder.path()).unwrap();
    write(&mut writer, "c");
    // Replaced by another process's file, which stays.
    std::fs::remove_file(folder.path()).unwrap();
    std::fs::copy(folder.beside("r.csv.1"), folder.path()).unwrap();
    write(&mut writer, "d");
    folder.has("r.csv: a, r.csv.1: a, r.csv.20261120T144800Z: d");
    // Rows are lost until a removed folder is back.
    std::fs::remove_dir_all(folder.folder.path()).unwrap();
    assert!(writer.write(&lines("lost")).is_err());
    std::fs::create_dir(folder.folder.path()).unwrap();
    write(&mut writer, "e");
    folder.has("r.csv: e");
}

#[test]
fn a_process_goes_on_with_its_own_file_when_another_takes_the_path() {
    let mut folder = Folder::new();
    // Full with the first row: the next one begins a file beside the path, which stays the other process's.
    folder.file.rotation.bytes = 1;
    let mut first = folder.writer();
    write(&mut first, "a");
    let mut second = folder.writer();
    write(&mut second, "b");
    write(&mut first, "c");
    let (moved, next) = ("r.csv.20261120T144800Z", "r.csv.20261120T144800Z.1");
    folder.has(&format!("r.csv: b, {moved}: a, {next}: c"));
    // The other process has ended, and its file was removed.
    drop(second);
    std::fs::remove_file(folder.path()).unwrap();
    write(&mut first, "d");
    folder.has(&format!("r.csv: d, {moved}: a, {next}: c"));
}

#[test]
fn a_process_without_a_row_leaves_no_file_and_keeps_the_link_to_it() {
    let folder = Folder::new();
    let displaced = folder.writer();
    write(&mut folder.writer(), "b");
    displaced.close();
    folder.has("r.csv: b");
    std::fs::remove_file(folder.path()).unwrap();
    std::os::unix::fs::symlink("far.csv", folder.path()).unwrap();
    folder.writer().close();
    assert!(folder.path().is_symlink());
    assert!(!folder.beside("far.csv").exists());
}

#[test]
fn an_open_file_of_any_process_is_written_to_without_a_header() {
    let (mut reader, pipe) = io::pipe().unwrap();
    let mut folder = Folder::new();
    folder.file.path = format!("/proc/{}/fd/{}", std::process::id(), pipe.as_raw_fd()).into();
    let mut writer = folder.writer();
    write(&mut writer, "a");
    writer.close();
    drop(pipe);
    let mut written = Vec::new();
    reader.read_to_end(&mut written).unwrap();
    assert_eq!(written, lines("a"));
}

#[test]
fn another_kind_of_file_is_not_moved() {
    let folder = Folder::new();
    std::fs::write(folder.path(), "[proxy]\n").unwrap();
    let refused = FileWriter::open(folder.file.clone());
    assert!(refused.unwrap_err().to_string().contains("something else"));
    assert_eq!(std::fs::read(folder.path()).unwrap(), b"[proxy]\n");
}

#[test]
fn a_link_stays_and_its_target_is_moved_within_the_targets_folder() {
    let folder = Folder::new();
    let far = folder.beside("far");
    std::fs::create_dir(&far).unwrap();
    std::os::unix::fs::symlink("far/real.csv", folder.path()).unwrap();
    for id in ["a", "b"] {
        write(&mut folder.writer(), id);
        assert_eq!(ids(&far.join("real.csv")), [id]);
    }
    assert!(folder.path().is_symlink());
    assert_eq!(std::fs::read_dir(far).unwrap().count(), 2);
}

#[test]
fn a_file_truncated_by_another_process_gets_a_header_again() {
    let folder = Folder::rotating_hourly();
    let mut writer = folder.writer();
    write(&mut writer, "a a");
    folder.manual.advance(Duration::from_secs(3000));
    // As logrotate's copytruncate does.
    let other = OpenOptions::new().write(true).open(folder.path()).unwrap();
    other.set_len(0).unwrap();
    write(&mut writer, "b");
    // Its age is that of its new first row.
    folder.manual.advance(Duration::from_secs(3000));
    write(&mut writer, "c");
    folder.has("r.csv: b c");
}

#[test]
fn a_full_file_is_moved_aside() {
    let mut folder = Folder::new();
    let mut header = Vec::new();
    csv::header(&mut header);
    folder.file.rotation.bytes = (header.len() + lines("a b").len()) as u64;
    let mut writer = folder.writer();
    for id in ["a", "b", "c", "d", "e"] {
        write(&mut writer, id);
        folder.manual.advance(Duration::from_millis(400));
    }
    // A block longer than the limit gets a file of its own, and no file is left without a row.
    writer.write(&lines("f g h")).unwrap();
    write(&mut writer, "i");
    folder.has("r.csv: i, r.csv.20261120T144800Z: a b, r.csv.20261120T144801Z: c d, r.csv.20261120T144802Z: e, r.csv.20261120T144802Z.1: f g h");
}

#[test]
fn a_file_ages_from_its_first_row() {
    let folder = Folder::rotating_hourly();
    let mut writer = folder.writer();
    // An empty file does not age.
    for (minutes, id) in [(100, "a"), (159, "b"), (160, "c"), (219, "d")] {
        let now = Stamp::from_nanos(START + minutes * 60 * NANOS);
        folder.manual.set(now);
        write(&mut writer, id);
    }
    folder.has("r.csv: c d, r.csv.20261120T172800Z: a b");
}

#[test]
fn a_file_that_cannot_be_moved_keeps_growing() {
    let mut folder = Folder::new();
    folder.file.rotation.bytes = 1;
    // Its name has the maximum length: the rotated one's would be longer.
    folder.file.path = folder.beside(&"r".repeat(255));
    write(&mut folder.writer(), "a b c");
    assert_eq!(ids(folder.path()), ["a", "b", "c"]);
}

#[test]
fn files_without_rows_do_not_displace_files_with_rows() {
    let mut folder = Folder::new();
    folder.file.rotation.keep = 2;
    for id in ["a", "b", "c"] {
        write(&mut folder.writer(), id);
        // Three processes are killed before their first row.
        for _ in 0..3 {
            folder.writer();
        }
        folder.manual.advance(Duration::from_secs(1));
    }
    let files = folder.files();
    let rows: Vec<&String> = files.values().flatten().collect();
    assert_eq!(rows, ["b", "c"]);
}

#[test]
fn no_name_is_used_twice_and_the_oldest_files_are_removed() {
    let mut folder = Folder::new();
    folder.file.rotation.keep = 2;
    std::fs::write(folder.beside("r.csv.20261120T144800Z"), "theirs").unwrap();
    // Each moves the one before away.
    (0..12).for_each(|n| write(&mut folder.writer(), &n.to_string()));
    folder.has("r.csv: 11, r.csv.20261120T144800Z.10: 9, r.csv.20261120T144800Z.11: 10");
    // After the clock was set back, the newest is kept though its name is the oldest.
    folder.manual.set(Stamp::from_nanos(1_700_000_000 * NANOS));
    write(&mut folder.writer(), "12");
    folder.has("r.csv: 12, r.csv.20231114T221320Z: 11, r.csv.20261120T144800Z.11: 10");
}

#[test]
fn a_file_that_cannot_be_created_is_an_error() {
    let folder = Folder::new();
    for path in ["no/r.csv", ""] {
        let mut file = folder.file.clone();
        file.path = folder.beside(path);
        let refused = start(file, 1000, &Metrics::new().unwrap()).unwrap_err();
        assert!(refused.to_string().contains(path), "{refused}");
    }
}
