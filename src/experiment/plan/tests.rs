use std::path::Path;

use clap::{FromArgMatches, Parser};

use super::*;
use crate::experiment::launch::{Engine, Router};

fn plan(kind: Kind, text: &str) -> Result<Plan, Usage> {
    Plan::new(kind, Vec::new(), read::file(text)?)
}

fn node(text: &str) -> Plan {
    plan(Kind::Node, text).unwrap()
}

fn wrong(kind: Kind, text: &str) -> String {
    plan(kind, text).unwrap_err().to_string()
}

fn only(plan: &Plan) -> Settings {
    let mut runs = plan.runs().unwrap();
    assert_eq!(runs.len(), 1);
    runs.remove(0).settings
}

fn engine(settings: &Settings) -> Engine {
    deploy::wanted(Kind::Node, settings, Path::new("/x"), Path::new("q"))
        .unwrap()
        .engine
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
    let Engine::Sim { flags } = engine(&settings) else {
        panic!()
    };
    assert!(
        flags
            .join(" ")
            .contains("--max-running-requests 256 --max-total-tokens 800000"),
        "{flags:?}"
    );
    let flags = deploy::traffic_flags(&settings).join(" ");
    assert_eq!(flags, "--dataset-name random --seed 1");
}

#[test]
fn lists_are_varied_in_the_order_of_the_file_and_repeats_come_last() {
    let text = "repeats = 2\nseed = 7\nrequest_rate = [5, 10]\nsim.decode_step_ms = [4.0, 8.0]\ngoodput = ['ttft:9', 'tpot:8']\n";
    let runs = node(text).runs().unwrap();
    let dirs: Vec<&str> = runs.iter().map(|run| run.dir.as_str()).collect();
    assert_eq!(
        dirs,
        [
            "01-request_rate=5,sim.decode_step_ms=4.0",
            "02-request_rate=5,sim.decode_step_ms=8.0",
            "03-request_rate=10,sim.decode_step_ms=4.0",
            "04-request_rate=10,sim.decode_step_ms=8.0",
            "05-request_rate=5,sim.decode_step_ms=4.0-r2",
            "06-request_rate=5,sim.decode_step_ms=8.0-r2",
            "07-request_rate=10,sim.decode_step_ms=4.0-r2",
            "08-request_rate=10,sim.decode_step_ms=8.0-r2",
        ]
    );
    assert_eq!(
        (
            runs[0].settings.whole("seed"),
            runs[4].settings.whole("seed")
        ),
        (Some(7), Some(8))
    );
    let flags = deploy::traffic_flags(&runs[7].settings).join(" ");
    assert!(
        flags.contains("--goodput ttft:9 --goodput tpot:8") && flags.contains("--request-rate 10"),
        "{flags}"
    );
    let Engine::Sim { flags } = engine(&runs[7].settings) else {
        panic!()
    };
    assert!(
        flags.join(" ").ends_with("--decode-step-ms 8.0"),
        "{flags:?}"
    );
    // A key that takes a list is varied by a list of lists.
    let lists = node("goodput = [['ttft:9'], ['ttft:9', 'tpot:8']]")
        .runs()
        .unwrap();
    assert_eq!(lists.len(), 2);
    assert_eq!(lists[1].settings.texts("goodput"), ["ttft:9", "tpot:8"]);
    assert_eq!(
        only(&node("request_rate = [5]")).number("request_rate"),
        Some(5.0)
    );
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table of cases")]
fn what_is_wrong_is_told_by_its_key_before_anything_starts() {
    use Kind::{Node, Routing};
    for (kind, text, words) in [
        (
            Node,
            "max_runing_requests = 3",
            "max_runing_requests: no such key; max_running_requests is one",
        ),
        (
            Node,
            "max_running_requests = 0",
            "max_running_requests = 0: must be a whole number, 1 or more",
        ),
        (
            Node,
            "max_running_requests = [32, 'x']",
            "max_running_requests = \"x\": must be a whole number",
        ),
        (
            Node,
            "max_running_requests = []",
            "max_running_requests: must not be an empty list",
        ),
        (
            Node,
            "num_gpus = 2",
            "num_gpus: is a key of queuescope routing, not of node",
        ),
        (
            Node,
            "engine = 'vllm'",
            "engine = \"vllm\": must be one of sim, sglang, external",
        ),
        (
            Node,
            "engine = 'sglang'",
            "model_path: engine = \"sglang\" needs a model",
        ),
        (
            Node,
            "engine = 'external'",
            "engine = \"external\": needs servers",
        ),
        (
            Node,
            "servers = ['http://h:1']",
            "servers: goes with engine = \"external\"",
        ),
        (
            Node,
            "request_rate = [5, -1]",
            "request_rate = -1: must be a positive number",
        ),
        (
            Node,
            "request_rate = [5, -1]",
            "(in the run with request_rate=-1)",
        ),
        (
            Node,
            "sim.decode_stepms = 3",
            "sim.decode_stepms: no such key; sim.decode_step_ms is one",
        ),
        (
            Node,
            "[sim]\ndecode_step_ms = -3",
            "sim.decode_step_ms = -3: must be a number from 0",
        ),
        (
            Node,
            "[simulator]\na = 1",
            "simulator: is no key and no table",
        ),
        (
            Node,
            "experiment = 'routing'",
            "experiment = \"routing\": this is queuescope node",
        ),
        (
            Node,
            "find_max_rate = true",
            "find_max_rate: needs an objective",
        ),
        (
            Node,
            "find_max_rate = true\ngoodput = ['ttft:9']\nrepeats = 2",
            "repeats: a search tries each rate once",
        ),
        (
            Node,
            "find_max_rate = true\ngoodput = ['ttft:9']\nduration = 5",
            "duration: a search sets how long",
        ),
        (
            Node,
            "mem_fraction_static = 0.15",
            "mem_fraction_static = 0.15: leaves the simulator no room",
        ),
        (
            Node,
            "env.HF_TOKEN = 'hf_x'",
            "env.HF_TOKEN: looks like a secret",
        ),
        (
            Node,
            "env.OTEL_EXPORTER_OTLP_HEADERS = 'a=b'",
            "env.OTEL_EXPORTER_OTLP_HEADERS: looks like a secret",
        ),
        (
            Routing,
            "engine = 'sglang'\nmodel_path = 'm'\nservers_per_gpu = 2",
            "servers_per_gpu: mem_fraction_static must be below 0.50",
        ),
        (Node, "traffic.seed = 1\nseed = 2", "seed: is given twice"),
        (Node, "repeats = [1, 2]", "repeats: must be one number"),
        (Routing, "router = 'none'", "router = \"none\""),
        (
            Routing,
            "routing_policy = 'random'\n[sglang_router]\ncache_threshold = 0.5",
            "[sglang_router] has flags of sglang-router",
        ),
        (
            Routing,
            "routing_policy = 'random'\nrouter_url = 'http://h:1'",
            "router_url: goes with router = \"external\"",
        ),
        (
            Routing,
            "routing_policy = 'random'\nenable_node_failures = true",
            "nothing fails without failure_schedule",
        ),
        (
            Routing,
            "routing_policy = 'random'\n[proxy]\nno_such_key = 1",
            "[proxy] unknown key `no_such_key`",
        ),
        (
            Routing,
            "[proxy]\nupstream_connect_timeout_s = [1, -1]",
            "[proxy] upstream_connect_timeout_s = -1: must be from 0.001",
        ),
        (
            Routing,
            "proxy.listen = '127.0.0.1:1'",
            "proxy.listen: the experiment sets it",
        ),
        (
            Node,
            "proxy.upstream_connect_timeout_s = 1",
            "[proxy] means nothing: no proxy is started",
        ),
    ] {
        let told = wrong(kind, text);
        assert!(told.contains(words), "{text}: {told}");
    }
}

#[test]
fn presets_stand_between_defaults_and_what_is_given() {
    let settings = only(&node(
        "preset = 'high-throughput'\nchunked_prefill_size = 1000",
    ));
    assert_eq!(settings.whole("max_running_requests"), Some(512));
    assert_eq!(settings.whole("chunked_prefill_size"), Some(1000));
    // Of the built-in example they win.
    let example = read::file("max_running_requests = [1, 2]\nrequest_rate = 3").unwrap();
    let given = read::file("preset = ['low-latency', 'low-memory']").unwrap();
    let runs = Plan::new(Kind::Node, example, given)
        .unwrap()
        .runs()
        .unwrap();
    let labels: Vec<&str> = runs.iter().map(|run| run.label.as_str()).collect();
    assert_eq!(labels, ["preset=low-latency", "preset=low-memory"]);
    assert_eq!(runs[0].settings.whole("max_running_requests"), Some(32));
    assert_eq!(runs[1].settings.number("mem_fraction_static"), Some(0.7));
    assert_eq!(runs[1].settings.number("request_rate"), Some(3.0));
    for name in presets::NAMES {
        for (key, value) in presets::of(name) {
            Kind::Node.key(key).unwrap().takes.check(&value).expect(key);
        }
    }
}

#[test]
fn what_is_written_is_the_same_plan_again() {
    for text in [
        "",
        "request_rate = [5, inf]\nmax_running_requests = [8, 4]\nsim.decode_step_ms = 3.5\nmodel_path = \"a 'b'\"",
        "preset = ['low-latency', 'low-memory']\nchunked_prefill_size = 77",
        "router = 'sglang-router'\nrouting_policy = ['random', 'cache_aware']\nfailure_schedule = { 3 = [1], 10 = [] }\n[sglang_router]\ncache-threshold = 0.5",
    ] {
        let policy = match text.contains("routing_policy") {
            true => "",
            false => "routing_policy = 'random'\n",
        };
        let before = plan(Kind::Routing, &format!("{policy}{text}")).unwrap();
        let after = plan(Kind::Routing, &before.to_toml()).unwrap();
        assert_eq!(before.differs(&after), [""; 0], "{text}");
        let runs = |plan: &Plan| {
            let runs = plan.runs().unwrap().into_iter();
            runs.map(|run| (run.dir, run.settings)).collect::<Vec<_>>()
        };
        assert_eq!(runs(&before), runs(&after));
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
    assert_eq!(plan.differs(&again), [""; 0]);
}

#[test]
fn plans_differ_by_their_keys_and_by_the_order_of_what_varies() {
    let one = node("request_rate = [5, 6]\nmax_running_requests = [8, 4]");
    let other = node("request_rate = [5, 7]\nmax_running_requests = [8, 4]\nseed = 3");
    assert_eq!(one.differs(&other), ["request_rate", "seed"]);
    let turned = node("max_running_requests = [8, 4]\nrequest_rate = [5, 6]");
    assert_eq!(
        one.differs(&turned),
        ["request_rate", "max_running_requests"]
    );
    // A default that is written is no difference.
    assert_eq!(node("gpu_id = 0").differs(&node("")), [""; 0]);
}

#[test]
fn a_router_is_what_the_keys_say() {
    let wanted = |text: &str| {
        let settings = only(&plan(Kind::Routing, text).unwrap());
        deploy::wanted(Kind::Routing, &settings, Path::new("/x"), Path::new("q")).unwrap()
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
    let text = "engine = 'sglang'\nmodel_path = 'm'\n[sglang]\ncuda_graph_bs = [[1, 2, 4]]\nattention_backend = 'triton'";
    let Engine::Sglang { settings, .. } = engine(&only(&node(text))) else {
        panic!()
    };
    assert_eq!(
        settings.more.join(" "),
        "--attention-backend triton --cuda-graph-bs 1 2 4"
    );
    let text =
        "router = 'sglang-router'\n[sglang_router]\nprometheus_duration_buckets = [[0.1, 1.0]]";
    let settings = only(&plan(Kind::Routing, text).unwrap());
    let wanted = deploy::wanted(Kind::Routing, &settings, Path::new("/x"), Path::new("q")).unwrap();
    let Router::SglangRouter { flags, .. } = wanted.router else {
        panic!()
    };
    assert_eq!(flags.join(" "), "--prometheus-duration-buckets 0.1 1.0");
    // Without more brackets a list is varied.
    let varied = node("engine = 'sglang'\nmodel_path = 'm'\nsglang.cuda_graph_bs = [1, 2]");
    assert_eq!(varied.runs().unwrap().len(), 2);
}

#[test]
fn other_sections_of_the_proxys_config_are_tables_in_its_own() {
    let text = "backend = 'sglang-oai-chat'\nhops = true\n[proxy.engine]\nwait_s = 3\n[proxy.engine.traces]\n\
                listen = '127.0.0.1:4399'\n[proxy.telemetry.otlp]\nratio = 0.5";
    let settings = only(&node(text));
    // Who says how it is told is left to it.
    assert_eq!(deploy::engine_logs(&settings, Path::new("/x")), None);
    let said = wrong(Kind::Node, &text.replace("listen", "listens"));
    assert!(
        said.starts_with("[proxy] ") && said.contains("listens"),
        "{said}"
    );
    let by_flag = "hops = true\n'proxy.engine.logs.path' = '/logs'\nbackend = 'sglang-oai-chat'";
    let settings = only(&node(by_flag));
    let wanted = deploy::wanted(Kind::Node, &settings, Path::new("/x"), Path::new("q")).unwrap();
    assert_eq!(
        wanted.proxy["engine"]["logs"]["path"].as_str(),
        Some("/logs")
    );
    let untold = only(&node("backend = 'sglang-oai-chat'"));
    let logs = deploy::engine_logs(&untold, Path::new("/x"));
    assert_eq!(logs, Some("/x/engine".into()));
    let Engine::Sim { flags } = engine(&untold) else {
        panic!()
    };
    let tells = "--export-metrics-to-file --export-metrics-to-file-dir /x/engine";
    assert!(flags.join(" ").ends_with(tells), "{flags:?}");
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
    use crate::experiment::{node, routing};
    let search = "find_max_rate = true\ngoodput = ['ttft:500']";
    let found = of(Kind::Node, node::EXAMPLE, search);
    assert_eq!(
        found.notes(),
        ["max_running_requests = 256: a search has one setting ([8, 16, 32, 64])"]
    );
    let settings = found.only_settings().unwrap();
    assert_eq!(settings.whole("max_running_requests"), Some(256));
    let again = plan(Kind::Node, &found.to_toml()).unwrap();
    assert_eq!(found.differs(&again), [""; 0]);
    // What is given is not touched.
    let given = of(
        Kind::Node,
        node::EXAMPLE,
        &format!("{search}\nmax_running_requests = 8"),
    );
    assert_eq!(
        (
            given.notes().len(),
            given.only_settings().unwrap().whole("max_running_requests")
        ),
        (0, Some(8))
    );

    let policies = |plan: &Plan| {
        let runs = plan.runs().unwrap().into_iter();
        runs.map(|run| run.settings.text("routing_policy").unwrap())
            .collect::<Vec<_>>()
    };
    let all = of(Kind::Routing, routing::EXAMPLE, search);
    assert_eq!(policies(&all), ["cache_aware"]);
    let real = of(Kind::Routing, routing::EXAMPLE, "router = 'sglang-router'");
    assert_eq!(
        policies(&real),
        ["cache_aware", "round_robin", "random", "power_of_two"]
    );
    assert_eq!(real.notes().len(), 1);
    let both = of(
        Kind::Routing,
        routing::EXAMPLE,
        "router = ['builtin', 'sglang-router']",
    );
    assert_eq!(policies(&both).len(), 8);
    let outside = "engine = 'external'\nrouter = 'external'\nrouter_url = 'http://h:1'";
    assert_eq!(
        policies(&of(Kind::Routing, routing::EXAMPLE, outside)),
        ["cache_aware"]
    );
    assert!(of(Kind::Routing, routing::EXAMPLE, "").notes().is_empty());
}

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    keys: flags::KeyFlags<true>,
}

#[test]
fn every_key_is_a_flag_and_flags_vary_as_they_were_typed() {
    let line = "x --request-rate 5,inf --num-gpus=2 --routing-policy random --routing-policy round_robin --flush-cache \
                --goodput ttft:500 --goodput e2el:5000 --enable-metrics=false";
    let entries = Line::try_parse_from(line.split_whitespace())
        .unwrap()
        .keys
        .0;
    let text: Vec<String> = entries
        .iter()
        .map(|(key, value)| format!("{key} = {value}"))
        .collect();
    assert_eq!(
        text,
        [
            "request_rate = [5, inf]",
            "num_gpus = 2",
            "routing_policy = [\"random\", \"round_robin\"]",
            "flush_cache = true",
            "goodput = [\"ttft:500\", \"e2el:5000\"]",
            "enable_metrics = false",
        ]
    );
    Plan::new(Kind::Routing, Vec::new(), entries).unwrap();
    let mut command = <Line as clap::CommandFactory>::command();
    let help = command.render_long_help().to_string();
    assert!(
        help.contains("--max-running-requests") && help.contains("[default: 256]"),
        "{help}"
    );
    let matches = command
        .try_get_matches_from(["x", "--burstiness", "0.5"])
        .unwrap();
    assert_eq!(Line::from_arg_matches(&matches).unwrap().keys.0.len(), 1);
}
