//! The text of `queuescope check`: who sends to whom, what will be measured, and warnings. Does no IO.

use std::net::IpAddr;
use std::time::Duration;

use crate::request::attempt::UpstreamKind;
use crate::telemetry::otlp::settings::SDK_DISABLED;
use crate::upstream::Address;

use super::check::Credentials;
use super::proxy::{Config, StampsPolicy, Worker};
use super::sections::SECTIONS;

/// Describes a checked config: its topology, the keys that differ from their defaults, what can be measured, and warnings.
pub fn describe(config: &Config, credentials: &Credentials) -> String {
    let warnings = warnings(config, credentials).into_iter();
    let warnings: String = warnings
        .map(|warning| format!("\nwarning: {warning}\n"))
        .collect();
    let seen: String = coverage(config, credentials)
        .iter()
        .map(|line| format!("  {line}\n"))
        .collect();
    let (picture, changes) = (picture(config), changes(config));
    format!("{picture}{changes}\nseen:\n{seen}{warnings}")
}

/// Returns the keys that differ from their defaults, as in a file.
pub(super) fn changes(config: &Config) -> String {
    let (mut text, mut config) = (String::new(), config.clone());
    for section in SECTIONS.iter().filter(|section| !section.is_list()) {
        let mut header = Some(format!("\n{}\n", section.header()));
        for key in section.keys().map(|key| key.name) {
            let default = section.default(key);
            let value = section.get(&mut config, key);
            if let Some(value) = value.filter(|value| Some(value) != default.as_ref()) {
                text += &header.take().unwrap_or_default();
                text += &format!("{key} = {value}\n");
            }
        }
    }
    text
}

fn is_router(config: &Config) -> bool {
    config.upstream_kind == UpstreamKind::Router
}

/// Whether hops show when a router sends. With a secret there may be hops in other processes.
fn has_hops(config: &Config, credentials: &Credentials) -> bool {
    !config.workers.is_empty() || credentials.hop_secret.is_some()
}

/// Describes an upstream: one of our own hops, a router or a server.
fn destination(config: &Config, address: &Address) -> String {
    let name = address.name();
    let hop = config
        .workers
        .iter()
        .find(|worker| address.is_at(worker.listen));
    match hop {
        Some(hop) => format!("hop {} {name} -> server {}", hop.name, hop.upstream.name()),
        None if is_router(config) => format!("router {name}"),
        None => format!("server {name}"),
    }
}

/// Returns a line for each path of a request.
fn picture(config: &Config) -> String {
    let front = config.listen;
    let line = |to| format!("clients -> front {front} -> {}\n", destination(config, to));
    let mut text: String = config.upstream.iter().map(line).collect();
    if config.upstream.is_empty() {
        text += "a front elsewhere -> its router\n";
    } else if !is_router(config) {
        return text;
    } else if config.workers.is_empty() {
        return text + "router -> servers that it knows\n";
    }
    let is_behind_router =
        |worker: &&Worker| !config.upstream.iter().any(|to| to.is_at(worker.listen));
    for worker in config.workers.iter().filter(is_behind_router) {
        let (name, listen, server) = (&worker.name, worker.listen, worker.upstream.name());
        text += &format!("router -> hop {name} {listen} -> server {server}\n");
    }
    text += "the router must be started with --worker-urls";
    let urls = config.workers.iter().map(|worker| worker.listen);
    urls.for_each(|listen| text += &format!(" http://{listen}"));
    text + "\n"
}

