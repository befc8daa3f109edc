//! The end of the process: `queuescope proxy` as its users run it, with signals.

use std::net::SocketAddr;

use nix::sys::signal::Signal;

use crate::support::process::Process;
use crate::support::proxy::{answering, assert_outcome, rows};
use crate::support::upstream::{Gate, Upstream, gated};
use crate::support::wire::{Client, PATIENCE, until};

async fn begin_stream(front: SocketAddr) -> Client {
    let mut client = Client::connect(front).await;
    client.begin_stream().await;
    client
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigterm_lets_streams_finish_and_ends_with_the_last() {
    let gate = Gate::new();
    let upstream = gated(&gate).await;
    let mut process = Process::start(upstream.addr, &["--drain-timeout-s", "3600"]);
    assert_eq!(process.ready().await, 200);
    let mut idle = Client::connect(process.front).await;
    let mut clients = Vec::new();
    for _ in 0..3 {
        clients.push(begin_stream(process.front).await);
    }
    process.signal(Signal::SIGTERM);
    process.says("draining");
    assert_eq!(process.ready().await, 503);
    // No new connections, and idle ones go; the process stays for the streams.
    // Refused once is enough: the port is free then, and another test may take it.
    let addr = process.front;
    until("the listener closes", || {
        std::net::TcpStream::connect(addr).is_err()
    })
    .await;
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
    assert_eq!(rows.len(), 3);
    rows.iter().for_each(|row| assert_outcome(row, "ok", ""));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_on_an_idle_connection_is_still_served_at_the_start_of_draining() {
    let upstream = Upstream::ok().await;
    let mut process = Process::start(upstream.addr, &[]);
    let mut client = Client::connect(process.front).await;
    let kept = client.ask("/generate", "", b"{}").await;
    assert_eq!(kept.header("connection").unwrap(), "keep-alive");
    process.signal(Signal::SIGINT);
    process.says("draining");
    let last = client.ask("/generate", "", b"{}").await;
    assert!(last.whole);
    assert_eq!(last.header("connection").unwrap(), "close");
    assert!(process.exit().await.success());
    assert_eq!(rows(&process.records()).len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_signal_and_the_drain_timeout_end_what_does_not_end_with_all_records() {
    for (timeout, signals) in [("3600", 2), ("0.3", 1)] {
        let upstream = gated(&Gate::new()).await;
        let mut process = Process::start(upstream.addr, &["--drain-timeout-s", timeout]);
        let mut client = begin_stream(process.front).await;
        process.signal(Signal::SIGTERM);
        process.says("draining");
        if signals > 1 {
            process.signal(Signal::SIGTERM);
        }
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
