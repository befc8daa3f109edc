//! What is sent when, that all of it becomes rows, and that a generator that could not send or see in time is called invalid.

use std::time::Duration;

use super::*;
use crate::support::assert_says;
use crate::support::process::limited;

#[tokio::test]
async fn every_request_becomes_a_row_of_its_schedule_in_order_of_arrival() {
    let server = good().await;
    let line = "--request-rate 500 --num-prompts 40 --upstream-kind server";
    let run = sent(server.addr, line).await;
    assert_eq!(outcomes(&run), [Outcome::Ok; 40]);
    for row in &run.rows {
        let planned = run.plan.offsets[place(row.request_id())];
        assert_eq!(at(row, Moment::Scheduled), run.started.plus_nanos(planned));
        use Moment::{Finish, FirstToken, LastToken, ResponseHead, Scheduled, Sent};
        let order = [Scheduled, Sent, ResponseHead, FirstToken, LastToken, Finish];
        assert!(order.map(|moment| at(row, moment)).is_sorted(), "{row:?}");
        // No proxy: our send is the arrival, and the router's send too, as the target is the server.
        assert_eq!(at(row, Moment::Arrival), at(row, Moment::Sent));
        assert_eq!(at(row, Moment::RouterSend), at(row, Moment::Sent));
        assert_eq!(row.host, Some(server.addr.to_string()));
    }
    assert!(run.rows.is_sorted_by_key(|row| at(row, Moment::Arrival)));
}

#[tokio::test]
async fn a_server_that_stalls_delays_no_later_send() {
    // The first answer waits for the last request: a closed loop would wait for ever.
    let all_here = Gate::new();
    let server = held(&all_here).await;
    let (run, ()) = tokio::join!(
        sent(server.addr, "--request-rate 1000 --num-prompts 30"),
        async {
            until("all are here", || server.seen().len() == 30).await;
            all_here.open();
        }
    );
    assert_eq!(outcomes(&run), [Outcome::Ok; 30]);
    assert_eq!(run.lag.waited_for_slot, 0);
}

#[tokio::test]
async fn waiting_for_a_slot_is_lag_and_nothing_else() {
    let all_due = Gate::new();
    let server = held(&all_due).await;
    let live = Arc::new(LiveProgress::default());
    let plan = plan(server.addr, "--num-prompts 6 --max-concurrency 1");
    let run = traffic::drive(plan, Clock::system(), live.clone(), Stop::default());
    let (run, ()) = tokio::join!(run, async {
        until("all are due", || live.counts().due == 6).await;
        all_due.open();
    });
    let run = run.unwrap();
    assert_eq!(outcomes(&run), [Outcome::Ok; 6]);
    for pair in run.rows.windows(2) {
        assert!(at(&pair[1], Moment::Sent) >= at(&pair[0], Moment::Finish));
        let [one, next] = [0, 1].map(|n| at(&pair[n], Moment::Scheduled));
        assert_eq!(one, next);
    }
    assert_eq!(run.lag.waited_for_slot, 5);
    assert_says(&run.lag.warning().unwrap(), "--max-concurrency");
}

#[tokio::test]
async fn a_stop_lets_requests_under_way_finish() {
    let gate = Gate::new();
    let server = held(&gate).await;
    let plan = plan(server.addr, "--num-prompts 2");
    let stop = Stop::default();
    let run = traffic::drive(plan, Clock::system(), Arc::default(), stop.clone());
    let (run, ()) = tokio::join!(run, async {
        until("they arrived", || server.seen().len() == 2).await;
        stop.stop();
        gate.open();
    });
    let run = run.unwrap();
    assert!(run.stopped.is_some());
    assert_eq!(outcomes(&run), [Outcome::Ok; 2]);
}

#[tokio::test]
async fn warm_up_requests_come_first_and_leave_no_row_and_one_that_fails_ends_the_run() {
    let server = good().await;
    let line = "--num-prompts 4 --warmup-requests 2 --request-id-prefix r";
    let run = sent(server.addr, line).await;
    assert_eq!(run.rows.len(), 4);
    let seen = server.seen().into_iter();
    let mut ids: Vec<String> = seen
        .map(|seen| seen.header("x-request-id").unwrap())
        .collect();
    ids[2..].sort();
    let expected = ["r-warmup-0", "r-warmup-1", "r-0", "r-1", "r-2", "r-3"];
    assert_eq!(ids, expected);

    let server = failing().await;
    let plan = plan(server.addr, "--warmup-requests 1");
    let error = drive(plan).await.unwrap_err().to_string();
    assert!(error.starts_with("a warm-up request failed: "), "{error}");
    assert_eq!(server.seen().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_generator_that_stood_still_is_invalid_on_any_machine() {
    let server = good().await;
    let root = tempfile::tempdir().unwrap();
    let line = "--random-input-len 8 --upstream-kind server --request-rate 100 --num-prompts 200 --max-failed 0";
    let child = command(server.addr, root.path(), line).spawn().unwrap();
    until("it is under way", || server.seen().len() >= 20).await;
    signal(&child, Signal::SIGSTOP);
    // No state is waited for: this is the fault. A second of the two that the schedule has.
    tokio::time::sleep(Duration::from_secs(1)).await;
    signal(&child, Signal::SIGCONT);
    let done = ended(child).await;
    done.assert_status(&[3]);
    let said = "error: the run is INVALID: its figures are not the server's";
    assert_eq!(done.err.lines().last(), Some(said));
    assert!(done.out.starts_with("INVALID: "), "{}", done.out);
    let summary = summary(root.path(), &done);
    assert_eq!(summary["verdict"]["grade"], "INVALID");
    for said in ["were sent more than", "event loop woke more than"] {
        assert_says(&summary["verdict"]["reasons"].to_string(), said);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn figures_of_a_window_leave_its_edges_out_and_rows_hold_all() {
    let server = good().await;
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
    let server = Upstream::always(wire::answer("500 X", said)).await;
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
