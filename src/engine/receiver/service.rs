//! The HTTP side: connections, and what is answered. gRPC is spoken as HTTP/2 frames, as there is one method.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{ALLOW, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Version};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, oneshot, watch};
use tokio::task::JoinSet;

use crate::telemetry::prometheus::Batch;

use super::intake::{Held, Intake, LONGEST};

type Body = UnsyncBoxBody<Bytes, Infallible>;
/// A message's body, whether it is compressed, and what it takes of the bytes that may be held.
type Message = (Bytes, bool, Held);

/// What a sender speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Speech {
    Grpc,
    Http,
}

/// Why a request is turned away: the status, the same in gRPC, and the words.
type Refusal = (u16, u8, &'static str);

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
const STREAMS: u32 = 64;
const HTTP_PATH: &str = "/v1/traces";
const GRPC_PATH: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
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

const TOO_LARGE: Refusal = (413, RESOURCE_EXHAUSTED, "a message may have 16 MiB");
const NO_ROOM: Refusal = (503, UNAVAILABLE, "too much waits to be read; send it again");
const TOO_SLOW: Refusal = (408, DEADLINE_EXCEEDED, "the body took too long");
const BROKEN: Refusal = (400, INVALID_ARGUMENT, "not one whole message");
const NOT_HERE: Refusal = (
    404,
    UNIMPLEMENTED,
    "only traces are received here: POST /v1/traces, or TraceService/Export by gRPC",
);
const NOT_POST: Refusal = (405, UNIMPLEMENTED, "traces come by POST");
const NO_PROTOBUF: Refusal = (
    415,
    UNIMPLEMENTED,
    "only application/x-protobuf is read: set OTEL_EXPORTER_OTLP_PROTOCOL to http/protobuf or grpc",
);
const NO_HTTP2: Refusal = (415, UNIMPLEMENTED, "gRPC needs HTTP/2");
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

/// Serves until it is stopped. Then no connection is left, and all that was acknowledged is in the intake.
pub async fn serve(
    listener: TcpListener,
    intake: Intake,
    limits: Limits,
    mut stopped: oneshot::Receiver<()>,
) {
    let mut connections = JoinSet::new();
    let (end, ending) = watch::channel(false);
    let mut is_full = false;
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = connections.join_next(), if !connections.is_empty() => continue,
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
            let intake = intake.of_connection();
            connections.spawn(connection(stream, intake, limits, ending.clone()));
            continue;
        }
        intake.metrics.trace_connections_refused.with(&[]).inc();
        if !is_full {
            is_full = true;
            let most = limits.connections;
            log::warn!(
                "engine traces: {most} connections are open; further ones are closed and counted"
            );
        }
    }
    drop(listener);
    end.send_replace(true);
    let all = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(LAST, all).await.is_err() {
        connections.shutdown().await;
    }
}

