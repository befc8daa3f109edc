//! The tree of a request, and that it agrees with the request's row.

use queuescope::config::proxy::Config;
use queuescope::request::column::Unit;
use queuescope::request::columns::COLUMNS;
use queuescope::telemetry::otlp::attributes::keys;
use queuescope::telemetry::otlp::settings::Protocol;

use crate::support::collector::{CLIENT, Collector, INTERNAL, SERVER, Span, one};
use crate::support::generator::sim;
use crate::support::proxy::{Front, Row, worker, workers};
use crate::support::router::free_port;
use crate::support::wire::{Client, until};

use super::{export_to, url};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

/// Epoch nanoseconds of a time column.
fn nanos(row: &Row, column: &str) -> u64 {
    let (seconds, rest) = row[column].split_once('.').unwrap();
    format!("{seconds}{rest}").parse().unwrap()
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
            _ => {
                let [a, b]: [f64; 2] = [cell, shown].map(|number| number.parse().unwrap());
                (a - b).abs() < 1e-6
            }
        };
        assert!(is_same, "{key}: {shown} is not {cell}");
        compared += 1;
    }
    assert!(compared > 50, "{row:?}");
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
        assert_eq!(request.parent, PARENT);
        let times = ["arrival_time", "end_time"].map(|column| nanos(&row, column));
        assert_eq!([request.start, request.end], times);
        shows(request, &row);
        let sent = one(&spans, "POST /generate", CLIENT);
        assert_eq!((&sent.parent, &sent.id), (&request.id, &row["span_id"]));
        assert_eq!(sent.start, nanos(&row, "forwarded_time"));
        let attempt = one(&spans, "hop", CLIENT);
        assert_eq!(attempt.parent, sent.id);
        assert_eq!(attempt.start, nanos(&row, "router_send_time"));
        assert_eq!(attempt.attributes["queuescope.worker"], "w0");
        // What the server was told as the parent of its own spans.
        let told = server.served()[0].traceparent.clone().unwrap();
        assert_eq!(told, format!("00-{TRACE}-{}-01", attempt.id));
        let stages = spans.iter().filter(|span| span.kind == INTERNAL);
        // A stage below zero, which the error of a clock's offset can make of a short one, has no span.
        assert!(stages.clone().count() >= 5);
        for stage in stages {
            let is_before = stage.name == "router_queue";
            let parent = if is_before { &request.id } else { &sent.id };
            assert_eq!(&stage.parent, parent, "{stage:?}");
        }
        let decode = one(&spans, "decode", INTERNAL);
        assert_eq!(decode.end, nanos(&row, "finish_time"));
        for span in &spans {
            let of = (span.trace.as_str(), span.service.as_str());
            assert_eq!(of, (TRACE, "front of the test"));
        }
        assert_eq!(collector.header("x-key").as_deref(), Some("mine"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hop_of_another_process_is_a_span_below_the_fronts_or_begins_the_trace() {
    let collector = Collector::start().await;
    let server = sim(|_| {});
    let ours = |config: &mut Config| {
        config.hop_secret = Some("sixteen bytes of it".into());
        export_to(config, &url(collector.grpc), Protocol::Grpc);
    };
    let hop = Front::with(&[], |config| {
        config.workers = workers(&[server.addr()]);
        ours(config);
    })
    .await;
    let front = Front::with(&[hop.hop_addr()], ours).await;
    let body = br#"{"text":"a","sampling_params":{"max_new_tokens":2}}"#;
    front.ask("/generate", "", body).await;
    let of_hop =
        |span: &Span| span.kind == SERVER && span.attributes["queuescope.seen_by"] == "hop";
    let requests = || {
        collector
            .spans()
            .into_iter()
            .filter(|span| span.kind == SERVER)
    };
    until("both requests", || requests().count() == 2).await;
    let spans = collector.spans();
    assert_eq!(collector.traces(), 1);
    let root = spans.iter().find(|span| span.parent.is_empty()).unwrap();
    let below = |parent: &Span, kind| {
        let all = spans.iter();
        let all = all.filter(|span| span.parent == parent.id && span.kind == kind);
        let all: Vec<&Span> = all.collect();
        assert_eq!(all.len(), 1, "{spans:#?}");
        all[0].clone()
    };
    let sent = below(root, CLIENT);
    let hop_request = below(&sent, SERVER);
    let hop_sent = below(&hop_request, CLIENT);
    assert!(of_hop(&hop_request));
    let told = |nth: usize| server.served()[nth].traceparent.clone().unwrap();
    // Nobody asked the server for spans, and yet the hop keeps what the front keeps.
    assert_eq!(told(0), format!("00-{}-{}-00", root.trace, hop_sent.id));
    assert_eq!(hop_request.attributes["queuescope.kept"], "ratio");
    // They are told once, by the front.
    assert_eq!(one(&spans, "prefill", INTERNAL).parent, sent.id);

    // What comes without a trace gets one of the hop.
    let mut client = Client::connect(hop.hop_addr()).await;
    client.ask("/generate", "", body).await;
    until("its trace", || collector.traces() == 2).await;
    let own = collector
        .spans()
        .into_iter()
        .filter(|span| span.trace != root.trace);
    let own: Vec<Span> = own.collect();
    let (request, sent) = (
        one(&own, "POST /generate", SERVER),
        one(&own, "POST /generate", CLIENT),
    );
    assert!(of_hop(request) && request.parent.is_empty(), "{request:?}");
    assert_eq!(told(1), format!("00-{}-{}-00", request.trace, sent.id));
}
