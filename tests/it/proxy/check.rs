//! `queuescope check`, and the help, as their users see them.

use std::fmt::Write;

use crate::support::process::run;

use super::*;

/// What a command line says, in a folder of its own that holds this config.
fn said(config: &str, line: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("c.toml"), config).unwrap();
    let mut command = queuescope(&line.split_whitespace().collect::<Vec<_>>());
    command.current_dir(folder.path());
    let done = run(command);
    assert!(!done.err.contains("panicked") && !done.err.contains("HIDE"));
    format!("exit {}\n{}{}", done.code.unwrap(), done.out, done.err)
}

/// Holds a file of cases to what is said; `UPDATE_DOCS` writes it anew.
fn golden(file: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    let text = std::fs::read_to_string(&path).unwrap();
    let mut cases = text.split("\n## ");
    let mut now = cases.next().unwrap().to_owned();
    for case in cases {
        let (case, rest) = case.split_once("\n$ queuescope ").unwrap();
        let (_, config) = case.split_once('\n').unwrap_or_default();
        let (line, _) = rest.split_once('\n').unwrap();
        let said = said(&format!("{config}\n"), line);
        write!(now, "\n## {case}\n$ queuescope {line}\n{said}").unwrap();
    }
    assert_file(file, &now);
}

#[test]
fn configs_right_and_wrong_are_told_as_ever() {
    golden("tests/data/config/check.txt");
}

#[test]
fn the_help_is_as_ever() {
    golden("tests/data/config/help.txt");
}

#[test]
fn completions_and_man_pages_come_of_the_same_definitions() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let said = said("", &format!("completions {shell}"));
        assert!(said.starts_with("exit 0"), "{said}");
        assert_says(&said, "upstream-idle-timeout-s");
    }
    let folder = tempfile::tempdir().unwrap();
    let done = run(queuescope(&["man", folder.path().to_str().unwrap()]));
    assert_eq!((done.code, done.err.as_str()), (Some(0), ""));
    let page = std::fs::read_to_string(folder.path().join("queuescope-proxy.1")).unwrap();
    assert_says(&page, "Where clients connect");
    let new = folder.path().join("new/man1");
    let done = run(queuescope(&["man", new.to_str().unwrap()]));
    assert_eq!((done.code, done.err.as_str()), (Some(0), ""));
    assert!(new.join("queuescope-proxy.1").is_file());
    let absent = run(queuescope(&["man", "/dev/null/man1"]));
    let why = "error: /dev/null/man1: Not a directory (os error 20)\n";
    assert_eq!((absent.code, absent.err.as_str()), (Some(1), why));
}
