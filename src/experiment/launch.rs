//! Starts what an experiment needs, waits until it is ready, watches it, and ends it: servers, a router, our proxy with its
//! hops. Each is a process of its own ([decision 33](../../docs/dev/decisions/0033-what-a-run-needs-are-children.md)).

use std::net::SocketAddr;

use anyhow::{Context, anyhow};
use futures_util::StreamExt as _;
use futures_util::future::{join_all, try_join_all};
use futures_util::stream::FuturesUnordered;
use nix::sys::signal::Signal;

use crate::disk;
use crate::report::files::{LOGS, ProcessFile, ServerFile};
use crate::request::attempt::ServerRole;
use crate::traffic::{self, client::Target};

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
pub use command::CommandLine;
pub use proxy_file::check as check_proxy;
pub use server::Server;
pub use spec::{DeploymentSpec, EngineName, ROUTER_POLICIES, Router, ServerSpec};

use process::Process;
use proxy_file::Hop;

/// What runs. Dropping it kills what was started, and waits until it is gone: also what is under way when a start is given up.
#[derive(Debug)]
pub struct Deployment {
    /// Where requests go: the front where there is one.
    pub target: String,
    /// The servers, in order.
    pub servers: Vec<Server>,
    /// Which servers may have kept the cache of what came before, and why.
    pub kept_caches: Vec<String>,
    /// Router and proxy. The last is ended first.
    others: Vec<Process>,
}

/// The proxy's config in the run's folder.
pub const PROXY_CONFIG: &str = "proxy.toml";

impl Deployment {
    /// Starts all of it. It is ready when this returns; what did start is ended again where something did not.
    ///
    /// # Errors
    /// What does not fit together; a port that is taken; what ended or was not ready in time, with its log's last lines,
    /// the likely cause and what helps.
    pub async fn start(spec: &DeploymentSpec) -> anyhow::Result<Deployment> {
        spec.check()?;
        let spec = &spec.with_traces()?;
        let logs = spec.dir.join(LOGS);
        std::fs::create_dir_all(&logs).with_context(|| logs.display().to_string())?;
        let mut deployment = Deployment {
            target: String::new(),
            servers: servers(spec)?,
            kept_caches: Vec::new(),
            others: Vec::new(),
        };
        deployment.all_ready(spec).await?;
        // Before anything that asks servers of itself is there: a router's probe is a request under way.
        deployment.kept_caches = kept_caches(spec).await;
        let (upstream, router) = deployment.upstream(spec)?;
        deployment.target = match spec.has_proxy() {
            true => deployment.proxy(spec, &upstream).await?,
            false => upstream[0].clone(),
        };
        if let Some(router) = router {
            let (count, url) = (deployment.servers.len(), &upstream[0]);
            // It is ended after the proxy, which is the last of them.
            deployment.others.insert(0, router);
            let router = &deployment.others[0];
            router.start()?;
            let knows_all = async || Access::default().knows(url, count).await;
            router.ready(spec.start_timeout(), knows_all).await?;
        }
        Ok(deployment)
    }

    /// What was started, in this order.
    fn all(&self) -> impl Iterator<Item = &Process> {
        let servers = self.servers.iter();
        let servers = servers.filter_map(|server| server.process.as_ref());
        servers.chain(&self.others)
    }

    /// What was started.
    pub fn processes(&self) -> Vec<ProcessFile> {
        let file = |process: &Process| ProcessFile {
            name: process.name.clone(),
            command: process.command.to_string(),
            log: format!("{LOGS}/{}.log", process.name),
        };
        self.all().map(file).collect()
    }

    /// Waits until a process ends that nobody ended; says which and why.
    pub async fn ended(&self) -> anyhow::Error {
        let mut all: FuturesUnordered<_> = self.all().map(Process::failed).collect();
        match all.next().await {
            Some(failure) => failure,
            None => std::future::pending().await,
        }
    }

    /// Ends all that was started, the proxy first, so that it has written all its rows. Returns when nothing of it is left.
    pub async fn stop(self) {
        for process in self.others.iter().rev() {
            process.stop().await;
        }
        // To those that have ended it is nothing.
        join_all(self.all().map(Process::stop)).await;
    }

    /// Starts the servers and waits until all of them are ready, or one is not.
    async fn all_ready(&self, spec: &DeploymentSpec) -> anyhow::Result<()> {
        self.all().try_for_each(Process::start)?;
        let servers = self.servers.iter();
        try_join_all(servers.map(|server| server.ready_at(&server.file.url))).await?;
        if let Some(url) = &spec.router_url {
            // It answers, whatever it says: what it serves shows with the first request.
            let asked = spec.access.get(url, "/health").await;
            asked.map_err(|why| anyhow!("router_url: {why}; start the router, or give its URL"))?;
        }
        Ok(())
    }

