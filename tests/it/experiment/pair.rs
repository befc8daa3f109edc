//! Experiments with servers that prefill and servers that decode, behind the real routers.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use futures_util::stream;
use queuescope::experiment::launch::{Deployment, DeploymentSpec};
use queuescope::report::findings::RunReport;
use queuescope::report::reader;
use tokio::time::{sleep, timeout};

use super::Planned;
use super::{routed, started, words};
use crate::support::process::PROGRAM;
use crate::support::proxy::{Row, assert_cells, number, rows};
use crate::support::router::Which;
use crate::support::wire::{Client, PATIENCE};

/// One server of each kind behind a router.
fn plan(router: Which, lines: &str) -> Planned {
    let router = router.program();
    let router = router.display();
    Planned::new(&format!(
        "num_prefill = 1\nnum_decode = 1\nrouter_program = '{router}'\nrouting_policy = 'round_robin'\n{lines}"
    ))
}

fn loaded(plan: &Planned) -> reader::Run {
    let loaded = reader::load(&[plan.path("")]).unwrap();
    loaded.runs.into_iter().next().unwrap()
}

/// Each of these makes one part of a pair the narrow one, and the report names it, by the rows of generator and proxy.
#[test]
fn what_is_narrow_is_named() {
    let narrow = [
        ("decode.max_total_tokens = 200", "Decode is full"),
        ("decode.max_running_requests = 2", "Decode's batch is full"),
        (
            "prefill.prefill_floor_ms = 40\nprefill.chunked_prefill_size = 30",
            "Prefill is too slow",
        ),
        ("prefill.transfer_ms = 40", "The link is too slow"),
    ];
    let both = Which::ALL.map(|which| narrow.map(|(lines, title)| (which, lines, title)));
    for (which, lines, title) in both.into_iter().flatten() {
        let lines = format!("num_prompts = 40\nbackend = 'sglang-oai-chat'\n{lines}");
        let plan = plan(which, &lines);
        plan.ran("node", &["--random-output-len", "30"]);
        let run = loaded(&plan);
        let report = RunReport::of(&run);
        let mut titles = report.findings.iter().map(|of| &of.title);
        let is_named = titles.any(|found| found.starts_with(title));
        assert!(is_named, "{which:?}: {lines}: {:#?}", report.findings);
        // The proxy's rows tell of chat, too.
        let unseen = words(&run.table, "unseen");
        assert!(!unseen.iter().any(|why| why.contains("engine_stream")));
        // Its generator's own file has what only traces tell, too.
        let own = rows(&run.files[0]);
        let told = own.iter().filter(|row| !row["kv_transfer_time"].is_empty());
        let told = told.count();
        assert!(told * 10 >= own.len() * 9, "{which:?}: {lines}: {told}");
        // And so has its summary, in which what is not of the rows stays.
        let summed = run.summary_as::<usize>("/latency/kv_transfer_time/count");
        assert!(summed > Some(0), "{which:?}: {lines}: {:#}", run.summary);
        assert!(run.verdict().is_some(), "{:#}", run.summary);
        plan.assert_nothing_is_left();
    }
}

/// The decode server dies: each request has one row, and those before are told whole.
#[test]
fn a_killed_server_of_a_pair_is_seen() {
    Which::ALL.into_iter().for_each(killed_decode_server);
}

/// The router waits for prefill, and that for its decode server: 300 s with SGLang.
const KILLED: &str = "num_prompts = 200\nrequest_rate = 100\nrequest_timeout_s = 4\nfailure_schedule = { '1.5' = [2] }";

fn killed_decode_server(which: Which) {
    let plan = plan(which, KILLED);
    plan.ran("routing", &["--random-output-len", "30"]);
    let run = loaded(&plan);
    assert_eq!(run.table.len(), 200);
    let [prefill, decode] = &run.file.as_ref().unwrap().servers[..] else {
        panic!("{:?}", run.file);
    };
    assert_eq!((&*prefill.name, &*decode.name), ("prefill-1", "decode-1"));
    let faults = std::fs::read_to_string(run.dir.join("faults.csv")).unwrap();
    assert!(faults.contains(",decode-1,kill,down"), "{faults}");
    let own = rows(&run.files[0]);
    let (good, bad): (Vec<&Row>, Vec<&Row>) = own.iter().partition(|row| row["outcome"] == "ok");
    assert!(!good.is_empty() && !bad.is_empty(), "{}", good.len());
    for row in &good {
        let [prefill, decode] = [&*prefill.host, &decode.host];
        assert_cells(row, [("prefill_host", prefill), ("host", decode)]);
    }
    // The last half second's spans died with it.
    let is_told = |row: &&&Row| !row["decode_bootstrap_time"].is_empty();
    let told = good.iter().filter(is_told).count();
    assert!(told >= 20, "{told} of {}", good.len());
    // Without a decode server the router refuses what comes.
    let all = rows(&run.dir.join("proxy.csv"));
    let refused = all.iter().filter(|row| row["ended_in"] == "router");
    assert!(refused.count() >= 20, "{which:?}");
    let unavailable = all
        .iter()
        .filter(|row| row["error"].contains("No available"));
    unavailable.for_each(|row| assert_cells(row, [("ended_in", "router")]));
    plan.assert_nothing_is_left();
}

