use std::path::{Path, PathBuf};

use super::*;
use crate::clock::Stamp;
use crate::report::files::RunRef;
use crate::report::load::tests::*;
use crate::report::page;
use crate::report::render::to_text;
use crate::request::{COLUMNS, Unit};

impl Run {
    /// A run with these rows and nothing else.
    pub(in crate::report) fn of_table(table: Table) -> Run {
        Run {
            table,
            ..Run::default()
        }
    }

    /// A run as it is read from a file with these rows.
    pub(in crate::report) fn of_rows(records: &[Row]) -> Run {
        let folder = tempfile::tempdir().unwrap();
        let rows = rows(records, at(0));
        read(write(folder.path(), "requests.csv", rows))
    }

    /// The same with rows as of [`Table::of_lines`].
    pub(in crate::report) fn of_lines(rows: impl IntoIterator<Item = impl AsRef<str>>) -> Run {
        Run::of_table(Table::of_lines(rows))
    }

    /// The same in an experiment with these servers, by name and host.
    pub(in crate::report) fn at_servers(self, servers: &[(&str, &str)]) -> Run {
        let servers = servers.iter();
        let servers = servers.map(|(name, host)| ServerFile::of(name, host));
        let file = Some(RunFile {
            servers: servers.collect(),
            ..RunFile::default()
        });
        Run { file, ..self }
    }
}

impl Loaded {
    pub(in crate::report) fn of(runs: Vec<Run>) -> Loaded {
        let experiment = None;
        Loaded { experiment, runs }
    }
}

impl ServerFile {
    pub(in crate::report) fn of(name: &str, host: &str) -> ServerFile {
        ServerFile {
            name: name.to_owned(),
            host: host.to_owned(),
            ..ServerFile::default()
        }
    }
}

impl FaultRow {
    pub(in crate::report) fn of(time: f64, server: &str, kind: &str, event: &str) -> FaultRow {
        FaultRow {
            time,
            server: server.to_owned(),
            kind: kind.to_owned(),
            event: event.to_owned(),
        }
    }
}

/// A file of rows.
pub(in crate::report) fn rows(records: &[Row], base: Stamp) -> Vec<u8> {
    let mut rows = Vec::new();
    csv::header(&mut rows);
    let records = records.iter();
    records.for_each(|record| csv::row(record, base, &mut rows));
    rows
}

fn records(count: i64) -> Vec<Row> {
    let row = |n| Sample::starting(n * 100).row();
    (0..count).map(row).collect()
}

fn of_run(count: i64) -> Vec<u8> {
    rows(&records(count), at(0))
}

fn packed(bytes: &[u8]) -> Vec<u8> {
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut packed, bytes).unwrap();
    packed.finish().unwrap()
}

fn write(folder: &Path, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
    let path = folder.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, bytes).unwrap();
    path
}

/// The arrivals of a run.
fn arrivals(run: &Run) -> Vec<f64> {
    run.table.numbers(ColumnId::arrival_time)
}

/// Reads the only run of a path.
fn read(given: PathBuf) -> Run {
    load(&[given]).unwrap().runs.remove(0)
}

fn lines(bytes: &[u8]) -> Vec<Vec<u8>> {
    let lines = bytes.split_inclusive(|byte| *byte == b'\n');
    lines.map(<[u8]>::to_vec).collect()
}

