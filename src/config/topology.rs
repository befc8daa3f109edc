//! What a config makes, as text: who sends to whom, what will be seen, and what looks wrong. Pure.

use std::net::IpAddr;
use std::time::Duration;

use crate::request::attempt::UpstreamKind;
use crate::telemetry::otlp::settings::DISABLED;
use crate::upstream::Address;

use super::check::Credentials;
use super::proxy::{Config, StampsPolicy, Worker};
use super::sections::SECTIONS;

/// Draws a config that has been checked: its picture, what can be seen in this topology, and what can be used but is probably
/// not what was meant.
pub fn of(config: &Config, credentials: &Credentials) -> String {
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

/// The keys that are not as by default, as the file has them.
pub(super) fn changes(config: &Config) -> String {
    let (mut text, mut config) = (String::new(), config.clone());
    for place in SECTIONS.iter().filter(|place| !place.is_list()) {
        let mut header = Some(format!("\n{}\n", place.header()));
        for key in place.keys().map(|key| key.name) {
            let value = place.get(&mut config, key);
            if let Some(value) = value.filter(|value| place.default(key).as_ref() != Some(value)) {
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

/// Whether a router's sending is seen. With a secret there may be hops elsewhere.
fn has_hops(config: &Config, credentials: &Credentials) -> bool {
    !config.workers.is_empty() || credentials.hop_secret.is_some()
}

/// What stands at an upstream's address: one of our own hops, a router or a server.
fn what_is_at(config: &Config, address: &Address) -> String {
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

/// A line for each way of a request.
fn picture(config: &Config) -> String {
    let front = config.listen;
    let line = |to| format!("clients -> front {front} -> {}\n", what_is_at(config, to));
    let mut text: String = config.upstream.iter().map(line).collect();
    if config.upstream.is_empty() {
        text += "a front elsewhere -> its router\n";
    } else if !is_router(config) {
        return text;
    } else if config.workers.is_empty() {
        return text + "router -> servers that it knows\n";
    }
    let is_through = |worker: &&Worker| !config.upstream.iter().any(|to| to.is_at(worker.listen));
    for worker in config.workers.iter().filter(is_through) {
        let (name, listen, server) = (&worker.name, worker.listen, worker.upstream.name());
        text += &format!("router -> hop {name} {listen} -> server {server}\n");
    }
    text += "the router must be started with --worker-urls";
    let urls = config.workers.iter().map(|worker| worker.listen);
    urls.for_each(|listen| text += &format!(" http://{listen}"));
    text + "\n"
}

/// What the records will hold, and what they cannot; where traces go.
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
            "traces: none: no endpoint in [telemetry.otlp], nor in OTEL_EXPORTER_OTLP_ENDPOINT (or {DISABLED} is true)"
        ),
    });
    if config.stamps == StampsPolicy::Never {
        lines.push("generators get no stamps: their own files have no router queue".into());
    }
    lines
}

/// After so much idleness SGLang closes a connection.
const SGLANG_IDLE: Duration = Duration::from_secs(5);

/// What can be used, but is probably not what was meant, a line each.
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
    match config.rules.max_concurrent_requests.get() {
        0 if !config.rules.queue_timeout_s.get().is_zero() => all.push(format!(
            "queue_timeout_s = {}: nothing waits, as max_concurrent_requests is 0",
            config.rules.queue_timeout_s.get().as_secs_f64()
        )),
        most if most > 0 && is_router(config) && !has_hops(config, credentials) => all.push(format!(
            "max_concurrent_requests = {most}: what is beyond it waits in this front, no longer in the router, and without hops \
             `queue_time_in_router` stays empty; add a [[worker]] for each server, or leave it to the router"
        )),
        _ => {}
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

/// The same of one hop.
fn hop_warnings(config: &Config, worker: &Worker) -> impl Iterator<Item = String> {
    let (name, listen) = (&worker.name, worker.listen);
    let is_told = config.upstream.iter().any(|to| to.is_at(listen));
    let is_idle = !is_router(config) && !is_told;
    let idle = is_idle.then(|| {
        format!(
            "nothing sends to {listen}: upstream_kind is \"server\" and upstream does not name it"
        )
    });
    let is_shared = config.upstream.is_empty() && is_near(&worker.upstream);
    let shared = (is_shared && worker.host.is_none()).then(|| {
        format!(
            "records call its server {}, as hops on other hosts may call theirs; give it a host, as in host = \"gpu1:30000\"",
            worker.called()
        )
    });
    let far = config.upstream.iter().find(|to| !is_near(to));
    let far = far.filter(|_| is_router(config) && listen.ip().is_loopback());
    let far = far.map(|router| {
        let router = router.name();
        format!("listens on {listen}, which a router at {router} cannot reach")
    });
    let all = [idle, shared, far].into_iter().flatten();
    all.map(move |warning| format!("worker {name}: {warning}"))
}

/// Whether an address may be on this machine. A name may.
fn is_near(address: &Address) -> bool {
    let host = address.host().parse::<IpAddr>();
    host.map_or(true, |ip| ip.is_loopback() || ip.is_unspecified())
}
