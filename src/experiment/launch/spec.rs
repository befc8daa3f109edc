//! What is to be started, and whether it can be. Pure.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::ask::Access;
use crate::secret::shown;
use crate::traffic::client::Target;

/// The servers.
#[derive(Clone, Debug, PartialEq)]
pub enum Engine {
    /// `queuescope sim`.
    Sim {
        /// Each server's flags besides host and port, as its command takes them; the last are also those of further servers.
        flags: Vec<Vec<String>>,
    },
    /// `python -m sglang.launch_server`.
    Sglang {
        /// The Python that has SGLang.
        python: PathBuf,
        /// Its flags, besides those of host, port and GPU.
        flags: Vec<String>,
        /// The first GPU of the first server.
        first_gpu: u64,
        /// GPUs of each server.
        gpus: u64,
        /// Servers that share their GPUs.
        servers_per_gpu: u64,
    },
    /// Servers that run already: nothing of them is started or stopped.
    External {
        /// Where they are. May be none behind [`Router::External`].
        urls: Vec<String>,
    },
}

/// What shares requests out over the servers.
#[derive(Clone, Debug, PartialEq)]
pub enum Router {
    /// Nothing: there is one server.
    None,
    /// Our own proxy.
    Builtin {
        /// As the proxy's key `policy`.
        policy: String,
    },
    /// sglang-router (or smg), as a process.
    SglangRouter {
        /// `smg`; see [`super::router::find`].
        program: PathBuf,
        /// As its flag `--policy`.
        policy: String,
        /// Further flags.
        flags: Vec<String>,
    },
    /// One that runs already, and knows its servers.
    External {
        /// Where it is.
        url: String,
    },
}

/// What is to be started.
#[derive(Clone, Debug)]
pub struct DeploymentSpec {
    /// The servers.
    pub engine: Engine,
    /// How many; of external ones there are as many as URLs.
    pub servers: usize,
    /// Variables of the environment of those that are started, beside ours.
    pub env: Vec<(String, String)>,
    /// Server i (from 0) listens on `base_port + i`; `None`: on a free port.
    pub base_port: Option<u16>,
    /// What routes.
    pub router: Router,
    /// Whether our proxy stands in front of all; it does anyway with hops or a built-in router.
    pub front: bool,
    /// Whether a hop of our proxy stands before each server; see [`Router::wants_hops`].
    pub hops: bool,
    /// Whether the hops take faults.
    pub fault_injection: bool,
    /// Where the proxy's admin listener is to be; `None`: on a free port.
    pub proxy_admin: Option<SocketAddr>,
    /// Further keys of the proxy's config, which win over ours.
    pub proxy: toml::Table,
    /// How servers are asked.
    pub access: Access,
    /// The program `queuescope`.
    pub program: PathBuf,
    /// The run's folder, which is there.
    pub dir: PathBuf,
    /// How long each of them may take until it is ready; see [`Engine::start_timeout`].
    pub start_timeout: Duration,
}

/// Policies of sglang-router 0.3.2 that need nothing else; of ours it has not `shortest_queue`.
pub const ROUTER_POLICIES: [&str; 4] = ["cache_aware", "round_robin", "random", "power_of_two"];
const NOT_OF_ROUTER: &str = "shortest_queue";

impl Engine {
    /// How servers of the kind are called: `sim`, `sglang` or `external`.
    pub fn name(&self) -> &'static str {
        match self {
            Engine::Sim { .. } => "sim",
            Engine::Sglang { .. } => "sglang",
            Engine::External { .. } => "external",
        }
    }

    /// How long a start may take where nobody says: SGLang loads a model and may compile.
    pub fn start_timeout(&self) -> Duration {
        match self {
            Engine::Sim { .. } | Engine::External { .. } => Duration::from_secs(30),
            Engine::Sglang { .. } => Duration::from_secs(600),
        }
    }

    /// Has servers that are started write a line a request into a folder, without the prompt.
    pub fn logs_requests_to(&mut self, folder: &Path) {
        // What the simulator writes never holds a prompt.
        let (each, is_plain) = match self {
            Engine::Sim { flags } => (flags.as_mut_slice(), true),
            Engine::Sglang { flags, .. } => (std::slice::from_mut(flags), false),
            Engine::External { .. } => return,
        };
        let folder = folder.display().to_string();
        let more = [
            "--export-metrics-to-file",
            "--export-metrics-to-file-dir",
            &folder,
        ];
        let plain = ["--log-requests", "--log-requests-level", "0"];
        for flags in each {
            let is_own = flags.iter().any(|flag| flag.starts_with("--log-requests"));
            let plain = if is_own || is_plain { &[][..] } else { &plain };
            flags.extend(more.iter().chain(plain).map(|flag| (*flag).to_owned()));
        }
    }

    /// Whether servers use GPUs of this machine, as far as that shows.
    pub fn has_gpus_here(&self) -> bool {
        match self {
            Engine::Sim { .. } => false,
            Engine::Sglang { .. } => true,
            Engine::External { urls } => urls.iter().any(|url| is_loopback(url)),
        }
    }
}

