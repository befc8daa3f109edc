//! Starts what an experiment needs, waits until it is ready, watches it, and ends it: servers, a router, our proxy with its
//! hops. Each is a process of its own ([decision 33](../../docs/decisions/0033-what-a-run-needs-are-children.md)).

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use futures_util::future::{join_all, try_join_all};
use nix::sys::signal::Signal;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::report::files::{LOGS, ProcessFile, ServerFile};
use crate::upstream::Address;
use crate::{disk, secret};

pub(super) mod ask;
mod cause;
pub mod child;
pub(super) mod command;
mod failure;
pub(super) mod ports;
mod process;
mod proxy_file;
pub mod router;
mod servers;
mod sglang;
mod wanted;

pub use failure::{Failure, Lasts};
pub use proxy_file::check as check_proxy;
pub use servers::Servers;
pub use sglang::Sglang;
pub use wanted::{Engine, Router, Wanted};

use command::CommandLine;
pub(super) use process::Process;
use proxy_file::ProxyFile;
use servers::Server;

/// What runs. Dropping it kills what was started, and waits until it is gone.
#[derive(Debug)]
pub struct Deployment {
    target: String,
    upstream_kind: &'static str,
    router_name: Option<String>,
    dir: PathBuf,
    servers: Servers,
    files: Vec<ServerFile>,
    /// The last to be ended first.
    processes: Processes,
    failures: UnboundedReceiver<Failure>,
    kept: Vec<String>,
}

/// Processes, ended when dropped: also those of a start that is given up.
#[derive(Debug, Default)]
struct Processes(Vec<Arc<Process>>);

/// A start under way.
struct Start<'a> {
    wanted: &'a Wanted,
    failures: UnboundedSender<Failure>,
    processes: Processes,
}

/// The proxy's config in the run's folder.
const PROXY_CONFIG: &str = "proxy.toml";
/// The proxy's rows there.
const RECORDS: &str = "proxy.csv";

impl Deployment {
    /// Starts all of it. It is ready when this returns; what did start is ended again where something did not.
    ///
    /// # Errors
    /// What does not fit together; a port that is taken; what ended or was not ready in time, with its log's last lines,
    /// the likely cause and what helps.
    pub async fn start(wanted: &Wanted) -> anyhow::Result<Deployment> {
        wanted.check().map_err(anyhow::Error::msg)?;
        let logs = wanted.dir.join(LOGS);
        std::fs::create_dir_all(&logs).with_context(|| format!("{}", logs.display()))?;
        let (failures, failed) = unbounded_channel();
        let mut start = Start {
            wanted,
            failures,
            processes: Processes::default(),
        };
        let admin = wanted.has_proxy().then(|| wanted.port()).transpose()?;
        let token = proxy_file::authorization(wanted)?;
        let servers = Servers::new(start.servers()?, admin, token, wanted.start_timeout);
        start.all_ready(&servers).await?;
        // Before anything that asks servers of itself is there: a router's probe is a request under way.
        let kept = start.kept_caches().await;
        let (router, upstream) = start.router(&servers)?;
        let target = match admin {
            Some(admin) => start.proxy(&servers, &upstream, admin).await?,
            None => upstream
                .first()
                .cloned()
                .context("there is nothing to send to")?,
        };
        if let Some(router) = router {
            router.start()?;
            let (url, count) = (&upstream[0], servers.count());
            router
                .ready(wanted.start_timeout, || async {
                    ask::workers(url).await == count
                })
                .await?;
        }
        Ok(Deployment {
            target,
            upstream_kind: if wanted.sends_to_servers() {
                "server"
            } else {
                "router"
            },
            router_name: wanted.router.name(),
            dir: wanted.dir.clone(),
            files: servers
                .all()
                .iter()
                .map(|server| server.file.clone())
                .collect(),
            servers,
            processes: start.processes,
            failures: failed,
            kept,
        })
    }

    /// Where requests go: the front where there is one.
    pub fn target(&self) -> &str {
        &self.target
    }

