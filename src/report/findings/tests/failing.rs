//! Servers that failed, and what follows from that.

use super::*;
use crate::request::outcome::GIVEN_UP;
use crate::request::unseen::Unseen;

/// b:1 dies at 4 s: its requests break off, and later ones go to a:1.
fn killed() -> Run {
    run_of(200, |sample, n, start| match n {
        108.. => sample.host("a:1"),
        100.. if n % 2 == 1 => timed_out(sample, start).ended(Outcome::UpstreamDied, "cut off"),
        _ => sample,
    })
}

#[test]
fn a_server_that_failed_is_named_first() {
    let mut run = killed();
    let all = found(&run);
    let kinds: Vec<&str> = all.iter().map(|of| of.kind).collect();
    assert_eq!(kinds, ["server_failed", "failures"]);
    assert_eq!(all[0].title, "b:1 failed");
    let expected = "4 attempts at it were cut off; it served nothing after 4.";
    assert_says(&all[0].what, expected);
    assert_eq!(all[1].advice, "See the server that failed.");
    // Faults on purpose are reported with the faults.
    run.faults = vec![FaultRow::default()];
    assert!(!super::kinds(&run).contains(&"server_failed"));
}

/// Ten requests arrive while both servers stall, and one just before. Every other one, or none, lasts until the stall ends; or all decode
/// more slowly, which is no wait for the fault.
#[test]
fn requests_that_waited_for_a_fault_are_found() {
    let stalled = |is_held: fn(i64) -> bool, late: &str, error: f64| {
        let mut run = run_of(100, |sample, n, start| match n {
            // The offset of the front's clock is known worse over a long request.
            59..70 if is_held(n) => set(sample, start, &moments(late)).front_within(error),
            _ => sample.front_within(0.05),
        });
        let at = |time, event| ["b", "a"].map(|server| fault(time, server, "stall", event));
        run.faults = [at(2.2, "down"), at(2.59, "up")].concat();
        run
    };
    let late = "LastToken 1990, Finish 2000";
    let finding = only(&stalled(|n| n % 2 == 1, late, 1.0), "fault");
    assert_eq!(
        finding.what,
        "While a, b had the fault stall, 5 of the 10 requests that went well or were given up took 0.26 s or longer, up to 1.51 s, without waiting in the router and their time in the server; none that ended before took more than 13.0 ms."
    );
    assert_eq!(finding.level, Level::Limit);
    only(&stalled(|_| false, late, 1.0), "nothing_found");
    // None is found if the front's clock may be off by as much as they took longer.
    let late = "LastToken 790, Finish 800";
    for (error, is_found) in [(1.0, true), (200.0, false)] {
        let kinds = super::kinds(&stalled(|n| n % 2 == 1, late, error));
        assert_eq!(kinds.contains(&"fault"), is_found, "{error} {kinds:?}");
    }
    let slower = "ServerFinish 990, LastToken 990, Finish 1000";
    only(&stalled(|_| true, slower, 1.0), "nothing_found");
}

/// Requests that a hop held until they were given up count too, but not those that a server had, or whose hop is unknown.
#[test]
fn requests_that_waited_for_a_fault_until_they_were_given_up_are_found() {
    for (outcome, error, host, worker, is_found) in [
        (Outcome::Timeout, "no end after 1 s", None, Some("a"), true),
        (Outcome::ClientAbort, GIVEN_UP, None, Some("a"), true),
        (Outcome::Rejected, "full", None, Some("a"), false),
        (Outcome::Timeout, "no end", Some("a:1"), Some("a"), false),
        (Outcome::Timeout, "no end", None, None, false),
    ] {
        let mut run = run_of(100, |sample, n, start| match n {
            60..65 => timed_out(sample, start).ended(outcome, error).with(|row| {
                (row.host, row.worker) = (host.map(Into::into), worker.map(Into::into))
            }),
            _ => sample,
        });
        run.faults = vec![fault(2.2, "a", "stall", "down")];
        let all = found(&run);
        let finding = all.iter().find(|of| of.kind == "fault");
        assert_eq!(finding.is_some(), is_found, "{outcome:?} {all:#?}");
        if let Some(finding) = finding {
            let expected = "5 of the 40 requests that went well or were given up took 0.26 s or longer, up to 0.90 s";
            assert_says(&finding.what, expected);
        }
    }
}

/// Requests that time out while a slow hop passes their tokens on count, but only at the server that has the fault.
#[test]
fn requests_that_a_slow_hop_kept_decoding_until_they_were_given_up_are_found() {
    for (slow, is_found) in [("a:1", true), ("b:1", false)] {
        let mut run = run_of(100, |sample, n, start| match n {
            60..70 => {
                let sample = sample.without(&[Moment::Finish, Moment::ServerFinish]);
                let sample = sample.at(Moment::End, start + 2000);
                sample.host("a:1").ended(Outcome::Timeout, "no end")
            }
            _ => sample,
        });
        run.faults = vec![fault(2.2, slow, "slow", "down")];
        let all = found(&run);
        let finding = all.iter().find(|of| of.kind == "fault");
        assert_eq!(finding.is_some(), is_found, "{slow} {all:#?}");
        if let Some(finding) = finding {
            assert_says(&finding.what, "While a:1 had the fault slow, 10 of the");
        }
    }
}

