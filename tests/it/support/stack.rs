//! Programs put together as their users do: simulated servers, hops and a front in processes of their own, a real
//! router between them, and our generator before them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use nix::sys::signal::Signal;
use queuescope::sim::server::Sim;
use queuescope::traffic::Run;
use tempfile::TempDir;

use super::generator;
use super::process::{self, PROGRAM};
use super::proxy::{Row, all_rows};
use super::router::{Router, Which, free_port};

/// Where the hops are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hops {
    /// In the front's process.
    Inside,
    /// In a process of their own, whose wall clock is ahead by so many seconds.
    Ahead(i64),
}

/// All that stands between the generator and the servers, and the servers.
pub struct Stack {
    pub sims: Vec<Sim>,
    pub front: Process,
    pub hops: Option<Process>,
    _router: Router,
}

/// `queuescope proxy` as a process.
pub struct Process {
    process: process::Process,
    /// The words that it was started with.
    line: String,
}

impl Stack {
    /// Two simulated servers, in which requests queue, behind `which`.
    pub async fn start(which: Which, hops: Hops) -> Stack {
        let sim = || {
            generator::sim(|config| {
                config.profile.tokenize_ms = 0.5;
                config.profile.max_running_requests = 3;
                config.profile.decode_step_ms = 9.0;
            })
        };
        Stack::before(vec![sim(), sim()], which, hops, &[]).await
    }

    /// These servers; the router is started with the flags `more`.
    pub async fn before(sims: Vec<Sim>, which: Which, hops: Hops, more: &[&str]) -> Stack {
        let ports: Vec<SocketAddr> = sims.iter().map(|_| free_port()).collect();
        let router = free_port();
        let worker = |(n, (hop, sim)): (usize, (&SocketAddr, &Sim))| {
            format!(" --worker w{n}={hop}={}", sim.addr())
        };
        let workers: String = ports.iter().zip(&sims).enumerate().map(worker).collect();
        let line = format!("--upstream {router}");
        let (line, hops) = match hops {
            Hops::Inside => (line + &workers, None),
            Hops::Ahead(seconds) => (line, Some(Process::start(workers, seconds))),
        };
        let front = Process::start(line, 0);
        let router = Router::start_at(which, router, &ports, more).await;
        Stack {
            sims,
            front,
            hops,
            _router: router,
        }
    }

    /// Traffic of our generator, whose request ids begin with `name`.
    pub async fn traffic(&self, name: &str, more: &[&str]) -> Run {
        traffic(self.front.addr(), name, more).await
    }

    /// The server that served each request, as the servers' own logs have it.
    pub fn served(&self) -> BTreeMap<String, String> {
        let served = self.sims.iter().flat_map(|sim| {
            let all = sim.served().into_iter();
            all.map(|served| (served.x_request_id, sim.addr().to_string()))
        });
        served.filter_map(|(id, addr)| Some((id?, addr))).collect()
    }
}

/// Traffic of our generator to `front`, whose request ids begin with `name`.
pub async fn traffic(front: SocketAddr, name: &str, more: &[&str]) -> Run {
    let more = [&["--model", "sim-llama"], more].concat();
    let mut plan = generator::plan(&format!("http://{front}"), &more).unwrap();
    plan.request_id_prefix = name.to_owned();
    generator::drive(plan).await.unwrap()
}

impl Process {
    /// Starts it with these words and a wall clock that is ahead by so many seconds.
    pub fn start(line: String, ahead: i64) -> Process {
        let process = begin(Arc::new(tempfile::tempdir().unwrap()), &line, ahead);
        Process { process, line }
    }

    pub fn addr(&self) -> SocketAddr {
        self.process.front
    }

    /// Ends it in good order and starts it anew, with another wall clock.
    pub fn restart(&mut self, ahead: i64) {
        self.end();
        self.process = begin(self.process.folder.clone(), &self.line, ahead);
    }

    fn end(&mut self) {
        self.process.signal(Signal::SIGTERM);
        assert!(self.process.child.wait().unwrap().success());
    }

    /// Ends it in good order and gives the rows it wrote.
    pub fn rows(&mut self) -> Vec<Row> {
        self.end();
        all_rows(&self.process.records())
    }
}

/// libfaketime gives the process another wall clock; its monotonic one stays.
fn begin(folder: Arc<TempDir>, line: &str, ahead: i64) -> process::Process {
    let secret = folder.path().join("hop-secret");
    std::fs::write(&secret, "known to front and hops").unwrap();
    let mut command = Command::new(PROGRAM);
    if ahead != 0 {
        command
            .env("LD_PRELOAD", libfaketime())
            .env("FAKETIME", format!("{ahead:+}s"))
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    }
    let line = format!("--hop-secret-file {} {line}", secret.display());
    process::Process::by(command, folder, &generator::flags(&line))
}

fn libfaketime() -> PathBuf {
    let folders = std::fs::read_dir("/usr/lib").unwrap();
    let places = folders.map(|folder| folder.unwrap().path().join("faketime/libfaketime.so.1"));
    let mut places = places.filter(|place| place.exists());
    places
        .next()
        .expect("libfaketime is missing: `bash scripts/test.sh` installs it")
}
