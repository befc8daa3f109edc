//! Folders of shards made by hand: defects of a shard are in the verdict of the merged run.

use std::fs;

use super::*;
use crate::clock::{NANOS, Stamp};
use crate::report::load::tests::*;
use crate::report::reader;

const BEGAN: i64 = 1_795_000_000 * NANOS;

fn rows(of: &[i64], base: Stamp) -> Vec<u8> {
    let row = |n: &i64| {
        let sample = Sample::starting(n * 10);
        sample.with(|row| row.req_id = Some(format!("m-{n}"))).row()
    };
    let rows: Vec<_> = of.iter().map(row).collect();
    reader::tests::rows(&rows, base)
}

fn summary_of(shard: &str, grade: &str) -> Value {
    json!({
        "started_at_ns": BEGAN,
        "duration": 2.0,
        "offered_rate": 10.0,
        "scheduled": 3,
        "warnings": [],
        "config": { "shard": shard, "seed": 1, "workload_sha256": "abc" },
        "verdict": { "grade": grade, "reasons": if grade == "VALID" { vec![] } else { vec!["late"] } },
    })
}

/// The folder of a finished shard.
fn shard(root: &Path, number: i64, summary: &Value) -> PathBuf {
    let dir = root.join(format!("s{number}"));
    fs::create_dir_all(&dir).unwrap();
    let rows = rows(&[number, number + 2, number + 4], at(0));
    fs::write(dir.join(ROWS), rows).unwrap();
    fs::write(dir.join(SUMMARY), summary.to_string()).unwrap();
    dir
}

/// Merges shards: the summary of the result.
fn merged(dirs: &[PathBuf], out: &Path) -> Value {
    merge(dirs, out).unwrap();
    let mut left = fs::read_dir(out).unwrap();
    assert!(left.all(|entry| entry.unwrap().path().is_file()));
    let run = reader::load(&[out.to_owned()]).unwrap().runs.remove(0);
    assert!(run.table.numbers(ColumnId::arrival_time).is_sorted());
    run.summary
}

/// Two shards of a schedule; `change` is made to the summary of the second.
fn two(root: &Path, change: impl FnOnce(&mut Value)) -> [PathBuf; 2] {
    let mut second = summary_of("1/2", "VALID");
    change(&mut second);
    let first = shard(root, 0, &summary_of("0/2", "VALID"));
    [first, shard(root, 1, &second)]
}

/// Asserts the grade of a summary, and the texts in its reasons.
#[track_caller]
fn assert_judged(summary: &Value, grade: &str, expected: &[&str]) {
    assert_eq!(summary["verdict"]["grade"], grade, "{summary}");
    let reasons = summary["verdict"]["reasons"].to_string();
    for expected in expected {
        assert_says(&reasons, expected);
    }
    assert_eq!(reasons == "[]", expected.is_empty(), "{reasons}");
}

#[test]
fn a_run_is_as_good_as_the_worst_of_its_shards() {
    for (grade, expected) in [
        ("VALID", &[][..]),
        ("DEGRADED", &["shard 1/2: late"]),
        ("INVALID", &["shard 1/2: late"]),
    ] {
        let root = tempfile::tempdir().unwrap();
        let [first, second] = two(root.path(), |second| {
            *second = summary_of("1/2", grade);
            second["warnings"] = json!(["a warning"]);
        });
        let summary = merged(&[second, first], &root.path().join("out"));
        assert_judged(&summary, grade, expected);
        let of_all = json!({
            "requests": 6, "scheduled": 6, "duration": 2.0, "offered_rate": 20.0, "started_at_ns": BEGAN,
            "warnings": ["shard 1/2: a warning"],
        });
        for (member, of_all) in of_all.as_object().unwrap() {
            assert_eq!(summary[member], *of_all, "{member}");
        }
        assert_eq!(summary["config"]["shard"], Value::Null);
        let shards = [0, 1].map(|at| &summary["merged_from"][at]["shard"]);
        assert_eq!(shards, ["0/2", "1/2"]);
    }
}

#[test]
fn shards_with_a_window_are_a_run_without_one() {
    let root = tempfile::tempdir().unwrap();
    let dirs = [0, 1].map(|number| {
        let mut summary = summary_of(&format!("{number}/2"), "VALID");
        summary["window"] =
            json!({ "from_s": 0.02, "to_s": 0.03, "left_out_first": 2, "left_out_last": 0 });
        summary["duration"] = 0.01.into();
        shard(root.path(), number, &summary)
    });
    let summary = merged(&dirs, &root.path().join("out"));
    let counts = ["requests", "completed"].map(|name| &summary[name]);
    assert_eq!(counts, [6, 6]);
    let window = &summary["window"];
    assert_eq!(window["left_out_first"], 0);
    assert_eq!(window["left_out_last"], 0);
    assert_eq!(window["is_ignored"], false);
    assert_eq!(window["to_s"], summary["duration"]);
}