/// Serves a connection until it ends, is silent for too long, or all end.
async fn connection(
    stream: TcpStream,
    intake: Intake,
    limits: Limits,
    mut ending: watch::Receiver<bool>,
) {
    let asked = Arc::new(Notify::new());
    let first = asked.clone();
    let service = service_fn(move |request| {
        first.notify_one();
        let intake = intake.clone();
        async move { Ok::<_, Infallible>(answer(request, &intake).await) }
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
        _ = ending.wait_for(|is_ending| *is_ending) => {}
    }
    served.as_mut().graceful_shutdown();
    drop(served.await);
}

async fn answer(request: Request<Incoming>, intake: &Intake) -> Response<Body> {
    let kind = request.headers().get(CONTENT_TYPE);
    let is_grpc = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"));
    let speech = match is_grpc && request.version() == Version::HTTP_2 {
        true => Speech::Grpc,
        false => Speech::Http,
    };
    match taken(request, speech, is_grpc, intake).await {
        Ok(()) => speech.thanks(),
        Err(refusal) => speech.refuses(refusal),
    }
}

/// Takes a request's message in.
async fn taken(
    request: Request<Incoming>,
    speech: Speech,
    is_grpc: bool,
    intake: &Intake,
) -> Result<(), Refusal> {
    let (head, body) = request.into_parts();
    let path = match speech {
        Speech::Grpc => GRPC_PATH,
        Speech::Http => HTTP_PATH,
    };
    if is_grpc && speech == Speech::Http {
        return Err(NO_HTTP2);
    }
    if head.uri.path() != path {
        return Err(NOT_HERE);
    }
    if head.method != Method::POST {
        return Err(NOT_POST);
    }
    let encoding = match speech {
        Speech::Grpc => GRPC_ENCODING,
        Speech::Http if !is_protobuf(&head.headers) => return Err(NO_PROTOBUF),
        Speech::Http => CONTENT_ENCODING,
    };
    let is_gzip = match head.headers.get(encoding).map(HeaderValue::as_bytes) {
        None | Some(b"identity") => false,
        Some(b"gzip") => true,
        Some(_) => return Err(NO_ENCODING),
    };
    let read = whole(&head.headers, body, is_gzip, intake);
    let read = tokio::time::timeout(PATIENCE, read).await;
    let message = read
        .unwrap_or(Err(TOO_SLOW))
        .and_then(|message| match speech {
            Speech::Grpc => unframed(message),
            Speech::Http => Ok(message),
        });
    let taken = message.map(|(body, is_gzip, held)| intake.put(body, is_gzip, held));
    if let Err((status, ..)) = taken {
        intake.metrics.batch(match status {
            413 => Batch::TooLarge,
            503 => Batch::NoRoom,
            _ => Batch::Malformed,
        });
    }
    taken
}

fn is_protobuf(headers: &HeaderMap) -> bool {
    let kind = headers
        .get(CONTENT_TYPE)
        .and_then(|kind| kind.to_str().ok());
    let kind = kind.and_then(|kind| kind.split(';').next());
    kind.is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/x-protobuf"))
}

/// The whole body.
async fn whole(
    headers: &HeaderMap,
    mut body: Incoming,
    is_gzip: bool,
    intake: &Intake,
) -> Result<Message, Refusal> {
    let most = LONGEST + GRPC_PREFIX;
    let told = headers
        .get(CONTENT_LENGTH)
        .and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    if told.is_some_and(|length| length > most) {
        return Err(TOO_LARGE);
    }
    let mut held = Held::new();
    let mut bytes = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|_| BROKEN)?.into_data() else {
            continue;
        };
        if bytes.len() + data.len() > most {
            return Err(TOO_LARGE);
        }
        if !intake.grow(&mut held, data.len()) {
            return Err(NO_ROOM);
        }
        bytes.extend_from_slice(&data);
    }
    Ok((bytes.freeze(), is_gzip, held))
}

/// The message in the one frame of a unary call.
fn unframed((body, is_gzip, held): Message) -> Result<Message, Refusal> {
    let Some((prefix, rest)) = body.split_first_chunk::<GRPC_PREFIX>() else {
        return Err(BROKEN);
    };
    let [compressed, length @ ..] = *prefix;
    let is_whole = u32::from_be_bytes(length) as usize == rest.len();
    // The encoding is only what a frame may have.
    if !is_whole || compressed > u8::from(is_gzip) {
        return Err(BROKEN);
    }
    Ok((body.slice(GRPC_PREFIX..), compressed == 1, held))
}

impl Speech {
    /// It was taken: an empty `ExportTraceServiceResponse`.
    fn thanks(self) -> Response<Body> {
        match self {
            Speech::Http => {
                let mut response = Response::new(Full::default().boxed_unsync());
                let kind = HeaderValue::from_static("application/x-protobuf");
                response.headers_mut().insert(CONTENT_TYPE, kind);
                response
            }
            Speech::Grpc => {
                let ok = HeaderMap::from_iter([(GRPC_STATUS, HeaderValue::from_static("0"))]);
                let empty = Full::new(Bytes::from_static(&[0; GRPC_PREFIX]));
                let body = empty.with_trailers(std::future::ready(Some(Ok(ok))));
                let mut response = Response::new(body.boxed_unsync());
                grpc_headers(response.headers_mut());
                response
            }
        }
    }

    fn refuses(self, (status, code, words): Refusal) -> Response<Body> {
        match self {
            Speech::Http => {
                let words = Full::new(Bytes::from_static(words.as_bytes()));
                let mut response = Response::new(words.boxed_unsync());
                *response.status_mut() = StatusCode::from_u16(status).unwrap_or_default();
                let headers = response.headers_mut();
                headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
                if status == 405 {
                    headers.insert(ALLOW, HeaderValue::from_static("POST"));
                }
                if status == 503 {
                    headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
                }
                response
            }
            Speech::Grpc => {
                let mut response = Response::new(Full::default().boxed_unsync());
                let headers = response.headers_mut();
                grpc_headers(headers);
                headers.insert(GRPC_STATUS, HeaderValue::from(u16::from(code)));
                headers.insert(GRPC_MESSAGE, HeaderValue::from_static(words));
                response
            }
        }
    }
}

fn grpc_headers(headers: &mut HeaderMap) {
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert(
        GRPC_ACCEPT_ENCODING,
        HeaderValue::from_static("identity,gzip"),
    );
}
