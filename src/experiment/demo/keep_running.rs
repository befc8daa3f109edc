//! A demo that goes on until it is told to end, for tools that look at a deployment as it runs.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::pin;

use anyhow::Context;
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};

use crate::clock::Clock;
use crate::config::proxy::Config;
use crate::experiment::launch::ports;
use crate::proxy::shared::UpstreamKind;
use crate::serve::lifecycle::Proxy;
use crate::sim::config::Config as SimConfig;
use crate::sim::server::Sim;
use crate::terminal;
use crate::traffic::folder::{Folder, Made};

use super::load::{self, LARGE, SMALL};
use super::router::Router;
use super::stack::{self, LOOPBACK};

/// What it was told.
#[derive(Debug)]
pub(super) struct Options {
    /// The program to start as the router.
    pub(super) router: Option<PathBuf>,
    /// Where the proxy's admin listener shall be.
    pub(super) admin: Option<SocketAddr>,
}

/// A simulated server.
struct Server {
    model: &'static str,
    running: usize,
    prefill_tokens_per_s: f64,
    decode_step_ms: f64,
}

/// A usual one, one of the same model that is slow, and one of a larger model.
const SERVERS: [Server; 3] = [
    Server {
        model: SMALL,
        running: 8,
        prefill_tokens_per_s: 8_000.0,
        decode_step_ms: 15.0,
    },
    Server {
        model: SMALL,
        running: 8,
        prefill_tokens_per_s: 4_000.0,
        decode_step_ms: 30.0,
    },
    Server {
        model: LARGE,
        running: 4,
        prefill_tokens_per_s: 4_000.0,
        decode_step_ms: 30.0,
    },
];
/// The slow one rejects requests beyond so many waiting ones.
const MOST_WAITING: usize = 30;
/// The proxy's own rows, of which at most two files stay.
const RECORDS: &str = "proxy.csv";
const RECORDS_MB: f64 = 20.0;
/// What Prometheus is to scrape, as its `file_sd_configs` reads it.
const TARGETS: &str = "targets.json";
/// What the router says.
const ROUTER_LOG: &str = "router.log";

/// Runs until Ctrl-C, SIGTERM or SIGHUP.
///
/// # Errors
/// Something could not start, or the router ended.
pub(super) async fn run(folder: &Folder, options: &Options, clock: &Clock) -> anyhow::Result<()> {
    let mut ended = pin!(signalled()?);
    let sims = SERVERS.iter().map(|server| sim(server, clock));
    let sims = sims.collect::<anyhow::Result<Vec<Sim>>>()?;
    let Made { dir, note } = folder.make(&[RECORDS, TARGETS, ROUTER_LOG], clock.now())?;
    let to = match options.router {
        Some(_) => Some(ports::free()?),
        None => None,
    };
    let records = dir.join(RECORDS);
    let proxy = stack::proxy(|| config(&sims, to, &records, options), clock).await?;
    let (hops, log) = (proxy.worker_addrs(), dir.join(ROUTER_LOG));
    let mut router = match options.router.as_deref().zip(to) {
        Some((program, addr)) => tokio::select! {
            started = Router::start(program, addr, &hops, &log) => Some(started?),
            () = &mut ended => return Ok(()),
        },
        None => None,
    };
    let front = proxy.front_addr().context("the proxy has no front")?;
    let targets = targets(&proxy, &sims, router.as_ref());
    std::fs::write(dir.join(TARGETS), format!("{targets:#}\n"))?;
    say(&picture(front, &proxy, &sims, router.as_ref(), &dir));
    if let Some(note) = note {
        say(&format!("note: {note}\n"));
    }

    let why = tokio::select! {
        () = &mut ended => Ok(()),
        error = router_end(&mut router) => Err(error),
        sent = load::run(front, clock) => sent,
    };
    // Requests of somebody else's may still go on; another signal ends them too.
    tokio::select! {
        () = proxy.drain() => {}
        () = signalled()? => proxy.abort().await,
    }
    if let Some(router) = router {
        router.end().await;
    }
    why
}

/// Ends with the first signal that tells a process to.
fn signalled() -> std::io::Result<impl Future<Output = ()>> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    })
}

async fn router_end(router: &mut Option<Router>) -> anyhow::Error {
    match router {
        Some(router) => router.ended().await,
        None => std::future::pending().await,
    }
}

fn sim(server: &Server, clock: &Clock) -> anyhow::Result<Sim> {
    let mut config = SimConfig {
        port: 0,
        model: server.model.to_owned(),
        ..SimConfig::default()
    };
    config.profile.tokenize_ms = 2.0;
    config.profile.max_running_requests = server.running;
    config.profile.max_queued_requests = Some(MOST_WAITING);
    config.profile.prefill_tokens_per_s = server.prefill_tokens_per_s;
    config.profile.decode_step_ms = server.decode_step_ms;
    Ok(Sim::start(config, clock.clone())?)
}

/// The front sends to the router, or to the hops in turn as one would.
fn config(
    sims: &[Sim],
    router: Option<SocketAddr>,
    records: &Path,
    options: &Options,
) -> anyhow::Result<Config> {
    let workers = stack::hops(sims)?;
    let upstream = match router {
        Some(router) => vec![router.into()],
        None => workers.iter().map(|worker| worker.listen.into()).collect(),
    };
    Ok(Config {
        listen: LOOPBACK,
        admin: options.admin.unwrap_or(LOOPBACK),
        upstream,
        upstream_kind: UpstreamKind::Router,
        records: Some(records.to_owned()),
        records_rotate_mb: RECORDS_MB,
        records_keep: 1,
        workers,
        ..Config::default()
    })
}

/// For Prometheus: each server under the name of its hop, so that its metrics stand beside ours.
fn targets(proxy: &Proxy, sims: &[Sim], router: Option<&Router>) -> Value {
    let group = |addr: SocketAddr, labels: Value| json!({"targets": [addr], "labels": labels});
    let ours = group(proxy.admin_addr(), json!({"job": "queuescope"}));
    let servers = sims.iter().zip(1..).map(|(sim, number)| {
        let worker = format!("w{number}");
        group(sim.addr(), json!({"job": "sglang", "worker": worker}))
    });
    let router = router.map(|router| group(router.metrics_addr(), json!({"job": "router"})));
    std::iter::once(ours).chain(servers).chain(router).collect()
}

fn picture(
    front: SocketAddr,
    proxy: &Proxy,
    sims: &[Sim],
    router: Option<&Router>,
    dir: &Path,
) -> String {
    let mut text = format!("load -> front http://{front}");
    if let Some(router) = router {
        text.push_str(&format!(" -> router http://{}", router.addr()));
    }
    text.push_str(" ->\n");
    let hops = proxy.worker_addrs();
    for (number, ((sim, hop), server)) in (1..).zip(sims.iter().zip(hops).zip(&SERVERS)) {
        let (sim, model) = (sim.addr(), server.model);
        text.push_str(&format!(
            "    hop w{number} :{} -> simulated SGLang http://{sim} ({model})\n",
            hop.port()
        ));
    }
    let (admin, dir) = (proxy.admin_addr(), dir.display());
    text.push_str(&format!(
        "live page http://{admin}/\n\
         metrics  http://{admin}/metrics\n\
         targets  {dir}/{TARGETS} (for Prometheus' file_sd_configs)\n\
         records  {dir}/{RECORDS}\n\
         It goes on until Ctrl-C. A day takes four minutes; w2 is slow.\n"
    ));
    text
}

fn say(text: &str) {
    terminal::say(text, terminal::width());
}
