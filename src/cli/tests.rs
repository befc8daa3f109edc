//! Exit codes, and the examples of commands.

use super::*;
use crate::report::files::{RunFile, RunState};

#[test]
fn the_exit_code_is_of_the_run_that_needs_action_first() {
    let folder = tempfile::tempdir().unwrap();
    let mut finished = Finished {
        dir: folder.path().to_owned(),
        ..Finished::default()
    };
    for (name, state, grade, code) in [
        ("good", RunState::Done, "VALID", None),
        // A run with too many failed requests is done, but has an error.
        ("bad", RunState::Done, "VALID", Some(TOO_MANY_FAILED)),
        ("invalid", RunState::Done, "INVALID", Some(INVALID)),
        ("failed", RunState::Failed, "VALID", Some(FAILED)),
    ] {
        let dir = folder.path().join(name);
        std::fs::create_dir_all(&dir).unwrap();
        let summary = serde_json::json!({"verdict": {"grade": grade}});
        std::fs::write(dir.join("summary.json"), summary.to_string()).unwrap();
        let file = RunFile {
            state,
            has_failed_too_often: name == "bad",
            error: (name == "bad").then(|| "41 of 50 requests failed".to_owned()),
            ..RunFile::default()
        };
        finished.runs.push(RunResult { dir, file });
        let failure = check_results(&finished).err();
        assert_eq!(failure.map(|failure| failure.code), code, "{name}");
    }
    finished.signal = Some(2);
    assert_eq!(check_results(&finished).unwrap_err().code, 130);
}

#[test]
fn every_command_has_a_valid_example() {
    let examples = EXAMPLES.strip_prefix("# queuescope\n").unwrap();
    let of = examples.split("# ").skip(1);
    let of = of.filter_map(|block| block.split_once('\n'));
    for (_, text) in of {
        let (line, _) = text.split_once("\n\n").unwrap_or((text, ""));
        let words = line.replace("\\\n", "");
        let words = words.split_whitespace().map(OsString::from).collect();
        parse(words).unwrap_or_else(|_| panic!("{line}"));
    }
}
