//! Sends spans to a collector, and says what became of them.

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

use super::Error;
use super::collector::{Collector, Trouble};
use super::settings::Settings;

/// Makes messages of spans and sends them, a few times over where that helps, within a Tokio runtime.
#[derive(Debug)]
pub struct Exporter {
    inner: SpanExporter,
    way: Way,
}

/// What the library takes for its HTTP client: the way that messages go, by gRPC too.
#[derive(Clone, Debug)]
struct Way {
    collector: Collector,
    /// What it last met, which the library keeps to itself.
    met: Arc<Mutex<Option<Trouble>>>,
}

impl Exporter {
    /// A way to the collector; the first connection is made with the first export. `instance` tells this process from
    /// others.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn new(settings: &Settings, instance: String) -> Result<Exporter, Error> {
        let way = Way {
            collector: Collector::new(settings)?,
            met: Arc::default(),
        };
        let builder = SpanExporter::builder()
            .with_http()
            .with_http_client(way.clone())
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(&settings.endpoint)
            .with_timeout(settings.given.timeout_s.get());
        let mut inner = builder.build()?;
        // The SDK reads OTEL_RESOURCE_ATTRIBUTES.
        let resource = Resource::builder()
            .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
            .with_attribute(KeyValue::new("service.instance.id", instance))
            .with_service_name(settings.service_name.clone())
            .build();
        inner.set_resource(&resource);
        Ok(Exporter { inner, way })
    }

    /// Sends spans.
    ///
    /// # Errors
    /// What became of them instead.
    pub async fn export(&self, spans: Vec<SpanData>) -> Result<(), Trouble> {
        self.way.met.lock().take();
        let limit = self.way.collector.limit();
        let sent = tokio::time::timeout(limit, self.inner.export(spans)).await;
        let met = self.way.met.lock().take();
        match (sent, met) {
            (Ok(Ok(())), None) => Ok(()),
            (_, Some(trouble)) => Err(trouble),
            (Ok(Err(error)), None) => Err(Trouble::new(Dropped::Rejected, &error.to_string())),
            (Err(_), None) => Err(Trouble::no_answer(limit)),
        }
    }
}

#[async_trait]
impl HttpClient for Way {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let sent = self.collector.send(request.into_body()).await;
        *self.met.lock() = sent.clone().err();
        let mut response = Response::new(Bytes::new());
        if let Err(trouble) = sent {
            *response.status_mut() = trouble.status.ok_or(trouble.words)?;
            let later = trouble.retry_after.map(|at| (RETRY_AFTER, at));
            response.headers_mut().extend(later);
        }
        Ok(response)
    }
}