#[test]
fn rows_that_cannot_be_read_are_named_and_the_others_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let mut lines = lines(&of_run(12));
    let text = |line: &[u8]| String::from_utf8(line.to_vec()).unwrap();
    // A row of any length, whose cells belong to no column, must not hide the next, nor change their numbers.
    let long = format!("True,{}", "a,".repeat(6 << 20));
    lines[2] = text(&lines[2]).replacen("True,", &long, 1).into();
    lines[4] = b"qs-3,True\n".to_vec();
    lines[6].splice(3..4, [0xff]);
    lines[7] = text(&lines[7]).replace('\n', ",1\n").into();
    // A row that is cut within an open quote must not swallow the next.
    lines[8] = b"qs-7,False,\"no ans\n".to_vec();
    lines[9] = text(&lines[9]).replace(",0.801000000,", ",soon,").into();
    let last = lines.last_mut().unwrap();
    last.truncate(last.len() - 1);
    write(folder.path(), "requests.csv", lines.concat());
    write(folder.path(), SUMMARY, r#"{"scheduled": 12}"#);
    let run = read(folder.path().to_owned());
    assert_eq!(run.table.len(), 5);
    // They are no early end.
    let told = "warning: 7 of 12 scheduled requests were never sent or have no row that can be read: they are in no figure";
    assert_eq!(Summary::of_run(&run).warnings(), [told]);
    for expected in [
        "7 of 12 rows cannot be read and are left out: ",
        "requests.csv line 3: the row is cut off: no end of line; ",
        &format!("line 5: the row is cut off: 2 of {} cells; ", COLUMNS.len()),
        "line 7: byte 4 is no UTF-8, …",
    ] {
        assert_says(&run.notes[0], expected);
    }
    // Of many only the first are named.
    let head = "req_id,arrival_time,outcome\na,1,ok\n";
    let soon = format!("{head}a,1,ok\nb,soon,ok\n");
    assert_told(soon, " \"soon\" is no time like those of rows before it");
    let unknown = format!("{head}b,2,great\n");
    assert_told(unknown, "outcome \"great\" is unknown to this version");
    let twice = format!("{head}a,2,ok\n,3,ok\n,4,ok\n");
    assert_told(
        twice,
        "requests with the id of one before them, all of which count: 1",
    );
}

/// Whoever wrote them.
#[test]
fn numbers_of_any_size_end_no_report() {
    let folder = tempfile::tempdir().unwrap();
    let text = String::from_utf8(of_run(5)).unwrap();
    let extremes = ["-9223372036.8", "9223372036.8", "9223372036854775807"];
    for (at, column) in COLUMNS.iter().enumerate() {
        if matches!(column.unit, Unit::Text | Unit::Bool) {
            continue;
        }
        let with = |(number, line): (usize, &str)| {
            let mut cells: Vec<&str> = line.split(',').collect();
            if number > 1 {
                cells[at] = extremes[number % 3];
            }
            cells.join(",") + "\n"
        };
        let lines: String = text.lines().enumerate().map(with).collect();
        let loaded = Loaded::of(vec![read(write(folder.path(), "x.csv", lines))]);
        let report = Report::of(&loaded);
        to_text(&report, None);
        page::render(&report);
    }
}

#[test]
fn a_file_that_another_program_saved_anew_is_read_with_its_booleans_and_without_its_columns() {
    let folder = tempfile::tempdir().unwrap();
    let text = "\u{feff}req_id,mood,arrival_time,success,stream\r\n\
        a,good,1.5,TRUE,true\r\nb,,2,false,False\r\n\r\nc,,3,True,\r\nd,,4,yes,True\r\n";
    let run = read(write(folder.path(), "saved.csv", text));
    let told = [
        "1 of 4 rows cannot be read and are left out: saved.csv line 6: success \"yes\" is neither True nor False",
        "columns that this version does not know are left out: mood",
    ];
    assert_eq!(run.notes, told);
    assert_eq!(arrivals(&run), [1.5, 2.0, 3.0]);
    let bools = [ColumnId::success, ColumnId::stream];
    let bools = [0, 1, 2].map(|row| bools.map(|of| run.table.text(of, row)));
    assert_eq!(bools, [["True", "True"], ["False", "False"], ["True", ""]]);
    let are_ok = [0, 1, 2].map(|row| run.table.is_ok(row));
    assert_eq!(are_ok, [true, false, true]);
}

/// What is said of a file of rows, or why it is refused.
#[track_caller]
fn assert_told(bytes: impl AsRef<[u8]>, expected: &str) {
    let folder = tempfile::tempdir().unwrap();
    let told = match load(&[write(folder.path(), "p.csv", bytes)]) {
        Ok(loaded) => loaded.runs[0].notes.join("\n"),
        Err(error) => error.to_string(),
    };
    assert_says(&told, expected);
}

