//! `queuescope probe` against simulated servers, proxies and the binary itself.

mod command;
mod golden;
mod made;
mod outputs;

use std::net::SocketAddr;
use std::time::Duration;

use queuescope::clock::Clock;
use queuescope::experiment::probe::{Args, ProbeResult, probe};
use queuescope::request::timeline::Period;
use queuescope::sim::config::Config;
use queuescope::sim::server::Sim;
use queuescope::traffic::client::{Target, TlsArgs, UpstreamKind};
use queuescope::traffic::spans::OtlpArgs;
use queuescope::traffic::workload::Backend;

use crate::support::assert_says;
use crate::support::generator;
use crate::support::process::{queuescope, run};
use crate::support::proxy::Front;
use crate::support::router::free_port;

/// A server that makes a token each millisecond.
fn sim(change: impl FnOnce(&mut Config)) -> Sim {
    generator::sim(|config| {
        config.profile.decode_step_ms = 1.0;
        change(config);
    })
}

/// What a probe that went well says.
async fn probed(backend: Backend, addr: SocketAddr, upstream_kind: UpstreamKind) -> ProbeResult {
    let args = Args {
        backend,
        target: Target::parse(&format!("http://{addr}")).unwrap(),
        upstream_kind,
        model: None,
        input_len: 64,
        output_len: 16,
        api_key: None,
        tls: TlsArgs::default(),
        otlp: OtlpArgs::default(),
        request_timeout_s: Duration::from_secs(30),
        json: false,
    };
    let probed = probe(&args, Clock::system()).await.unwrap();
    assert_eq!(probed.problem, None, "{}", probed.text);
    probed
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_shows_all_that_it_tells_and_the_switch_for_what_it_does_not() {
    // Engine clocks are not ours: this one is an hour ahead.
    let whole = sim(|config| config.clock_skew_s = 3600.0);
    let shown = probed(Backend::Sglang, whole.addr(), UpstreamKind::Server).await;
    for said in [
        "/generate: ok, status 200, served by 127.0.0.1:",
        "\nserver queue ",
        "\nprefill ",
        "\ndecode ",
        "the server's clock is 3600.00 s ahead of ours, within ",
        "\ntimestamps are consistent\n",
    ] {
        assert_says(&shown.text, said);
    }
    assert!(!shown.text.contains("--enable-metrics"), "{}", shown.text);

    let quiet = sim(|config| config.metrics = false);
    let shown = probed(Backend::Sglang, quiet.addr(), UpstreamKind::Server).await;
    assert_says(&shown.text, "--enable-metrics");
    assert_says(&shown.text, "unseen in the server");
    for backend in [Backend::SglangOai, Backend::SglangOaiChat] {
        let shown = probed(backend, whole.addr(), UpstreamKind::Server).await;
        assert_eq!(shown.row.endpoint(), backend.endpoint());
        assert_says(&shown.text, "--engine-traces");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_stands_between_is_named_without_a_hop_and_measured_with_one() {
    let sim = sim(|config| config.clock_skew_s = -5.0);
    let blind = Front::start(sim.addr()).await;
    let shown = probed(Backend::Sglang, blind.addr(), UpstreamKind::Router).await;
    for said in [
        // Nobody knows whose clock the engine's moments are on, so both ways to and from it are one.
        "\nrouter queue+network+return\n   ",
        "the router's part was not measured: no worker hop",
        "the server's clock could not be compared with ours",
    ] {
        assert_says(&shown.text, said);
    }
    let hop = Front::hop(sim.addr()).await;
    let front = Front::start(hop.hop_addr()).await;
    let shown = probed(Backend::Sglang, front.addr(), UpstreamKind::Router).await;
    assert!(!shown.text.contains("not measured"), "{}", shown.text);
    let server = sim.addr().to_string();
    assert_eq!(shown.row.host.as_deref(), Some(server.as_str()));
    let in_router = shown.row.timeline.nanos(Period::QUEUE_IN_ROUTER);
    assert!(in_router.is_some_and(|nanos| nanos > 0), "{in_router:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_exit_status_says_how_it_went() {
    let sim = sim(|_| {});
    let sim = format!("http://{}", sim.addr());
    let free = format!("http://{}", free_port());
    for (url, status, said) in [
        (&sim, 0, "timestamps are consistent"),
        // A path below the API's that the server does not have.
        (
            &format!("{sim}/nowhere"),
            1,
            "the request failed: client_error",
        ),
        (&free, 1, &format!("error: cannot reach {free}")),
        (
            &"localhost:30000".into(),
            2,
            "must be like http://127.0.0.1:30000",
        ),
    ] {
        let done = run(queuescope(&["probe", url]));
        done.assert_status(&[status]);
        assert_says(&(done.out + &done.err), said);
    }
}
