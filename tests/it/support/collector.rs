//! A collector of traces in the test's own process: OTLP by gRPC and by HTTP on one store. It does with an export what it
//! is told.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::trace::v1;
use prost::Message;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Status};

use super::listening::Listening;

/// What the collector does with an export.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mood {
    /// Takes it.
    #[default]
    Takes,
    /// Answers an error that sending again does not help.
    Refuses,
    /// Answers that it may be sent again.
    Busy,
    /// Never answers.
    Holds,
}

/// A span as it came.
#[derive(Clone, Debug)]
pub struct Span {
    pub trace: String,
    pub id: String,
    /// Empty of a root.
    pub parent: String,
    pub name: String,
    pub kind: i32,
    /// Nanoseconds since 1970.
    pub start: u64,
    pub end: u64,
    pub attributes: BTreeMap<String, String>,
    pub is_error: bool,
    /// What is said of the status.
    pub message: String,
    /// `service.name`.
    pub service: String,
}

/// A running collector. It ends when dropped.
pub struct Collector {
    pub grpc: SocketAddr,
    pub http: SocketAddr,
    store: Store,
    _serving: JoinSet<()>,
    _listening: Listening,
}

#[derive(Clone, Default)]
struct Store(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    mood: Mood,
    /// Each export as it came, with its headers.
    exports: Vec<(http::HeaderMap, ExportTraceServiceRequest)>,
}

pub const SERVER: i32 = 2;
pub const CLIENT: i32 = 3;
pub const INTERNAL: i32 = 1;

impl Collector {
    pub async fn start() -> Collector {
        let store = Store::default();
        let mut serving = JoinSet::new();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let grpc = listener.local_addr().unwrap();
        let service = TraceServiceServer::new(store.clone());
        serving.spawn(async move {
            let server = tonic::transport::Server::builder();
            server
                .serve_with_incoming(service, TcpIncoming::from(listener))
                .await
                .unwrap();
        });
        let by_http = store.clone();
        let listening = Listening::start(move |_, stream| {
            let store = by_http.clone();
            let service = service_fn(move |request| by_path(request, store.clone()));
            let connection = hyper::server::conn::http1::Builder::new();
            let connection = connection.serve_connection(TokioIo::new(stream), service);
            async move { drop(connection.await) }
        });
        let listening = listening.await;
        Collector {
            grpc,
            http: listening.addr,
            store,
            _serving: serving,
            _listening: listening,
        }
    }

    /// How it is with exports from now on.
    pub fn set(&self, mood: Mood) {
        self.store.0.lock().unwrap().mood = mood;
    }

    /// All spans so far.
    pub fn spans(&self) -> Vec<Span> {
        let exports = self.exports().into_iter();
        let resources = exports.flat_map(|export| export.resource_spans);
        resources.flat_map(spans_of).collect()
    }

    /// All exports so far, whole.
    pub fn exports(&self) -> Vec<ExportTraceServiceRequest> {
        let inner = self.store.0.lock().unwrap();
        inner
            .exports
            .iter()
            .map(|(_, export)| export.clone())
            .collect()
    }

    /// How many requests' traces there are.
    pub fn traces(&self) -> usize {
        let spans = self.spans();
        let traces: std::collections::BTreeSet<_> = spans.iter().map(|span| &span.trace).collect();
        traces.len()
    }

    /// A header of the last export.
    pub fn header(&self, name: &str) -> Option<String> {
        let inner = self.store.0.lock().unwrap();
        let (headers, _) = inner.exports.last()?;
        Some(headers.get(name)?.to_str().unwrap().to_owned())
    }
}

#[tonic::async_trait]
impl TraceService for Store {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<tonic::Response<ExportTraceServiceResponse>, Status> {
        let (metadata, _, export) = request.into_parts();
        self.take(metadata.into_headers(), export).await?;
        Ok(tonic::Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Store {
    async fn take(
        &self,
        headers: http::HeaderMap,
        export: ExportTraceServiceRequest,
    ) -> Result<(), Status> {
        let mood = self.0.lock().unwrap().mood;
        match mood {
            Mood::Takes => self.0.lock().unwrap().exports.push((headers, export)),
            Mood::Refuses => return Err(Status::invalid_argument("not today")),
            Mood::Busy => return Err(Status::unavailable("not now")),
            Mood::Holds => std::future::pending().await,
        }
        Ok(())
    }
}

/// An export by HTTP.
async fn by_path(
    request: http::Request<hyper::body::Incoming>,
    store: Store,
) -> Result<http::Response<Full<Bytes>>, Infallible> {
    let (head, body) = request.into_parts();
    let is_export =
        head.uri.path() == "/v1/traces" && head.headers["content-type"] == "application/x-protobuf";
    let body = body.collect().await.unwrap().to_bytes();
    let taken = match is_export {
        true => {
            store
                .take(head.headers, Message::decode(body).unwrap())
                .await
        }
        false => Err(Status::unimplemented("")),
    };
    let mut answer = http::Response::new(Full::default());
    *answer.status_mut() = match taken.map_err(|status| status.code()) {
        Ok(()) => http::StatusCode::OK,
        Err(tonic::Code::Unavailable) => http::StatusCode::SERVICE_UNAVAILABLE,
        Err(tonic::Code::Unimplemented) => http::StatusCode::NOT_FOUND,
        Err(_) => http::StatusCode::BAD_REQUEST,
    };
    Ok(answer)
}

fn spans_of(of_resource: v1::ResourceSpans) -> Vec<Span> {
    let resource = of_resource.resource.unwrap_or_default();
    let service = attributes(resource.attributes).remove("service.name");
    let service = service.unwrap_or_default();
    let spans = of_resource
        .scope_spans
        .into_iter()
        .flat_map(|scope| scope.spans);
    spans.map(|span| Span::of(span, service.clone())).collect()
}

impl Span {
    fn of(span: v1::Span, service: String) -> Span {
        Span {
            trace: hex(&span.trace_id),
            id: hex(&span.span_id),
            parent: hex(&span.parent_span_id),
            name: span.name,
            kind: span.kind,
            start: span.start_time_unix_nano,
            end: span.end_time_unix_nano,
            attributes: attributes(span.attributes),
            is_error: span.status.as_ref().is_some_and(|status| status.code == 2),
            message: span.status.unwrap_or_default().message,
            service,
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn attributes(all: Vec<KeyValue>) -> BTreeMap<String, String> {
    let text = |value: Option<AnyValue>| match value.and_then(|value| value.value) {
        Some(Value::StringValue(text)) => text,
        Some(Value::BoolValue(true)) => "True".into(),
        Some(Value::BoolValue(false)) => "False".into(),
        Some(Value::IntValue(number)) => number.to_string(),
        Some(Value::DoubleValue(number)) => number.to_string(),
        other => panic!("{other:?}"),
    };
    all.into_iter()
        .map(|pair| (pair.key, text(pair.value)))
        .collect()
}

/// The one span with this name and kind.
pub fn one<'a>(spans: &'a [Span], name: &str, kind: i32) -> &'a Span {
    let mut all = spans
        .iter()
        .filter(|span| span.name == name && span.kind == kind);
    let found = all
        .next()
        .unwrap_or_else(|| panic!("no {name}: {spans:#?}"));
    assert!(all.next().is_none(), "several {name}: {spans:#?}");
    found
}
