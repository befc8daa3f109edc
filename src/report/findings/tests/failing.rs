//! Full servers behind a router, and failed requests.

use super::*;

#[test]
fn a_router_before_full_servers_is_not_to_send_more() {
    let held =
        "WorkerArrival 150, WorkerForwarded 151, ServerCreated 155, QueueStart 156, QueueEnd";
    let full = format!("{held} 400, PrefillEnd 419, ServerFirstToken 420, FirstToken 430");
    let run = run_of(100, with(&full));
    let all = found(&with_slots(&run, 1));
    let [server, router] = &all[..] else {
        panic!("{all:#?}");
    };
    assert_eq!((server.kind, router.kind), ("server_queue", "router_queue"));
    assert_says(&router.advice, "would only move this wait into the servers");
    assert_says(&router.what, "% of that time while all slots were taken.");
    assert_says(&router.advice, Cause::Slots.advice());
    // Where hardly any wait behind the router, its limit keeps slots free, or the slots are taken all the same.
    let held = run_of(100, with(HELD));
    for (slots, advice) in [(1, "would only move"), (9, "Raise the router's limit")] {
        let router = only(&with_slots(&held, slots), "router_queue");
        assert_says(&router.advice, advice);
    }
}

#[test]
fn where_all_failed_there_are_no_others() {
    let refused = |sample: Sample, _, _| sample.ended(Outcome::ConnectError, "refused");
    let run = run_of(100, refused);
    let all = found(&run);
    let failed = all.iter().find(|of| of.kind == "failures").unwrap();
    assert!(!failed.what.contains("latencies"), "{}", failed.what);
}

/// b:1 dies at 4 s: its requests break off, and later ones go to a:1, which is no imbalance.
#[test]
fn servers_of_which_one_died_are_not_unequal() {
    let killed = run_of(200, |sample, n, start| match n {
        108.. => sample.host("a:1"),
        100.. if n % 2 == 1 => timed_out(sample, start).ended(Outcome::UpstreamDied, "cut off"),
        _ => sample,
    });
    let finding = only(&killed, "failures");
    assert_says(&finding.advice, "Read the end of the servers' logs");
}
