//! What the settings of a run mean for the programs that are started, and for the generator.

use std::path::{Path, PathBuf};
use std::time::Duration;

use toml::Value;

use super::keys::{Kind, RouterName, SGLANG, STARTED};
use super::line::{self, flags, flags_of_python, text};
use super::settings::Settings;
use super::usage::Usage;
use crate::experiment::faults::FaultPlan;
use crate::experiment::launch::{
    Access, DeploymentSpec, EngineName, Program, Router, ServerSpec, check_proxy,
};
use crate::report::files::ENGINE_LOGS;
use crate::traffic;
use crate::traffic::client::{Target, TlsArgs, UpstreamKind, api_key};

/// What the simulator's cache holds at `mem_fraction_static` 0.9, tokens: its own default.
const SIM_TOKENS: f64 = 800_000.0;
/// What it holds more for all of the memory: that of an H200 (141 GB) by the bytes of a token of an 8B model in bf16.
const SIM_TOKENS_OF_ALL: f64 = 141e9 / 131_072.0;
/// Fewer serve no prompt of a usual length.
const SIM_LEAST: i64 = 10_000;
/// The share at which it holds [`SIM_TOKENS`].
const SIM_SHARE: f64 = 0.9;
/// Keys that are flags of SGLang's by the same name.
const OF_SGLANG: [&str; 9] = [
    "model_path",
    "tp_size",
    "max_running_requests",
    "mem_fraction_static",
    "chunked_prefill_size",
    "schedule_conservativeness",
    "quantization",
    "enable_torch_compile",
    "enable_metrics",
];
/// Keys that are flags of the simulator's, and which.
const OF_SIM: [(&str, &str); 4] = [
    ("model_path", "model"),
    ("max_running_requests", "max_running_requests"),
    ("chunked_prefill_size", "chunked_prefill_size"),
    ("schedule_conservativeness", "schedule_conservativeness"),
];

/// Whether the settings of a run go together, as far as that shows before anything is started.
///
/// # Errors
/// The key and what would be right.
pub fn check(kind: Kind, settings: &Settings) -> Result<(), Usage> {
    let spec = spec(kind, settings, Path::new(""), Path::new(""))?;
    spec.check().map_err(Usage)?;
    check_proxy(&spec).map_err(Usage)?;
    let (keys, mut started) = (&settings.line.keys, spec.servers.iter());
    if let (EngineName::Sim, Some(ServerSpec::Started(sim))) = (keys.engine, started.next()) {
        let share = keys.mem_fraction_static;
        if sim_tokens(share) < SIM_LEAST && settings.get("sim.max_total_tokens").is_none() {
            return Err(Usage(format!(
                "mem_fraction_static = {share}: leaves the simulator no room beside the weights; give 0.17 or more, or \
                 sim.max_total_tokens"
            )));
        }
        line::check_sim(&sim.flags)?;
    }
    if let Some(faults) = faults(settings)? {
        faults.check(&spec).map_err(Usage)?;
    }
    if keys.find_max_rate && settings.line.load.goodput.is_empty() {
        let right = "needs an objective: add goodput, such as [\"ttft:500\", \"e2el:5000\"]";
        return Err(Usage::of("find_max_rate", right));
    }
    Ok(())
}

