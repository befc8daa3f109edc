//! The receiver's HTTP server: connections and responses. gRPC is written as plain HTTP/2, since there is only one method.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{ALLOW, CONTENT_ENCODING, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, Version};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body as _, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, SemaphorePermit, oneshot};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::request::headers::{content_type, is_kind};
use crate::telemetry::otlp::collector::GRPC_PATH;
use crate::telemetry::otlp::settings::HTTP_PATH;
use crate::telemetry::prometheus::Batch;

use super::{MAX_MESSAGE_BYTES, Reader};

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// The protocol of a sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    Grpc,
    Http,
}

/// Why a request is refused: the HTTP status, the gRPC status and a message.
pub(super) type Refusal = (u16, u8, &'static str);

/// Limits on connections.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The maximum number of connections; further ones are closed. Each process of a server has one.
    pub connections: usize,
    /// The timeout for the head of a connection's first request.
    pub first: Duration,
    /// The timeout for the head of each further one over HTTP/1.
    pub idle: Duration,
}

/// How long open requests may take at the end.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);
/// The timeout for a body.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// The interval of HTTP/2 pings, and the timeout for their answers.
const PING_INTERVAL: Duration = Duration::from_secs(30);
/// The maximum number of messages at once on a connection: senders send one after the other.
const MAX_STREAMS: u32 = 8;
const GRPC_ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");
const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const GRPC_ACCEPT_ENCODING: HeaderName = HeaderName::from_static("grpc-accept-encoding");
/// The length of a gRPC message's prefix: a flag for compression, and the message's length.
const GRPC_PREFIX: usize = 5;
// https://grpc.github.io/grpc/core/md_doc_statuscodes.html
const INVALID_ARGUMENT: u8 = 3;
const DEADLINE_EXCEEDED: u8 = 4;
const RESOURCE_EXHAUSTED: u8 = 8;
const UNIMPLEMENTED: u8 = 12;
const UNAVAILABLE: u8 = 14;

pub(super) const TOO_LARGE: Refusal = (413, RESOURCE_EXHAUSTED, "a message may have 4 MiB");
const NO_ROOM: Refusal = (503, UNAVAILABLE, "too much comes at once; send it again");
const TOO_SLOW: Refusal = (408, DEADLINE_EXCEEDED, "the body took too long");
pub(super) const MALFORMED: Refusal = (400, INVALID_ARGUMENT, "no message of OTLP traces");
const WRONG_PATH: Refusal = (
    404,
    UNIMPLEMENTED,
    "only traces are received here: POST /v1/traces, or TraceService/Export by gRPC",
);
const NOT_POST: Refusal = (405, UNIMPLEMENTED, "traces come by POST");
const NOT_PROTOBUF: Refusal = (
    415,
    UNIMPLEMENTED,
    "only application/x-protobuf is read, and gRPC by HTTP/2: set OTEL_EXPORTER_OTLP_PROTOCOL to http/protobuf or grpc",
);
const UNKNOWN_ENCODING: Refusal = (
    415,
    UNIMPLEMENTED,
    "only gzip is understood, or no compression",
);

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections: 1024,
            first: Duration::from_secs(10),
            idle: Duration::from_secs(75),
        }
    }
}

/// Serves until stopped. Then closes the connections and forwards the waiting messages, each within a time limit.
pub(super) async fn serve(
    listener: TcpListener,
    reader: Reader,
    limits: Limits,
    mut stopped: oneshot::Receiver<()>,
) {
    let reader = Arc::new(reader);
    let mut connections = JoinSet::new();
    let ending = CancellationToken::new();
    let mut is_full_logged = false;
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next() => continue,
            _ = &mut stopped => break,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                log::warn!("engine traces: a connection cannot be accepted: {error}");
                // Mostly too many open files, which lasts: do not spin.
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        while connections.try_join_next().is_some() {}
        if connections.len() < limits.connections {
            // Near the limit it is not logged again and again.
            is_full_logged &= connections.len() > limits.connections / 2;
            connections.spawn(connection(stream, reader.clone(), limits, ending.clone()));
            continue;
        }
        reader.metrics.trace_connections_refused.with(&[]).inc();
        if !std::mem::replace(&mut is_full_logged, true) {
            let max = limits.connections;
            log::warn!(
                "engine traces: {max} connections are open; further ones are closed and counted"
            );
        }
    }
    drop(listener);
    ending.cancel();
    let all = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(SHUTDOWN_TIMEOUT, all).await.is_err() {
        connections.shutdown().await;
    }
    let reader = Arc::into_inner(reader);
    if let Some(forward) = reader.and_then(|reader| reader.forward) {
        forward.finish().await;
    }
}

/// Serves a connection until it ends, sends no first request in time, or the receiver ends.
async fn connection(
    stream: TcpStream,
    reader: Arc<Reader>,
    limits: Limits,
    ending: CancellationToken,
) {
    let requested = Arc::new(Notify::new());
    let first = requested.clone();
    let service = service_fn(move |request| {
        first.notify_one();
        let reader = reader.clone();
        async move { Ok::<_, Infallible>(respond(request, &reader).await) }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.idle);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_INTERVAL)
        .max_concurrent_streams(MAX_STREAMS);
    // If this fails, responses are only slower.
    drop(stream.set_nodelay(true));
    let silence = async {
        let first = tokio::time::timeout(limits.first, requested.notified());
        if first.await.is_ok() {
            std::future::pending::<()>().await;
        }
    };
    let served = builder.serve_connection(TokioIo::new(stream), service);
    let mut served = std::pin::pin!(served);
    tokio::select! {
        _ = served.as_mut() => return,
        () = silence => return,
        () = ending.cancelled() => {}
    }
    served.as_mut().graceful_shutdown();
    drop(served.await);
}

