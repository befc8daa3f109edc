use std::path::Path;

use super::*;
use crate::experiment::launch::{DeploymentSpec, ServerSpec};
use ExperimentKind::{Node, Routing};

fn plan(kind: ExperimentKind, text: &str) -> Result<Plan, Error> {
    Plan::new(kind, Vec::new(), grid::file(text)?)
}

fn spec(settings: &Settings) -> DeploymentSpec {
    deploy::spec(settings, Path::new("/x"), Path::new("q")).unwrap()
}

/// Valid plans, each followed by its runs: what is started for them, and how they are loaded.
const VALID: &str = "tests/data/experiment/right-plans.txt";

fn describe(kind: ExperimentKind, text: &str) -> String {
    let plan = plan(kind, text).unwrap_or_else(|error| panic!("{text}: {error}"));
    let runs = plan.runs.iter().map(|run| {
        let (found, load) = (spec(&run.settings), &run.settings.load);
        let servers = found.servers.iter().map(|server| match server {
            ServerSpec::Started(line) => {
                format!("\n  {} {}", line.program.display(), line.args.join(" "))
            }
            ServerSpec::Running(url) => format!("\n  {url}"),
        });
        let logs = deploy::engine_logs(&run.settings, Path::new("/x"));
        format!(
            "{}: {:?} {:?}, front {}, hops {}, port {:?}, start {:?}{}\n  [proxy] {}\n  load: rate {}, {:?} prompts, \
             seed {}, goals {:?}, headers {}, ca {:?}, logs {logs:?}\n",
            run.dir,
            found.router_name(),
            found.router_flags,
            found.front,
            found.hops,
            found.base_port,
            found.start_timeout,
            servers.collect::<String>(),
            toml::Value::from(found.proxy),
            load.request_rate,
            load.num_prompts,
            load.seed,
            run.settings.goodput(),
            load.header.len(),
            found.access.tls.ca,
        )
    });
    let notes = deploy::ineffective_keys(&plan, &plan.runs[0].settings);
    let notes = notes.iter().map(|note| format!("note: {note}\n"));
    runs.chain(notes).collect()
}

/// Compares a file of plans, `KIND: TEXT` where `\\n` ends a line, with what `describe` returns for each.
fn golden(file: &str, describe: impl Fn(ExperimentKind, &str) -> String) {
    let expected = std::fs::read_to_string(file).unwrap();
    let plans = expected.lines().filter(|line| !line.starts_with(' '));
    let now = plans.map(|line| {
        let (kind, text) = line.split_once(": ").unwrap();
        let found = describe(
            ExperimentKind::named(kind).unwrap(),
            &text.replace("\\n", "\n"),
        );
        format!("{line}\n    {}\n", found.trim_end().replace('\n', "\n    "))
    });
    let now: String = now.collect();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(file, &now).unwrap();
    }
    assert_eq!(now, expected, "{file}: UPDATE_DOCS=1 updates it");
}

#[test]
fn valid_plans_make_the_expected_runs() {
    golden(VALID, describe);
}

/// Invalid plans, each followed by its error.
const INVALID: &str = "tests/data/experiment/wrong-plans.txt";

#[test]
fn an_invalid_plan_is_refused_by_its_key_before_anything_starts() {
    golden(INVALID, |kind, text| {
        plan(kind, text).map_or_else(|error| error.to_string(), |_| "taken".to_owned())
    });
}

#[test]
fn a_printed_plan_makes_the_same_runs() {
    for text in [
        "",
        "request_rate = [5, inf]\nmax_running_requests = [8, 4]\nsim.decode_step_ms = 3.5\nmodel_path = \"a 'b'\"",
        "preset = 'low-latency'\nchunked_prefill_size = 77\nrequest_rate = [1, 2]",
        "router = 'sglang-router'\nrouting_policy = ['random', 'cache_aware']\nfailure_schedule = { 3 = [1], 10 = [] }\n[sglang_router]\ncache-threshold = 0.5",
        "rate_curve = '0:5,60:50'",
        // Keys that need quotes.
        "engine = 'sglang'\nmodel_path = 'm'\nsglang.'a b' = 1\nsglang.'c.d' = 2\nsglang.'' = 3\nsglang.\"e\\nf\" = 5",
        // Lists for one flag, which are not varied.
        "engine = 'sglang'\nmodel_path = 'm'\nrouter = 'sglang-router'\nsglang.cuda_graph_bs = [[1, 2, 4]]\nsglang.x = [[]]\n\
         sglang.y = [[1], [2, 3]]\nsglang_router.prometheus_duration_buckets = [[0.1, 1.0]]\ngoodput = ['ttft:500']",
    ] {
        let before = plan(Routing, text).unwrap();
        let after = plan(Routing, &before.to_toml()).unwrap();
        let runs = |plan: &Plan| {
            let runs = plan.runs.iter();
            let runs = runs.map(|run| (run.dir.clone(), format!("{:?}", run.settings)));
            runs.collect::<Vec<_>>()
        };
        assert_eq!(runs(&before), runs(&after), "{text}");
        // Printed defaults are no reason for notes.
        let settings = &after.runs[0].settings;
        assert_eq!(deploy::ineffective_keys(&after, settings), [""; 0]);
    }
}

#[test]
fn the_examples_sweeps_are_dropped_where_given_keys_exclude_them() {
    let search = "find_max_rate = true\ngoodput = ['ttft:500']";
    let narrow_search = format!("{search}\nmax_running_requests = 8");
    let server = "engine = 'external'\nservers = ['http://h:1']";
    let servers = "engine = 'external'\nservers = ['http://h:1', 'http://h:2']";
    let router = "engine = 'external'\nrouter = 'external'\nrouter_url = 'http://h:1'";
    // Runs, max_running_requests, and the front's max_concurrent_requests.
    for (kind, given, expected) in [
        (Node, "", (3, 8, None)),
        (Node, search, (1, 256, None)),
        // The sweep would have no effect on servers that run already.
        (Node, server, (1, 256, None)),
        // Given keys stay.
        (Node, &narrow_search, (1, 8, None)),
        (Node, "preset = 'low-latency'", (1, 32, None)),
        (Routing, "", (4, 4, Some("16"))),
        (Routing, search, (1, 4, Some("16"))),
        // The front's queue would be taken for the router's.
        (Routing, "router = 'sglang-router'", (1, 4, None)),
        (Routing, router, (1, 4, None)),
        (Routing, "num_prefill = 1\nnum_decode = 1", (1, 4, None)),
        // None of a kind is no pair.
        (Routing, "num_prefill = 0", (4, 4, Some("16"))),
        // Policies can be compared on servers that run already, too.
        (Routing, servers, (4, 4, Some("16"))),
    ] {
        let example = grid::file(kind.example()).unwrap();
        let found = Plan::new(kind, example, grid::file(given).unwrap()).unwrap();
        let settings = &found.runs[0].settings;
        let limit = settings.text("proxy.max_concurrent_requests");
        let running = settings.keys.max_running_requests;
        let seen = (found.runs.len(), running, limit.as_deref());
        assert_eq!(seen, expected, "{given}");
        assert_eq!(settings.keys.routing_policy, "cache_aware", "{given}");
        plan(kind, &found.to_toml()).unwrap();
    }
}
