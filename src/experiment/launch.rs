//! Starts what an experiment needs, waits until it is ready, watches it, and ends it: servers, a router, our proxy with its
//! hops. Each is a process of its own ([decision 33](../../docs/decisions/0033-what-a-run-needs-are-children.md)).

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use futures_util::future::{join_all, try_join_all};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::report::files::{LOGS, ProcessFile, ServerFile};
use crate::traffic::client::{Target, UpstreamKind};
use crate::{disk, secret};

mod ask;
mod command;
mod failure;
mod ports;
pub mod process;
mod proxy_file;
pub mod router;
mod server;
mod spec;

pub use ask::Access;
pub use command::Program;
pub use proxy_file::check as check_proxy;
pub use server::Server;
pub use spec::{DeploymentSpec, EngineName, ROUTER_POLICIES, Router, ServerSpec};

use command::CommandLine;
use process::Process;
use proxy_file::ProxyFile;

/// What runs. Dropping it kills what was started, and waits until it is gone.
#[derive(Debug)]
pub struct Deployment {
    /// Where requests go: the front where there is one.
    pub target: String,
    /// What the generator is to be told of what answers there: its `--upstream-kind`.
    pub upstream_kind: UpstreamKind,
    /// The servers, in order.
    pub servers: Vec<Arc<Server>>,
    /// Where the proxy's admin listener is, if it takes part.
    pub admin: Option<SocketAddr>,
    /// Where a router that was started serves its `/metrics`.
    pub router_metrics: Option<SocketAddr>,
    /// Which servers may have kept the cache of what came before, and why.
    pub kept_caches: Vec<String>,
    dir: PathBuf,
    /// The last to be ended first.
    processes: Processes,
    failures: UnboundedReceiver<anyhow::Error>,
}

/// Processes, ended when dropped: also those of a start that is given up.
#[derive(Debug, Default)]
struct Processes(Vec<Arc<Process>>);

/// A router to be started, and where its metrics will be.
type RouterProcess = (Arc<Process>, SocketAddr);

/// A start under way.
struct Start<'a> {
    spec: &'a DeploymentSpec,
    failures: UnboundedSender<anyhow::Error>,
    processes: Processes,
}

/// The proxy's config in the run's folder.
const PROXY_CONFIG: &str = "proxy.toml";

impl Deployment {
    /// Starts all of it. It is ready when this returns; what did start is ended again where something did not.
    ///
    /// # Errors
    /// What does not fit together; a port that is taken; what ended or was not ready in time, with its log's last lines,
    /// the likely cause and what helps.
    pub async fn start(spec: &DeploymentSpec) -> anyhow::Result<Deployment> {
        spec.check().map_err(anyhow::Error::msg)?;
        let logs = spec.dir.join(LOGS);
        std::fs::create_dir_all(&logs).with_context(|| logs.display().to_string())?;
        let (failures, failed) = unbounded_channel();
        let mut start = Start {
            spec,
            failures,
            processes: Processes::default(),
        };
        let admin = match spec.proxy_admin {
            _ if !spec.has_proxy() => None,
            Some(admin) => Some(admin),
            None => Some(spec.port()?),
        };
        let servers = start.servers(admin)?;
        start.all_ready(&servers).await?;
        // Before anything that asks servers of itself is there: a router's probe is a request under way.
        let kept_caches = start.kept_caches().await;
        let (router, upstream) = start.router(&servers)?;
        let target = match admin {
            Some(admin) => start.proxy(&servers, &upstream, admin).await?,
            None => upstream
                .first()
                .cloned()
                .context("there is nothing to send to")?,
        };
        let router_metrics = router.as_ref().map(|(_, metrics)| *metrics);
        if let Some((router, _)) = router {
            router.start()?;
            let url = &upstream[0];
            let knows_all = async || Access::default().workers(url).await == servers.len();
            router.ready(spec.start_timeout, knows_all).await?;
        }
        Ok(Deployment {
            target,
            upstream_kind: match spec.sends_to_servers() {
                true => UpstreamKind::Server,
                false => UpstreamKind::Router,
            },
            router_metrics,
            admin,
            dir: spec.dir.clone(),
            servers,
            processes: start.processes,
            failures: failed,
            kept_caches,
        })
    }

