//! The receiver, as anybody meets it, and the walk through a message: what it finds, and what it makes of anything else. The exporter of
//! a real SDK: `router/chain.rs`, whose simulated servers have one.

use std::net::SocketAddr;
use std::sync::mpsc;
use std::time::Duration;

use bytes::Bytes;
use proptest::prelude::*;
use queuescope::engine::forward::Forward;
use queuescope::engine::otlp::{self, EngineSpan, SpanKind};
use queuescope::engine::receiver::{LIMITS, Limits, Receiver, Sink};
use queuescope::telemetry::prometheus::{BatchOutcome, LeftOut, Metrics};
use tokio::io::AsyncWriteExt as _;

use super::chat;
use crate::support::admin::get;
use crate::support::collector::EXPORT;
use crate::support::http2::{Answer, Http2};
use crate::support::wire::{Client, Response, until};
use crate::support::{assert_says, spans};

/// A receiver, and the batches that it gave on.
pub struct Running {
    pub receiver: Receiver,
    pub addr: SocketAddr,
    batches: mpsc::Receiver<Vec<EngineSpan>>,
    pub metrics: Metrics,
}

impl Running {
    fn start() -> Running {
        Running::with(true, LIMITS)
    }

    /// `has_room`: whether the sink takes them.
    fn with(has_room: bool, limits: Limits) -> Running {
        Running::forwarding(has_room, limits, Metrics::new().unwrap(), None)
    }

    pub fn forwarding(
        has_room: bool,
        limits: Limits,
        metrics: Metrics,
        forward: Option<Forward>,
    ) -> Running {
        let (give, batches) = mpsc::channel();
        let sink: Sink = Box::new(move |batch| {
            // Of one that forwards nobody looks at them.
            drop(give.send(batch));
            has_room
        });
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let receiver = Receiver::start(listener, forward, limits, sink, metrics.clone()).unwrap();
        Running {
            receiver,
            addr,
            batches,
            metrics,
        }
    }

    async fn counted(&self, outcome: BatchOutcome, many: u64) {
        let batches = self.metrics.trace_batches.with(&[outcome.name()]);
        until(outcome.name(), || batches.get() == many).await;
    }

    fn next(&self) -> Vec<EngineSpan> {
        self.batches.recv_timeout(Duration::from_secs(30)).unwrap()
    }

    async fn post(&self, path: &str, kind: &str, encoding: &str, body: &[u8]) -> Response {
        let headers = format!("content-type: {kind}\r\ncontent-encoding: {encoding}\r\n");
        let mut client = Client::connect(self.addr).await;
        client.ask(path, &headers, body).await
    }

    /// A message of traces by HTTP.
    async fn traces(&self, encoding: &str, body: &[u8]) -> Response {
        self.post(TRACES, PROTOBUF, encoding, body).await
    }

    /// By gRPC.
    async fn call(&self, path: &str, encoding: &str, body: &[u8]) -> Answer {
        let headers = [
            ("content-type", "application/grpc"),
            ("te", "trailers"),
            ("grpc-encoding", encoding),
        ];
        let headers = headers.map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
        let mut client = Http2::connect(self.addr).await;
        let call = client.begin(path, headers.into_iter().collect(), body, false);
        call.await.answer().await
    }

    /// A whole message is taken, and gives so many spans.
    async fn takes_one(&self) {
        assert_eq!(self.traces("identity", &chat()).await.status(), 200);
        assert_eq!(self.next().len(), 5);
    }

