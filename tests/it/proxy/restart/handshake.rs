//! A takeover in which one of the two dies, hangs or is told to end at an odd moment.

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_third_process_starts_at_once_when_the_second_was_killed() {
    let gate = Gate::new();
    let upstream = gated(&gate).await;
    let place = Place::new(upstream.addr, upstream.addr);
    let mut first = place.start();
    let mut stream = stream(first.front).await;
    let mut second = place.next();
    first.says("handed over: 1 request ");
    second.child.kill().unwrap();
    second.child.wait().unwrap();
    // The first one still drains, but nobody is handed anything by it any more.
    let third = Process::in_folder(place.folder.clone(), &place.args(&[]));
    let said = third.says("take");
    assert!(said.contains("takeover at "), "{said}");
    assert!(answers(third.front).await);
    assert!(first.child.try_wait().unwrap().is_none());
    gate.open();
    ends(&mut stream).await;
    drop(stream);
    assert!(first.exit().await.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_process_that_asks_for_the_listeners_keeps_no_reload_out() {
    let upstream = server().await;
    let place = Place::new(upstream.addr, upstream.addr);
    let old = place.start();
    let _silent = begin(&place);
    old.signal(Signal::SIGHUP);
    old.says("reloaded: every key is as before");
    let refused = "queuescope_reloads_total{result=\"refused\"}";
    assert_eq!(old.metric(refused).await, 0);
    // What is offered anew is taken.
    assert_eq!(place.next().front, old.front);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigterm_ends_a_process_that_waits_for_its_predecessor() {
    let upstream = server().await;
    let place = Place::new(upstream.addr, upstream.addr);
    let listener = UnixListener::bind(place.socket()).unwrap();
    let (child, lines) = spawn(place.folder.path(), &place.args(&[]));
    // It is there, but gives nothing for now.
    let (_stream, _) = listener.accept().unwrap();
    let mut process = Process::not_yet(child, lines, place.folder.clone());
    process.says("asking the process at");
    process.signal(Signal::SIGTERM);
    process.says("ended before it served");
    assert!(process.exit().await.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_may_outlast_drain_timeout_s_after_a_takeover_but_not_after_sigterm() {
    let gate = Gate::new();
    let upstream = gated(&gate).await;
    let place = Place::new(upstream.addr, upstream.addr);
    let args = place.args(&["--drain-timeout-s", "0"]);
    let mut old = Process::in_folder(place.folder.clone(), &args);
    old.says("takeover at ");
    let _streams = [stream(old.front).await, stream(old.front).await];
    let next = place.next();
    old.says("handed over: 2 requests");
    // Far longer than no time at all.
    for _ in 0..50 {
        assert!(answers(next.front).await);
    }
    old.signal(Signal::SIGTERM);
    old.says("draining: 2 requests");
    old.says("still open after drain_timeout_s");
    assert!(old.exit().await.success());
}