/// Simulated servers by what they do, the first of which prefill, behind a router, each with a hop.
fn pair_of(which: Which, modes: &[&str], flags: &str, folder: &Path) -> DeploymentSpec {
    let server = |mode: &&str| {
        let line =
            format!("sim --disaggregation-mode {mode} --enable-trace --tokenize-ms 0 {flags}");
        started(PROGRAM, &line)
    };
    DeploymentSpec {
        servers: modes.iter().map(server).collect(),
        prefill: modes.iter().filter(|mode| **mode == "prefill").count(),
        traces: true,
        ..routed(which, folder)
    }
}

/// The proxy's file of what runs while `ask` goes on.
async fn told(spec: &DeploymentSpec, ask: impl AsyncFnOnce(SocketAddr, &Deployment)) -> PathBuf {
    let deployment = Deployment::start(spec).await.unwrap();
    let front = deployment.target["http://".len()..].parse().unwrap();
    ask(front, &deployment).await;
    deployment.stop().await;
    spec.dir.join("proxy.csv")
}

const BURST: usize = 24;
/// So many requests at once, none of which leaves.
async fn burst(front: SocketAddr) {
    let all = (0..BURST).map(|number| timeout(PATIENCE, one(front, number * 40 + 1)));
    for ended in join_all(all).await {
        ended.unwrap();
    }
}

/// smg sends no more to a prefill server than it may have: what waits for that is in the router's queue.
#[tokio::test(flavor = "multi_thread")]
async fn what_smg_admits_later_waits_in_the_router() {
    let flags = "--prefill-floor-ms 20 --chunked-prefill-size 30";
    let queued = async |more: &[&str]| {
        let folder = tempfile::tempdir().unwrap();
        let mut spec = pair_of(Which::Smg113, &["prefill", "decode"], flags, folder.path());
        spec.router_flags = more.iter().map(ToString::to_string).collect();
        let rows = rows(&told(&spec, async |front, _| burst(front).await).await);
        let queued = rows.iter().map(|row| number(row, "queue_time_in_router"));
        let mut queued: Vec<f64> = queued.collect();
        assert_eq!(queued.len(), BURST);
        queued.sort_by(f64::total_cmp);
        queued[BURST / 2]
    };
    let one_at_once = ["--prefill-max-inflight-requests-per-worker", "1"];
    let (held, free) = (queued(&one_at_once).await, queued(&[]).await);
    // A dozen before it take 20 ms each.
    assert!(held > free + 0.1, "{held} {free}");
}

const REQUESTS: usize = 2000;

/// One request; one of 20 leaves before its end.
async fn one(front: SocketAddr, number: usize) {
    let mut client = Client::connect(front).await;
    let id = format!("x-request-id: r{number}\r\ncontent-type: application/json\r\n");
    let body = r#"{"text":"a b c","stream":true,"sampling_params":{"max_new_tokens":20}}"#;
    client.post("/generate", &id, body.as_bytes()).await;
    match number % 40 {
        0 => drop(client.read_until(|reader| !reader.body.is_empty()).await),
        20 => sleep(Duration::from_millis(5)).await,
        _ => drop(client.response().await),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_request_has_one_row_though_some_leave_and_a_prefill_server_dies() {
    for which in Which::ALL {
        let folder = tempfile::tempdir().unwrap();
        let flags = "--decode-step-ms 2 --transfer-lost-s 0.1";
        let modes = ["prefill", "prefill", "decode"];
        let spec = pair_of(which, &modes, flags, folder.path());
        let mut hosts = Vec::new();
        let path = told(&spec, async |front, deployment| {
            let servers = deployment.servers.iter();
            hosts.extend(servers.map(|server| server.file.host.clone()));
            let all = stream::iter(0..REQUESTS).for_each_concurrent(24, async |number| {
                if number == REQUESTS / 2 {
                    deployment.servers[0].kill().await;
                }
                timeout(PATIENCE, one(front, number)).await.unwrap();
            });
            all.await;
        });
        let rows = rows(&path.await);
        let ids: BTreeSet<&str> = rows.iter().map(|row| &*row["req_id"]).collect();
        assert_eq!((rows.len(), ids.len()), (REQUESTS, REQUESTS), "{which:?}");
        let [killed, other, decode] = &hosts[..] else {
            panic!("{hosts:?}");
        };
        for row in &rows {
            if row["outcome"] == "ok" {
                assert_eq!(&row["host"], decode);
                assert!([killed, other].contains(&&row["prefill_host"]));
            }
            // What the dead server had of it failed by that, and says so.
            let is_lost = row["outcome"] == "server_error" && row["status"] == "200";
            assert!(!is_lost || row["error"].contains(&**killed), "{row:?}");
        }
        let left = rows.iter().filter(|row| row["outcome"] == "client_abort");
        assert!(left.count() >= REQUESTS / 80, "{which:?}");
        // What met the dead server was sent again: two legs are one sending.
        let is_once = |row: &&Row| row["outcome"] == "ok" && row["attempts"] == "1";
        let once = rows.iter().filter(is_once).count();
        assert!(once >= REQUESTS / 4, "{which:?}: {once}");
    }
}
