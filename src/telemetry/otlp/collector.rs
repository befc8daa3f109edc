//! The way to a collector: messages of OTLP (<https://github.com/open-telemetry/opentelemetry-proto>) over gRPC or HTTP, and what
//! became of each.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use http::header::{CONTENT_TYPE, RETRY_AFTER, TE};
use http::{HeaderMap, HeaderValue, Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use prometheus::IntCounter;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore};

use crate::telemetry::family::Family;
use crate::telemetry::loss::LossLog;
use crate::telemetry::prometheus::Dropped;
use crate::trust::Roots;

use super::settings::{Protocol, Settings};

/// Sends messages within a Tokio runtime, each once. Clones share their connections.
#[derive(Clone, Debug)]
pub struct Collector {
    to: Settings,
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
}

/// Why a message did not get there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// As it is counted.
    pub why: Dropped,
    /// In words.
    pub words: String,
    /// What the collector answered, if anything; of gRPC what comes nearest.
    pub status: Option<StatusCode>,
    /// When it may be tried again.
    pub retry_after: Option<HeaderValue>,
}

/// What became of things on their way to a collector: counted, and said in the log when it changes.
#[derive(Debug)]
pub struct Deliveries {
    /// What is sent, as the log calls it, and where to.
    pub what: &'static str,
    /// The collector, in words.
    pub target: String,
    /// Counts what got there.
    pub sent: IntCounter,
    /// Counts what did not, by [`Dropped`].
    pub lost: Family<IntCounter>,
    /// Those that wait or are on their way.
    pub open: AtomicUsize,
    /// Those lost since it last went well.
    pub log: LossLog,
}

/// Characters of a collector's own words that are shown.
const SHOWN: usize = 200;
/// Bytes of an answer that are read.
const ANSWER: usize = 64 << 10;
/// Connections that are kept.
const IDLE: usize = 8;
/// The method of gRPC by which traces travel.
pub const GRPC_PATH: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
/// Answers of gRPC after which a client may try again, as OTLP has them.
const TRY_AGAIN: [&str; 7] = ["1", "4", "8", "10", "11", "14", "15"];

impl Collector {
    /// A way to the collector; the first connection is made for the first message.
    ///
    /// # Errors
    /// TLS cannot be set up.
    pub fn new(to: &Settings) -> Result<Collector, rustls::Error> {
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(tls(to.roots.as_ref())?)
            .https_or_http();
        let mut builder = Client::builder(TokioExecutor::new());
        builder
            .timer(TokioTimer::new())
            .pool_max_idle_per_host(IDLE)
            // One of gRPC that went silent is given up, or all messages would wait on it until the kernel does.
            .http2_keep_alive_interval(to.given.timeout_s.get() / 2)
            .http2_keep_alive_timeout(to.given.timeout_s.get() / 4);
        let client = match to.protocol {
            Protocol::Grpc => builder
                .http2_only(true)
                .build(connector.enable_http2().build()),
            Protocol::Http => builder.build(connector.enable_http1().build()),
        };
        let to = to.clone();
        Ok(Collector { to, client })
    }

    /// Sends a message, within the time limit.
    ///
    /// # Errors
    /// What became of it instead.
    pub async fn send(&self, message: Bytes) -> Result<(), Trouble> {
        let sent = tokio::time::timeout(self.limit(), self.exchange(message)).await;
        sent.unwrap_or_else(|_| Err(Trouble::no_answer(self.limit())))
    }

    /// The time limit on a message, all tries included.
    pub fn limit(&self) -> Duration {
        self.to.given.timeout_s.get()
    }

    async fn exchange(&self, message: Bytes) -> Result<(), Trouble> {
        let unreachable =
            |error: &(dyn Error + 'static)| Trouble::new(Dropped::Unreachable, &causes(error));
        let response = self.client.request(self.request(message)?).await;
        let (head, body) = response.map_err(|error| unreachable(&error))?.into_parts();
        let read = Limited::new(body, ANSWER).collect().await;
        let read = read.map_err(|error| unreachable(&*error))?;
        let refused = |status, words: &str| Trouble {
            status: Some(status),
            retry_after: head.headers.get(RETRY_AFTER).cloned(),
            ..Trouble::new(Dropped::Rejected, &format!("it answered {words}"))
        };
        // A call of gRPC that fails at once has its status on the head.
        let told = |name: &str| {
            let of = head.headers.get(name);
            let value = of.or_else(|| read.trailers()?.get(name))?;
            Some(String::from_utf8_lossy(value.as_bytes()).into_owned())
        };
        let grpc = told("grpc-status");
        match (self.to.protocol, grpc.as_deref()) {
            _ if !head.status.is_success() => {}
            (Protocol::Http, _) | (Protocol::Grpc, Some("0")) => return Ok(()),
            (Protocol::Grpc, status) => {
                let status = status.unwrap_or("none");
                let nearest = match TRY_AGAIN.contains(&status) {
                    true => StatusCode::SERVICE_UNAVAILABLE,
                    false => StatusCode::BAD_REQUEST,
                };
                let message = told("grpc-message").unwrap_or_default();
                return Err(refused(nearest, &format!("gRPC status {status} {message}")));
            }
        }
        let text = String::from_utf8_lossy(&read.to_bytes()).into_owned();
        Err(refused(head.status, &format!("{} {text}", head.status)))
    }

    fn request(&self, message: Bytes) -> Result<Request<Full<Bytes>>, Trouble> {
        let mut headers = HeaderMap::new();
        let (uri, kind, body) = match self.to.protocol {
            Protocol::Http => (self.to.endpoint.clone(), "application/x-protobuf", message),
            Protocol::Grpc => {
                let mut framed = BytesMut::with_capacity(message.len() + 5);
                framed.put_u8(0);
                framed.put_u32(message.len() as u32);
                framed.put(message);
                headers.insert(TE, HeaderValue::from_static("trailers"));
                let uri = format!("{}{GRPC_PATH}", self.to.endpoint);
                (uri, "application/grpc", framed.freeze())
            }
        };
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        headers.extend(self.to.headers.0.clone());
        let request = Request::post(uri).body(Full::new(body));
        let mut request = request.map_err(|error| {
            let words = format!("no request can be made: {error}");
            Trouble::new(Dropped::Rejected, &words)
        })?;
        *request.headers_mut() = headers;
        Ok(request)
    }
}

impl Trouble {
    /// Time is over.
    pub(super) fn no_answer(after: Duration) -> Trouble {
        Trouble::new(Dropped::Timeout, &format!("no answer after {after:?}"))
    }

