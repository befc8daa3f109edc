//! Exit codes, and the examples of commands.

use super::*;
use crate::report::files::{RunFile, RunState};

#[test]
fn the_exit_code_is_of_the_run_that_needs_action_first() {
    let folder = tempfile::tempdir().unwrap();
    let run = |name: &str, state: RunState, has_failed_too_often: bool, grade: &str| {
        let dir = folder.path().join(name);
        std::fs::create_dir_all(&dir).unwrap();
        let summary = serde_json::json!({"verdict": {"grade": grade}});
        std::fs::write(dir.join("summary.json"), summary.to_string()).unwrap();
        let file = RunFile {
            state,
            has_failed_too_often,
            // A run with too many failed requests is done, but has an error.
            error: has_failed_too_often.then(|| "41 of 50 requests failed".to_owned()),
            ..RunFile::default()
        };
        RunResult::new(dir, file)
    };
    let good = run("good", RunState::Done, false, "VALID");
    let bad = run("bad", RunState::Done, true, "VALID");
    let invalid = run("invalid", RunState::Done, false, "INVALID");
    let failed = run("failed", RunState::Failed, false, "VALID");
    let mut finished = Finished {
        dir: folder.path().to_owned(),
        ..Finished::default()
    };
    for (run, code) in [
        (good, None),
        (bad, Some(TOO_MANY_FAILED)),
        (invalid, Some(INVALID)),
        (failed, Some(FAILED)),
    ] {
        finished.runs.push(run);
        let failure = check_results(&finished).err();
        assert_eq!(failure.map(|Failure(_, code)| code), code);
    }
    finished.signal = Some(2);
    assert_eq!(check_results(&finished).unwrap_err().1, 130);
}

/// Parses a command line, which must be valid.
fn parsed(line: &str) -> Cli {
    let line = line.replace("\\\n", "");
    let words = line.split_whitespace().map(OsString::from).collect();
    parse(words).unwrap_or_else(|_| panic!("{line}"))
}

#[test]
fn every_command_has_a_valid_example() {
    let command = Cli::command();
    let shown = command.get_subcommands().filter(|of| !of.is_hide_set());
    let names: Vec<&str> = shown.map(clap::Command::get_name).collect();
    let examples = EXAMPLES.strip_prefix("# queuescope\n").unwrap();
    let of = examples.split("# ").skip(1);
    let of: Vec<(&str, &str)> = of.filter_map(|block| block.split_once('\n')).collect();
    let of_names: Vec<&str> = of.iter().map(|(name, _)| *name).collect();
    assert_eq!(of_names, names);
    for (name, text) in of {
        let (line, _) = text.split_once("\n\n").unwrap_or((text, ""));
        let called = format!("  queuescope {name}");
        assert!(line.starts_with(&called), "{line}");
        parsed(line);
    }
}
