//! Plans before anything starts; experiments that come to their end, and the search of the highest rate.

use std::net::TcpListener;
use std::path::PathBuf;

use clap::Parser as _;
use queuescope::clock::Clock;
use queuescope::report::files::{RunRef, RunState, Trial, TrialFile};
use queuescope::report::phases::{Episode, episodes};
use queuescope::report::reader;
use queuescope::request::ColumnId;
use queuescope::stats::Summary;
use queuescope::traffic;

use super::{Planned, words};
use crate::support::process::{Done, queuescope, run};
use crate::support::router::free_port;
use crate::support::{assert_says, read_rows};

#[path = "../../../examples/node_test.rs"]
mod node_test;
#[path = "../../../examples/routing_test.rs"]
mod routing_test;

/// What the only fault of a run did.
fn episode(dir: PathBuf) -> Episode {
    let loaded = reader::load(&[dir]).unwrap();
    let run = &loaded.runs[0];
    let servers = &run.file.as_ref().unwrap().servers;
    let mut found = episodes(&run.table, &run.faults, servers);
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0)
}

/// The built-in example of a command with these flags: what it said, and its first two runs.
fn example(flags: &str) -> (Done, [reader::Run; 2]) {
    let folder = tempfile::tempdir().unwrap();
    let mut command = queuescope(&flags.split(' ').collect::<Vec<_>>());
    command
        .args(["--output-dir", "out"])
        .current_dir(folder.path());
    let done = run(command);
    done.assert_status(&[0, 3]);
    let runs = reader::load(&[folder.path().join("out")]).unwrap().runs;
    (done, runs.try_into().unwrap())
}

/// The mean of what is known: on a busy machine a clock may be known too poorly for a cell.
fn mean(run: &reader::Run, column: &str) -> f64 {
    let (table, id) = (&run.table, ColumnId::named(column).unwrap());
    let values = (0..table.len()).filter_map(|row| table.number(id, row));
    let (all, known) = (table.len() as u64, Summary::of(values).unwrap());
    assert!(2 * known.count > all, "{column}: {known:?} of {all}");
    known.mean
}

/// Where prompts are routed to the server that has them, requests hardly wait; at random, they wait in the router and in the servers'
/// queues.
#[test]
fn the_example_of_routing_has_a_best_policy_and_queues_in_both_places() {
    let (done, [cached, random]) = example("routing --routing-policy cache_aware,random");
    for column in ["queue_time_in_router", "pure_queue_time"] {
        let (less, more) = (mean(&cached, column), mean(&random, column));
        assert!(more > less, "{column}: {less} {more}\n{}", done.out);
        let total = mean(&random, "total_latency");
        assert!(more > 0.05 * total, "{column}: {more}\n{}", done.out);
    }
    // A machine that is too busy to send in time compares nothing.
    let best = "routing_policy=cache_aware, shown against routing_policy=random";
    let is_late = done.code == Some(3);
    assert!(done.out.contains(best) || is_late, "{}", done.out);
}

/// A server that runs too few requests at once has them wait in its queue; one that runs enough does not.
#[test]
fn the_example_of_node_has_a_queue_where_too_few_requests_run() {
    let (done, [few, many]) = example("node --max-running-requests 8,64 --num-prompts 120");
    let [long, short] = [&few, &many].map(|run| mean(run, "pure_queue_time"));
    assert!(long > 10.0 * short, "{long} {short}\n{}", done.out);
    assert!(mean(&many, "ttft") < mean(&few, "ttft"), "{}", done.out);
}

