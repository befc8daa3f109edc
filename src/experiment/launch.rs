//! Starts, watches and stops the processes of a run: servers, a router, and our proxy with its hops
//! ([decision 33](../../docs/dev/decisions/0033-what-a-run-needs-are-children.md)).

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, anyhow, ensure};
use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::future::{join_all, try_join_all};
use futures_util::stream::FuturesUnordered;
use http::Method;
use nix::sys::signal::Signal;

use crate::disk;
use crate::fault::Fault;
use crate::report::files::{LOGS, ProcessFile, ServerFile};
use crate::request::ServerRole;
use crate::traffic::{self, client::Target};

mod access;
pub mod process;
mod spec;

pub use access::Access;
pub use spec::{CommandLine, DeploymentSpec, EngineName, Router, ServerSpec};

use access::poll;
use process::Process;
use spec::Hop;

/// The running processes. Dropping it kills them and waits until they are gone, also when a start is cancelled.
#[derive(Debug)]
pub struct Deployment {
    /// The URL that requests are sent to: of the front, if there is one.
    pub target: String,
    /// The servers, in order.
    pub servers: Vec<Server>,
    /// Notes on servers whose cache could not be emptied before the run.
    pub kept_caches: Vec<String>,
    router: Option<Process>,
    proxy: Option<Process>,
}

/// A server of a deployment.
#[derive(Debug)]
pub struct Server {
    /// Its entry in `run.json`.
    pub file: ServerFile,
    /// The address of its hop.
    hop: Option<SocketAddr>,
    /// The port by which decode servers find it, if it is a prefill server.
    bootstrap: Option<u16>,
    /// `None` for an external server.
    process: Option<Process>,
    access: Access,
    /// The proxy's admin listener, once there is one.
    admin: Option<SocketAddr>,
    start_timeout: Duration,
}

/// How long flushing a cache is retried. A server refuses while requests run, which may be of an earlier run.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(30);
/// The file of the proxy's config in the run's folder.
const PROXY_CONFIG: &str = "proxy.toml";
/// The range in which free ports are searched. It is below the default of `base_port`, and Linux's ephemeral ports: an outgoing connection
/// could take one of those while its server is down, even the connection of a client that tries to reach that server.
const FREE: Range<u32> = 10_000..30_000;

impl Deployment {
    /// Starts everything and waits until it is ready. If something fails, what did start is stopped again.
    ///
    /// # Errors
    /// The specification is invalid, a port is taken, or a process ended or was not ready in time; then the error has the end of its log,
    /// the likely cause and a remedy.
    pub async fn start(spec: &DeploymentSpec) -> anyhow::Result<Deployment> {
        let traces = spec.traces.then(|| spec.port()).transpose()?;
        let logs = spec.dir.join(LOGS);
        std::fs::create_dir_all(&logs).with_context(|| logs.display().to_string())?;
        let mut deployment = Deployment {
            target: String::new(),
            servers: servers(spec, traces)?,
            kept_caches: Vec::new(),
            router: None,
            proxy: None,
        };
        deployment.start_servers(spec).await?;
        // Before the router and the proxy start, whose probes would count as running requests.
        deployment.kept_caches = flush_caches(spec).await;
        let servers = deployment.servers.iter_mut().map(|server| async {
            let limit = spec.access.max_running_requests(&server.file.url);
            server.file.max_running_requests = limit.await;
        });
        join_all(servers).await;
        let upstream = deployment.upstream(spec)?;
        deployment.target = match spec.has_proxy() {
            true => deployment.start_proxy(spec, &upstream, traces).await?,
            false => upstream[0].clone(),
        };
        if let Some(router) = &deployment.router {
            let (count, url) = (deployment.servers.len(), &upstream[0]);
            router.start()?;
            let check = async || Access::default().has_workers(url, count).await;
            router.ready(spec.start_timeout, check).await?;
        }
        Ok(deployment)
    }

    /// The processes that this deployment starts: the servers, then the router and the proxy.
    fn own_processes(&self) -> impl Iterator<Item = &Process> {
        let servers = self.servers.iter();
        let servers = servers.filter_map(|server| server.process.as_ref());
        servers.chain(&self.router).chain(&self.proxy)
    }

