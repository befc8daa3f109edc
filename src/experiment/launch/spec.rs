//! The specification of a deployment, and its check. Does no IO.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;

use super::access::Access;
use super::command::CommandLine;
use crate::request::ServerRole;
use crate::traffic;
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
    /// It is started, with an address to listen on.
    Started(CommandLine),
    /// It runs already, at this URL, and is not stopped.
    Running(String),
}

/// What distributes requests over the servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Router {
    /// None: there is one server.
    #[default]
    None,
    /// Our own proxy.
    Builtin,
    /// sglang-router (or smg), as a process.
    SglangRouter,
    /// One that runs already, and knows its servers.
    External,
}

/// The specification of a deployment.
#[derive(Clone, Debug, Default)]
pub struct DeploymentSpec {
    /// What serves.
    pub engine: EngineName,
    /// The servers. There may be none behind [`Router::External`].
    pub servers: Vec<ServerSpec>,
    /// How many of the servers, the first ones, only prefill what the others decode; 0 if each does both.
    pub prefill: usize,
    /// Whether started servers send traces of each request to the proxy.
    pub traces: bool,
    /// The port of the first server; the others follow. `None` for free ports.
    pub base_port: Option<u16>,
    /// The router.
    pub router: Router,
    /// Its policy: the proxy's key `policy`, or the router's flag.
    pub policy: String,
    /// The router's program; if `None`, see [`super::find_router`].
    pub router_program: Option<PathBuf>,
    /// Further flags of a started router.
    pub router_flags: Vec<String>,
    /// The URL of a router that runs already.
    pub router_url: Option<String>,
    /// Whether our proxy is in front of everything. It is anyway with hops or a built-in router.
    pub front: bool,
    /// Whether there is a hop of our proxy before each server. Only hops show when sglang-router sends a request on, and to which server.
    pub hops: bool,
    /// Further keys of the proxy's config, which override ours. Keys of other sections than `[proxy]` begin with the section's name.
    pub proxy: BTreeMap<String, toml::Value>,
    /// How requests to servers are sent.
    pub access: Access,
    /// The program of queuescope itself.
    pub program: PathBuf,
    /// The run's folder, which exists.
    pub dir: PathBuf,
    /// How long each process may take until it is ready.
    pub start_timeout: Duration,
}

impl DeploymentSpec {
    /// The router and its policy: `builtin round_robin`.
    pub fn router_name(&self) -> Option<String> {
        let detail = match self.router {
            Router::None => return None,
            Router::External => self.router_url.as_ref()?,
            _ => &self.policy,
        };
        Some(format!("{} {detail}", traffic::value_name(self.router)))
    }

    /// The URLs of servers that run already.
    pub fn running(&self) -> impl Iterator<Item = &str> {
        self.servers.iter().filter_map(|server| match server {
            ServerSpec::Running(url) => Some(url.as_str()),
            ServerSpec::Started(_) => None,
        })
    }

    /// The role of the server of this number, from 0, if servers work in pairs.
    pub fn role(&self, number: usize) -> Option<ServerRole> {
        (self.prefill > 0).then_some(match number < self.prefill {
            true => ServerRole::Prefill,
            false => ServerRole::Decode,
        })
    }

    /// The name of the server of this number, from 0.
    pub fn server_name(&self, number: usize) -> String {
        match self.role(number) {
            None => format!("server-{}", number + 1),
            Some(ServerRole::Prefill) => format!("prefill-{}", number + 1),
            Some(ServerRole::Decode) => format!("decode-{}", number + 1 - self.prefill),
        }
    }

    /// Whether servers may use GPUs of this machine.
    pub fn has_gpus_here(&self) -> bool {
        self.engine == EngineName::Sglang || self.running().any(is_loopback)
    }

    /// Whether our proxy is started.
    pub fn has_proxy(&self) -> bool {
        self.front || self.hops || self.router == Router::Builtin
    }

    /// What requests are sent to, not counting our front.
    pub fn upstream_kind(&self) -> UpstreamKind {
        match self.router {
            Router::None | Router::Builtin if !self.hops => UpstreamKind::Server,
            _ => UpstreamKind::Router,
        }
    }
}

fn is_loopback(url: &str) -> bool {
    Target::parse(url).is_ok_and(|target| {
        let host = &*target.address.host;
        host == "localhost" || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_on_this_machine_may_use_its_gpus() {
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
