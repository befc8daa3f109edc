//! What the settings of a run mean for the programs that are started, and for the generator.

use std::path::{Path, PathBuf};

use anyhow::{bail, ensure};
use toml::{Table, Value};

use super::Plan;
use super::error::PlanError;
use super::keys::{SGLANG, STARTED};
use super::line::{self, Settings, text};
use crate::experiment::faults::{FaultKind, FaultPlan};
use crate::experiment::launch::{
    Access, CommandLine, DeploymentSpec, EngineName, Router, ServerSpec, check_proxy,
};
use crate::report::files::ENGINE_LOGS;
use crate::request::attempt::ServerRole;
use crate::traffic;
use crate::traffic::client::{Target, TlsArgs, UpstreamKind, api_key};

/// The flag by which SGLang and the simulator are one of a pair.
const MODE: &str = "disaggregation_mode";
/// Keys that are flags of SGLang's by the same name; those that the simulator has are its, too.
const OF_SERVERS: &str = "model_path tp_size max_running_requests mem_fraction_static chunked_prefill_size \
    schedule_conservativeness quantization enable_torch_compile enable_metrics";

/// Whether the settings of a run go together, as far as that shows before anything is started.
///
/// # Errors
/// The key and what would be right.
pub fn check(settings: &Settings) -> Result<(), PlanError> {
    Ok(fits(settings)?)
}

fn fits(settings: &Settings) -> anyhow::Result<()> {
    let (keys, router) = (&settings.keys, settings.keys.router);
    let spec = spec(settings, Path::new(""), Path::new(""))?;
    let is_external = keys.engine == EngineName::External;
    ensure!(
        is_external || keys.servers.is_empty(),
        "servers: goes with engine = \"external\""
    );
    fits_pairs(settings)?;
    ensure!(
        !is_external || !keys.servers.is_empty() || router == Router::External,
        "engine = \"external\": needs servers, such as [\"http://127.0.0.1:30000\"]"
    );
    ensure!(
        router == Router::SglangRouter || settings.table("sglang_router").next().is_none(),
        "[sglang_router] has flags of sglang-router; give router = \"sglang-router\""
    );
    ensure!(
        router == Router::External || keys.router_url.is_none(),
        "router_url: goes with router = \"external\""
    );
    ensure!(
        router != Router::External || keys.router_url.is_some(),
        "router = \"external\": needs router_url, such as http://127.0.0.1:30000"
    );
    if keys.engine == EngineName::Sglang {
        ensure!(
            keys.model_path.is_some(),
            "model_path: engine = \"sglang\" needs a model: a folder or a name on the hub"
        );
        let sharing = f64::from(keys.servers_per_gpu);
        ensure!(
            keys.mem_fraction_static * sharing <= 1.0,
            "servers_per_gpu: mem_fraction_static must be below {:.2}, as {sharing} servers share a GPU's memory",
            1.0 / sharing
        );
    }
    spec.check()?;
    if let Some(faults) = faults(settings) {
        faults.check(&spec)?;
    }
    check_proxy(&spec)?;
    if keys.engine == EngineName::Sim {
        check_sim(settings)?;
    }
    for (key, is_asked) in [
        (
            "enable_node_failures",
            keys.enable_node_failures == Some(true),
        ),
        ("failure_kind", keys.failure_kind != FaultKind::Kill),
    ] {
        ensure!(
            !is_asked || keys.failure_schedule.is_some(),
            "{key}: nothing fails without failure_schedule, such as {{ 30 = [1, 2], 60 = [] }}"
        );
    }
    ensure!(
        !keys.find_max_rate || !settings.load.goodput.is_empty(),
        "find_max_rate: needs an objective: add goodput, such as [\"ttft:500\", \"e2el:5000\"]"
    );
    Ok(())
}

/// The same of what is of pairs of servers.
fn fits_pairs(settings: &Settings) -> anyhow::Result<()> {
    let keys = &settings.keys;
    if !keys.has_pairs() {
        let roles = ServerRole::ALL.map(ServerRole::name);
        let is_given = |name: &&str| settings.table(name).next().is_some();
        let given = roles.into_iter().find(is_given);
        match given.filter(|_| keys.engine != EngineName::External) {
            Some(name) => bail!(
                "[{name}] has flags of servers that only {name}; give num_prefill and num_decode"
            ),
            None => return Ok(()),
        }
    }
    ensure!(
        keys.num_prefill > 0 && keys.num_decode > 0,
        "num_prefill = {}, num_decode = {}: they go together; give at least one server of each",
        keys.num_prefill,
        keys.num_decode
    );
    let is_mode = |key: &&str| key.replace('-', "_").ends_with(".disaggregation_mode");
    if let Some(key) = settings.names().find(is_mode) {
        bail!("{key}: num_prefill and num_decode set it; leave it out");
    }
    Ok(())
}

