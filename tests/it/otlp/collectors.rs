//! What users type: the collector by flag, by the standard variables, over TLS; the generator's and the probe's own spans.

use queuescope::telemetry::otlp::settings::Protocol;

use crate::support::assert_says;
use crate::support::collector::{CLIENT, Collector, INTERNAL, SERVER, Span, one};
use crate::support::generator::sim;
use crate::support::process::{Process, queuescope, run_aside};
use crate::support::proxy::Front;
use crate::support::tls::Authority;
use crate::support::upstream::{Step, Upstream};
use crate::support::wire::{Client, until};

use super::{export_to, url};

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
    let words = "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: 46\r\n\r\n{\"error\":{\"message\":\"no: the prompt's words\"}}";
    let upstream = Upstream::always(words).await;
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
async fn check_shows_the_collector_and_no_header_and_the_log_names_traces() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.toml");
    let otlp = "endpoint = \"https://c:4317\"\nheaders = [\"x-key: hush\"]";
    let keys = format!("[proxy]\nupstream = [\"127.0.0.1:1\"]\n\n[telemetry.otlp]\n{otlp}\n");
    std::fs::write(&file, keys).unwrap();
    let check = queuescope(&["check", "--config", file.to_str().unwrap()]);
    let said = run_aside(check).await.out;
    assert_says(&said, "https://c:4317 by grpc");
    assert!(!said.contains("hush"), "{said}");
    let upstream = Upstream::playing(vec![Step::Close]).await;
    let process = Process::start(upstream.addr, &[]);
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let head = format!("traceparent: 00-{trace}-00f067aa0ba902b7-01\r\n");
    let mut client = Client::connect(process.front).await;
    client.ask("/generate", &head, b"{}").await;
    let line = process.says("/generate failed: upstream_died");
    assert!(line.ends_with(&format!("trace_id={trace}")), "{line}");
}
