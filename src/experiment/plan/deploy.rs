//! What the settings of a run mean for the programs that are started, and for the generator.

use std::path::{Path, PathBuf};
use std::time::Duration;

use toml::Value;

use super::generator;
use super::keys::{Key, Kind};
use super::settings::Settings;
use super::usage::Usage;
use crate::experiment::faults::FaultPlan;
use crate::experiment::launch::{Engine, Router, Sglang, Wanted, check_proxy};
use crate::report::files::ENGINE_LOGS;
use crate::traffic;

/// What the simulator's cache holds at `mem_fraction_static` 0.9, tokens: its own default.
const SIM_TOKENS: f64 = 800_000.0;
/// What it holds more for all of the memory: that of an H200 (141 GB) by the bytes of a token of an 8B model in bf16.
const SIM_TOKENS_OF_ALL: f64 = 141e9 / 131_072.0;
/// Fewer serve no prompt of a usual length.
const SIM_LEAST: i64 = 10_000;
/// The share at which it holds [`SIM_TOKENS`].
const SIM_SHARE: f64 = 0.9;

/// Whether the settings of a run go together, as far as that shows before anything is started.
///
/// # Errors
/// The key and what would be right.
pub fn check(kind: Kind, settings: &Settings) -> Result<(), Usage> {
    let wanted = wanted(kind, settings, Path::new(""), Path::new(""))?;
    wanted.check().map_err(Usage)?;
    check_proxy(&wanted).map_err(Usage)?;
    if let Engine::Sim { flags } = &wanted.engine {
        if let (Some(tokens), None) = (sim_tokens(settings), settings.get("sim.max_total_tokens"))
            && tokens < SIM_LEAST
        {
            let share = settings.text("mem_fraction_static").unwrap_or_default();
            return Err(Usage(format!(
                "mem_fraction_static = {share}: leaves the simulator no room beside the weights; give 0.17 or more, or \
                 sim.max_total_tokens"
            )));
        }
        generator::check_sim(flags)?;
    }
    generator::parse(&traffic_flags(settings))?;
    if let Some(faults) = faults(settings)? {
        faults.check(&wanted).map_err(Usage)?;
    }
    if settings.is("find_max_rate") && settings.texts("goodput").is_empty() {
        return Err(Usage::of(
            "find_max_rate",
            "needs an objective: add goodput, such as [\"ttft:500\", \"e2el:5000\"]",
        ));
    }
    Ok(())
}

/// What is to be started for a run whose folder is `dir`, by the program `queuescope`.
///
/// # Errors
/// The key and what would be right.
pub fn wanted(
    kind: Kind,
    settings: &Settings,
    dir: &Path,
    program: &Path,
) -> Result<Wanted, Usage> {
    let mut engine = engine(settings)?;
    let logs = engine_logs(settings, dir);
    if let Some(logs) = &logs {
        engine.logs_requests_to(logs);
    }
    let router = router(kind, settings)?;
    let given = |key: &str| settings.get(key).and_then(Value::as_bool);
    let port = settings
        .whole("base_port")
        .and_then(|port| u16::try_from(port).ok());
    let timeout = settings
        .number("start_timeout_s")
        .map(Duration::from_secs_f64);
    let servers = match kind {
        Kind::Node => 1,
        Kind::Routing => settings
            .whole("num_gpus")
            .and_then(|count| usize::try_from(count).ok())
            .unwrap_or(1),
    };
    let env = settings.table("env");
    let env = env.map(|(name, value)| (name.to_owned(), generator::text(value)));
    let needs_hops = faults(settings)?.is_some_and(|faults| faults.needs_hops());
    let mut proxy = toml::Table::new();
    for (key, value) in settings.table("proxy") {
        put(&mut proxy, key, value.clone());
    }
    let mut wanted = Wanted {
        servers,
        env: env.collect(),
        base_port: port.filter(|port| *port > 0),
        front: given("front").unwrap_or(router != Router::None),
        hops: given("hops").unwrap_or(needs_hops || router.wants_hops()),
        fault_injection: needs_hops,
        start_timeout: timeout.unwrap_or(engine.start_timeout()),
        program: program.to_owned(),
        dir: dir.to_owned(),
        engine,
        router,
        proxy,
    };
    if let (Some(logs), true) = (logs, wanted.has_proxy()) {
        let logs = logs.display().to_string();
        put(&mut wanted.proxy, "engine.logs.path", logs.into());
    }
    Ok(wanted)
}

/// Sets a key of a table, or with points in its name one of the tables in it.
fn put(table: &mut toml::Table, key: &str, value: Value) {
    match key.split_once('.') {
        Some((name, key)) => {
            let inner = table
                .entry(name)
                .or_insert_with(|| toml::Table::new().into());
            if let Value::Table(inner) = inner {
                put(inner, key, value);
            }
        }
        None => drop(table.insert(key.to_owned(), value)),
    }
}

