//! Exports spans to a collector and returns why an export failed.

use std::io;
use std::sync::Arc;

use async_trait::async_trait;
use http::header::RETRY_AFTER;
use http::{Request, Response};
use opentelemetry::KeyValue;
use opentelemetry_http::{Bytes, HttpClient, HttpError};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SpanData, SpanExporter as _};
use parking_lot::Mutex;

use crate::telemetry::prometheus::Dropped;

use super::collector::{Collector, ExportError};
use super::settings::Settings;

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

impl Exporter {
    /// Creates an exporter. It connects for the first export. `instance` identifies this process.
    ///
    /// # Errors
    /// The library cannot make one, or TLS cannot be set up.
    pub fn new(settings: &Settings, instance: String) -> io::Result<Exporter> {
        let client = CollectorClient {
            collector: Collector::new(settings)?,
            last_error: Arc::default(),
        };
        let builder = SpanExporter::builder()
            .with_http()
            .with_http_client(client.clone())
            .with_protocol(Protocol::HttpBinary)
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
        let timeout = self.client.collector.timeout();
        let sent = tokio::time::timeout(timeout, self.inner.export(spans)).await;
        let last_error = self.client.last_error.lock().take();
        match (sent, last_error) {
            (Ok(Ok(())), None) => Ok(()),
            (_, Some(error)) => Err(error),
            (Ok(Err(error)), None) => Err(ExportError::new(Dropped::Rejected, &error.to_string())),
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
