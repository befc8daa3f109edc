use std::path::Path;

use super::*;
use crate::experiment::launch::{DeploymentSpec, Engine, Router};

fn plan(kind: Kind, text: &str) -> Result<Plan, Usage> {
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

fn spec(kind: Kind, settings: &Settings) -> DeploymentSpec {
    deploy::spec(kind, settings, Path::new("/x"), Path::new("q")).unwrap()
}

/// The flags of the simulator, or of SGLang.
fn flags(settings: &Settings) -> String {
    match spec(Kind::Node, settings).engine {
        Engine::Sim { flags } => flags[0].join(" "),
        Engine::Sglang { flags, .. } => flags.join(" "),
        Engine::External { .. } => panic!(),
    }
}

#[test]
fn the_manuals_defaults_hold_where_a_file_says_nothing() {
    let settings = only(&node(""));
    for (key, value) in [
        ("gpu_id", "0"),
        ("max_running_requests", "256"),
        ("tp_size", "1"),
        ("mem_fraction_static", "0.9"),
        ("request_rate", "inf"),
        ("dataset_name", "\"random\""),
    ] {
        assert_eq!(settings.get(key).unwrap().to_string(), value, "{key}");
    }
    let flags = flags(&settings);
    assert!(
        flags.contains("--max-running-requests 256 --max-total-tokens 800000"),
        "{flags}"
    );
    let load = &settings.line.load;
    assert_eq!(
        (load.seed, load.request_rate, load.num_prompts),
        (1, f64::INFINITY, None)
    );
}

#[test]
fn lists_are_varied_in_the_order_of_the_file_and_repeats_come_last() {
    let text = "repeats = 2\nseed = 7\nrequest_rate = [5, 10]\nsim.decode_step_ms = [4.0, 8.0]\ngoodput = ['ttft:9', 'tpot:8']\n";
    let plan = node(text);
    let runs = plan.runs();
    let dirs: Vec<&str> = runs.iter().map(|run| run.dir.as_str()).collect();
    let settings = [
        "5,sim.decode_step_ms=4.0",
        "5,sim.decode_step_ms=8.0",
        "10,sim.decode_step_ms=4.0",
        "10,sim.decode_step_ms=8.0",
    ];
    let expected = (0..8).map(|n| {
        let repeat = if n < 4 { "" } else { "-r2" };
        format!("{:02}-request_rate={}{repeat}", n + 1, settings[n % 4])
    });
    assert_eq!(dirs, expected.collect::<Vec<_>>());
    let (first, last) = (&runs[0].settings.line.load, &runs[7].settings.line.load);
    assert_eq!((first.seed, last.seed), (7, 8));
    assert_eq!((last.request_rate, last.goodput.len()), (10.0, 2));
    let last = flags(&runs[7].settings);
    assert!(last.ends_with("--decode-step-ms 8.0"), "{last}");
    // A key that takes a list is varied by a list of lists.
    let lists = node("goodput = [['ttft:9'], ['ttft:9', 'tpot:8']]");
    assert_eq!(lists.runs().len(), 2);
    assert_eq!(lists.runs()[1].settings.goodput(), ["ttft:9", "tpot:8"]);
    assert_eq!(
        only(&node("request_rate = [5]")).line.load.request_rate,
        5.0
    );
}

/// Wrong plans, each with what is told of it below: `KIND: TEXT`, where `\\n` ends a line.
const WRONG: &str = "tests/data/experiment/wrong-plans.txt";

#[test]
fn what_is_wrong_is_told_by_its_key_before_anything_starts() {
    let known = std::fs::read_to_string(WRONG).unwrap();
    let plans = known.lines().filter(|line| !line.starts_with(' '));
    let told = plans.map(|line| {
        let (kind, text) = line.split_once(": ").unwrap();
        let kind = match kind {
            "node" => Kind::Node,
            _ => Kind::Routing,
        };
        let plan = plan(kind, &text.replace("\\n", "\n"));
        let told = plan.map_or_else(|wrong| wrong.to_string(), |_| "taken".to_owned());
        format!("{line}\n    {}\n", told.replace('\n', "\n    "))
    });
    let told: String = told.collect();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(WRONG, &told).unwrap();
    }
    assert_eq!(told, known, "UPDATE_DOCS=1 takes it over");
}

