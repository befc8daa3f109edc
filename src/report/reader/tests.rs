use crate::request::columns::ColumnId;
use std::path::{Path, PathBuf};

use super::*;
use crate::report::figures::figures;
use crate::report::files::RunRef;
use crate::report::load::tests::assert_says;
use crate::report::sample::{Sample, at};
use crate::request::columns::COLUMNS;
use crate::request::csv;
use crate::request::row::Row;
use crate::request::timeline::Moment;

impl Run {
    /// A run with these rows and nothing else.
    pub(in crate::report) fn of_table(table: Table) -> Run {
        Run {
            table,
            ..Run::default()
        }
    }
}

fn rows(records: &[Row], base: csv::TimeBase) -> Vec<u8> {
    let mut rows = Vec::new();
    csv::header(&mut rows);
    records
        .iter()
        .for_each(|record| csv::row(record, base, &mut rows));
    rows
}

fn records(count: i64) -> Vec<Row> {
    (0..count)
        .map(|n| Sample::starting(n * 100).row())
        .collect()
}

fn of_run(count: i64) -> Vec<u8> {
    rows(&records(count), csv::TimeBase::Since(at(0)))
}

fn write(folder: &Path, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
    let path = folder.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, bytes).unwrap();
    path
}

/// Reads the only run of a path.
fn read(given: PathBuf) -> Run {
    load(&[given]).unwrap().runs.remove(0)
}

fn lines(bytes: &[u8]) -> Vec<Vec<u8>> {
    bytes
        .split_inclusive(|byte| *byte == b'\n')
        .map(<[u8]>::to_vec)
        .collect()
}

#[test]
fn rows_that_cannot_be_read_are_named_and_the_others_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let mut lines = lines(&of_run(12));
    let text = |line: &[u8]| String::from_utf8(line.to_vec()).unwrap();
    lines[2] = text(&lines[2]).replace(",0.101000000,", ",soon,").into();
    lines[4] = b"qs-3,True\n".to_vec();
    lines[6].splice(3..4, [0xff]);
    lines[7] = text(&lines[7]).replace('\n', ",1\n").into();
    // A row that is cut within an open quote must not swallow the next.
    lines[8] = b"qs-7,False,\"no ans\n".to_vec();
    // Nor must a row that is too long.
    let long = format!("True,{}", "a,".repeat(1_500_000));
    lines[9] = text(&lines[9]).replacen("True,", &long, 1).into();
    let last = lines.last_mut().unwrap();
    last.truncate(last.len() - 1);
    write(folder.path(), "requests.csv", lines.concat());
    let run = read(folder.path().to_owned());
    assert_eq!(run.table.len(), 5);
    for expected in [
        "7 of 12 rows cannot be read and are left out: ",
        "requests.csv line 3: ",
        " \"soon\" is no number; ",
        &format!("line 5: the row is cut off: 2 of {} cells; ", COLUMNS.len()),
        "line 7: byte 4 is no UTF-8, …",
    ] {
        assert_says(&run.notes[0], expected);
    }
    // Of many only the first are named.
    for (row, expected) in [
        ("b,2,great", "outcome \"great\" is unknown to this version"),
        (&long, "line 3: the row is longer than 1 MiB"),
    ] {
        let text = format!("req_id,arrival_time,outcome\na,1,ok\n{row}\n");
        let run = read(write(folder.path(), "p.csv", text));
        assert_says(&run.notes[0], expected);
    }
}

#[test]
fn a_gzip_file_is_read_and_a_truncated_one_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut packed, &of_run(2000)).unwrap();
    let packed = packed.finish().unwrap();
    let named = |name: &str, bytes: &[u8]| write(folder.path(), name, bytes);
    let whole = read(named("a.csv.gz", &packed));
    assert_eq!((whole.table.len(), whole.notes.len()), (2000, 0));
    // With any file name.
    for (name, bytes, rows) in [
        ("packed.csv", &packed[..], 2000),
        ("plain.csv.gz", &of_run(3), 3),
    ] {
        assert_eq!(read(named(name, bytes)).table.len(), rows, "{name}");
    }
    for bytes in [40, packed.len() / 2, packed.len() - 1] {
        let cut = load(&[named("cut.csv.gz", &packed[..bytes])]).unwrap_err();
        assert_says(&cut.to_string(), "cut.csv.gz: ");
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
        (
            b"req_id,arrival_time,ttft\nx,1,2\n",
            "has no column outcome",
        ),
        (
            b"req_id,arrival_time,outcome,ttft,ttft\nx,1,ok,2,3\n",
            "names ttft twice",
        ),
    ] {
        let path = write(folder.path(), "some.csv", bytes);
        assert_says(&load(&[path]).unwrap_err().to_string(), expected);
    }
    let empty = folder.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    for (name, expected) in [
        ("absent", "absent: No such file"),
        ("empty", "it has no requests.csv"),
    ] {
        let none = load(&[folder.path().join(name)]).unwrap_err();
        assert_says(&none.to_string(), expected);
    }
    // A run's folder with such a file is still a run.
    write(&empty, "requests.csv", of_run(0));
    let run = read(empty);
    assert_eq!(run.notes, ["no row: not one request was recorded"]);
}

