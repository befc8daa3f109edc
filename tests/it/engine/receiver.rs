//! The receiver, as the exporters of real SDKs and anybody else meet it.

use std::sync::mpsc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use opentelemetry::trace::{Tracer, TracerProvider};
use opentelemetry_http::hyper::HyperClient;
use opentelemetry_otlp::{SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::trace::SdkTracerProvider;
use queuescope::engine::forward;
use queuescope::engine::receiver::{Limits, Receiver, Settings, Sink};
use queuescope::engine::span::{EngineSpan, Part};
use queuescope::telemetry::prometheus::{Batch, LeftOut, Metrics};
use tokio::io::AsyncWriteExt as _;

use super::chat;
use crate::support::assert_says;
use crate::support::collector::EXPORT;
use crate::support::spans;
use crate::support::wire::{self, until};

/// A receiver, and the batches that it gave on.
pub struct Running {
    pub receiver: Receiver,
    batches: mpsc::Receiver<Vec<EngineSpan>>,
    pub metrics: Metrics,
}

impl Running {
    fn start() -> Running {
        Running::with(true, Limits::default(), None)
    }

    /// `has_room`: whether the sink takes them.
    pub fn with(has_room: bool, limits: Limits, forward: Option<forward::Settings>) -> Running {
        let (give, batches) = mpsc::channel();
        let sink: Sink = std::sync::Arc::new(move |batch| {
            // Of one that forwards nobody looks at them.
            drop(give.send(batch));
            has_room
        });
        let settings = Settings {
            listener: std::net::TcpListener::bind("127.0.0.1:0").unwrap(),
            forward,
            limits,
        };
        let metrics = Metrics::new().unwrap();
        let receiver = Receiver::start(settings, sink, metrics.clone()).unwrap();
        Running {
            receiver,
            batches,
            metrics,
        }
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.receiver.addr())
    }

    async fn counted(&self, outcome: Batch, many: u64) {
        let batches = self.metrics.trace_batches.with(&[outcome.name()]);
        until(outcome.name(), || batches.get() == many).await;
    }

    fn next(&self) -> Vec<EngineSpan> {
        self.batches.recv_timeout(Duration::from_secs(30)).unwrap()
    }
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut packed, bytes).unwrap();
    packed.finish().unwrap()
}

fn framed(message: &[u8], is_packed: bool) -> Vec<u8> {
    let length = (message.len() as u32).to_be_bytes();
    [&[u8::from(is_packed)], &length[..], message].concat()
}

struct Answer {
    head: http::response::Parts,
    body: Bytes,
    trailers: http::HeaderMap,
}

impl Answer {
    fn status(&self) -> u16 {
        self.head.status.as_u16()
    }
}

type Headers<'a> = [(&'a str, Option<&'a str>)];

impl Running {
    async fn ask(&self, method: &str, path: &str, headers: &Headers<'_>, body: Vec<u8>) -> Answer {
        let is_grpc = headers.iter().any(|(name, _)| *name == "te");
        let client: Client<HttpConnector, Full<Bytes>> = Client::builder(TokioExecutor::new())
            .http2_only(is_grpc)
            .build_http();
        let mut request = http::Request::builder().method(method).uri(self.url(path));
        for (name, value) in headers {
            if let Some(value) = value {
                request = request.header(*name, *value);
            }
        }
        let request = request.body(Full::from(body)).unwrap();
        let (head, body) = client.request(request).await.unwrap().into_parts();
        let body = body.collect().await.unwrap();
        Answer {
            head,
            trailers: body.trailers().cloned().unwrap_or_default(),
            body: body.to_bytes(),
        }
    }

    async fn post(&self, kind: &str, encoding: Option<&str>, body: Vec<u8>) -> Answer {
        let headers = [("content-type", Some(kind)), ("content-encoding", encoding)];
        self.ask("POST", "/v1/traces", &headers, body).await
    }

    async fn call(&self, path: &str, encoding: Option<&str>, body: Vec<u8>) -> Answer {
        let headers = [
            ("content-type", Some("application/grpc")),
            ("te", Some("trailers")),
            ("grpc-encoding", encoding),
        ];
        self.ask("POST", path, &headers, body).await
    }

    /// A whole message is taken, and gives so many spans.
    async fn takes_one(&self) {
        let answer = self.post(PROTOBUF, None, chat()).await;
        assert_eq!(answer.status(), 200);
        assert_eq!(self.next().len(), 5);
    }
}