#[test]
fn a_gzip_file_is_read_up_to_where_it_is_cut_off() {
    let folder = tempfile::tempdir().unwrap();
    let packed = packed(&of_run(2000));
    let named = |name: &str, bytes: &[u8]| write(folder.path(), name, bytes);
    // With any file name.
    for (name, bytes, rows) in [
        ("a.csv.gz", &packed[..], 2000),
        ("packed.csv", &packed, 2000),
        ("plain.csv.gz", &of_run(3), 3),
    ] {
        let run = read(named(name, bytes));
        assert_eq!((run.table.len(), run.notes.len()), (rows, 0), "{name}");
    }
    // A cut within the checksum at the end, and in the middle; the rows are those that were written.
    for (bytes, rows) in [
        (packed.len() - 1, 2000..2001),
        (packed.len() / 2, 500..1500),
    ] {
        let run = read(named("cut.csv.gz", &packed[..bytes]));
        let found = run.table.len();
        assert!(rows.contains(&found), "{found} rows of {bytes} bytes");
        assert_eq!(
            arrivals(&run),
            arrivals(&Run::of_rows(&records(found as i64)))
        );
        let told = format!(
            "cut.csv.gz is cut off: whatever followed line {} is missing",
            found + 1
        );
        assert_says(&run.notes[0], &told);
    }
    // Figures of all its rows are not those of the ones that are left.
    let dir = folder.path().join("run");
    write(&dir, "requests.csv.gz", &packed[..packed.len() / 2]);
    write(
        &dir,
        SUMMARY,
        r#"{"duration": 9, "verdict": {"grade": "VALID"}}"#,
    );
    let run = read(dir);
    assert_eq!((run.mark(), run.duration()), (Some("UNFINISHED"), None));
    // One that was put together of several is read to the cut in the last.
    let twice = [&self::packed(&of_run(3))[..], &self::packed(b"a,b\n")[..9]].concat();
    assert_eq!(read(named("twice.csv.gz", &twice)).table.len(), 3);
    // What is not as it was written is refused, and so is what has no row before the cut.
    let mut wrong = packed.clone();
    let checksum = wrong.len() - 8;
    wrong[checksum] ^= 1;
    for bytes in [&packed[..2], &packed[..40], &wrong] {
        let refused = load(&[named("cut.csv.gz", bytes)]).unwrap_err();
        assert_says(&refused.to_string(), "cut.csv.gz: ");
    }
}

#[test]
fn a_file_without_rows_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    for (bytes, expected) in [
        (&b""[..], "the file is empty"),
        (b"{\"a\": 1}\n", "has no column req_id"),
        (b"\xff\xfe\x00", "its first line is not text in UTF-8"),
        (b"req_id,success,arrival\n", "has no column arrival_time"),
        (b"req_id,arrival_time,ttft\n", "has no column outcome"),
        (
            b"req_id,arrival_time,success,host,host\n",
            "names host twice",
        ),
    ] {
        assert_told(bytes, expected);
    }
    let bare = write(folder.path(), "bare.csv", "req_id,arrival_time,success\n");
    let refused = load(&[bare]).unwrap_err().to_string();
    assert!(
        refused.ends_with("below the names of its columns"),
        "{refused}"
    );
    let empty = folder.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    for (name, expected) in [
        ("absent", "absent: No such file"),
        ("empty", "it has no requests.csv"),
    ] {
        let none = load(&[folder.path().join(name)]).unwrap_err();
        assert_says(&none.to_string(), expected);
    }
}