#[test]
fn presets_stand_between_defaults_and_what_is_given() {
    let settings = only(&node(
        "preset = 'high-throughput'\nchunked_prefill_size = 1000",
    ));
    let keys = &settings.line.keys;
    assert_eq!(
        (keys.max_running_requests, keys.chunked_prefill_size),
        (512, Some(1000))
    );
    // Of the built-in example they win.
    let example = read::file("max_running_requests = [1, 2]\nrequest_rate = 3").unwrap();
    let given = read::file("preset = ['low-latency', 'low-memory']").unwrap();
    let plan = Plan::new(Kind::Node, example, given).unwrap();
    let [one, two] = plan.runs() else { panic!() };
    assert_eq!(
        (one.label.as_str(), two.label.as_str()),
        ("preset=low-latency", "preset=low-memory")
    );
    let (one, two) = (&one.settings.line, &two.settings.line);
    assert_eq!(
        (one.keys.max_running_requests, two.keys.mem_fraction_static),
        (32, 0.7)
    );
    assert_eq!(two.load.request_rate, 3.0);
}

#[test]
fn what_is_written_is_the_same_plan_again() {
    for text in [
        "",
        "request_rate = [5, inf]\nmax_running_requests = [8, 4]\nsim.decode_step_ms = 3.5\nmodel_path = \"a 'b'\"",
        "preset = ['low-latency', 'low-memory']\nchunked_prefill_size = 77",
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
        assert_eq!(
            deploy::without_effect(settings, &after.given_keys()),
            [""; 0]
        );
    }
}

#[test]
fn any_key_is_written_so_that_it_is_read_again() {
    let flags = [
        "sglang.a b=1",
        "sglang.c.d=2",
        "sglang.=3",
        "sim.decode_step_ms=4",
    ];
    let given = flags.map(|flag| read::assignment(flag).unwrap());
    let plan = Plan::new(Kind::Node, Vec::new(), given.to_vec()).unwrap();
    let again = Plan::new(Kind::Node, Vec::new(), read::file(&plan.to_toml()).unwrap()).unwrap();
    assert_eq!(again.given[..4], given);
}

#[test]
fn a_router_is_what_the_keys_say() {
    let wanted = |text: &str| {
        let settings = only(&plan(Kind::Routing, text).unwrap());
        spec(Kind::Routing, &settings)
    };
    let builtin = wanted("routing_policy = 'random'\nnum_gpus = 3\nbase_port = 0");
    assert_eq!(
        builtin.router,
        Router::Builtin {
            policy: "random".into()
        }
    );
    assert_eq!(
        (builtin.count(), builtin.base_port, builtin.hops),
        (3, None, false)
    );
    let real = wanted("router = 'sglang-router'\n[sglang_router]\ncache-threshold = 0.5");
    assert!(real.hops && real.front && real.base_port == Some(30_001));
    let Router::SglangRouter { policy, flags, .. } = real.router else {
        panic!()
    };
    assert_eq!(
        (policy.as_str(), flags.join(" ").as_str()),
        ("cache_aware", "--cache-threshold 0.5")
    );
    let outside =
        wanted("engine = 'external'\nrouter = 'external'\nrouter_url = 'http://127.0.0.1:9'");
    assert_eq!(
        outside.router,
        Router::External {
            url: "http://127.0.0.1:9".into()
        }
    );
    let faulty =
        wanted("routing_policy = 'random'\nfailure_schedule = { 3 = [1] }\nfailure_kind = 'stall'");
    assert!(faulty.hops && faulty.fault_injection);
}

#[test]
fn a_list_for_sglang_or_its_router_stands_behind_one_flag() {
    let sglang = "engine = 'sglang'\nmodel_path = 'm'\n";
    let text =
        format!("{sglang}[sglang]\ncuda_graph_bs = [[1, 2, 4]]\nattention_backend = 'triton'");
    assert_eq!(
        flags(&only(&node(&text))),
        "--model-path m --tp-size 1 --max-running-requests 256 --mem-fraction-static 0.9 --enable-metrics \
         --attention-backend triton --cuda-graph-bs 1 2 4"
    );
    let text =
        "router = 'sglang-router'\n[sglang_router]\nprometheus_duration_buckets = [[0.1, 1.0]]";
    let settings = only(&plan(Kind::Routing, text).unwrap());
    let Router::SglangRouter { flags, .. } = spec(Kind::Routing, &settings).router else {
        panic!()
    };
    assert_eq!(flags.join(" "), "--prometheus-duration-buckets 0.1 1.0");
    // Without more brackets a list is varied.
    assert_eq!(
        node(&format!("{sglang}sglang.cuda_graph_bs = [1, 2]"))
            .runs()
            .len(),
        2
    );
}

