//! `queuescope probe` against simulated servers, proxies and the binary itself.

mod command;
mod folders;
mod golden;

use std::net::SocketAddr;

use clap::{Args as _, Command, FromArgMatches as _};
use queuescope::clock::Clock;
use queuescope::experiment::probe::{Args, ProbeResult, probe};
use queuescope::request::Period;
use queuescope::sim::Sim;
use queuescope::sim::config::Config;

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
async fn probed(addr: SocketAddr, more: &str) -> ProbeResult {
    let line = format!("probe http://{addr} --output-len 16 {more}");
    let command = Args::augment_args(Command::new("probe"));
    let args = command.get_matches_from(generator::flags(&line));
    let args = Args::from_arg_matches(&args).unwrap();
    let probed = probe(&args, Clock::system()).await.unwrap();
    assert_eq!(probed.problem, None, "{}", probed.text);
    probed
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_shows_all_that_it_tells_and_the_switch_for_what_it_does_not() {
    // Engine clocks are not ours: this one is an hour ahead.
    let whole = sim(|config| config.clock_skew_s = 3600.0);
    let shown = probed(whole.addr(), "--upstream-kind server").await;
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
    let shown = probed(quiet.addr(), "--upstream-kind server").await;
    assert_says(&shown.text, "--enable-metrics");
    assert_says(&shown.text, "unseen in the server");
    for (backend, path) in [("", "/v1/completions"), ("-chat", "/v1/chat/completions")] {
        let more = format!("--upstream-kind server --backend sglang-oai{backend}");
        let shown = probed(whole.addr(), &more).await;
        assert_says(&shown.text, &format!("{path}: ok, status 200"));
        assert_says(&shown.text, "--engine-traces");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_stands_between_is_named_without_a_hop_and_measured_with_one() {
    let sim = sim(|config| config.clock_skew_s = -5.0);
    let blind = Front::start(sim.addr()).await;
    let shown = probed(blind.addr(), "").await;
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
    let shown = probed(front.addr(), "").await;
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
    // A path below the API's that the server does not have.
    let nowhere = format!("{sim}/nowhere");
    let unreached = format!("error: cannot reach {free}");
    for (url, status, said) in [
        (&*sim, 0, "timestamps are consistent"),
        (&nowhere, 1, "the request failed: client_error"),
        (&free, 1, &unreached),
        ("localhost:30000", 2, "must be like http://127.0.0.1:30000"),
    ] {
        let done = run(queuescope(&["probe", url]));
        done.assert_status(&[status]);
        assert_says(&(done.out + &done.err), said);
    }
}