    /// What was started.
    pub fn processes(&self) -> Vec<ProcessFile> {
        let file = |process: &Arc<Process>| ProcessFile {
            name: process.name.clone(),
            command: process.command.to_string(),
            log: {
                let log = process.log.strip_prefix(&self.dir);
                log.unwrap_or(&process.log).display().to_string()
            },
        };
        self.processes.0.iter().map(file).collect()
    }

    /// Waits until a process ends that nobody ended; says which and why.
    pub async fn ended(&mut self) -> anyhow::Error {
        match self.failures.recv().await {
            Some(failure) => failure,
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
        // All are killed before each is waited for.
        let ended: Vec<_> = self.0.iter().map(|process| process.end()).collect();
        ended.into_iter().for_each(|until_gone| until_gone());
    }
}

impl Start<'_> {
    /// A process, which is ended when this start is given up.
    fn process(&mut self, name: &str, command: CommandLine) -> Arc<Process> {
        let log = self.spec.dir.join(LOGS).join(format!("{name}.log"));
        let program = self.spec.program.clone();
        let process = Process::new(name, command, log, program, self.failures.clone());
        self.processes.0.push(process.clone());
        process
    }

    /// The servers, not started.
    fn servers(&mut self, admin: Option<SocketAddr>) -> anyhow::Result<Vec<Arc<Server>>> {
        let spec = self.spec;
        let started = spec.servers.len() - spec.running().count();
        let mut addrs = match spec.base_port {
            Some(base) => ports::from(base, started)?,
            None => spec.ports(started)?,
        }
        .into_iter();
        let hops = spec.ports(if spec.hops { spec.servers.len() } else { 0 })?;
        let of_admin = Access {
            api_key: proxy_file::authorization(spec)?,
            ..Access::default()
        };
        let server = |(number, server): (usize, &ServerSpec)| {
            let name = format!("{SERVER}{}", number + 1);
            let (url, command) = match server {
                ServerSpec::Running(url) => (url.trim_end_matches('/').to_owned(), None),
                ServerSpec::Started(program) => {
                    let addr = addrs.next().context("there is a port for each server")?;
                    let mut command = program.at(addr, &[]);
                    command.env.clone_from(&spec.env);
                    (format!("http://{addr}"), Some(command))
                }
            };
            let target = Target::parse(&url).map_err(anyhow::Error::msg)?;
            Ok(Arc::new(Server {
                process: command.map(|command| self.process(&name, command)),
                file: ServerFile {
                    engine: spec.engine.name(),
                    name,
                    url,
                    host: target.host_and_port(),
                },
                hop: hops.get(number).copied(),
                access: spec.access.clone(),
                admin: admin.map(|admin| (admin, of_admin.clone())),
                start_timeout: spec.start_timeout,
            }))
        };
        spec.servers.iter().enumerate().map(server).collect()
    }

    /// Starts the servers and waits until all of them are ready, or one is not.
    async fn all_ready(&self, servers: &[Arc<Server>]) -> anyhow::Result<()> {
        let mut processes = servers.iter().filter_map(|server| server.process.as_ref());
        processes.try_for_each(|process| process.start())?;
        try_join_all(
            servers
                .iter()
                .map(|server| server.ready_at(&server.file.url)),
        )
        .await?;
        if let Router::External(url) = &self.spec.router {
            // It answers, whatever it says: what it serves shows with the first request.
            let asked = self.spec.access.status(url, "/health").await;
            asked.with_context(|| {
                format!("router_url: nothing answers at {url}; start the router, or give its URL")
            })?;
        }
        Ok(())
    }