#[test]
fn every_setting_gets_the_same_load_in_a_folder_of_its_own() {
    // With one request at a time it takes two seconds, so that servers' metrics are read more than once.
    let plan = Planned::new(
        "max_running_requests = [1, 8]\nrepeats = 2\nrequest_rate = 100\nnum_prompts = 60",
    );
    let done = plan.ran("node", &[]);
    assert_says(&done.out, "4 runs, about ");
    let experiment = plan.experiment();
    assert_eq!(experiment.kind, "node");
    assert_eq!(experiment.keys, ["max_running_requests"]);
    let dirs: Vec<&str> = experiment.runs.iter().map(|run| run.dir.as_str()).collect();
    assert_eq!(
        dirs,
        [
            "runs/01-max_running_requests=1",
            "runs/02-max_running_requests=8",
            "runs/03-max_running_requests=1-r2",
            "runs/04-max_running_requests=8-r2",
        ]
    );
    assert_eq!(plan.states(), [RunState::Done; 4]);
    // When each request was due, and how long it was to be.
    let schedule = |dir: &str| {
        let text = std::fs::read_to_string(plan.path(dir).join("schedule.csv")).unwrap();
        let first_four = |line: &str| line.splitn(5, ',').take(4).collect::<Vec<_>>().join(",");
        text.lines().map(first_four).collect::<Vec<_>>()
    };
    assert_eq!(schedule(dirs[0]).len(), 61);
    assert_eq!(schedule(dirs[0]), schedule(dirs[1]));
    assert_eq!(schedule(dirs[2]), schedule(dirs[3]));
    // Each repeat has a seed of its own.
    assert_ne!(schedule(dirs[0]), schedule(dirs[2]));
    let run = plan.run_file("02-max_running_requests=8").unwrap();
    assert_eq!(run.servers.len(), 1);
    let process = &run.processes[0];
    assert_says(&process.command, "--max-running-requests 8");
    let log = std::fs::read_to_string(plan.path(dirs[1]).join(&process.log)).unwrap();
    assert_eq!(log.lines().next(), Some(&*format!("$ {}", process.command)));
    let series = std::fs::read_to_string(plan.path(dirs[1]).join("series.csv")).unwrap();
    assert_says(&series, ",metrics,server-1,");
    assert!(!series.contains(",records,"), "{series}");
    for file in ["experiment.toml", "summary.csv", "comparison.json"] {
        assert!(plan.path(file).is_file(), "{file}");
    }
    plan.assert_nothing_is_left();
}

#[test]
fn a_run_that_fails_is_noted_and_the_others_go_on() {
    let taken = TcpListener::bind(free_port()).unwrap();
    let port = taken.local_addr().unwrap().port();
    let plan = Planned::new("request_rate = 200\nnum_prompts = 10");
    let done = plan.run("node", &["--base-port", &format!("{port},0")]);
    // 3 where the other is INVALID on a busy machine.
    done.assert_status(&[1, 3]);
    assert_eq!(plan.states(), [RunState::Failed, RunState::Done]);
    let failed = plan.run_file(&format!("01-base_port={port}")).unwrap();
    let why = failed.error.unwrap();
    assert_says(&why, &format!(": port {port} cannot be opened"));
    assert_says(&done.out, &format!("failed: base_port={port}: "));
    // What failed is done again when it is asked for, and only that.
    drop(taken);
    let kept = || std::fs::read(plan.path("runs/02-base_port=0/requests.csv")).unwrap();
    let before = kept();
    plan.resumed("node");
    assert_eq!(plan.states(), [RunState::Done; 2]);
    assert_eq!(kept(), before);
    plan.assert_nothing_is_left();
}

#[test]
fn starts_that_fail_from_the_first_on_are_tried_twice() {
    let plan = Planned::new(
        "max_running_requests = [1, 2, 4]\npython = '/no/such/python'\nmodel_path = '/no/model'",
    );
    let done = plan.run("node", &["--engine", "sglang"]);
    done.assert_status(&[1]);
    assert_eq!(
        plan.states(),
        [RunState::Failed, RunState::Failed, RunState::Planned]
    );
    let told = "not tried: 1 run, as none of the first 2 could be started";
    assert_says(&done.err, told);
    assert_says(&done.out, told);
    assert_says(&done.err, "the program is not there");
}

