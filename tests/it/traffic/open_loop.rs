//! What is sent when, and that all of it becomes rows.

use super::*;

#[tokio::test]
async fn every_request_becomes_a_whole_row_in_order_of_arrival() {
    let server = Upstream::always(recorded("generate_stream")).await;
    let more = flags("--request-rate 500 --num-prompts 40 --upstream-kind server");
    let run = drive(plan(server.addr, &more)).await.unwrap();
    assert_eq!(run.records.len(), 40);
    assert_eq!(server.seen().len(), 40);
    let host = server.addr.to_string();
    for row in &run.records {
        assert_eq!(row.outcome(), Outcome::Ok, "{:?}", row.error);
        assert_eq!(row.host.as_deref(), Some(host.as_str()));
        assert_eq!(row.input_length, Some(8));
        assert_eq!(row.expected_output_length, Some(1024));
        assert!(row.engine_id.is_some() && row.trace_id.is_some());
        let order = [
            Moment::Scheduled,
            Moment::Sent,
            Moment::ResponseHead,
            Moment::FirstToken,
            Moment::LastToken,
            Moment::Finish,
        ];
        let times: Vec<Stamp> = order.iter().map(|moment| at(row, *moment)).collect();
        assert!(times.is_sorted(), "{times:?}");
        // No proxy: our send is the arrival, and the router's send too, as the target is the server.
        assert_eq!(at(row, Moment::Arrival), at(row, Moment::Sent));
        assert_eq!(at(row, Moment::RouterSend), at(row, Moment::Sent));
    }
    assert!(run.records.is_sorted_by_key(|row| at(row, Moment::Arrival)));
    // A row's schedule is the one laid out.
    for row in &run.records {
        let planned = run.schedule.get(place(row.request_id()));
        let due = run.started.plus_nanos(planned.unwrap().offset_nanos);
        assert_eq!(at(row, Moment::Scheduled), due);
    }
}

#[tokio::test]
async fn a_server_that_stalls_delays_no_later_send() {
    // The first answer waits for the last request: a closed loop would wait for ever.
    let all_here = Gate::new();
    let opened = all_here.clone();
    let server = Upstream::start(move |turn, _| {
        if turn == 29 {
            opened.open();
        }
        vec![
            Step::Gate(opened.clone()),
            Step::Send(recorded("generate_stream")),
        ]
    })
    .await;
    let more = ["--request-rate", "1000", "--num-prompts", "30"];
    let run = drive(plan(server.addr, &more)).await.unwrap();
    assert_eq!(outcomes(&run), [Outcome::Ok; 30]);
    let last_sent = run.records.iter().map(|row| at(row, Moment::Sent)).max();
    assert!(
        run.records
            .iter()
            .all(|row| at(row, Moment::Finish) > last_sent.unwrap())
    );
    assert_eq!(run.lag.waited, 0);
}

#[tokio::test]
async fn waiting_for_a_slot_is_lag_and_nothing_else() {
    let all_due = Gate::new();
    let server = held(&all_due).await;
    let more = ["--num-prompts", "6", "--max-concurrency", "1"];
    let live = Arc::new(Live::default());
    let plan = plan(server.addr, &more);
    let run = traffic::drive(plan, Clock::system(), live.clone(), Stop::new());
    let (run, ()) = tokio::join!(run, async {
        until("all are due", || live.counts().due == 6).await;
        all_due.open();
    });
    let run = run.unwrap();
    assert_eq!(outcomes(&run), [Outcome::Ok; 6]);
    for pair in run.records.windows(2) {
        assert!(at(&pair[1], Moment::Sent) >= at(&pair[0], Moment::Finish));
        assert_eq!(
            at(&pair[1], Moment::Scheduled),
            at(&pair[0], Moment::Scheduled)
        );
    }
    assert_eq!(run.lag.waited, 5);
    let warnings = run.lag.warnings();
    assert!(warnings[0].contains("--max-concurrency"), "{warnings:?}");
}

#[tokio::test]
async fn the_schedule_depends_on_seed_and_rate_alone() {
    let nowhere = refusing().await;
    let offsets = |more: &str| -> Vec<i64> {
        let line = format!("--request-rate 50 {more}");
        let schedule = plan(nowhere, &flags(&line)).schedule().unwrap();
        let offsets = schedule.into_iter().map(|planned| planned.offset_nanos);
        offsets.collect()
    };
    let hundred = offsets("--seed 9 --num-prompts 100");
    assert_eq!(offsets("--seed 9 --num-prompts 300")[..100], hundred);
    assert_ne!(offsets("--seed 8 --num-prompts 100"), hundred);
    for other in [
        "--max-concurrency 3",
        "--random-output-len 7",
        "--random-range-ratio 0.5",
        "--backend sglang-oai",
        "--dataset-name random-ids",
        "--warmup-requests 5",
    ] {
        let line = format!("--seed 9 --num-prompts 100 {other}");
        assert_eq!(offsets(&line), hundred);
    }
    // Two seconds of the same process: everything before the limit, nothing after.
    let two = offsets("--seed 9 --duration 2");
    let long = offsets("--seed 9 --num-prompts 1000");
    let inside = long.iter().filter(|at| **at < 2_000_000_000).count();
    assert_eq!(two, long[..inside]);
}

