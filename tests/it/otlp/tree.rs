//! The tree of a request, and that it agrees with the request's row.

use std::collections::BTreeMap;

use queuescope::request::column::Unit;
use queuescope::request::columns::COLUMNS;
use queuescope::telemetry::otlp::attributes::keys;
use queuescope::telemetry::otlp::settings::Protocol;

use crate::support::collector::{CLIENT, Collector, INTERNAL, SERVER, Span, one};
use crate::support::generator::sim;
use crate::support::proxy::{Front, Row, worker};
use crate::support::router::free_port;
use crate::support::wire::until;

use super::{export_to, url};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

/// Epoch nanoseconds of a time column.
fn nanos(row: &Row, column: &str) -> u64 {
    let (seconds, rest) = row[column].split_once('.').unwrap();
    format!("{seconds}{rest}").parse().unwrap()
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() < 1e-6
}

/// Fails unless a span shows every cell of the row that has a value.
fn shows(span: &Span, row: &Row) {
    let mut compared = 0;
    for (column, key) in COLUMNS.iter().zip(keys()) {
        let (cell, key) = (&row[column.name], key.as_str());
        if cell.is_empty() {
            assert!(!span.attributes.contains_key(key), "{key}");
            continue;
        }
        let shown = &span.attributes[key];
        let is_same = match column.unit {
            Unit::Text | Unit::Bool | Unit::Count => cell == shown,
            _ => close(cell.parse().unwrap(), shown.parse().unwrap()),
        };
        assert!(is_same, "{key}: {shown} is not {cell}");
        compared += 1;
    }
    assert!(compared > 50, "{row:?}");
}

