//! What goes on to the user's collector, and what a collector costs that is no good.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::service::service_fn;
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use queuescope::engine::forward;
use queuescope::engine::receiver::{Limits, Receiver};
use queuescope::telemetry::otlp::settings::{self, Otlp, Protocol};
use queuescope::telemetry::prometheus::Batch;
use queuescope::telemetry::prometheus::Metrics;
use tokio::task::JoinSet;

use super::receiver::Running;
use crate::support::collector::{Collector, Mood};
use crate::support::listening::Listening;
use crate::support::spans;
use crate::support::upstream::refusing;
use crate::support::wire::until;

/// A collector that keeps the bytes of what comes, and takes it.
struct Raw {
    addr: SocketAddr,
    came: Came,
    _listening: Listening,
}

type Came = Arc<Mutex<Vec<(http::request::Parts, Bytes)>>>;

impl Raw {
    async fn start() -> Raw {
        let came = Came::default();
        let store = came.clone();
        let listening = Listening::start(move |_, stream| {
            let store = store.clone();
            let service = service_fn(move |request| keep(request, store.clone()));
            async move {
                let server = auto::Builder::new(TokioExecutor::new());
                drop(server.serve_connection(TokioIo::new(stream), service).await);
            }
        });
        let listening = listening.await;
        Raw {
            addr: listening.addr,
            came,
            _listening: listening,
        }
    }
}

async fn keep(
    request: http::Request<hyper::body::Incoming>,
    store: Came,
) -> Result<http::Response<impl hyper::body::Body<Data = Bytes, Error = Infallible>>, Infallible> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let mut trailers = http::HeaderMap::new();
    trailers.insert("grpc-status", "0".parse().unwrap());
    store.lock().unwrap().push((head, body));
    let answer = Full::new(Bytes::from_static(&[0; 5]));
    let answer = answer.with_trailers(std::future::ready(Some(Ok(trailers))));
    Ok(http::Response::new(answer))
}

fn to(addr: SocketAddr, protocol: Protocol) -> forward::Settings {
    let given = Otlp {
        endpoint: Some(format!("http://{addr}")),
        protocol: Some(protocol),
        headers: vec!["x-api-key: some-key".into()],
        timeout_s: 0.5.try_into().unwrap(),
        ..Otlp::default()
    };
    let resolved = settings::Settings::resolve(&given, "test", &|_| None).unwrap();
    forward::Settings {
        to: resolved.unwrap(),
        queue_bytes: 1 << 20,
    }
}

fn receiver(forward: forward::Settings) -> (Receiver, Metrics) {
    let running = Running::with(true, Limits::default(), Some(forward));
    (running.receiver, running.metrics)
}

