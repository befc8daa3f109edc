//! Turns the settings of a run into what is started for it, and into the generator's arguments.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{bail, ensure};
use toml::{Table, Value};

use super::keys::{SGLANG, STARTED};
use super::settings::{self, Settings, flag_text};
use super::{Plan, SIM_HELP};
use crate::error::Error;
use crate::experiment::faults::{FaultKind, FaultPlan};
use crate::experiment::launch::{
    Access, CommandLine, DeploymentSpec, EngineName, Router, ServerSpec,
};
use crate::report::files::ENGINE_LOGS;
use crate::request::ServerRole;
use crate::traffic::client::{Target, TlsArgs, api_key};
use crate::traffic::{self, Backend};

/// The flag that makes a server of SGLang or the simulator one of a pair.
const MODE: &str = "disaggregation_mode";
/// Keys that are also flags of SGLang, and of the simulator if it has them.
const SERVER_KEYS: &str = "model_path tp_size max_running_requests mem_fraction_static chunked_prefill_size \
    schedule_conservativeness quantization enable_torch_compile enable_metrics";

/// Checks that the settings of a run go together, as far as that shows before anything is started.
///
/// # Errors
/// Names the key and what would be valid.
pub fn check(settings: &Settings) -> anyhow::Result<()> {
    let (keys, router) = (&settings.keys, settings.keys.router);
    let spec = spec(settings, Path::new(""), Path::new(""))?;
    let is_external = keys.engine == EngineName::External;
    let is_routed = is_external && router == Router::External;
    ensure!(
        is_routed || is_external != keys.servers.is_empty(),
        "engine = \"external\" and servers go together; servers are URLs, such as [\"http://127.0.0.1:30000\"]"
    );
    if let Some(url) = settings::given_twice(keys.servers.iter().map(|url| url.as_str().into())) {
        bail!("servers: {url} is given twice; leave it out, or give the address of another server");
    }
    check_pairs(settings)?;
    ensure!(
        router == Router::SglangRouter || settings.table("sglang_router").next().is_none(),
        "[sglang_router] has flags of sglang-router; give router = \"sglang-router\""
    );
    ensure!(
        (router == Router::External) == keys.router_url.is_some(),
        "router = \"external\" and router_url, such as http://127.0.0.1:30000, go together"
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
    ensure!(
        spec.prefill == 0 || router == Router::SglangRouter,
        "num_prefill: only a router that is started here and knows of pairs sends to them; give router = \"sglang-router\""
    );
    check_count(&spec)?;
    ensure!(
        !(spec.hops && router == Router::External),
        "hops: an external router knows its servers already, so none can be put before them; begin them yourself \
         (docs/DEPLOY.md) or take a router that is started here"
    );
    // As of sglang-router 0.3.2; the others need further flags.
    ensure!(
        router != Router::SglangRouter || spec.policy != "shortest_queue",
        "routing_policy = \"shortest_queue\": sglang-router has cache_aware, round_robin, random, power_of_two and others; \
         this one needs router = \"builtin\""
    );
    if let Some(faults) = faults(settings) {
        faults.check(&spec)?;
    }
    spec.check_proxy()?;
    if keys.engine == EngineName::Sim {
        check_sim(settings)?;
    }
    let wants_faults =
        keys.enable_node_failures == Some(true) || keys.failure_kind != FaultKind::Kill;
    ensure!(
        keys.failure_schedule.is_some() || !wants_faults,
        "enable_node_failures, failure_kind: nothing fails without failure_schedule, such as {{ 30 = [1, 2], 60 = [] }}"
    );
    ensure!(
        !keys.find_max_rate || !settings.load.goodput.is_empty(),
        "find_max_rate: needs an objective: add goodput, such as [\"ttft:500\", \"e2el:5000\"]"
    );
    Ok(())
}

/// Checks that the ports from `base_port` on reach for all servers that are started, and that something shares requests out.
fn check_count(spec: &DeploymentSpec) -> anyhow::Result<()> {
    let count = spec.servers.len();
    let is_started = spec.running().next().is_none();
    let port = spec.base_port.filter(|_| is_started).unwrap_or_default();
    let max = (usize::from(u16::MAX) + 1).saturating_sub(count);
    ensure!(
        usize::from(port) <= max,
        "base_port = {port}: {count} servers need a port each from there on; give {max} or lower"
    );
    ensure!(
        count <= 1 || spec.router != Router::None,
        "router = \"none\": nothing would share requests out over {count} servers; take one server, or a router \
         (\"builtin\" or \"sglang-router\")"
    );
    Ok(())
}

/// Checks the settings of pairs of prefill and decode servers.
fn check_pairs(settings: &Settings) -> anyhow::Result<()> {
    let (keys, has_pairs) = (&settings.keys, settings.keys.has_pairs());
    let is_alone = !has_pairs && keys.engine != EngineName::External;
    for role in ServerRole::ALL.map(ServerRole::name) {
        ensure!(
            !is_alone || settings.table(role).next().is_none(),
            "[{role}] has flags of servers that only {role}; give num_prefill and num_decode"
        );
    }
    ensure!(
        (keys.num_prefill > 0) == (keys.num_decode > 0),
        "num_prefill = {}, num_decode = {}: they go together; give at least one server of each",
        keys.num_prefill,
        keys.num_decode
    );
    let is_mode = |key: &&String| key.replace('-', "_").ends_with(".disaggregation_mode");
    match settings.values.keys().find(is_mode).filter(|_| has_pairs) {
        Some(key) => bail!("{key}: num_prefill and num_decode set it; leave it out"),
        None => Ok(()),
    }
}

/// Checks the simulator's flags, and those that only servers of one role get.
fn check_sim(settings: &Settings) -> Result<(), Error> {
    for role in [None].into_iter().chain(ServerRole::ALL.map(Some)) {
        let name = role.map_or("sim", ServerRole::name);
        let mut own = settings.table(name);
        if let Some((key, _)) = own.find(|(key, _)| !is_sim_flag(key)) {
            let problem = format!("{name}.{key}: no such key; {SIM_HELP}");
            return Err(Error::usage(problem));
        }
        settings::check_sim(&server_flags(settings, (0, role), None), name)?;
    }
    Ok(())
}

fn is_sim_flag(key: &str) -> bool {
    settings::SIM.contains(&format!("sim.{key}"))
}

/// Returns what is to be started for a run in the folder `dir`; `program` is queuescope's own.
///
/// # Errors
/// The environment variable of the API key holds no valid key.
pub fn spec(settings: &Settings, dir: &Path, program: &Path) -> Result<DeploymentSpec, Error> {
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
        line.env = env.map(|(name, value)| (name, flag_text(&value))).collect();
        ServerSpec::Started(line)
    };
    let router_flags = settings.table("sglang_router");
    let router_flags = router_flags.flat_map(|(key, value)| settings::flags(&key, &value));
    let key = api_key(None).map_err(Error::usage)?;
    let needs_hops = faults(settings).is_some_and(|faults| faults.needs_hops());
    let mut spec = DeploymentSpec {
        engine: keys.engine,
        prefill: keys.num_prefill as usize * usize::from(keys.has_pairs()),
        traces: report_channel(settings) == Some(ReportChannel::Traces),
        base_port: Some(keys.base_port).filter(|port| *port > 0),
        front: keys.front.unwrap_or(router != Router::None),
        hops: needs_hops || keys.hops.unwrap_or(router == Router::SglangRouter),
        router,
        policy: keys.routing_policy.clone(),
        router_program: keys.router_program.clone(),
        router_flags: router_flags.collect(),
        router_url: keys.router_url.clone(),
        access: Access {
            tls: load.tls.clone(),
            headers: key.into_iter().chain(load.header.clone()).collect(),
        },
        program: program.to_owned(),
        dir: dir.to_owned(),
        // SGLang loads a model and may compile.
        start_timeout: keys.start_timeout_s.unwrap_or(match keys.engine {
            EngineName::Sglang => Duration::from_secs(600),
            _ => Duration::from_secs(30),
        }),
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

/// How started servers report each request, in addition to their responses.
#[derive(PartialEq)]
enum ReportChannel {
    /// Spans, sent to the proxy.
    Traces,
    /// Request logs, in files.
    Logs,
}

/// Chooses how servers report requests, unless the plan's flags choose it. Pairs report by traces, as most of their waits are reported
/// in no other way; but SGLang needs an extra package for it, so there the plan must enable it. Others report by logs if they speak an
/// API whose streams carry no times.
fn report_channel(settings: &Settings) -> Option<ReportChannel> {
    let keys = &settings.keys;
    let own = match keys.engine {
        EngineName::Sim => "sim",
        EngineName::Sglang => "sglang",
        EngineName::External => return None,
    };
    let has = |part: &str| {
        let mut keys = settings.values.keys();
        keys.any(|key| key.replace('-', "_").contains(part))
    };
    let traces = settings.values.get(&format!("{own}.enable_trace"));
    let sends_traces = traces.map_or(own == "sim", |traces| traces.as_bool() == Some(true));
    let has_logs = has("engine_logs") || has(&format!("{own}.export_metrics_to_file"));
    let lacks_times = settings.load.backend != Backend::Sglang && keys.enable_metrics;
    if has("proxy.engine") || has(".otlp_traces_endpoint") {
        None
    } else if keys.has_pairs() && sends_traces {
        Some(ReportChannel::Traces)
    } else {
        let is_wanted = lacks_times && traces.is_none() && !has_logs;
        is_wanted.then_some(ReportChannel::Logs)
    }
}

/// The folder of the servers' request logs, if the generator is to join them to its rows.
pub fn engine_logs(settings: &Settings, dir: &Path) -> Option<PathBuf> {
    (report_channel(settings) == Some(ReportChannel::Logs)).then(|| dir.join(ENGINE_LOGS))
}

/// The faults to inject; `None` if there are none.
pub fn faults(settings: &Settings) -> Option<FaultPlan> {
    let keys = &settings.keys;
    let schedule = keys.failure_schedule.as_ref();
    let schedule = schedule.filter(|_| keys.enable_node_failures != Some(false))?;
    Some(FaultPlan {
        kind: keys.failure_kind.clone(),
        schedule: schedule.clone(),
    })
}

/// Returns the generator's arguments of a run that sends to `url`, which leads to what `spec` starts, and writes to its folder.
///
/// # Errors
/// The URL is invalid.
pub fn traffic(
    settings: &Settings,
    spec: &DeploymentSpec,
    url: &str,
) -> Result<traffic::Args, Error> {
    let mut args = settings.load.clone();
    let target = Target::parse(url).map_err(|problem| Error::usage(format!("{url}: {problem}")))?;
    // The options then concern the servers behind our proxy.
    if !target.address.is_tls {
        args.tls = TlsArgs::default();
    }
    args.base_url = target;
    args.upstream_kind = spec.upstream_kind();
    args.output_dir = Some(spec.dir.clone());
    let logs = || engine_logs(settings, &spec.dir);
    args.engine_logs = args.engine_logs.or_else(logs);
    // So that the rate that a search finds is the rate that was sent.
    args.exact_rate = settings.keys.find_max_rate;
    Ok(args)
}

/// Returns the flags of the server of this number, from 0. Its engine's table overrides keys, and the table of its role overrides both.
fn server_flags(
    settings: &Settings,
    (number, role): (u32, Option<ServerRole>),
    logs: Option<&Path>,
) -> Vec<String> {
    let keys = &settings.keys;
    let is_sglang = keys.engine == EngineName::Sglang;
    let mut all = Table::new();
    let is_flag = |key: &&str| is_sglang || is_sim_flag(key);
    let entry = |key: &str| Some((key.to_owned(), settings.values.get(key)?.clone()));
    all.extend(SERVER_KEYS.split(' ').filter(is_flag).filter_map(entry));
    let mut set = |flag: &str, value: Value| all.insert(flag.to_owned(), value);
    if is_sglang {
        // Each server has its own GPUs, or shares them with `servers_per_gpu - 1` others.
        let gpu = keys.gpu_id + number / keys.servers_per_gpu * keys.tp_size;
        set("base_gpu_id", i64::from(gpu).into());
        // A plan may have it in percent, which SGLang does not know.
        set("mem_fraction_static", keys.mem_fraction_static.into());
    } else {
        if let Some(model) = settings.values.get("model_path") {
            set("model", model.clone());
        }
        set("no_metrics", (!keys.enable_metrics).into());
        if report_channel(settings) == Some(ReportChannel::Traces) {
            set("enable_trace", true.into());
        }
    }
    if let Some(role) = role {
        set(MODE, role.name().into());
    }
    if let Some(logs) = logs {
        set("export_metrics_to_file", true.into());
        let dir = logs.display().to_string();
        set("export_metrics_to_file_dir", dir.into());
        if is_sglang {
            set("log_requests", true.into());
            // Level 0 leaves the prompt out.
            set("log_requests_level", 0.into());
        }
    }
    let table = if is_sglang { "sglang" } else { "sim" };
    for table in [table].into_iter().chain(role.map(ServerRole::name)) {
        all.extend(settings.table(table));
    }
    let flags = all.iter().map(|(key, value)| settings::flags(key, value));
    flags.flatten().collect()
}

/// Whether a key has no effect on what is started with this engine.
pub fn is_idle(engine: EngineName, name: &str) -> bool {
    let idle: &[&str] = match engine {
        EngineName::Sim => &[SGLANG, "sglang"],
        EngineName::Sglang => &["sim"],
        EngineName::External => &[STARTED, SGLANG, "sim", "sglang", "prefill", "decode", "env"],
    };
    let group = match name.split_once('.') {
        Some((table, _)) => Some(table),
        None => settings::key(name).and_then(|key| key.get_help_heading()),
    };
    group.is_some_and(|group| idle.contains(&group))
}

/// Returns a note on each given key that has no effect, which is no error.
pub fn ineffective_keys(plan: &Plan, settings: &Settings) -> Vec<String> {
    let engine = settings.keys.engine;
    let is_ineffective = |name: &&String| {
        // A plan that --print-plan wrote contains all defaults.
        let default = plan.defaults.get(name.as_str());
        let is_default = settings.values.get(*name) == default.map(|values| &values[0]);
        !is_default && is_idle(engine, name)
    };
    let engine = traffic::value_name(engine);
    let note = |name: &String| format!("{name} has no effect with engine {engine}");
    plan.given.iter().filter(is_ineffective).map(note).collect()
}
