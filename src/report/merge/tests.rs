//! Folders of shards made by hand: what is wrong with one is said of the run.

use crate::request::columns::ColumnId;
use std::fs;

use super::*;
use crate::report::reader;
use crate::report::sample::{Sample, at};
use crate::request::csv;

const BEGAN: i64 = 1_795_000_000 * NANOS;

fn rows(of: &[i64]) -> Vec<u8> {
    let mut rows = Vec::new();
    csv::header(&mut rows);
    for n in of {
        let record = Sample::starting(n * 10).with(|record| record.req_id = Some(format!("m-{n}")));
        csv::row(&record.row(), csv::TimeBase::Since(at(0)), &mut rows);
    }
    rows
}

fn told(shard: &str, grade: &str) -> Value {
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

/// The folder of a shard that came to its end.
fn shard(root: &Path, number: i64, summary: &Value) -> PathBuf {
    let dir = root.join(format!("s{number}"));
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join(ROWS), rows(&[number, number + 2, number + 4])).unwrap();
    fs::write(dir.join(SUMMARY), summary.to_string()).unwrap();
    dir
}

/// The summary of the merged run, which reads as a run's.
fn merged(dirs: &[PathBuf], out: &Path) -> Value {
    merge(dirs, out).unwrap();
    let drafts = fs::read_dir(out)
        .unwrap()
        .filter(|entry| entry.as_ref().unwrap().path().is_dir());
    assert_eq!(drafts.count(), 0);
    let run = reader::load(&[out.to_owned()]).unwrap().runs.remove(0);
    assert!(run.table.numbers(ColumnId::arrival_time).is_sorted());
    run.summary
}

fn reasons(summary: &Value) -> String {
    summary["verdict"]["reasons"].to_string()
}

#[test]
fn a_run_is_as_good_as_the_worst_of_its_shards() {
    for (grade, expected) in [
        ("VALID", "VALID"),
        ("DEGRADED", "DEGRADED"),
        ("INVALID", "INVALID"),
        ("", "DEGRADED"),
    ] {
        let root = tempfile::tempdir().unwrap();
        let mut second = told("1/2", grade);
        if grade.is_empty() {
            second["verdict"] = Value::Null;
        }
        let first = shard(root.path(), 0, &told("0/2", "VALID"));
        let second = shard(root.path(), 1, &second);
        let summary = merged(&[second, first], &root.path().join("out"));
        assert_eq!(summary["verdict"]["grade"], expected, "{grade}");
        let reasons = reasons(&summary);
        assert_eq!(reasons == "[]", grade == "VALID", "{reasons}");
        assert!(
            grade == "VALID" || reasons.contains("shard 1/2"),
            "{reasons}"
        );
        assert_eq!(summary["requests"], 6);
        assert_eq!(summary["config"][WORKLOAD], "abc");
    }
}

#[test]
fn shards_that_are_not_the_whole_load_at_its_times_make_an_invalid_run() {
    let root = tempfile::tempdir().unwrap();
    // Another shard lacks its verdict: what is known of the worst is not lost.
    let mut unjudged = told("0/3", "VALID");
    unjudged["verdict"] = Value::Null;
    let mut late = told("1/3", "VALID");
    late["started_at_ns"] = (BEGAN + NANOS / 5).into();
    let dirs = [
        shard(root.path(), 0, &unjudged),
        shard(root.path(), 1, &late),
    ];
    let summary = merged(&dirs, &root.path().join("out"));
    assert_eq!(summary["verdict"]["grade"], "INVALID");
    let reasons = reasons(&summary);
    for said in [
        "shards 2/3 are missing",
        "began 0.200 s apart",
        "shard 0/3 has no verdict",
    ] {
        assert!(reasons.contains(said), "{reasons}");
    }
    assert_eq!(summary["warnings"], json!([]), "they are said once");
}