const PROTOBUF: &str = "application/x-protobuf";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exporters_of_the_sdk_are_understood() {
    let running = Running::start();
    let grpc = SpanExporter::builder()
        .with_tonic()
        .with_endpoint(running.url(""));
    let client = HyperClient::new(HttpConnector::new(), Duration::from_secs(10), None);
    let http = SpanExporter::builder()
        .with_http()
        .with_http_client(client)
        .with_endpoint(running.url("/v1/traces"));
    for exporter in [grpc.build().unwrap(), http.build().unwrap()] {
        let provider = SdkTracerProvider::builder()
            .with_simple_exporter(exporter)
            .build();
        let tracer = provider.tracer("sglang server");
        let span = tracer.span_builder(" Req 0123abcd").with_attributes([
            opentelemetry::KeyValue::new("gen_ai.request.id", "0123abcd_whole"),
            opentelemetry::KeyValue::new("gen_ai.usage.completion_tokens", 8),
            opentelemetry::KeyValue::new("gen_ai.latency.time_to_first_token", 0.25),
        ]);
        // The exporter blocks on its own.
        let run = move || {
            drop(span.start(&tracer));
            provider.shutdown().unwrap();
        };
        tokio::task::spawn_blocking(run).await.unwrap();
        let [span] = &running.next()[..] else {
            panic!("one span");
        };
        let Part::Root(root) = &span.part else {
            panic!("{span:?}");
        };
        assert_eq!(root.rid.as_deref(), Some("0123abcd_whole"));
        assert_eq!(root.output_tokens, Some(8));
        assert_eq!(root.first_token, Some(span.start.plus_nanos(250_000_000)));
    }
    running.counted(Batch::Taken, 2).await;
}

#[tokio::test]
async fn a_message_is_read_however_it_is_packed() {
    let running = Running::start();
    let message = chat();
    let packed = gzip(&message);
    for (encoding, body) in [(None, message.clone()), (Some("gzip"), packed.clone())] {
        let answer = running.post(PROTOBUF, encoding, body).await;
        assert_eq!((answer.status(), answer.body.clone()), (200, Bytes::new()));
        assert_eq!(answer.head.headers["content-type"], PROTOBUF);
        assert_eq!(running.next().len(), 5);
    }
    for (encoding, body) in [
        (None, framed(&message, false)),
        (Some("gzip"), framed(&packed, true)),
        // The encoding is only what the frames may have.
        (Some("gzip"), framed(&message, false)),
    ] {
        let answer = running.call(EXPORT, encoding, body).await;
        assert_eq!((answer.status(), &answer.body[..]), (200, &[0; 5][..]));
        assert_eq!(answer.trailers["grpc-status"], "0");
        assert_eq!(running.next().len(), 5);
    }
    running.counted(Batch::Taken, 5).await;
}

#[tokio::test]
async fn what_is_not_received_here_is_said() {
    let running = Running::start();
    for (method, path, kind, encoding, status) in [
        ("POST", "/v1/traces", "application/json", None, 415),
        ("POST", "/v1/traces", "application/grpc", None, 415),
        ("POST", "/v1/traces", PROTOBUF, Some("zstd"), 415),
        ("POST", "/v1/metrics", PROTOBUF, None, 404),
        ("POST", "/", PROTOBUF, None, 404),
        ("GET", "/v1/traces", PROTOBUF, None, 405),
    ] {
        let headers = [("content-type", Some(kind)), ("content-encoding", encoding)];
        let answer = running.ask(method, path, &headers, Vec::new()).await;
        assert_eq!(
            answer.status(),
            status,
            "{method} {path} {kind} {encoding:?}"
        );
        let words = String::from_utf8_lossy(&answer.body).into_owned();
        match status {
            405 => assert_eq!(answer.head.headers["allow"], "POST"),
            415 if kind == "application/json" => assert_says(&words, "http/protobuf"),
            _ => {}
        }
    }
    let of_logs = "/opentelemetry.proto.collector.logs.v1.LogsService/Export";
    for (path, encoding, body, status) in [
        (of_logs, None, framed(b"", false), "12"),
        (EXPORT, Some("zstd"), framed(b"", false), "12"),
        (EXPORT, None, framed(b"", true), "3"),
        (EXPORT, None, b"\0\0".to_vec(), "3"),
        (EXPORT, None, b"\0\0\0\0\x09abc".to_vec(), "3"),
    ] {
        let answer = running.call(path, encoding, body).await;
        assert_eq!(answer.status(), 200);
        assert_eq!(answer.head.headers["grpc-status"], status, "{path}");
    }
    running.counted(Batch::Malformed, 3).await;
    running.counted(Batch::Taken, 0).await;
}

