//! A collector of traces in the test's own process, which takes OTLP by gRPC and by HTTP at one address. It does with an export what
//! it is told.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::request::Parts;
use http_body_util::{BodyExt, Full};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::trace::v1;
use prost::Message;

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
    /// The same, then takes it.
    BusyOnce,
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
    _listening: Listening,
}

type Store = Arc<Mutex<Inner>>;

#[derive(Default)]
struct Inner {
    mood: Mood,
    exports: Vec<(Parts, Bytes)>,
}

pub const SERVER: i32 = 2;
pub const CLIENT: i32 = 3;
pub const INTERNAL: i32 = 1;
/// What gRPC calls an export.
pub const EXPORT: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";

impl Collector {
    pub async fn start() -> Collector {
        let store = Store::default();
        let own = store.clone();
        let listening = Listening::start(move |_, stream| {
            let store = own.clone();
            let service = service_fn(move |request| answer(request, store.clone()));
            async move {
                let server = auto::Builder::new(TokioExecutor::new());
                drop(server.serve_connection(TokioIo::new(stream), service).await);
            }
        });
        let listening = listening.await;
        Collector {
            grpc: listening.addr,
            http: listening.addr,
            store,
            _listening: listening,
        }
    }

    /// How it is with exports from now on.
    pub fn set(&self, mood: Mood) {
        self.store.lock().unwrap().mood = mood;
    }

    /// All spans so far.
    pub fn spans(&self) -> Vec<Span> {
        let exports = self.exports().into_iter();
        let resources = exports.flat_map(|export| export.resource_spans);
        resources.flat_map(spans_of).collect()
    }

    /// All exports so far, with their heads and as they came: by gRPC in a frame.
    pub fn came(&self) -> Vec<(Parts, Bytes)> {
        self.store.lock().unwrap().exports.clone()
    }

    /// All exports so far, whole.
    pub fn exports(&self) -> Vec<ExportTraceServiceRequest> {
        let message = |(head, body): (Parts, Bytes)| match head.uri.path() {
            EXPORT => body.slice(5..),
            _ => body,
        };
        let messages = self.came().into_iter().map(message);
        messages
            .map(|bytes| Message::decode(bytes).unwrap())
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
        let (head, _) = self.came().pop()?;
        Some(head.headers.get(name)?.to_str().unwrap().to_owned())
    }
}

async fn answer(
    request: http::Request<hyper::body::Incoming>,
    store: Store,
) -> Result<http::Response<impl hyper::body::Body<Data = Bytes, Error = Infallible>>, Infallible> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let (is_grpc, kind) = (head.uri.path() == EXPORT, &head.headers["content-type"]);
    let is_export = is_grpc || head.uri.path() == "/v1/traces" && kind == "application/x-protobuf";
    let mood = store.lock().unwrap().mood;
    if mood == Mood::BusyOnce {
        store.lock().unwrap().mood = Mood::Takes;
    }
    // As HTTP and as gRPC say it.
    let (status, code) = match mood {
        _ if !is_export => (404, "12"),
        Mood::Takes => (200, "0"),
        Mood::Refuses => (400, "3"),
        Mood::Busy | Mood::BusyOnce => (503, "14"),
        Mood::Holds => std::future::pending().await,
    };
    if status == 200 {
        store.lock().unwrap().exports.push((head, body));
    }
    let (status, frame, trailers) = match is_grpc {
        true => {
            let code = ("grpc-status".parse().unwrap(), code.parse().unwrap());
            (200, &[0; 5][..], Some(Ok([code].into_iter().collect())))
        }
        false => (status, &[][..], None),
    };
    let body = Full::new(Bytes::from_static(frame));
    let mut answer = http::Response::new(body.with_trailers(std::future::ready(trailers)));
    *answer.status_mut() = status.try_into().unwrap();
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

pub fn hex(bytes: &[u8]) -> String {
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
