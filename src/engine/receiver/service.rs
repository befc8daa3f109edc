//! The HTTP side: connections, and what is answered. gRPC is spoken as HTTP/2 frames, as there is one method.

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
use crate::telemetry::prometheus::Batch;

use super::{LONGEST, Reader};

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// What a sender speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Speech {
    Grpc,
    Http,
}

/// Why a request is turned away: the status, the same in gRPC, and the words.
pub(super) type Refusal = (u16, u8, &'static str);

/// What connections may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections at once; one more is closed. Each of a server's processes has one.
    pub connections: usize,
    /// How long a connection may take for the head of its first request.
    pub first: Duration,
    /// How long it may take for that of each further one by HTTP/1.
    pub idle: Duration,
}

/// How long what is on its way may take at the end.
const LAST: Duration = Duration::from_secs(1);
/// A body that takes longer is given up.
const PATIENCE: Duration = Duration::from_secs(30);
/// A connection by HTTP/2 is asked for a sign of life so often, and has as long to give it.
const ALIVE: Duration = Duration::from_secs(30);
/// Messages of one connection at once: senders send one after the other.
const STREAMS: u32 = 8;
const HTTP_PATH: &str = "/v1/traces";
const GRPC_ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");
const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const GRPC_ACCEPT_ENCODING: HeaderName = HeaderName::from_static("grpc-accept-encoding");
/// Compressed or not, and the length.
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
pub(super) const BROKEN: Refusal = (400, INVALID_ARGUMENT, "no message of OTLP traces");
const NOT_HERE: Refusal = (
    404,
    UNIMPLEMENTED,
    "only traces are received here: POST /v1/traces, or TraceService/Export by gRPC",
);
const NOT_POST: Refusal = (405, UNIMPLEMENTED, "traces come by POST");
const NO_PROTOBUF: Refusal = (
    415,
    UNIMPLEMENTED,
    "only application/x-protobuf is read, and gRPC by HTTP/2: set OTEL_EXPORTER_OTLP_PROTOCOL to http/protobuf or grpc",
);
const NO_ENCODING: Refusal = (
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

/// Serves until it is stopped. Then no connection is left, and what goes on to a collector has had its time.
pub(super) async fn serve(
    listener: TcpListener,
    reader: Reader,
    limits: Limits,
    mut stopped: oneshot::Receiver<()>,
) {
    let reader = Arc::new(reader);
    let mut connections = JoinSet::new();
    let ending = CancellationToken::new();
    let mut is_full = false;
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
                // It lasts: out of descriptors, above all.
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        while connections.try_join_next().is_some() {}
        if connections.len() < limits.connections {
            // Around the limit it is not said again and again.
            is_full &= connections.len() > limits.connections / 2;
            connections.spawn(connection(stream, reader.clone(), limits, ending.clone()));
            continue;
        }
        reader.metrics.trace_connections_refused.with(&[]).inc();
        if !std::mem::replace(&mut is_full, true) {
            let most = limits.connections;
            log::warn!(
                "engine traces: {most} connections are open; further ones are closed and counted"
            );
        }
    }
    drop(listener);
    ending.cancel();
    let all = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(LAST, all).await.is_err() {
        connections.shutdown().await;
    }
    let reader = Arc::into_inner(reader);
    if let Some(forward) = reader.and_then(|reader| reader.forward) {
        forward.finish().await;
    }
}