#[tokio::test]
async fn what_cannot_be_read_is_counted_and_harms_nothing() {
    let running = Running::start();
    for encoding in [None, Some("gzip")] {
        let nonsense = running.post(PROTOBUF, encoding, b"nonsense".to_vec());
        assert_eq!(nonsense.await.status(), 400);
    }
    running.counted(Batch::Malformed, 2).await;
    // 5 MiB of zeros are some kilobytes.
    let (zeros, bomb) = (vec![0; 5 << 20], gzip(&vec![0; 5 << 20]));
    for (encoding, body) in [
        (Some("gzip"), framed(&bomb, true)),
        (None, framed(&zeros, false)),
    ] {
        let large = running.call(EXPORT, encoding, body).await;
        assert_eq!(large.head.headers["grpc-status"], "8");
    }
    running.counted(Batch::TooLarge, 2).await;
    running.takes_one().await;
    // A span by itself: one that is too long, and one without a start.
    let mut case = spans::named("direct/chat_stream").spans;
    for span in &mut case {
        if span["attrs"]["rid"].is_string() {
            span["attrs"]["long"] = "x".repeat(300_000).into();
        } else if span["name"] == "prefill_waiting" {
            span["start_ns"] = 0.into();
        }
    }
    running.post(PROTOBUF, None, spans::message(&case)).await;
    assert_eq!(running.next().len(), 3);
    for why in LeftOut::ALL {
        let counted = running.metrics.trace_spans_left_out.with(&[why.name()]);
        assert_eq!(counted.get(), 1, "{}", why.name());
    }
}

#[tokio::test]
async fn a_sink_without_room_is_counted_and_no_error_of_the_sender() {
    let running = Running::with(false, Limits::default(), None);
    assert_eq!(running.post(PROTOBUF, None, chat()).await.status(), 200);
    running.counted(Batch::NoRoom, 1).await;
}

/// Of these each begins a request and says no more.
const BEGUN: [&str; 5] = [
    "",
    "PRI * HT",
    "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "GET /v1/traces HTTP/1.1\r\nhost: a\r\n\r\n",
    "POST /v1/traces HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\nab",
];

impl Running {
    /// Connections that have sent so much.
    async fn hung(&self, begun: &str) -> Vec<wire::Client> {
        let mut hung = Vec::new();
        for _ in 0..20 {
            let mut client = wire::Client::connect(self.receiver.addr()).await;
            // It may be one of those that are closed at once.
            drop(client.stream.write_all(begun.as_bytes()).await);
            hung.push(client);
        }
        hung
    }
}

#[tokio::test]
async fn senders_that_hang_hold_nobody_up() {
    let limits = Limits {
        connections: 8,
        first: Duration::from_millis(300),
        idle: Duration::from_millis(300),
    };
    let roomy = Running::start();
    let mut connected = Vec::new();
    for begun in BEGUN {
        connected.extend(roomy.hung(begun).await);
        let running = Running::with(true, limits, None);
        let silent = running.hung(begun).await;
        let refused = || running.metrics.trace_connections_refused.with(&[]).get() > 0;
        until("some are refused", refused).await;
        // Each is closed in the end, without a word from its other side.
        for mut client in silent {
            client.read_to_close().await;
        }
        running.takes_one().await;
    }
    roomy.takes_one().await;
    // It ends with them connected.
    drop(roomy.receiver);
    assert!(connected[0].is_closed().await);
}

#[tokio::test]
async fn more_than_may_wait_together_is_turned_away() {
    let running = Running::start();
    // Bodies that never end hold their bytes: 17 of 4 MB are more than 64 MiB, 16 are not.
    let head = "POST /v1/traces HTTP/1.1\r\nhost: a\r\ncontent-type: application/x-protobuf\r\n\
        content-length: 4100000\r\n\r\n";
    let mut senders = tokio::task::JoinSet::new();
    for _ in 0..17 {
        let mut client = wire::Client::connect(running.receiver.addr()).await;
        senders.spawn(async move {
            client.send(head).await;
            drop(client.stream.write_all(&vec![0; 4_000_000]).await);
            String::from_utf8_lossy(&client.read_to_close().await).into_owned()
        });
    }
    let answer = senders.join_next().await.unwrap().unwrap();
    assert!(
        answer.is_empty() || answer.starts_with("HTTP/1.1 503"),
        "{answer}"
    );
    running.counted(Batch::NoRoom, 1).await;
}