    pub(super) fn new(why: Dropped, words: &str) -> Trouble {
        let shown = words.chars().filter(|c| !c.is_control()).take(SHOWN);
        Trouble {
            why,
            words: shown.collect::<String>().trim_end().to_owned(),
            status: None,
            retry_after: None,
        }
    }
}

impl Deliveries {
    /// One is to be sent.
    pub fn begin(&self) {
        self.open.fetch_add(1, Ordering::Relaxed);
    }

    /// So many got there.
    pub fn sent(&self, many: usize) {
        self.open.fetch_sub(many, Ordering::Relaxed);
        self.sent.inc_by(many as u64);
        if let Some(lost) = self.log.recovered() {
            let Deliveries { what, target, .. } = self;
            log::warn!("{what}: {target} takes them again; {lost} were lost");
        }
    }

    /// So many are lost.
    pub fn lost(&self, why: Dropped, words: &str, many: usize) {
        self.open.fetch_sub(many, Ordering::Relaxed);
        self.lost.with(&[why.name()]).inc_by(many as u64);
        if self.log.lost(many) {
            let Deliveries { what, target, .. } = self;
            log::warn!("{what}: {target}: {words}; what does not get there is lost and counted");
        }
    }

    /// This is the end: those that have not got there by now are lost.
    pub fn end(&self) {
        let left = self.open.swap(0, Ordering::Relaxed);
        if left > 0 {
            let why = Dropped::Shutdown.name();
            self.lost.with(&[why]).inc_by(left as u64);
            log::warn!("{}: {left} still waited at the end and are lost", self.what);
        }
    }
}

/// TLS to a collector whose certificate these have signed; without any for one that is spoken to in the clear.
pub fn tls(roots: Option<&Roots>) -> Result<ClientConfig, rustls::Error> {
    let roots = roots.map_or_else(RootCertStore::empty, Roots::store);
    let provider = Arc::new(ring::default_provider());
    Ok(ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth())
}

/// An error and what caused it, in words.
pub fn causes(error: &(dyn Error + 'static)) -> String {
    let mut words = error.to_string();
    let mut next = error.source();
    while let Some(error) = next {
        let cause = error.to_string();
        if !words.contains(&cause) {
            words = format!("{words}: {cause}");
        }
        next = error.source();
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::values::Seconds;
    use crate::telemetry::otlp::settings::Otlp;
    use tokio::net::{TcpListener, TcpStream};

    /// Answers the first message of a connection, and takes in no more of it.
    async fn answer_once(stream: TcpStream) {
        let mut connection = h2::server::handshake(stream).await.unwrap();
        let (_, mut respond) = connection.accept().await.unwrap().unwrap();
        let head = http::Response::builder().header("grpc-status", "0");
        respond.send_response(head.body(()).unwrap(), true).unwrap();
        let silent = tokio::time::timeout(Duration::from_millis(100), connection.accept());
        let _ = silent.await;
        std::mem::forget(connection);
    }

    #[tokio::test]
    async fn a_collector_that_went_silent_is_connected_to_anew() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let given = Otlp {
            endpoint: Some(format!("http://{}", listener.local_addr().unwrap())),
            protocol: Some(Protocol::Grpc),
            timeout_s: Seconds::of::<5>(),
            ..Otlp::default()
        };
        let resolved = Settings::resolve(&given, "t", &|_| None).unwrap();
        let collector = Collector::new(&resolved.unwrap()).unwrap();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(answer_once(stream));
            }
        });
        assert_eq!(collector.send(Bytes::new()).await, Ok(()));
        let mut again = Vec::new();
        while again.len() < 10 && !again.contains(&Ok(())) {
            again.push(collector.send(Bytes::new()).await);
        }
        assert!(again.contains(&Ok(())), "{again:?}");
    }
}
