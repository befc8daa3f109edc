//! Traces, as a collector gets them. What users type: the collector by flag, by the standard variables, over TLS; the generator's and the
//! probe's own spans. A collector that is away, slow, refuses or talks nonsense changes nothing for requests. A real collector, rotel, as
//! `scripts/collector.sh` installs it, prints the spans that it gets.

mod tree;

use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;

use queuescope::config::proxy::Config;
use queuescope::request::UpstreamKind;
use queuescope::telemetry::otlp::settings::Protocol;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use crate::support::assert_says;
use crate::support::collector::{CLIENT, Collector, INTERNAL, Mood, SERVER, Span, one};
use crate::support::generator::sim;
use crate::support::process::{Process, queuescope, run_aside};
use crate::support::proxy::{Front, setting};
use crate::support::router::free_port;
use crate::support::tls::Authority;
use crate::support::upstream::{Step, Upstream, refusing};
use crate::support::wire::{self, Client, PATIENCE, json_response, until};

/// Exports to this place, without waiting for more to send.
fn export_to(config: &mut Config, endpoint: &str, protocol: Protocol) {
    config.otlp.endpoint = Some(endpoint.to_owned());
    config.otlp.protocol = Some(protocol);
    config.otlp.delay_s = setting(0.01);
    config.otlp.timeout_s = setting(10.0);
}