/// Serves a connection until it ends, is silent for too long, or all end.
async fn connection(
    stream: TcpStream,
    reader: Arc<Reader>,
    limits: Limits,
    ending: CancellationToken,
) {
    let asked = Arc::new(Notify::new());
    let first = asked.clone();
    let service = service_fn(move |request| {
        first.notify_one();
        let reader = reader.clone();
        async move { Ok::<_, Infallible>(answer(request, &reader).await) }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.idle);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(ALIVE)
        .keep_alive_timeout(ALIVE)
        .max_concurrent_streams(STREAMS);
    // However it ends, the sender knows.
    drop(stream.set_nodelay(true));
    let silence = async {
        let first = tokio::time::timeout(limits.first, asked.notified());
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

async fn answer(request: Request<Incoming>, reader: &Reader) -> Response<Body> {
    let kind = request.headers().get(CONTENT_TYPE);
    let is_grpc = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"));
    let speech = match is_grpc && request.version() == Version::HTTP_2 {
        true => Speech::Grpc,
        false => Speech::Http,
    };
    let is_gzip = match speech.is_gzip(&request) {
        Ok(is_gzip) => is_gzip,
        Err(refusal) => return speech.answers(Err(refusal)),
    };
    let body = tokio::time::timeout(PATIENCE, whole(request, reader)).await;
    let body = body.unwrap_or(Err(TOO_SLOW));
    let taken = body.and_then(|(body, _held)| {
        let (message, is_gzip) = speech.unframed(body, is_gzip)?;
        reader.read(message, is_gzip)
    });
    if let Err((status, _, why)) = taken {
        reader.say(&format!("a batch of spans ({why})"));
        reader.count(match status {
            413 => Batch::TooLarge,
            503 => Batch::NoRoom,
            _ => Batch::Malformed,
        });
    }
    speech.answers(taken)
}

fn is_protobuf(headers: &HeaderMap) -> bool {
    content_type(headers).is_some_and(|told| is_kind(told, "application/x-protobuf"))
}

/// The whole body, and the room that it takes.
async fn whole(
    request: Request<Incoming>,
    reader: &Reader,
) -> Result<(Bytes, Option<SemaphorePermit<'_>>), Refusal> {
    let most = LONGEST + GRPC_PREFIX;
    let mut rest = request.into_body();
    // Said before it comes: what can never be read takes no room from others.
    if rest.size_hint().lower() > most as u64 {
        return Err(TOO_LARGE);
    }
    let (mut held, mut body) = (None::<SemaphorePermit<'_>>, BytesMut::new());
    while let Some(frame) = rest.frame().await {
        let Ok(data) = frame.map_err(|_| BROKEN)?.into_data() else {
            continue;
        };
        if body.len() + data.len() > most {
            return Err(TOO_LARGE);
        }
        let taken = reader.room.try_acquire_many(data.len() as u32);
        let taken = taken.map_err(|_| NO_ROOM)?;
        match &mut held {
            Some(held) => held.merge(taken),
            None => held = Some(taken),
        }
        body.extend_from_slice(&data);
    }
    Ok((body.freeze(), held))
}

impl Speech {
    /// Whether a request's body is compressed, if it is one that is read here.
    fn is_gzip(self, request: &Request<Incoming>) -> Result<bool, Refusal> {
        let headers = request.headers();
        let (path, encoding) = match self {
            Speech::Grpc => (GRPC_PATH, GRPC_ENCODING),
            Speech::Http => (HTTP_PATH, CONTENT_ENCODING),
        };
        if request.uri().path() != path {
            return Err(NOT_HERE);
        }
        if request.method() != Method::POST {
            return Err(NOT_POST);
        }
        if self == Speech::Http && !is_protobuf(headers) {
            return Err(NO_PROTOBUF);
        }
        match headers.get(encoding).map(HeaderValue::as_bytes) {
            None | Some(b"identity") => Ok(false),
            Some(b"gzip") => Ok(true),
            Some(_) => Err(NO_ENCODING),
        }
    }

    /// The message in a body, and whether it is compressed: in gRPC it is the one frame of a unary call.
    fn unframed(self, body: Bytes, is_gzip: bool) -> Result<(Bytes, bool), Refusal> {
        if self == Speech::Http {
            return Ok((body, is_gzip));
        }
        let prefix = body.split_first_chunk::<GRPC_PREFIX>();
        let ([compressed, length @ ..], rest) = prefix.ok_or(BROKEN)?;
        let is_whole = u32::from_be_bytes(*length) as usize == rest.len();
        // The encoding is only what a frame may have.
        if !is_whole || *compressed > u8::from(is_gzip) {
            return Err(BROKEN);
        }
        Ok((body.slice(GRPC_PREFIX..), *compressed == 1))
    }

    /// It was taken (an empty `ExportTraceServiceResponse`), or why not.
    fn answers(self, taken: Result<(), Refusal>) -> Response<Body> {
        let answer = Response::builder();
        let (answer, body) = match (self, taken) {
            (Speech::Http, Ok(())) => {
                let answer = answer.header(CONTENT_TYPE, "application/x-protobuf");
                (answer, Body::default())
            }
            (Speech::Http, Err((status, _, words))) => {
                let answer = answer.status(status).header(CONTENT_TYPE, "text/plain");
                let answer = match status {
                    405 => answer.header(ALLOW, "POST"),
                    503 => answer.header(RETRY_AFTER, "1"),
                    _ => answer,
                };
                (answer, Full::from(words).boxed_unsync())
            }
            (Speech::Grpc, Ok(())) => {
                let ok = HeaderMap::from_iter([(GRPC_STATUS, HeaderValue::from_static("0"))]);
                let empty = Full::new(Bytes::from_static(&[0; GRPC_PREFIX]));
                let trailers = std::future::ready(Some(Ok(ok)));
                (answer, empty.with_trailers(trailers).boxed_unsync())
            }
            (Speech::Grpc, Err((_, code, words))) => {
                let answer = answer.header(GRPC_STATUS, u16::from(code));
                (answer.header(GRPC_MESSAGE, words), Body::default())
            }
        };
        let answer = match self {
            Speech::Http => answer,
            Speech::Grpc => answer
                .header(CONTENT_TYPE, "application/grpc")
                .header(GRPC_ACCEPT_ENCODING, "identity,gzip"),
        };
        answer.body(body).unwrap_or_default()
    }
}
