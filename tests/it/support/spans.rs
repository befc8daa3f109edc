//! The recorded spans of a real SGLang 0.5.23 (`tests/data/sglang-0.5.23-otlp`), and messages of OTLP.

use std::path::{Path, PathBuf};

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::trace::v1::span::Event;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span, Status};
use prost::Message as _;
use serde_json::Value;

use super::files;

/// The spans of one recorded request, and what `meta_info` told of its sequences.
pub struct Case {
    /// Path below `tests/data/sglang-0.5.23-otlp`.
    pub name: String,
    /// As recorded, but for spans of tokens beyond the second.
    pub spans: Vec<Value>,
    pub meta_info: Vec<Value>,
}

/// Every case, in the order of names.
pub fn all() -> Vec<Case> {
    let mut files = files(&folder());
    files.retain(|file| file.ends_with("spans.jsonl"));
    assert!(files.len() > 35, "the recordings are there");
    let folders = files.iter().filter_map(|file| file.parent());
    folders.map(load).collect()
}

pub fn named(name: &str) -> Case {
    load(&folder().join(name))
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/sglang-0.5.23-otlp")
}

fn load(case: &Path) -> Case {
    let lines = |name: &str| {
        let text = std::fs::read_to_string(case.join(name)).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
        lines.collect()
    };
    Case {
        name: case.strip_prefix(folder()).unwrap().display().to_string(),
        spans: lines("spans.jsonl"),
        meta_info: lines("meta_info.jsonl"),
    }
}

/// A message with these spans, as a server sends them.
pub fn message(spans: &[Value]) -> Vec<u8> {
    let of_scope = ScopeSpans {
        spans: spans.iter().map(span).collect(),
        ..ScopeSpans::default()
    };
    let resource = ResourceSpans {
        scope_spans: vec![of_scope],
        ..ResourceSpans::default()
    };
    let resource_spans = vec![resource];
    ExportTraceServiceRequest { resource_spans }.encode_to_vec()
}

fn span(span: &Value) -> Span {
    let hex = |name: &str| {
        let text = span[name].as_str().unwrap();
        let pairs = (0..text.len()).step_by(2);
        let bytes = pairs.map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap());
        bytes.collect::<Vec<u8>>()
    };
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let number = |value: &Value| value.as_u64().unwrap();
    let events = span["events"].as_array().unwrap().iter();
    let events = events.map(|event| Event {
        time_unix_nano: number(&event["ns"]),
        name: text(&event["name"]),
        attributes: attributes(&event["attrs"]),
        ..Event::default()
    });
    let status = Status {
        code: number(&span["status"]["code"]) as i32,
        ..Status::default()
    };
    Span {
        trace_id: hex("trace_id"),
        span_id: hex("span_id"),
        parent_span_id: hex("parent"),
        flags: number(&span["flags"]) as u32,
        name: text(&span["name"]),
        kind: number(&span["kind"]) as i32,
        start_time_unix_nano: number(&span["start_ns"]),
        end_time_unix_nano: number(&span["end_ns"]),
        attributes: attributes(&span["attrs"]),
        events: events.collect(),
        status: Some(status),
        ..Span::default()
    }
}

fn attributes(all: &Value) -> Vec<KeyValue> {
    let value = |value: &Value| match value {
        Value::String(text) => Any::StringValue(text.clone()),
        Value::Bool(is) => Any::BoolValue(*is),
        Value::Number(n) if n.is_f64() => Any::DoubleValue(n.as_f64().unwrap()),
        Value::Number(n) => Any::IntValue(n.as_i64().unwrap()),
        other => panic!("{other}"),
    };
    let pairs = all.as_object().unwrap().iter();
    let pairs = pairs.map(|(key, of)| KeyValue {
        key: key.clone(),
        value: Some(AnyValue {
            value: Some(value(of)),
        }),
        ..KeyValue::default()
    });
    pairs.collect()
}