/// Where the servers of a run write what they know of each request, to be put into its rows: where these speak an API whose
/// streams carry no times, and nobody has said how it is told otherwise.
pub fn engine_logs(settings: &Settings, dir: &Path) -> Option<PathBuf> {
    let engine = settings.text("engine")?;
    let backend = settings.text("backend")?;
    let is_untold = backend != "sglang" && settings.is("enable_metrics") && engine != "external";
    let is_said = settings.iter().any(|(key, _)| {
        let own = key
            .strip_prefix(engine.as_str())
            .and_then(|key| key.strip_prefix('.'));
        let own = own.is_some_and(|key| {
            let key = key.replace('-', "_");
            key.starts_with("export_metrics_to_file") || key == "enable_trace"
        });
        own || key == "engine_logs" || key == "proxy.engine" || key.starts_with("proxy.engine.")
    });
    (is_untold && !is_said).then(|| dir.join(ENGINE_LOGS))
}

/// What is done to servers on purpose; `None`: nothing.
///
/// # Errors
/// The key and what would be right.
pub fn faults(settings: &Settings) -> Result<Option<FaultPlan>, Usage> {
    let is_on = settings
        .get("enable_node_failures")
        .and_then(Value::as_bool);
    match (is_on, settings.get("failure_schedule")) {
        (Some(false), _) | (None, None) => Ok(None),
        (Some(true), None) => Err(Usage::of(
            "enable_node_failures",
            "nothing fails without failure_schedule, such as { 30 = [1, 2], 60 = [] }",
        )),
        (_, Some(schedule)) => {
            let kind = settings.get("failure_kind").cloned();
            let kind = kind.unwrap_or_else(|| "kill".into());
            FaultPlan::parse(schedule, &kind).map(Some).map_err(Usage)
        }
    }
}

/// The generator's flags, but for where to send and where to write.
pub fn traffic_flags(settings: &Settings) -> Vec<String> {
    let keys = generator::keys();
    let is_stored = settings.get("workload").is_some();
    let is_said = |(key, value): &(&str, &Value)| match *key {
        // All at once is the generator's own default, which a trace or a curve takes the place of.
        "request_rate" => value.as_float() != Some(f64::INFINITY),
        // What is stored says itself what it is of.
        "dataset_name" => !is_stored,
        key => keys.contains_key(key),
    };
    let of_generator = settings.iter().filter(is_said);
    of_generator
        .flat_map(|(key, value)| generator::flags(key, value))
        .collect()
}

/// The generator's arguments of a run that sends to `target`, where `answers` (its `--upstream-kind`), and writes to `dir`.
///
/// # Errors
/// The key and what would be right.
pub fn traffic(
    settings: &Settings,
    target: &str,
    answers: &str,
    dir: &Path,
) -> Result<traffic::Args, Usage> {
    let mut flags = traffic_flags(settings);
    let dir = dir.display().to_string();
    let own = [
        "--base-url",
        target,
        "--upstream-kind",
        answers,
        "--output-dir",
        &dir,
    ];
    flags.extend(own.map(str::to_owned));
    if let Some(logs) = engine_logs(settings, Path::new(&dir)) {
        flags.extend(["--engine-logs".to_owned(), logs.display().to_string()]);
    }
    let mut args = generator::parse(&flags)?;
    // The rate that is found is the rate that was sent.
    args.part.exact_rate = settings.is("find_max_rate");
    Ok(args)
}

fn engine(settings: &Settings) -> Result<Engine, Usage> {
    match settings.text("engine").as_deref() {
        Some("sglang") => Ok(Engine::Sglang {
            python: PathBuf::from(settings.text("python").unwrap_or_default()),
            settings: sglang(settings)?,
        }),
        Some("external") => match settings.texts("servers") {
            urls if urls.is_empty() && settings.text("router").as_deref() != Some("external") => {
                Err(Usage::of(
                    "engine = \"external\"",
                    "needs servers, such as [\"http://127.0.0.1:30000\"]",
                ))
            }
            urls => Ok(Engine::External { urls }),
        },
        _ if settings.get("servers").is_some() => {
            Err(Usage::of("servers", "goes with engine = \"external\""))
        }
        _ => Ok(Engine::Sim {
            flags: sim_flags(settings),
        }),
    }
}

fn sglang(settings: &Settings) -> Result<Sglang, Usage> {
    let model_path = settings.text("model_path");
    let missing = || {
        Usage::of(
            "model_path",
            "engine = \"sglang\" needs a model: a folder or a name on the hub",
        )
    };
    let small = |key: &str| {
        settings
            .whole(key)
            .and_then(|number| u32::try_from(number).ok())
    };
    let share = settings.number("mem_fraction_static");
    let servers_per_gpu = small("servers_per_gpu").unwrap_or(1);
    if share.is_some_and(|share| share * f64::from(servers_per_gpu) > 1.0) {
        let most = 1.0 / f64::from(servers_per_gpu);
        return Err(Usage::of(
            "servers_per_gpu",
            format!(
                "mem_fraction_static must be below {most:.2}, as {servers_per_gpu} servers share a GPU's memory"
            ),
        ));
    }
    Ok(Sglang {
        servers_per_gpu,
        model_path: model_path.ok_or_else(missing)?,
        gpu_id: small("gpu_id").unwrap_or_default(),
        tp_size: small("tp_size").unwrap_or(1),
        max_running_requests: settings
            .whole("max_running_requests")
            .and_then(|n| u64::try_from(n).ok()),
        mem_fraction_static: share,
        chunked_prefill_size: settings.whole("chunked_prefill_size"),
        schedule_conservativeness: settings.number("schedule_conservativeness"),
        quantization: settings.text("quantization"),
        enable_torch_compile: settings.is("enable_torch_compile"),
        enable_metrics: settings.is("enable_metrics"),
        more: settings
            .table("sglang")
            .flat_map(|(key, value)| generator::flags_of_python(key, value))
            .collect(),
    })
}

