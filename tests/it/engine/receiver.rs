//! The receiver, as the exporters of real SDKs and anybody else meet it.

use std::sync::mpsc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
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
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::spans;
use crate::support::wire::until;

const EXPORT: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";

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
        let metrics = &self.metrics;
        until(outcome.name(), || {
            metrics.trace_batches.with(&[outcome.name()]).get() == many
        })
        .await;
    }

    fn next(&self) -> Vec<EngineSpan> {
        self.batches.recv_timeout(Duration::from_secs(30)).unwrap()
    }
}

fn case() -> Vec<u8> {
    spans::message(&spans::named("direct/chat_stream").spans)
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut packed, bytes).unwrap();
    packed.finish().unwrap()
}

fn framed(message: &[u8], is_packed: bool) -> Vec<u8> {
    let mut frame = BytesMut::new();
    frame.put_u8(u8::from(is_packed));
    frame.put_u32(message.len() as u32);
    frame.put(message);
    frame.to_vec()
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
        let answer = self.post(PROTOBUF, None, case()).await;
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
    let message = case();
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
    let json = running.post("application/json", None, b"{}".to_vec()).await;
    assert_eq!(json.status(), 415);
    let words = String::from_utf8_lossy(&json.body).into_owned();
    assert!(words.contains("http/protobuf"), "{words}");
    let zstd = running.post(PROTOBUF, Some("zstd"), Vec::new()).await;
    assert_eq!(zstd.status(), 415);
    for path in ["/v1/metrics", "/v1/logs", "/"] {
        let answer = running.ask(
            "POST",
            path,
            &[("content-type", Some(PROTOBUF))],
            Vec::new(),
        );
        assert_eq!(answer.await.status(), 404, "{path}");
    }
    let get = running.ask("GET", "/v1/traces", &[], Vec::new()).await;
    assert_eq!(
        (get.status(), &get.head.headers["allow"]),
        (405, &"POST".parse().unwrap())
    );
    let old = running.post("application/grpc", None, Vec::new()).await;
    assert_eq!(old.status(), 415);

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
        let nonsense = running.post(PROTOBUF, encoding, b"nonsense".to_vec()).await;
        assert_eq!(nonsense.status(), 400);
    }
    running.counted(Batch::Malformed, 2).await;
    // 5 MiB of zeros are some kilobytes.
    let bomb = gzip(&vec![0; 5 << 20]);
    let answer = running
        .call(EXPORT, Some("gzip"), framed(&bomb, true))
        .await;
    assert_eq!(answer.head.headers["grpc-status"], "8");
    running.counted(Batch::TooLarge, 1).await;
    let large = running
        .call(EXPORT, None, framed(&vec![0; 5 << 20], false))
        .await;
    assert_eq!(large.head.headers["grpc-status"], "8");
    running.counted(Batch::TooLarge, 2).await;
    running.takes_one().await;
    // A span by itself: one that is too long, and one without a start.
    let mut case = spans::named("direct/chat_stream").spans;
    let root = case
        .iter_mut()
        .find(|span| span["attrs"]["rid"].is_string());
    root.unwrap()["attrs"]["long"] = "x".repeat(300_000).into();
    let waiting = case
        .iter_mut()
        .find(|span| span["name"] == "prefill_waiting");
    waiting.unwrap()["start_ns"] = 0.into();
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
    assert_eq!(running.post(PROTOBUF, None, case()).await.status(), 200);
    running.counted(Batch::NoRoom, 1).await;
}

#[tokio::test]
async fn senders_that_hang_hold_nobody_up() {
    let running = Running::start();
    let mut hung = Vec::new();
    for begun in [
        &b""[..],
        b"POST /v1/traces HTTP/1.1\r\n",
        b"POST /v1/traces HTTP/1.1\r\nhost: a\r\ncontent-type: application/x-protobuf\r\ncontent-length: 99\r\n\r\nab",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ] {
        for _ in 0..20 {
            let mut stream = TcpStream::connect(running.receiver.addr()).await.unwrap();
            stream.write_all(begun).await.unwrap();
            hung.push(stream);
        }
    }
    running.takes_one().await;
    // It ends with them connected.
    drop(running.receiver);
    let mut left = Vec::new();
    let read = hung[0].read_to_end(&mut left).await;
    assert!(read.is_err() || left.is_empty());
}

#[tokio::test]
async fn silent_connections_shut_nobody_out() {
    let limits = Limits {
        connections: 8,
        first: Duration::from_millis(300),
        idle: Duration::from_millis(300),
    };
    for begun in [
        &b""[..],
        b"PRI * HT",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /v1/traces HTTP/1.1\r\nhost: a\r\n\r\n",
        b"POST /v1/traces HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n",
    ] {
        let running = Running::with(true, limits, None);
        let mut silent = Vec::new();
        for _ in 0..20 {
            let mut stream = TcpStream::connect(running.receiver.addr()).await.unwrap();
            // It may be one of those that are closed at once.
            drop(stream.write_all(begun).await);
            silent.push(stream);
        }
        let refused = || running.metrics.trace_connections_refused.with(&[]).get() > 0;
        until("some are refused", refused).await;
        // Each is closed in the end, without a word from its other side.
        for stream in &mut silent {
            drop(stream.read_to_end(&mut Vec::new()).await);
        }
        running.takes_one().await;
    }
}

#[tokio::test]
async fn more_than_may_wait_together_is_turned_away() {
    let running = Running::start();
    // Bodies that never end hold their bytes: 17 of 4 MB are more than 64 MiB, 16 are not.
    let head = "POST /v1/traces HTTP/1.1\r\nhost: a\r\ncontent-type: application/x-protobuf\r\n\
        content-length: 4100000\r\n\r\n";
    let mut senders = tokio::task::JoinSet::new();
    for _ in 0..17 {
        let addr = running.receiver.addr();
        senders.spawn(async move {
            let mut stream = TcpStream::connect(addr).await.unwrap();
            stream.write_all(head.as_bytes()).await.unwrap();
            drop(stream.write_all(&vec![0; 4_000_000]).await);
            let mut answer = Vec::new();
            drop(stream.read_to_end(&mut answer).await);
            String::from_utf8_lossy(&answer).into_owned()
        });
    }
    let answer = senders.join_next().await.unwrap().unwrap();
    assert!(
        answer.is_empty() || answer.starts_with("HTTP/1.1 503"),
        "{answer}"
    );
    running.counted(Batch::NoRoom, 1).await;
}
