//! Exports spans, and sends OTLP messages (<https://github.com/open-telemetry/opentelemetry-proto>) to a collector, over gRPC or HTTP.

use std::error::Error;
use std::fmt::Display;
use std::io;
use std::iter::successors;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::{BufMut, Bytes, BytesMut};
use http::header::{CONTENT_TYPE, RETRY_AFTER, TE};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use opentelemetry::KeyValue;
use opentelemetry_http::{HttpClient, HttpError};
use opentelemetry_otlp::{SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SpanData, SpanExporter as _};
use parking_lot::Mutex;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::crypto::ring;

use crate::telemetry::prometheus::Dropped;

use super::settings::{ExportSettings, Protocol};

/// Encodes spans and sends them, with retries where they help, within a Tokio runtime.
#[derive(Debug)]
pub struct Exporter {
    inner: SpanExporter,
    client: CollectorClient,
}

/// The library's HTTP client, which also sends over gRPC.
#[derive(Clone, Debug)]
struct CollectorClient {
    collector: Collector,
    /// The last error, which the library does not pass on.
    last_error: Arc<Mutex<Option<ExportError>>>,
}

/// Sends messages within a Tokio runtime, without retries. Clones share their connections.
#[derive(Clone, Debug)]
pub struct Collector {
    settings: ExportSettings,
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
}

/// Why a message was not delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportError {
    /// The reason by which it is counted.
    pub reason: Dropped,
    /// The message for the log.
    pub message: String,
    /// The HTTP status of the response, if any; for gRPC the nearest one.
    status: Option<StatusCode>,
    /// The response's `Retry-After`.
    retry_after: Option<HeaderValue>,
}

/// The maximum length of an error message, characters: it may quote the collector.
const MAX_CHARS: usize = 200;
/// The maximum size of a response.
const MAX_RESPONSE_BYTES: usize = 64 << 10;
/// The maximum number of idle connections.
const MAX_IDLE_CONNECTIONS: usize = 8;
/// The path of OTLP's gRPC method for traces.
pub const GRPC_PATH: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
/// The gRPC statuses after which a client may retry, by the OTLP specification.
const RETRYABLE: [&str; 7] = ["1", "4", "8", "10", "11", "14", "15"];

impl Exporter {
    /// Creates an exporter. It connects for the first export. `instance` identifies this process.
    ///
    /// # Errors
    /// The library cannot make one, or TLS cannot be set up.
    pub fn new(settings: &ExportSettings, instance: String) -> io::Result<Exporter> {
        let client = CollectorClient {
            collector: Collector::new(settings)?,
            last_error: Arc::default(),
        };
        let builder = SpanExporter::builder()
            .with_http()
            .with_http_client(client.clone())
            .with_protocol(opentelemetry_otlp::Protocol::HttpBinary)
            .with_endpoint(&settings.endpoint)
            .with_timeout(settings.given.timeout_s.get());
        let mut inner = builder.build().map_err(io::Error::other)?;
        // The SDK adds OTEL_RESOURCE_ATTRIBUTES.
        let resource = Resource::builder()
            .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
            .with_attribute(KeyValue::new("service.instance.id", instance))
            .with_service_name(settings.service_name.clone())
            .build();
        inner.set_resource(&resource);
        Ok(Exporter { inner, client })
    }

    /// Sends spans.
    ///
    /// # Errors
    /// Why they were not exported.
    pub async fn export(&self, spans: Vec<SpanData>) -> Result<(), ExportError> {
        self.client.last_error.lock().take();
        let timeout = self.client.collector.settings.given.timeout_s.get();
        let sent = tokio::time::timeout(timeout, self.inner.export(spans)).await;
        let last_error = self.client.last_error.lock().take();
        match (sent, last_error) {
            (Ok(Ok(())), None) => Ok(()),
            (_, Some(error)) => Err(error),
            (Ok(Err(error)), None) => Err(ExportError::new(Dropped::Rejected, error)),
            (Err(_), None) => Err(ExportError::timeout(timeout)),
        }
    }
}

#[async_trait]
impl HttpClient for CollectorClient {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let sent = self.collector.send(request.into_body()).await;
        *self.last_error.lock() = sent.clone().err();
        let mut response = Response::new(Bytes::new());
        if let Err(error) = sent {
            *response.status_mut() = error.status.ok_or(error.message)?;
            let retry_after = error.retry_after.map(|after| (RETRY_AFTER, after));
            response.headers_mut().extend(retry_after);
        }
        Ok(response)
    }
}

impl Collector {
    /// Creates a client. It connects for the first message.
    ///
    /// # Errors
    /// TLS cannot be set up.
    pub fn new(settings: &ExportSettings) -> io::Result<Collector> {
        let tls = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            .with_root_certificates(settings.roots.clone())
            .with_no_client_auth();
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(tls)
            .https_or_http();
        let mut builder = Client::builder(TokioExecutor::new());
        builder
            .timer(TokioTimer::new())
            .pool_max_idle_per_host(MAX_IDLE_CONNECTIONS)
            // Closes a gRPC connection that went silent. Otherwise all messages would wait for the kernel to do so.
            .http2_keep_alive_interval(settings.given.timeout_s.get() / 2)
            .http2_keep_alive_timeout(settings.given.timeout_s.get() / 4);
        let client = match settings.protocol {
            Protocol::Grpc => builder
                .http2_only(true)
                .build(connector.enable_http2().build()),
            Protocol::Http => builder.build(connector.enable_http1().build()),
        };
        let settings = settings.clone();
        Ok(Collector { settings, client })
    }