#[test]
fn servers_are_asked_as_the_load_is_sent() {
    let made = rcgen::generate_simple_self_signed(["h".to_owned()]).unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), made.cert.pem()).unwrap();
    let pem = file.path().display().to_string();
    let text = format!(
        "engine = 'external'\nservers = ['https://h:1']\nca = '{pem}'\nheader = ['x-team: search']"
    );
    let settings = only(&node(&text));
    let found = spec(Kind::Node, &settings);
    let access = found.access;
    assert_eq!(
        (access.tls.ca.as_deref(), access.headers.len()),
        (Some(file.path()), 1)
    );
    let kind = crate::traffic::client::UpstreamKind::Server;
    let ca = |url: &str| {
        deploy::traffic(&settings, url, kind, Path::new("/x"))
            .unwrap()
            .tls
            .ca
    };
    assert!(ca("https://h:1").is_some() && ca("http://127.0.0.1:1").is_none());
    let fronted = only(&node(&format!("{text}\nfront = true")));
    let found = spec(Kind::Node, &fronted);
    assert_eq!(found.proxy["upstream_ca"].as_str(), Some(pem.as_str()));
}

#[test]
fn other_sections_of_the_proxys_config_are_tables_in_its_own() {
    let text = "backend = 'sglang-oai-chat'\nhops = true\n[proxy.engine]\nwait_s = 3\n[proxy.engine.traces]\n\
                listen = '127.0.0.1:4399'\n[proxy.telemetry.otlp]\nratio = 0.5";
    let settings = only(&node(text));
    // Who says how it is told is left to it.
    assert_eq!(deploy::engine_logs(&settings, Path::new("/x")), None);
    let said = plan(Kind::Node, &text.replace("listen", "listens"));
    let said = said.unwrap_err().to_string();
    assert!(
        said.starts_with("[proxy] ") && said.contains("listens"),
        "{said}"
    );
    let by_flag = "hops = true\n'proxy.engine.logs.path' = '/logs'\nbackend = 'sglang-oai-chat'";
    let settings = only(&node(by_flag));
    let found = spec(Kind::Node, &settings);
    assert_eq!(
        found.proxy["engine"]["logs"]["path"].as_str(),
        Some("/logs")
    );
    let untold = only(&node("backend = 'sglang-oai-chat'"));
    let logs = deploy::engine_logs(&untold, Path::new("/x"));
    assert_eq!(logs, Some("/x/engine".into()));
    let flags = flags(&untold);
    let tells = "--export-metrics-to-file --export-metrics-to-file-dir /x/engine";
    assert!(flags.ends_with(tells), "{flags}");
    assert_eq!(deploy::engine_logs(&only(&node("")), Path::new("/x")), None);
}

#[test]
fn what_the_proxy_takes_is_taken() {
    let taken = "hops = true\n[proxy]\nupstream_connect_timeout_s = 3\ntime_base = 'epoch'";
    plan(Kind::Routing, taken).unwrap();
    plan(Kind::Node, taken).unwrap();
}

#[test]
fn the_examples_go_with_a_search_and_with_the_real_router() {
    let of = |kind: Kind, example: &str, given: &str| {
        let given = read::file(given).unwrap();
        Plan::new(kind, read::file(example).unwrap(), given).unwrap()
    };
    let search = "find_max_rate = true\ngoodput = ['ttft:500']";
    let found = of(Kind::Node, Kind::Node.example(), search);
    assert_eq!(
        found.notes(),
        ["max_running_requests = 256: a search has one setting ([8, 16, 32, 64])"]
    );
    assert_eq!(only(&found).line.keys.max_running_requests, 256);
    plan(Kind::Node, &found.to_toml()).unwrap();
    // What is given is not touched.
    let given = of(
        Kind::Node,
        Kind::Node.example(),
        &format!("{search}\nmax_running_requests = 8"),
    );
    let running = only(&given).line.keys.max_running_requests;
    assert_eq!((given.notes().len(), running), (0, 8));

    let policies = |plan: &Plan| {
        let policy = |run: &Run| run.settings.line.keys.routing_policy.clone();
        plan.runs().iter().map(policy).collect::<Vec<_>>()
    };
    let all = of(Kind::Routing, Kind::Routing.example(), search);
    assert_eq!(policies(&all), ["cache_aware"]);
    let real = of(
        Kind::Routing,
        Kind::Routing.example(),
        "router = 'sglang-router'",
    );
    assert_eq!(
        policies(&real),
        ["cache_aware", "round_robin", "random", "power_of_two"]
    );
    assert_eq!(real.notes().len(), 1);
    let both = of(
        Kind::Routing,
        Kind::Routing.example(),
        "router = ['builtin', 'sglang-router']",
    );
    assert_eq!(policies(&both).len(), 8);
    let outside = "engine = 'external'\nrouter = 'external'\nrouter_url = 'http://h:1'";
    assert_eq!(
        policies(&of(Kind::Routing, Kind::Routing.example(), outside)),
        ["cache_aware"]
    );
    assert!(
        of(Kind::Routing, Kind::Routing.example(), "")
            .notes()
            .is_empty()
    );
}
