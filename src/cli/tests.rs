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

/// A command line as the program takes it.
fn taken(line: &str) -> Cli {
    let line = line.replace("\\\n", "");
    let words = line.split_whitespace().map(OsString::from).collect();
    parse(words).unwrap_or_else(|_| panic!("{line}"))
}

#[test]
fn the_example_of_every_command_is_one_that_it_takes() {
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
        taken(line);
    }
}
