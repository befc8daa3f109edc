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
fn rows(records: &[Row], base: Stamp) -> Vec<u8> {
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

#[test]
fn rows_that_cannot_be_read_are_named_and_the_others_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let whole = of_run(12);
    let mut lines: Vec<Vec<u8>> = whole
        .split_inclusive(|byte| *byte == b'\n')
        .map(<[u8]>::to_vec)
        .collect();
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
    let binary = load(&[write(folder.path(), "b.csv", b"\xff\xfe\x00")]);
    let refused = binary.unwrap_err().to_string();
    assert_says(&refused, "its first line is not text in UTF-8");
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

/// What is said of a file of rows, or why it is refused.
#[track_caller]
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
fn a_summary_without_rows_is_shown_with_what_it_tells() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), RUN, r#"{"state": "done"}"#);
    write(folder.path(), SUMMARY, r#"{"scheduled": 40}"#);
    let loaded = load(&[folder.path().to_owned()]).unwrap();
    let summary = &Report::of(&loaded).to_json()["runs"][0]["summary"];
    let both = [&summary["requests"], &summary["scheduled"]];
    assert_eq!(both, [&Value::Null, &json!(40)]);
}

#[test]
fn the_current_folder_has_a_name() {
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
    let repeat = RunFile {
        label: "policy=a".to_owned(),
        ..RunFile::default()
    };
    for dir in ["runs/01", "runs/01-r2"] {
        let dir = folder.path().join(dir);
        write(&dir, "requests.csv", of_run(2));
        write(&dir, RUN, serde_json::to_string(&repeat).unwrap());
    }
    write(&folder.path().join("runs/02"), "requests.partial.csv", "");
    let loaded = load(&[folder.path().to_owned()]).unwrap();
    assert_eq!(loaded.experiment.as_ref(), Some(&experiment));
    let names: Vec<&str> = loaded.runs.iter().map(|run| run.name.as_str()).collect();
    // The third has a file without rows, the fourth was not begun.
    assert_eq!(names, ["policy=a #1", "policy=a #2", "policy=b"]);
    assert!(loaded.runs[2].notes[0].contains("the file is empty"));
    // Two experiments, and whatever is given twice, also by another path: of a folder and its file the folder.
    let [first, other] = ["runs/01", "other/runs/01"].map(|dir| folder.path().join(dir));
    write(&other, "requests.csv", of_run(2));
    write(&other, RUN, serde_json::to_string(&repeat).unwrap());
    let [file, whole] = [first.join("requests.csv"), folder.path().to_owned()];
    let roundabout = other.join("../01");
    let given = [file, first.clone(), whole, other.clone(), roundabout];
    let runs = load(&given).unwrap().runs;
    let names: Vec<&str> = runs.iter().map(|run| run.name.as_str()).collect();
    let named = |dir: &Path| format!("policy=a ({})", dir.display());
    let repeat = folder.path().join("runs/01-r2");
    let [first, repeat, other] = [&first, &repeat, &other].map(|dir| named(dir));
    assert_eq!(names, [&first, &repeat, "policy=b", &other]);
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
    // The proxy's rows of an experiment's run.
    write(folder.path(), RUN, r#"{"began": 1794999997.5}"#);
    for (name, arrived) in [(PROXY_ROWS, 2.752), ("other.csv", 0.252)] {
        let path = write(folder.path(), name, self::rows(&all, epoch));
        let first = read(path).table.number(ColumnId::arrival_time, 0).unwrap();
        assert!((first - arrived).abs() < 1e-6, "{first} {name}");
    }
}
