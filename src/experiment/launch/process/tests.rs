//! Causes of failures, as logs of real programs show them.

use std::io::Write as _;

use super::*;

/// Output of SGLang 0.5.23 on CPU, torch, transformers, the router 0.3.2 and our own programs, each followed by `= ` and the cause. The
/// first were recorded, the others are from the programs' sources.
const OUTPUTS: &str = "tests/data/experiment/said.txt";

#[test]
fn errors_of_real_programs_have_a_cause_and_a_remedy() {
    let expected = std::fs::read_to_string(OUTPUTS).unwrap();
    let found = expected.trim_end().split("\n\n").map(|block| {
        let (output, _) = block.rsplit_once("\n= ").unwrap_or((block, ""));
        format!("{output}\n= {}\n", cause(output).unwrap())
    });
    let found = found.collect::<Vec<_>>().join("\n");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(OUTPUTS, &found).unwrap();
    }
    assert_eq!(found, expected, "UPDATE_DOCS=1 updates it");
    let long = cause(&format!("CUDA out of memory {}", "ä".repeat(500))).unwrap();
    assert!(
        long.chars().count() < 500 && long.contains("…\"). Lower"),
        "{long}"
    );
    let killed = cause("ended (signal: 9 (SIGKILL))\nloading weights").unwrap();
    assert!(killed.contains("memory ran out"), "{killed}");
    assert_eq!(cause("ended (exit status: 1)\n"), None);
}

#[tokio::test]
async fn only_of_a_program_that_ended_silently_is_asked_whether_it_is_the_right_one() {
    let silent = "it wrote nothing: is this the right program?";
    let other = "its log may say why";
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("server.log");
    // The secret is a part of the flag's name, too.
    let command = CommandLine::new("p", &["--api-key", "a"]);
    let start = format!("$ {command}\n");
    let process = Process {
        name: "server".to_owned(),
        command,
        log: log.clone(),
        program: PathBuf::new(),
        state: watch::Sender::new(State::Up),
        keeper: Mutex::default(),
    };
    // What it wrote, and its status as of `wait`; `None` while it runs.
    for (output, status, hint, end) in [
        ("", Some(0), silent, " (empty)"),
        (" \n", Some(1 << 8), silent, " (empty)"),
        ("", Some(15), other, " (empty)"),
        ("", None, other, " (empty)"),
        ("at\n", Some(0), other, ", which ends with\n  ***t"),
    ] {
        std::fs::write(&log, format!("{start}earlier\n{start}{output}")).unwrap();
        let ended = |status| State::Ended(ExitStatus::from_raw(status));
        process.state.send_replace(status.map_or(State::Up, ended));
        let ready = process.ready(Duration::ZERO, async || Err("no".to_owned()));
        let told = ready.await.unwrap_err().to_string();
        assert!(told.contains(&format!("): {hint}\n")), "{told}");
        assert!(told.ends_with(&format!("server.log{end}")), "{told}");
    }
    std::fs::remove_file(&log).unwrap();
    let told = process.failed().await.to_string();
    assert!(
        told.contains(other) && told.contains("(cannot be read: "),
        "{told}"
    );
}

#[test]
fn of_a_large_log_only_the_end_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("server.log");
    let mut log = File::create(&path).unwrap();
    // Sparse, and larger than memory.
    log.set_len(1 << 42).unwrap();
    log.seek(SeekFrom::End(0)).unwrap();
    writeln!(log, "the last line").unwrap();
    assert!(tail(&path).unwrap().ends_with(b"the last line\n"));
}