    /// Connections that have sent so much.
    async fn hung(&self, begun: &str) -> Vec<Client> {
        let mut hung = Vec::new();
        for _ in 0..20 {
            let mut client = Client::connect(self.addr).await;
            // It may be one of those that are closed at once.
            drop(client.stream.write_all(begun.as_bytes()).await);
            hung.push(client);
        }
        hung
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

const TRACES: &str = "/v1/traces";
const PROTOBUF: &str = "application/x-protobuf";

#[tokio::test]
async fn a_message_is_read_however_it_is_packed() {
    let running = Running::start();
    let (message, packed) = (chat(), gzip(&chat()));
    for (encoding, body) in [("identity", &message), ("gzip", &packed)] {
        let answer = running.traces(encoding, body).await;
        assert_eq!((answer.status(), answer.body.len()), (200, 0));
        assert_eq!(answer.header("content-type").unwrap(), PROTOBUF);
        assert_eq!(running.next().len(), 5);
    }
    for (encoding, body) in [
        ("identity", framed(&message, false)),
        ("gzip", framed(&packed, true)),
        // The encoding is only what the frames may have.
        ("gzip", framed(&message, false)),
    ] {
        let answer = running.call(EXPORT, encoding, &body).await;
        assert_eq!((answer.status, &answer.body[..]), (200, &[0; 5][..]));
        assert_eq!(answer.trailers["grpc-status"], "0");
        assert_eq!(running.next().len(), 5);
    }
    running.counted(BatchOutcome::Taken, 5).await;
}

#[tokio::test]
async fn what_is_not_received_here_is_said_and_what_cannot_be_read_is_counted_and_harms_nothing() {
    let running = Running::start();
    for (path, kind, body, status, words) in [
        (TRACES, "application/json", &b"{}"[..], 400, "http/protobuf"),
        (TRACES, PROTOBUF, b"nonsense", 400, "OTLP"),
        (TRACES, PROTOBUF, b"\x1f\x8bnonsense", 400, "gzip"),
        ("/v1/metrics", PROTOBUF, b"", 404, "/v1/traces"),
        ("/", "application/grpc", b"", 404, ""),
    ] {
        let answer = running.post(path, kind, "identity", body).await;
        assert_eq!(answer.status(), status, "{path} {kind} {body:?}");
        assert_says(&answer.text(), words);
    }
    assert_eq!(get(running.addr, TRACES).await.status(), 404);
    let zeros = vec![0; (4 << 20) + 1];
    let of_logs = "/opentelemetry.proto.collector.logs.v1.LogsService/Export";
    for (path, body, status) in [
        (of_logs, &framed(b"", false)[..], "12"),
        (EXPORT, &framed(b"nonsense", true), "3"),
        (EXPORT, b"\0\0", "3"),
        (EXPORT, b"\0\0\0\0\x09abc", "3"),
        // 4 MiB of zeros, which are some kilobytes, are read; more are not.
        (EXPORT, &framed(&gzip(&zeros[1..]), true), "3"),
    ] {
        let answer = running.call(path, "identity", body).await;
        assert_eq!(answer.status, 200);
        assert_eq!(answer.trailers["grpc-status"], status, "{path}");
    }
    running.counted(BatchOutcome::Malformed, 7).await;
    running.counted(BatchOutcome::Taken, 0).await;
    for (encoding, body) in [
        ("gzip", framed(&gzip(&zeros), true)),
        ("identity", framed(&zeros, false)),
    ] {
        let large = running.call(EXPORT, encoding, &body).await;
        assert_eq!(large.trailers["grpc-status"], "8");
    }
    running.counted(BatchOutcome::TooLarge, 2).await;
    running.takes_one().await;
    // A span by itself; one with another name is no engine's.
    let case = spans::named("direct/chat_stream").spans;
    let mut all = case.iter();
    let root = all.position(|span| span["attrs"]["rid"].is_string());
    let long = || "x".repeat(300_000).into();
    for (member, wrong) in [
        ("/trace_id", "ab".into()),
        ("/start_ns", 0.into()),
        ("/name", long()),
        ("/attrs/rid", long()),
    ] {
        let mut case = case.clone();
        *case[root.unwrap()].pointer_mut(member).unwrap() = wrong;
        running.traces("identity", &spans::message(&case)).await;
        assert_eq!(running.next().len(), 4, "{member}");
    }
    let left_out = LeftOut::ALL.map(|why| {
        let counted = running.metrics.trace_spans_left_out.with(&[why.name()]);
        (why.name(), counted.get())
    });
    assert_eq!(left_out, [("malformed", 2), ("too_large", 1)]);
}

#[tokio::test]
async fn a_sink_without_room_is_counted_and_no_error_of_the_sender() {
    let running = Running::with(false, LIMITS);
    let answer = running.traces("identity", &chat()).await;
    assert_eq!(answer.status(), 200);
    running.counted(BatchOutcome::NoRoom, 1).await;
}

/// Of these each begins a request and says no more.
const BEGUN: [&str; 5] = [
    "",
    "PRI * HT",
    "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "GET /v1/traces HTTP/1.1\r\nhost: a\r\n\r\n",
    "POST /v1/traces HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\nab",
];

#[tokio::test]
async fn senders_that_hang_hold_nobody_up() {
    let limits = Limits {
        connections: 8,
        // Long enough for some to be open at once on a busy machine.
        head: Duration::from_secs(1),
    };
    let roomy = Running::start();
    let mut connected = Vec::new();
    for begun in BEGUN {
        connected.extend(roomy.hung(begun).await);
        let running = Running::with(true, limits);
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
        let mut client = Client::connect(running.addr).await;
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
    running.counted(BatchOutcome::NoRoom, 1).await;
}

/// `None`: the message is broken.
fn read(message: &[u8]) -> Option<Vec<EngineSpan>> {
    otlp::spans(Bytes::copy_from_slice(message), |_| {}).ok()
}

/// What is read of the others, `assembly.rs` compares with what `meta_info` told.
#[test]
fn the_span_above_an_engines_root_names_the_routers_request() {
    for (case, name) in [
        ("smg113_trace", "chatcmpl-o5PB7ZLBcZLZ5SSkifVB7dSH"),
        ("router_old_trace", "chatcmpl-d8WqrroZZxcHVktODOs5Iz2A"),
    ] {
        let case = spans::named(&format!("{case}/chat_stream_tp"));
        let found = read(&spans::message(&case.spans)).unwrap();
        let request_id = name.into();
        assert_eq!(found[0].kind, SpanKind::Router { request_id });
        let is_below = |span: &EngineSpan| span.root().is_some() && span.parent == found[0].id;
        assert!(found.iter().any(is_below), "{found:?}");
    }
}

#[test]
fn a_rid_is_the_whole_one_wherever_it_stands() {
    let mut case = spans::named("direct/generate_stream_rid_underscore");
    let root = |spans: &[serde_json::Value]| {
        let found = read(&spans::message(spans)).unwrap();
        found.into_iter().find_map(|span| match span.kind {
            SpanKind::Root(root) => root.rid,
            _ => None,
        })
    };
    assert_eq!(root(&case.spans).as_deref(), Some("my_rid_81292267"));
    for span in &mut case.spans {
        let attributes = span["attrs"].as_object_mut().unwrap();
        attributes.remove("gen_ai.request.id");
    }
    assert_eq!(root(&case.spans).as_deref(), Some("81292267"));
}

proptest! {
    #[test]
    fn any_damage_is_survived(
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let mut message = spans::message(&spans::named("direct/chat_stream_n2").spans);
        for (at, byte) in damage {
            let at = at.index(message.len());
            message[at] = byte;
        }
        let _ = read(&message);
    }
}
