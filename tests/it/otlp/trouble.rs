//! A collector that is away, slow, refuses or talks nonsense changes nothing for requests.

use queuescope::telemetry::otlp::settings::Protocol;

use crate::support::collector::{Collector, Mood};
use crate::support::proxy::Front;
use crate::support::upstream::{Upstream, refusing};
use crate::support::wire::{json_response, until};

use super::url;

const REQUESTS: u64 = 40;

/// Limits of one that gives each export a second.
const QUICK: &str = "delay_s = 0.01\ntimeout_s = 1\nqueue = 8";

/// A front that exports to `endpoint` within these limits; those of an hour are longer than the test.
async fn front(upstream: &Upstream, endpoint: &str, protocol: Protocol, limits: &str) -> Front {
    let protocol = protocol.name();
    let keys =
        format!("[telemetry.otlp]\nendpoint = \"{endpoint}\"\nprotocol = \"{protocol}\"\n{limits}");
    Front::keyed(&[upstream.addr], &keys).await
}

async fn ask(front: &Front, many: u64) {
    let mut client = front.client().await;
    for _ in 0..many {
        assert_eq!(client.ask("/generate", "", b"{}").await.status(), 200);
    }
}

fn dropped(front: &Front, reason: &str) -> u64 {
    front.counter(&format!(
        "queuescope_traces_dropped_total{{reason=\"{reason}\"}}"
    ))
}

/// How many are lost, for every reason.
fn lost(front: &Front) -> u64 {
    front.counter("queuescope_traces_dropped_total")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_fails_for_a_collector_and_each_lost_trace_is_counted_with_its_reason() {
    let collector = Collector::start().await;
    let nonsense = Upstream::always(json_response("\u{0}nonsense")).await;
    let nobody = refusing().await;
    let upstream = Upstream::ok().await;
    for (mood, place, protocol, reason) in [
        (Mood::Refuses, collector.grpc, Protocol::Grpc, "rejected"),
        (Mood::Refuses, collector.http, Protocol::Http, "rejected"),
        (Mood::Busy, collector.grpc, Protocol::Grpc, "rejected"),
        (Mood::Busy, collector.http, Protocol::Http, "rejected"),
        (Mood::Holds, collector.grpc, Protocol::Grpc, "timeout"),
        (Mood::Holds, collector.http, Protocol::Http, "timeout"),
        (Mood::Takes, nobody, Protocol::Grpc, "unreachable"),
        (Mood::Takes, nobody, Protocol::Http, "unreachable"),
        // It speaks HTTP/1.1 alone.
        (Mood::Takes, nonsense.addr, Protocol::Grpc, "unreachable"),
    ] {
        collector.set(mood);
        let front = front(&upstream, &url(place), protocol, QUICK).await;
        ask(&front, REQUESTS).await;
        until("each to be counted", || lost(&front) == REQUESTS).await;
        let (so, full) = (dropped(&front, reason), dropped(&front, "queue_full"));
        assert!(so > 0 && so + full == REQUESTS, "{mood:?} {protocol:?}");
        assert_eq!(front.counter("queuescope_traces_exported_total"), 0);
        let rows = front.rows().await.len() as u64;
        assert_eq!(rows, REQUESTS, "{mood:?} {protocol:?}");
    }
    assert_eq!(collector.spans().len(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_that_is_back_gets_what_comes_from_then_on() {
    let collector = Collector::start().await;
    let upstream = Upstream::ok().await;
    let front = front(&upstream, &url(collector.grpc), Protocol::Grpc, QUICK).await;
    collector.set(Mood::Refuses);
    ask(&front, 3).await;
    until("the loss", || lost(&front) == 3).await;
    collector.set(Mood::Takes);
    ask(&front, 3).await;
    front.counts("queuescope_traces_exported_total", 3).await;
    assert_eq!(lost(&front), 3);
    assert_eq!(collector.traces(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_its_end_a_process_sends_what_waits_and_waits_for_no_dead_collector() {
    let collector = Collector::start().await;
    let upstream = Upstream::ok().await;
    let (to, limits) = (url(collector.grpc), "delay_s = 3600\ntimeout_s = 3600");
    for (mood, lost) in [(Mood::Takes, 0), (Mood::Holds, 5)] {
        collector.set(mood);
        let front = front(&upstream, &to, Protocol::Grpc, limits).await;
        ask(&front, 5).await;
        front.proxy.drain().await;
        assert_eq!(dropped(&front, "shutdown"), lost, "{mood:?}");
        assert_eq!(collector.traces(), 5);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_is_bounded_and_a_full_queue_waits_for_no_delay() {
    let collector = Collector::start().await;
    let (upstream, to) = (Upstream::ok().await, url(collector.grpc));
    let slow = "delay_s = 3600\nqueue = 3";
    let full = front(&upstream, &to, Protocol::Grpc, slow).await;
    ask(&full, 3).await;
    until("the traces", || collector.traces() == 3).await;

    collector.set(Mood::Holds);
    let limits = "delay_s = 0.01\ntimeout_s = 3600\nqueue = 8";
    let front = front(&upstream, &to, Protocol::Grpc, limits).await;
    ask(&front, 300).await;
    until("all to be known of", || {
        // A batch on its way, and the queue.
        let waits = front.counter("queuescope_trace_queue_length");
        assert!(waits <= 8);
        let held = 300 - lost(&front);
        waits == 8 && (8..=16).contains(&held)
    })
    .await;
}