#[test]
fn a_folder_that_lacks_a_file_says_so_and_is_not_taken_for_cut_short() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("run");
    write(&dir, "requests.csv.gz", packed(&of_run(40)));
    let file = serde_json::to_string(&RunFile::default()).unwrap();
    write(&dir, RUN, file);
    write(&dir, SUMMARY, r#"{"scheduled": 40}"#);
    let run = read(dir.clone());
    assert_eq!((run.table.len(), run.is_partial), (40, false));
    assert_eq!(run.notes, [""; 0]);
    // Without its summary there is nobody's judgement of it.
    std::fs::remove_file(dir.join(SUMMARY)).unwrap();
    let unjudged =
        "summary.json is missing: there is no verdict on it, and figures are of the whole run";
    assert_says(&read(dir.clone()).notes[0], unjudged);
    // Rows that `--join` put together are no generator's.
    std::fs::rename(dir.join(RUN), folder.path().join(RUN)).unwrap();
    assert_eq!(read(dir.clone()).notes, [""; 0]);
    std::fs::rename(folder.path().join(RUN), dir.join(RUN)).unwrap();
    // What is cut counts as missing.
    let whole = std::fs::read(dir.join(RUN)).unwrap();
    for name in [SUMMARY, RUN] {
        write(&dir, name, "");
        let run = read(dir.clone());
        assert_eq!((run.table.len(), run.is_partial), (40, false), "{name}");
        let told = format!("{name} cannot be read and is left out: EOF");
        assert_says(&run.notes.join("\n"), &told);
    }
    write(&dir, RUN, whole);
    // Its summary alone is that of a whole run.
    write(&dir, SUMMARY, r#"{"scheduled": 40}"#);
    std::fs::remove_file(dir.join("requests.csv.gz")).unwrap();
    let run = read(dir.clone());
    assert_eq!((run.table.len(), run.is_partial), (0, false));
    assert_says(&run.notes[0], "requests.csv is missing");
    let loaded = Loaded::of(vec![run.clone(), run]);
    let report = crate::report::Report::of(&loaded);
    let text = crate::report::render::to_text(&report, None);
    let row = text.lines().nth(1).unwrap();
    assert_eq!(row.matches(" - ").count(), 8, "{text}");
    assert!(!report.to_csv().contains("success_rate"));
    let summary = &report.to_json()["runs"][0]["summary"];
    let both = [&summary["requests"], &summary["scheduled"]];
    assert_eq!(both, [&Value::Null, &json!(40)]);
    // A run that failed before its first request has neither.
    std::fs::remove_file(dir.join(SUMMARY)).unwrap();
    assert_says(&read(dir).notes[0], "unfinished: 0 requests had ended");
}

/// A run that was killed has the window that was asked for.
#[test]
fn a_killed_run_keeps_its_window() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("run");
    write(&dir, PARTIAL, of_run(100));
    for (first, last, left) in [("2", "1.5", 65), ("0", "0", 100), ("20", "0", 100)] {
        let edges = json!({ "leave_out_first": first, "leave_out_last": last });
        write(&dir, BEGUN, json!({ "config": edges }).to_string());
        let run = read(dir.clone());
        assert_eq!(run.counted().count(), left, "{:?}", run.window());
        assert_eq!(Summary::of_run(&run).all.counts.requests, left as u64);
        let is_told = run
            .notes
            .iter()
            .any(|note| note.contains("none would be left"));
        assert_eq!(is_told, first == "20", "{:?}", run.notes);
    }
}

#[test]
fn times_of_different_bases_are_never_put_together() {
    let folder = tempfile::tempdir().unwrap();
    let (run, epoch) = (of_run(2), rows(&records(2), Stamp::EPOCH));
    let a = write(folder.path(), "a.csv", &run);
    let b = write(folder.path(), "b.csv", &epoch);
    let error = rows::read(&[a, b], None, &[]).unwrap_err().to_string();
    let expected = "b.csv: its times count from the Unix epoch, those of ";
    assert_says(&error, expected);
    // Rows of another base within a file count as broken.
    let mixed = [run, lines(&epoch).remove(1)].concat();
    let broken =
        "line 4: arrival_time \"1795000000.002000000\" is no time like those of rows before it";
    let broken = format!("1 of 3 rows cannot be read and are left out: p.csv {broken}");
    assert_told(mixed, &broken);
}

#[test]
fn files_that_were_rotated_away_are_read_with_the_last() {
    let folder = tempfile::tempdir().unwrap();
    let all = lines(&rows(&records(5), Stamp::EPOCH));
    let part = |from: usize, to: usize| [all[0].clone(), all[from..to].concat()].concat();
    let path = write(folder.path(), "p.csv", part(5, 6));
    let older = write(folder.path(), "p.csv.20261120T144800Z", part(1, 3));
    write(folder.path(), "p.csv.20261120T144800Z.1", part(3, 4));
    write(folder.path(), "p.csv.20261120T144800Z.10", part(4, 5));
    write(folder.path(), "p.csv.20261120T144800Z.2", "");
    let others = "bak 1 20261120T144800Z.gz 20261120T144800Z.0 20261120144800 20261120T14480xZ";
    for end in others.split(' ') {
        write(folder.path(), &format!("p.csv.{end}"), "no rows");
    }
    write(folder.path(), "other.csv.20261120T144800Z", "no rows");
    let run = read(path.clone());
    assert_eq!(arrivals(&run), [0.002, 0.102, 0.202, 0.302, 0.402]);
    // A file that is given twice is read once.
    for (given, rows) in [
        (&[&path, &older, &path][..], 5),
        (&[&older, &path], 5),
        (&[&older], 2),
    ] {
        let given: Vec<PathBuf> = given.iter().copied().cloned().collect();
        let runs = load(&given).unwrap().runs;
        assert_eq!(runs.len(), 1, "{given:?}");
        assert_eq!(runs[0].table.len(), rows, "{given:?}");
    }
    // Also in the current folder.
    assert_ne!(name_of(Path::new("")), "");
}