/// A killed server breaks what it has under way and refuses the rest; what a hop resets is in its rows.
#[test]
fn servers_behind_the_balancer_share_the_load_and_one_that_fails_is_seen() {
    for (kind, policies) in [
        ("kill", "['round_robin', 'shortest_queue']"),
        ("reset", "'round_robin'"),
    ] {
        let plan = Planned::new(&format!(
            "num_gpus = 2\nrouting_policy = {policies}\nrequest_rate = 100\nnum_prompts = 200\n\
             failure_kind = '{kind}'\nfailure_schedule = {{ '0.5' = [1], 1 = [] }}"
        ));
        // Long enough that a kill breaks some that are under way.
        plan.ran("routing", &["--random-output-len", "30"]);
        let runs = plan.experiment().runs;
        assert!(runs.iter().all(|run| run.state == RunState::Done));
        for run in runs {
            assert_fault_is_seen(&plan, &run, kind);
        }
        plan.assert_nothing_is_left();
    }
}

fn assert_fault_is_seen(plan: &Planned, run: &RunRef, kind: &str) {
    let dir = plan.path(&run.dir);
    let table = read_rows(&dir.join("requests.csv"));
    assert_eq!(table.len(), 200, "every request has a row");
    let faults = std::fs::read_to_string(dir.join("faults.csv")).unwrap();
    let events = faults.lines().skip(1);
    let events = events.filter_map(|line| line.rsplit(',').next());
    let events: Vec<&str> = events.collect();
    let name = run.dir.strip_prefix("runs/").unwrap();
    let file = plan.run_file(name).unwrap();
    let policy = run.settings.get("routing_policy");
    let policy = policy.map_or("round_robin", |policy| policy.as_str().unwrap());
    assert_eq!(file.router.unwrap(), format!("builtin {policy}"));
    if kind == "reset" {
        assert_eq!(events, ["down", "up", "ready"], "{faults}");
    } else {
        // The run may end before the server has started again.
        assert_eq!(events[..2], ["down", "up"], "{faults}");
        let servers = file.servers.iter().map(|server| server.host.clone());
        assert_eq!(words(&table, "host"), servers.collect());
        for row in 0..table.len() {
            let [host, outcome] = [ColumnId::host, ColumnId::outcome].map(|of| table.text(of, row));
            let broke = (&*file.servers[0].host, "upstream_died");
            let is_broken = (host, outcome) == broke;
            assert!(outcome == "ok" || is_broken, "{host}: {outcome}");
        }
    }
    let found = episode(dir);
    let [before, during, _] = found
        .phases
        .each_ref()
        .map(|phase| phase.failed.values().sum());
    let during: usize = during;
    assert!(before == 0 && during > 0, "{found:?}");
}

/// A runtime that waits for another panics.
#[tokio::test]
async fn the_same_from_rust_where_a_runtime_runs_already() {
    let nowhere = ["traffic", "--base-url", "http://127.0.0.1:1"];
    let args = traffic::Args::try_parse_from(nowhere).unwrap();
    let refused = traffic::run(&args, Clock::system()).unwrap_err();
    assert_says(&refused.message, "cannot reach http://127.0.0.1:1");
    let folder = tempfile::tempdir().unwrap();
    let [node, routing] = ["node", "routing"].map(|name| folder.path().join(name));
    node_test::run(Some(node.clone())).unwrap();
    routing_test::run(Some(routing.clone())).unwrap();
    for file in [
        node.join("runs/02-max_running_requests=8/requests.csv"),
        routing.join("runs/02-routing_policy=random/proxy.csv"),
    ] {
        assert!(file.is_file(), "{file:?}");
    }
}

/// A request of 8 tokens of 4 ms each, one at a time: at most 1 / (7 × 4 ms) can be served in a second, whatever the machine.
const MOST: f64 = 1.0 / (7.0 * 0.004);

