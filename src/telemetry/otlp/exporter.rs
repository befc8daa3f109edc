//! Exports spans, and sends OTLP messages (<https://github.com/open-telemetry/opentelemetry-proto>) to a collector, over gRPC or HTTP.

use std::error::Error;
use std::io;
use std::iter::successors;
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use http::header::{CONTENT_TYPE, TE};
use http::{HeaderValue, Method, Request, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use opentelemetry::KeyValue;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::transform::common::tonic::ResourceAttributesWithSchema;
use opentelemetry_proto::transform::trace::tonic::group_spans_by_resource_and_scope;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SpanData;
use prost::Message;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::crypto::ring;

use crate::telemetry::prometheus::Dropped;

use super::settings::{Protocol, Settings};

/// Encodes spans and sends them, with retries where they help, within a Tokio runtime.
#[derive(Debug)]
pub struct Exporter {
    collector: Collector,
    resource: ResourceAttributesWithSchema,
}

/// Sends messages within a Tokio runtime, without retries.
#[derive(Debug)]
pub struct Collector {
    settings: Settings,
    uri: Uri,
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
}

/// Why a message was not delivered.
#[derive(Debug, PartialEq, Eq)]
pub struct ExportError {
    /// The reason by which it is counted.
    pub reason: Dropped,
    /// The message for the log.
    pub message: String,
    /// How long to wait at least before it is sent again; `None` if that does not help.
    retry_after: Option<Duration>,
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
/// The pause before the second try, and before the last one. Each is twice as long as the one before.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LAST_PAUSE: Duration = Duration::from_millis(400);

impl Exporter {
    /// Creates an exporter. It connects for the first export. `instance` identifies this process.
    ///
    /// # Errors
    /// See [`Collector::new`].
    pub fn new(settings: &Settings, instance: String) -> io::Result<Exporter> {
        // The SDK adds OTEL_RESOURCE_ATTRIBUTES.
        let resource = Resource::builder()
            .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
            .with_attribute(KeyValue::new("service.instance.id", instance))
            .with_service_name(settings.service_name.clone())
            .build();
        Ok(Exporter {
            collector: Collector::new(settings)?,
            resource: (&resource).into(),
        })
    }

    /// Sends spans, within the timeout.
    ///
    /// # Errors
    /// Why they were not exported.
    pub async fn export(&self, spans: Vec<SpanData>) -> Result<(), ExportError> {
        let resource_spans = group_spans_by_resource_and_scope(spans, &self.resource);
        let message = Bytes::from(ExportTraceServiceRequest { resource_spans }.encode_to_vec());
        let timeout = self.collector.settings.given.timeout_s.get();
        let mut failure = ExportError::timeout(timeout);
        let sending = async {
            let mut pause = FIRST_PAUSE;
            while let Err(error) = self.collector.send(message.clone()).await {
                failure = error;
                let wait = failure.retry_after.filter(|wait| *wait < timeout)?;
                if pause > LAST_PAUSE {
                    return None;
                }
                // At random times, so that not all senders come again at once.
                let pausing = pause.mul_f64(rand::random_range(1.0..1.5));
                tokio::time::sleep(wait.max(pausing)).await;
                pause *= 2;
            }
            Some(())
        };
        let sent = tokio::time::timeout(timeout, sending).await;
        sent.ok().flatten().ok_or(failure)
    }
}

impl Collector {
    /// Creates a client. It connects for the first message.
    ///
    /// # Errors
    /// TLS cannot be set up, or the endpoint is no URL.
    pub fn new(settings: &Settings) -> io::Result<Collector> {
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
        let path = match settings.protocol {
            Protocol::Grpc => GRPC_PATH,
            Protocol::Http => "",
        };
        let uri = format!("{}{path}", settings.endpoint).parse();
        Ok(Collector {
            settings: settings.clone(),
            uri: uri.map_err(io::Error::other)?,
            client,
        })
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
            ExportError::new(Dropped::Unreachable, &error_with_causes(error))
        };
        let response = self.client.request(self.request(message)).await;
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
        let seconds = header("retry-after").and_then(|text| text.trim().parse().ok());
        let (is_retryable, answer) = match (self.settings.protocol, grpc.as_deref()) {
            _ if !head.status.is_success() => {
                let is_retryable = matches!(head.status.as_u16(), 429 | 502..=504);
                let text = String::from_utf8_lossy(&read.to_bytes()).into_owned();
                (is_retryable, format!("{} {text}", head.status))
            }
            (Protocol::Http, _) | (Protocol::Grpc, Some("0")) => return Ok(()),
            (Protocol::Grpc, status) => {
                let status = status.unwrap_or("none");
                let message = header("grpc-message").unwrap_or_default();
                let answer = format!("gRPC status {status} {message}");
                (RETRYABLE.contains(&status), answer)
            }
        };
        Err(ExportError {
            retry_after: is_retryable.then(|| Duration::from_secs(seconds.unwrap_or(0))),
            ..ExportError::new(Dropped::Rejected, &format!("it answered {answer}"))
        })
    }

    fn request(&self, message: Bytes) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::default());
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.uri.clone();
        let headers = request.headers_mut();
        let (kind, body) = match self.settings.protocol {
            Protocol::Http => ("application/x-protobuf", message),
            Protocol::Grpc => {
                let mut framed = BytesMut::with_capacity(message.len() + 5);
                framed.put_u8(0);
                framed.put_u32(message.len() as u32);
                framed.put(message);
                headers.insert(TE, HeaderValue::from_static("trailers"));
                ("application/grpc", framed.freeze())
            }
        };
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        headers.extend(self.settings.headers.clone());
        *request.body_mut() = Full::new(body);
        request
    }
}

impl ExportError {
    fn timeout(after: Duration) -> ExportError {
        ExportError::new(Dropped::Timeout, &format!("no answer after {after:?}"))
    }

    fn new(reason: Dropped, message: &str) -> ExportError {
        let shown = message.chars().filter(|c| !c.is_control()).take(MAX_CHARS);
        ExportError {
            reason,
            message: shown.collect::<String>().trim_end().to_owned(),
            retry_after: (reason == Dropped::Unreachable).then_some(Duration::ZERO),
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