fn url(addr: SocketAddr) -> String {
    format!("http://{addr}")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_generators_span_is_the_parent_of_the_fronts_in_one_trace() {
    let collector = Collector::start().await;
    let server = sim(|_| {});
    let front = Front::with(&[server.addr()], |config| {
        export_to(config, &url(collector.grpc), Protocol::Grpc);
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let (to, spans_to) = (url(front.addr()), url(collector.http));
    let args = format!(
        "--num-prompts 20 --random-output-len 2 --random-input-len 4 --base-url {to} --otlp-endpoint {spans_to}"
    );
    let mut traffic = queuescope(&["traffic"]);
    let traffic_args = traffic.args(args.split(' ')).arg("--output-dir");
    traffic_args.arg(folder.path());
    // 3: late, on a busy machine; that all came, the spans tell.
    run_aside(traffic).await.assert_status(&[0, 3]);
    let of_front = |span: &&Span| span.kind == SERVER;
    let all = || collector.spans().iter().filter(of_front).count();
    until("all spans", || all() == 20).await;
    let spans = collector.spans();
    assert_eq!(collector.traces(), 20);
    for request in spans.iter().filter(of_front) {
        let parent = spans.iter().find(|span| span.id == request.parent).unwrap();
        assert_eq!((parent.kind, &parent.trace), (CLIENT, &request.trace));
        assert_eq!(parent.service, "queuescope-traffic");
        assert!(parent.parent.is_empty(), "{parent:?}");
        assert!(parent.start <= request.start, "one machine's clock");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_standard_variables_work_a_flag_is_over_them_and_spans_hold_no_words_of_a_server() {
    let (collector, other) = (Collector::start().await, Collector::start().await);
    let server = sim(|_| {});
    let probe = async |flags: &[&str], code| {
        let mut command = queuescope(&["probe", &url(server.addr())]);
        command.args("--output-len 2 --upstream-kind server".split(' '));
        let endpoint = url(collector.http);
        command.args(flags).envs([
            ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str()),
            ("OTEL_EXPORTER_OTLP_HEADERS", "x-key=a%20b"),
            ("OTEL_SERVICE_NAME", "named"),
        ]);
        let done = run_aside(command).await;
        assert_eq!(done.code, Some(code), "{} {}", done.out, done.err);
        done.out + &done.err
    };
    probe(&[], 0).await;
    assert_eq!(collector.header("x-key").as_deref(), Some("a b"));
    let spans = collector.spans();
    let request = one(&spans, "POST /generate", CLIENT);
    assert!(request.parent.is_empty() && request.service == "named");
    let prefill = one(&spans, "prefill", INTERNAL);
    assert_eq!(prefill.parent, request.id, "nobody else tells them");
    let to = url(other.grpc);
    probe(&["--otlp-endpoint", &to, "--otlp-protocol", "grpc"], 0).await;
    assert_eq!((collector.traces(), other.traces()), (1, 1));
    let told = server.served().into_iter().filter_map(|s| s.traceparent);
    assert!(told.clone().count() == 2, "the servers may make spans too");
    for told in told {
        assert!(told.ends_with("-01"), "{told}");
    }
    let wrong = probe(&["--otlp-endpoint", "ftp://a"], 2).await;
    assert_says(&wrong, "--otlp-endpoint: must be http:// or https://");
    let lost = probe(&["--otlp-endpoint", "http://127.0.0.1:1"], 0).await;
    let note = "note: the spans of 1 request did not get to http://127.0.0.1:1";
    assert_says(&lost, note);
    assert_says(&lost, "; last error: client error (Connect): ");

    // Its spans hold no words of the server and no wait of its own.
    let words = r#"{"error":{"message":"no: the prompt's words"}}"#;
    let upstream = Upstream::always(wire::answer("400 Bad Request", words)).await;
    let (to, spans_to) = (url(upstream.addr), url(other.http));
    let probe = queuescope(&["probe", &to, "--otlp-endpoint", &spans_to]);
    assert_says(&run_aside(probe).await.out, "the prompt's words");
    let mut spans = other.spans();
    spans.retain(|span| span.is_error);
    let request = one(&spans, "POST /generate", CLIENT);
    assert!(request.message.starts_with("400"), "{request:?}");
    let all = format!("{:?}", other.spans());
    for not in ["the prompt's words", "client_lag"] {
        assert!(!all.contains(not), "{all}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_is_verified_by_the_given_certificates_alone() {
    let collector = Collector::start().await;
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    let upstream = Upstream::ok().await;
    for (place, protocol) in [
        (collector.grpc, Protocol::Grpc),
        (collector.http, Protocol::Http),
    ] {
        let face = ours.face(&["localhost"], place).await;
        let endpoint = format!("https://localhost:{}", face.addr.port());
        for (ca, taken) in [(ours.file(), 1), (theirs.file(), 0)] {
            let before = collector.traces();
            let front = Front::with(&[upstream.addr], |config| {
                export_to(config, &endpoint, protocol);
                config.otlp.ca = Some(ca.clone());
            })
            .await;
            front.client().await.ask("/generate", "", b"{}").await;
            let exported = || front.counter("queuescope_traces_exported_total");
            let lost = || front.counter("queuescope_traces_dropped_total{reason=\"unreachable\"}");
            until("an end", || exported() + lost() == 1).await;
            let came = (collector.traces() - before) as u64;
            assert_eq!([exported(), came], [taken; 2], "{protocol:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_names_traces() {
    let upstream = Upstream::playing(vec![Step::Close]).await;
    let process = Process::start(upstream.addr, &[]);
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let head = format!("traceparent: 00-{trace}-00f067aa0ba902b7-01\r\n");
    let mut client = Client::connect(process.front).await;
    client.ask("/generate", &head, b"{}").await;
    let line = process.says("/generate failed: upstream_died");
    assert!(line.ends_with(&format!("trace_id={trace}")), "{line}");
    // A request without a row has its reason there alone.
    let mut client = Client::connect(process.front).await;
    client.ask("/v1/models", "", b"{}").await;
    process.says("/v1/models failed: upstream_died: 127.0.0.1:");
}

const REQUESTS: u64 = 40;

/// Limits of one that gives each export a second.
const QUICK: &str = "delay_s = 0.01\ntimeout_s = 1\nqueue = 8";

/// A front that exports to `endpoint` within these limits; those of an hour are longer than the test.
async fn front(upstream: &Upstream, endpoint: &str, protocol: Protocol, limits: &str) -> Front {
    let protocol = protocol.name();
    let keys =
        format!("[telemetry.otlp]\nendpoint = \"{endpoint}\"\nprotocol = \"{protocol}\"\n{limits}");
    Front::keyed(&[upstream.addr], &keys).await
}

async fn ask(front: &Front, many: u64) {
    let mut client = front.client().await;
    for _ in 0..many {
        assert_eq!(client.ask("/generate", "", b"{}").await.status(), 200);
    }
}

fn dropped(front: &Front, reason: &str) -> u64 {
    front.counter(&format!(
        "queuescope_traces_dropped_total{{reason=\"{reason}\"}}"
    ))
}

/// How many are lost, for every reason.
fn lost(front: &Front) -> u64 {
    front.counter("queuescope_traces_dropped_total")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_fails_for_a_collector_and_each_lost_trace_is_counted_with_its_reason() {
    let collector = Collector::start().await;
    let nonsense = Upstream::always(json_response("\u{0}nonsense")).await;
    let nobody = refusing().await;
    let upstream = Upstream::ok().await;
    for (mood, place, protocol, reason) in [
        (Mood::Refuses, collector.grpc, Protocol::Grpc, "rejected"),
        (Mood::Refuses, collector.http, Protocol::Http, "rejected"),
        (Mood::Busy, collector.grpc, Protocol::Grpc, "rejected"),
        (Mood::Busy, collector.http, Protocol::Http, "rejected"),
        (Mood::Holds, collector.grpc, Protocol::Grpc, "timeout"),
        (Mood::Holds, collector.http, Protocol::Http, "timeout"),
        (Mood::Takes, nobody, Protocol::Grpc, "unreachable"),
        (Mood::Takes, nobody, Protocol::Http, "unreachable"),
        // It speaks HTTP/1.1 alone.
        (Mood::Takes, nonsense.addr, Protocol::Grpc, "unreachable"),
    ] {
        collector.set(mood);
        let front = front(&upstream, &url(place), protocol, QUICK).await;
        ask(&front, REQUESTS).await;
        until("each to be counted", || lost(&front) == REQUESTS).await;
        let (so, full) = (dropped(&front, reason), dropped(&front, "queue_full"));
        assert!(so > 0 && so + full == REQUESTS, "{mood:?} {protocol:?}");
        assert_eq!(front.counter("queuescope_traces_exported_total"), 0);
        let rows = front.rows().await.len() as u64;
        assert_eq!(rows, REQUESTS, "{mood:?} {protocol:?}");
    }
    assert_eq!(collector.spans().len(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_collector_refuses_for_a_moment_is_sent_again() {
    let collector = Collector::start().await;
    let upstream = Upstream::ok().await;
    for (place, protocol) in [
        (collector.grpc, Protocol::Grpc),
        (collector.http, Protocol::Http),
    ] {
        let front = front(&upstream, &url(place), protocol, "delay_s = 0.01").await;
        collector.set(Mood::BusyOnce);
        ask(&front, 1).await;
        front.counts("queuescope_traces_exported_total", 1).await;
        assert_eq!(lost(&front), 0, "{protocol:?}: sent again");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_its_end_a_process_sends_what_waits_and_waits_for_no_dead_collector() {
    let collector = Collector::start().await;
    let upstream = Upstream::ok().await;
    let (to, limits) = (url(collector.grpc), "delay_s = 3600\ntimeout_s = 3600");
    for (mood, lost) in [(Mood::Takes, 0), (Mood::Holds, 5)] {
        collector.set(mood);
        let front = front(&upstream, &to, Protocol::Grpc, limits).await;
        ask(&front, 5).await;
        front.proxy.drain().await;
        assert_eq!(dropped(&front, "shutdown"), lost, "{mood:?}");
        assert_eq!(collector.traces(), 5);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_is_bounded_and_a_full_queue_waits_for_no_delay() {
    let collector = Collector::start().await;
    let (upstream, to) = (Upstream::ok().await, url(collector.grpc));
    let slow = "delay_s = 3600\nqueue = 3";
    let full = front(&upstream, &to, Protocol::Grpc, slow).await;
    ask(&full, 3).await;
    until("the traces", || collector.traces() == 3).await;

    collector.set(Mood::Holds);
    let limits = "delay_s = 0.01\ntimeout_s = 3600\nqueue = 8";
    let front = front(&upstream, &to, Protocol::Grpc, limits).await;
    ask(&front, 300).await;
    until("all to be known of", || {
        // A batch on its way, to which a busy machine may add while it is made, and the queue.
        let waits = front.counter("queuescope_trace_queue_length");
        assert!(waits <= 8);
        waits == 8 && lost(&front) > 0
    })
    .await;
}

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