/// Whether the simulator takes its flags, and those that only servers of one role get.
fn check_sim(settings: &Settings) -> Result<(), PlanError> {
    for role in [None].into_iter().chain(ServerRole::ALL.map(Some)) {
        let name = role.map_or("sim", ServerRole::name);
        let mut own = settings.table(name);
        if let Some((key, _)) = own.find(|(key, _)| !line::SIM.contains(&format!("sim.{key}"))) {
            let wrong = "no such key; `queuescope sim --help` names all";
            return Err(PlanError::of(&format!("{name}.{key}"), wrong));
        }
        line::check_sim(&server_flags(settings, (0, role), None), name)?;
    }
    Ok(())
}

/// What is to be started for a run whose folder is `dir`, by the program `queuescope`, if its settings fit.
///
/// # Errors
/// The variable that has the API's key holds none.
pub fn spec(settings: &Settings, dir: &Path, program: &Path) -> Result<DeploymentSpec, PlanError> {
    let (keys, load) = (&settings.keys, &settings.load);
    let logs = engine_logs(settings, dir);
    let router = keys.router;
    let started = |number, role| {
        let line = match keys.engine {
            EngineName::Sglang => CommandLine::new(&keys.python, &["-m", "sglang.launch_server"]),
            _ => CommandLine::new(program, &["sim"]),
        };
        let mut line = line.with(server_flags(settings, (number, role), logs.as_deref()));
        let env = settings.table("env");
        line.env = env.map(|(name, value)| (name, text(&value))).collect();
        ServerSpec::Started(line)
    };
    let router_flags = settings.table("sglang_router");
    let router_flags = router_flags.flat_map(|(key, value)| line::flags(&key, &value));
    let needs_hops = faults(settings).is_some_and(|faults| faults.needs_hops());
    let mut spec = DeploymentSpec {
        engine: keys.engine,
        prefill: keys.num_prefill as usize * usize::from(keys.has_pairs()),
        traces: told(settings) == Some(Told::Traces),
        base_port: Some(keys.base_port).filter(|port| *port > 0),
        front: keys.front.unwrap_or(router != Router::None),
        hops: keys
            .hops
            .unwrap_or(needs_hops || router == Router::SglangRouter),
        router,
        policy: keys.routing_policy.clone(),
        router_program: keys.router_program.clone(),
        router_flags: router_flags.collect(),
        router_url: keys.router_url.clone(),
        access: Access {
            tls: load.tls.clone(),
            api_key: api_key(None).map_err(PlanError)?,
            headers: load.header.clone(),
        },
        program: program.to_owned(),
        dir: dir.to_owned(),
        start_timeout: keys.start_timeout_s,
        ..DeploymentSpec::default()
    };
    let count = match keys.has_pairs() {
        true => keys.num_prefill + keys.num_decode,
        false => keys.num_gpus,
    };
    let running = keys.servers.iter().cloned().map(ServerSpec::Running);
    spec.servers = match keys.engine {
        EngineName::External => running.collect(),
        _ => (0..count)
            .map(|number| started(number, spec.role(number as usize)))
            .collect(),
    };
    if spec.has_proxy() {
        let ca = load.tls.ca.as_ref().map(|ca| ("upstream_ca", ca));
        let logs = logs.as_ref().map(|logs| ("engine.logs.path", logs));
        let own = ca.into_iter().chain(logs);
        let own = own.map(|(key, path)| (key.to_owned(), path.display().to_string().into()));
        spec.proxy.extend(own);
        let takes_faults = needs_hops.then(|| ("fault_injection".to_owned(), true.into()));
        spec.proxy.extend(takes_faults);
    }
    spec.proxy.extend(settings.table("proxy"));
    Ok(spec)
}

/// How servers that are started tell of requests beside their replies.
#[derive(PartialEq)]
enum Told {
    /// By spans, to the proxy.
    Traces,
    /// By a line a request, to files.
    Logs,
}

/// How they are to, where nobody has said it: those of a pair by traces, as most of its waits are told in no other way (SGLang needs an
/// extra for it, so it is asked); others by logs where they speak an API whose streams carry no times.
fn told(settings: &Settings) -> Option<Told> {
    let keys = &settings.keys;
    let (own, by_default) = match keys.engine {
        EngineName::Sim => ("sim", keys.has_pairs()),
        EngineName::Sglang => ("sglang", false),
        EngineName::External => return None,
    };
    let logs = format!("{own}.export_metrics_to_file");
    let names: Vec<String> = settings.names().map(|key| key.replace('-', "_")).collect();
    let is_listened = names.iter().any(|key| {
        key.split('.').take(2).eq(["proxy", "engine"]) || key.ends_with(".otlp_traces_endpoint")
    });
    let is_log = |key: &String| key == "engine_logs" || key.starts_with(&logs);
    let has_logs = names.iter().any(is_log);
    let traces = settings.get(&format!("{own}.enable_trace"));
    let backend = settings.text("backend");
    let is_untold = backend.is_some_and(|backend| backend != "sglang") && keys.enable_metrics;
    match traces.map(Value::as_bool) {
        _ if is_listened => None,
        Some(Some(true)) if keys.has_pairs() => Some(Told::Traces),
        None if by_default => Some(Told::Traces),
        None if is_untold && !has_logs => Some(Told::Logs),
        _ => None,
    }
}

