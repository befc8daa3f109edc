//! What users type: the collector by flag, by the standard variables, over TLS; the generator's and the probe's own spans.

use std::process::Command;

use queuescope::telemetry::otlp::settings::Protocol;

use crate::support::assert_says;
use crate::support::collector::{CLIENT, Collector, SERVER, one};
use crate::support::generator::sim;
use crate::support::process::{Process, queuescope, run_aside};
use crate::support::proxy::Front;
use crate::support::tls::Authority;
use crate::support::upstream::Upstream;
use crate::support::wire::until;

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
    let of_front = || {
        collector
            .spans()
            .into_iter()
            .filter(|span| span.kind == SERVER)
    };
    until("all spans", || of_front().count() == 20).await;
    let spans = collector.spans();
    assert_eq!(collector.traces(), 20);
    for request in spans.iter().filter(|span| span.kind == SERVER) {
        let parent = spans.iter().find(|span| span.id == request.parent).unwrap();
        assert_eq!(
            (parent.kind, parent.trace.as_str()),
            (CLIENT, request.trace.as_str())
        );
        assert_eq!(
            (parent.parent.as_str(), parent.service.as_str()),
            ("", "queuescope-traffic")
        );
        assert!(parent.start <= request.start, "one machine's clock");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_standard_variables_work_and_a_flag_is_over_them() {
    let (collector, other) = (Collector::start().await, Collector::start().await);
    let server = sim(|_| {});
    let probe = |by: &Collector, flags: &[&str]| {
        let mut command = queuescope(&["probe", &url(server.addr())]);
        command.args("--output-len 2 --upstream-kind server".split(' '));
        command
            .args(flags)
            .env("OTEL_EXPORTER_OTLP_ENDPOINT", url(by.http))
            .env("OTEL_EXPORTER_OTLP_HEADERS", "x-key=a%20b")
            .env("OTEL_SERVICE_NAME", "named")
            .env(
                "OTEL_RESOURCE_ATTRIBUTES",
                "deployment.environment.name=test",
            );
        command
    };
    let ok = async |command: Command| {
        let done = run_aside(command).await;
        assert_eq!(done.code, Some(0), "{} {}", done.out, done.err);
        done.out
    };
    ok(probe(&collector, &[])).await;
    assert_eq!(collector.header("x-key").as_deref(), Some("a b"));
    let spans = collector.spans();
    let request = one(&spans, "POST /generate", CLIENT);
    assert_eq!(
        (request.service.as_str(), request.parent.as_str()),
        ("named", "")
    );
    assert!(
        spans
            .iter()
            .any(|span| span.name == "prefill" && span.parent == request.id),
        "nobody else tells them"
    );
    let to = url(collector.grpc);
    let flags = ["--otlp-endpoint", &to, "--otlp-protocol", "grpc"];
    ok(probe(&other, &flags)).await;
    assert_eq!((collector.traces(), other.traces()), (2, 0));
    let mut off = probe(&collector, &[]);
    off.env("OTEL_SDK_DISABLED", "true");
    ok(off).await;
    assert_eq!(collector.traces(), 2);
    let told = server.served().into_iter().filter_map(|s| s.traceparent);
    let flags: Vec<String> = told.map(|told| told[53..].to_owned()).collect();
    assert_eq!(flags, ["01", "01", "01"], "the servers may make spans too");
    let wrong = run_aside(probe(&collector, &["--otlp-endpoint", "ftp://a"])).await;
    assert_eq!(wrong.code, Some(2));
    assert_says(&wrong.err, "--otlp-endpoint: must be http:// or https://");
    let flags = ["--otlp-endpoint", "http://127.0.0.1:1"];
    let lost = ok(probe(&collector, &flags)).await;
    assert_says(
        &lost,
        "note: the spans of 1 request did not get to http://127.0.0.1:1",
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_generators_spans_hold_no_words_of_the_server_and_no_wait_of_its_own() {
    let collector = Collector::start().await;
    let words = "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: 46\r\n\r\n{\"error\":{\"message\":\"no: the prompt's words\"}}";
    let upstream = Upstream::always(words).await;
    let (to, spans_to) = (url(upstream.addr), url(collector.http));
    let probe = queuescope(&["probe", &to, "--otlp-endpoint", &spans_to]);
    let done = run_aside(probe).await;
    assert!(done.out.contains("the prompt's words"), "{}", done.out);
    let spans = collector.spans();
    let request = one(&spans, "POST /generate", CLIENT);
    assert!(
        request.is_error && request.message.starts_with("400"),
        "{request:?}"
    );
    assert!(
        !format!("{spans:?}").contains("the prompt's words"),
        "{spans:?}"
    );
    assert!(
        spans.iter().all(|span| span.name != "client_lag"),
        "{spans:?}"
    );
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
            assert_eq!(
                (exported(), collector.traces() - before),
                (taken, taken as usize),
                "{protocol:?}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_shows_the_collector_and_no_header_and_the_log_names_traces() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.toml");
    std::fs::write(
        &file,
        "[proxy]\nupstream = [\"127.0.0.1:1\"]\n\n[telemetry.otlp]\nendpoint = \"https://c:4317\"\nheaders = [\"x-key: hush\"]\n",
    )
    .unwrap();
    let check = run_aside(queuescope(&["check", "--config", file.to_str().unwrap()])).await;
    let said = check.out;
    assert!(
        said.contains("https://c:4317 by grpc") && !said.contains("hush"),
        "{said}"
    );
    let upstream = Upstream::start(|_, _| vec![crate::support::upstream::Step::Close]).await;
    let process = Process::start(upstream.addr, &[]);
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let mut client = crate::support::wire::Client::connect(process.front).await;
    client
        .ask(
            "/generate",
            &format!("traceparent: 00-{trace}-00f067aa0ba902b7-01\r\n"),
            b"{}",
        )
        .await;
    let line = process.says("/generate failed: upstream_died");
    assert!(line.ends_with(&format!("trace_id={trace}")), "{line}");
}
