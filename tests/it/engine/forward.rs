//! What goes on to the user's collector, and what a collector costs that is no good.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use queuescope::engine::forward::Forward;
use queuescope::engine::receiver::LIMITS;
use queuescope::telemetry::otlp::settings::{ExportSettings, Otlp, Protocol};
use queuescope::telemetry::prometheus::{BatchOutcome, Metrics};
use tokio::io::AsyncWriteExt as _;
use tokio::task::JoinSet;

use super::chat;
use super::receiver::Running;
use crate::support::collector::{Collector, EXPORT, Mood};
use crate::support::proxy::setting;
use crate::support::spans;
use crate::support::upstream::refusing;
use crate::support::wire::{Client, post, until};

fn to(addr: SocketAddr, protocol: Protocol) -> ExportSettings {
    let given = Otlp {
        endpoint: Some(format!("http://{addr}")),
        protocol: Some(protocol),
        headers: vec!["x-api-key: some-key".into()],
        timeout_s: setting(0.5),
        ..Otlp::default()
    };
    let resolved = ExportSettings::resolve(&given, "test", &|_| None).unwrap();
    resolved.unwrap()
}

fn receiver(to: &ExportSettings, queue_bytes: u64) -> (Running, Metrics) {
    let metrics = Metrics::new().unwrap();
    let forward = Forward::new(to, queue_bytes, &metrics).unwrap();
    let running = Running::forwarding(true, LIMITS, metrics.clone(), Some(forward));
    (running, metrics)
}

const QUEUE_BYTES: u64 = 1 << 20;

fn taken(metrics: &Metrics) -> u64 {
    metrics
        .trace_batches
        .with(&[BatchOutcome::Taken.name()])
        .get()
}

fn counted(metrics: &Metrics, outcome: &str) -> u64 {
    metrics.trace_forwards.with(&[outcome]).get()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_bytes_that_arrive_are_those_that_came() {
    // As nobody's library would write it: a field that nobody knows, and a varint that is longer than it must be.
    let odd = b"\x0a\x02\x12\x00\xfa\x3e\x81\x00\xff".to_vec();
    let recorded = spans::all().into_iter();
    let recorded = recorded.map(|case| spans::message(&case.spans));
    let mut messages: Vec<Vec<u8>> = recorded.chain([odd]).collect();
    for protocol in [Protocol::Http, Protocol::Grpc] {
        let collector = Collector::start().await;
        let (receiver, metrics) = receiver(&to(collector.http, protocol), QUEUE_BYTES);
        for message in &messages {
            super::send(receiver.addr, message).await;
        }
        let all_sent = || counted(&metrics, "sent") == messages.len() as u64;
        until("all are sent", all_sent).await;
        let came = collector.came().into_iter().map(|(head, body)| {
            assert_eq!(head.headers["x-api-key"], "some-key");
            match protocol {
                Protocol::Http => body.to_vec(),
                Protocol::Grpc => {
                    assert_eq!(head.uri.path(), EXPORT);
                    assert_eq!(head.headers["content-type"], "application/grpc");
                    assert_eq!(head.headers["te"], "trailers");
                    assert_eq!(body[0], 0);
                    assert_eq!(body[1..5], (body.len() as u32 - 5).to_be_bytes());
                    body[5..].to_vec()
                }
            }
        });
        // Several are on their way at once.
        let mut came: Vec<Vec<u8>> = came.collect();
        came.sort();
        messages.sort();
        assert!(came == messages);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_that_is_no_good_costs_batches_and_no_sender() {
    let collector = Collector::start().await;
    // That each protocol has these ends, `otlp.rs` shows of the same client.
    for (mood, addr, reason) in [
        (Mood::Refuses, collector.http, "rejected"),
        (Mood::Holds, collector.http, "timeout"),
        (Mood::Takes, refusing().await, "unreachable"),
    ] {
        collector.set(mood);
        let (receiver, metrics) = receiver(&to(addr, Protocol::Grpc), QUEUE_BYTES);
        for _ in 0..3 {
            super::send(receiver.addr, &chat()).await;
        }
        until(reason, || counted(&metrics, reason) == 3).await;
        assert_eq!(counted(&metrics, "sent"), 0, "{reason}");
        // One that comes back gets what comes then; what waits at the end is sent.
        collector.set(Mood::Takes);
        super::send(receiver.addr, &chat()).await;
        drop(receiver);
        let sent = u64::from(reason != "unreachable");
        let all = ["sent", reason, "shutdown"].map(|outcome| counted(&metrics, outcome));
        assert_eq!((all, taken(&metrics)), ([sent, 4 - sent, 0], 4), "{reason}");
    }
}

/// A collector that holds what it gets makes the end last; servers go on sending meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_is_bounded_and_what_is_acknowledged_at_the_end_is_read_and_counted_once() {
    let collector = Collector::start().await;
    collector.set(Mood::Holds);
    let mut settings = to(collector.http, Protocol::Http);
    settings.given.timeout_s = setting(60.0);
    let (receiver, metrics) = receiver(&settings, chat().len() as u64 * 10);
    let acknowledged = Arc::new(AtomicU64::new(0));
    let mut senders = JoinSet::new();
    for _ in 0..4 {
        let acknowledged = acknowledged.clone();
        let mut client = Client::connect(receiver.addr).await;
        senders.spawn(async move {
            let request = post("/v1/traces", super::PROTOBUF, &chat());
            while client.stream.write_all(&request).await.is_ok() {
                let answer = client.response().await;
                if !answer.whole {
                    break;
                }
                assert_eq!(answer.status(), 200);
                acknowledged.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    until("they send", || acknowledged.load(Ordering::Relaxed) > 100).await;
    let stopped = tokio::task::spawn_blocking(|| drop(receiver));
    while let Some(sender) = senders.join_next().await {
        sender.unwrap();
    }
    stopped.await.unwrap();
    let (read, acknowledged) = (taken(&metrics), acknowledged.load(Ordering::Relaxed));
    assert!(read >= acknowledged, "{read} of {acknowledged}");
    let [full, shutdown] = ["queue_full", "shutdown"].map(|outcome| counted(&metrics, outcome));
    // Some are on their way, ten wait.
    assert!((10..=20).contains(&shutdown), "{shutdown}");
    assert_eq!(full + shutdown, read);
}
