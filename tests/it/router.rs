//! Through the real routers: traffic → front → router → hops → servers, put together as their users do.

mod chain;
mod queue;
mod storm;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use nix::sys::signal::Signal;
use queuescope::sim::Sim;
use queuescope::traffic::Run;
use tempfile::TempDir;

use crate::support::generator::{drive, flags, plan};
use crate::support::process::{PROGRAM, Process};
use crate::support::proxy::{Row, all_rows};
use crate::support::router::{Router, Which, free_port};

/// A front before a real router, and before each of its servers a hop: each in a process of its own, as on a host of its own.
struct Stack {
    sims: Vec<Sim>,
    hops: Vec<Process>,
    front: Process,
    _router: Router,
}

impl Stack {
    /// Each server has a hop whose wall clock is ahead by so many seconds. All servers are called `host` where that is
    /// given. The front has these further lines of a config; the router is started with the flags `more`.
    async fn start(
        which: Which,
        servers: Vec<(Sim, i64)>,
        host: Option<&str>,
        front: &str,
        more: &str,
    ) -> Stack {
        let host = host.map_or(String::new(), |host| format!("host = \"{host}\"\n"));
        let (mut sims, mut hops, mut ports) = (Vec::new(), Vec::new(), Vec::new());
        for (n, (sim, ahead)) in servers.into_iter().enumerate() {
            let (port, server) = (free_port(), sim.addr());
            let worker = format!("name = \"w{n}\"\nlisten = \"{port}\"\nupstream = \"{server}\"");
            hops.push(proxy(&format!("[[worker]]\n{worker}\n{host}"), ahead));
            sims.push(sim);
            ports.push(port);
        }
        let router = free_port();
        Stack {
            sims,
            hops,
            front: proxy(&format!("upstream = [\"{router}\"]\n{front}"), 0),
            _router: Router::start_at(which, router, &ports, &flags(more)).await,
        }
    }

    /// Ends the hops in good order and starts them anew, with other wall clocks.
    async fn restart(&mut self, ahead: [i64; 2]) {
        for (hop, ahead) in self.hops.iter_mut().zip(ahead) {
            ended(hop).await;
            *hop = started(hop.folder.clone(), ahead);
        }
    }
}

/// A proxy with these lines of a config, as a file has them below `[proxy]`.
fn proxy(config: &str, ahead: i64) -> Process {
    let folder = Arc::new(tempfile::tempdir().unwrap());
    let secret = "hop_secret = \"known to front and hops\"";
    let config = format!("[proxy]\n{secret}\n{config}");
    std::fs::write(folder.path().join("c.toml"), config).unwrap();
    started(folder, ahead)
}

/// The proxy whose config is in this folder. libfaketime gives it another wall clock; its monotonic one stays.
fn started(folder: Arc<TempDir>, ahead: i64) -> Process {
    let mut command = Command::new(PROGRAM);
    if ahead != 0 {
        command
            .env("LD_PRELOAD", libfaketime())
            .env("FAKETIME", format!("{ahead:+}s"))
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    }
    let config = folder.path().join("c.toml");
    Process::by(command, folder, &["--config", config.to_str().unwrap()])
}

fn libfaketime() -> PathBuf {
    let folders = std::fs::read_dir("/usr/lib").unwrap();
    let mut places = folders.map(|folder| folder.unwrap().path().join("faketime/libfaketime.so.1"));
    let place = places.find(|place| place.exists());
    place.expect("libfaketime is missing: `bash scripts/test.sh` installs it")
}

/// Ends it in good order and gives the rows it wrote, with those from before a restart.
async fn ended(process: &mut Process) -> Vec<Row> {
    process.signal(Signal::SIGTERM);
    assert!(process.exit().await.success());
    all_rows(&process.records())
}

/// Traffic of our generator to `front`, whose request ids begin with `name`.
async fn traffic(front: SocketAddr, name: &str, line: &str) -> Run {
    let line = format!("--model sim-llama {line}");
    let mut plan = plan(&format!("http://{front}"), &line).unwrap();
    plan.request_id_prefix = name.to_owned();
    drive(plan).await.unwrap()
}
