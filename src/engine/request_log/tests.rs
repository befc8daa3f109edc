//! Logs that grow, rotate, are truncated and vanish.

use std::fs;
use std::io::Write;
use std::sync::Arc;

use super::*;
use crate::clock::{Clock, NANOS, Stamp};
use crate::engine::join::{EndedRequest, JoinTable};
use crate::engine::{JoinOutput, Joiner};
use crate::request::{Endpoint, Outcome, Row, Side};
use crate::telemetry::Telemetry;
use crate::telemetry::prometheus::Metrics;
use crate::telemetry::queue::Queue;

const HOUR: &str = "sglang-request-metrics-20261122_07.log";
const NEXT: &str = "sglang-request-metrics-20261122_08.log";

fn hour(hour: usize) -> String {
    format!("sglang-request-metrics-20261122_{hour:02}.log")
}

/// A line of a request with this id and this number of bytes in its prompt.
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
    folder: LogFolder,
}

impl Logs {
    fn new() -> Logs {
        let logs = Logs::without_folder();
        fs::create_dir(&logs.folder.path).unwrap();
        logs
    }

    fn without_folder() -> Logs {
        let root = tempfile::tempdir().unwrap();
        let folder = LogFolder {
            path: root.path().join("logs"),
            ..LogFolder::default()
        };
        Logs { root, folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join("logs").join(name)
    }

    fn append(&self, name: &str, text: &str) {
        let mut options = fs::OpenOptions::new();
        let file = options.create(true).append(true).open(self.path(name));
        file.unwrap().write_all(text.as_bytes()).unwrap();
    }

    /// Returns the ids of the new lines.
    fn ids(&mut self) -> Vec<String> {
        let reports = self.folder.poll().0.into_iter();
        let mut ids: Vec<String> = reports.filter_map(|report| report.rid).collect();
        ids.sort();
        ids
    }
}

#[test]
fn a_folder_created_after_the_start_is_read_from_its_beginning_and_reports_what_meta_info_does() {
    let mut logs = Logs::without_folder();
    assert_eq!(logs.ids(), [""; 0]);
    fs::create_dir(&logs.folder.path).unwrap();
    logs.append(HOUR, &line("a", 0));
    let (all, _) = logs.folder.poll();
    let at = |micros: i64| Some(Stamp::from_nanos(1_795_170_105 * NANOS + micros * 1000));
    let expected = EngineReport {
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
        ..EngineReport::of(TimingSource::Log)
    };
    assert_eq!(all, [expected]);
}

#[test]
fn only_lines_after_the_start_are_read_and_half_a_line_waits_for_its_end() {
    let mut logs = Logs::new();
    let (old, cut) = (line("old", 0), line("cut", 0));
    logs.append(HOUR, &format!("{old}{}", &cut[..60]));
    assert_eq!(logs.ids(), [""; 0]);
    // The beginning of this line was written before the start.
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
fn files_may_rotate_be_renamed_be_truncated_and_vanish() {
    let mut logs = Logs::new();
    logs.ids();
    logs.append(HOUR, &line("a", 0));
    logs.append(NEXT, &line("b", 0));
    logs.append("other.log", &line("none", 0));
    assert_eq!(logs.ids(), ["a", "b"]);
    // A renamed file goes on.
    fs::rename(logs.path(HOUR), logs.path("sglang-request-metrics-x.log")).unwrap();
    logs.append("sglang-request-metrics-x.log", &line("c", 0));
    logs.append(HOUR, &line("d", 0));
    assert_eq!(logs.ids(), ["c", "d"]);
    // A truncated file is read from its beginning.
    fs::write(logs.path(HOUR), "").unwrap();
    assert_eq!(logs.ids(), [""; 0]);
    logs.append(HOUR, &line("e", 0));
    assert_eq!(logs.ids(), ["e"]);
    // The folder is removed and created again: all in it is new.
    let away = logs.root.path().join("away");
    fs::rename(&logs.folder.path, away).unwrap();
    assert_eq!(logs.ids(), [""; 0]);
    fs::create_dir(&logs.folder.path).unwrap();
    logs.append(NEXT, &line("g", 0));
    assert_eq!(logs.ids(), ["g"]);
}

#[test]
fn of_many_hours_few_are_read_and_one_that_is_again_among_the_latest_is_not_read_again() {
    let mut logs = Logs::new();
    for n in 0..40 {
        logs.append(&hour(n), &line("old", 0));
    }
    logs.ids();
    let oldest = hour(40 - MAX_FILES);
    logs.append(&oldest, &line("a", 0));
    logs.append(&hour(39 - MAX_FILES), &line("older", 0));
    assert_eq!(logs.ids(), ["a"]);
    // A newer one displaces it, and is removed.
    logs.append(&hour(39), &line("new", 0));
    logs.append(&hour(40), &line("newer", 0));
    assert_eq!(logs.ids(), ["new", "newer"]);
    fs::remove_file(logs.path(&hour(40))).unwrap();
    assert_eq!(logs.ids(), [""; 0]);
    logs.append(&oldest, &line("c", 0));
    assert_eq!(logs.ids(), ["c"]);
}

#[test]
fn a_pipe_is_not_opened() {
    let mut logs = Logs::new();
    let mut pipe = std::process::Command::new("mkfifo");
    assert!(pipe.arg(logs.path(NEXT)).status().unwrap().success());
    std::os::unix::fs::symlink(logs.path(NEXT), logs.path(&hour(9))).unwrap();
    logs.ids();
    logs.append(HOUR, &line("a", 0));
    assert_eq!(logs.ids(), ["a"]);
}

#[test]
fn a_listing_that_fails_changes_nothing() {
    // A file at the folder's path makes the listing fail.
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

/// Joins one request, which waits until `end` at most, until the process's end. Returns how many lines were joined.
fn joined(logs: LogReader, end: Stamp) -> u64 {
    let clock = Clock::system();
    let now = clock.now();
    let row = Row {
        engine_id: Some("a".into()),
        outcome: Some(Outcome::Ok),
        ..Row::new(Side::Front, Endpoint::Chat, "q".into())
    };
    let mut table = JoinTable::new(1);
    let waiting = EndedRequest {
        rows: vec![row],
        expected_source: TimingSource::Log,
        at: now,
        deadline: now.plus_seconds(60.0),
    };
    table.add_request(waiting).unwrap();
    let metrics = Metrics::new().unwrap();
    let joiner = Joiner {
        inbox: Queue::new(1).1,
        output: JoinOutput {
            telemetry: Arc::new(Telemetry::new(None, metrics.clone(), true, clock.clone())),
            clocks: Arc::default(),
            roles: Arc::default(),
        },
        clock,
        table,
        logs: Some(logs),
        end: Some(end),
    };
    joiner.run();
    assert_eq!(metrics.engine_waiting.with(&[]).get(), 0);
    metrics.engine_joins.with(&["log", "joined"]).get()
}

#[test]
fn a_request_that_waits_gets_its_line_while_the_process_runs_and_at_its_end() {
    let now = Clock::system().now();
    // The last requests have waited long enough when the end has come.
    for end in [now.plus_seconds(60.0), now] {
        let mut logs = Logs::new();
        let reader = LogReader::start(std::mem::take(&mut logs.folder));
        // The last reading begins after this one, and after the last line.
        assert_eq!(reader.readings.recv(), Ok(Vec::new()));
        // More than is read at once.
        for _ in 0..2 {
            logs.append(HOUR, &("x".repeat(MAX_READ_BYTES as usize) + "\n"));
        }
        logs.append(HOUR, &line("a", 0));
        assert_eq!(joined(reader, end), 1, "{end:?}");
    }
}

#[test]
fn a_disk_that_never_answers_holds_up_neither_rows_nor_the_end() {
    let (_sender, readings) = mpsc::sync_channel(0);
    let reader = LogReader {
        path: PathBuf::new(),
        stop: mpsc::channel().0,
        readings,
        silence: Duration::ZERO,
    };
    assert_eq!(
        joined(reader, Clock::system().now().plus_nanos(NANOS / 10)),
        0
    );
}

#[test]
fn a_disk_is_silent_after_two_seconds_of_polls_without_a_reading_until_one_comes() {
    let (sender, readings) = mpsc::sync_channel(1);
    let mut reader = LogReader {
        path: PathBuf::new(),
        stop: mpsc::channel().0,
        readings,
        silence: Duration::ZERO,
    };
    let period = TIMEOUT / 8;
    for _ in 0..2 {
        for polls in 1..=9 {
            reader.poll(period);
            assert_eq!(reader.silence >= TIMEOUT, polls >= 8, "{polls}");
        }
        sender.send(Vec::new()).unwrap();
        reader.poll(period);
    }
}
