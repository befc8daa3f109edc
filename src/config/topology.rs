//! The text of `queuescope check`: who sends to whom, and which keys differ from their defaults. Does no IO.

use crate::request::UpstreamKind;
use crate::telemetry::otlp::settings::Settings;
use crate::upstream::Address;

use super::check::Credentials;
use super::proxy::{Config, Worker};
use super::sections::SECTIONS;

/// Describes a checked config: its topology, the keys that differ from their defaults, and where traces go.
pub fn describe(config: &Config, credentials: &Credentials) -> String {
    let traces = credentials.traces.as_ref();
    let traces = traces.map_or_else(|| "none".to_owned(), Settings::target);
    format!("{}{}\ntraces: {traces}\n", picture(config), changes(config))
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