fn counted(metrics: &Metrics, outcome: &str) -> u64 {
    let name = format!("queuescope_engine_trace_forwards_total{{outcome=\"{outcome}\"}} ");
    let text = metrics.text();
    let line = text.lines().find_map(|line| line.strip_prefix(&name));
    line.unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_bytes_that_arrive_are_those_that_came() {
    // As nobody's library would write it: a field that nobody knows, and a varint that is longer than it must be.
    let odd = b"\x0a\x02\x12\x00\xfa\x3e\x81\x00\xff".to_vec();
    let messages: Vec<Vec<u8>> = spans::all()
        .iter()
        .map(|case| spans::message(&case.spans))
        .chain([odd])
        .collect();
    for protocol in [Protocol::Http, Protocol::Grpc] {
        let collector = Raw::start().await;
        let (receiver, metrics) = receiver(to(collector.addr, protocol));
        for message in &messages {
            super::send(receiver.addr(), message).await;
        }
        until("all are sent", || {
            counted(&metrics, "sent") == messages.len() as u64
        })
        .await;
        let mut came = Vec::new();
        for (head, body) in collector.came.lock().unwrap().drain(..) {
            assert_eq!(head.headers["x-api-key"], "some-key");
            match protocol {
                Protocol::Http => {
                    assert_eq!(head.uri.path(), "/v1/traces");
                    assert_eq!(head.headers["content-type"], "application/x-protobuf");
                    came.push(body.to_vec());
                }
                Protocol::Grpc => {
                    let service = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
                    assert_eq!(head.uri.path(), service);
                    assert_eq!(head.headers["content-type"], "application/grpc");
                    assert_eq!(head.headers["te"], "trailers");
                    assert_eq!(body[0], 0);
                    assert_eq!(body[1..5], (body.len() as u32 - 5).to_be_bytes());
                    came.push(body[5..].to_vec());
                }
            }
        }
        // Several are on their way at once.
        came.sort();
        let mut expected = messages.clone();
        expected.sort();
        assert!(came == expected);
    }
}

/// Its thread needs nothing of whoever starts it.
#[test]
fn it_starts_outside_of_any_runtime() {
    let nobody = SocketAddr::from(([127, 0, 0, 1], 1));
    let (receiver, metrics) = receiver(to(nobody, Protocol::Grpc));
    drop(receiver);
    assert_eq!(counted(&metrics, "shutdown"), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_that_is_no_good_costs_batches_and_no_sender() {
    let collector = Collector::start().await;
    let nobody = refusing().await;
    let message = spans::message(&spans::named("direct/chat_stream").spans);
    for (mood, addr, protocol, reason) in [
        (Mood::Refuses, collector.grpc, Protocol::Grpc, "rejected"),
        (Mood::Refuses, collector.http, Protocol::Http, "rejected"),
        (Mood::Holds, collector.grpc, Protocol::Grpc, "timeout"),
        (Mood::Holds, collector.http, Protocol::Http, "timeout"),
        (Mood::Takes, nobody, Protocol::Grpc, "unreachable"),
        (Mood::Takes, nobody, Protocol::Http, "unreachable"),
        // It speaks HTTP/1.1 alone.
        (Mood::Takes, collector.http, Protocol::Grpc, "unreachable"),
    ] {
        collector.set(mood);
        let (receiver, metrics) = receiver(to(addr, protocol));
        for _ in 0..3 {
            super::send(receiver.addr(), &message).await;
        }
        until(reason, || counted(&metrics, reason) == 3).await;
        assert_eq!(counted(&metrics, "sent"), 0, "{reason}");
        assert_eq!(metrics.trace_batches.with(&[Batch::Taken.name()]).get(), 3);
        drop(receiver);
        assert_eq!(counted(&metrics, "shutdown"), 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_is_bounded_and_each_lost_batch_is_counted_once() {
    let collector = Collector::start().await;
    collector.set(Mood::Holds);
    let message = spans::message(&spans::named("direct/chat_stream").spans);
    let mut settings = to(collector.http, Protocol::Http);
    settings.to.given.timeout_s = 60.0.try_into().unwrap();
    settings.queue_bytes = message.len() * 10;
    let (receiver, metrics) = receiver(settings);
    for _ in 0..100 {
        super::send(receiver.addr(), &message).await;
    }
    let read = || metrics.trace_batches.with(&[Batch::Taken.name()]).get() == 100;
    until("all are read", read).await;
    // Some are on their way, ten wait.
    let full = counted(&metrics, "queue_full");
    assert!((80..=90).contains(&full), "{full}");
    drop(receiver);
    assert_eq!(counted(&metrics, "shutdown"), 100 - full);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_that_comes_back_gets_them_again() {
    let collector = Collector::start().await;
    collector.set(Mood::Refuses);
    let case = spans::named("direct/chat_stream");
    let message = spans::message(&case.spans);
    let (receiver, metrics) = receiver(to(collector.grpc, Protocol::Grpc));
    super::send(receiver.addr(), &message).await;
    until("one is lost", || counted(&metrics, "rejected") == 1).await;
    collector.set(Mood::Takes);
    super::send(receiver.addr(), &message).await;
    // What waits at the end is sent.
    drop(receiver);
    assert_eq!(counted(&metrics, "sent"), 1);
    assert_eq!(collector.spans().len(), case.spans.len());
}

/// A collector that holds what it gets makes the end last; servers go on sending meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_acknowledged_at_the_end_is_read_and_goes_on_or_is_counted() {
    let collector = Collector::start().await;
    collector.set(Mood::Holds);
    let mut settings = to(collector.http, Protocol::Http);
    settings.to.given.timeout_s = 60.0.try_into().unwrap();
    settings.queue_bytes = 1 << 30;
    let (receiver, metrics) = receiver(settings);
    let acknowledged = Arc::new(AtomicU64::new(0));
    let mut senders = JoinSet::new();
    for _ in 0..4 {
        let (addr, acknowledged) = (receiver.addr(), acknowledged.clone());
        let client: Client<_, Full<Bytes>> = Client::builder(TokioExecutor::new()).build_http();
        let message = Bytes::from(spans::message(&spans::named("direct/chat_stream").spans));
        senders.spawn(async move {
            loop {
                let request = http::Request::post(format!("http://{addr}/v1/traces"))
                    .header("content-type", "application/x-protobuf")
                    .body(Full::new(message.clone()))
                    .unwrap();
                match client.request(request).await {
                    Ok(answer) => assert_eq!(answer.status(), 200),
                    Err(_) => break,
                }
                acknowledged.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    until("they send", || acknowledged.load(Ordering::Relaxed) > 100).await;
    let stopped = tokio::task::spawn_blocking(|| drop(receiver));
    while senders.join_next().await.is_some() {}
    stopped.await.unwrap();
    let read = metrics.trace_batches.with(&[Batch::Taken.name()]).get();
    let acknowledged = acknowledged.load(Ordering::Relaxed);
    assert!(read >= acknowledged, "{read} of {acknowledged}");
    assert_eq!(counted(&metrics, "shutdown"), read);
}