/// What is to be started for a run whose folder is `dir`, by the program `queuescope`.
///
/// # Errors
/// The key and what would be right.
pub fn spec(
    kind: Kind,
    settings: &Settings,
    dir: &Path,
    program: &Path,
) -> Result<DeploymentSpec, Usage> {
    let (keys, load) = (&settings.line.keys, &settings.line.load);
    let logs = engine_logs(settings, dir);
    let router = router(kind, settings)?;
    let servers = match keys.engine {
        EngineName::External => external(settings)?,
        _ if settings.get("servers").is_some() => {
            return Err(Usage::of("servers", "goes with engine = \"external\""));
        }
        _ => {
            let count = keys.num_gpus.unwrap_or(kind.defaults().0).unsigned_abs();
            let one = |number| match keys.engine {
                EngineName::Sglang => sglang(settings, number, logs.as_deref()),
                _ => Ok(Program::sim(program, sim_flags(settings, logs.as_deref()))),
            };
            let all = (0..count).map(|number| one(number).map(ServerSpec::Started));
            all.collect::<Result<_, _>>()?
        }
    };
    let needs_hops = faults(settings)?.is_some_and(|faults| faults.needs_hops());
    let mut spec = DeploymentSpec::new(keys.engine, servers, program.to_owned(), dir);
    for (key, value) in settings.table("proxy") {
        put(&mut spec.proxy, key, value.clone());
    }
    if let Some(limit) = keys.start_timeout_s {
        spec.start_timeout = Duration::from_secs_f64(limit);
    }
    let env = settings.table("env");
    spec.env = env
        .map(|(name, value)| (name.to_owned(), text(value)))
        .collect();
    spec.base_port = u16::try_from(keys.base_port).ok().filter(|port| *port > 0);
    let is_real = matches!(router, Router::SglangRouter { .. });
    spec.front = keys.front.unwrap_or(router != Router::None);
    spec.hops = keys.hops.unwrap_or(needs_hops || is_real);
    spec.fault_injection = needs_hops;
    spec.router = router;
    spec.access = Access {
        tls: load.tls.clone(),
        api_key: api_key(None).map_err(Usage)?,
        headers: load.header.clone(),
    };
    if spec.has_proxy() {
        let ca = load.tls.ca.as_ref().map(|ca| ("upstream_ca", ca));
        let logs = logs.as_ref().map(|logs| ("engine.logs.path", logs));
        for (key, path) in ca.into_iter().chain(logs) {
            if !spec.proxy.contains_key(key) {
                put(&mut spec.proxy, key, path.display().to_string().into());
            }
        }
    }
    Ok(spec)
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
    let keys = &settings.line.keys;
    let own = match keys.engine {
        EngineName::Sim => "sim.",
        EngineName::Sglang => "sglang.",
        EngineName::External => return None,
    };
    let is_untold = settings
        .text("backend")
        .is_some_and(|backend| backend != "sglang");
    let is_said = settings.names().any(|key| {
        let own = key.strip_prefix(own).map(|key| key.replace('-', "_"));
        own.is_some_and(|key| key.starts_with("export_metrics_to_file") || key == "enable_trace")
            || key == "engine_logs"
            || key == "proxy.engine"
            || key.starts_with("proxy.engine.")
    });
    (is_untold && keys.enable_metrics && !is_said).then(|| dir.join(ENGINE_LOGS))
}

/// What is done to servers on purpose; `None`: nothing.
///
/// # Errors
/// The key and what would be right.
pub fn faults(settings: &Settings) -> Result<Option<FaultPlan>, Usage> {
    let keys = &settings.line.keys;
    match (keys.enable_node_failures, &keys.failure_schedule) {
        (Some(false), _) | (None, None) => Ok(None),
        (Some(true), None) => Err(Usage::of(
            "enable_node_failures",
            "nothing fails without failure_schedule, such as { 30 = [1, 2], 60 = [] }",
        )),
        (_, Some(schedule)) => Ok(Some(FaultPlan::new(schedule, &keys.failure_kind))),
    }
}

/// The generator's arguments of a run that sends to `url`, where `answers` (its `--upstream-kind`), and writes to `dir`.
///
/// # Errors
/// The URL is none.
pub fn traffic(
    settings: &Settings,
    url: &str,
    answers: UpstreamKind,
    dir: &Path,
) -> Result<traffic::Args, Usage> {
    let mut args = settings.line.load.clone();
    let target = Target::parse(url).map_err(|wrong| Usage(format!("{url}: {wrong}")))?;
    // It is how our proxy, or who asks a server's health, takes its certificate.
    if !target.is_tls() {
        args.tls = TlsArgs::default();
    }
    args.base_url = Some(target);
    args.upstream_kind = answers;
    args.output_dir = Some(dir.to_owned());
    args.engine_logs = args.engine_logs.or_else(|| engine_logs(settings, dir));
    // The rate that is found is the rate that was sent.
    args.exact_rate = settings.line.keys.find_max_rate;
    Ok(args)
}

fn external(settings: &Settings) -> Result<Vec<ServerSpec>, Usage> {
    let keys = &settings.line.keys;
    if keys.servers.is_empty() && keys.router != Some(RouterName::External) {
        let right = "needs servers, such as [\"http://127.0.0.1:30000\"]";
        return Err(Usage::of("engine = \"external\"", right));
    }
    let urls = keys.servers.iter().cloned();
    Ok(urls.map(ServerSpec::Running).collect())
}

/// The server of this number, from 0.
fn sglang(settings: &Settings, number: u64, logs: Option<&Path>) -> Result<Program, Usage> {
    let keys = &settings.line.keys;
    if keys.model_path.is_none() {
        let right = "engine = \"sglang\" needs a model: a folder or a name on the hub";
        return Err(Usage::of("model_path", right));
    }
    let sharing = keys.servers_per_gpu;
    if keys.mem_fraction_static * sharing as f64 > 1.0 {
        let most = 1.0 / sharing as f64;
        let right = format!(
            "mem_fraction_static must be below {most:.2}, as {sharing} servers share a GPU's memory"
        );
        return Err(Usage::of("servers_per_gpu", right));
    }
    // Each has GPUs of its own, or shares them with so many.
    let gpus = number / sharing.unsigned_abs() * keys.tp_size.unsigned_abs();
    let gpu = keys.gpu_id.unsigned_abs() + gpus;
    let own = OF_SGLANG
        .iter()
        .filter_map(|key| Some((*key, settings.get(key)?)));
    // The last of a flag wins.
    let more = own.chain(settings.table("sglang"));
    let mut flags = vec!["--base-gpu-id".to_owned(), gpu.to_string()];
    flags.extend(more.flat_map(|(key, value)| flags_of_python(key, value)));
    if let Some(logs) = logs {
        // Without the prompt.
        let is_own = flags.iter().any(|flag| flag.starts_with("--log-requests"));
        let plain = ["--log-requests", "--log-requests-level", "0"].map(str::to_owned);
        flags.extend(logs_to(logs));
        flags.extend(plain.into_iter().filter(|_| !is_own));
    }
    Ok(Program {
        program: keys.python.clone(),
        before: &["-m", "sglang.launch_server"],
        flags,
    })
}