    /// Empties the caches of servers that ran before; tells of those that could not be.
    async fn kept_caches(&self) -> Vec<String> {
        let router = match &self.spec.router {
            Router::External(url) if self.spec.servers.is_empty() => Some(url.as_str()),
            _ => None,
        };
        let urls = self.spec.running().chain(router);
        let asked = urls.map(|url| server::flushed(&self.spec.access, url));
        join_all(asked)
            .await
            .into_iter()
            .filter_map(Result::err)
            .collect()
    }

    /// The router's process and where its metrics are, if one is to be started, and the URLs of what comes behind the front.
    fn router(
        &mut self,
        servers: &[Arc<Server>],
    ) -> anyhow::Result<(Option<RouterProcess>, Vec<String>)> {
        let behind = servers.iter().map(|server| match server.hop {
            Some(hop) => format!("http://{hop}"),
            None => server.file.url.clone(),
        });
        let behind: Vec<String> = behind.collect();
        match &self.spec.router {
            Router::None | Router::Builtin(_) => Ok((None, behind)),
            Router::External(url) => Ok((None, vec![url.trim_end_matches('/').to_owned()])),
            Router::SglangRouter {
                program,
                policy,
                flags,
            } => {
                let (addr, metrics) = (self.spec.port()?, self.spec.port()?);
                let router = Program {
                    program: program.clone(),
                    before: &["launch"],
                    flags: flags.clone(),
                };
                let (ip, port) = (metrics.ip().to_string(), metrics.port().to_string());
                let own = ["--prometheus-host", &ip, "--prometheus-port", &port];
                let mut own: Vec<&str> = own.into();
                own.extend(["--policy", policy, "--worker-urls"]);
                own.extend(behind.iter().map(String::as_str));
                let process = self.process("router", router.at(addr, &own));
                Ok((Some((process, metrics)), vec![format!("http://{addr}")]))
            }
        }
    }

    /// Starts the proxy before `upstream`; gives its front's URL.
    async fn proxy(
        &mut self,
        servers: &[Arc<Server>],
        upstream: &[String],
        admin: SocketAddr,
    ) -> anyhow::Result<String> {
        let spec = self.spec;
        let front = spec.port()?;
        let hop = |server: &Arc<Server>| {
            let ServerFile { name, url, .. } = &server.file;
            Some((name.clone(), server.hop?, url.clone()))
        };
        let file = ProxyFile {
            spec,
            front,
            admin,
            upstream: upstream.to_vec(),
            hops: servers.iter().filter_map(hop).collect(),
        };
        let path = spec.dir.join(PROXY_CONFIG);
        let text = file.text()?;
        // Also the user in the URL of a key that is no secret's.
        let mut keys = text.lines().filter_map(|line| line.split_once(" = "));
        let is_private = keys.any(|(key, value)| secret::shown(key, value) != value);
        disk::write(&path, text.as_bytes(), is_private)
            .with_context(|| path.display().to_string())?;
        let args = ["proxy", "--config", &path.display().to_string()].map(str::to_owned);
        let command = CommandLine {
            program: spec.program.clone(),
            args: args.to_vec(),
            env: Vec::new(),
        };
        let process = self.process("proxy", command);
        process.start()?;
        let admin = format!("http://{admin}");
        let is_ready = async || Access::default().status(&admin, "/readyz").await == Some(200);
        process.ready(spec.start_timeout, is_ready).await?;
        Ok(format!("http://{front}"))
    }
}

impl DeploymentSpec {
    /// A free port that is none of those that servers are to have.
    fn port(&self) -> anyhow::Result<SocketAddr> {
        let base = self.base_port.map_or(0, u32::from);
        ports::free_beside(&(base..base + self.servers.len() as u32))
    }

    fn ports(&self, count: usize) -> anyhow::Result<Vec<SocketAddr>> {
        (0..count).map(|_| self.port()).collect()
    }
}

/// How servers are called, with their number from 1 behind.
const SERVER: &str = "server-";
