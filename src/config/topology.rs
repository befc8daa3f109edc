//! What a config makes, as text: who sends to whom, what will be seen, and what looks wrong. Pure but for
//! the look at folders in [`check`].

use std::fmt::Write;

use crate::config_error::ConfigError;
use crate::edge::tls;
use crate::proxy::shared::{StampsPolicy, UpstreamKind};
use crate::upstream::{Address, Policy};

use super::check::Credentials;
use super::proxy::{Base, Config, Worker};

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
    if let (Some(cert), Some(key)) = (&config.tls_cert, &config.tls_key) {
        let (cert, key) = (cert.clone(), key.clone());
        let problems = tls::Files { cert, key }.faults();
        found.extend(problems.into_iter().map(of_certificate));
    }
    found.extend(config.trust().err());
    match config.check_all() {
        Ok(credentials) if found.is_empty() => Ok(Topology::of(config, &credentials)),
        Ok(_) => Err(found),
        Err(others) => Err(others.into_iter().chain(found).collect()),
    }
}

fn of_certificate(error: tls::Error) -> ConfigError {
    ConfigError::text(error.key, error.path.display(), error.problem)
}

impl Topology {
    /// Draws a config that has been checked.
    pub fn of(config: &Config, credentials: &Credentials) -> Topology {
        let mut text = picture(config);
        // Writing to a string cannot fail.
        let _ = settings(&mut text, config, credentials);
        let _ = sights(&mut text, config, credentials);
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

/// Who gets a request, in words.
fn sharing(config: &Config) -> String {
    match config.policy {
        Policy::RoundRobin => "to each upstream in turn".into(),
        Policy::Random => "to an upstream at random".into(),
        Policy::ShortestQueue => "to the upstream with the fewest in flight".into(),
        Policy::PowerOfTwo => "to the one of two random upstreams with fewer in flight".into(),
        Policy::CacheAware => format!(
            "to the upstream that has had more than {} of the prompt; else, or when the longest queue is ahead of the \
             shortest by more than {} and more than {} times as long, to that with the fewest in flight",
            config.cache_threshold.get(),
            config.balance_abs_threshold.get(),
            config.balance_rel_threshold
        ),
    }
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

fn settings(text: &mut String, config: &Config, credentials: &Credentials) -> std::fmt::Result {
    writeln!(text)?;
    let mut line = |name: &str, value: String| writeln!(text, "{name:<10} {value}");
    let faults = if config.fault_injection {
        ", /faults (hops can be made to fail)"
    } else {
        ""
    };
    let token = match credentials.admin_token {
        Some(_) => "; all but health asks for the token",
        None => "",
    };
    let admin = format!(
        "{}: /healthz, /readyz, /metrics{faults}{token}",
        config.admin
    );
    line("admin", admin)?;
    if let Some(tls) = &credentials.tls {
        line("tls", format!("the front's, with {}", tls.cert.display()))?;
    }
    if config.upstream.len() > 1 {
        line("requests", sharing(config))?;
    }
    let base = match config.time_base {
        Base::Epoch => "epoch",
        Base::Run => "process's start",
    };
    let records = match &config.records {
        Some(path) => {
            let parts = rotation(config);
            format!("{}, times count from the {base}{parts}", path.display())
        }
        None => "none: requests are only counted".into(),
    };
    line("records", records)?;
    line("traces", traces(credentials))?;
    let stamps = match config.stamps {
        StampsPolicy::Loopback => "to clients on this machine that ask",
        StampsPolicy::Token => "to clients that ask and know stamps_token",
        StampsPolicy::Never => "to nobody",
    };
    line("stamps", stamps.into())?;
    if !config.workers.is_empty() || credentials.hop_secret.is_some() {
        line("hops", hops_known_by(config, credentials).into())?;
    }
    let takeover = match &config.takeover {
        Some(path) => format!("{}: a new process takes the listeners over", path.display()),
        None => "none: a restart closes the listeners".into(),
    };
    line("takeover", takeover)?;
    let [upstream, client] = limits(config);
    line("limits", upstream)?;
    line("", client)?;
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

fn limits(config: &Config) -> [String; 2] {
    let upstream = format!(
        "upstream connect {:?}, silent {:?}, idle {:?}; drain {:?}",
        config.upstream_connect_timeout_s.get(),
        config.upstream_read_timeout_s.get(),
        config.upstream_idle_timeout_s.get(),
        config.drain_timeout_s.get()
    );
    let client = format!(
        "client head {:?} and {} B, body {:?} and {} B, stall {:?}, idle {} s; {} connections",
        config.client_head_timeout_s.get(),
        config.request_head_max_bytes.get(),
        config.client_body_timeout_s.get(),
        config.request_body_max_bytes.get(),
        config.client_stall_timeout_s.get(),
        config.client_idle_timeout_s.get(),
        config.max_connections.get()
    );
    [upstream, client]
}

/// When a new records file is begun, in words.
fn rotation(config: &Config) -> String {
    let mut words = Vec::new();
    if config.records_rotate_mb > 0.0 {
        words.push(format!("{} MB", config.records_rotate_mb));
    }
    if config.records_rotate_hours > 0.0 {
        words.push(format!("{} h", config.records_rotate_hours));
    }
    if words.is_empty() {
        return String::new();
    }
    format!("; a new file after {}", words.join(" or "))
}

/// What the records will hold, and what they cannot.
fn sights(text: &mut String, config: &Config, credentials: &Credentials) -> std::fmt::Result {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn draw(change: impl FnOnce(&mut Config)) -> Topology {
        let mut config = Config {
            upstream: vec!["127.0.0.1:8000".to_owned().try_into().unwrap()],
            ..Config::default()
        };
        change(&mut config);
        Topology::of(&config, &config.check().unwrap())
    }

    fn workers(all: &[&str]) -> Vec<crate::config::proxy::Worker> {
        all.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn a_sandwich_is_drawn_with_its_hops() {
        let drawn = draw(|config| {
            config.workers = workers(&[
                "w0=127.0.0.1:9000=127.0.0.1:30000",
                "w1=127.0.0.1:9001=127.0.0.1:30001",
            ]);
            config.records = Some("r.csv".into());
        });
        let picture = "\
clients -> front 127.0.0.1:8800 -> router 127.0.0.1:8000
  router -> hop w0 127.0.0.1:9000 -> server 127.0.0.1:30000
         -> hop w1 127.0.0.1:9001 -> server 127.0.0.1:30001
";
        assert!(drawn.text.starts_with(picture), "{}", drawn.text);
        for line in [
            "admin      127.0.0.1:8801: /healthz, /readyz, /metrics",
            "records    r.csv, times count from the epoch",
            "router     must be started with --worker-urls http://127.0.0.1:9000 http://127.0.0.1:9001",
            "  router queue: seen; queue_time_in_router ends when the router sends to a hop",
        ] {
            assert!(drawn.text.lines().any(|l| l == line), "{}", drawn.text);
        }
        assert_eq!(drawn.warnings, [""; 0]);
    }

    #[test]
    fn who_gets_a_request_is_said_where_there_is_a_choice() {
        let said = |upstreams: usize| {
            let drawn = draw(|config| {
                let ports = 0..upstreams;
                let address = |port| Address::parse(&format!("127.0.0.1:{}", 9000 + port));
                config.upstream = ports.map(|port| address(port).unwrap()).collect();
                config.policy = Policy::CacheAware;
                config.balance_abs_threshold = 7.try_into().unwrap();
            });
            let line = drawn
                .text
                .lines()
                .find(|line| line.starts_with("requests "));
            line.map(str::to_owned)
        };
        assert_eq!(said(1), None);
        let said = said(2).unwrap();
        for part in [
            "more than 0.3 of the prompt",
            "by more than 7 and more than 1.5 times",
        ] {
            assert!(said.contains(part), "{said}");
        }
    }

    #[test]
    fn what_servers_tell_elsewhere_is_seen() {
        let drawn = draw(|config| {
            config.engine.traces.listen = Some("127.0.0.1:4327".parse().unwrap());
            config.engine.logs.path = Some("logs".into());
        });
        let line = "queue, prefill and decode of the server: from traces that servers send to 127.0.0.1:4327 and from \
                    request logs in logs, and with SGLang's --enable-metrics";
        assert!(drawn.text.contains(line), "{}", drawn.text);
        let none = draw(|_| {});
        assert!(none.text.contains("need [engine.traces]"), "{}", none.text);
    }

    #[test]
    fn hops_alone_are_drawn_without_a_front() {
        let drawn = draw(|config| {
            config.upstream.clear();
            config.workers = workers(&["w=127.0.0.1:9000=127.0.0.1:30000"]);
        });
        assert!(!drawn.text.contains("8800"), "{}", drawn.text);
        assert!(
            drawn
                .text
                .contains("hop w 127.0.0.1:9000 -> server 127.0.0.1:30000")
        );
        // Other hosts have a 127.0.0.1:30000 too, and the front does not know these hops.
        assert_eq!(drawn.warnings.len(), 2, "{:?}", drawn.warnings);
        assert!(drawn.warnings[0].starts_with("hop_secret: is not given"));
        assert!(drawn.warnings[1].contains("give it a host"));
    }

    #[test]
    fn a_router_without_hops_says_what_stays_empty() {
        let drawn = draw(|_| {});
        let said = "a router without hops: queue_time_in_router stays empty";
        assert!(drawn.text.contains(said), "{}", drawn.text);
        assert!(drawn.text.contains("router -> servers that it knows"));
    }

    #[test]
    fn own_hops_in_a_routers_place_are_drawn_through() {
        let drawn = draw(|config| {
            config.upstream = vec!["127.0.0.1:9000".to_owned().try_into().unwrap()];
            config.workers = workers(&["w=127.0.0.1:9000=127.0.0.1:30000"]);
            config.upstream_kind = UpstreamKind::Server;
        });
        let line =
            "clients -> front 127.0.0.1:8800 -> hop w 127.0.0.1:9000 -> server 127.0.0.1:30000";
        assert_eq!(drawn.text.lines().next().unwrap(), line);
        assert_eq!(drawn.warnings, [""; 0]);
    }

    #[test]
    fn what_looks_wrong_is_said() {
        for (piece, change) in [
            (
                "admin = \"0.0.0.0:8801\": other machines",
                (|c| c.admin = "0.0.0.0:8801".parse().unwrap()) as fn(&mut Config),
            ),
            ("upstream_idle_timeout_s = 5", |c| {
                c.upstream_idle_timeout_s = 5.0.try_into().unwrap();
            }),
            ("nobody sends to 127.0.0.1:9000", |c| {
                c.upstream_kind = UpstreamKind::Server;
                c.workers = workers(&["w=127.0.0.1:9000=127.0.0.1:30000"]);
            }),
            ("port 0", |c| {
                c.workers = workers(&["w=127.0.0.1:0=a:1"]);
            }),
            ("a router at 10.0.0.1:8000 cannot reach", |c| {
                c.upstream = vec!["10.0.0.1:8000".to_owned().try_into().unwrap()];
                c.workers = workers(&["w=127.0.0.1:9000=a:1"]);
            }),
            ("same server as worker w", |c| {
                c.workers = workers(&["w=127.0.0.1:9000=a:1", "v=127.0.0.1:9001=a:1"]);
            }),
            ("passes by the hop", |c| {
                c.workers = workers(&["w=127.0.0.1:9000=127.0.0.1:8000"]);
            }),
            ("given twice", |c| c.upstream.extend(c.upstream.clone())),
        ] {
            let drawn = draw(change);
            assert_eq!(drawn.warnings.len(), 1, "{piece}: {:?}", drawn.warnings);
            assert!(drawn.warnings[0].contains(piece), "{:?}", drawn.warnings);
        }
    }

    #[test]
    fn by_what_hops_are_known() {
        let drawn = |has_front, secret: Option<&str>| {
            let drawn = draw(|config| {
                config.upstream.truncate(usize::from(has_front));
                config.workers = workers(&["w=127.0.0.1:9000=127.0.0.1:30000"]);
                config.hop_secret = secret.map(Into::into);
            });
            let line = drawn.text.lines().find(|line| line.starts_with("hops "));
            line.unwrap().to_owned()
        };
        let secret = Some("sixteen bytes of it");
        assert!(drawn(true, None).contains("others need the same hop_secret"));
        assert!(drawn(true, secret).contains("others that have the same"));
        assert!(drawn(false, secret).contains("believed by fronts"));
        assert!(drawn(false, None).contains("no front believes"));
    }
}