    /// Describes the started processes for `run.json`.
    pub fn processes(&self) -> Vec<ProcessFile> {
        let file = |process: &Process| ProcessFile {
            name: process.name.clone(),
            command: process.command.to_string(),
            log: format!("{LOGS}/{}.log", process.name),
        };
        self.own_processes().map(file).collect()
    }

    /// Waits until a process ends by itself. Returns which one and why.
    pub async fn ended(&self) -> anyhow::Error {
        let mut all: FuturesUnordered<_> = self.own_processes().map(Process::failed).collect();
        match all.next().await {
            Some(failure) => failure,
            None => std::future::pending().await,
        }
    }

    /// Stops all processes and waits until they are gone. The proxy is first, so that it still gets all responses and writes all rows.
    pub async fn stop(self) {
        for process in self.proxy.iter().chain(&self.router) {
            process.stop().await;
        }
        // No effect on those that were stopped above.
        join_all(self.own_processes().map(Process::stop)).await;
    }

    /// Starts the servers and waits until all are ready or one fails.
    async fn start_servers(&self, spec: &DeploymentSpec) -> anyhow::Result<()> {
        self.own_processes().try_for_each(Process::start)?;
        let servers = self.servers.iter();
        try_join_all(servers.map(|server| server.is_ready_at(&server.file.url))).await?;
        if let Some(url) = &spec.router_url {
            // Any status will do, as its servers may not be ready yet.
            let status = spec.access.get(url, "/health").await;
            status.map_err(|error| anyhow!("router_url: {error}"))?;
        }
        Ok(())
    }

    /// Returns the URLs of the front's upstreams. Makes the router among them, if it is still to be started.
    fn upstream(&mut self, spec: &DeploymentSpec) -> anyhow::Result<Vec<String>> {
        let url = |server: &Server| match server.hop {
            Some(hop) => format!("http://{hop}"),
            None => server.file.url.clone(),
        };
        let urls = self.servers.iter().map(url);
        Ok(match spec.router {
            Router::None | Router::Builtin => urls.collect(),
            Router::External => spec.router_url.iter().cloned().collect(),
            Router::SglangRouter => {
                let program = find_router(spec.router_program.as_deref())?;
                let (addr, metrics) = (spec.port()?, spec.port()?);
                let (ip, port) = (metrics.ip().to_string(), metrics.port().to_string());
                let own = ["--prometheus-host", &ip, "--prometheus-port", &port];
                let line = CommandLine::new(program, &["launch"]).listening_on(addr);
                let line = line.with(own).with(["--policy", &spec.policy]);
                let line = match spec.prefill {
                    0 => line.with(["--worker-urls".to_owned()]).with(urls),
                    _ => line.with(self.pair_flags(urls)),
                }
                .with(&spec.router_flags);
                self.router = Some(Process::new("router".to_owned(), line, spec));
                vec![format!("http://{addr}")]
            }
        })
    }

    /// Returns the router's flags for pairs of servers, which it reaches at `urls`.
    fn pair_flags(&self, urls: impl Iterator<Item = String>) -> Vec<String> {
        let mut flags = vec!["--pd-disaggregation".to_owned()];
        for (server, url) in self.servers.iter().zip(urls) {
            match server.bootstrap {
                Some(port) => flags.extend(["--prefill".to_owned(), url, port.to_string()]),
                None => flags.extend(["--decode".to_owned(), url]),
            }
        }
        flags
    }

    /// Starts the proxy in front of `upstream`, with its listener for traces at `traces`. Returns its front's URL.
    async fn start_proxy(
        &mut self,
        spec: &DeploymentSpec,
        upstream: &[String],
        traces: Option<SocketAddr>,
    ) -> anyhow::Result<String> {
        let (front, admin) = (spec.port()?, spec.port()?);
        let servers = self.servers.iter_mut();
        servers.for_each(|server| server.admin = Some(admin));
        let hop = |server: &Server| Some((server.hop?, server.file.url.clone()));
        let hops: Vec<Hop> = self.servers.iter().filter_map(hop).collect();
        let path = spec.dir.join(PROXY_CONFIG);
        let text = spec.proxy_config([front, admin], traces, upstream, &hops)?;
        // It may hold secrets.
        disk::write(&path, text.as_bytes(), true).with_context(|| path.display().to_string())?;
        let line = CommandLine::new(&spec.program, &["proxy", "--config"]);
        let line = line.with([path.display()]);
        let proxy = Process::new("proxy".to_owned(), line, spec);
        let proxy = self.proxy.insert(proxy);
        proxy.start()?;
        let admin = format!("http://{admin}");
        let check = async || Access::default().is_ready(&admin, "/readyz").await;
        proxy.ready(spec.start_timeout, check).await?;
        Ok(format!("http://{front}"))
    }
}

