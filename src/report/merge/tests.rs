//! Folders of shards made by hand: what is wrong with one is said of the run.

use crate::request::columns::ColumnId;
use std::fs;

use super::*;
use crate::clock::NANOS;
use crate::report::load::tests::assert_says;
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

/// Two shards of a schedule, of which the second's summary may be another.
fn two(root: &Path, change: impl FnOnce(&mut Value)) -> [PathBuf; 2] {
    let mut second = told("1/2", "VALID");
    change(&mut second);
    let first = shard(root, 0, &told("0/2", "VALID"));
    [first, shard(root, 1, &second)]
}

/// A summary of this grade, whose reasons say all of this.
#[track_caller]
fn assert_judged(summary: &Value, grade: &str, said: &[&str]) {
    assert_eq!(summary["verdict"]["grade"], grade, "{summary}");
    let reasons = summary["verdict"]["reasons"].to_string();
    said.iter().for_each(|said| assert_says(&reasons, said));
    assert_eq!(reasons == "[]", said.is_empty(), "{reasons}");
}

#[test]
fn a_run_is_as_good_as_the_worst_of_its_shards() {
    for (grade, said) in [
        ("VALID", &[][..]),
        ("DEGRADED", &["shard 1/2: late"]),
        ("INVALID", &["shard 1/2: late"]),
    ] {
        let root = tempfile::tempdir().unwrap();
        let [first, second] = two(root.path(), |second| {
            *second = told("1/2", grade);
            second["warnings"] = json!(["a warning"]);
        });
        let summary = merged(&[second, first], &root.path().join("out"));
        assert_judged(&summary, grade, said);
        for (member, of_all) in [
            ("requests", json!(6)),
            ("scheduled", json!(6)),
            ("duration", json!(2.0)),
            ("offered_rate", json!(20.0)),
            ("started_at_ns", json!(BEGAN)),
            ("warnings", json!(["shard 1/2: a warning"])),
        ] {
            assert_eq!(summary[member], of_all, "{member}");
        }
        assert_eq!(summary["config"]["shard"], Value::Null);
        let shards = [0, 1].map(|at| summary["merged_from"][at]["shard"].to_string());
        assert_eq!(shards, ["\"0/2\"", "\"1/2\""]);
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
    let said = [
        "shards 2/3 are missing",
        "began 0.200 s apart",
        "shard 0/3 has no verdict",
    ];
    assert_judged(&summary, "INVALID", &said);
    assert_eq!(summary["warnings"], json!([]), "they are said once");

    let dirs = two(root.path(), |second| second["requests"] = 3.into());
    for left in [&[1, 5][..], &[]] {
        fs::write(dirs[1].join(ROWS), rows(left)).unwrap();
        let summary = merged(&dirs, &root.path().join(format!("out-{}", left.len())));
        let said = format!("shard 1/2 has rows of {} of its 3 requests", left.len());
        assert_judged(&summary, "INVALID", &[&said]);
    }
}

#[test]
fn a_shard_that_was_killed_is_taken_as_far_as_it_came() {
    let root = tempfile::tempdir().unwrap();
    let dirs = two(root.path(), |_| ());
    let [_, killed] = &dirs;
    for name in [SUMMARY, ROWS] {
        fs::remove_file(killed.join(name)).unwrap();
    }
    let mut begun = told("1/2", "VALID");
    begun["verdict"] = Value::Null;
    begun["config"][WORKLOAD] = Value::Null;
    fs::write(killed.join("begun.json"), begun.to_string()).unwrap();
    // In the order in which they ended, the last cut by the kill.
    let mut partial = rows(&[5, 1, 3]);
    partial.truncate(partial.len() - 3);
    fs::write(killed.join("requests.partial.csv"), partial).unwrap();
    let summary = merged(&dirs, &root.path().join("out"));
    assert_judged(&summary, "INVALID", &["shard 1/2 was cut short"]);
    assert_eq!(["requests", "scheduled"].map(|key| &summary[key]), [5, 6]);
    let warnings = summary["warnings"].to_string();
    assert_says(&warnings, "1 of 6 rows cannot be read");
    // Killed before its first rows reached the disk; and before it began.
    fs::write(killed.join("requests.partial.csv"), "").unwrap();
    assert_eq!(merged(&dirs, &root.path().join("early"))["requests"], 3);
    fs::remove_file(killed.join("begun.json")).unwrap();
    assert_says(&refused(&dirs, root.path()), "Leave this folder out");
}

/// Why these make no run.
fn refused(dirs: &[PathBuf], root: &Path) -> String {
    merge(dirs, &root.join("never")).unwrap_err().to_string()
}

#[test]
fn what_are_no_shards_of_one_schedule_makes_no_run() {
    let root = tempfile::tempdir().unwrap();
    let [first, other] = two(root.path(), |second| {
        second["config"][WORKLOAD] = "def".into()
    });
    let mut whole = told("", "VALID");
    whole["config"]["shard"] = Value::Null;
    let whole = shard(root.path(), 2, &whole);
    let rows = first.join(ROWS);
    for (dirs, said) in [
        ([&first, &other], "config.workload_sha256 is \"def\""),
        ([&first, &first], "each of one run's shards is given once"),
        (
            [&first, &whole],
            "no shard: the run was made without --shard",
        ),
        ([&rows, &first], "is a file; --merge takes the folders"),
    ] {
        assert_says(&refused(&dirs.map(PathBuf::clone), root.path()), said);
    }
}

#[test]
fn a_merging_that_fails_leaves_nothing_in_the_way_of_the_next() {
    let root = tempfile::tempdir().unwrap();
    let dirs = two(root.path(), |_| ());
    let out = root.path().join("out");
    // In the way of the rows.
    fs::create_dir_all(out.join("summary.json/x")).unwrap();
    merge(&dirs, &out).unwrap_err();
    assert_eq!(fs::read_dir(&out).unwrap().count(), 1);
    fs::remove_dir_all(out.join("summary.json")).unwrap();
    assert_eq!(merged(&dirs, &out)["requests"], 6);
    // What is another's there stays.
    let others = root.path().join("others");
    fs::create_dir_all(others.join(".merging")).unwrap();
    fs::write(others.join(".merging/thesis"), "mine").unwrap();
    merge(&dirs, &others).unwrap();
    let kept = fs::read_to_string(others.join(".merging/thesis"));
    assert_eq!(kept.unwrap(), "mine");
}
