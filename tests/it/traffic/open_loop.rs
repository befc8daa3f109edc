//! What is sent when, and that all of it becomes rows.

use super::*;
use crate::support::assert_says;

#[tokio::test]
async fn every_request_becomes_a_row_of_its_schedule_in_order_of_arrival() {
    let server = Upstream::always(recorded("generate_stream")).await;
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
    let more = ["--num-prompts", "6", "--max-concurrency", "1"];
    let live = Arc::new(LiveProgress::default());
    let plan = plan(server.addr, &more);
    let run = traffic::drive(plan, Clock::system(), live.clone(), Stop::new());
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

/// A run that is told to stop once so many requests arrived; then the gate is opened.
async fn stopped(server: &Upstream, line: &str, arrived: usize, gate: &Gate) -> Run {
    let plan = plan(server.addr, &flags(line));
    let stop = Stop::new();
    let run = traffic::drive(plan, Clock::system(), Arc::default(), stop.clone());
    let run = tokio::spawn(run);
    until("they arrived", || server.seen().len() == arrived).await;
    stop.stop();
    gate.open();
    let run = tokio::time::timeout(wire::PATIENCE, run).await.unwrap();
    let run = run.unwrap().unwrap();
    assert!(run.stopped);
    run
}

#[tokio::test]
async fn a_stopped_run_keeps_a_row_of_all_that_was_due() {
    let server = good_at(|turn| turn < 2, Step::Silence).await;
    let line = "--num-prompts 9 --max-concurrency 4 --drain-timeout-s 0";
    let run = stopped(&server, line, 6, &Gate::new()).await;
    let (ok, given_up): (Vec<&Row>, Vec<&Row>) = run.rows.iter().partition(|row| row.is_ok());
    assert_eq!((ok.len(), given_up.len()), (2, 7));
    for row in &given_up {
        let told = (row.outcome(), row.error.as_deref());
        assert_eq!(told, (Outcome::ClientAbort, Some(GIVEN_UP)));
    }
    let unsent = |row: &&&Row| row.timeline.raw(Moment::Sent).is_none();
    let unsent = given_up.iter().filter(unsent);
    let unsent: Vec<_> = unsent.map(|row| row.ended_in.clone().unwrap()).collect();
    assert_eq!(unsent, ["client lag"; 3], "they waited for a slot");
    // Those that took the slot of an answer may have waited as well.
    let waited = run.lag.waited_for_slot;
    assert!((3..=5).contains(&waited), "{waited}");
    until("the server saw us leave", || server.gone() >= 4).await;
    assert_eq!(server.seen().len(), 6);
}

#[tokio::test]
async fn a_stop_lets_requests_under_way_finish() {
    let gate = Gate::new();
    let server = held(&gate).await;
    let run = stopped(&server, "--num-prompts 2", 2, &gate).await;
    assert_eq!(outcomes(&run), [Outcome::Ok; 2]);
}

#[tokio::test]
async fn warm_up_requests_come_first_and_leave_no_row_and_one_that_fails_ends_the_run() {
    let server = Upstream::always(recorded("generate_stream")).await;
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

    let server = Upstream::always(recorded("err_generate_too_long")).await;
    let plan = plan(server.addr, &["--warmup-requests", "1"]);
    let error = drive(plan).await.unwrap_err().to_string();
    assert!(error.starts_with("a warm-up request failed: "), "{error}");
    assert_eq!(server.seen().len(), 1);
}