#[test]
fn a_shard_that_was_killed_is_taken_as_far_as_it_came() {
    let root = tempfile::tempdir().unwrap();
    let whole = shard(root.path(), 0, &told("0/2", "VALID"));
    let killed = shard(root.path(), 1, &told("1/2", "VALID"));
    for name in [SUMMARY, ROWS] {
        fs::remove_file(killed.join(name)).unwrap();
    }
    let begun = json!({
        "started_at_ns": BEGAN, "offered_rate": 10.0, "scheduled": 3, "config": { "shard": "1/2", "seed": 1 },
    });
    fs::write(killed.join("begun.json"), begun.to_string()).unwrap();
    // In the order in which they ended, the last cut by the kill.
    let mut partial = rows(&[5, 1, 3]);
    partial.truncate(partial.len() - 3);
    fs::write(killed.join("requests.partial.csv"), partial).unwrap();
    let summary = merged(&[whole.clone(), killed.clone()], &root.path().join("out"));
    assert_eq!(summary["verdict"]["grade"], "INVALID");
    let reasons = reasons(&summary);
    assert!(reasons.contains("shard 1/2 was cut short"), "{reasons}");
    assert_eq!(
        (&summary["requests"], &summary["scheduled"]),
        (&5.into(), &6.into())
    );
    let warnings = summary["warnings"].to_string();
    assert!(warnings.contains("1 rows cannot be read"), "{warnings}");
    // Killed before its first rows reached the disk; and before it began.
    fs::write(killed.join("requests.partial.csv"), "").unwrap();
    let dirs = [whole, killed.clone()];
    assert_eq!(merged(&dirs, &root.path().join("early"))["requests"], 3);
    fs::remove_file(killed.join("begun.json")).unwrap();
    let file = [root.path().join("s0").join(ROWS)];
    let error = merge(&file, &root.path().join("never")).unwrap_err();
    let said = "is a file; --merge takes the folders of the shards";
    assert!(error.to_string().ends_with(said), "{error}");
    let error = merge(&dirs, &root.path().join("never")).unwrap_err();
    assert!(
        error.to_string().contains("Leave this folder out"),
        "{error}"
    );
}

#[test]
fn a_shard_without_rows_of_all_its_requests_is_named() {
    let root = tempfile::tempdir().unwrap();
    let mut counted = told("1/2", "VALID");
    counted["requests"] = 3.into();
    let dirs = [
        shard(root.path(), 0, &told("0/2", "VALID")),
        shard(root.path(), 1, &counted),
    ];
    for (left, said) in [
        (&[1, 5][..], "shard 1/2 has rows of 2 of its 3 requests"),
        (&[], "shard 1/2 has rows of 0 of its 3 requests"),
    ] {
        fs::write(dirs[1].join(ROWS), rows(left)).unwrap();
        let summary = merged(&dirs, &root.path().join(format!("out-{}", left.len())));
        assert_eq!(summary["verdict"]["grade"], "INVALID");
        assert!(reasons(&summary).contains(said), "{summary}");
    }
}

#[test]
fn a_merging_that_fails_leaves_nothing_in_the_way_of_the_next() {
    let root = tempfile::tempdir().unwrap();
    let dirs = [
        shard(root.path(), 0, &told("0/2", "VALID")),
        shard(root.path(), 1, &told("1/2", "VALID")),
    ];
    let out = root.path().join("out");
    // In the way of the rows.
    fs::create_dir_all(out.join("summary.json/x")).unwrap();
    merge(&dirs, &out).unwrap_err();
    assert_eq!(fs::read_dir(&out).unwrap().count(), 1);
    fs::remove_dir_all(out.join("summary.json")).unwrap();
    assert_eq!(merged(&dirs, &out)["requests"], 6);
}

#[test]
fn shards_that_sent_parts_of_different_requests_make_no_run() {
    let root = tempfile::tempdir().unwrap();
    let mut other = told("1/2", "VALID");
    other["config"][WORKLOAD] = "def".into();
    let dirs = [
        shard(root.path(), 0, &told("0/2", "VALID")),
        shard(root.path(), 1, &other),
    ];
    let error = merge(&dirs, &root.path().join("out")).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("config.workload_sha256 is \"def\""),
        "{error}"
    );
}
