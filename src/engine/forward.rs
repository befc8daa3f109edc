//! Sends the messages of servers' spans on to the user's collector, byte for byte.
//!
//! They wait in a queue that is bounded by bytes. Nothing is sent twice: a collector would count the spans double, and one
//! that is away for long costs them anyway. What is lost is counted, and said once in the log. While a collector cannot be
//! reached it is tried again ever more seldom.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use http::header::{CONTENT_TYPE, TE};
use http::{HeaderMap, HeaderValue, Request};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;

use crate::telemetry::loss::LossLog;
use crate::telemetry::otlp::exporter::{self, Trouble};
use crate::telemetry::otlp::settings::{self, Protocol};
use crate::telemetry::prometheus::Dropped;
use crate::telemetry::prometheus::Metrics;

/// Where messages go.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The collector. Of these settings, its URL, protocol, headers, certificates and the limit on an export count.
    pub to: settings::Settings,
    /// Bytes of messages that may wait.
    pub queue_bytes: usize,
}

/// The way to a collector. Made and used within a Tokio runtime.
#[derive(Debug)]
pub struct Forward {
    queue: UnboundedSender<Waiting>,
    /// Bytes of messages that may wait.
    room: Arc<Semaphore>,
    most: usize,
    sending: JoinSet<()>,
    closing: watch::Sender<bool>,
    losses: Arc<Losses>,
}

/// A message, and the room that it takes.
type Waiting = (Bytes, OwnedSemaphorePermit);

/// What became of messages.
#[derive(Debug)]
struct Losses {
    /// Messages that wait or are on their way.
    left: AtomicUsize,
    log: LossLog,
    metrics: Metrics,
    target: String,
}

/// Sends one message after the other.
struct Sender {
    queue: Arc<Mutex<UnboundedReceiver<Waiting>>>,
    closing: watch::Receiver<bool>,
    losses: Arc<Losses>,
    to: settings::Settings,
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
}

/// Messages on their way at once.
const AT_ONCE: usize = 8;
/// How long the last ones may take.
const LAST: Duration = Duration::from_secs(1);
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// Characters of a collector's own words that are shown.
const SHOWN: usize = 200;
/// Bytes of an answer that are read.
const ANSWER: usize = 64 << 10;
const GRPC_PATH: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";

impl Forward {
    /// A way to a collector; the first connection is made for the first message.
    ///
    /// # Errors
    /// TLS cannot be set up.
    pub fn new(settings: Settings, metrics: Metrics) -> io::Result<Forward> {
        let (queue, waiting) = unbounded_channel();
        let (closing, is_closing) = watch::channel(false);
        let losses = Arc::new(Losses {
            left: AtomicUsize::new(0),
            log: LossLog::default(),
            metrics,
            target: settings.to.target(),
        });
        let tls = exporter::tls(settings.to.roots.as_ref()).map_err(io::Error::other)?;
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(tls)
            .https_or_http();
        let mut builder = Client::builder(TokioExecutor::new());
        builder
            .timer(TokioTimer::new())
            .pool_max_idle_per_host(AT_ONCE);
        let client = match settings.to.protocol {
            Protocol::Grpc => builder
                .http2_only(true)
                .build(connector.enable_http2().build()),
            Protocol::Http => builder.build(connector.enable_http1().build()),
        };
        let waiting = Arc::new(Mutex::new(waiting));
        let mut sending = JoinSet::new();
        for _ in 0..AT_ONCE {
            let sender = Sender {
                queue: waiting.clone(),
                closing: is_closing.clone(),
                losses: losses.clone(),
                to: settings.to.clone(),
                client: client.clone(),
            };
            sending.spawn(sender.run());
        }
        let most = settings.queue_bytes.clamp(1, u32::MAX as usize);
        let room = Arc::new(Semaphore::new(most));
        Ok(Forward {
            queue,
            room,
            most,
            sending,
            closing,
            losses,
        })
    }

    /// A message to be sent. Never waits. One that is larger than all that may wait does so alone.
    pub fn push(&self, message: Bytes) {
        let bytes = message.len().min(self.most) as u32;
        let Ok(room) = self.room.clone().try_acquire_many_owned(bytes) else {
            self.losses
                .lost(Dropped::QueueFull, "too much waits for it");
            return;
        };
        self.losses.left.fetch_add(1, Ordering::Relaxed);
        // There is a receiver for as long as this is not finished.
        let _ = self.queue.send((message, room));
    }

    /// Sends what waits, within a limit.
    pub async fn finish(self) {
        let Forward {
            queue,
            mut sending,
            closing,
            losses,
            ..
        } = self;
        drop(queue);
        closing.send_replace(true);
        let all = async { while sending.join_next().await.is_some() {} };
        drop(tokio::time::timeout(LAST, all).await);
        let left = losses.left.load(Ordering::Relaxed);
        if left > 0 {
            losses.metrics.not_forwarded(Dropped::Shutdown, left);
            log::warn!("engine traces: {left} batches still waited at the end and are lost");
        }
    }
}