    /// What the generator is to be told of what answers there: its `--upstream-kind`.
    pub fn upstream_kind(&self) -> &'static str {
        self.upstream_kind
    }

    /// What routes: `builtin round_robin`.
    pub fn router_name(&self) -> Option<String> {
        self.router_name.clone()
    }

    /// The servers, in order.
    pub fn servers(&self) -> &[ServerFile] {
        &self.files
    }

    /// The servers, for what is done to them.
    pub fn handle(&self) -> Servers {
        self.servers.clone()
    }

    /// Each server's name and `/metrics`, past all hops.
    pub fn metrics_urls(&self) -> Vec<(String, String)> {
        let url = |server: &ServerFile| (server.name.clone(), format!("{}/metrics", server.url));
        self.files.iter().map(url).collect()
    }

    /// What was started.
    pub fn processes(&self) -> Vec<ProcessFile> {
        let file = |process: &Arc<Process>| ProcessFile {
            name: process.name.clone(),
            command: process.command.to_string(),
            log: process
                .log
                .strip_prefix(&self.dir)
                .unwrap_or(&process.log)
                .display()
                .to_string(),
        };
        self.processes.0.iter().map(file).collect()
    }

    /// Which servers may have kept the cache of what came before, and why.
    pub fn kept_caches(&self) -> &[String] {
        &self.kept
    }

    /// Waits until a process ends that nobody ended; says which and why.
    pub async fn ended(&mut self) -> anyhow::Error {
        match self.failures.recv().await {
            Some(failure) => failure.into(),
            // Each process holds a sender.
            None => std::future::pending().await,
        }
    }

    /// Ends all that was started, the proxy first, so that it has written all its rows. Returns when nothing of it is left.
    pub async fn stop(self) {
        let processes = self.processes.0.iter().rev();
        let (servers, others): (Vec<_>, Vec<_>) =
            processes.partition(|process| process.name.starts_with(SERVER));
        for process in others {
            process.stop().await;
        }
        join_all(servers.into_iter().map(|process| process.stop())).await;
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        let children: Vec<_> = self
            .0
            .iter()
            .filter_map(|process| process.close())
            .collect();
        // All at once, before each is waited for.
        children
            .iter()
            .for_each(|child| child.signal(Signal::SIGKILL));
    }
}

