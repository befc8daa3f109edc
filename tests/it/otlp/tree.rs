//! The tree of a request, that it agrees with the request's row, and which trees are kept.

use queuescope::config::proxy::Config;
use queuescope::telemetry::otlp::settings::{Protocol, UpstreamFlag};

use crate::support::collector::{CLIENT, Collector, INTERNAL, SERVER, Span, one};
use crate::support::generator::sim;
use crate::support::proxy::{Front, nanos, worker, workers};
use crate::support::router::free_port;
use crate::support::upstream::Upstream;
use crate::support::wire::{Client, until};

use super::{export_to, url};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_through_a_hop_is_a_tree_that_agrees_with_its_row_by_grpc_and_by_http() {
    for protocol in [Protocol::Grpc, Protocol::Http] {
        let collector = Collector::start().await;
        let (server, hop) = (sim(|_| {}), free_port());
        let front = Front::with(&[hop], |config| {
            config.workers = vec![worker("w0", hop, server.addr())];
            export_to(config, &url(collector.http), protocol);
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
        let at = |column| nanos(&row, column).cast_unsigned();
        let times = ["arrival_time", "end_time"].map(at);
        assert_eq!([request.start, request.end], times);
        // How each column is shown, `golden.rs` has in full.
        assert_eq!(request.attributes["gen_ai.response.id"], row["engine_id"]);
        let sent = one(&spans, "POST /generate", CLIENT);
        assert_eq!((&sent.parent, &sent.id), (&request.id, &row["span_id"]));
        assert_eq!(sent.start, at("forwarded_time"));
        let attempt = one(&spans, "hop", CLIENT);
        assert_eq!(attempt.parent, sent.id);
        assert_eq!(attempt.start, at("router_send_time"));
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
        assert_eq!(decode.end, at("finish_time"));
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
    let is_request = |span: &&Span| span.kind == SERVER;
    let requests = || collector.spans().iter().filter(is_request).count();
    until("both requests", || requests() == 2).await;
    let spans = collector.spans();
    assert_eq!(collector.traces(), 1);
    let root = spans.iter().find(|span| span.parent.is_empty()).unwrap();
    let below = |parent: &Span, kind| {
        let mut below = spans.clone();
        below.retain(|span| span.parent == parent.id && span.kind == kind);
        assert_eq!(below.len(), 1, "{spans:#?}");
        below.remove(0)
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
    let mut own = collector.spans();
    own.retain(|span| span.trace != root.trace);
    let [request, sent] = [SERVER, CLIENT].map(|kind| one(&own, "POST /generate", kind));
    assert!(of_hop(request) && request.parent.is_empty(), "{request:?}");
    assert_eq!(told(1), format!("00-{}-{}-00", request.trace, sent.id));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_kept_is_counted_and_what_has_no_span_stays_below_its_clients() {
    let collector = Collector::start().await;
    let upstream = Upstream::ok().await;
    let front = Front::with(&[upstream.addr], |config| {
        export_to(config, &url(collector.grpc), Protocol::Grpc);
        config.otlp.ratio = 0.0;
        config.otlp.upstream_flag = Some(UpstreamFlag::Never);
    })
    .await;
    let traced = |flags: &str| format!("traceparent: 00-{TRACE}-{PARENT}-{flags}\r\n");
    let mut client = front.client().await;
    for trace in [traced("01"), String::new()] {
        let head = format!("GET /v1/models HTTP/1.1\r\nhost: h\r\n{trace}\r\n");
        client.send(head).await;
        client.response().await;
    }
    let sent = upstream.seen().into_iter();
    let sent: Vec<_> = sent.map(|seen| seen.header("traceparent")).collect();
    assert_eq!(sent, [Some(format!("00-{TRACE}-{PARENT}-00")), None]);
    for trace in [String::new(), traced("00"), traced("01")] {
        front.ask("/generate", &trace, b"{}").await;
    }
    front.counts("queuescope_traces_exported_total", 1).await;
    front.counts("queuescope_traces_sampled_out_total", 2).await;
    let spans = collector.spans();
    let request = one(&spans, "POST /generate", SERVER);
    assert_eq!(request.attributes["queuescope.kept"], "flagged");
}