impl Drop for Deployment {
    fn drop(&mut self) {
        // All are killed before the drop of each waits for it.
        self.own_processes()
            .for_each(|process| process.signal(Signal::SIGKILL));
    }
}

/// Makes the servers, without starting them. They are to send traces to the address `traces`.
fn servers(spec: &DeploymentSpec, traces: Option<SocketAddr>) -> anyhow::Result<Vec<Server>> {
    let traces = traces.map(|addr| format!("--otlp-traces-endpoint={addr}"));
    let free_if = |is_wanted: bool| is_wanted.then(|| spec.port()).transpose();
    let server = |(number, server): (usize, &ServerSpec)| {
        let name = spec.server_name(number);
        let role = spec.role(number);
        let bootstrap = free_if(role == Some(ServerRole::Prefill))?.map(|addr| addr.port());
        let (url, process) = match server {
            ServerSpec::Running(url) => (url.clone(), None),
            ServerSpec::Started(line) => {
                let addr = match spec.base_port {
                    Some(base) => server_port(base, number)?,
                    None => spec.port()?,
                };
                let port = bootstrap.map(|port| format!("--disaggregation-bootstrap-port={port}"));
                let line = line.clone().listening_on(addr).with(port).with(&traces);
                let process = Process::new(name.clone(), line, spec);
                (format!("http://{addr}"), Some(process))
            }
        };
        let target = Target::parse(&url).map_err(anyhow::Error::msg)?;
        Ok(Server {
            process,
            file: ServerFile {
                max_running_requests: None,
                engine: traffic::value_name(spec.engine),
                role,
                name,
                url,
                host: target.address.name(),
            },
            hop: free_if(spec.hops)?,
            bootstrap,
            access: spec.access.clone(),
            admin: None,
            start_timeout: spec.start_timeout,
        })
    };
    spec.servers.iter().enumerate().map(server).collect()
}

/// Empties the caches of servers that ran before. Returns notes on those that failed.
async fn flush_caches(spec: &DeploymentSpec) -> Vec<String> {
    let router = spec.router_url.as_deref();
    let router = router.filter(|_| spec.servers.is_empty());
    let urls = spec.running().chain(router);
    let flushes = urls.map(|url| flush_cache(&spec.access, url));
    let flushed = join_all(flushes).await.into_iter();
    flushed.filter_map(Result::err).collect()
}

impl DeploymentSpec {
    /// Finds a free loopback port that is not planned for a server.
    ///
    /// # Errors
    /// There is none.
    fn port(&self) -> anyhow::Result<SocketAddr> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let base = self.base_port.map_or(0, u32::from);
        let planned = base..base + self.servers.len() as u32;
        // So that concurrent processes begin at different ports.
        let offset = std::process::id().wrapping_mul(7919);
        let is_free = |addr: &SocketAddr| {
            !planned.contains(&addr.port().into()) && TcpListener::bind(addr).is_ok()
        };
        let mut all = FREE.map(|_| {
            let count = offset.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
            local((FREE.start + count % FREE.len() as u32) as u16)
        });
        let (first, last) = (FREE.start, FREE.end - 1);
        let problem = || format!("no port of 127.0.0.1 from {first} to {last} is free");
        all.find(is_free).with_context(problem)
    }
}

/// Returns the address of server `number`, from 0, if `base` is the port of the first.
///
/// # Errors
/// It is not free.
fn server_port(base: u16, number: usize) -> anyhow::Result<SocketAddr> {
    let port = base.saturating_add(number as u16);
    TcpListener::bind(local(port)).with_context(|| {
        format!(
            "base_port = {base}: port {port} cannot be opened; end what listens there (`ss -ltnp` shows it), or give another \
             base_port, or 0 for free ones"
        )
    })?;
    Ok(local(port))
}