/// Has a server write a line a request into a folder.
fn logs_to(folder: &Path) -> [String; 3] {
    let folder = folder.display().to_string();
    let flags = ["--export-metrics-to-file", "--export-metrics-to-file-dir"];
    [flags[0].to_owned(), flags[1].to_owned(), folder]
}

/// What the simulator's cache holds, tokens.
fn sim_tokens(share: f64) -> i64 {
    (SIM_TOKENS + (share - SIM_SHARE) * SIM_TOKENS_OF_ALL).round() as i64
}

/// The flags of the simulator. Its own table wins.
fn sim_flags(settings: &Settings, logs: Option<&Path>) -> Vec<String> {
    let keys = &settings.line.keys;
    let named = OF_SIM
        .iter()
        .filter_map(|(key, flag)| Some((*flag, settings.get(key)?.clone())));
    let tokens = (
        "max_total_tokens",
        sim_tokens(keys.mem_fraction_static).into(),
    );
    let no_metrics = (!keys.enable_metrics).then_some(("no_metrics", true.into()));
    let from_keys = named.chain([tokens]).chain(no_metrics);
    let is_own = |flag: &str| settings.table("sim").any(|(key, _)| key == flag);
    let from_keys = from_keys.filter(|(flag, _)| !is_own(flag));
    let own = settings
        .table("sim")
        .map(|(key, value)| (key, value.clone()));
    from_keys
        .chain(own)
        .flat_map(|(key, value)| flags(key, &value))
        .chain(logs.into_iter().flat_map(logs_to))
        .collect()
}

fn router(kind: Kind, settings: &Settings) -> Result<Router, Usage> {
    let keys = &settings.line.keys;
    let flags = settings.table("sglang_router");
    let flags: Vec<String> = flags
        .flat_map(|(key, value)| flags_of_python(key, value))
        .collect();
    let name = keys.router.unwrap_or(kind.defaults().1);
    if !flags.is_empty() && name != RouterName::SglangRouter {
        let wrong = "[sglang_router] has flags of sglang-router; give router = \"sglang-router\"";
        return Err(Usage(wrong.to_owned()));
    }
    if keys.router_url.is_some() && name != RouterName::External {
        return Err(Usage::of("router_url", "goes with router = \"external\""));
    }
    let policy = keys.routing_policy.clone();
    Ok(match name {
        RouterName::None => Router::None,
        RouterName::Builtin => Router::Builtin(policy),
        RouterName::SglangRouter => Router::SglangRouter {
            program: keys.router_program.clone().unwrap_or_default(),
            policy,
            flags,
        },
        RouterName::External => {
            let right = "needs router_url, such as http://127.0.0.1:30000";
            let missing = || Usage::of("router = \"external\"", right);
            Router::External(keys.router_url.clone().ok_or_else(missing)?)
        }
    })
}

/// What was given and means nothing to what is started: said, and no error.
pub fn without_effect(settings: &Settings, given: &[String]) -> Vec<String> {
    let engine = settings.line.keys.engine;
    let is_idle = |name: &str| {
        let table = name.split_once('.').map_or("", |(table, _)| table);
        let heading = line::key(name).map_or("", line::Key::heading);
        match engine {
            EngineName::Sim => heading == SGLANG || table == "sglang",
            EngineName::Sglang => table == "sim",
            EngineName::External => {
                [STARTED, SGLANG].contains(&heading) || ["sim", "sglang", "env"].contains(&table)
            }
        }
    };
    // A plan that was printed has all defaults in it.
    let is_default = |name: &str| {
        let default = line::key(name).and_then(line::Key::default);
        default.is_some_and(|default| settings.get(name) == Some(&default))
    };
    let engine = settings.text("engine").unwrap_or_default();
    let idle = given
        .iter()
        .filter(|name| is_idle(name) && !is_default(name));
    idle.map(|name| format!("{name} means nothing to engine {engine}"))
        .collect()
}
