//! What is read of logs that grow, turn, break off and vanish.

use std::fs;
use std::io::Write;

use super::*;
use crate::clock::{NANOS, Stamp};

const HOUR: &str = "sglang-request-metrics-20261122_07.log";
const NEXT: &str = "sglang-request-metrics-20261122_08.log";

fn hour(hour: usize) -> String {
    format!("sglang-request-metrics-20261122_{hour:02}.log")
}

/// A line of a request with this id and so many bytes of prompt.
fn line(id: &str, prompt: usize) -> String {
    let prompt = "\\\"id\\\": 1 ".repeat(prompt / 10);
    format!(
        "{{\"request_parameters\": \"{{{prompt}}}\", \"text\": \"{prompt}\", \"id\": \"{id}\", \"finish_reason\": \
         {{\"type\": \"length\"}}, \"prompt_tokens\": 25, \"num_retractions\": 0, \"forward_entry_time\": 1795170105.125, \
         \"prefill_finished_time\": 1795170105.5, \"queue_time\": 0.0625, \"completion_tokens\": 8, \"cached_tokens\": 24, \
         \"dp_rank\": null, \"request_received_ts\": 1795170105.0, \"first_token_latency\": 0.5625, \
         \"request_finished_ts\": 1795170106.0}}\n"
    )
}

struct Logs {
    root: tempfile::TempDir,
    folder: Folder,
}

impl Logs {
    fn new() -> Logs {
        let logs = Logs::without_folder();
        fs::create_dir(&logs.folder.path).unwrap();
        logs
    }

