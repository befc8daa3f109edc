//! What a config makes, as text: who sends to whom, what will be seen, and what looks wrong. Pure.

use crate::request::attempt::UpstreamKind;
use crate::upstream::Address;

use super::check::Credentials;
use super::proxy::{Config, StampsPolicy, Worker};
use super::sections::SECTIONS;

mod warnings;

/// Draws a config that has been checked: its picture, what can be seen in this topology, and what can be used but is probably
/// not what was meant.
pub fn of(config: &Config, credentials: &Credentials) -> String {
    let warnings = warnings::of(config, credentials).into_iter();
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

fn picture(config: &Config) -> String {
    if config.upstream.is_empty() {
        let start = "a front elsewhere -> its router\n".to_owned();
        return start + &hops(config.workers.iter(), true) + &to_router(config);
    }
    let start = format!("clients -> front {}", config.listen);
    let width = start.chars().count();
    let mut text = String::new();
    for (at, upstream) in config.upstream.iter().enumerate() {
        let start = if at == 0 { start.as_str() } else { "" };
        let end = what_is_at(config, upstream);
        text += &format!("{start:width$} -> {end}\n");
    }
    if !is_router(config) {
        return text;
    }
    if config.workers.is_empty() {
        return text + "  router -> servers that it knows\n";
    }
    let is_through = |worker: &&Worker| !config.upstream.iter().any(|to| to.is_at(worker.listen));
    text + &hops(config.workers.iter().filter(is_through), false) + &to_router(config)
}

/// What a router must be told.
fn to_router(config: &Config) -> String {
    let url = |worker: &Worker| format!(" http://{}", worker.listen);
    let urls: String = config.workers.iter().map(url).collect();
    format!("the router must be started with --worker-urls{urls}\n")
}

/// A router's ways over these hops; each line may begin with the router.
fn hops<'a>(workers: impl Iterator<Item = &'a Worker>, repeats: bool) -> String {
    let line = |(at, worker): (usize, &Worker)| {
        let start = if at == 0 || repeats { "  router" } else { "" };
        let (name, listen, server) = (&worker.name, worker.listen, worker.upstream.name());
        format!("{start:8} -> hop {name} {listen} -> server {server}\n")
    };
    workers.enumerate().map(line).collect()
}

/// What the records will hold, and what they cannot.
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
    let (traces, logs) = (&config.engine.traces.listen, &config.engine.logs.path);
    let traces = traces.map(|at| format!("from traces that servers send to {at}"));
    let logs = logs.as_ref();
    let logs = logs.map(|at| format!("from request logs in {}", at.display()));
    let sources: Vec<String> = traces.into_iter().chain(logs).collect();
    let engine = match sources.is_empty() {
        true => "with SGLang's --enable-metrics, else empty; streams of the OpenAI endpoints need [engine.traces] or \
                 [engine.logs] here"
            .to_owned(),
        false => format!("{}, and with SGLang's --enable-metrics", sources.join(" and ")),
    };
    let mut lines = seen.map(String::from).to_vec();
    lines.push(format!("queue, prefill and decode of the server: {engine}"));
    if config.stamps == StampsPolicy::Never {
        lines.push("generators get no stamps: their own files have no router queue".into());
    }
    lines
}
