//! Receives the spans that servers send by OTLP, over gRPC and HTTP on one address, in a thread of its own. gRPC is written as plain
//! HTTP/2, since there is only one method.
//!
//! A message is decoded and answered as soon as it is complete, before its spans are joined. Memory is bounded: connections,
//! bodies and their inflated size.

use std::convert::Infallible;
use std::io::{self, Read as _};
use std::sync::{Arc, Once};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use flate2::read::MultiGzDecoder;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, Version};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore, SemaphorePermit, oneshot};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::client::listener::accept;
use crate::telemetry::otlp::exporter::GRPC_PATH;
use crate::telemetry::otlp::settings::{HTTP_PATH, Protocol};
use crate::telemetry::prometheus::{BatchOutcome, Metrics};
use crate::telemetry::queue::BackgroundThread;

use super::forward::Forward;
use super::otlp::{self, EngineSpan};

/// Takes the spans of a batch, or returns `false` if it has no room. Called on the receiving thread, so it must not wait.
pub type Sink = Box<dyn Fn(Vec<EngineSpan>) -> bool + Send + Sync>;

/// A running receiver. Dropping it forwards the waiting messages, within a time limit, and ends it. Blocks.
#[derive(Debug)]
pub struct Receiver {
    /// Stops the thread when dropped, so it stands before the thread.
    _stop: oneshot::Sender<()>,
    _thread: BackgroundThread,
}

/// Reads messages and passes their spans on.
struct Reader {
    limits: Limits,
    sink: Sink,
    forward: Option<Arc<Forward>>,
    metrics: Metrics,
    /// A permit for each byte of body that may be held.
    room: Semaphore,
    left_out_logged: Once,
}