#[test]
fn a_folder_that_lacks_a_file_says_so_and_is_not_taken_for_cut_short() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("run");
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut packed, &of_run(40)).unwrap();
    write(&dir, "requests.csv.gz", packed.finish().unwrap());
    write(
        &dir,
        RUN,
        serde_json::to_string(&RunFile::default()).unwrap(),
    );
    write(&dir, SUMMARY, r#"{"scheduled": 40}"#);
    let run = read(dir.clone());
    assert_eq!((run.table.len(), run.is_partial), (40, false));
    assert_eq!(run.notes, [""; 0]);
    // Without its summary there is nobody's judgement of it.
    std::fs::remove_file(dir.join(SUMMARY)).unwrap();
    let run = read(dir.clone());
    assert_says(
        &run.notes[0],
        "summary.json is missing: there is no verdict",
    );
    // Rows that `--join` put together are no generator's.
    std::fs::rename(dir.join(RUN), folder.path().join(RUN)).unwrap();
    assert_eq!(read(dir.clone()).notes, [""; 0]);
    std::fs::rename(folder.path().join(RUN), dir.join(RUN)).unwrap();
    // Its summary alone is that of a whole run.
    write(&dir, SUMMARY, r#"{"scheduled": 40}"#);
    std::fs::remove_file(dir.join("requests.csv.gz")).unwrap();
    let run = read(dir.clone());
    assert_eq!((run.table.len(), run.is_partial), (0, false));
    assert_says(&run.notes[0], "requests.csv is missing");
    // A run that failed before its first request has neither.
    std::fs::remove_file(dir.join(SUMMARY)).unwrap();
    assert_says(&read(dir).notes[0], "unfinished: 0 requests had ended");
}

#[test]
fn rows_that_cannot_be_read_are_no_early_end() {
    let folder = tempfile::tempdir().unwrap();
    let mut lines = lines(&of_run(40));
    lines[3] = b"qs-2,True\n".to_vec();
    write(folder.path(), "requests.csv", lines.concat());
    write(folder.path(), SUMMARY, r#"{"scheduled": 40}"#);
    let run = read(folder.path().to_owned());
    let warnings = crate::report::figures::figures(&run).warnings();
    let told = "warning: 1 of 40 scheduled requests were never sent or have no row that can be read: they are in no figure";
    assert_eq!(warnings, [told]);
}

#[test]
fn columns_of_another_version_are_left_out_with_a_note() {
    let folder = tempfile::tempdir().unwrap();
    let text = "\u{feff}req_id,mood,arrival_time,success\r\nx-4,good,1.5,True\r\n";
    let run = read(write(folder.path(), "other.csv", text));
    let expected = "columns that this version does not know are left out: mood";
    assert_eq!(run.notes, [expected]);
    assert_eq!(run.table.number(ColumnId::arrival_time, 0), Some(1.5));
    assert!(run.table.is_ok(0));
}

#[test]
fn times_count_from_the_run_whatever_the_file_counts_from() {
    let folder = tempfile::tempdir().unwrap();
    let epoch = rows(&records(3), csv::TimeBase::Epoch);
    let dir = folder.path().join("run");
    write(&dir, "requests.csv", &epoch);
    let began = at(0).seconds() - 2.5;
    let file = RunFile {
        began: Some(began),
        ..RunFile::default()
    };
    write(&dir, RUN, serde_json::to_string(&file).unwrap());
    let run = read(dir);
    let arrival = run.table.numbers(ColumnId::arrival_time);
    // The run began 2.5 s before the scheduled time of the first request, which arrived 2 ms later.
    assert_eq!(arrival, [2.502, 2.602, 2.702]);

    // Without a run: since the full second before the first arrival.
    let run = read(write(folder.path(), "proxy.csv", &epoch));
    let arrival = run.table.numbers(ColumnId::arrival_time);
    assert_eq!(arrival, [0.002, 0.102, 0.202]);
}

#[test]
fn times_of_different_bases_are_never_put_together() {
    let folder = tempfile::tempdir().unwrap();
    let (run, epoch) = (of_run(2), rows(&records(2), csv::TimeBase::Epoch));
    let a = write(folder.path(), "a.csv", &run);
    let b = write(folder.path(), "b.csv", &epoch);
    let error = rows::read(&[a, b], None, &[]).unwrap_err();
    let expected = "b.csv: its times count from the Unix epoch, those of ";
    assert_says(&error.to_string(), expected);
    // Rows of another base within a file count as broken.
    let mixed = [run, lines(&epoch).remove(1)].concat();
    let path = write(folder.path(), "mixed.csv", mixed);
    let run = read(path);
    assert_eq!(run.table.len(), 2);
    let expected = "line 4: arrival_time 1795000000.002000000 counts from the Unix epoch";
    assert_says(&run.notes[0], expected);
}

#[test]
fn files_that_were_rotated_away_are_read_with_the_last() {
    let folder = tempfile::tempdir().unwrap();
    let all = lines(&rows(&records(5), csv::TimeBase::Epoch));
    let part = |from: usize, to: usize| [all[0].clone(), all[from..to].concat()].concat();
    let path = write(folder.path(), "p.csv", part(5, 6));
    write(folder.path(), "p.csv.20261120T144800Z", part(1, 3));
    write(folder.path(), "p.csv.20261120T144800Z.1", part(3, 4));
    write(folder.path(), "p.csv.20261120T144800Z.10", part(4, 5));
    write(folder.path(), "p.csv.20261120T144800Z.2", "");
    write(folder.path(), "p.csv.bak", "no rows");
    let run = read(path);
    let arrival = run.table.numbers(ColumnId::arrival_time);
    assert_eq!(arrival, [0.002, 0.102, 0.202, 0.302, 0.402]);
    let expected = "with the rows of 3 files that were rotated away";
    assert_eq!(run.notes, [expected]);
}

#[test]
fn a_file_that_is_given_twice_is_read_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), "p.csv", of_run(3));
    let older = write(folder.path(), "p.csv.20261120T144800Z", of_run(2));
    let count = |given: &[PathBuf]| {
        let loaded = load(given).unwrap();
        let rows = loaded.runs.iter().map(|run| run.table.len());
        rows.collect::<Vec<usize>>()
    };
    assert_eq!(count(&[path.clone(), older.clone(), path.clone()]), [5]);
    assert_eq!(count(&[older.clone(), path.clone()]), [5]);
    assert_eq!(count(std::slice::from_ref(&older)), [2]);
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
    assert_eq!(names, ["policy=a (01)", "policy=a (01-r2)", "policy=b"]);
    assert!(loaded.runs[2].notes[0].contains("the file is empty"));
    // Two experiments.
    let other = folder.path().join("other/runs/01");
    write(&other, "requests.csv", of_run(2));
    let loaded = load(&[folder.path().join("runs/01"), other]).unwrap();
    assert_eq!(loaded.runs[1].name, "01 (other/runs/01)");
}

