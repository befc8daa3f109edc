//! Sends spans to a collector, and says what became of them.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use http::{Request, Response};
use hyper_rustls::HttpsConnectorBuilder;
use opentelemetry::KeyValue;
use opentelemetry_http::hyper::HyperClient;
use opentelemetry_http::{Bytes, HttpClient, HttpError};
use opentelemetry_otlp::tonic_types::metadata::MetadataMap;
use opentelemetry_otlp::tonic_types::transport::ClientTlsConfig;
use opentelemetry_otlp::{
    ExporterBuildError, SpanExporter, WithExportConfig, WithHttpConfig, WithTonicConfig,
};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SpanData, SpanExporter as _};
use parking_lot::Mutex;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore};

use crate::telemetry::prometheus::Dropped;
use crate::trust::Roots;

use super::settings::{Headers, Protocol, Settings};

/// A way to a collector. Made and used within a Tokio runtime.
#[derive(Debug)]
pub struct Exporter {
    inner: SpanExporter,
    timeout: Duration,
    /// What the way over HTTP last met, which the library keeps to itself.
    met: Arc<Mutex<Option<Trouble>>>,
}

/// Why spans did not get there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// As it is counted.
    pub why: Dropped,
    /// In words.
    pub words: String,
}

/// Why no way to a collector could be made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The library refused it.
    #[error("traces cannot be exported: {0}")]
    Build(#[from] ExporterBuildError),
    /// TLS cannot be set up.
    #[error("traces cannot be exported over TLS: {0}")]
    Tls(#[from] rustls::Error),
}

/// Sends an export over HTTP, with our headers and TLS.
#[derive(Debug)]
struct Client<C> {
    inner: C,
    headers: Headers,
    met: Arc<Mutex<Option<Trouble>>>,
}

/// Beyond the exporter's own limit, in case it does not keep it.
const LATER: Duration = Duration::from_secs(1);
/// Characters of a collector's own words that are shown.
const SHOWN: usize = 200;

impl Exporter {
    /// A way to the collector; the first connection is made with the first export. `instance` tells this process from
    /// others.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn new(settings: &Settings, instance: String) -> Result<Exporter, Error> {
        let met = Arc::new(Mutex::new(None));
        let mut inner = match settings.protocol {
            Protocol::Grpc => grpc(settings)?,
            Protocol::Http => http(settings, met.clone())?,
        };
        // The SDK reads OTEL_RESOURCE_ATTRIBUTES.
        let resource = Resource::builder()
            .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
            .with_attribute(KeyValue::new("service.instance.id", instance))
            .with_service_name(settings.service_name.clone())
            .build();
        inner.set_resource(&resource);
        Ok(Exporter {
            inner,
            timeout: settings.timeout + LATER,
            met,
        })
    }

    /// Sends spans, a few times over where that helps, within the time limit.
    ///
    /// # Errors
    /// What became of them instead.
    pub async fn export(&self, spans: Vec<SpanData>) -> Result<(), Trouble> {
        self.met.lock().take();
        let sent = tokio::time::timeout(self.timeout, self.inner.export(spans)).await;
        let met = self.met.lock().take();
        match (sent, met) {
            (Ok(Ok(())), None) => Ok(()),
            (_, Some(trouble)) => Err(trouble),
            (Ok(Err(error)), None) => Err(of_grpc(&error.to_string())),
            (Err(_), None) => Err(Trouble {
                why: Dropped::Timeout,
                words: format!("no answer after {:?}", self.timeout),
            }),
        }
    }
}

fn grpc(settings: &Settings) -> Result<SpanExporter, Error> {
    // The library sends the headers of the environment too: they are replaced, or the collector would get both.
    let ours: http::HeaderMap = settings.headers.0.iter().cloned().collect();
    let ours = MetadataMap::from_headers(ours);
    let headers = move |mut request: tonic::Request<()>| -> Result<_, tonic::Status> {
        let mut all = std::mem::take(request.metadata_mut()).into_headers();
        all.extend(ours.clone().into_headers());
        *request.metadata_mut() = MetadataMap::from_headers(all);
        Ok(request)
    };
    let mut builder = SpanExporter::builder()
        .with_tonic()
        .with_endpoint(&settings.endpoint)
        .with_timeout(settings.timeout)
        .with_interceptor(headers);
    if let Some(roots) = &settings.roots {
        let roots = roots.store().roots;
        builder = builder.with_tls_config(ClientTlsConfig::new().trust_anchors(roots));
    }
    Ok(builder.build()?)
}

fn http(settings: &Settings, met: Arc<Mutex<Option<Trouble>>>) -> Result<SpanExporter, Error> {
    let connector = HttpsConnectorBuilder::new()
        .with_tls_config(tls(settings.roots.as_ref())?)
        .https_or_http()
        .enable_http1()
        .build();
    let client = Client {
        inner: HyperClient::new(connector, settings.timeout, None),
        headers: settings.headers.clone(),
        met,
    };
    let builder = SpanExporter::builder()
        .with_http()
        .with_http_client(client)
        .with_protocol(opentelemetry_otlp::Protocol::HttpBinary)
        .with_endpoint(&settings.endpoint)
        .with_timeout(settings.timeout);
    Ok(builder.build()?)
}

/// TLS to a collector whose certificate these have signed; without any for one that is spoken to in the clear.
///
/// # Errors
/// The library refuses its own defaults.
pub fn tls(roots: Option<&Roots>) -> Result<ClientConfig, rustls::Error> {
    let roots = roots.map_or_else(RootCertStore::empty, Roots::store);
    let provider = Arc::new(ring::default_provider());
    Ok(ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth())
}

#[async_trait]
impl<C: HttpClient> HttpClient for Client<C> {
    async fn send_bytes(&self, mut request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        for (name, value) in &self.headers.0 {
            request.headers_mut().insert(name.clone(), value.clone());
        }
        let answer = self.inner.send_bytes(request).await;
        *self.met.lock() = match &answer {
            Ok(response) => of_http(response),
            Err(error) => Some(Trouble {
                why: match error.downcast_ref::<tokio::time::error::Elapsed>() {
                    Some(_) => Dropped::Timeout,
                    None => Dropped::Unreachable,
                },
                words: causes(&**error),
            }),
        };
        answer
    }
}

fn of_http(response: &Response<Bytes>) -> Option<Trouble> {
    let status = response.status();
    if status.is_success() {
        return None;
    }
    let text = String::from_utf8_lossy(response.body());
    let text: String = text
        .chars()
        .filter(|c| !c.is_control())
        .take(SHOWN)
        .collect();
    Some(Trouble {
        why: Dropped::Rejected,
        words: format!("it answered {status} {text}").trim_end().to_owned(),
    })
}

/// The library tells what gRPC met in words alone.
fn of_grpc(error: &str) -> Trouble {
    let (_, words) = error.split_once("gRPC code: ").unwrap_or(("", error));
    let why = match words.split([':', ' ']).next() {
        Some("Unavailable") => Dropped::Unreachable,
        Some("DeadlineExceeded" | "Cancelled") => Dropped::Timeout,
        _ => Dropped::Rejected,
    };
    Trouble {
        why,
        words: words
            .chars()
            .filter(|c| !c.is_control())
            .take(SHOWN)
            .collect(),
    }
}

/// An error and what caused it, in words.
pub fn causes(error: &dyn std::error::Error) -> String {
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
