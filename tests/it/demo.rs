//! `queuescope demo`, as a newcomer types it.

use std::process::{Command, Output};

fn demo(args: &[&str]) -> (i32, String, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = Command::new(env!("CARGO_BIN_EXE_queuescope"))
        .arg("demo")
        .args(args)
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().unwrap(), text(stdout), text(stderr))
}

#[test]
fn it_shows_where_the_requests_waited_and_names_its_files() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("demo");
    let dir = dir.to_str().unwrap();
    let flags = [
        "--num-prompts",
        "30",
        "--request-rate",
        "200",
        "--output-dir",
        dir,
    ];
    // Twice: the second run's files must not hold the first one's rows.
    for _ in 0..2 {
        let (code, shown, said) = demo(&flags);
        assert_eq!(code, 0, "{said}");
        assert!(shown.contains("30 requests in"), "{shown}");
        assert!(shown.contains("30 ok (100.0 %)"), "{shown}");
        assert!(shown.contains("was spent"), "{shown}");
        assert!(shown.contains("the front plays its part"), "{shown}");
        let lines = |file: &str| {
            let path = format!("{dir}/{file}");
            assert!(shown.contains(&path), "{path} is not named");
            std::fs::read_to_string(path).unwrap().lines().count()
        };
        assert_eq!(lines("traffic/requests.csv"), 31);
        assert_eq!(lines("traffic/schedule.csv"), 31);
        assert_eq!(lines("proxy.csv"), 31);
        assert!(lines("traffic/summary.json") > 100);
    }
}

#[test]
fn nobody_who_reads_is_no_reason_to_fail() {
    let folder = tempfile::tempdir().unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let done = Command::new(env!("CARGO_BIN_EXE_queuescope"))
        .args(["demo", "--num-prompts", "10", "--request-rate", "200"])
        .arg("--output-dir")
        .arg(folder.path())
        .stdout(writer)
        .output()
        .unwrap();
    let said = String::from_utf8(done.stderr).unwrap();
    assert_eq!((done.status.code(), said.as_str()), (Some(0), ""));
    let rows = std::fs::read_to_string(folder.path().join("proxy.csv")).unwrap();
    assert_eq!(rows.lines().count(), 11);
}

#[test]
fn a_wrong_value_is_one_line() {
    for (args, piece) in [
        (
            ["--request-rate", "-1"],
            "--request-rate -1: must be a positive",
        ),
        (
            ["--request-rate", "fast"],
            "--request-rate fast: must be a positive",
        ),
        (["--num-prompts", "0"], "--num-prompts 0: "),
    ] {
        let (code, _, said) = demo(&args);
        assert_eq!(code, 2, "{said}");
        assert!(said.contains(piece), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}
