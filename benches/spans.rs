//! What a span of a server's trace costs: its way from a message's bytes to what is told of a request, and all of the
//! receiver's thread, with connection and forwarding.
//!
//! `cargo bench --bench spans`. The messages are those of trace level 3, a span a token: 500 spans, which are two recorded
//! requests of some 240 tokens each. It prints CPU time, which is steadier than time where others use the machine.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a bench may fail loudly and prints its figures"
)]

use std::convert::Infallible;
use std::hint::black_box;
use std::net::SocketAddr;
use std::path::Path;

use bytes::{BufMut, Bytes, BytesMut};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioIo};
use queuescope::clock::Stamp;
use queuescope::engine::forward::Forward;
use queuescope::engine::otlp;
use queuescope::engine::otlp::EngineSpan;
use queuescope::engine::receiver::{LIMITS, Receiver, Sink};
use queuescope::engine::report_store::ReportStore;
use queuescope::telemetry::otlp::settings::{self, Otlp, Protocol};
use queuescope::telemetry::prometheus::BatchOutcome;
use queuescope::telemetry::prometheus::Metrics;
use serde_json::Value;
use tokio::net::TcpListener;

#[path = "../tests/it/support/files.rs"]
mod files;
#[path = "../tests/it/support/spans.rs"]
#[expect(dead_code, reason = "the tests use all of it")]
mod spans;

use files::files;

const SPANS: usize = 500;
const MESSAGES: u64 = 2_000;

/// A message as of a server of two requests.
fn message() -> Vec<u8> {
    let mut all = Vec::new();
    for case in ["direct/queue12/01", "direct/queue12/03"] {
        let case = spans::named(case);
        let is_token = |span: &&Value| span["name"] == "decode_loop";
        let token = case.spans.iter().find(is_token).unwrap().clone();
        let mut of_request = case.spans;
        for i in of_request.len()..SPANS / 2 {
            let mut token = token.clone();
            token["attrs"]["decode_ct"] = i.into();
            // Tokens end before the request does.
            of_request.insert(3, token);
        }
        all.append(&mut of_request);
    }
    assert_eq!(all.len(), SPANS);
    spans::message(&all)
}

fn told(message: &Bytes) -> usize {
    joined(otlp::spans(message.clone(), |_| {}).unwrap())
}

/// How many whole requests there are among these spans, as a join finds them.
fn joined(found: Vec<EngineSpan>) -> usize {
    let mut spans = ReportStore::new(100_000);
    let mut rids = Vec::new();
    for span in found {
        rids.extend(span.root().and_then(|root| root.rid.clone()));
        spans.add(span, Stamp::from_nanos(0));
    }
    let reports = rids.iter().flat_map(|rid| spans.by_rid(rid));
    reports.filter(|report| report.is_complete).count()
}

/// Nanoseconds of CPU a span that this takes of a message, on this thread.
fn cpu(mut run: impl FnMut() -> usize) -> u64 {
    let taken = || on_cpu(Path::new("/proc/thread-self"));
    let before = taken();
    for _ in 0..10 * MESSAGES {
        black_box(run());
    }
    (taken() - before) / (10 * MESSAGES * SPANS as u64)
}

fn on_cpu(task: &Path) -> u64 {
    let text = std::fs::read_to_string(task.join("schedstat")).unwrap();
    text.split(' ').next().unwrap().parse().unwrap()
}

/// Nanoseconds of CPU that the receiver's thread has taken; it may be about to begin.
fn of_thread() -> u64 {
    loop {
        for task in std::fs::read_dir("/proc/self/task").unwrap() {
            let task = task.unwrap().path();
            // A thread may end meanwhile.
            let read = |name: &str| std::fs::read_to_string(task.join(name)).unwrap_or_default();
            if read("comm").trim() == "engine-traces" {
                return read("schedstat")
                    .split(' ')
                    .next()
                    .unwrap()
                    .parse()
                    .unwrap();
            }
        }
        std::thread::yield_now();
    }
}

/// Nanoseconds a span of the receiver's thread, for messages by gRPC on one connection.
async fn received(message: &Bytes, to: Option<&settings::ExportSettings>) -> u64 {
    let sink: Sink = Box::new(|spans| {
        black_box(joined(spans));
        true
    });
    let metrics = Metrics::new().unwrap();
    let counted = metrics.clone();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let forward = to.map(|to| Forward::new(to, 64 << 20, &metrics).unwrap());
    let addr = listener.local_addr().unwrap();
    let _receiver = Receiver::start(listener, forward, LIMITS, sink, counted.clone()).unwrap();
    let mut frame = BytesMut::new();
    frame.put_u8(0);
    frame.put_u32(message.len() as u32);
    frame.put_slice(message);
    let frame = frame.freeze();
    let before = of_thread();
    let client: Client<_, Full<Bytes>> = Client::builder(TokioExecutor::new())
        .http2_only(true)
        .build_http();
    for _ in 0..MESSAGES {
        let request = http::Request::post(format!(
            "http://{}/opentelemetry.proto.collector.trace.v1.TraceService/Export",
            addr
        ));
        let request = request.header("content-type", "application/grpc");
        let request = request.body(Full::new(frame.clone())).unwrap();
        let answer = client.request(request).await.unwrap();
        drop(answer.into_body().collect().await.unwrap());
    }
    while counted
        .trace_batches
        .with(&[BatchOutcome::Taken.name()])
        .get()
        < MESSAGES
    {
        tokio::task::yield_now().await;
    }
    (of_thread() - before) / (MESSAGES * SPANS as u64)
}

/// A collector that takes everything, by HTTP.
async fn collector() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let take = service_fn(async |request: http::Request<Incoming>| {
                request.into_body().collect().await.unwrap();
                Ok::<_, Infallible>(http::Response::new(Full::<Bytes>::default()))
            });
            let server = http1::Builder::new();
            tokio::spawn(server.serve_connection(TokioIo::new(stream), take));
        }
    });
    addr
}

fn main() {
    let message = Bytes::from(message());
    println!("{SPANS} spans, {} bytes; CPU a span:", message.len());
    assert_eq!(told(&message), 2);
    let walk = cpu(|| {
        otlp::spans(black_box(message.clone()), |_| {})
            .unwrap()
            .len()
    });
    let both = cpu(|| told(black_box(&message)));
    println!("walk: {walk} ns; walk and join: {both} ns");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let alone = received(&message, None).await;
        let given = Otlp {
            endpoint: Some(format!("http://{}", collector().await)),
            protocol: Some(Protocol::Http),
            ..Otlp::default()
        };
        let to = settings::ExportSettings::resolve(&given, "bench", &|_| None).unwrap();
        let forwarding = received(&message, to.as_ref()).await;
        println!("the receiver's thread: {alone} ns; with forwarding by HTTP: {forwarding} ns");
    });
}