/// Limits on connections.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The maximum number of connections; further ones are closed. Each process of a server has one.
    pub connections: usize,
    /// The timeout for the head of a connection's first request, and of each further one over HTTP/1.
    pub head: Duration,
}

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// Why a request is refused: the HTTP status, the gRPC status and a message.
type Refusal = (u16, u8, &'static str);

/// The maximum size of a message, compressed and inflated: gRPC's default. Servers send 64 spans at once, about 20 kB. A message
/// of nothing but empty spans takes 16 times its length while it is read.
const MAX_MESSAGE_BYTES: usize = 4 << 20;
/// The maximum size of all messages held at once; one connection may hold half of it.
const MAX_HELD_BYTES: usize = 64 << 20;
/// How long open requests may take at the end.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);
/// The timeout for a body.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// The interval of HTTP/2 pings, and the timeout for their answers.
const PING_INTERVAL: Duration = Duration::from_secs(30);
/// The maximum number of messages at once on a connection: senders send one after the other.
const MAX_STREAMS: u32 = 8;
const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
/// The length of a gRPC message's prefix: a flag for compression, and the message's length.
const GRPC_PREFIX: usize = 5;
// https://grpc.github.io/grpc/core/md_doc_statuscodes.html
const INVALID_ARGUMENT: u8 = 3;
const RESOURCE_EXHAUSTED: u8 = 8;
const UNIMPLEMENTED: u8 = 12;
const UNAVAILABLE: u8 = 14;

const TOO_LARGE: Refusal = (413, RESOURCE_EXHAUSTED, "a message may have 4 MiB");
const NO_ROOM: Refusal = (
    503,
    UNAVAILABLE,
    "too much comes at once, or too slowly; send it again",
);
const MALFORMED: Refusal = (
    400,
    INVALID_ARGUMENT,
    "no OTLP message of traces, plain or by gzip; set OTEL_EXPORTER_OTLP_PROTOCOL to http/protobuf or grpc",
);
const WRONG_PATH: Refusal = (
    404,
    UNIMPLEMENTED,
    "only traces are received here: POST /v1/traces, or TraceService/Export by gRPC",
);

/// The limits of a proxy.
pub const LIMITS: Limits = Limits {
    connections: 1024,
    head: Duration::from_secs(75),
};

impl Receiver {
    /// Starts to receive on a listening socket. `forward`: the user's collector, which gets every message unchanged.
    ///
    /// # Errors
    /// The system provides no thread, or the socket cannot be used.
    pub fn start(
        listener: std::net::TcpListener,
        forward: Option<Forward>,
        limits: Limits,
        sink: Sink,
        metrics: Metrics,
    ) -> io::Result<Receiver> {
        listener.set_nonblocking(true)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let listener = {
            let _inside = runtime.enter();
            TcpListener::from_std(listener)?
        };
        let reader = Reader {
            limits,
            sink,
            forward: forward.map(Arc::new),
            metrics,
            room: Semaphore::new(MAX_HELD_BYTES),
            left_out_logged: Once::new(),
        };
        let (stop, stopped) = oneshot::channel();
        let run = move || {
            runtime.block_on(serve(listener, reader, stopped));
            // Does not wait for a name lookup that still runs.
            runtime.shutdown_background();
        };
        Ok(Receiver {
            _stop: stop,
            _thread: BackgroundThread::spawn("engine-traces", run)?,
        })
    }
}

/// Serves until stopped. Then closes the connections and forwards the waiting messages, each within a time limit.
async fn serve(listener: TcpListener, reader: Reader, mut stopped: oneshot::Receiver<()>) {
    let reader = Arc::new(reader);
    let mut connections = JoinSet::new();
    let ending = CancellationToken::new();
    let full_logged = Once::new();
    loop {
        let (stream, _) = tokio::select! {
            accepted = accept(&listener, &mut connections, "engine traces: ") => accepted,
            _ = &mut stopped => break,
        };
        let max = reader.limits.connections;
        if connections.len() < max {
            connections.spawn(connection(stream, reader.clone(), ending.clone()));
            continue;
        }
        reader.metrics.trace_connections_refused.with(&[]).inc();
        full_logged.call_once(|| {
            log::warn!("engine traces: {max} connections are open; further ones are closed. Logged once; metrics count");
        });
    }
    drop(listener);
    ending.cancel();
    let all = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(SHUTDOWN_TIMEOUT, all).await.is_err() {
        connections.shutdown().await;
    }
    if let Some(forward) = &reader.forward {
        forward.finish().await;
    }
}

/// Serves a connection until it ends, sends no first request in time, or the receiver ends.
async fn connection(stream: TcpStream, reader: Arc<Reader>, ending: CancellationToken) {
    let timeout = reader.limits.head;
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
        .header_read_timeout(timeout);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_INTERVAL)
        .max_concurrent_streams(MAX_STREAMS);
    // If this fails, responses are only slower.
    drop(stream.set_nodelay(true));
    let silence = async {
        let first = tokio::time::timeout(timeout, requested.notified());
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
    if request.method() != Method::POST || request.uri().path() != protocol.path() {
        return protocol.response(Err(WRONG_PATH));
    }
    let body = tokio::time::timeout(BODY_TIMEOUT, read_body(request, reader)).await;
    let result = body.unwrap_or(Err(NO_ROOM)).and_then(|(body, _held)| {
        let message = protocol.unframed(body)?;
        reader.read(message)
    });
    if let Err((status, _, message)) = result {
        reader.log_left_out(&format!("a batch of spans ({message})"));
        reader.count(match status {
            413 => BatchOutcome::TooLarge,
            503 => BatchOutcome::NoRoom,
            _ => BatchOutcome::Malformed,
        });
    }
    protocol.response(result)
}

/// Reads the whole body. The permit holds the room that it takes.
async fn read_body(
    request: Request<Incoming>,
    reader: &Reader,
) -> Result<(Bytes, SemaphorePermit<'_>), Refusal> {
    let mut rest = Limited::new(request.into_body(), MAX_MESSAGE_BYTES + GRPC_PREFIX);
    let room = |bytes: usize| reader.room.try_acquire_many(bytes as u32);
    let (mut held, mut body) = (room(0).map_err(|_| NO_ROOM)?, BytesMut::new());
    while let Some(frame) = rest.frame().await {
        let frame = frame.map_err(|error| match error.is::<LengthLimitError>() {
            true => TOO_LARGE,
            false => MALFORMED,
        })?;
        if let Ok(data) = frame.into_data() {
            held.merge(room(data.len()).map_err(|_| NO_ROOM)?);
            body.extend_from_slice(&data);
        }
    }
    Ok((body.freeze(), held))
}

impl Reader {
    /// Decodes a message and passes its spans on.
    fn read(&self, message: Bytes) -> Result<(), Refusal> {
        let plain = inflated(message)?;
        let left_out = &self.metrics.trace_spans_left_out;
        let spans = otlp::spans(plain.clone(), |reason| {
            left_out.with(&[reason.name()]).inc();
            self.log_left_out("a span that is malformed or too large");
        });
        let spans = spans.map_err(|_| MALFORMED)?;
        if let Some(forward) = &self.forward {
            forward.push(plain);
        }
        self.count(match spans.is_empty() || (self.sink)(spans) {
            true => BatchOutcome::Taken,
            false => BatchOutcome::NoRoom,
        });
        Ok(())
    }

    /// Logs, once in the process's life, that something was left out.
    fn log_left_out(&self, what: &str) {
        self.left_out_logged.call_once(|| {
            log::warn!("engine traces: {what} was left out. Logged once; metrics count");
        });
    }

    fn count(&self, outcome: BatchOutcome) {
        self.metrics.trace_batches.with(&[outcome.name()]).inc();
    }
}

/// Inflates a message if it is packed by gzip, within its maximum size. A protobuf message of traces does not begin so.
fn inflated(message: Bytes) -> Result<Bytes, Refusal> {
    if !message.starts_with(&[0x1f, 0x8b]) {
        return Ok(message);
    }
    let mut plain = Vec::new();
    let mut read = MultiGzDecoder::new(&*message).take(MAX_MESSAGE_BYTES as u64 + 1);
    read.read_to_end(&mut plain).map_err(|_| MALFORMED)?;
    match plain.len() > MAX_MESSAGE_BYTES {
        true => Err(TOO_LARGE),
        false => Ok(plain.into()),
    }
}

impl Protocol {
    fn path(self) -> &'static str {
        match self {
            Protocol::Grpc => GRPC_PATH,
            Protocol::Http => HTTP_PATH,
        }
    }

    /// Returns the message in a body. In gRPC it is the only frame of a unary call.
    fn unframed(self, body: Bytes) -> Result<Bytes, Refusal> {
        if self == Protocol::Http {
            return Ok(body);
        }
        let prefix = body.split_first_chunk::<GRPC_PREFIX>();
        let ([_, length @ ..], rest) = prefix.ok_or(MALFORMED)?;
        match u32::from_be_bytes(*length) as usize == rest.len() {
            true => Ok(body.slice(GRPC_PREFIX..)),
            false => Err(MALFORMED),
        }
    }

    /// Returns the response: an empty `ExportTraceServiceResponse`, or the refusal.
    fn response(self, result: Result<(), Refusal>) -> Response<Body> {
        let (status, code, message) = result.err().unwrap_or((200, 0, ""));
        let builder = Response::builder();
        let response = match self {
            Protocol::Http => {
                let kind = match message {
                    "" => "application/x-protobuf",
                    _ => "text/plain",
                };
                let builder = builder.status(status).header(CONTENT_TYPE, kind);
                builder.body(Full::from(message).boxed_unsync())
            }
            Protocol::Grpc => {
                let frame: &[u8] = if code == 0 { &[0; GRPC_PREFIX] } else { &[] };
                let trailers = HeaderMap::from_iter([
                    (GRPC_STATUS, HeaderValue::from(u16::from(code))),
                    (GRPC_MESSAGE, HeaderValue::from_static(message)),
                ]);
                let trailers = std::future::ready(Some(Ok(trailers)));
                let body = Full::from(frame).with_trailers(trailers);
                let builder = builder.header(CONTENT_TYPE, "application/grpc");
                builder.body(body.boxed_unsync())
            }
        };
        response.unwrap_or_default()
    }
}