#[test]
fn the_beginning_of_a_run_is_told_since_the_epoch_or_not_at_all() {
    let folder = tempfile::tempdir().unwrap();
    let began = || at(0).nanos();
    let beginning = |run: &Run| figures(run).to_json()["started_at_ns"].as_i64();
    let all: Vec<Row> = (0..2)
        .map(|n| Sample::starting(250 + n * 100).open_row())
        .collect();
    for (name, base, summary, expected) in [
        (
            "run",
            csv::TimeBase::Since(at(0)),
            r#"{"started_at_ns": 1795000000000000007}"#,
            Some(began() + 7),
        ),
        (
            "old",
            csv::TimeBase::Since(at(0)),
            r#"{"started_at": 1795000000.25}"#,
            Some(began() + 250_000_000),
        ),
        (
            "epoch",
            csv::TimeBase::Epoch,
            r#"{"started_at": 1795000000.25}"#,
            Some(began() + 250_000_000),
        ),
        ("unknown", csv::TimeBase::Since(at(0)), "{}", None),
    ] {
        write(
            folder.path(),
            &format!("{name}/requests.csv"),
            rows(&all, base),
        );
        write(folder.path(), &format!("{name}/summary.json"), summary);
        assert_eq!(
            beginning(&read(folder.path().join(name))),
            expected,
            "{name}"
        );
    }
    // A proxy's rows begin with its first request.
    let mut of_proxy = all;
    for row in &mut of_proxy {
        row.timeline.clear(Moment::Scheduled);
    }
    let of_proxy = rows(&of_proxy, csv::TimeBase::Epoch);
    let run = read(write(folder.path(), "proxy.csv", of_proxy));
    let arrived = run.table.integer(ColumnId::arrival_time, 0);
    assert_eq!(beginning(&run), arrived.map(|at| began() + at));
}
