//! Which traces are kept, and what goes upstream.

use queuescope::telemetry::otlp::settings::Protocol;

use crate::support::collector::{Collector, SERVER};
use crate::support::proxy::Front;
use crate::support::upstream::Upstream;

use super::{export_to, url};

const ID: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

async fn ask(front: &Front, extra: &str) {
    front.ask("/generate", extra, b"{}").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_has_no_span_of_ours_stays_below_its_clients() {
    let upstream = Upstream::ok().await;
    let keys = "[telemetry.otlp]\nupstream_flag = \"never\"";
    let front = Front::keyed(&[upstream.addr], keys).await;
    let mut client = front.client().await;
    for trace in [
        format!("traceparent: 00-{ID}-{PARENT}-01\r\n"),
        String::new(),
    ] {
        let head = format!("GET /v1/models HTTP/1.1\r\nhost: h\r\n{trace}\r\n");
        client.send(head).await;
        client.response().await;
    }
    let sent = upstream.seen().into_iter();
    let sent: Vec<_> = sent.map(|seen| seen.header("traceparent")).collect();
    assert_eq!(sent, [Some(format!("00-{ID}-{PARENT}-00")), None]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_kept_is_counted_and_the_rest_is_told_why() {
    let collector = Collector::start().await;
    let upstream = Upstream::ok().await;
    let front = Front::with(&[upstream.addr], |config| {
        export_to(config, &url(collector.grpc), Protocol::Grpc);
        config.otlp.ratio = 0.0;
    })
    .await;
    ask(&front, "").await;
    ask(&front, &format!("traceparent: 00-{ID}-{PARENT}-00\r\n")).await;
    ask(&front, &format!("traceparent: 00-{ID}-{PARENT}-01\r\n")).await;
    front.counts("queuescope_traces_exported_total", 1).await;
    front.counts("queuescope_traces_sampled_out_total", 2).await;
    let spans = collector.spans();
    let kept: Vec<&str> = spans
        .iter()
        .filter(|span| span.kind == SERVER)
        .map(|span| span.attributes["queuescope.kept"].as_str())
        .collect();
    assert_eq!(kept, ["flagged"]);
}