/// Describes what the records will contain and what they cannot, and where traces go.
fn coverage(config: &Config, credentials: &Credentials) -> Vec<String> {
    let seen = match (is_router(config), has_hops(config, credentials)) {
        _ if config.upstream.is_empty() => {
            let hops = "hops only: each attempt of the router has a row here; its request's arrival is in the front's file";
            return vec![hops.into()];
        }
        (true, true) => [
            "router queue: seen; queue_time_in_router ends when the router sends to a hop",
            "network_time and server_latency: from the hop's sending",
            "host: the server behind the hop that answered",
        ],
        (true, false) => [
            "router queue: NOT seen; a router without hops: queue_time_in_router stays empty",
            "network_time, server_latency and server_queue_wait: NOT seen, they stay empty; add a \
             [[worker]] for each server",
            "host: only where the router names the server itself (smg 1.13's \
             x-smg-routed-worker-id), or where there is only one upstream",
        ],
        (false, _) => [
            "router queue: there is no router; queue_time_in_router is the front's own time",
            "network_time and server_latency: from the front's sending",
            "host: the upstream that answered",
        ],
    };
    let engine = match config.engine.is_on() {
        true => "as servers tell by [engine], and with SGLang's --enable-metrics",
        false => {
            "with SGLang's --enable-metrics, else empty; streams of the OpenAI endpoints need [engine.traces] or [engine.logs] here"
        }
    };
    let mut lines = seen.map(String::from).to_vec();
    lines.push(format!("queue, prefill and decode of the server: {engine}"));
    lines.push(match &credentials.traces {
        Some(settings) => format!("traces: {}", settings.target()),
        None => format!(
            "traces: none: no endpoint in [telemetry.otlp], nor in OTEL_EXPORTER_OTLP_ENDPOINT (or {SDK_DISABLED} is true)"
        ),
    });
    if config.stamps == StampsPolicy::Never {
        lines.push("generators get no stamps: their own files have no router queue".into());
    }
    lines
}

/// After this time SGLang closes an idle connection.
const SGLANG_IDLE: Duration = Duration::from_secs(5);

/// Warns of values that are valid but probably mistakes.
fn warnings(config: &Config, credentials: &Credentials) -> Vec<String> {
    let mut all = Vec::new();
    if !config.admin.ip().is_loopback() && credentials.admin_token.is_none() {
        all.push(format!(
            "admin = \"{}\": other machines can reach it, and it names servers; listen on 127.0.0.1, or set admin_token",
            config.admin
        ));
    }
    if config.rules.upstream_idle_timeout_s.get() >= SGLANG_IDLE {
        all.push(format!(
            "upstream_idle_timeout_s = {}: SGLang closes idle connections after 5 s, and requests that run \
             into that get a 502; 4 is right for it",
            config.rules.upstream_idle_timeout_s.get().as_secs_f64()
        ));
    }
    let max = config.rules.max_concurrent_requests.get();
    if max > 0 && is_router(config) && !has_hops(config, credentials) {
        all.push(format!(
            "max_concurrent_requests = {max}: what is beyond it waits in this front, no longer in the router, and without hops \
             `queue_time_in_router` stays empty; add a [[worker]] for each server, or leave it to the router"
        ));
    }
    if config.upstream.is_empty() && credentials.hop_secret.is_none() {
        all.push(
            "hop_secret: is not given, so the front will take off what these hops stamp and not use it; give the same \
             to the front and here"
                .into(),
        );
    }
    let workers = config.workers.iter();
    all.extend(workers.flat_map(|worker| hop_warnings(config, worker)));
    all
}

/// Warns of one hop.
fn hop_warnings(config: &Config, worker: &Worker) -> impl Iterator<Item = String> {
    let (name, listen) = (&worker.name, worker.listen);
    let is_upstream = config.upstream.iter().any(|to| to.is_at(listen));
    let is_idle = !is_router(config) && !is_upstream;
    let idle = is_idle.then(|| {
        format!(
            "nothing sends to {listen}: upstream_kind is \"server\" and upstream does not name it"
        )
    });
    let is_ambiguous = config.upstream.is_empty() && may_be_local(&worker.upstream);
    let ambiguous = (is_ambiguous && worker.host.is_none()).then(|| {
        format!(
            "records call its server {}, as hops on other hosts may call theirs; give it a host, as in host = \"gpu1:30000\"",
            worker.server_name()
        )
    });
    let remote = config.upstream.iter().find(|to| !may_be_local(to));
    let remote = remote.filter(|_| is_router(config) && listen.ip().is_loopback());
    let unreachable = remote.map(|router| {
        let router = router.name();
        format!("listens on {listen}, which a router at {router} cannot reach")
    });
    let all = [idle, ambiguous, unreachable].into_iter().flatten();
    all.map(move |warning| format!("worker {name}: {warning}"))
}

/// Whether an address may be on this machine. A host name may.
fn may_be_local(address: &Address) -> bool {
    let host = address.host().parse::<IpAddr>();
    host.map_or(true, |ip| ip.is_loopback() || ip.is_unspecified())
}