fn local(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

impl Server {
    /// Kills its process group and waits until that is gone. An external server has none.
    pub async fn kill(&self) {
        if let Some(process) = &self.process {
            process.kill().await;
        }
    }

    /// Starts it again after a kill, with the same command and port.
    ///
    /// # Errors
    /// It is running, or cannot be started.
    pub fn start(&self) -> anyhow::Result<()> {
        self.process.as_ref().map_or(Ok(()), Process::start)
    }

    /// Waits until it is ready, through its hop if it has one.
    ///
    /// # Errors
    /// It ended, or is not ready within the start timeout.
    pub async fn ready(&self) -> anyhow::Result<()> {
        let hop = self.hop.map(|hop| format!("http://{hop}"));
        self.is_ready_at(hop.as_deref().unwrap_or(&self.file.url))
            .await
    }

    /// Waits until it is ready at `url`, which may bypass its hop.
    async fn is_ready_at(&self, url: &str) -> anyhow::Result<()> {
        let check = async || self.access.is_ready(url, "/health").await;
        if let Some(process) = &self.process {
            return process.ready(self.start_timeout, check).await;
        }
        let polled = poll(self.start_timeout, check).await;
        polled.map_err(|reason| {
            let name = &self.file.name;
            anyhow!("{name}: {url} is not ready ({reason})")
        })
    }

    /// Has its hop inject a fault; `None` lifts it.
    ///
    /// # Errors
    /// It has no hop, or the hop refuses the fault.
    pub async fn set_fault(&self, fault: Option<&Fault>) -> anyhow::Result<()> {
        let name = &self.file.name;
        let admin = self.admin.with_context(|| format!("{name} has no hop"))?;
        let (method, body) = match fault {
            Some(fault) => (Method::PUT, serde_json::to_vec(fault)?.into()),
            None => (Method::DELETE, Bytes::new()),
        };
        let (url, path) = (format!("http://{admin}"), format!("/faults/{name}"));
        let response = Access::default().request(&url, method, &path, body).await;
        let (status, text) = response.map_err(anyhow::Error::msg)?;
        let text = String::from_utf8_lossy(&text);
        let text = text.trim();
        ensure!(status == 200, "the hop of {name} answers {status}: {text}");
        Ok(())
    }
}

/// Empties the cache of the server (or of the servers behind the router) at `url`, with retries.
///
/// # Errors
/// Why it cannot be emptied.
async fn flush_cache(access: &Access, url: &str) -> Result<(), String> {
    let flush = async || {
        let response = access.request(url, Method::POST, "/flush_cache", Bytes::new());
        match response.await? {
            (200, _) => Ok(Ok(())),
            // It will never do it.
            (status @ (401 | 403 | 404 | 405), _) => Ok(Err(format!("it answered {status}"))),
            (status, _) => Err(format!("it answered {status}")),
        }
    };
    let flushed = poll(FLUSH_TIMEOUT, flush).await.flatten();
    flushed.map_err(|reason| format!("the cache of {url} was not emptied before the run: {reason}"))
}

/// Finds the `given` program of the router, or `smg`, in PATH or at its path.
///
/// # Errors
/// It is not there. Says how to get one.
pub fn find_router(given: Option<&Path>) -> anyhow::Result<PathBuf> {
    let program = given.unwrap_or(Path::new("smg"));
    let at_path = || program.is_file().then(|| program.to_owned());
    in_path(program).or_else(at_path).with_context(|| {
        let program = program.display();
        format!(
            "the router's program {program} is not there; `pip install sglang-router` brings smg, and router_program names another"
        )
    })
}

/// Finds a program in PATH.
pub(super) fn in_path(name: impl AsRef<Path>) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let mut programs = std::env::split_paths(&path).map(|folder| folder.join(&name));
    programs.find(|program| program.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_of_planned_servers_are_not_given_away() {
        let first = DeploymentSpec::default().port().unwrap().port();
        // The search would go on with the following ports.
        let spec = DeploymentSpec {
            base_port: Some(first),
            servers: vec![ServerSpec::Running(String::new()); 200],
            ..DeploymentSpec::default()
        };
        let planned = u32::from(first)..u32::from(first) + 200;
        for _ in 0..5 {
            let port = u32::from(spec.port().unwrap().port());
            assert!(!planned.contains(&port), "{port}");
        }
    }
}
