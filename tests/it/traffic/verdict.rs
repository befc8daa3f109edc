//! A generator that could not send or see in time is called invalid.

use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::*;
use crate::support::process::{Done, limited, queuescope, run_aside};

#[tokio::test(flavor = "multi_thread")]
async fn a_generator_that_stood_still_is_invalid_on_any_machine() {
    let server = Upstream::always(recorded("generate_stream")).await;
    let root = tempfile::tempdir().unwrap();
    let url = format!("http://{}", server.addr);
    let mut command = queuescope(&["traffic", "--base-url", &url, "--upstream-kind", "server"]);
    let more = flags("--request-rate 100 --num-prompts 200 --random-input-len 8 --max-failed 0");
    command.args(more).arg("--output-dir").arg(root.path());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let id = Pid::from_raw(child.id().try_into().unwrap());
    until("some arrived", || server.seen().len() >= 20).await;
    kill(id, Signal::SIGSTOP).unwrap();
    // No state is waited for: this is the fault, a second of the two that the schedule has.
    tokio::time::sleep(Duration::from_secs(1)).await;
    kill(id, Signal::SIGCONT).unwrap();
    let done = tokio::task::spawn_blocking(move || Done::from(child.wait_with_output().unwrap()));
    let done = done.await.unwrap();
    assert_eq!(done.code, Some(3), "{done:?}");
    let said = "error: the run is INVALID: its figures are not the server's";
    assert_eq!(done.err.lines().last(), Some(said));
    let summary = std::fs::read_to_string(root.path().join("summary.json")).unwrap();
    let summary: Value = serde_json::from_str(&summary).unwrap();
    assert_eq!(summary["verdict"]["grade"], "INVALID");
    let reasons = summary["verdict"]["reasons"].as_array().unwrap();
    let reasons: Vec<&str> = reasons.iter().filter_map(Value::as_str).collect();
    for said in ["were sent more than", "event loop woke more than"] {
        assert!(
            reasons.iter().any(|reason| reason.contains(said)),
            "{reasons:?}"
        );
    }
    // No block of figures stands without the mark.
    let (figures, _) = done.out.split_once("\nverdict ").unwrap();
    assert!(figures.split("\n\n").count() >= 3, "{figures}");
    for block in figures.split("\n\n") {
        assert!(block.starts_with("INVALID: "), "{block}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_generator_that_stood_still_is_invalid_also_where_all_is_due_at_once() {
    let sim = generator::sim(|config| config.profile.max_running_requests = 4);
    let root = tempfile::tempdir().unwrap();
    let url = format!("http://{}", sim.addr());
    let mut command = queuescope(&["traffic", "--base-url", &url, "--upstream-kind", "server"]);
    let more =
        flags("--request-rate inf --num-prompts 60 --random-input-len 8 --random-output-len 32");
    command.args(more).arg("--output-dir").arg(root.path());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let id = Pid::from_raw(child.id().try_into().unwrap());
    let rows = root.path().join("requests.partial.csv");
    let lines = || std::fs::read_to_string(&rows).map_or(0, |text| text.lines().count());
    until("some rows", || lines() >= 4).await;
    kill(id, Signal::SIGSTOP).unwrap();
    // The fault, as above.
    tokio::time::sleep(Duration::from_secs(2)).await;
    kill(id, Signal::SIGCONT).unwrap();
    let done = tokio::task::spawn_blocking(move || Done::from(child.wait_with_output().unwrap()));
    let done = done.await.unwrap();
    assert_eq!(done.code, Some(3), "{done:?}");
    assert!(done.out.contains("event loop woke more than"), "{done:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn figures_of_a_window_leave_its_edges_out_and_rows_hold_all() {
    let server = Upstream::always(recorded("generate_stream")).await;
    let root = tempfile::tempdir().unwrap();
    let url = format!("http://{}", server.addr);
    let mut command = queuescope(&["traffic", "--base-url", &url, "--upstream-kind", "server"]);
    let more = "--request-rate 100 --num-prompts 150 --random-input-len 8 --leave-out-first 0.5 --leave-out-last 0.4";
    command
        .args(flags(more))
        .arg("--output-dir")
        .arg(root.path());
    let done = crate::support::process::run_aside(command).await;
    let summary = std::fs::read_to_string(root.path().join("summary.json")).unwrap();
    let summary: Value = serde_json::from_str(&summary).unwrap();
    let window = &summary["window"];
    let count = |value: &Value| value.as_u64().unwrap();
    let left_out = count(&window["left_out_first"]) + count(&window["left_out_last"]);
    assert!(left_out > 20, "{window}");
    assert_eq!(count(&summary["requests"]) + left_out, 150, "{window}");
    assert_eq!(window["from_s"], 0.5);
    let length = window["to_s"].as_f64().unwrap() - 0.5;
    assert!((summary["duration"].as_f64().unwrap() - length).abs() < 1e-6);
    let rows = std::fs::read_to_string(root.path().join("requests.csv")).unwrap();
    assert_eq!(rows.lines().count(), 151);
    let first = done
        .out
        .lines()
        .find(|line| line.starts_with("figures are of the "));
    assert!(
        first.is_some_and(|line| line.contains("that arrived from 0.50 s to")),
        "{}",
        done.out
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_generators_own_want_of_files_is_told_as_such() {
    let said = r#"{"error":{"message":"accept: Too many open files (os error 24)"}}"#;
    let head = "HTTP/1.1 500 X\r\ncontent-type: application/json\r\n";
    let refused = format!("{head}content-length: {}\r\n\r\n{said}", said.len());
    let server = Upstream::always(refused.into_bytes()).await;
    let held = Upstream::start(|_, _| vec![Step::Pause(Duration::from_secs(1)), Step::Close]).await;
    // Of 100 at once there are no files for most.
    for (addr, ulimit, is_own) in [(server.addr, "-n 1000", false), (held.addr, "-n 60", true)] {
        let root = tempfile::tempdir().unwrap();
        let mut command = limited(ulimit);
        command.args(["traffic", "--base-url", &format!("http://{addr}")]);
        command.args(flags(
            "--request-rate inf --num-prompts 100 --random-input-len 8",
        ));
        let done = run_aside({
            command.arg("--output-dir").arg(root.path());
            command
        });
        let done = done.await;
        let summary = std::fs::read_to_string(root.path().join("summary.json"));
        let summary: Value = serde_json::from_str(&summary.expect(&done.err)).unwrap();
        let dropped = summary["client"]["dropped"].as_u64().unwrap();
        assert_eq!(dropped > 10, is_own, "{dropped}: {}", done.err);
        assert_eq!(dropped == 0, !is_own, "{dropped}: {}", done.err);
        assert_eq!(
            done.out.contains("no more files or ports"),
            is_own,
            "{}",
            done.out
        );
    }
}