    /// Sends a message, within the timeout.
    ///
    /// # Errors
    /// Why it was not delivered.
    pub async fn send(&self, message: Bytes) -> Result<(), ExportError> {
        let timeout = self.settings.given.timeout_s.get();
        let sent = tokio::time::timeout(timeout, self.exchange(message)).await;
        sent.unwrap_or_else(|_| Err(ExportError::timeout(timeout)))
    }

    async fn exchange(&self, message: Bytes) -> Result<(), ExportError> {
        let unreachable = |error: &(dyn Error + 'static)| {
            ExportError::new(Dropped::Unreachable, error_with_causes(error))
        };
        let response = self.client.request(self.request(message)?).await;
        let (head, body) = response.map_err(|error| unreachable(&error))?.into_parts();
        let read = Limited::new(body, MAX_RESPONSE_BYTES).collect().await;
        let read = read.map_err(|error| unreachable(&*error))?;
        // A gRPC call that fails at once has its status in the headers, not in the trailers.
        let header = |name: &str| {
            let value = head.headers.get(name);
            let value = value.or_else(|| read.trailers()?.get(name))?;
            Some(String::from_utf8_lossy(value.as_bytes()).into_owned())
        };
        let grpc = header("grpc-status");
        let (status, answer) = match (self.settings.protocol, grpc.as_deref()) {
            _ if !head.status.is_success() => {
                let text = String::from_utf8_lossy(&read.to_bytes()).into_owned();
                (head.status, format!("{} {text}", head.status))
            }
            (Protocol::Http, _) | (Protocol::Grpc, Some("0")) => return Ok(()),
            (Protocol::Grpc, status) => {
                let status = status.unwrap_or("none");
                let nearest = match RETRYABLE.contains(&status) {
                    true => StatusCode::SERVICE_UNAVAILABLE,
                    false => StatusCode::BAD_REQUEST,
                };
                let message = header("grpc-message").unwrap_or_default();
                (nearest, format!("gRPC status {status} {message}"))
            }
        };
        Err(ExportError {
            status: Some(status),
            retry_after: head.headers.get(RETRY_AFTER).cloned(),
            ..ExportError::new(Dropped::Rejected, format_args!("it answered {answer}"))
        })
    }

    fn request(&self, message: Bytes) -> Result<Request<Full<Bytes>>, ExportError> {
        let mut headers = HeaderMap::new();
        let endpoint = &self.settings.endpoint;
        let (uri, kind, body) = match self.settings.protocol {
            Protocol::Http => (endpoint.clone(), "application/x-protobuf", message),
            Protocol::Grpc => {
                let mut framed = BytesMut::with_capacity(message.len() + 5);
                framed.put_u8(0);
                framed.put_u32(message.len() as u32);
                framed.put(message);
                headers.insert(TE, HeaderValue::from_static("trailers"));
                let uri = format!("{endpoint}{GRPC_PATH}");
                (uri, "application/grpc", framed.freeze())
            }
        };
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        headers.extend(self.settings.headers.clone());
        let request = Request::post(uri).body(Full::new(body));
        let mut request = request.map_err(|error| {
            let message = format_args!("no request can be made: {error}");
            ExportError::new(Dropped::Rejected, message)
        })?;
        *request.headers_mut() = headers;
        Ok(request)
    }
}

impl ExportError {
    fn timeout(after: Duration) -> ExportError {
        ExportError::new(Dropped::Timeout, format_args!("no answer after {after:?}"))
    }

    fn new(reason: Dropped, message: impl Display) -> ExportError {
        let message = message.to_string();
        let shown = message.chars().filter(|c| !c.is_control()).take(MAX_CHARS);
        ExportError {
            reason,
            message: shown.collect::<String>().trim_end().to_owned(),
            status: None,
            retry_after: None,
        }
    }
}

/// Returns the messages of an error and of its causes.
pub fn error_with_causes(error: &(dyn Error + 'static)) -> String {
    let causes = successors(error.source(), |cause| (**cause).source()).map(ToString::to_string);
    causes.fold(error.to_string(), |message, cause| {
        match message.contains(&cause) {
            true => message,
            false => format!("{message}: {cause}"),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::values::Seconds;
    use crate::telemetry::otlp::settings::tests::{at, of};
    use tokio::net::{TcpListener, TcpStream};

    /// Answers the first message of a connection, then goes silent.
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
    async fn a_silent_connection_is_replaced() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut given = at(&format!("http://{}", listener.local_addr().unwrap()));
        given.protocol = Some(Protocol::Grpc);
        given.timeout_s = Seconds::of::<5>();
        let collector = Collector::new(&of(&given, "")).unwrap();
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
