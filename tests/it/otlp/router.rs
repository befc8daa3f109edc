//! One trace id from the client through the real routers to the server.

use queuescope::telemetry::otlp::settings::Protocol;

use crate::support::collector::{CLIENT, Collector, SERVER, one};
use crate::support::generator::sim;
use crate::support::proxy::{Front, worker};
use crate::support::router::{Router, Which, free_port};
use crate::support::wire::until;

use super::{export_to, url};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_clients_trace_goes_through_the_router_to_the_server() {
    for which in Which::ALL {
        let collector = Collector::start().await;
        let (server, hop, router) = (sim(|_| {}), free_port(), free_port());
        let front = Front::with(&[router], |config| {
            config.workers = vec![worker("w0", hop, server.addr())];
            export_to(config, &url(collector.grpc), Protocol::Grpc);
        })
        .await;
        let _router = Router::start_at(which, router, &[hop], &[]).await;
        let mut client = front.client().await;
        let extra =
            format!("content-type: application/json\r\ntraceparent: 00-{TRACE}-{PARENT}-01\r\n");
        let body = br#"{"model":"sim-llama","messages":[{"role":"user","content":"a b"}],"max_tokens":3,"stream":true}"#;
        let response = client.ask("/v1/chat/completions", &extra, body).await;
        assert_eq!(response.status(), 200, "{which:?}");
        let of_client = || {
            let mut spans = collector.spans();
            spans.retain(|span| span.trace == TRACE);
            spans
        };
        until("the trace", || !of_client().is_empty()).await;
        let spans = of_client();
        let request = one(&spans, "POST /v1/chat/completions", SERVER);
        assert_eq!(request.parent, PARENT, "{which:?}");
        let sent = one(&spans, "POST /v1/chat/completions", CLIENT);
        let attempt = one(&spans, "hop", CLIENT);
        assert_eq!(
            (&sent.parent, &attempt.parent),
            (&request.id, &sent.id),
            "{which:?}"
        );
        let served = server.served();
        let told = served.iter().find_map(|served| served.traceparent.clone());
        assert_eq!(
            told,
            Some(format!("00-{TRACE}-{}-01", attempt.id)),
            "{which:?}"
        );
    }
}
