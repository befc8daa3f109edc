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
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tonic::codegen::Service as _;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Status};

use super::listening::Listening;

/// What the collector does with an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mood {
    /// Takes it.
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

#[derive(Clone)]
struct Store(Arc<Mutex<Inner>>);

struct Inner {
    mood: Mood,
    spans: Vec<Span>,
    /// Each export as it came.
    exports: Vec<ExportTraceServiceRequest>,
    /// Headers of each export.
    headers: Vec<http::HeaderMap>,
}

pub const SERVER: i32 = 2;
pub const CLIENT: i32 = 3;
pub const INTERNAL: i32 = 1;

impl Collector {
    pub async fn start() -> Collector {
        let inner = Inner {
            mood: Mood::Takes,
            spans: Vec::new(),
            exports: Vec::new(),
            headers: Vec::new(),
        };
        let store = Store(Arc::new(Mutex::new(inner)));
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
        self.store.0.lock().unwrap().spans.clone()
    }

    /// All exports so far, whole.
    pub fn exports(&self) -> Vec<ExportTraceServiceRequest> {
        self.store.0.lock().unwrap().exports.clone()
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
        Some(
            inner
                .headers
                .last()?
                .get(name)?
                .to_str()
                .unwrap()
                .to_owned(),
        )
    }
}

#[tonic::async_trait]
impl TraceService for Store {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<tonic::Response<ExportTraceServiceResponse>, Status> {
        let mood = self.0.lock().unwrap().mood;
        match mood {
            Mood::Takes => {}
            Mood::Refuses => return Err(Status::invalid_argument("not today")),
            Mood::Busy => return Err(Status::unavailable("not now")),
            Mood::Holds => std::future::pending().await,
        }
        let (metadata, _, request) = request.into_parts();
        let mut inner = self.0.lock().unwrap();
        inner.exports.push(request.clone());
        inner.headers.push(metadata.into_headers());
        for of_resource in request.resource_spans {
            let resource = of_resource
                .resource
                .map(|resource| attributes(resource.attributes));
            let service = resource.and_then(|resource| resource.get("service.name").cloned());
            let spans = of_resource
                .scope_spans
                .into_iter()
                .flat_map(|scope| scope.spans);
            inner
                .spans
                .extend(spans.map(|span| Span::of(span, service.clone().unwrap_or_default())));
        }
        Ok(tonic::Response::new(ExportTraceServiceResponse::default()))
    }
}

/// The body of an export by HTTP is the message of one by gRPC.
async fn by_path(
    request: http::Request<hyper::body::Incoming>,
    store: Store,
) -> Result<http::Response<Full<Bytes>>, Infallible> {
    let answer = |status| {
        Ok(http::Response::builder()
            .status(status)
            .body(Full::default())
            .unwrap())
    };
    let (head, body) = request.into_parts();
    if head.uri.path() != "/v1/traces" || head.headers["content-type"] != "application/x-protobuf" {
        return answer(404);
    }
    let body = body.collect().await.unwrap().to_bytes();
    let mut framed = vec![0];
    framed.extend((body.len() as u32).to_be_bytes());
    framed.extend(&body);
    let mut request = http::Request::new(tonic::body::Body::new(Full::new(Bytes::from(framed))));
    *request.method_mut() = http::Method::POST;
    *request.uri_mut() = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
        .parse()
        .unwrap();
    *request.headers_mut() = head.headers;
    let kind = http::HeaderValue::from_static("application/grpc");
    request.headers_mut().insert("content-type", kind);
    let response = TraceServiceServer::new(store).call(request).await.unwrap();
    let status = response.headers().get("grpc-status");
    answer(match status.map(http::HeaderValue::as_bytes) {
        None | Some(b"0") => 200,
        Some(b"14") => 503,
        Some(_) => 400,
    })
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

    pub fn seconds(&self) -> f64 {
        (self.end - self.start) as f64 / 1e9
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