    fn without_folder() -> Logs {
        let root = tempfile::tempdir().unwrap();
        let folder = Folder::new(root.path().join("logs"));
        Logs { root, folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path.join(name)
    }

    fn append(&self, name: &str, text: &str) {
        let mut options = fs::OpenOptions::new();
        let file = options.create(true).append(true).open(self.path(name));
        file.unwrap().write_all(text.as_bytes()).unwrap();
    }

    /// The ids of the lines that have come, the folder's names listed anew.
    fn ids(&mut self) -> Vec<String> {
        self.folder.list_in = 0;
        self.looked()
    }

    /// The same in a look that need not list them.
    fn looked(&mut self) -> Vec<String> {
        let mut ids = Vec::new();
        self.folder.look(&mut |told| ids.extend(told.rid));
        ids.sort();
        ids
    }
}

#[test]
fn a_folder_that_comes_after_the_start_is_read_from_its_begin_and_tells_what_meta_info_does() {
    let mut logs = Logs::without_folder();
    assert_eq!(logs.ids(), [""; 0]);
    fs::create_dir(&logs.folder.path).unwrap();
    logs.append(HOUR, &line("a", 0));
    let mut all = Vec::new();
    logs.folder.list_in = 0;
    logs.folder.look(&mut |told| all.push(told));
    let at = |micros: i64| Some(Stamp::from_nanos(1_795_170_105 * NANOS + micros * 1000));
    let wanted = Told {
        rid: Some("a".into()),
        received: at(0),
        queue_start: at(62_500),
        queue_end: at(125_000),
        queue_nanos: Some(62_500_000),
        prefill_end: at(500_000),
        first_token: at(562_500),
        finished: at(1_000_000),
        prompt_tokens: Some(25),
        cached_tokens: Some(24),
        output_tokens: Some(8),
        num_retractions: Some(0),
        ..Told::of(crate::request::sequence::TimingSource::Log)
    };
    assert_eq!(all, [wanted]);
}

#[test]
fn only_what_comes_after_the_start_is_read_and_half_a_line_waits_for_its_end() {
    let mut logs = Logs::new();
    let (old, cut) = (line("old", 0), line("cut", 0));
    logs.append(HOUR, &format!("{old}{}", &cut[..60]));
    assert_eq!(logs.ids(), [""; 0]);
    // The begin of this line was before us.
    logs.append(HOUR, &cut[60..]);
    let long = line("long", 5_000_000);
    let (half, rest) = long.split_at(2_000_003);
    logs.append(HOUR, half);
    assert_eq!(logs.ids(), [""; 0]);
    logs.append(HOUR, rest);
    logs.append(HOUR, "no json\n{\"id\": \"torn\", ");
    logs.append(HOUR, &(line("a", 0) + &line("b", 0)));
    assert_eq!(logs.ids(), ["b", "long"]);
    assert_eq!(logs.ids(), [""; 0]);
}

#[test]
fn files_turn_are_renamed_cut_and_vanish() {
    let mut logs = Logs::new();
    logs.ids();
    logs.append(HOUR, &line("a", 0));
    logs.append(NEXT, &line("b", 0));
    logs.append("other.log", &line("none", 0));
    assert_eq!(logs.ids(), ["a", "b"]);
    // Renamed within the folder: goes on.
    fs::rename(logs.path(HOUR), logs.path("sglang-request-metrics-x.log")).unwrap();
    logs.append("sglang-request-metrics-x.log", &line("c", 0));
    logs.append(HOUR, &line("d", 0));
    assert_eq!(logs.ids(), ["c", "d"]);
    // Cut, and begun anew.
    fs::write(logs.path(HOUR), "").unwrap();
    assert_eq!(logs.ids(), [""; 0]);
    logs.append(HOUR, &line("e", 0));
    assert_eq!(logs.ids(), ["e"]);
    // Written to once more, then gone: its end is read.
    logs.append(NEXT, &line("f", 0));
    fs::remove_file(logs.path(NEXT)).unwrap();
    assert_eq!(logs.ids(), ["f"]);
    assert_eq!(logs.folder.open.len(), 2);
    // The folder goes and comes back: all in it is new.
    let away = logs.root.path().join("away");
    fs::rename(&logs.folder.path, away).unwrap();
    assert_eq!(logs.ids(), [""; 0]);
    fs::create_dir(&logs.folder.path).unwrap();
    logs.append(NEXT, &line("g", 0));
    assert_eq!(logs.ids(), ["g"]);
}

#[test]
fn a_folder_of_many_hours_holds_few_files_open() {
    let mut logs = Logs::new();
    for n in 0..40 {
        logs.append(&hour(n), &line("old", 0));
    }
    logs.ids();
    assert_eq!(logs.folder.open.len(), FILES);
    logs.append(&hour(39), &line("new", 0));
    logs.append(&hour(40), &line("newer", 0));
    assert_eq!(logs.ids(), ["new", "newer"]);
    assert_eq!(logs.folder.open.len(), FILES);
}

#[test]
fn the_folder_is_listed_now_and_then() {
    let mut logs = Logs::new();
    logs.append(HOUR, "");
    logs.ids();
    logs.append(NEXT, &line("b", 0));
    logs.append(HOUR, &line("a", 0));
    assert_eq!(logs.looked(), ["a"]);
    for _ in 2..LIST_EVERY {
        assert_eq!(logs.looked(), [""; 0]);
    }
    assert_eq!(logs.looked(), ["b"]);
}

#[test]
fn what_is_no_file_is_not_opened() {
    let mut logs = Logs::new();
    let mut pipe = std::process::Command::new("mkfifo");
    assert!(pipe.arg(logs.path(NEXT)).status().unwrap().success());
    std::os::unix::fs::symlink(logs.path(NEXT), logs.path(&hour(9))).unwrap();
    logs.ids();
    logs.append(HOUR, &line("a", 0));
    assert_eq!(logs.ids(), ["a"]);
}

#[test]
fn a_log_that_returns_among_the_newest_is_not_read_anew() {
    let mut logs = Logs::new();
    for n in 0..FILES {
        logs.append(&hour(n), &line("before", 0));
    }
    logs.ids();
    logs.append(&hour(0), &line("a", 0));
    assert_eq!(logs.ids(), ["a"]);
    // A newer one takes its place, and goes.
    logs.append(&hour(FILES), &line("b", 0));
    assert_eq!(logs.ids(), ["b"]);
    fs::remove_file(logs.path(&hour(FILES))).unwrap();
    assert_eq!(logs.ids(), [""; 0]);
    logs.append(&hour(0), &line("c", 0));
    assert_eq!(logs.ids(), ["c"]);
}

#[test]
fn a_look_that_fails_makes_nothing_new_or_old() {
    // Its folder is a file meanwhile, so what lies in it cannot be looked at.
    let mut logs = Logs::new();
    logs.append(HOUR, &line("before", 0));
    let (folder, aside) = (logs.folder.path.clone(), logs.root.path().join("aside"));
    let hide = || {
        fs::rename(&folder, &aside).unwrap();
        fs::write(&folder, "").unwrap();
    };
    let show = || {
        fs::remove_file(&folder).unwrap();
        fs::rename(&aside, &folder).unwrap();
    };
    hide();
    assert_eq!(logs.ids(), [""; 0]);
    show();
    assert_eq!(logs.ids(), [""; 0]);
    logs.append(HOUR, &line("a", 0));
    assert_eq!(logs.ids(), ["a"]);
    hide();
    assert_eq!(logs.ids(), [""; 0]);
    show();
    logs.append(NEXT, &line("b", 0));
    assert_eq!(logs.ids(), ["b"]);
}