/// Fails unless the stages of a request are those of its row. A stage below zero, which the error of
/// a clock's offset can make of a short one, has no span.
fn stages_agree(spans: &[Span], row: &Row) {
    let stages: BTreeMap<&str, &Span> = spans
        .iter()
        .filter(|span| span.kind == INTERNAL)
        .map(|span| (span.name.as_str(), span))
        .collect();
    for (stage, took, start) in [
        ("router_queue", "queue_time_in_router", "arrival_time"),
        ("network", "network_time", "router_send_time"),
        ("tokenize", "tokenize_time", "server_created_time"),
        ("server_queue", "pure_queue_time", "queue_time_start"),
        ("prefill", "prefill_time", "queue_time_end"),
        ("return", "return_time", "server_first_token_time"),
        ("decode", "decode_time", "first_token_time"),
    ] {
        let expected: f64 = row[took].parse().unwrap();
        let Some(span) = stages.get(stage) else {
            assert!(expected < 0.0, "no span of {stage}: {row:#?}");
            continue;
        };
        assert!(
            close(span.seconds(), expected),
            "{stage}: {} is not {expected}",
            span.seconds()
        );
        assert_eq!(span.start, nanos(row, start), "{stage}");
    }
    assert_eq!(stages["decode"].end, nanos(row, "finish_time"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_through_a_hop_is_a_tree_that_agrees_with_its_row_by_grpc_and_by_http() {
    for protocol in [Protocol::Grpc, Protocol::Http] {
        let collector = Collector::start().await;
        let place = match protocol {
            Protocol::Grpc => collector.grpc,
            Protocol::Http => collector.http,
        };
        let (server, hop) = (sim(|_| {}), free_port());
        let front = Front::with(&[hop], |config| {
            config.workers = vec![worker("w0", hop, server.addr())];
            export_to(config, &url(place), protocol);
            config.otlp.headers = vec!["x-key: mine".into()];
            config.otlp.service_name = Some("front of the test".into());
        })
        .await;
        let mut client = front.client().await;
        let extra = format!("traceparent: 00-{TRACE}-{PARENT}-01\r\n");
        let body = br#"{"text":"a b c","sampling_params":{"max_new_tokens":5},"stream":true}"#;
        assert_eq!(client.ask("/generate", &extra, body).await.status(), 200);
        until("the trace", || collector.traces() == 1).await;
        let spans = collector.spans();
        let row = front.only_row().await;

        let request = one(&spans, "POST /generate", SERVER);
        assert_eq!(
            (request.trace.as_str(), request.parent.as_str()),
            (TRACE, PARENT)
        );
        assert_eq!(
            (request.start, request.end),
            (nanos(&row, "arrival_time"), nanos(&row, "end_time"))
        );
        shows(request, &row);
        for (key, value) in [
            ("http.request.method", "POST"),
            ("http.route", "/generate"),
            ("url.path", "/generate"),
            ("http.response.status_code", "200"),
            ("gen_ai.operation.name", "text_completion"),
            ("gen_ai.provider.name", "sglang"),
            ("gen_ai.usage.output_tokens", "5"),
            ("server.address", "127.0.0.1"),
            ("queuescope.kept", "flagged"),
        ] {
            assert_eq!(request.attributes[key], value, "{key}");
        }
        assert_eq!(
            request.attributes["server.port"],
            server.addr().port().to_string()
        );
        let sent = one(&spans, "POST /generate", CLIENT);
        assert_eq!((&sent.parent, &sent.id), (&request.id, &row["span_id"]));
        assert_eq!(sent.start, nanos(&row, "forwarded_time"));
        let attempt = one(&spans, "hop", CLIENT);
        assert_eq!(attempt.parent, sent.id);
        assert_eq!(
            (
                attempt.start,
                attempt.attributes["queuescope.worker"].as_str()
            ),
            (nanos(&row, "router_send_time"), "w0")
        );
        // What the server was told as the parent of its own spans.
        let told = server.served()[0].traceparent.clone().unwrap();
        assert_eq!(told, format!("00-{TRACE}-{}-01", attempt.id));
        stages_agree(&spans, &row);
        let stages = spans.iter().filter(|span| span.kind == INTERNAL);
        assert!(stages.clone().count() >= 5);
        for stage in stages {
            let is_before = stage.name == "router_queue";
            let parent = if is_before { &request.id } else { &sent.id };
            assert_eq!(&stage.parent, parent, "{stage:?}");
        }
        assert!(
            spans
                .iter()
                .all(|span| span.trace == TRACE && span.service == "front of the test")
        );
        assert_eq!(collector.header("x-key").as_deref(), Some("mine"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hop_of_another_process_is_a_span_below_the_fronts() {
    let collector = Collector::start().await;
    let server = sim(|_| {});
    let secret = "sixteen bytes of it";
    let hop = Front::with(&[], |config| {
        config.workers = vec![worker("w0", "127.0.0.1:0", server.addr())];
        config.hop_secret = Some(secret.into());
        export_to(config, &url(collector.grpc), Protocol::Grpc);
    })
    .await;
    let front = Front::with(&[hop.hop_addr()], |config| {
        config.hop_secret = Some(secret.into());
        export_to(config, &url(collector.grpc), Protocol::Grpc);
    })
    .await;
    front
        .ask(
            "/generate",
            "",
            br#"{"text":"a","sampling_params":{"max_new_tokens":2}}"#,
        )
        .await;
    let requests = || {
        collector
            .spans()
            .into_iter()
            .filter(|span| span.kind == SERVER)
            .count()
    };
    until("both requests", || requests() == 2).await;
    let spans = collector.spans();
    assert_eq!(collector.traces(), 1);
    let root = spans.iter().find(|span| span.parent.is_empty()).unwrap();
    let below = |parent: &Span, kind| {
        let mut all = spans
            .iter()
            .filter(|span| span.parent == parent.id && span.kind == kind);
        let found = all.next().unwrap_or_else(|| panic!("{spans:#?}"));
        assert!(all.next().is_none(), "{spans:#?}");
        found.clone()
    };
    let sent = below(root, CLIENT);
    let hop_request = below(&sent, SERVER);
    let hop_sent = below(&hop_request, CLIENT);
    assert_eq!(hop_request.attributes["queuescope.seen_by"], "hop");
    let told = server.served()[0].traceparent.clone().unwrap();
    // Nobody asked the server for spans, and yet the hop keeps what the front keeps.
    assert_eq!(told, format!("00-{}-{}-00", root.trace, hop_sent.id));
    assert_eq!(hop_request.attributes["queuescope.kept"], "ratio");
    // They are told once, by the front.
    assert_eq!(one(&spans, "prefill", INTERNAL).parent, sent.id);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hop_begins_the_trace_that_a_request_came_without() {
    let collector = Collector::start().await;
    let server = sim(|_| {});
    let hop = Front::with(&[], |config| {
        config.workers = vec![worker("w0", "127.0.0.1:0", server.addr())];
        export_to(config, &url(collector.grpc), Protocol::Grpc);
    })
    .await;
    let mut client = crate::support::wire::Client::connect(hop.hop_addr()).await;
    let body = br#"{"text":"a","sampling_params":{"max_new_tokens":2}}"#;
    client.ask("/generate", "", body).await;
    until("the trace", || collector.traces() == 1).await;
    let spans = collector.spans();
    let row = hop.only_row().await;
    let request = one(&spans, "POST /generate", SERVER);
    let sent = one(&spans, "POST /generate", CLIENT);
    assert_eq!(
        (request.trace.as_str(), request.parent.as_str()),
        (row["trace_id"].as_str(), "")
    );
    let told = server.served()[0].traceparent.clone().unwrap();
    assert_eq!(told, format!("00-{}-{}-00", request.trace, sent.id));
}
