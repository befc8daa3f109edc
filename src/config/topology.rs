//! What a config makes, as text: who sends to whom, what will be seen, and what looks wrong. Pure but for
//! the look at folders in [`check`].

use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};

use crate::config_error::ConfigError;
use crate::edge::tls;
use crate::proxy::shared::Role;
use crate::proxy::shared::{StampsPolicy, UpstreamKind};
use crate::upstream::{Address, Trust};

use super::check::Plan;
use super::proxy::{Base, Config};

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
    let plan = config.check_all();
    let mut faults = Vec::new();
    for (key, path) in [("records", &config.records), ("takeover", &config.takeover)] {
        let folder = path.as_ref().and_then(|path| path.parent());
        let folder = folder.filter(|folder| !folder.as_os_str().is_empty() && !folder.is_dir());
        if let (Some(path), Some(folder)) = (path, folder) {
            let wrong = format!("there is no folder {}; make it first", folder.display());
            faults.push(ConfigError::new(
                key,
                format!("\"{}\"", path.display()),
                wrong,
            ));
        }
    }
    if let Some(path) = config.records.as_ref().filter(|path| path.is_dir()) {
        let wrong = "is a folder; give a file in it, as in records.csv";
        faults.push(ConfigError::new(
            "records",
            format!("\"{}\"", path.display()),
            wrong,
        ));
    }
    if let (Some(cert), Some(key)) = (&config.tls_cert, &config.tls_key) {
        let (cert, key) = (cert.clone(), key.clone());
        let wrong = tls::Files { cert, key }.faults();
        faults.extend(wrong.into_iter().map(super::check::tls_fault));
    }
    match plan {
        Ok(plan) => {
            faults.extend(plan.rules(&Role::Front).err());
            match faults.is_empty() {
                true => Ok(Topology::of(config, &plan)),
                false => Err(faults),
            }
        }
        Err(others) => {
            if let Some(path) = &config.upstream_ca {
                let value = format!("\"{}\"", path.display());
                let wrong = |wrong| ConfigError::new("upstream_ca", value, wrong);
                faults.extend(Trust::file(path).err().map(wrong));
            }
            Err(others.into_iter().chain(faults).collect())
        }
    }
}

/// After so much idleness SGLang closes a connection, seconds.
const SGLANG_IDLE_S: f64 = 5.0;

impl Topology {
    /// Draws a config that has been checked.
    pub fn of(config: &Config, plan: &Plan) -> Topology {
        let mut text = picture(config, plan);
        // Writing to a string cannot fail.
        let _ = settings(&mut text, config, plan);
        let _ = sights(&mut text, config, plan);
        Topology {
            text,
            warnings: warnings(config, plan),
        }
    }
}

fn is_router(config: &Config) -> bool {
    config.upstream_kind == UpstreamKind::Router
}

/// What stands at an upstream's address: one of our own hops, a router or a server.
fn what_is_at(config: &Config, plan: &Plan, address: &Address) -> String {
    let name = address.name();
    let hop = plan.workers.iter().find(|worker| address.is_at(worker.1));
    match hop {
        Some((hop, _, server)) => format!("hop {hop} {name} -> server {}", server.name()),
        None if is_router(config) => format!("router {name}"),
        None => format!("server {name}"),
    }
}

fn picture(config: &Config, plan: &Plan) -> String {
    if plan.upstream.is_empty() {
        return hops_alone(plan);
    }
    let start = format!("clients -> front {}", plan.listen);
    let width = start.chars().count();
    let mut text = String::new();
    for (at, upstream) in plan.upstream.iter().enumerate() {
        let start = if at == 0 { start.as_str() } else { "" };
        let end = what_is_at(config, plan, upstream);
        text += &format!("{start:width$} -> {end}\n");
    }
    if !is_router(config) {
        return text;
    }
    let start = "  router";
    let through = |worker: &&(String, SocketAddr, Address)| {
        !plan.upstream.iter().any(|to| to.is_at(worker.1))
    };
    for (at, (name, listen, server)) in plan.workers.iter().filter(through).enumerate() {
        let start = if at == 0 { start } else { "" };
        let server = server.name();
        text += &format!("{start:8} -> hop {name} {listen} -> server {server}\n");
    }
    if plan.workers.is_empty() {
        text += &format!("{start} -> servers that it knows\n");
    }
    text
}

