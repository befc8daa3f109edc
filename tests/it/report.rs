//! `queuescope probe` against simulated servers, proxies and the binary itself.

mod command;
mod golden;
mod made;
mod outputs;

use std::net::TcpListener;

use queuescope::clock::Clock;
use queuescope::experiment::probe::{Args, Probed, probe};
use queuescope::request::timeline::{Moment, Period};
use queuescope::sim::config::Config;
use queuescope::sim::server::Sim;
use queuescope::traffic::client::{Target, TlsArgs, UpstreamKind};
use queuescope::traffic::spans::OtlpArgs;
use queuescope::traffic::workload::Backend;

use crate::support::assert_says;
use crate::support::generator;
use crate::support::process::{Done, queuescope, run};
use crate::support::proxy::Front;

fn sim(change: impl FnOnce(&mut Config)) -> Sim {
    generator::sim(|config| {
        config.profile.decode_step_ms = 1.0;
        change(config);
    })
}

async fn probed(url: &str, upstream_kind: UpstreamKind) -> Probed {
    probed_by(Backend::Sglang, url, upstream_kind).await
}

async fn probed_by(backend: Backend, url: &str, upstream_kind: UpstreamKind) -> Probed {
    let args = Args {
        backend,
        target: Target::parse(url).expect("a good URL"),
        upstream_kind,
        model: None,
        input_len: 64,
        output_len: 16,
        api_key: None,
        tls: TlsArgs::default(),
        otlp: OtlpArgs::default(),
        request_timeout_s: std::time::Duration::from_secs(30),
        json: false,
    };
    probe(&args, Clock::system()).await.expect("an answer")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_shows_all() {
    // Engine clocks are not ours: this one is an hour ahead.
    let sim = sim(|config| config.clock_skew_s = 3600.0);
    let probed = probed(&format!("http://{}", sim.addr()), UpstreamKind::Server).await;
    assert_eq!(probed.wrong, None, "{}", probed.text);
    for said in [
        "/generate: ok, status 200, served by 127.0.0.1:",
        "\nserver queue ",
        "\nprefill ",
        "\ndecode ",
        "the server's clock is 3600.00 s ahead of ours, within ",
        "\ntimestamps are consistent\n",
    ] {
        assert_says(&probed.text, said);
    }
    assert!(!probed.text.contains("--enable-metrics"), "{}", probed.text);
    assert!(
        probed
            .text
            .lines()
            .filter(|line| line.contains('█'))
            .all(|l| l.chars().count() <= 100)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_metrics_is_told_the_switch() {
    let sim = sim(|config| config.metrics = false);
    let probed = probed(&format!("http://{}", sim.addr()), UpstreamKind::Server).await;
    assert_eq!(probed.wrong, None, "{}", probed.text);
    assert!(probed.text.contains("--enable-metrics"), "{}", probed.text);
    assert!(
        probed.text.contains("unseen in the server"),
        "{}",
        probed.text
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_openai_stream_is_told_where_its_timings_are() {
    let sim = sim(|_| {});
    for backend in [Backend::SglangOai, Backend::SglangOaiChat] {
        let url = format!("http://{}", sim.addr());
        let probed = probed_by(backend, &url, UpstreamKind::Server).await;
        assert_eq!(probed.wrong, None, "{}", probed.text);
        assert_eq!(probed.record.endpoint(), backend.endpoint());
        assert!(probed.text.contains("--engine-traces"), "{}", probed.text);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_stands_between_without_a_hop_is_named() {
    let sim = sim(|_| {});
    let front = Front::start(sim.addr()).await;
    let probed = probed(&format!("http://{}", front.addr()), UpstreamKind::Router).await;
    assert_eq!(probed.wrong, None, "{}", probed.text);
    for said in [
        // Nobody knows whose clock the engine's moments are on, so both ways to and from it are one.
        "\nrouter queue+network+return\n   ",
        "the router's part was not measured: no worker hop",
        "the server's clock could not be compared with ours",
    ] {
        assert_says(&probed.text, said);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn through_front_and_hop_nothing_is_missing() {
    let sim = sim(|config| config.clock_skew_s = -5.0);
    let server = sim.addr().to_string();
    let hop = Front::hop(sim.addr()).await;
    let front = Front::start(hop.hop_addr()).await;
    let probed = probed(&format!("http://{}", front.addr()), UpstreamKind::Router).await;
    assert_eq!(probed.wrong, None, "{}", probed.text);
    assert!(!probed.text.contains("not measured"), "{}", probed.text);
    assert_eq!(probed.record.host.as_deref(), Some(server.as_str()));
    let timeline = &probed.record.timeline;
    assert!(timeline.raw(Moment::WorkerArrival).is_some());
    assert!(
        timeline
            .nanos(Period::QUEUE_IN_ROUTER)
            .is_some_and(|nanos| nanos > 0)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_exit_status_says_how_it_went() {
    let sim = sim(|_| {});
    let run = |url: String| {
        let Done { code, out, err } = run(queuescope(&["probe", &url]));
        (code, out, err)
    };
    let (code, out, _) = run(format!("http://{}", sim.addr()));
    assert_eq!(code, Some(0), "{out}");
    assert!(out.contains("timestamps are consistent"), "{out}");

    // A path below the API's that the server does not have.
    let (code, out, _) = run(format!("http://{}/nowhere", sim.addr()));
    assert_eq!(code, Some(1), "{out}");
    assert!(out.contains("the request failed: client_error"), "{out}");

    let free = TcpListener::bind("127.0.0.1:0")
        .expect("a port")
        .local_addr()
        .expect("its number");
    let (code, _, err) = run(format!("http://{free}"));
    assert_eq!(code, Some(1), "{err}");
    assert!(
        err.starts_with(&format!("error: cannot reach http://{free}")),
        "{err}"
    );
    assert_eq!(err.lines().count(), 1, "{err}");

    let (code, _, err) = run("localhost:30000".to_owned());
    assert_eq!(code, Some(2), "{err}");
    assert!(err.contains("must be like http://127.0.0.1:30000"), "{err}");
    assert_eq!(err.lines().count(), 1, "{err}");
}
