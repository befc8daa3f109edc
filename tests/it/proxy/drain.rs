//! The end of the process: `queuescope proxy` as its users run it, with signals.

use super::restart::stream;
use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigterm_lets_streams_finish_and_ends_with_the_last() {
    let gate = Gate::new();
    let upstream = gated(&gate).await;
    let mut process = Process::start(upstream.addr, &["--drain-timeout-s", "3600"]);
    assert_eq!(process.ready().await, 200);
    let mut idle = Client::connect(process.front).await;
    let mut kept = Client::connect(process.front).await;
    let answer = kept.ask("/generate", "", b"{}").await;
    assert_eq!(answer.header("connection").unwrap(), "keep-alive");
    let mut clients = Vec::new();
    for _ in 0..3 {
        clients.push(stream(process.front).await);
    }
    process.signal(Signal::SIGTERM);
    process.says("draining");
    // A connection that has served has one more request.
    let last = kept.ask("/generate", "", b"{}").await;
    assert!(last.whole);
    assert_eq!(last.header("connection").unwrap(), "close");
    assert_eq!(process.ready().await, 503);
    // No new connections, and idle ones go; the process stays for the streams.
    // Refused once is enough: the port is free then, and another test may take it.
    let addr = process.front;
    let refuses = || std::net::TcpStream::connect(addr).is_err();
    until("the listener closes", refuses).await;
    assert!(idle.is_closed().await);
    assert!(process.child.try_wait().unwrap().is_none());
    gate.open();
    for client in &mut clients {
        let rest = client.read_to_close().await;
        let end = b"data: [DONE]\n\n\r\n0\r\n\r\n";
        assert!(rest.ends_with(end), "{}", rest.escape_ascii());
    }
    assert!(process.exit().await.success());
    let rows = rows(&process.records());
    assert_eq!(rows.len(), 5);
    rows.iter().for_each(|row| assert_outcome(row, "ok", ""));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_signal_and_the_drain_timeout_end_what_does_not_end_with_all_records() {
    let both = [Signal::SIGINT, Signal::SIGTERM];
    for (timeout, signals) in [("3600", &both[..]), ("0.3", &both[1..])] {
        let upstream = gated(&Gate::new()).await;
        let mut process = Process::start(upstream.addr, &["--drain-timeout-s", timeout]);
        let mut client = stream(process.front).await;
        process.signal(signals[0]);
        process.says("draining");
        signals[1..].iter().for_each(|again| process.signal(*again));
        assert!(process.exit().await.success());
        client.read_to_close().await;
        let rows = rows(&process.records());
        assert_eq!(rows.len(), 1);
        assert_outcome(&rows[0], "proxy_error", "shut down");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_a_head_does_not_hold_up_the_end() {
    let (_upstream, front) = answering("drain_timeout_s = 3600.0").await;
    let mut first = front.sent("POST /generate HTTP/1.1\r\nhost: h\r\n").await;
    let mut later = front.client().await;
    assert_eq!(later.ask("/generate", "", b"{}").await.status(), 200);
    later.send("POST /gen").await;
    let drain = tokio::time::timeout(PATIENCE, front.proxy.drain());
    drain.await.expect("it ends long before drain_timeout_s");
    assert!(first.is_closed().await && later.is_closed().await);
    assert_eq!(front.rows().await.len(), 1);
}