impl Losses {
    fn lost(&self, why: Dropped, words: &str) {
        self.metrics.not_forwarded(why, 1);
        if self.log.lost(1) {
            let target = &self.target;
            log::warn!(
                "engine traces: {target}: {words}; servers' spans do not get there and are counted"
            );
        }
    }

    fn sent(&self) {
        self.metrics.forwarded();
        if let Some(lost) = self.log.recovered() {
            let target = &self.target;
            log::warn!("engine traces: {target} takes them again; {lost} batches were lost");
        }
    }
}

impl Sender {
    async fn run(mut self) {
        let mut pause = FIRST_PAUSE;
        while let Some((message, _room)) = self.next().await {
            let sent = self.send(message).await;
            self.losses.left.fetch_sub(1, Ordering::Relaxed);
            match sent {
                Ok(()) => {
                    self.losses.sent();
                    pause = FIRST_PAUSE;
                }
                Err(Trouble { why, words }) => {
                    self.losses.lost(why, &words);
                    if why == Dropped::Unreachable {
                        // At the end it is tried at once.
                        let closing = self.closing.wait_for(|is_closing| *is_closing);
                        drop(tokio::time::timeout(pause, closing).await);
                        pause = (pause * 2).min(LONGEST_PAUSE);
                    }
                }
            }
        }
    }

    async fn next(&self) -> Option<Waiting> {
        self.queue.lock().await.recv().await
    }

    async fn send(&self, message: Bytes) -> Result<(), Trouble> {
        let limit = self.to.timeout;
        let sent = tokio::time::timeout(limit, self.exchange(message)).await;
        sent.unwrap_or_else(|_| {
            Err(Trouble {
                why: Dropped::Timeout,
                words: format!("no answer after {limit:?}"),
            })
        })
    }

    async fn exchange(&self, message: Bytes) -> Result<(), Trouble> {
        let request = self.request(message).map_err(|error| Trouble {
            why: Dropped::Rejected,
            words: format!("no request can be made: {error}"),
        })?;
        let unreachable = |error: &dyn std::error::Error| Trouble {
            why: Dropped::Unreachable,
            words: exporter::causes(error),
        };
        let response = self.client.request(request).await;
        let (head, body) = response.map_err(|error| unreachable(&error))?.into_parts();
        let (text, trailers) = read(body).await.map_err(|error| unreachable(&*error))?;
        let refused = |words: String| {
            let words = words.chars().filter(|c| !c.is_control()).take(SHOWN);
            Err(Trouble {
                why: Dropped::Rejected,
                words: words.collect(),
            })
        };
        if !head.status.is_success() {
            let text = String::from_utf8_lossy(&text);
            return refused(format!("it answered {} {text}", head.status));
        }
        if self.to.protocol == Protocol::Http {
            return Ok(());
        }
        // A call that fails at once has its status on the head.
        let told = |name: &str| {
            let of = head.headers.get(name);
            let value = of.or_else(|| trailers.get(name))?;
            Some(String::from_utf8_lossy(value.as_bytes()).into_owned())
        };
        match told("grpc-status").as_deref() {
            Some("0") => Ok(()),
            status => refused(format!(
                "it answered gRPC status {} {}",
                status.unwrap_or("none"),
                told("grpc-message").unwrap_or_default()
            )),
        }
    }

    fn request(&self, message: Bytes) -> http::Result<Request<Full<Bytes>>> {
        let to = &self.to;
        let (uri, kind, body) = match to.protocol {
            Protocol::Http => (to.endpoint.clone(), "application/x-protobuf", message),
            Protocol::Grpc => {
                let mut framed = BytesMut::with_capacity(message.len() + 5);
                framed.put_u8(0);
                framed.put_u32(message.len() as u32);
                framed.put(message);
                let uri = format!("{}{GRPC_PATH}", to.endpoint);
                (uri, "application/grpc", framed.freeze())
            }
        };
        let mut request = Request::post(uri).body(Full::new(body))?;
        let headers = request.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        if to.protocol == Protocol::Grpc {
            headers.insert(TE, HeaderValue::from_static("trailers"));
        }
        headers.extend(to.headers.0.iter().cloned());
        Ok(request)
    }
}

/// An answer's body and trailers.
async fn read(
    body: Incoming,
) -> Result<(Bytes, HeaderMap), Box<dyn std::error::Error + Send + Sync>> {
    let whole = Limited::new(body, ANSWER).collect().await?;
    let trailers = whole.trailers().cloned().unwrap_or_default();
    Ok((whole.to_bytes(), trailers))
}