async fn respond(request: Request<Incoming>, reader: &Reader) -> Response<Body> {
    let kind = request.headers().get(CONTENT_TYPE);
    let is_grpc = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"));
    let protocol = match is_grpc && request.version() == Version::HTTP_2 {
        true => Protocol::Grpc,
        false => Protocol::Http,
    };
    let is_gzip = match protocol.is_gzip(&request) {
        Ok(is_gzip) => is_gzip,
        Err(refusal) => return protocol.response(Err(refusal)),
    };
    let body = tokio::time::timeout(BODY_TIMEOUT, read_body(request, reader)).await;
    let body = body.unwrap_or(Err(TOO_SLOW));
    let result = body.and_then(|(body, _permit)| {
        let (message, is_gzip) = protocol.unframed(body, is_gzip)?;
        reader.read(message, is_gzip)
    });
    if let Err((status, _, message)) = result {
        reader.log_left_out(&format!("a batch of spans ({message})"));
        reader.count(match status {
            413 => Batch::TooLarge,
            503 => Batch::NoRoom,
            _ => Batch::Malformed,
        });
    }
    protocol.response(result)
}

/// Reads the whole body. The permit holds the room that it takes.
async fn read_body(
    request: Request<Incoming>,
    reader: &Reader,
) -> Result<(Bytes, Option<SemaphorePermit<'_>>), Refusal> {
    let max_len = MAX_MESSAGE_BYTES + GRPC_PREFIX;
    let mut rest = request.into_body();
    // A declared length that is too large is refused before it takes room from others.
    if rest.size_hint().lower() > max_len as u64 {
        return Err(TOO_LARGE);
    }
    let (mut permit, mut body) = (None::<SemaphorePermit<'_>>, BytesMut::new());
    while let Some(frame) = rest.frame().await {
        let Ok(data) = frame.map_err(|_| MALFORMED)?.into_data() else {
            continue;
        };
        if body.len() + data.len() > max_len {
            return Err(TOO_LARGE);
        }
        let more = reader.room.try_acquire_many(data.len() as u32);
        let more = more.map_err(|_| NO_ROOM)?;
        match &mut permit {
            Some(permit) => permit.merge(more),
            None => permit = Some(more),
        }
        body.extend_from_slice(&data);
    }
    Ok((body.freeze(), permit))
}

impl Protocol {
    /// Checks a request's head. Returns whether the body is compressed.
    fn is_gzip(self, request: &Request<Incoming>) -> Result<bool, Refusal> {
        let headers = request.headers();
        let (path, encoding) = match self {
            Protocol::Grpc => (GRPC_PATH, GRPC_ENCODING),
            Protocol::Http => (HTTP_PATH, CONTENT_ENCODING),
        };
        if request.uri().path() != path {
            return Err(WRONG_PATH);
        }
        if request.method() != Method::POST {
            return Err(NOT_POST);
        }
        let is_protobuf = |kind| is_kind(kind, "application/x-protobuf");
        if self == Protocol::Http && !content_type(headers).is_some_and(is_protobuf) {
            return Err(NOT_PROTOBUF);
        }
        match headers.get(encoding).map(HeaderValue::as_bytes) {
            None | Some(b"identity") => Ok(false),
            Some(b"gzip") => Ok(true),
            Some(_) => Err(UNKNOWN_ENCODING),
        }
    }

    /// Returns the message in a body, and whether it is compressed. In gRPC it is the only frame of a unary call.
    fn unframed(self, body: Bytes, is_gzip: bool) -> Result<(Bytes, bool), Refusal> {
        if self == Protocol::Http {
            return Ok((body, is_gzip));
        }
        let prefix = body.split_first_chunk::<GRPC_PREFIX>();
        let ([compressed, length @ ..], rest) = prefix.ok_or(MALFORMED)?;
        let is_whole = u32::from_be_bytes(*length) as usize == rest.len();
        // The header only says that frames may be compressed.
        if !is_whole || *compressed > u8::from(is_gzip) {
            return Err(MALFORMED);
        }
        Ok((body.slice(GRPC_PREFIX..), *compressed == 1))
    }

    /// Returns the response: an empty `ExportTraceServiceResponse`, or the refusal.
    fn response(self, result: Result<(), Refusal>) -> Response<Body> {
        let builder = Response::builder();
        let (builder, body) = match (self, result) {
            (Protocol::Http, Ok(())) => {
                let builder = builder.header(CONTENT_TYPE, "application/x-protobuf");
                (builder, Body::default())
            }
            (Protocol::Http, Err((status, _, message))) => {
                let builder = builder.status(status).header(CONTENT_TYPE, "text/plain");
                let builder = match status {
                    405 => builder.header(ALLOW, "POST"),
                    503 => builder.header(RETRY_AFTER, "1"),
                    _ => builder,
                };
                (builder, Full::from(message).boxed_unsync())
            }
            (Protocol::Grpc, Ok(())) => {
                let ok = HeaderMap::from_iter([(GRPC_STATUS, HeaderValue::from_static("0"))]);
                let empty = Full::new(Bytes::from_static(&[0; GRPC_PREFIX]));
                let trailers = std::future::ready(Some(Ok(ok)));
                (builder, empty.with_trailers(trailers).boxed_unsync())
            }
            (Protocol::Grpc, Err((_, code, message))) => {
                let builder = builder.header(GRPC_STATUS, u16::from(code));
                (builder.header(GRPC_MESSAGE, message), Body::default())
            }
        };
        let builder = match self {
            Protocol::Http => builder,
            Protocol::Grpc => builder
                .header(CONTENT_TYPE, "application/grpc")
                .header(GRPC_ACCEPT_ENCODING, "identity,gzip"),
        };
        builder.body(body).unwrap_or_default()
    }
}