/// A process without a front.
fn hops_alone(plan: &Plan) -> String {
    let mut text = "a front elsewhere -> its router\n".to_owned();
    for (name, listen, server) in &plan.workers {
        let server = server.name();
        text += &format!("  router -> hop {name} {listen} -> server {server}\n");
    }
    text
}

fn settings(text: &mut String, config: &Config, plan: &Plan) -> std::fmt::Result {
    writeln!(text)?;
    let mut line = |name: &str, value: String| writeln!(text, "{name:<10} {value}");
    let faults = if config.fault_injection {
        ", /faults (hops can be made to fail)"
    } else {
        ""
    };
    let token = match plan.admin_token {
        Some(_) => "; all but health asks for the token",
        None => "",
    };
    let admin = format!("{}: /healthz, /readyz, /metrics{faults}{token}", plan.admin);
    line("admin", admin)?;
    if let Some(tls) = &plan.tls {
        line("tls", format!("the front's, with {}", tls.cert.display()))?;
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
    let stamps = match config.stamps {
        StampsPolicy::Loopback => "to clients on this machine that ask",
        StampsPolicy::Token => "to clients that ask and know stamps_token",
        StampsPolicy::Never => "to nobody",
    };
    line("stamps", stamps.into())?;
    if !plan.workers.is_empty() || plan.hop_secret.is_some() {
        line("hops", plan.hops_known_by().into())?;
    }
    let takeover = match &config.takeover {
        Some(path) => format!("{}: a new process takes the listeners over", path.display()),
        None => "none: a restart closes the listeners".into(),
    };
    line("takeover", takeover)?;
    let limits = &plan.limits;
    let upstream = &plan.upstream_timeouts;
    let upstream = format!(
        "upstream connect {:?}, silent {:?}, idle {:?}; drain {:?}",
        upstream.connect, upstream.read, upstream.idle, plan.limits.drain
    );
    line("limits", upstream)?;
    let client = format!(
        "client head {:?} and {} B, body {:?} and {} B, stall {:?}, idle {} s; {} connections",
        limits.client_head,
        limits.request_head_bytes,
        limits.client_body,
        limits.request_body_bytes,
        limits.client_stall,
        limits.client_idle_s,
        limits.connections
    );
    line("", client)?;
    if is_router(config) && !plan.workers.is_empty() {
        let hops = plan.workers.iter();
        let hops: Vec<String> = hops.map(|worker| format!("http://{}", worker.1)).collect();
        line(
            "router",
            format!("must be started with --worker-urls {}", hops.join(" ")),
        )?;
    }
    Ok(())
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
fn sights(text: &mut String, config: &Config, plan: &Plan) -> std::fmt::Result {
    // With a secret there may be hops elsewhere.
    let hops = !plan.workers.is_empty() || plan.hop_secret.is_some();
    if plan.upstream.is_empty() {
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
    writeln!(text, "\nseen:")?;
    for sight in [
        router,
        server,
        host,
        "queue, prefill and decode of the server: with SGLang's --enable-metrics, else empty",
    ] {
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

fn warnings(config: &Config, plan: &Plan) -> Vec<String> {
    let mut all = Vec::new();
    if !plan.admin.ip().is_loopback() && plan.admin_token.is_none() {
        all.push(format!(
            "admin = \"{}\": other machines can reach it, and it names servers; 127.0.0.1 keeps it here, \
             admin_token asks who it is",
            plan.admin
        ));
    }
    if config.upstream_idle_timeout_s >= SGLANG_IDLE_S {
        all.push(format!(
            "upstream_idle_timeout_s = {}: SGLang closes idle connections after 5 s, and requests that run \
             into that get a 502; 4 is right for it",
            config.upstream_idle_timeout_s
        ));
    }
    if plan.upstream.is_empty() && plan.hop_secret.is_none() {
        all.push(
            "hop_secret: is not given, so the front will take off what these hops stamp and not use it; give the same \
             to the front and here"
                .into(),
        );
    }
    for upstream in &plan.upstream {
        let behind = plan.workers.iter().find(|worker| worker.2 == *upstream);
        if let Some((name, listen, _)) = behind {
            all.push(format!(
                "upstream {}: is the server of worker {name} too; what goes there passes by the hop {listen}",
                upstream.name()
            ));
        }
    }
    all.extend(plan.upstream.iter().enumerate().filter_map(|(at, to)| {
        let twice = plan.upstream.iter().take(at).any(|other| other == to);
        twice.then(|| format!("upstream {}: given twice", to.name()))
    }));
    for (at, worker) in plan.workers.iter().enumerate() {
        hop_warnings(&mut all, config, plan, worker);
        let mut earlier = plan.workers.iter().take(at);
        if let Some(other) = earlier.find(|other| other.2 == worker.2) {
            all.push(format!(
                "worker {}: has the same server as worker {}",
                worker.0, other.0
            ));
        }
    }
    all
}

fn hop_warnings(
    all: &mut Vec<String>,
    config: &Config,
    plan: &Plan,
    (name, listen, server): &(String, SocketAddr, Address),
) {
    let is_told = plan.upstream.iter().any(|to| to.is_at(*listen));
    if !is_router(config) && !is_told {
        all.push(format!(
            "worker {name}: nobody sends to {listen}: upstream_kind is \"server\" and upstream does not name it"
        ));
    }
    let has_host = config
        .workers
        .iter()
        .any(|w| w.name == *name && w.host.is_some());
    if plan.upstream.is_empty() && is_near(server) && !has_host {
        all.push(format!(
            "worker {name}: records call its server {}, as hops on other hosts may call theirs; give it a host, as in \
             host = \"gpu1:30000\"",
            server.name()
        ));
    }
    if listen.port() == 0 {
        all.push(format!(
            "worker {name}: listen has port 0, a free one at each start; a router cannot be told of it before"
        ));
    }
    let far = plan.upstream.iter().find(|to| !is_near(to));
    if let Some(router) = far.filter(|_| is_router(config) && listen.ip().is_loopback()) {
        all.push(format!(
            "worker {name}: listens on {listen}, which a router at {} cannot reach",
            router.name()
        ));
    }
}

/// Whether an address may be on this machine. A name may.
fn is_near(address: &Address) -> bool {
    let name = address.name();
    let host = name.rsplit_once(':').map_or("", |(host, _)| host);
    let host = host.trim_matches(['[', ']']).parse::<IpAddr>();
    host.map_or(true, |ip| ip.is_loopback() || ip.is_unspecified())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draw(change: impl FnOnce(&mut Config)) -> Topology {
        let mut config = Config {
            upstream: vec!["127.0.0.1:8000".into()],
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
            config.upstream = vec!["127.0.0.1:9000".into()];
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
                (|c| c.admin = "0.0.0.0:8801".into()) as fn(&mut Config),
            ),
            ("upstream_idle_timeout_s = 5", |c| {
                c.upstream_idle_timeout_s = 5.0;
            }),
            ("nobody sends to 127.0.0.1:9000", |c| {
                c.upstream_kind = UpstreamKind::Server;
                c.workers = workers(&["w=127.0.0.1:9000=127.0.0.1:30000"]);
            }),
            ("port 0", |c| {
                c.workers = workers(&["w=127.0.0.1:0=a:1"]);
            }),
            ("a router at 10.0.0.1:8000 cannot reach", |c| {
                c.upstream = vec!["10.0.0.1:8000".into()];
                c.workers = workers(&["w=127.0.0.1:9000=a:1"]);
            }),
            ("same server as worker w", |c| {
                c.workers = workers(&["w=127.0.0.1:9000=a:1", "v=127.0.0.1:9001=a:1"]);
            }),
            ("passes by the hop", |c| {
                c.workers = workers(&["w=127.0.0.1:9000=127.0.0.1:8000"]);
            }),
            ("given twice", |c| c.upstream.push("127.0.0.1:8000".into())),
        ] {
            let drawn = draw(change);
            assert_eq!(drawn.warnings.len(), 1, "{piece}: {:?}", drawn.warnings);
            assert!(drawn.warnings[0].contains(piece), "{:?}", drawn.warnings);
        }
    }
}
