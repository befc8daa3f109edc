use std::path::Path;

use super::*;
use crate::experiment::launch::{DeploymentSpec, ServerSpec};

fn plan(kind: Kind, text: &str) -> Result<Plan, PlanError> {
    Plan::new(kind, Vec::new(), read::file(text)?)
}

fn node(text: &str) -> Plan {
    plan(Kind::Node, text).unwrap()
}

fn only(plan: &Plan) -> Settings {
    let [run] = plan.runs() else {
        panic!("{} runs", plan.runs().len())
    };
    run.settings.clone()
}

fn spec(settings: &Settings) -> DeploymentSpec {
    deploy::spec(settings, Path::new("/x"), Path::new("q")).unwrap()
}

/// Plans, each with what it means below: its runs with what is started for them, and how they are loaded.
const RIGHT: &str = "tests/data/experiment/right-plans.txt";

fn meant(kind: Kind, text: &str) -> String {
    let plan = plan(kind, text).unwrap_or_else(|wrong| panic!("{text}: {wrong}"));
    let runs = plan.runs().iter().map(|run| {
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
            found.start_timeout(),
            servers.collect::<String>(),
            toml::Value::from(found.proxy),
            load.request_rate,
            load.num_prompts,
            load.seed,
            run.settings.goodput(),
            found.access.headers.len(),
            found.access.tls.ca,
        )
    });
    let notes = deploy::without_effect(&plan, &plan.runs()[0].settings);
    let notes = notes.iter().map(|note| format!("note: {note}\n"));
    runs.chain(notes).collect()
}

/// Holds a file of plans, `KIND: TEXT` where `\\n` ends a line, to what is told of each below it.
fn golden(file: &str, told: impl Fn(Kind, &str) -> String) {
    let known = std::fs::read_to_string(file).unwrap();
    let plans = known.lines().filter(|line| !line.starts_with(' '));
    let now = plans.map(|line| {
        let (kind, text) = line.split_once(": ").unwrap();
        let kind = match kind {
            "node" => Kind::Node,
            _ => Kind::Routing,
        };
        let told = told(kind, &text.replace("\\n", "\n"));
        format!("{line}\n    {}\n", told.trim_end().replace('\n', "\n    "))
    });
    let now: String = now.collect();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(file, &now).unwrap();
    }
    assert_eq!(now, known, "{file}: UPDATE_DOCS=1 takes it over");
}

#[test]
fn right_plans_mean_what_they_say() {
    golden(RIGHT, meant);
}

/// Wrong plans, each with what is told of it below.
const WRONG: &str = "tests/data/experiment/wrong-plans.txt";

#[test]
fn what_is_wrong_is_told_by_its_key_before_anything_starts() {
    golden(WRONG, |kind, text| {
        plan(kind, text).map_or_else(|wrong| wrong.to_string(), |_| "taken".to_owned())
    });
}

#[test]
fn presets_stand_between_defaults_and_what_is_given() {
    let settings = only(&node(
        "preset = 'high-throughput'\nchunked_prefill_size = 1000",
    ));
    let keys = &settings.keys;
    assert_eq!(
        (keys.max_running_requests, keys.chunked_prefill_size),
        (512, Some(1000))
    );
    // Of the built-in example they win.
    let example = read::file("max_running_requests = [1, 2]\nrequest_rate = 3").unwrap();
    let given = read::file("preset = 'low-latency'").unwrap();
    let plan = Plan::new(Kind::Node, example, given).unwrap();
    let settings = only(&plan);
    assert_eq!(settings.keys.max_running_requests, 32);
    assert_eq!(settings.load.request_rate, 3.0);
}