impl Router {
    /// Its name and policy: `builtin round_robin`.
    pub fn name(&self) -> Option<String> {
        match self {
            Router::None => None,
            Router::Builtin { policy } => Some(format!("builtin {policy}")),
            Router::SglangRouter { policy, .. } => Some(format!("sglang-router {policy}")),
            Router::External { url } => Some(format!("external {url}")),
        }
    }

    /// Whether only hops show when it sends on, and to whom.
    pub fn wants_hops(&self) -> bool {
        matches!(self, Router::SglangRouter { .. })
    }
}

impl DeploymentSpec {
    /// So many servers on free ports, and nothing else.
    pub fn new(engine: Engine, servers: usize, program: PathBuf, dir: &Path) -> DeploymentSpec {
        DeploymentSpec {
            start_timeout: engine.start_timeout(),
            engine,
            servers,
            env: Vec::new(),
            base_port: None,
            router: Router::None,
            front: false,
            hops: false,
            fault_injection: false,
            proxy_admin: None,
            proxy: toml::Table::new(),
            access: Access::default(),
            program,
            dir: dir.to_owned(),
        }
    }

    /// How many servers there are.
    pub fn count(&self) -> usize {
        match &self.engine {
            Engine::External { urls } => urls.len(),
            _ => self.servers,
        }
    }

    /// Whether our proxy is part of it.
    pub fn has_proxy(&self) -> bool {
        self.front || self.hops || matches!(self.router, Router::Builtin { .. })
    }

    /// Whether what requests are sent to, behind our front if there is one, is the servers themselves.
    pub fn sends_to_servers(&self) -> bool {
        !self.hops && matches!(self.router, Router::None | Router::Builtin { .. })
    }

    /// Whether it fits together.
    ///
    /// # Errors
    /// What does not, and what would.
    pub fn check(&self) -> Result<(), String> {
        if let Engine::External { urls } = &self.engine {
            urls.iter().try_for_each(|url| check_url("servers", url))?;
        }
        let count = self.count();
        if count == 0 && !matches!(self.router, Router::External { .. }) {
            return Err("servers: there are none; give at least one".to_owned());
        }
        if self.hops && count == 0 {
            return Err("hops: they stand before servers, and none are given".to_owned());
        }
        let is_started = !matches!(self.engine, Engine::External { .. });
        if let Some(port) = self.base_port.filter(|_| is_started)
            && usize::from(u16::MAX - port) + 1 < count
        {
            return Err(format!(
                "base_port = {port}: {count} servers need ports up to 65535; give a lower one"
            ));
        }
        match &self.router {
            Router::None if count > 1 => Err(format!(
                "router = \"none\": nothing would share requests out over {count} servers; take one server, or a \
                 router (\"builtin\" or \"sglang-router\")"
            )),
            Router::SglangRouter { policy, .. } if policy == NOT_OF_ROUTER => Err(format!(
                "routing_policy = \"{policy}\": sglang-router has {} and others; this one needs router = \"builtin\"",
                ROUTER_POLICIES.join(", ")
            )),
            Router::External { .. } if self.hops => Err(
                "hops: an external router knows its servers already, so none can be put before them; begin them \
                 yourself (docs/DEPLOY.md) or take a router that is started here"
                    .to_owned(),
            ),
            Router::External { url } => check_url("router_url", url),
            _ => Ok(()),
        }
    }
}

fn check_url(key: &str, url: &str) -> Result<(), String> {
    let parsed = Target::parse(url);
    parsed
        .map(drop)
        .map_err(|wrong| format!("{key}: {}: {wrong}", shown(key, url)))
}

fn is_loopback(url: &str) -> bool {
    Target::parse(url).is_ok_and(|target| {
        let host = target.host();
        host == "localhost" || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_looked_for_where_servers_may_use_ours() {
        let external = |url: &str| Engine::External {
            urls: vec!["http://10.0.0.1:30000".to_owned(), url.to_owned()],
        };
        for (url, is_here) in [
            ("http://127.0.0.1:30000", true),
            ("http://localhost:30000", true),
            ("http://[::1]:30000", true),
            ("http://gpu-server:30000", false),
        ] {
            assert_eq!(external(url).has_gpus_here(), is_here, "{url}");
        }
        assert!(!Engine::Sim { flags: Vec::new() }.has_gpus_here());
    }
}
