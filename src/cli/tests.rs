//! Exit codes.

use super::*;
use crate::report::files::{ExperimentFile, RunFile, RunState};

#[test]
fn of_runs_that_ended_in_several_ways_the_one_to_act_on_gives_the_status() {
    let folder = tempfile::tempdir().unwrap();
    let run = |name: &str, state: RunState, has_failed_too_often: bool, grade: &str| {
        let dir = folder.path().join(name);
        std::fs::create_dir_all(&dir).unwrap();
        let summary = serde_json::json!({"verdict": {"grade": grade}});
        std::fs::write(dir.join("summary.json"), summary.to_string()).unwrap();
        let file = RunFile {
            state,
            has_failed_too_often,
            // A run of which too many requests failed is done, with the reason beside.
            error: has_failed_too_often.then(|| "41 of 50 requests failed".to_owned()),
            ..RunFile::default()
        };
        RunEnd::read(dir, file)
    };
    let good = run("good", RunState::Done, false, "VALID");
    let bad = run("bad", RunState::Done, true, "VALID");
    let invalid = run("invalid", RunState::Done, false, "INVALID");
    let failed = run("failed", RunState::Failed, false, "VALID");
    let mut finished = Finished {
        dir: folder.path().to_owned(),
        file: ExperimentFile::default(),
        runs: Vec::new(),
        signal: None,
        notes: Vec::new(),
    };
    for (end, code) in [
        (good, None),
        (bad, Some(TOO_MANY_FAILED)),
        (invalid, Some(INVALID)),
        (failed, Some(FAILED)),
    ] {
        finished.runs.push(end);
        let ended = shortcoming(&finished).err();
        assert_eq!(ended.map(|ended| ended.code), code);
    }
    finished.signal = Some(2);
    assert_eq!(shortcoming(&finished).unwrap_err().code, 130);
}