#[test]
fn the_highest_rate_is_near_what_the_server_can_do() {
    let plan = Planned::new(
        "max_running_requests = 1\nfind_max_rate = true\ngoodput = ['e2el:400']\ngoodput_share = 0.9\nrequest_rate = 20\n\
         probe_s = 3\nrate_precision = 0.2",
    );
    let done = plan.ran("node", &[]);
    let found = plan.experiment().max_rate.unwrap();
    let met = found.met.unwrap();
    let above = [found.missed, found.invalid].into_iter().flatten();
    let above = above.min_by(f64::total_cmp).unwrap();
    // A machine that is busy with other things finds less, never more: at twice the rate the queue grows by seconds.
    assert!(met > MOST / 8.0 && met < MOST * 1.25, "{found:?}");
    assert!(above <= met * 1.2, "{found:?}");
    let told =
        format!("Highest rate at which 90.0 % of requests keep e2el:400: {met:.2} requests/s");
    assert_says(&done.out, &told);
    // What was scheduled, and how many kept the limits, of each trial.
    let trials = found.trials;
    let of_met = trials.iter().rfind(|trial| trial.rate == met).unwrap();
    assert_eq!(of_met.result, Trial::Met);
    assert!(of_met.kept >= 0.9, "{trials:?}");
    let is_exact = |trial: &TrialFile| (trial.drawn.unwrap() / trial.rate - 1.0).abs() < 1e-4;
    assert!(trials.iter().all(is_exact), "{trials:?}");
    assert_eq!(trials.len(), plan.experiment().runs.len());
    assert_says(&done.out, " % kept them  met\n");
    assert_eq!(plan.experiment().keys, ["request_rate"]);
    plan.assert_nothing_is_left();
}

#[test]
fn a_trial_that_fails_ends_the_search_and_those_before_it_are_told() {
    // Begins once, and fails from then on.
    let script = "mkdir began || exit 9\nexec \"$QUEUESCOPE\" sim $3 $4 $5 $6 --decode-step-ms 4";
    let lines = "max_running_requests = 8\nfind_max_rate = true\ngoodput = ['e2el:4000']\ngoodput_share = 0.5\n\
        request_rate = 20\nprobe_s = 1";
    let plan = Planned::by_script(script, lines);
    let done = plan.run("node", &["--engine", "sglang"]);
    done.assert_status(&[1]);
    let found = plan.experiment().max_rate.unwrap();
    // Of a trial on a machine too busy to send in time nothing is told.
    let is_late = done.err.contains("INVALID");
    let met = (!is_late).then_some(20.0);
    assert_eq!((found.met, found.trials.len()), (met, 1), "{}", done.err);
    let told = "note: the search ended with trial 2: server-1 ended";
    assert_says(&done.out, told);
    let highest = done.out.contains("Highest rate at which 50.0 %");
    assert!(highest || is_late, "{}", done.out);
}

#[test]
fn a_goal_that_cannot_be_measured_or_kept_ends_the_search() {
    for (goal, more, code, told) in [
        (
            "ttft:500",
            "disable_stream = true",
            1,
            "ttft:500 cannot be measured: 20 of 20 requests have no such latency",
        ),
        ("e2el:0.1", "", 0, "no lower rate can keep them"),
    ] {
        let plan = Planned::new(&format!(
            "find_max_rate = true\ngoodput = ['{goal}']\ngoodput_share = 0.5\nrequest_rate = 5\nprobe_s = 1\n{more}"
        ));
        // On a busy machine trials may be INVALID.
        let done = plan.run("node", &[]);
        let trials = plan.experiment().runs.len();
        let note = format!("note: the search ended with trial {trials}: ");
        assert_says(&done.out, &note);
        assert_says(&done.out, told);
        assert!(done.code == Some(code) || done.code == Some(3), "{done:?}");
    }
}

#[test]
fn a_plan_that_is_no_text_is_told() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&file, [0xff]).unwrap();
    let done = run(queuescope(&["node", file.path().to_str().unwrap()]));
    done.assert_status(&[2]);
    let told = "stream did not contain valid UTF-8; give the path of a plan";
    assert_says(&done.err, told);
}

/// What an exporter's variables say of a proxy is nothing to a plan without one. How plans are shown: `proxy/process.rs`.
#[test]
fn a_plan_without_a_proxy_minds_no_variables_of_one() {
    let mut unproxied = queuescope(&["node", "--print-plan", "--otlp-protocol", "http/protobuf"]);
    unproxied.env("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318");
    unproxied.env("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json");
    run(unproxied).assert_status(&[0]);
}
