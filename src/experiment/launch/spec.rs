//! What is to be started, and whether it can be. Pure.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::ensure;
use clap::ValueEnum;

use super::ask::Access;
use super::command::CommandLine;
use crate::request::attempt::ServerRole;
use crate::traffic::client::{Target, UpstreamKind};

/// What serves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum EngineName {
    /// `queuescope sim`.
    #[default]
    Sim,
    /// `python -m sglang.launch_server`.
    Sglang,
    /// What runs already.
    External,
}

/// A server.
#[derive(Clone, Debug, PartialEq)]
pub enum ServerSpec {
    /// It is started, and told where to listen.
    Started(CommandLine),
    /// It runs already, at this URL: nothing of it is started or stopped.
    Running(String),
}

/// What shares requests out over the servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Router {
    /// Nothing: there is one server.
    #[default]
    None,
    /// Our own proxy.
    Builtin,
    /// sglang-router (or smg), as a process.
    SglangRouter,
    /// One that runs already, and knows its servers.
    External,
}

/// What is to be started.
#[derive(Clone, Debug, Default)]
pub struct DeploymentSpec {
    /// What serves.
    pub engine: EngineName,
    /// The servers. There may be none behind [`Router::External`].
    pub servers: Vec<ServerSpec>,
    /// So many of the servers, the first, prefill what the others decode; 0: each does both.
    pub prefill: usize,
    /// Servers that are started tell the proxy of each request by traces.
    pub traces: bool,
    /// Server i (from 0) listens on `base_port + i`; `None`: on a free port.
    pub base_port: Option<u16>,
    /// What routes.
    pub router: Router,
    /// By which policy: the proxy's key `policy`, or the router's flag.
    pub policy: String,
    /// The router's program; `None`: see [`super::router::find`].
    pub router_program: Option<PathBuf>,
    /// Further flags of a router that is started.
    pub router_flags: Vec<String>,
    /// The URL of a router that runs already.
    pub router_url: Option<String>,
    /// Whether our proxy stands in front of all; it does anyway with hops or a built-in router.
    pub front: bool,
    /// Whether a hop of our proxy stands before each server; only hops show when sglang-router sends on, and to whom.
    pub hops: bool,
    /// Further keys of the proxy's config, which win over ours; those of its other sections have points in their names.
    pub proxy: BTreeMap<String, toml::Value>,
    /// How servers are asked.
    pub access: Access,
    /// The program `queuescope`.
    pub program: PathBuf,
    /// The run's folder, which is there.
    pub dir: PathBuf,
    /// How long each of them may take until it is ready; `None`: what is usual.
    pub start_timeout: Option<Duration>,
}

/// Policies of sglang-router 0.3.2 that need nothing else; of ours it has not `shortest_queue`.
pub const ROUTER_POLICIES: [&str; 4] = ["cache_aware", "round_robin", "random", "power_of_two"];
const NOT_OF_ROUTER: &str = "shortest_queue";

impl DeploymentSpec {
    /// How long each of them may take until it is ready: SGLang loads a model and may compile.
    pub fn start_timeout(&self) -> Duration {
        let usual = match self.engine {
            EngineName::Sim | EngineName::External => 30,
            EngineName::Sglang => 600,
        };
        self.start_timeout.unwrap_or(Duration::from_secs(usual))
    }

    /// The router and its policy: `builtin round_robin`.
    pub fn router_name(&self) -> Option<String> {
        match self.router {
            Router::None => None,
            Router::Builtin => Some(format!("builtin {}", self.policy)),
            Router::SglangRouter => Some(format!("sglang-router {}", self.policy)),
            Router::External => Some(format!("external {}", self.router_url.as_deref()?)),
        }
    }

    /// The URLs of servers that run already.
    pub fn running(&self) -> impl Iterator<Item = &str> {
        self.servers.iter().filter_map(|server| match server {
            ServerSpec::Running(url) => Some(url.as_str()),
            ServerSpec::Started(_) => None,
        })
    }

    /// What the server of this number, from 0, does of a request, where another does the rest.
    pub fn role(&self, number: usize) -> Option<ServerRole> {
        (self.prefill > 0).then_some(match number < self.prefill {
            true => ServerRole::Prefill,
            false => ServerRole::Decode,
        })
    }

    /// What the server of this number, from 0, is called.
    pub fn server_name(&self, number: usize) -> String {
        match self.role(number) {
            None => format!("server-{}", number + 1),
            Some(ServerRole::Prefill) => format!("prefill-{}", number + 1),
            Some(ServerRole::Decode) => format!("decode-{}", number + 1 - self.prefill),
        }
    }

    /// Whether servers use GPUs of this machine, as far as that shows.
    pub fn has_gpus_here(&self) -> bool {
        self.engine == EngineName::Sglang || self.running().any(is_loopback)
    }

    /// Whether our proxy is part of it.
    pub fn has_proxy(&self) -> bool {
        self.front || self.hops || self.router == Router::Builtin
    }

    /// What requests are sent to, behind our front if there is one.
    pub fn upstream_kind(&self) -> UpstreamKind {
        match self.router {
            Router::None | Router::Builtin if !self.hops => UpstreamKind::Server,
            _ => UpstreamKind::Router,
        }
    }

    /// Whether it fits together.
    ///
    /// # Errors
    /// What does not, and what would.
    pub fn check(&self) -> anyhow::Result<()> {
        let (count, router) = (self.servers.len(), self.router);
        let is_external = router == Router::External;
        ensure!(
            self.prefill == 0 || router == Router::SglangRouter,
            "num_prefill: only a router that is started here and knows of pairs sends to them; give router = \"sglang-router\""
        );
        let is_started = self.running().next().is_none();
        let port = self.base_port.filter(|_| is_started).unwrap_or_default();
        ensure!(
            usize::from(u16::MAX - port) + 1 >= count,
            "base_port = {port}: {count} servers need ports up to 65535; give a lower one"
        );
        ensure!(
            count <= 1 || router != Router::None,
            "router = \"none\": nothing would share requests out over {count} servers; take one server, or a router \
             (\"builtin\" or \"sglang-router\")"
        );
        ensure!(
            !(is_external && self.hops),
            "hops: an external router knows its servers already, so none can be put before them; begin them yourself \
             (docs/DEPLOY.md) or take a router that is started here"
        );
        ensure!(
            router != Router::SglangRouter || self.policy != NOT_OF_ROUTER,
            "routing_policy = \"{NOT_OF_ROUTER}\": sglang-router has {} and others; this one needs router = \"builtin\"",
            ROUTER_POLICIES.join(", ")
        );
        Ok(())
    }
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
        for (engine, url, expected) in [
            (EngineName::External, "http://127.0.0.1:30000", true),
            (EngineName::External, "http://localhost:30000", true),
            (EngineName::External, "http://127.0.0.2:30000", true),
            (EngineName::External, "http://[::1]:30000", true),
            (EngineName::External, "http://gpu-server:30000", false),
            (EngineName::Sglang, "http://10.0.0.1:30000", true),
            (EngineName::Sim, "http://10.0.0.1:30000", false),
        ] {
            let servers = ["http://10.0.0.1:30000", url].map(str::to_owned);
            let spec = DeploymentSpec {
                engine,
                servers: servers.map(ServerSpec::Running).to_vec(),
                ..DeploymentSpec::default()
            };
            assert_eq!(spec.has_gpus_here(), expected, "{engine:?} {url}");
        }
    }
}
