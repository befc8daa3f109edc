//! Which traces are kept, and what goes upstream.

use queuescope::telemetry::otlp::settings::{Protocol, UpstreamFlag};

use crate::support::collector::{Collector, SERVER, one};
use crate::support::proxy::Front;
use crate::support::upstream::Upstream;

use super::{export_to, url};

const ID: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

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
    let traced = |flags: &str| format!("traceparent: 00-{ID}-{PARENT}-{flags}\r\n");
    let mut client = front.client().await;
    for trace in [traced("01"), String::new()] {
        let head = format!("GET /v1/models HTTP/1.1\r\nhost: h\r\n{trace}\r\n");
        client.send(head).await;
        client.response().await;
    }
    let sent = upstream.seen().into_iter();
    let sent: Vec<_> = sent.map(|seen| seen.header("traceparent")).collect();
    assert_eq!(sent, [Some(format!("00-{ID}-{PARENT}-00")), None]);
    for trace in [String::new(), traced("00"), traced("01")] {
        front.ask("/generate", &trace, b"{}").await;
    }
    front.counts("queuescope_traces_exported_total", 1).await;
    front.counts("queuescope_traces_sampled_out_total", 2).await;
    let spans = collector.spans();
    let request = one(&spans, "POST /generate", SERVER);
    assert_eq!(request.attributes["queuescope.kept"], "flagged");
}
