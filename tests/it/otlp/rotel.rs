//! A real collector, rotel, as `scripts/collector.sh` installs it: it prints the spans that it gets.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::Receiver;

use queuescope::telemetry::otlp::settings::Protocol;

use crate::support::generator::sim;
use crate::support::process::lines_of;
use crate::support::proxy::Front;
use crate::support::router::free_port;
use crate::support::wire::{PATIENCE, until};

use super::{export_to, url};

/// A running collector. Ended when dropped.
struct Rotel {
    child: Child,
    lines: Receiver<String>,
}

impl Rotel {
    fn start(grpc: &str, http: &str) -> Rotel {
        let agent = Path::new(env!("CARGO_MANIFEST_DIR")).join(".tools/rotel/rotel-agent");
        assert!(
            agent.exists(),
            "rotel is missing ({agent:?}): run `bash scripts/collector.sh`"
        );
        let args = format!(
            "start --otlp-grpc-endpoint {grpc} --otlp-http-endpoint {http} --exporter blackhole \
             --debug-log traces --debug-log-verbosity detailed"
        );
        let mut child = Command::new(agent)
            .args(args.split(' '))
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = lines_of(child.stdout.take().unwrap());
        Rotel { child, lines }
    }

    /// The lines up to the one with this piece.
    fn until(&self, piece: &str) -> String {
        let mut text = String::new();
        while !text.contains(piece) {
            text += &self
                .lines
                .recv_timeout(PATIENCE)
                .unwrap_or_else(|_| panic!("no {piece}: {text}"));
            text.push('\n');
        }
        text
    }
}

impl Drop for Rotel {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_real_collector_prints_the_tree_by_grpc_and_by_http() {
    let (grpc, http) = (free_port(), free_port());
    let rotel = Rotel::start(&grpc.to_string(), &http.to_string());
    until("rotel", || {
        std::net::TcpStream::connect(grpc).is_ok() && std::net::TcpStream::connect(http).is_ok()
    })
    .await;
    let server = sim(|_| {});
    for (place, protocol) in [(grpc, Protocol::Grpc), (http, Protocol::Http)] {
        let front = Front::with(&[server.addr()], |config| {
            config.upstream_kind = queuescope::proxy::shared::UpstreamKind::Server;
            export_to(config, &url(place), protocol);
        })
        .await;
        let mut client = front.client().await;
        let body = br#"{"text":"a","sampling_params":{"max_new_tokens":3},"stream":true}"#;
        client.ask("/generate", "", body).await;
        let row = front.only_row().await;
        let printed = rotel.until("Name           : decode");
        for piece in [
            format!("Trace ID       : {}", row["trace_id"]),
            "service.name: Str(queuescope)".to_owned(),
            "Name           : POST /generate\n    Kind           : SPAN_KIND_SERVER".to_owned(),
            format!(
                "ID             : {}\n    Name           : POST /generate\n    Kind           : SPAN_KIND_CLIENT",
                row["span_id"]
            ),
            "Name           : server_queue".to_owned(),
            format!("Start time: {}", row["arrival_time"].replace('.', "")),
            format!("End time: {}", row["end_time"].replace('.', "")),
            format!("gen_ai.response.id: Str({})", row["engine_id"]),
        ] {
            assert!(printed.contains(&piece), "{piece}: {printed}");
        }
    }
}
