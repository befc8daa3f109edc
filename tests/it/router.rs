//! Through the real sglang-router: traffic → front → router → hops → two simulated servers. The proxy is
//! a process of its own, so its clock is not the generator's, and the router is the one from PyPI.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use clap::Parser;
use queuescope::clock::Clock;
use queuescope::request::record::{COLUMNS, Outcome, Record, Value};
use queuescope::request::timeline::{Moment, Span};
use queuescope::sim::server::{Config, Sim};
use queuescope::traffic::{self, Args, Live, Run, Stop};

use crate::support::proxy::{Row, rows};
use crate::support::router::{Router, free_port};

#[derive(Parser)]
struct CommandLine {
    #[command(flatten)]
    args: Args,
}

/// All that stands between the generator and the servers, and the servers.
struct Stack {
    sims: Vec<Sim>,
    proxy: Proxy,
    _router: Router,
}

/// `queuescope proxy` as a process.
struct Proxy {
    child: Child,
    front: SocketAddr,
    folder: tempfile::TempDir,
}

impl Stack {
    async fn start() -> Stack {
        let sims: Vec<Sim> = (0..2).map(|_| sim()).collect();
        let (front, router, hops) = (free_port(), free_port(), [free_port(), free_port()]);
        let proxy = Proxy::start(front, router, &hops, &sims);
        let router = Router::start_at(router, &hops).await;
        Stack {
            sims,
            proxy,
            _router: router,
        }
    }

    /// 100 requests at 50 a second.
    async fn traffic(&self, name: &str, more: &[&str]) -> Run {
        let url = format!("http://{}", self.proxy.front);
        let fixed = [
            "traffic",
            "--base-url",
            &url,
            "--request-rate",
            "50",
            "--num-prompts",
            "100",
            "--random-input-len",
            "32",
            "--random-output-len",
            "12",
            "--random-range-ratio",
            "0.5",
            "--model",
            "sim-llama",
        ];
        let line = CommandLine::try_parse_from(fixed.iter().chain(more)).unwrap();
        let mut plan = line.args.plan().unwrap();
        plan.request_id_prefix = name.to_owned();
        let live = Arc::new(Live::default());
        traffic::drive(plan, Clock::system(), live, Stop::new())
            .await
            .unwrap()
    }

    /// The server that served each request, as the servers' own logs have it.
    fn served(&self) -> BTreeMap<String, String> {
        let of_sim = |sim: &Sim| {
            let addr = sim.addr().to_string();
            let ids = sim
                .served()
                .into_iter()
                .filter_map(|served| served.x_request_id);
            ids.map(|id| (id, addr.clone())).collect::<Vec<_>>()
        };
        self.sims.iter().flat_map(of_sim).collect()
    }
}

fn sim() -> Sim {
    let mut config = Config {
        port: 0,
        tokenize_ms: 0.5,
        ..Config::default()
    };
    // So few slots that requests queue in the server.
    config.profile.max_running_requests = 3;
    Sim::start(config, Clock::system()).unwrap()
}

impl Proxy {
    fn start(front: SocketAddr, router: SocketAddr, hops: &[SocketAddr], sims: &[Sim]) -> Proxy {
        let folder = tempfile::tempdir().unwrap();
        let workers = hops.iter().zip(sims).enumerate();
        let workers = workers.flat_map(|(n, (hop, sim))| {
            ["--worker".to_owned(), format!("w{n}={hop}={}", sim.addr())]
        });
        let child = Command::new(env!("CARGO_BIN_EXE_queuescope"))
            .args([
                "proxy",
                "--listen",
                &front.to_string(),
                "--upstream",
                &router.to_string(),
            ])
            .args(["--admin", "127.0.0.1:0", "--records"])
            .arg(folder.path().join("records.csv"))
            .args(workers)
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Proxy {
            child,
            front,
            folder,
        }
    }