/// What the simulator's cache holds, tokens.
fn sim_tokens(settings: &Settings) -> Option<i64> {
    let share = settings.number("mem_fraction_static")?;
    let tokens = SIM_TOKENS + (share - SIM_SHARE) * SIM_TOKENS_OF_ALL;
    Some(tokens.round() as i64)
}

/// The flags of the simulator. Its own table wins.
fn sim_flags(settings: &Settings) -> Vec<String> {
    let named =
        |key: &'static str, as_flag: &'static str| Some((as_flag, settings.get(key)?.clone()));
    let tokens = sim_tokens(settings);
    let tokens = tokens.map(|tokens| ("max_total_tokens", Value::Integer(tokens)));
    let no_metrics = ("no_metrics", Value::Boolean(true));
    let from_keys = [
        named("model_path", "model"),
        named("max_running_requests", "max_running_requests"),
        named("chunked_prefill_size", "chunked_prefill_size"),
        named("schedule_conservativeness", "schedule_conservativeness"),
        tokens,
        (!settings.is("enable_metrics")).then_some(no_metrics),
    ];
    let own: Vec<(&str, &Value)> = settings.table("sim").collect();
    let is_own = |flag: &str| own.iter().any(|(key, _)| *key == flag);
    let from_keys = from_keys.iter().flatten().filter(|(flag, _)| !is_own(flag));
    let from_keys = from_keys.flat_map(|(flag, value)| generator::flags(flag, value));
    let own = own
        .iter()
        .flat_map(|(key, value)| generator::flags(key, value));
    from_keys.chain(own).collect()
}

fn router(kind: Kind, settings: &Settings) -> Result<Router, Usage> {
    let policy = || {
        settings
            .text("routing_policy")
            .unwrap_or_else(|| "round_robin".to_owned())
    };
    let default = match kind {
        Kind::Node => "none",
        Kind::Routing => "builtin",
    };
    let name = settings.text("router");
    let name = name.as_deref().unwrap_or(default);
    let flags: Vec<String> = settings
        .table("sglang_router")
        .flat_map(|(key, value)| generator::flags_of_python(key, value))
        .collect();
    if !flags.is_empty() && name != "sglang-router" {
        return Err(Usage(format!(
            "[sglang_router] has flags of sglang-router; router is \"{name}\""
        )));
    }
    let url = settings.text("router_url");
    if url.is_some() && name != "external" {
        return Err(Usage::of("router_url", "goes with router = \"external\""));
    }
    match name {
        "builtin" => Ok(Router::Builtin { policy: policy() }),
        "sglang-router" => Ok(Router::SglangRouter {
            program: settings
                .text("router_program")
                .map(PathBuf::from)
                .unwrap_or_default(),
            policy: policy(),
            flags,
        }),
        "external" => {
            let missing = || {
                Usage::of(
                    "router = \"external\"",
                    "needs router_url, such as http://127.0.0.1:30000",
                )
            };
            Ok(Router::External {
                url: url.ok_or_else(missing)?,
            })
        }
        _ => Ok(Router::None),
    }
}

/// What was given and means nothing to what is started: said, and no error.
pub fn without_effect(settings: &Settings, given: &[String]) -> Vec<String> {
    let of_sglang = [
        "gpu_id",
        "tp_size",
        "quantization",
        "enable_torch_compile",
        "python",
        "servers_per_gpu",
    ];
    let of_started = [
        "model_path",
        "max_running_requests",
        "mem_fraction_static",
        "chunked_prefill_size",
        "schedule_conservativeness",
        "enable_metrics",
        "base_port",
        "num_gpus",
    ];
    let engine = settings.text("engine").unwrap_or_default();
    let is_idle = |key: &str| match engine.as_str() {
        "sim" => of_sglang.contains(&key) || key.starts_with("sglang."),
        "sglang" => key.starts_with("sim."),
        _ => {
            of_sglang.contains(&key)
                || of_started.contains(&key)
                || ["sim.", "sglang.", "env."]
                    .iter()
                    .any(|of| key.starts_with(of))
        }
    };
    // A plan that was printed has all defaults in it.
    let is_default = |key: &&String| {
        let default = Kind::Routing.key(key).and_then(Key::default);
        default.is_some_and(|default| settings.get(key) == Some(&default))
    };
    let idle = given.iter().filter(|key| is_idle(key) && !is_default(key));
    idle.map(|key| format!("{key} means nothing to engine {engine}"))
        .collect()
}
