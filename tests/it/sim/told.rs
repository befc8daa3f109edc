//! What the simulator tells outside of its responses: spans and log lines in the shapes of those recorded from a
//! real SGLang with `--enable-trace` and `--export-metrics-to-file`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::trace::v1;
use queuescope::clock::Clock;
use queuescope::sim::Sim;
use queuescope::sim::config::{Config, Telemetry};
use serde_json::{Value, json};

use super::shape;
use super::{START, fast, ms, sent, slow, until_load};
use crate::support::collector::{Collector, Mood, hex};
use crate::support::http::Connection;
use crate::support::wire::until;

/// A server that tells of one recorded request.
pub(super) struct Told {
    pub(super) sim: Sim,
    collector: Collector,
    folder: tempfile::TempDir,
}

/// A recorded case.
struct Case {
    folder: PathBuf,
    request: Value,
}

/// Values that follow from the request alone.
const SAME: [&str; 6] = [
    "module",
    "thread_label",
    "tp_rank",
    "pp_rank",
    "reason",
    "gen_ai.usage.completion_tokens",
];

/// What the real one tells beside it, and no join reads: what was asked of sampling and answered, and each batch.
fn is_left_out(name: &str) -> bool {
    let is_read = name.starts_with("gen_ai.usage.")
        || ["gen_ai.request.id", "gen_ai.latency.time_to_first_token"].contains(&name);
    name == "schedule" || (name.starts_with("gen_ai.") && !is_read)
}

impl Case {
    fn named(name: &str) -> Case {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/data/sglang-0.5.23-told")
            .join(name);
        let request = std::fs::read_to_string(folder.join("request.json")).unwrap();
        let request = serde_json::from_str(&request).unwrap();
        Case { folder, request }
    }

    fn lines(&self, file: &str) -> Vec<String> {
        let text = std::fs::read_to_string(self.folder.join(file)).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    fn spans(&self) -> Vec<Value> {
        let lines = self.lines("spans.jsonl");
        let spans = lines.iter().map(|line| serde_json::from_str(line).unwrap());
        // The simulator sends no span a token.
        spans
            .filter(|span: &Value| span["name"] != "decode_loop")
            .collect()
    }

    fn traceparent(&self) -> Option<&str> {
        self.request["headers"]["traceparent"].as_str()
    }

    /// Sends it as it was sent.
    async fn send(&self, sim: &Sim) -> Connection {
        let mut connection = Connection::open(sim.addr()).await;
        let parent = self.traceparent();
        let parent = parent.map(|parent| format!("traceparent: {parent}\r\n"));
        let parent = parent.unwrap_or_default();
        let body = self.request["body"].to_string();
        let path = self.request["path"].as_str().unwrap();
        let client = &mut connection.client;
        client.post(path, &parent, body.as_bytes()).await;
        connection
    }
}

impl Told {
    pub(super) async fn with(mut config: Config, clock: Clock) -> Told {
        let collector = Collector::start().await;
        let folder = tempfile::tempdir().unwrap();
        config.telemetry = Telemetry {
            enable_trace: true,
            otlp_traces_endpoint: collector.grpc.to_string(),
            export_metrics_to_file: true,
            export_metrics_to_file_dir: Some(folder.path().to_owned()),
        };
        Told {
            sim: Sim::start(config, clock).unwrap(),
            collector,
            folder,
        }
    }

    /// A server that has answered a case.
    async fn of(case: &Case) -> Told {
        let mut config = fast();
        config.model = "tiny-llama".to_owned();
        config.profile.tokenize_ms = 1.0;
        let told = Told::with(config, Clock::system()).await;
        case.send(&told.sim).await.response().await;
        told
    }

    pub(super) fn spans(&self) -> Vec<Value> {
        let exports = self.collector.exports().into_iter();
        let resources = exports.flat_map(|export| export.resource_spans);
        let mut spans = Vec::new();
        for scope in resources.flat_map(|resource| resource.scope_spans) {
            let name = scope.scope.unwrap_or_default().name;
            spans.extend(scope.spans.iter().map(|span| recorded(span, &name)));
        }
        spans
    }

    pub(super) async fn until_spans(&self, count: usize) -> Vec<Value> {
        until("the spans", || self.spans().len() >= count).await;
        self.spans()
    }

