//! The program itself: files, words and exit codes.

use super::*;
use crate::support::process::{Done, run_aside};

const GENERATOR: &str = env!("CARGO_BIN_EXE_queuescope-traffic");
const QUEUESCOPE: &str = env!("CARGO_BIN_EXE_queuescope");

fn command(program: &str, addr: SocketAddr, dir: &Path, more: &[&str]) -> Command {
    let mut command = Command::new(program);
    if program == QUEUESCOPE {
        command.arg("traffic");
    }
    command
        .args([
            "--base-url",
            &format!("http://{addr}"),
            "--random-input-len",
            "8",
        ])
        .arg("--output-dir")
        .arg(dir)
        .args(more)
        .env_remove("OPENAI_API_KEY");
    command
}

fn read(dir: &Path, file: &str) -> String {
    std::fs::read_to_string(dir.join(file)).unwrap()
}

fn column(dir: &Path, name: &str) -> Vec<String> {
    let text = read(dir, "requests.csv");
    let mut rows = csv::Reader::from_reader(text.as_bytes());
    let at = rows
        .headers()
        .unwrap()
        .iter()
        .position(|header| header == name);
    let at = at.unwrap_or_else(|| panic!("no column {name}"));
    rows.records()
        .map(|row| row.unwrap()[at].to_owned())
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn both_names_of_the_program_write_the_three_files_and_a_summary() {
    let server = Upstream::always(recorded("generate_stream")).await;
    let root = tempfile::tempdir().unwrap();
    let mut schedules = Vec::new();
    for (program, more) in [
        (GENERATOR, &["--upstream-kind", "server"][..]),
        (
            QUEUESCOPE,
            &["--upstream-kind", "server", "--time-base", "epoch"],
        ),
    ] {
        let dir = root
            .path()
            .join("deep")
            .join(program.rsplit('/').next().unwrap());
        let line = [
            &[
                "--request-rate",
                "200",
                "--num-prompts",
                "30",
                "--seed",
                "5",
                "--request-id-prefix",
                "mine",
            ],
            more,
        ]
        .concat();
        let done = run_aside(command(program, server.addr, &dir, &line)).await;
        let said = done.out;
        assert_eq!(done.code, Some(0), "{said}{}", done.err);
        assert!(
            said.contains("30 requests") && said.contains("TTFT"),
            "{said}"
        );

        assert_eq!(column(&dir, "success"), ["True"; 30]);
        let arrivals: Vec<f64> = column(&dir, "arrival_time")
            .iter()
            .map(|cell| cell.parse().unwrap())
            .collect();
        assert!(arrivals.iter().all(|at| *at > 0.0), "{arrivals:?}");
        let summary: Value = serde_json::from_str(&read(&dir, "summary.json")).unwrap();
        assert_eq!(summary["completed"], 30);
        // Whatever the times in the rows count from.
        assert_eq!(summary["latency"]["schedule_lag"]["count"], 30);
        assert!(summary["duration"].as_f64().unwrap() < 1e6);
        assert_eq!(summary["config"]["seed"], 5);
        assert_eq!(summary["config"]["random_input_unit"], "words");
        let announced = done.err;
        let what = "30 requests, prompts of 8 words, outputs of 1024 tokens; ids mine-0 to mine-29";
        assert!(announced.contains(what), "{announced}");
        assert!(announced.contains(dir.to_str().unwrap()), "{announced}");
        let schedule = read(&dir, "schedule.csv");
        let ids = schedule
            .lines()
            .skip(1)
            .map(|line| line.split(',').nth(4).unwrap().to_owned());
        let mut ids: Vec<String> = ids.collect();
        let mut rows = column(&dir, "req_id");
        ids.sort();
        rows.sort();
        assert_eq!(ids, rows);
        schedules.push(schedule);
        let mut files: Vec<_> = std::fs::read_dir(&dir).unwrap().collect();
        files.sort_by_key(|file| file.as_ref().unwrap().file_name());
        let files = files.into_iter().map(|file| file.unwrap().file_name());
        let files: Vec<_> = files.collect();
        assert_eq!(files, ["requests.csv", "schedule.csv", "summary.json"]);
    }
    assert_eq!(schedules[0], schedules[1], "same seed, same schedule");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_value_is_one_line_that_names_it() {
    let nowhere = refusing().await;
    let root = tempfile::tempdir().unwrap();
    let lines = root.path().join("d.jsonl");
    std::fs::write(&lines, "{\"prompt\":\"a\"}\n{\"prompt\":1}\n").unwrap();
    let lines = lines.to_str().unwrap();
    let taken = root.path().join("taken");
    std::fs::create_dir(&taken).unwrap();
    std::fs::write(taken.join("requests.partial.csv"), "").unwrap();
    // What begins with a colon stands behind the flag and its value.
    for (flags, said) in [
        (
            "--request-rate|-3",
            ": must be a positive number of requests a second, or inf",
        ),
        ("--num-prompts|0", ": must be a whole number, 1 or more"),
        (
            "--random-range-ratio|1.1",
            ": must be a number from 0 (any length from 1) to 1",
        ),
        (
            "--max-failed|5",
            ": must be a share from 0 to 1, such as 0.05 or 5%",
        ),
        ("--burstiness|-1", ": must be a positive number"),
        (
            "--request-timeout-s|0",
            ": must be a positive number of seconds",
        ),
        (
            "--backend|vllm",
            ": must be one of sglang, sglang-oai, sglang-oai-chat",
        ),
        ("--base-url|ftp://h:1", ": ftp is not a scheme we speak"),
        (
            "--header|Traceparent:1",
            "--header Traceparent:***: traceparent is set by queuescope",
        ),
        ("--extra-request-body|[]", ": must be a JSON object"),
        ("--goodput|ttft", ": "),
        ("--request-id-prefix|a b", ": must be 1 to 64 letters"),
        ("--duration|5", "--duration cannot end them"),
        ("--dataset-name|custom", "needs --dataset-path FILE"),
        ("--dataset-path|x", "goes with --dataset-name custom"),
        (
            "--dataset-path|/nowhere/x|--dataset-name|custom",
            "--dataset-path /nowhere/x: No such file",
        ),
        (
            &format!("--dataset-path|{lines}|--dataset-name|custom"),
            "d.jsonl, line 2: `prompt`: invalid type: integer `1`, expected a string",
        ),
        (
            &format!("--output-dir|{}", taken.display()),
            "taken: holds a run already (requests.partial.csv); name another folder",
        ),
    ] {
        let more: Vec<&str> = flags.split('|').collect();
        let said = match said.strip_prefix(':') {
            Some(wrong) => format!("{} {}:{wrong}", more[0], more[1]),
            None => said.to_owned(),
        };
        let dir = root.path().join("new");
        // The flag may be given once: a base URL or folder of the case replaces ours.
        let mut command = Command::new(GENERATOR);
        if !more.contains(&"--output-dir") {
            command.arg("--output-dir").arg(&dir);
        }
        if !more.contains(&"--base-url") {
            command.args(["--base-url", &format!("http://{nowhere}")]);
        }
        command.args(&more).env_remove("OPENAI_API_KEY");
        let done = run_aside(command).await;
        let error = done.err;
        assert_eq!(done.code, Some(2), "{more:?}: {error}");
        assert!(
            error.starts_with("error: ") && error.contains(&said),
            "{more:?}: {error}"
        );
        assert_eq!(error.lines().count(), 1, "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_cannot_work_ends_with_one() {
    let root = tempfile::tempdir().unwrap();
    let nowhere = refusing().await;
    let done = run_aside(command(
        GENERATOR,
        nowhere,
        root.path(),
        &["--num-prompts", "3"],
    ))
    .await;
    let error = done.err;
    assert_eq!(done.code, Some(1), "{error}");
    let url = format!("error: cannot reach http://{nowhere}: ");
    assert!(
        error.starts_with(&url) && error.lines().count() == 1,
        "{error}"
    );

    // It answers, but never well: all rows are there all the same.
    let server = Upstream::always(recorded("err_generate_too_long")).await;
    let done = run_aside(command(
        GENERATOR,
        server.addr,
        root.path(),
        &["--num-prompts", "3"],
    ))
    .await;
    let error = done.err;
    assert_eq!(done.code, Some(1), "{error}");
    let last = error.lines().last().unwrap();
    assert!(
        last.starts_with("error: none of 3 requests succeeded: 400"),
        "{error}"
    );
    assert_eq!(column(root.path(), "outcome"), ["client_error"; 3]);

    // With one that succeeds it is a run, of which more than half failed.
    let server = Upstream::start(|turn, _| {
        let case = ["generate_stream", "err_generate_too_long"][turn.min(1)];
        vec![Step::Send(recorded(case))]
    })
    .await;
    let more = ["--num-prompts", "3", "--force"];
    let done = run_aside(command(GENERATOR, server.addr, root.path(), &more)).await;
    assert_eq!(done.code, Some(4));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupt_ends_the_run_and_still_writes_everything() {
    // The answers wait until all five are in flight.
    let all_here = Gate::new();
    let opened = all_here.clone();
    let server = Upstream::start(move |turn, _| {
        if turn == 4 {
            opened.open();
        }
        match turn {
            0..3 => vec![
                Step::Gate(opened.clone()),
                Step::Send(recorded("generate_stream")),
            ],
            _ => vec![Step::Silence],
        }
    })
    .await;
    let root = tempfile::tempdir().unwrap();
    // Five at once, then none for hours.
    let file = root.path().join("d.jsonl");
    std::fs::write(&file, "{\"prompt\":\"a b\"}\n").unwrap();
    let dir = root.path().join("run");
    let more = flags("--num-prompts 5 --drain-timeout-s 0.1 --dataset-name custom");
    let mut command = command(GENERATOR, server.addr, &dir, &more);
    command.arg("--dataset-path").arg(&file);
    command
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped());
    let child = command.spawn().unwrap();
    until("all five arrived", || server.seen().len() == 5).await;
    let partial = dir.join("requests.partial.csv");
    let rows = || std::fs::read_to_string(&partial).unwrap_or_default();
    until("three have ended", || rows().lines().count() == 4).await;
    let id = nix::unistd::Pid::from_raw(child.id().try_into().unwrap());
    nix::sys::signal::kill(id, nix::sys::signal::Signal::SIGINT).unwrap();
    let done = tokio::task::spawn_blocking(move || Done::from(child.wait_with_output().unwrap()));
    let done = done.await.unwrap();
    let said = done.out;
    assert_eq!(done.code, Some(130), "{said}");
    assert!(said.contains("stopped before its end"), "{said}");
    assert!(
        said.contains("0 of 5 requests were never sent and 2 given up"),
        "{said}"
    );
    assert!(
        !said.contains("VALID:") || said.contains("INVALID:"),
        "{said}"
    );
    let told = done.err;
    let acknowledged = "waiting up to 0.1 s for 2 in flight, Ctrl-C again drops them";
    assert!(told.contains(acknowledged), "{told}");
    let errors = column(&dir, "error");
    let given_up = errors
        .iter()
        .filter(|error| *error == "given up: the run was stopped");
    assert_eq!(given_up.count(), 2, "{errors:?}");
    let outcomes = column(&dir, "outcome");
    let count = |name: &str| outcomes.iter().filter(|outcome| *outcome == name).count();
    assert_eq!((count("ok"), count("client_abort")), (3, 2));
    let summary: Value = serde_json::from_str(&read(&dir, "summary.json")).unwrap();
    assert_eq!(summary["completed"], 3);
    assert_eq!(
        (&summary["given_up"], &summary["failed"]),
        (&2.into(), &0.into())
    );
    assert!(
        said.contains("3 ok (60.0 %), 2 given up when the run was stopped\n"),
        "{said}"
    );
    assert_eq!(summary["peak_concurrency"], 5, "until they were given up");
}

#[tokio::test(flavor = "multi_thread")]
async fn ids_differ_from_run_to_run_whatever_the_seed() {
    let server = Upstream::always(recorded("generate_stream")).await;
    let root = tempfile::tempdir().unwrap();
    let mut prefixes = Vec::new();
    for run in ["a", "b"] {
        let dir = root.path().join(run);
        let more = ["--num-prompts", "2", "--seed", "7"];
        let done = run_aside(command(GENERATOR, server.addr, &dir, &more)).await;
        let summary: Value = serde_json::from_str(&read(&dir, "summary.json")).unwrap();
        let prefix = summary["config"]["request_id_prefix"].as_str().unwrap();
        let mut ids = column(&dir, "req_id");
        ids.sort();
        assert_eq!(ids, [format!("{prefix}-0"), format!("{prefix}-1")]);
        let announced = done.err;
        assert!(announced.contains(&ids[0]), "{announced}");
        prefixes.push(prefix.to_owned());
    }
    assert_ne!(prefixes[0], prefixes[1]);
    let lengths = ["a", "b"].map(|run| column(&root.path().join(run), "input_length"));
    assert_eq!(lengths[0], lengths[1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn scripts_are_told_when_too_many_requests_failed() {
    let server = Upstream::start(|turn, _| {
        let case = ["generate_stream", "err_generate_too_long"][usize::from(turn % 4 == 3)];
        vec![Step::Send(recorded(case))]
    })
    .await;
    let root = tempfile::tempdir().unwrap();
    for (most, code) in [("0.25", 0), ("24.9%", 4), ("0", 4), ("1", 0)] {
        let more = ["--num-prompts", "4", "--max-concurrency", "1", "--force"];
        let more = [&more[..], &["--max-failed", most]].concat();
        let done = run_aside(command(GENERATOR, server.addr, root.path(), &more)).await;
        let told = done.err;
        assert_eq!(done.code, Some(code), "{most}: {told}");
        let said = told.contains("error: 1 of 4 requests failed, more than --max-failed");
        assert_eq!(said, code == 4, "{most}: {told}");
        assert!(root.path().join("requests.csv").exists());
    }
    let more = ["--num-prompts", "4", "--force"];
    let done = run_aside(command(GENERATOR, server.addr, root.path(), &more)).await;
    assert_eq!(done.code, Some(0));
    let said = done.out;
    assert!(said.contains("or with --max-failed SHARE"), "{said}");
    let server = Upstream::start(|turn, _| {
        let case = ["generate_stream", "err_generate_too_long"][usize::from(turn % 4 != 3)];
        vec![Step::Send(recorded(case))]
    })
    .await;
    for (more, code) in [(&[][..], 4), (&["--max-failed", "1"], 0)] {
        let more = [
            &["--num-prompts", "4", "--max-concurrency", "1", "--force"],
            more,
        ]
        .concat();
        let done = run_aside(command(GENERATOR, server.addr, root.path(), &more)).await;
        let told = done.err;
        assert_eq!(done.code, Some(code), "{told}");
        let said = told.contains("error: 3 of 4 requests failed, more than half");
        assert_eq!(said, code == 4, "{told}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_is_killed_leaves_the_rows_it_had() {
    let server = Upstream::start(|turn, _| match turn {
        0..3 => vec![Step::Send(recorded("generate_stream"))],
        _ => vec![Step::Silence],
    })
    .await;
    let root = tempfile::tempdir().unwrap();
    let more = ["--num-prompts", "5", "--upstream-kind", "server"];
    let mut command = command(GENERATOR, server.addr, root.path(), &more);
    command.stderr(std::process::Stdio::null());
    let mut child = command.spawn().unwrap();
    let partial = root.path().join("requests.partial.csv");
    let rows = || std::fs::read_to_string(&partial).unwrap_or_default();
    until("three rows are there", || rows().lines().count() == 4).await;
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!root.path().join("requests.csv").exists());
    std::fs::rename(&partial, root.path().join("requests.csv")).unwrap();
    assert_eq!(column(root.path(), "outcome"), ["ok"; 3]);
    // The clock of the server was known as far as three requests tell.
    for cell in column(root.path(), "pure_queue_time") {
        assert!(cell.parse::<f64>().is_ok(), "{cell}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_that_cannot_be_put_right_stay_as_they_were() {
    let gate = Gate::new();
    let held = gate.clone();
    let server = Upstream::start(move |_, _| {
        vec![
            Step::Gate(held.clone()),
            Step::Send(recorded("generate_stream")),
        ]
    })
    .await;
    let root = tempfile::tempdir().unwrap();
    let run = command(GENERATOR, server.addr, root.path(), &["--num-prompts", "2"]);
    let run = tokio::spawn(run_aside(run));
    until("the run has begun", || server.seen().len() == 2).await;
    // A folder in the place of the file, which no file can replace.
    std::fs::create_dir(root.path().join("requests.csv")).unwrap();
    gate.open();
    let done = run.await.unwrap();
    let error = done.err;
    assert_eq!(done.code, Some(1), "{error}");
    let said = "requests.csv: Is a directory (os error 21); see requests.partial.csv for the rows";
    assert!(error.contains(said), "{error}");
    assert_eq!(read(root.path(), "requests.partial.csv").lines().count(), 3);
    let summary: Value = serde_json::from_str(&read(root.path(), "summary.json")).unwrap();
    assert_eq!(summary["completed"], 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_run_has_a_folder_of_its_own() {
    let server = Upstream::always(recorded("generate_stream")).await;
    let root = tempfile::tempdir().unwrap();
    let url = format!("http://{}", server.addr);
    let run = |number: usize| {
        let mut command = Command::new(GENERATOR);
        let short = ["--random-input-len", "8", "--num-prompts"];
        command
            .args(["--base-url", &url])
            .args(short)
            .arg(number.to_string())
            .current_dir(root.path());
        command
    };
    // At once, so that they may well begin in one second.
    let runs = (1..=3).map(|number| tokio::spawn(run_aside(run(number))));
    for done in runs.collect::<Vec<_>>() {
        let done = done.await.unwrap();
        assert_eq!(done.code, Some(0));
    }
    let folder = root.path().join("results/traffic");
    let entries = std::fs::read_dir(&folder).unwrap();
    let mut rows: Vec<usize> = entries
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.file_type().unwrap().is_dir())
        .map(|entry| column(&entry.path(), "success").len())
        .collect();
    rows.sort();
    assert_eq!(rows, [1, 2, 3]);
    assert!((1..=3).contains(&column(&folder.join("latest"), "success").len()));
}

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_ends_the_run_with_the_rows_so_far() {
    let server = Upstream::always(recorded("generate_stream")).await;
    let root = tempfile::tempdir().unwrap();
    let more = ["--request-rate", "5", "--num-prompts", "200"];
    let mut command = command(QUEUESCOPE, server.addr, root.path(), &more);
    command
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped());
    let child = command.spawn().unwrap();
    until("some arrived", || server.seen().len() >= 3).await;
    let id = nix::unistd::Pid::from_raw(child.id().try_into().unwrap());
    nix::sys::signal::kill(id, nix::sys::signal::Signal::SIGTERM).unwrap();
    let done = tokio::task::spawn_blocking(move || Done::from(child.wait_with_output().unwrap()));
    let done = done.await.unwrap();
    let said = done.out;
    assert_eq!(done.code, Some(143), "{said}");
    assert!(said.contains("stopped before its end"), "{said}");
    let rows = column(root.path(), "success");
    let seen = server.seen().len();
    assert!((3..200).contains(&seen), "{seen}");
    assert_eq!(rows, vec!["True"; seen]);
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_who_reads_is_no_reason_to_fail() {
    let server = Upstream::always(recorded("generate_stream")).await;
    let root = tempfile::tempdir().unwrap();
    let more = ["--num-prompts", "3", "--force"];
    for program in [GENERATOR, QUEUESCOPE] {
        let done = unread(command(program, server.addr, root.path(), &more), false).await;
        assert_eq!(done.0, Some(0));
        assert!(!done.1.contains("error"), "{}", done.1);
        assert_eq!(column(root.path(), "success"), ["True"; 3]);
    }
    let nowhere = refusing().await;
    let failing = command(GENERATOR, nowhere, root.path(), &more);
    assert_eq!(unread(failing, true).await.0, Some(1));
    let wrong = command(GENERATOR, nowhere, root.path(), &["--num-prompts", "0"]);
    assert_eq!(unread(wrong, true).await.0, Some(2));
}

/// Runs it with its output's other end closed, of its errors too if asked: its exit code and errors.
async fn unread(mut command: Command, errors_too: bool) -> (Option<i32>, String) {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    command.stdout(writer.try_clone().unwrap());
    if errors_too {
        command.stderr(writer);
    } else {
        command.stderr(std::process::Stdio::piped());
    }
    let done = tokio::task::spawn_blocking(move || {
        let child = command.spawn().unwrap();
        Done::from(child.wait_with_output().unwrap())
    });
    let done = done.await.unwrap();
    (done.code, done.err)
}