#[test]
fn shards_whose_times_count_from_different_moments_are_one_run() {
    let root = tempfile::tempdir().unwrap();
    let sooner = BEGAN - NANOS / 20 + 123;
    let shards = two(root.path(), |second| {
        second["started_at_ns"] = sooner.into()
    });
    let of_epoch = rows(&[1, 3, 5], Stamp::EPOCH);
    fs::write(shards[1].join(ROWS), of_epoch).unwrap();
    let out = root.path().join("out");
    let summary = merged(&shards, &out);
    assert_eq!(summary["completed"], 6);
    // All six were in flight for 499 ms of the time from the first beginning to the last end.
    let whole_s = 2.05 - 123e-9;
    assert_near(&summary, "/mean_concurrency", 6.0 * 0.499 / whole_s);
    let run = reader::load(&[out]).unwrap().runs.remove(0);
    let arrival = |row| run.table.integer(ColumnId::arrival_time, row);
    let arrivals: Vec<i64> = (0..6).filter_map(arrival).collect();
    let expected = [52, 62, 72, 82, 92, 102].map(|ms| ms * (NANOS / 1000) - 123);
    assert_eq!(arrivals, expected);
}

#[test]
fn shards_that_are_not_the_whole_load_at_its_times_make_an_invalid_run() {
    let root = tempfile::tempdir().unwrap();
    // If another shard has no verdict, the worst is still kept.
    let mut unjudged = summary_of("0/3", "VALID");
    unjudged["verdict"] = Value::Null;
    let mut late = summary_of("1/3", "VALID");
    late["started_at_ns"] = (BEGAN + NANOS / 5).into();
    let dirs = [(0, &unjudged), (1, &late)].map(|(n, of)| shard(root.path(), n, of));
    let summary = merged(&dirs, &root.path().join("out"));
    let apart = [
        "missing: 1 of 3 shards: their requests",
        "began 0.200 s apart",
    ];
    assert_judged(&summary, "INVALID", &apart);
    assert_judged(&summary, "INVALID", &["shard 0/3: it has no verdict"]);
    assert_eq!(summary["warnings"], json!([]), "each is reported once");

    let dirs = two(root.path(), |second| second["requests"] = 3.into());
    for left in [&[1, 5][..], &[]] {
        fs::write(dirs[1].join(ROWS), rows(left, at(0))).unwrap();
        let summary = merged(&dirs, &root.path().join(format!("out-{}", left.len())));
        let expected = format!("shard 1/2 has rows of {} of its 3 requests", left.len());
        assert_judged(&summary, "INVALID", &[&expected]);
    }
    // The figures of a shard with a window are of fewer.
    let dirs = two(root.path(), |second| {
        second["requests"] = 1.into();
        second["window"] =
            json!({ "from_s": 0.0, "to_s": 1.0, "left_out_first": 1, "left_out_last": 1 });
    });
    fs::write(dirs[1].join(ROWS), rows(&[1, 5], at(0))).unwrap();
    let summary = merged(&dirs, &root.path().join("out-window"));
    assert_judged(
        &summary,
        "INVALID",
        &["shard 1/2 has rows of 2 of its 3 requests"],
    );
}

#[test]
fn a_killed_shard_is_not_merged_and_rows_that_cannot_be_read_are_counted() {
    let root = tempfile::tempdir().unwrap();
    let dirs = two(root.path(), |_| ());
    let [_, killed] = &dirs;
    // The last row is cut.
    let mut cut = rows(&[5, 1, 3], at(0));
    cut.truncate(cut.len() - 3);
    fs::write(killed.join(ROWS), &cut).unwrap();
    let warnings = merged(&dirs, &root.path().join("out"))["warnings"].to_string();
    assert_says(&warnings, "shard 1/2: 1 of 3 rows cannot be read");
    fs::rename(killed.join(ROWS), killed.join("requests.partial.csv")).unwrap();
    fs::rename(killed.join(SUMMARY), killed.join("begun.json")).unwrap();
    let expected = "the shard did not come to its end (no requests.csv and summary.json). Leave this folder out";
    assert_says(&refused(&dirs, root.path()), expected);
    fs::remove_file(killed.join("begun.json")).unwrap();
    assert_says(&refused(&dirs, root.path()), expected);
}

/// The error of merging these.
fn refused(dirs: &[PathBuf], root: &Path) -> String {
    merge(dirs, &root.join("never")).unwrap_err().to_string()
}

#[test]
fn only_shards_of_one_schedule_are_merged() {
    let root = tempfile::tempdir().unwrap();
    let [first, other] = two(root.path(), |of| {
        of["config"]["workload_sha256"] = "def".into()
    });
    let mut whole = summary_of("", "VALID");
    whole["config"]["shard"] = Value::Null;
    let whole = shard(root.path(), 2, &whole);
    let rows = first.join(ROWS);
    for (second, expected) in [
        (&other, "config.workload_sha256 is \"def\""),
        (&first, "each of one run's shards is given once"),
        (&whole, "no shard: the run was made without --shard"),
        (&rows, "is a file; --merge takes the folders"),
    ] {
        let dirs = [first.clone(), second.clone()];
        assert_says(&refused(&dirs, root.path()), expected);
    }
}

#[test]
fn a_failed_merge_leaves_no_files_that_block_the_next() {
    let root = tempfile::tempdir().unwrap();
    let dirs = two(root.path(), |_| ());
    let out = root.path().join("out");
    // A folder with the name of the file of rows.
    fs::create_dir_all(out.join("summary.json/x")).unwrap();
    merge(&dirs, &out).unwrap_err();
    assert_eq!(fs::read_dir(&out).unwrap().count(), 1);
    fs::remove_dir_all(out.join("summary.json")).unwrap();
    assert_eq!(merged(&dirs, &out)["requests"], 6);
}