#[test]
fn an_experiment_has_its_runs_that_have_begun() {
    let folder = tempfile::tempdir().unwrap();
    let known = [("01", "a"), ("01-r2", "a"), ("02", "b"), ("03", "c")];
    let known = known.map(|(dir, policy)| RunRef {
        dir: format!("runs/{dir}"),
        label: format!("policy={policy}"),
        ..RunRef::default()
    });
    let experiment = ExperimentFile {
        runs: known.into(),
        ..ExperimentFile::default()
    };
    let text = serde_json::to_string(&experiment).unwrap();
    write(folder.path(), EXPERIMENT, text);
    for dir in ["runs/01", "runs/01-r2"] {
        write(&folder.path().join(dir), "requests.csv", of_run(2));
    }
    write(&folder.path().join("runs/02"), "requests.partial.csv", "");
    let loaded = load(&[folder.path().to_owned()]).unwrap();
    assert_eq!(loaded.experiment.as_ref(), Some(&experiment));
    let names: Vec<&str> = loaded.runs.iter().map(|run| run.name.as_str()).collect();
    // The third has a file without rows, the fourth was not begun.
    let root = folder.path().display();
    let expected = [
        format!("policy=a ({root}/runs/01)"),
        format!("policy=a ({root}/runs/01-r2)"),
        "policy=b".to_owned(),
    ];
    assert_eq!(names, expected);
    assert!(loaded.runs[2].notes[0].contains("the file is empty"));
    // Two experiments.
    let other = folder.path().join("other/runs/01");
    write(&other, "requests.csv", of_run(2));
    let loaded = load(&[folder.path().join("runs/01"), other]).unwrap();
    assert_eq!(loaded.runs[1].name, format!("01 ({root}/other/runs/01)"));
}

/// Times of the epoch count from the run's start, if that is known and a time of the epoch, else from the second of the first.
#[test]
fn times_count_from_the_beginning_of_a_run_whatever_the_file_counts_from() {
    let folder = tempfile::tempdir().unwrap();
    let began = at(0).nanos();
    let all = [250, 350].map(|start| Sample::starting(start).row());
    // A proxy's rows begin with its first request.
    let of_proxy = Sample::starting(250).without(&[Moment::Scheduled]).row();
    let (epoch, since) = (Stamp::EPOCH, at(0));
    let second = r#"{"started_at": 1795000000.25}"#;
    let nanos = r#"{"started_at_ns": 1795000000000000007}"#;
    let absurd = r#"{"started_at_ns": -9000000000000000000}"#;
    let none = r#"{"started_at": 0}"#;
    // Base of the file, what tells of the run; when the first request arrived, and the run began, ms.
    for (base, rows, file, text, arrived, beginning) in [
        (since, &all[..], SUMMARY, nanos, 252.0, Some(0.000_007)),
        (since, &all, SUMMARY, second, 252.0, Some(250.0)),
        (since, &all, SUMMARY, absurd, 252.0, None),
        (since, &all, SUMMARY, "{}", 252.0, None),
        (epoch, &all, SUMMARY, second, 2.0, Some(250.0)),
        (epoch, &all, SUMMARY, nanos, 251.999_993, Some(0.000_007)),
        (epoch, &all, SUMMARY, none, 252.0, Some(0.0)),
        (
            epoch,
            &all,
            RUN,
            r#"{"began": 1794999997.5}"#,
            2752.0,
            Some(-2500.0),
        ),
        // Its file alone.
        (epoch, &[of_proxy], "", "", 252.0, Some(252.0)),
    ] {
        let dir = folder.path().join("run");
        let alone = write(&dir, "requests.csv", self::rows(rows, base));
        let run = match file {
            "" => read(alone),
            file => {
                write(&dir, file, text);
                read(dir.clone())
            }
        };
        std::fs::remove_dir_all(dir).unwrap();
        let nanos = |ms: f64| (ms * 1e6).round() as i64;
        let first = run.table.integer(ColumnId::arrival_time, 0);
        assert_eq!(first, Some(nanos(arrived)), "{text}");
        let found = Summary::of_run(&run).to_json()["started_at_ns"].as_i64();
        let beginning = beginning.map(|ms| began + nanos(ms));
        assert_eq!(found, beginning, "{text}");
    }
}