#[test]
fn what_is_written_is_the_same_plan_again() {
    for text in [
        "",
        "request_rate = [5, inf]\nmax_running_requests = [8, 4]\nsim.decode_step_ms = 3.5\nmodel_path = \"a 'b'\"",
        "preset = 'low-latency'\nchunked_prefill_size = 77\nrequest_rate = [1, 2]",
        "router = 'sglang-router'\nrouting_policy = ['random', 'cache_aware']\nfailure_schedule = { 3 = [1], 10 = [] }\n[sglang_router]\ncache-threshold = 0.5",
        "rate_curve = '0:5,60:50'",
    ] {
        let before = plan(Kind::Routing, text).unwrap();
        let after = plan(Kind::Routing, &before.to_toml()).unwrap();
        let runs = |plan: &Plan| {
            let runs = plan.runs().iter();
            let runs = runs.map(|run| (run.dir.clone(), format!("{:?}", run.settings)));
            runs.collect::<Vec<_>>()
        };
        assert_eq!(runs(&before), runs(&after), "{text}");
        // All of it was given by then, and means no less.
        let settings = &after.runs()[0].settings;
        assert_eq!(deploy::without_effect(&after, settings), [""; 0]);
    }
}

#[test]
fn any_key_is_written_so_that_it_is_read_again() {
    let flags = [
        "sglang.a b=1",
        "sglang.c.d=2",
        "sglang.=3",
        "sglang.e\nf=5",
        "sim.decode_step_ms=4",
    ];
    let given = flags.map(|flag| read::assignment(flag).unwrap());
    let plan = Plan::new(Kind::Node, Vec::new(), given.to_vec()).unwrap();
    let again = Plan::new(Kind::Node, Vec::new(), read::file(&plan.to_toml()).unwrap()).unwrap();
    assert!(again.keys.into_iter().take(5).eq(given));
}

#[test]
fn a_certificate_is_that_of_who_is_asked() {
    let made = rcgen::generate_simple_self_signed(["h".to_owned()]).unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), made.cert.pem()).unwrap();
    let pem = file.path().display().to_string();
    let settings = only(&node(&format!(
        "engine = 'external'\nservers = ['https://h:1']\nca = '{pem}'\nfront = true"
    )));
    let found = spec(&settings);
    assert_eq!(found.access.tls.ca.as_deref(), Some(file.path()));
    assert_eq!(found.proxy["upstream_ca"].as_str(), Some(pem.as_str()));
    let kind = crate::traffic::client::UpstreamKind::Server;
    let args = |url: &str| deploy::traffic(&settings, url, kind, Path::new("/x")).unwrap();
    assert!(args("https://h:1").tls.ca.is_some());
    assert!(args("http://127.0.0.1:1").tls.ca.is_none());
}

#[test]
fn the_examples_go_with_a_search_and_with_the_real_router() {
    let of = |kind: Kind, given: &str| {
        let given = read::file(given).unwrap();
        Plan::new(kind, read::file(kind.example()).unwrap(), given).unwrap()
    };
    let search = "find_max_rate = true\ngoodput = ['ttft:500']";
    // Servers that run already would be compared with themselves.
    let outside = "engine = 'external'\nservers = ['http://h:1']";
    for given in [search, outside] {
        let found = of(Kind::Node, given);
        assert_eq!(only(&found).keys.max_running_requests, 256, "{given}");
        plan(Kind::Node, &found.to_toml()).unwrap();
    }
    // What is given is not touched.
    let given = of(Kind::Node, &format!("{search}\nmax_running_requests = 8"));
    assert_eq!(only(&given).keys.max_running_requests, 8);
    // Waits before a router would pass for its own.
    let outside = "engine = 'external'\nrouter = 'external'\nrouter_url = 'http://h:1'";
    for (given, limit) in [
        ("router = 'sglang-router'", None),
        (outside, None),
        (search, Some("16")),
    ] {
        let found = only(&of(Kind::Routing, given));
        let found_limit = found.text("proxy.max_concurrent_requests");
        assert_eq!(found_limit.as_deref(), limit, "{given}");
        assert_eq!(found.keys.routing_policy, "cache_aware");
    }
    // Policies can be compared before servers that run already, too.
    let servers = "engine = 'external'\nservers = ['http://h:1', 'http://h:2']";
    assert_eq!(of(Kind::Routing, servers).runs().len(), 4);
    let pair = "num_prefill = 1\nnum_decode = 1";
    assert_eq!(of(Kind::Routing, pair).runs().len(), 1);
    assert_eq!(of(Kind::Routing, "").runs().len(), 4);
}