    pub(super) fn log(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for entry in std::fs::read_dir(self.folder.path()).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            let hour = name
                .strip_prefix("sglang-request-metrics-")
                .and_then(|rest| rest.strip_suffix(".log"))
                .unwrap();
            assert_eq!((hour.len(), hour.as_bytes()[8]), (11, b'_'), "{name}");
            let text = std::fs::read_to_string(path).unwrap();
            lines.extend(text.lines().map(str::to_owned));
        }
        lines
    }
}

/// A span as it would have been recorded.
fn recorded(span: &v1::Span, scope: &str) -> Value {
    let object = |pairs: &[KeyValue]| -> Value {
        let value = |pair: &KeyValue| match pair.value.clone().unwrap().value.unwrap() {
            Any::StringValue(text) => Value::from(text),
            Any::IntValue(number) => Value::from(number),
            Any::DoubleValue(number) => Value::from(number),
            other => panic!("{other:?}"),
        };
        let pairs = pairs.iter().map(|pair| (pair.key.clone(), value(pair)));
        pairs.collect()
    };
    let events = span.events.iter();
    let events = events.map(|one| json!({"name": one.name, "attrs": object(&one.attributes)}));
    let links = span.links.iter();
    let links = links.map(|link| json!({"span_id": hex(&link.span_id)}));
    json!({
        "name": span.name,
        "trace_id": hex(&span.trace_id),
        "span_id": hex(&span.span_id),
        "parent": hex(&span.parent_span_id),
        "kind": span.kind,
        "flags": span.flags,
        "status": {"code": span.status.as_ref().map_or(0, |status| status.code)},
        "scope": scope,
        "start_ns": span.start_time_unix_nano,
        "end_ns": span.end_time_unix_nano,
        "attrs": object(&span.attributes),
        "events": events.collect::<Vec<_>>(),
        "links": links.collect::<Vec<_>>(),
    })
}

/// The name without what differs from server to server and request to request.
pub(super) fn kind_of_name(span: &Value) -> &str {
    let name = span["name"].as_str().unwrap();
    match name.split_once(" Req ") {
        // Eight characters are the request's.
        Some((_, id)) if id.len() == 8 => name[..name.len() - 8].trim_end(),
        _ => name.split("(host:").next().unwrap().trim_end(),
    }
}

/// The span that another is part of, of those that are there.
pub(super) fn above<'a>(span: &Value, all: &'a [Value]) -> Option<&'a Value> {
    all.iter().find(|other| other["span_id"] == span["parent"])
}

/// What of spans must be alike: names, nesting, links, attributes and their types, and values that follow from the
/// request. How often each is there.
fn structure(spans: &[Value], parent: Option<&str>) -> BTreeMap<String, usize> {
    let remote = parent.and_then(|parent| parent.split('-').nth(2));
    let mut all = BTreeMap::new();
    for span in spans {
        let above = match (above(span, spans), span["parent"].as_str().unwrap()) {
            (Some(above), _) => kind_of_name(above),
            (None, "") => "nothing",
            (None, parent) if Some(parent) == remote => "what it came with",
            (None, _) => "what was never told",
        };
        let mut text = format!("{} < {above}", kind_of_name(span));
        for key in ["kind", "flags", "scope"] {
            write!(text, " {key} {}", span[key]).unwrap();
        }
        write!(text, " status {}", span["status"]["code"]).unwrap();
        let mut put = |pairs: &Value| {
            let pairs = pairs.as_object().unwrap().iter();
            for (key, value) in pairs.filter(|(key, _)| !is_left_out(key)) {
                match SAME.contains(&key.as_str()) {
                    true => write!(text, " {key}={value}").unwrap(),
                    false => write!(text, " {key}:{}", shape(&value.to_string())).unwrap(),
                }
            }
        };
        put(&span["attrs"]);
        for event in span["events"].as_array().unwrap() {
            let name = event["name"].as_str().unwrap();
            if !is_left_out(name) {
                put(&json!({ format!("event {name}"): null }));
                put(&event["attrs"]);
            }
        }
        for link in span["links"].as_array().unwrap() {
            let to = spans.iter().find(|span| span["span_id"] == link["span_id"]);
            write!(text, " links {}", kind_of_name(to.unwrap())).unwrap();
        }
        *all.entry(text).or_default() += 1;
    }
    all
}

fn same_structure(told: &[Value], case: &Case) {
    let recorded = case.spans();
    let parent = case.traceparent();
    assert_eq!(
        structure(told, parent),
        structure(&recorded, parent),
        "{}",
        case.folder.display()
    );
    for span in told.iter().chain(&recorded) {
        let trace = span["trace_id"].as_str().unwrap();
        assert!(match parent {
            Some(parent) => parent.contains(trace),
            // 64 bits, where the server makes it up.
            None => trace.starts_with(&"0".repeat(16)),
        });
    }
}