/// Where the servers of a run write what they know of each request, to be put into its rows.
pub fn engine_logs(settings: &Settings, dir: &Path) -> Option<PathBuf> {
    (told(settings) == Some(Told::Logs)).then(|| dir.join(ENGINE_LOGS))
}

/// What is done to servers on purpose; `None`: nothing.
pub fn faults(settings: &Settings) -> Option<FaultPlan> {
    let keys = &settings.keys;
    let schedule = keys.failure_schedule.as_ref();
    let schedule = schedule.filter(|_| keys.enable_node_failures != Some(false))?;
    Some(FaultPlan {
        kind: keys.failure_kind.clone(),
        schedule: schedule.clone(),
    })
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
) -> Result<traffic::Args, PlanError> {
    let mut args = settings.load.clone();
    let target = Target::parse(url).map_err(|wrong| PlanError(format!("{url}: {wrong}")))?;
    // It is how our proxy, or who asks a server's health, takes its certificate.
    if !target.is_tls() {
        args.tls = TlsArgs::default();
    }
    args.base_url = Some(target);
    args.upstream_kind = answers;
    args.output_dir = Some(dir.to_owned());
    args.engine_logs = args.engine_logs.or_else(|| engine_logs(settings, dir));
    // The rate that is found is the rate that was sent.
    args.exact_rate = settings.keys.find_max_rate;
    Ok(args)
}

/// The flags of the server of this number, from 0: its engine's table wins over keys, and over that the one of its role.
fn server_flags(
    settings: &Settings,
    (number, role): (u32, Option<ServerRole>),
    logs: Option<&Path>,
) -> Vec<String> {
    let keys = &settings.keys;
    let is_sglang = keys.engine == EngineName::Sglang;
    let mut all = Table::new();
    let is_flag = |key: &&str| is_sglang || line::SIM.contains(&format!("sim.{key}"));
    let named = |key: &str| Some((key.to_owned(), settings.get(key)?.clone()));
    all.extend(OF_SERVERS.split(' ').filter(is_flag).filter_map(named));
    let mut own = |flag: &str, value: Value| all.insert(flag.to_owned(), value);
    if is_sglang {
        // Each has GPUs of its own, or shares them with so many.
        let gpu = keys.gpu_id + number / keys.servers_per_gpu * keys.tp_size;
        own("base_gpu_id", i64::from(gpu).into());
    } else {
        if let Some(model) = settings.get("model_path") {
            own("model", model.clone());
        }
        // A flag that is off is none.
        own("no_metrics", (!keys.enable_metrics).into());
        if told(settings) == Some(Told::Traces) {
            own("enable_trace", true.into());
            own("trace_level", 2.into());
        }
    }
    if let Some(role) = role {
        own(MODE, role.name().into());
    }
    let table = if is_sglang { "sglang" } else { "sim" };
    for table in [table].into_iter().chain(role.map(ServerRole::name)) {
        all.extend(settings.table(table));
    }
    if let Some(logs) = logs {
        let is_said = |key: &String| key.replace('-', "_").starts_with("log_requests");
        let is_unsaid = is_sglang && !all.keys().any(is_said);
        let mut own = |flag: &str, value: Value| all.insert(flag.to_owned(), value);
        own("export_metrics_to_file", true.into());
        own(
            "export_metrics_to_file_dir",
            logs.display().to_string().into(),
        );
        if is_unsaid {
            // Without the prompt.
            own("log_requests", true.into());
            own("log_requests_level", 0.into());
        }
    }
    let flags = all.iter().map(|(key, value)| line::flags(key, value));
    flags.flatten().collect()
}

/// What was given and means nothing to what is started: said, and no error.
pub fn without_effect(plan: &Plan, settings: &Settings) -> Vec<String> {
    let idle: &[&str] = match settings.keys.engine {
        EngineName::Sim => &[SGLANG, "sglang"],
        EngineName::Sglang => &["sim"],
        EngineName::External => &[STARTED, SGLANG, "sim", "sglang", "prefill", "decode", "env"],
    };
    let is_instead = |name: &str| settings.keys.has_pairs() && name == "num_gpus";
    let is_idle = |name: &&String| {
        let key = line::key(name);
        let place = match name.split_once('.') {
            Some((table, _)) => Some(table),
            None => key.and_then(|key| key.get_help_heading()),
        };
        // A plan that was printed has all defaults in it.
        let default = key.and_then(|key| line::default_of(plan.kind, key));
        let is_default = default.is_some() && settings.get(name) == default.as_ref();
        let is_idle = place.is_some_and(|place| idle.contains(&place)) || is_instead(name);
        is_idle && !is_default
    };
    let engine = traffic::name(settings.keys.engine);
    let told = |name: &String| match is_instead(name) {
        true => format!("{name} means nothing beside num_prefill and num_decode"),
        false => format!("{name} means nothing to engine {engine}"),
    };
    plan.given.iter().filter(is_idle).map(told).collect()
}