    /// Ends it in good order and gives the rows it wrote.
    fn rows(&mut self) -> Vec<Row> {
        let pid = nix::unistd::Pid::from_raw(self.child.id() as i32);
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
        assert!(self.child.wait().unwrap().success());
        rows(&self.folder.path().join("records.csv"))
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Columns that a row has whatever the endpoint.
const ALWAYS: &[&str] = &[
    "req_id",
    "host",
    "input_length",
    "expected_output_length",
    "actual_prompt_tokens",
    "actual_output_tokens",
    "actual_total_tokens",
    "decode_length",
    "arrival_time",
    "router_send_time",
    "finish_time",
    "server_latency",
    "total_latency",
    "queue_time_in_router",
    "scheduled_time",
    "sent_time",
    "schedule_lag",
    "status",
    "attempts",
    "trace_id",
    "engine_id",
];
/// Columns that need the engine's own moments.
const ENGINE: &[&str] = &[
    "server_created_time",
    "queue_time_start",
    "queue_time_end",
    "server_first_token_time",
    "ttft",
    "queue_time_in_server",
    "tokenize_time",
    "pure_queue_time",
    "prefill_end_time",
    "prefill_time",
    "network_time",
    "server_queue_wait",
    "clock_offset",
    "clock_offset_error",
];
/// Columns that need a stream.
const STREAM: &[&str] = &[
    "first_token_time",
    "decode_time",
    "ttft_observed",
    "ttft_from_schedule",
    "tpot",
    "itl_mean",
    "itl_p99",
    "itl_max",
];

fn is_filled(record: &Record, name: &str) -> bool {
    let column = COLUMNS.iter().find(|column| column.name == name).unwrap();
    (column.get)(record) != Value::Empty
}

/// A run's rows are all there, right, and as complete as their endpoint allows.
fn check(run: &Run, wanted: &[&[&str]], served: &BTreeMap<String, String>) {
    assert_eq!(run.records.len(), 100);
    for record in &run.records {
        let facts = &record.facts;
        assert_eq!(
            (facts.outcome, facts.error.as_str()),
            (Outcome::Ok, ""),
            "{}",
            facts.req_id
        );
        for name in wanted.iter().copied().flatten() {
            assert!(
                is_filled(record, name),
                "{name} of {} is empty",
                facts.req_id
            );
        }
        assert_eq!(
            facts.host.as_ref(),
            served.get(&facts.req_id),
            "{}",
            facts.req_id
        );
        assert_eq!(record.inconsistency(), "", "{}", facts.req_id);
        check_order(record);
    }
    let arrivals: Vec<_> = run
        .records
        .iter()
        .map(|r| r.timeline.time(Moment::Arrival))
        .collect();
    assert!(arrivals.is_sorted(), "the rows stand in order of arrival");
    for sim in served.values().collect::<std::collections::BTreeSet<_>>() {
        let share = run
            .records
            .iter()
            .filter(|r| r.facts.host.as_ref() == Some(sim))
            .count();
        assert!((40..=60).contains(&share), "{sim} served {share} of 100");
    }
}

/// `router_send_time` lies between arrival and the server's receipt.
fn check_order(record: &Record) {
    let timeline = &record.timeline;
    let error = clock_error(record);
    assert!(
        timeline.nanos(Span::QUEUE_IN_ROUTER).unwrap() >= 0,
        "one clock, so without tolerance"
    );
    if let Some(network) = timeline.nanos(Span::NETWORK) {
        assert!(
            network >= -error,
            "the server received it before the router sent it: {network}"
        );
    }
}

/// How far the engine's moments may be off, nanoseconds: the offset's stated error and a float's rounding.
fn clock_error(record: &Record) -> i64 {
    let error = COLUMNS
        .iter()
        .find(|column| column.name == "clock_offset_error")
        .unwrap();
    match (error.get)(record) {
        Value::Nanos(nanos) => nanos + 1_000,
        _ => 1_000,
    }
}

/// The servers run on the generator's clock here, whatever the proxy's says: the offset that was found
/// between the two must hold 0.
fn check_offsets(run: &Run) {
    let offset = COLUMNS
        .iter()
        .find(|column| column.name == "clock_offset")
        .unwrap();
    for record in &run.records {
        let Value::Nanos(nanos) = (offset.get)(record) else {
            panic!("no offset")
        };
        let error = clock_error(record);
        assert!(
            nanos.abs() <= error,
            "{}: {nanos} ± {error}",
            record.facts.req_id
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_endpoint_and_stream_mode_through_the_real_router() {
    let mut stack = Stack::start().await;
    let mut ids = Vec::new();
    for (name, backend, wanted) in [
        ("generate", "sglang", &[ALWAYS, ENGINE, STREAM][..]),
        ("completions", "sglang-oai", &[ALWAYS, STREAM]),
        ("chat", "sglang-oai-chat", &[ALWAYS, STREAM]),
    ] {
        let run = stack.traffic(name, &["--backend", backend]).await;
        check(&run, wanted, &stack.served());
        if name == "generate" {
            check_offsets(&run);
            let waited = run
                .records
                .iter()
                .filter(|r| r.pure_queue() > Some(1_000_000))
                .count();
            assert!(waited > 10, "requests queued in the servers: {waited}");
        }
        ids.extend(run.records.iter().map(|record| record.facts.req_id.clone()));

        let (name, wanted) = (format!("{name}-whole"), &wanted[..wanted.len() - 1]);
        let run = stack
            .traffic(&name, &["--backend", backend, "--disable-stream"])
            .await;
        check(&run, wanted, &stack.served());
        ids.extend(run.records.iter().map(|record| record.facts.req_id.clone()));
    }
    // The proxy wrote the same requests, each once.
    let mut written: Vec<String> = stack
        .proxy
        .rows()
        .into_iter()
        .map(|mut row| row.remove("req_id").unwrap())
        .collect();
    written.sort();
    ids.sort();
    assert_eq!(written, ids);
}
