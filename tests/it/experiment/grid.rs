//! Experiments that come to their end.

use std::net::TcpListener;
use std::path::PathBuf;

use queuescope::report::files::{RunRef, RunState};
use queuescope::report::phases::{Episode, Phase, episodes};
use queuescope::report::reader;
use queuescope::request::columns::ColumnId;
use queuescope::table::Table;

use super::deployed::words;
use super::started::Planned;
use crate::support::assert_says;
use crate::support::process::{Done, queuescope, run};
use crate::support::router::free_port;

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

fn failed(phase: &Phase) -> usize {
    phase.failed.values().sum()
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

fn mean(run: &reader::Run, column: &str) -> f64 {
    let values = run
        .table
        .first_rows()
        .filter_map(|row| run.table.number(ColumnId::named(column).unwrap(), row));
    let values: Vec<f64> = values.collect();
    values.iter().sum::<f64>() / values.len() as f64
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
    assert!(
        done.out.contains(best) || done.code == Some(3),
        "{}",
        done.out
    );
}

/// A server that runs too few requests at once has them wait in its queue; one that runs enough does not.
#[test]
fn the_example_of_node_has_a_queue_where_too_few_requests_run() {
    let (done, [few, many]) = example("node --max-running-requests 8,64 --num-prompts 120");
    let (long, short) = (
        mean(&few, "pure_queue_time"),
        mean(&many, "pure_queue_time"),
    );
    assert!(long > 10.0 * short, "{long} {short}\n{}", done.out);
    assert!(mean(&many, "ttft") < mean(&few, "ttft"), "{}", done.out);
}

#[test]
fn every_setting_gets_the_same_load_in_a_folder_of_its_own() {
    // With one request at a time it takes two seconds, so that servers' metrics are read more than once.
    let plan = Planned::new(
        "max_running_requests = [1, 8]\nrepeats = 2\nrequest_rate = 100\nnum_prompts = 60",
    );
    let done = plan.run("node", &[]);
    done.assert_status(&[0, 3]);
    assert_says(&done.out, "4 runs, each setting 2 times");
    let experiment = plan.experiment();
    assert_eq!(
        (experiment.kind.as_str(), experiment.keys),
        ("node", vec!["max_running_requests".to_owned()])
    );
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
        let rows = text
            .lines()
            .map(|line| line.split(',').take(4).collect::<Vec<_>>().join(","));
        rows.collect::<Vec<_>>()
    };
    assert_eq!(schedule(dirs[0]).len(), 61);
    assert_eq!(schedule(dirs[0]), schedule(dirs[1]));
    assert_eq!(schedule(dirs[2]), schedule(dirs[3]));
    assert_ne!(
        schedule(dirs[0]),
        schedule(dirs[2]),
        "each repeat has a seed of its own"
    );
    let run = plan.run_file("02-max_running_requests=8").unwrap();
    assert_eq!(run.servers.len(), 1);
    assert!(
        run.processes[0]
            .command
            .contains("--max-running-requests 8"),
        "{run:?}"
    );
    let log = std::fs::read_to_string(plan.path(dirs[1]).join(&run.processes[0].log)).unwrap();
    assert!(
        log.starts_with(&format!("$ {}\n", run.processes[0].command)),
        "{log}"
    );
    let series = std::fs::read_to_string(plan.path(dirs[1]).join("series.csv")).unwrap();
    assert!(
        series.contains(",metrics,server-1,") && !series.contains(",records,"),
        "{series}"
    );
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
    let kept = std::fs::read(plan.path("runs/02-base_port=0/requests.csv")).unwrap();
    let done = plan.resume("node", &[]);
    done.assert_status(&[0, 3]);
    assert_eq!(plan.states(), [RunState::Done; 2]);
    assert_eq!(
        std::fs::read(plan.path("runs/02-base_port=0/requests.csv")).unwrap(),
        kept
    );
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
    assert!(
        done.err.contains(told) && done.out.contains(told),
        "{}\n{}",
        done.out,
        done.err
    );
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
        let done = plan.run("routing", &["--random-output-len", "30"]);
        done.assert_status(&[0, 3]);
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
    let table = Table::read(&dir.join("requests.csv")).unwrap();
    assert_eq!(table.len(), 200, "every request has a row");
    let faults = std::fs::read_to_string(dir.join("faults.csv")).unwrap();
    let events = faults.lines().skip(1);
    let events: Vec<&str> = events
        .map(|line| line.rsplit(',').next().unwrap())
        .collect();
    assert_eq!(events[..2], ["down", "up"], "{faults}");
    let name = run.dir.strip_prefix("runs/").unwrap();
    let file = plan.run_file(name).unwrap();
    let policy = run.settings.get("routing_policy");
    let policy = policy.map_or("round_robin", |policy| policy.as_str().unwrap());
    assert_eq!(file.router.unwrap(), format!("builtin {policy}"));
    if kind == "kill" {
        let servers = file.servers.iter().map(|server| server.host.clone());
        assert_eq!(words(&table, "host"), servers.collect());
        for row in (0..table.len()).filter(|row| table.text(ColumnId::outcome, *row) != "ok") {
            let broke = (
                table.text(ColumnId::host, row),
                table.text(ColumnId::outcome, row),
            );
            assert_eq!(broke, (&*file.servers[0].host, "upstream_died"));
        }
    }
    let found = episode(dir);
    let [before, during, _] = &found.phases;
    assert_eq!(failed(before), 0, "{found:?}");
    assert!(failed(during) > 0, "{found:?}");
    let said = &found.faults[0].left.said;
    // So few requests may have gone elsewhere by chance.
    let known = ["traffic left it within", "traffic did not leave it"];
    assert!(
        known.iter().any(|known| said.starts_with(known)),
        "{found:?}"
    );
}

#[test]
fn the_same_from_rust() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("out");
    node_test::run(Some(dir.clone())).unwrap();
    assert!(
        dir.join("runs/02-max_running_requests=8/requests.csv")
            .is_file()
    );
    let dir = folder.path().join("routing");
    routing_test::run(Some(dir.clone())).unwrap();
    assert!(
        dir.join("runs/02-routing_policy=random/proxy.csv")
            .is_file()
    );
}