    /// The URLs of what comes behind the front, and a router that is one of them, which is not started yet.
    fn upstream(&self, spec: &DeploymentSpec) -> anyhow::Result<(Vec<String>, Option<Process>)> {
        let url = |server: &Server| match server.hop {
            Some(hop) => format!("http://{hop}"),
            None => server.file.url.clone(),
        };
        let behind = self.servers.iter().map(url);
        Ok(match spec.router {
            Router::None | Router::Builtin => (behind.collect(), None),
            Router::External => (spec.router_url.iter().cloned().collect(), None),
            Router::SglangRouter => {
                let program = router::find(spec.router_program.as_deref())?;
                let (addr, metrics) = (spec.port()?, spec.port()?);
                let (ip, port) = (metrics.ip().to_string(), metrics.port().to_string());
                let own = ["--prometheus-host", &ip, "--prometheus-port", &port];
                let line = CommandLine::new(program, &["launch"]).at(addr).with(own);
                let line = line.with(["--policy", &spec.policy]);
                let line = match spec.prefill {
                    0 => line.with(["--worker-urls".to_owned()]).with(behind),
                    _ => line.with(self.pair(behind)),
                }
                .with(&spec.router_flags);
                let router = Process::new("router".to_owned(), line, spec);
                (vec![format!("http://{addr}")], Some(router))
            }
        })
    }

    /// What the router is told of a pair's servers, `behind` being where it finds them.
    fn pair(&self, behind: impl Iterator<Item = String>) -> Vec<String> {
        let mut flags = vec!["--pd-disaggregation".to_owned()];
        for (server, url) in self.servers.iter().zip(behind) {
            match server.bootstrap {
                Some(port) => flags.extend(["--prefill".to_owned(), url, port.to_string()]),
                None => flags.extend(["--decode".to_owned(), url]),
            }
        }
        flags
    }

    /// Starts the proxy before `upstream`; gives its front's URL.
    async fn proxy(
        &mut self,
        spec: &DeploymentSpec,
        upstream: &[String],
    ) -> anyhow::Result<String> {
        let (front, admin) = (spec.port()?, spec.port()?);
        let servers = self.servers.iter_mut();
        servers.for_each(|server| server.admin = Some(admin));
        let hop = |server: &Server| Some((server.hop?, server.file.url.clone()));
        let hops: Vec<Hop> = self.servers.iter().filter_map(hop).collect();
        let path = spec.dir.join(PROXY_CONFIG);
        let text = proxy_file::text(spec, front, admin, upstream, &hops)?;
        // It may hold secrets.
        disk::write(&path, text.as_bytes(), true).with_context(|| path.display().to_string())?;
        let line = CommandLine::new(&spec.program, &["proxy", "--config"]);
        let process = Process::new("proxy".to_owned(), line.with([path.display()]), spec);
        process.start()?;
        let admin = format!("http://{admin}");
        let ready = [("/readyz", 200..=200)];
        let is_ready = async || Access::default().answers(&admin, &ready).await;
        let ready = process.ready(spec.start_timeout(), is_ready).await;
        self.others.push(process);
        ready.map(|()| format!("http://{front}"))
    }
}

impl Drop for Deployment {
    fn drop(&mut self) {
        // All are killed before each is waited for.
        self.all()
            .for_each(|process| process.signal(Signal::SIGKILL));
    }
}

/// The servers, not started.
fn servers(spec: &DeploymentSpec) -> anyhow::Result<Vec<Server>> {
    let free_if = |is_wanted: bool| is_wanted.then(|| spec.port()).transpose();
    let server = |(number, server): (usize, &ServerSpec)| {
        let name = spec.server_name(number);
        let role = spec.role(number);
        let bootstrap = free_if(role == Some(ServerRole::Prefill))?.map(|addr| addr.port());
        let (url, process) = match server {
            ServerSpec::Running(url) => (url.clone(), None),
            ServerSpec::Started(line) => {
                let addr = match spec.base_port {
                    Some(base) => ports::given(base, number)?,
                    None => spec.port()?,
                };
                let port = bootstrap.map(|port| format!("--disaggregation-bootstrap-port={port}"));
                let line = line.clone().at(addr).with(port);
                let process = Process::new(name.clone(), line, spec);
                (format!("http://{addr}"), Some(process))
            }
        };
        let target = Target::parse(&url).map_err(anyhow::Error::msg)?;
        Ok(Server {
            process,
            file: ServerFile {
                engine: traffic::name(spec.engine),
                role,
                name,
                url,
                host: target.host_and_port(),
            },
            hop: free_if(spec.hops)?,
            bootstrap,
            access: spec.access.clone(),
            admin: None,
            start_timeout: spec.start_timeout(),
        })
    };
    spec.servers.iter().enumerate().map(server).collect()
}

/// Empties the caches of servers that ran before; tells of those that could not be.
async fn kept_caches(spec: &DeploymentSpec) -> Vec<String> {
    let router = spec.router_url.as_deref();
    let router = router.filter(|_| spec.servers.is_empty());
    let urls = spec.running().chain(router);
    let asked = urls.map(|url| server::flushed(&spec.access, url));
    let told = join_all(asked).await.into_iter();
    told.filter_map(Result::err).collect()
}

impl DeploymentSpec {
    /// A free port that is none of those that servers are to have.
    ///
    /// # Errors
    /// There is none.
    pub fn port(&self) -> anyhow::Result<SocketAddr> {
        let base = self.base_port.map_or(0, u32::from);
        ports::free_beside(&(base..base + self.servers.len() as u32))
    }

    /// The same, with where servers tell the proxy of requests, if they are to.
    fn with_traces(&self) -> anyhow::Result<DeploymentSpec> {
        let mut spec = self.clone();
        if spec.traces {
            let addr = spec.port()?.to_string();
            for server in &mut spec.servers {
                if let ServerSpec::Started(line) = server {
                    *line = line.clone().with(["--otlp-traces-endpoint", &addr]);
                }
            }
            let key = "engine.traces.listen".to_owned();
            spec.proxy.insert(key, addr.into());
        }
        Ok(spec)
    }
}