fn same_log(told: &Told, case: &Case) {
    let (ours, theirs) = (told.log(), case.lines("metrics_records.jsonl"));
    let shapes = |lines: &[String]| {
        let shapes = lines.iter().map(|line| {
            assert!(line.starts_with("{\"request_parameters\":"));
            let parsed: Value = serde_json::from_str(line).unwrap();
            let inner = parsed["request_parameters"].as_str().unwrap();
            let inner: Value = serde_json::from_str(inner).unwrap();
            assert_eq!(inner["rid"], parsed["id"]);
            let header = inner["external_trace_header"]["traceparent"].as_str();
            assert_eq!(header, case.traceparent());
            shape(line)
        });
        shapes.collect::<Vec<_>>()
    };
    assert_eq!(shapes(&ours), shapes(&theirs), "{}", case.folder.display());
}

#[tokio::test]
async fn spans_and_log_lines_have_the_recorded_shape() {
    for name in "chat_stream chat_stream_tp completions_stream generate_stream generate_nostream \
        generate_stream_rid_underscore"
        .split(' ')
    {
        let case = Case::named(name);
        let told = Told::of(&case).await;
        let spans = told.until_spans(case.spans().len()).await;
        same_structure(&spans, &case);
        same_log(&told, &case);
        // Children first.
        for (place, span) in spans.iter().enumerate() {
            let before = above(span, &spans[..place]);
            let is_first = before.is_none() || kind_of_name(span).starts_with("Scheduler");
            assert!(is_first, "{name}: {span} after {before:?}");
        }
    }
}

#[tokio::test]
async fn a_collector_that_hangs_holds_nobody_up() {
    let told = Told::with(fast(), Clock::system()).await;
    told.collector.set(Mood::Holds);
    for _ in 0..20 {
        let case = Case::named("generate_stream");
        let whole = case.send(&told.sim).await.response().await;
        assert!(whole.text().ends_with("[DONE]\n\n"));
    }
}

#[tokio::test]
async fn an_unsampled_request_has_a_log_line_and_no_span() {
    let [unsampled, sampled] = ["chat_stream_tp_unsampled", "chat_stream_tp"].map(Case::named);
    let told = Told::of(&unsampled).await;
    same_log(&told, &unsampled);
    // Spans go in order: what comes after those of a later request is all there is.
    sampled.send(&told.sim).await.response().await;
    let spans = told.until_spans(sampled.spans().len()).await;
    same_structure(&spans, &sampled);
}

#[tokio::test]
async fn a_client_that_leaves_has_the_recorded_spans_and_no_line() {
    let case = Case::named("abort_stream");
    let (clock, manual) = Clock::manual(START);
    let told = Told::with(slow(), clock).await;
    let mut connection = case.send(&told.sim).await;
    until_load(told.sim.addr(), 1, 0).await;
    // The recorded client left after 62 tokens: a prefill of 3 ms and 61 steps.
    manual.set(ms(3 + 61 * 10));
    // The chunk before them is that of the role.
    for _ in 0..=62 {
        connection.chunk().await.unwrap();
    }
    drop(connection);
    let spans = told.until_spans(case.spans().len()).await;
    same_structure(&spans, &case);
    assert!(told.log().is_empty());
}

#[tokio::test]
async fn a_client_that_leaves_the_queue_has_the_recorded_spans_and_no_line() {
    for name in ["queued_generate_stream", "queued_chat_stream"] {
        let case = Case::named(&format!("abort_in_queue/{name}"));
        let (clock, manual) = Clock::manual(START);
        let told = Told::with(slow(), clock).await;
        let addr = told.sim.addr();
        // Unsampled, so that all spans are those of the case.
        let unsampled = "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00\r\n";
        let body = r#"{"text":"a","sampling_params":{"max_new_tokens":30000},"stream":true}"#;
        let mut holder = sent(&told.sim, "/generate", unsampled, body, (1, 0)).await;
        manual.set(ms(1));
        holder.chunk().await.unwrap();
        let queued = case.send(&told.sim).await;
        until_load(addr, 1, 1).await;
        // With the next token the scheduler has taken it in.
        manual.set(ms(11));
        holder.chunk().await.unwrap();
        until_load(addr, 1, 1).await;
        drop(queued);
        let spans = told.until_spans(case.spans().len()).await;
        same_structure(&spans, &case);
        assert!(told.log().is_empty());
    }
}