impl Start<'_> {
    /// A process, which is ended when this start is given up.
    fn process(&mut self, name: &str, command: CommandLine) -> Arc<Process> {
        let log = self.wanted.dir.join(LOGS).join(format!("{name}.log"));
        let program = Some(self.wanted.program.clone());
        let process = Process::new(name, command, log, program, self.failures.clone());
        self.processes.0.push(process.clone());
        process
    }

    /// The servers, not started.
    fn servers(&mut self) -> anyhow::Result<Vec<Server>> {
        let wanted = self.wanted;
        let placed: Vec<(String, Option<Arc<Process>>)> = match &wanted.engine {
            Engine::External { urls } => urls
                .iter()
                .map(|url| (url.trim_end_matches('/').to_owned(), None))
                .collect(),
            Engine::Sim { flags } => {
                let command = |_, addr| command::sim(&wanted.program, addr, flags);
                self.started(command)?
            }
            Engine::Sglang { python, settings } => {
                let command = |number, addr| command::sglang(python, addr, settings, number);
                self.started(command)?
            }
        };
        let hops = if wanted.hops {
            wanted.ports(placed.len())?
        } else {
            Vec::new()
        };
        let server = |(number, (url, process)): (usize, (String, Option<Arc<Process>>))| {
            let host = Address::parse(&url).map_err(anyhow::Error::msg)?.name();
            let engine = wanted.engine.name().to_owned();
            let file = ServerFile {
                name: server_name(number),
                url,
                host,
                engine,
            };
            Ok(Server {
                file,
                process,
                hop: hops.get(number).copied(),
            })
        };
        placed.into_iter().enumerate().map(server).collect()
    }

    /// Where the servers to be started will be, and their processes.
    fn started(
        &mut self,
        command: impl Fn(usize, SocketAddr) -> CommandLine,
    ) -> anyhow::Result<Vec<(String, Option<Arc<Process>>)>> {
        let addrs = match self.wanted.base_port {
            Some(base) => ports::from(base, self.wanted.servers)?,
            None => self.wanted.ports(self.wanted.servers)?,
        };
        let server = |(number, addr): (usize, SocketAddr)| {
            let command = command(number, addr).with_env(&self.wanted.env);
            let process = self.process(&server_name(number), command);
            (format!("http://{addr}"), Some(process))
        };
        Ok(addrs.into_iter().enumerate().map(server).collect())
    }

    /// Starts the servers and waits until all of them are ready, or one is not.
    async fn all_ready(&self, servers: &Servers) -> anyhow::Result<()> {
        for server in servers.all() {
            if let Some(process) = &server.process {
                process.start()?;
            }
        }
        let ready = (0..servers.count()).map(|server| servers.ready_itself(server));
        try_join_all(ready).await?;
        if let Router::External { url } = &self.wanted.router {
            // It answers, whatever it says: what it serves shows with the first request.
            let asked = ask::status(url, "/health").await;
            asked.with_context(|| {
                format!("router_url: nothing answers at {url}; start the router, or give its URL")
            })?;
        }
        Ok(())
    }

    /// Empties the caches of servers that ran before; tells of those that could not be.
    async fn kept_caches(&self) -> Vec<String> {
        let urls = match (&self.wanted.engine, &self.wanted.router) {
            (Engine::External { urls }, Router::External { url }) if urls.is_empty() => {
                std::slice::from_ref(url)
            }
            (Engine::External { urls }, _) => urls,
            _ => &[],
        };
        let asked = join_all(urls.iter().map(|url| servers::flushed(url))).await;
        asked.into_iter().filter_map(Result::err).collect()
    }

    /// The router's process, if one is to be started, and the URLs of what comes behind the front.
    fn router(&mut self, servers: &Servers) -> anyhow::Result<(Option<Arc<Process>>, Vec<String>)> {
        let behind = servers.all().iter().map(|server| match server.hop {
            Some(hop) => format!("http://{hop}"),
            None => server.file.url.clone(),
        });
        let behind: Vec<String> = behind.collect();
        match &self.wanted.router {
            Router::None | Router::Builtin { .. } => Ok((None, behind)),
            Router::External { url } => Ok((None, vec![url.trim_end_matches('/').to_owned()])),
            Router::SglangRouter {
                program,
                policy,
                flags,
            } => {
                let (addr, metrics) = (self.wanted.port()?, self.wanted.port()?);
                let command = command::router(program, addr, metrics, policy, &behind, flags);
                Ok((
                    Some(self.process("router", command)),
                    vec![format!("http://{addr}")],
                ))
            }
        }
    }

    /// Starts the proxy before `upstream`; gives its front's URL.
    async fn proxy(
        &mut self,
        servers: &Servers,
        upstream: &[String],
        admin: SocketAddr,
    ) -> anyhow::Result<String> {
        let wanted = self.wanted;
        let front = wanted.port()?;
        let hop = |server: &'_ Server| {
            Some((
                server.file.name.clone(),
                server.hop?,
                server.file.url.clone(),
            ))
        };
        let file = ProxyFile {
            front,
            admin,
            upstream: upstream.to_vec(),
            is_server: wanted.sends_to_servers(),
            policy: match &wanted.router {
                Router::Builtin { policy } => Some(policy),
                _ => None,
            },
            records: &wanted.dir.join(RECORDS),
            fault_injection: wanted.fault_injection,
            hops: servers.all().iter().filter_map(hop).collect(),
            more: &wanted.proxy,
        };
        let path = wanted.dir.join(PROXY_CONFIG);
        let text = file.text()?;
        // Also the user in the URL of a key that is no secret's.
        let mut keys = text.lines().filter_map(|line| line.split_once(" = "));
        let is_private = keys.any(|(key, value)| secret::shown(key, value) != value);
        disk::write(&path, text.as_bytes(), is_private)
            .with_context(|| format!("{}", path.display()))?;
        let process = self.process("proxy", command::proxy(&wanted.program, &path));
        process.start()?;
        let admin = format!("http://{admin}");
        process
            .ready(wanted.start_timeout, || async {
                ask::status(&admin, "/readyz").await == Some(200)
            })
            .await?;
        Ok(format!("http://{front}"))
    }
}

impl Wanted {
    /// A free port that is none of those that servers are to have.
    fn port(&self) -> anyhow::Result<SocketAddr> {
        let base = self.base_port.map_or(0, u32::from);
        ports::free_beside(&(base..base + self.servers as u32))
    }

    fn ports(&self, count: usize) -> anyhow::Result<Vec<SocketAddr>> {
        (0..count).map(|_| self.port()).collect()
    }
}

/// How servers are called, with their number from 1 behind.
const SERVER: &str = "server-";

fn server_name(number: usize) -> String {
    format!("{SERVER}{}", number + 1)
}
