//! A generator that could not send or see in time is called invalid.

use std::time::Duration;

use super::*;
use crate::support::assert_says;
use crate::support::process::limited;

/// A run that is held for so long once it is under way, and thus invalid.
async fn stood_still(mut run: Command, seconds: u64, is_under_way: impl Fn() -> bool) -> Done {
    let child = run.spawn().unwrap();
    until("it is under way", is_under_way).await;
    signal(&child, Signal::SIGSTOP);
    // No state is waited for: this is the fault.
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    signal(&child, Signal::SIGCONT);
    let done = ended(child).await;
    done.assert_status(&[3]);
    done
}

#[tokio::test(flavor = "multi_thread")]
async fn a_generator_that_stood_still_is_invalid_on_any_machine() {
    let server = Upstream::always(recorded("generate_stream")).await;
    let root = tempfile::tempdir().unwrap();
    let line = "--random-input-len 8 --upstream-kind server --request-rate 100 --num-prompts 200 --max-failed 0";
    let run = command(server.addr, root.path(), line);
    // A second of the two that the schedule has.
    let done = stood_still(run, 1, || server.seen().len() >= 20).await;
    let said = "error: the run is INVALID: its figures are not the server's";
    assert_eq!(done.err.lines().last(), Some(said));
    let summary = summary(root.path(), &done);
    assert_eq!(summary["verdict"]["grade"], "INVALID");
    for said in ["were sent more than", "event loop woke more than"] {
        assert_says(&summary["verdict"]["reasons"].to_string(), said);
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
    let line =
        "--upstream-kind server --num-prompts 60 --random-input-len 8 --random-output-len 32";
    let run = command(sim.addr(), root.path(), line);
    let lines = || read(root.path(), "requests.partial.csv").lines().count();
    let done = stood_still(run, 2, || lines() >= 4).await;
    assert_says(&done.out, "event loop woke more than");
}

#[tokio::test(flavor = "multi_thread")]
async fn figures_of_a_window_leave_its_edges_out_and_rows_hold_all() {
    let server = Upstream::always(recorded("generate_stream")).await;
    let line = "--upstream-kind server --request-rate 100 --num-prompts 150 --leave-out-first 0.5 --leave-out-last 0.4";
    let (done, summary, folder) = ran(server.addr, line).await;
    let window = &summary["window"];
    let [first, last] = counts(window, ["left_out_first", "left_out_last"]);
    assert!(first + last > 20, "{window}");
    let [requests] = counts(&summary, ["requests"]);
    assert_eq!(requests + first + last, 150, "{window}");
    assert_eq!(window["from_s"], 0.5);
    let length = window["to_s"].as_f64().unwrap() - 0.5;
    assert!((summary["duration"].as_f64().unwrap() - length).abs() < 1e-6);
    assert_eq!(read(folder.path(), "requests.csv").lines().count(), 151);
    assert_says(&done.out, "that arrived from 0.50 s to");
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
        let mut run = limited(ulimit);
        run.args(command(addr, root.path(), "--num-prompts 100").get_args());
        let done = run_aside(run).await;
        let [dropped] = counts(&summary(root.path(), &done)["client"], ["dropped"]);
        let expected = if is_own { 11..101 } else { 0..1 };
        assert!(expected.contains(&dropped), "{dropped}");
        let is_told = done.out.contains("no more files or ports");
        assert_eq!(is_told, is_own, "{}", done.out);
    }
}
