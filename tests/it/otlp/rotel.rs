//! A real collector, rotel, as `scripts/collector.sh` installs it: it prints the spans that it gets.

use std::path::Path;
use std::process::Stdio;

use queuescope::request::UpstreamKind;
use queuescope::telemetry::otlp::settings::Protocol;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use crate::support::assert_says;
use crate::support::generator::sim;
use crate::support::proxy::Front;
use crate::support::router::free_port;
use crate::support::wire::{PATIENCE, until};

use super::{export_to, url};

/// A running collector, which ends with the test, and what it prints.
fn start(grpc: &str, http: &str) -> (Child, Lines<BufReader<ChildStdout>>) {
    let agent = Path::new(env!("CARGO_MANIFEST_DIR")).join(".tools/rotel/rotel-agent");
    assert!(
        agent.exists(),
        "rotel is missing ({agent:?}): run `bash scripts/collector.sh`"
    );
    let args = format!(
        "start --otlp-grpc-endpoint {grpc} --otlp-http-endpoint {http} --exporter blackhole \
         --debug-log traces --debug-log-verbosity detailed"
    );
    let mut command = Command::new(agent);
    command.args(args.split(' ')).kill_on_drop(true);
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    (child, lines)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_real_collector_prints_the_tree_by_grpc_and_by_http() {
    let (grpc, http) = (free_port(), free_port());
    let (_rotel, mut lines) = start(&grpc.to_string(), &http.to_string());
    let is_up = |place| std::net::TcpStream::connect(place).is_ok();
    until("rotel", || is_up(grpc) && is_up(http)).await;
    let server = sim(|_| {});
    for (place, protocol) in [(grpc, Protocol::Grpc), (http, Protocol::Http)] {
        let front = Front::with(&[server.addr()], |config| {
            config.upstream_kind = UpstreamKind::Server;
            export_to(config, &url(place), protocol);
        })
        .await;
        let body = br#"{"text":"a","sampling_params":{"max_new_tokens":3},"stream":true}"#;
        front.ask("/generate", "", body).await;
        let row = front.only_row().await;
        let mut printed = String::new();
        while !printed.contains("Name           : decode") {
            let line = tokio::time::timeout(PATIENCE, lines.next_line()).await;
            printed += &line.expect(&printed).unwrap().unwrap();
            printed.push('\n');
        }
        for piece in [
            format!("Trace ID       : {}", row["trace_id"]),
            "service.name: Str(queuescope)".to_owned(),
            format!("gen_ai.response.id: Str({})", row["engine_id"]),
        ] {
            assert_says(&printed, &piece);
        }
    }
}