/// A router whose queue is full makes requests wait with a fault as without one.
#[test]
fn a_full_router_is_not_blamed_on_a_fault() {
    let mut run = run_of(100, |sample, n, start| match n {
        60.. => {
            let late = moments(HELD).into_iter();
            let late = late
                .map(|(moment, at)| (moment, at + 400))
                .collect::<Vec<_>>();
            let sample = set(sample, start, &late);
            set(
                sample,
                start,
                &moments("ServerFinish 885, LastToken 890, Finish 900"),
            )
        }
        _ => sample,
    });
    run.faults = vec![fault(2.2, "a", "stall", "down")];
    let kinds = super::kinds(&run);
    assert!(!kinds.contains(&"fault"), "{kinds:?}");
}

/// Requests of servers that do not report their end are compared with each other.
#[test]
fn only_some_servers_report_when_they_finished() {
    let mut run = run_of(200, |sample, n, start| {
        let is_held = (120..130).contains(&n);
        let sample = match is_held {
            true => set(sample, start, &moments("LastToken 1990, Finish 2000")),
            false => sample,
        };
        match n % 2 {
            0 => sample,
            _ => sample.without(&[Moment::ServerFinish]),
        }
    });
    run.faults = vec![fault(4.4, "b:1", "stall", "down")];
    let all = found(&run);
    let finding = all.iter().find(|of| of.kind == "fault").unwrap();
    assert_says(
        &finding.what,
        "without waiting in the router and their time in the server",
    );
    assert_says(
        &finding.what,
        "without waiting in the router and their wait in the server queue",
    );
}

#[test]
fn advice_on_refused_connections() {
    // By the proxy, and by the generator.
    for (outcome, error) in [
        (Outcome::ProxyError, "b:1: connection refused"),
        (
            Outcome::ConnectError,
            "connect to b:1: Connection refused (os error 111)",
        ),
    ] {
        let refused = failing(100, 10, |sample| sample.host("").ended(outcome, error));
        let first = found(&refused).remove(0);
        assert_eq!(first.title, "b:1 failed");
        assert_eq!(first.what, "10 attempts could not connect to it.");
        assert_says(&first.advice, "nothing listens at its address");
    }
    // A generator without free files says nothing about a server, nor does one of very many requests.
    let want = "connect to b:1: Too many open files (os error 24)";
    let unsent = |sample: Sample| sample.host("").ended(Outcome::ConnectError, want);
    let one = |sample: Sample| sample.ended(Outcome::UpstreamDied, "cut off");
    for run in [failing(100, 10, unsent), failing(500, 500, one)] {
        only(&run, "failures");
    }
}

#[test]
fn a_router_before_full_servers_is_not_to_send_more() {
    let held =
        "WorkerArrival 150, WorkerForwarded 151, ServerCreated 155, QueueStart 156, QueueEnd";
    let full = format!("{held} 400, PrefillEnd 419, ServerFirstToken 420, FirstToken 430");
    let all = found(&started_as(
        &run_of(100, with(&full)),
        "--max-running-requests 1",
    ));
    let [server, router] = &all[..] else {
        panic!("{all:#?}");
    };
    assert_eq!((server.kind, router.kind), ("server_queue", "router_queue"));
    assert_says(&router.advice, "would only move this wait into the servers");
    assert_says(&router.what, "% of that time while all slots were taken.");
    assert_says(&router.advice, "against the server queue helps here too");
    // Without a finding of the server queue, its advice is part of this one.
    let mut why = WaitReport::default();
    why.sequences = 100;
    why.causes.add(Cause::Slots, 100 * ms(20));
    let short = run_of(100, with(&format!("{held} 176")));
    let all = findings(&short, &RunReport::of(&short).summary, &[], &why);
    assert_says(&all[0].advice, Cause::Slots.advice());
}

#[test]
fn a_remedy_for_several_missing_stages_is_named_once() {
    let mixed = [Unseen::Stream, Unseen::Reply, Unseen::ChatReply];
    let spent = TimeSpent {
        requests: 60,
        unseen: mixed.map(|what| (what, 20)).into(),
        ..TimeSpent::default()
    };
    let notes = spent.unseen_notes();
    assert_eq!(notes.len(), 4, "{notes:#?}");
    assert_eq!(notes.concat().matches("--otlp-traces-endpoint").count(), 1);
    assert_says(&notes[1], "(in 20 of 60 requests)");
    assert_says(&notes.concat(), "return_meta_info");
}

#[test]
fn where_all_failed_there_are_no_others() {
    let refused = |sample: Sample, _, _| sample.ended(Outcome::ConnectError, "refused");
    let run = run_of(100, refused);
    let all = found(&run);
    let failed = all.iter().find(|of| of.kind == "failures").unwrap();
    assert!(!failed.what.contains("latencies"), "{}", failed.what);
}