#[tokio::test]
async fn a_stopped_run_keeps_a_row_of_all_that_was_due() {
    // The third request on get no answer.
    let server = Upstream::start(|turn, _| match turn {
        0..2 => vec![Step::Send(recorded("generate_stream"))],
        2 => {
            let whole = recorded("generate_stream");
            vec![Step::Send(whole[..whole.len() / 2].to_vec()), Step::Silence]
        }
        _ => vec![Step::Silence],
    })
    .await;
    let more = flags("--num-prompts 9 --max-concurrency 4 --drain-timeout-s 0");
    let (stop, live) = (Stop::new(), Arc::new(Live::default()));
    let plan = plan(server.addr, &more);
    let run = traffic::drive(plan, Clock::system(), live.clone(), stop.clone());
    let run = tokio::spawn(run);
    until("six requests arrived", || server.seen().len() == 6).await;
    stop.stop();
    let run = run.await.unwrap().unwrap();
    assert!(run.stopped);
    assert_eq!(run.records.len(), 9);
    let count = |wanted| outcomes(&run).into_iter().filter(|o| *o == wanted).count();
    assert_eq!((count(Outcome::Ok), count(Outcome::ClientAbort)), (2, 7));
    let given_up = run.records.iter().filter(|row| !row.is_ok());
    for row in given_up {
        assert_eq!(row.error.as_deref(), Some(GIVEN_UP));
    }
    let unsent = run
        .records
        .iter()
        .filter(|row| row.timeline.raw(Moment::Sent).is_none());
    let unsent: Vec<_> = unsent.map(|row| row.ended_in.clone().unwrap()).collect();
    assert_eq!(unsent, ["client lag"; 3], "they waited for a slot");
    // Those that took the slot of an answer may have waited as well.
    assert!((3..=5).contains(&run.lag.waited), "{}", run.lag.waited);
    assert_eq!(live.counts().under_way, 0);
    until("the server saw us leave", || server.gone() >= 4).await;
    assert_eq!(server.seen().len(), 6);
}

#[tokio::test]
async fn a_stop_lets_requests_under_way_finish() {
    let gate = Gate::new();
    let server = held(&gate).await;
    let plan = plan(server.addr, &["--num-prompts", "2"]);
    let stop = Stop::new();
    let run = traffic::drive(plan, Clock::system(), Arc::default(), stop.clone());
    let run = tokio::spawn(run);
    until("both arrived", || server.seen().len() == 2).await;
    stop.stop();
    gate.open();
    let run = run.await.unwrap().unwrap();
    assert_eq!(outcomes(&run), [Outcome::Ok; 2]);
    assert!(run.stopped);
}

#[tokio::test]
async fn a_stop_ends_the_wait_for_the_next_request() {
    let server = Upstream::always(recorded("generate_stream")).await;
    // Hours to the first request; the warm-up request tells that the run is near its start.
    let more = flags("--request-rate 0.0001 --num-prompts 5 --warmup-requests 1");
    let plan = plan(server.addr, &more);
    let stop = Stop::new();
    let run = traffic::drive(plan, Clock::system(), Arc::default(), stop.clone());
    let run = tokio::spawn(run);
    until("the warm-up arrived", || server.seen().len() == 1).await;
    stop.stop();
    let run = tokio::time::timeout(wire::PATIENCE, run).await.unwrap();
    let run = run.unwrap().unwrap();
    assert!(run.records.is_empty() && run.stopped);
    assert_eq!(failure(&run).as_deref(), Some("no request was sent"));
    assert_eq!(run.schedule.len(), 5);
}

#[tokio::test]
async fn warm_up_requests_come_first_and_leave_no_row() {
    let server = Upstream::always(recorded("generate_stream")).await;
    let more = ["--num-prompts", "4", "--warmup-requests", "2"];
    let plan = plan(server.addr, &more);
    let prefix = plan.request_id_prefix.clone();
    let run = drive(plan).await.unwrap();
    assert_eq!(run.records.len(), 4);
    let seen = server.seen();
    let ids = seen.iter().filter_map(|seen| seen.header("x-request-id"));
    let ids: Vec<String> = ids.collect();
    let warmups = [0, 1].map(|turn| format!("{prefix}-warmup-{turn}"));
    assert_eq!(ids[..2], warmups);
    assert_eq!(ids.len(), 6);
    assert!(ids[2..].iter().all(|id| !id.contains("warmup")));
}

#[tokio::test]
async fn a_failed_warm_up_request_ends_the_run_with_its_cause() {
    let server = Upstream::always(recorded("err_generate_too_long")).await;
    let more = ["--num-prompts", "4", "--warmup-requests", "1"];
    let error = drive(plan(server.addr, &more)).await.unwrap_err();
    assert!(
        error.to_string().starts_with("a warm-up request failed: "),
        "{error}"
    );
    assert_eq!(server.seen().len(), 1);
}
