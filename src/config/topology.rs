//! What a config makes, as text: who sends to whom, what will be seen, and what looks wrong. Pure but for
//! the look at folders in [`check`].

use std::fmt::Write;

use crate::config_error::ConfigError;
use crate::proxy::shared::{StampsPolicy, UpstreamKind};
use crate::upstream::Address;

use super::check::Credentials;
use super::proxy::{Config, Worker};
use super::sections::SECTIONS;

mod warnings;

/// The picture of a config.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    /// The picture, and what can be seen in this topology; whole lines.
    pub text: String,
    /// What can be used, but is probably not what was meant; one line each.
    pub warnings: Vec<String>,
}

/// Checks a config, the file system included, and draws it.
///
/// # Errors
/// Every value that cannot be used.
pub fn check(config: &Config) -> Result<Topology, Vec<ConfigError>> {
    let mut found = Vec::new();
    for (key, path) in [("records", &config.records), ("takeover", &config.takeover)] {
        let folder = path.as_ref().and_then(|path| path.parent());
        let folder = folder.filter(|folder| !folder.as_os_str().is_empty() && !folder.is_dir());
        if let (Some(path), Some(folder)) = (path, folder) {
            let problem = format!("there is no folder {}; make it first", folder.display());
            found.push(ConfigError::text(key, path.display(), problem));
        }
    }
    if let Some(path) = config.records.as_ref().filter(|path| path.is_dir()) {
        let problem = "is a folder; give a file in it, as in records.csv";
        found.push(ConfigError::text("records", path.display(), problem));
    }
    found.extend(config.trust().err());
    match config.check_all() {
        Ok(credentials) if found.is_empty() => Ok(Topology::of(config, &credentials)),
        Ok(_) => Err(found),
        Err(others) => Err(others.into_iter().chain(found).collect()),
    }
}

impl Topology {
    /// The keys that are not as by default, as the file has them.
    pub(super) fn changes(text: &mut String, config: &Config) -> std::fmt::Result {
        let mut config = config.clone();
        for place in SECTIONS.iter().filter(|place| !place.is_list()) {
            let names = place.keys.iter().map(|key| key.name);
            let set = names.filter_map(|key| Some((key, place.get(&mut config, key)?)));
            let mut header = Some(format!("\n{}\n", place.header()));
            for (key, value) in
                set.filter(|(key, value)| place.default(key).as_ref() != Some(value))
            {
                writeln!(text, "{}{key} = {value}", header.take().unwrap_or_default())?;
            }
        }
        Ok(())
    }

    /// Draws a config that has been checked.
    pub fn of(config: &Config, credentials: &Credentials) -> Topology {
        let mut text = picture(config);
        // Writing to a string cannot fail.
        let _ = Topology::changes(&mut text, config);
        let _ = settings(&mut text, config, credentials);
        let _ = coverage(&mut text, config, credentials);
        Topology {
            text,
            warnings: warnings::of(config, credentials),
        }
    }
}

fn is_router(config: &Config) -> bool {
    config.upstream_kind == UpstreamKind::Router
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
        return "a front elsewhere -> its router\n".to_owned() + &hops(config.workers.iter(), true);
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
    text + &hops(config.workers.iter().filter(is_through), false)
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

/// What follows from several keys.
fn settings(text: &mut String, config: &Config, credentials: &Credentials) -> std::fmt::Result {
    writeln!(text)?;
    let mut line = |name: &str, value: String| writeln!(text, "{name:<10} {value}");
    line("admin", format!("http://{}", config.admin))?;
    let records = config
        .records
        .as_ref()
        .map(|path| path.display().to_string());
    line(
        "records",
        records.unwrap_or_else(|| "none: requests are only counted".into()),
    )?;
    line("traces", traces(credentials))?;
    if !config.workers.is_empty() || credentials.hop_secret.is_some() {
        line("hops", hops_known_by(config, credentials).into())?;
    }
    if is_router(config) && !config.workers.is_empty() {
        let hops = config.workers.iter();
        let hops: Vec<String> = hops
            .map(|worker| format!("http://{}", worker.listen))
            .collect();
        line(
            "router",
            format!("must be started with --worker-urls {}", hops.join(" ")),
        )?;
    }
    Ok(())
}

fn traces(credentials: &Credentials) -> String {
    let notes = credentials.traces.notes.join("; ");
    match &credentials.traces.settings {
        Some(settings) if notes.is_empty() => settings.target(),
        Some(settings) => format!("{}; {notes}", settings.target()),
        None if notes.is_empty() => {
            "none: no endpoint in [telemetry.otlp], nor in OTEL_EXPORTER_OTLP_ENDPOINT".into()
        }
        None => format!("none: {notes}"),
    }
}

/// What the records will hold, and what they cannot.
fn coverage(text: &mut String, config: &Config, credentials: &Credentials) -> std::fmt::Result {
    // With a secret there may be hops elsewhere.
    let hops = !config.workers.is_empty() || credentials.hop_secret.is_some();
    if config.upstream.is_empty() {
        return writeln!(
            text,
            "\nseen:\n  hops only: each attempt of the router has a row here; its request's arrival is in the \
             front's file"
        );
    }
    let (router, server, host) = match (is_router(config), hops) {
        (true, true) => (
            "router queue: seen; queue_time_in_router ends when the router sends to a hop",
            "network_time and server_latency: from the hop's sending",
            "host: the server behind the hop that answered",
        ),
        (true, false) => (
            "router queue: NOT seen; a router without hops: queue_time_in_router stays empty",
            "network_time, server_latency and server_queue_wait: NOT seen, they stay empty; add a \
             [[worker]] for each server",
            "host: only where the router names the server itself (smg 1.13's \
             x-smg-routed-worker-id), or where there is only one upstream",
        ),
        (false, _) => (
            "router queue: there is no router; queue_time_in_router is the front's own time",
            "network_time and server_latency: from the front's sending",
            "host: the upstream that answered",
        ),
    };
    let engine = &config.engine;
    let engine = match (&engine.traces.listen, &engine.logs.path) {
        (None, None) => "with SGLang's --enable-metrics, else empty; streams of the OpenAI endpoints need [engine.traces] or \
                         [engine.logs] here"
            .to_owned(),
        (traces, logs) => {
            let traces = traces.as_ref().map(|at| format!("from traces that servers send to {at}"));
            let logs = logs.as_ref().map(|at| format!("from request logs in {}", at.display()));
            let sources: Vec<String> = traces.into_iter().chain(logs).collect();
            format!("{}, and with SGLang's --enable-metrics", sources.join(" and "))
        }
    };
    let engine = format!("queue, prefill and decode of the server: {engine}");
    writeln!(text, "\nseen:")?;
    for sight in [router, server, host, &engine] {
        writeln!(text, "  {sight}")?;
    }
    if config.stamps == StampsPolicy::Never {
        writeln!(
            text,
            "  generators get no stamps: their own files have no router queue"
        )?;
    }
    Ok(())
}

/// By what the front and its hops know each other, in words.
fn hops_known_by(config: &Config, credentials: &Credentials) -> &'static str {
    match (config.upstream.is_empty(), credentials.hop_secret.is_some()) {
        (false, false) => "those of this process; others need the same hop_secret here and there",
        (false, true) => "those of this process, and others that have the same hop_secret",
        (true, false) => "no front believes what they stamp: there is no hop_secret",
        (true, true) => "believed by fronts that have the same hop_secret",
    }
}
