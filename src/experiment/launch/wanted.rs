//! What is to be started, and whether it can be. Pure.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::secret::shown;
use crate::upstream::{Address, Policy};

use super::sglang::Sglang;

/// The servers.
#[derive(Clone, Debug, PartialEq)]
pub enum Engine {
    /// `queuescope sim`, with these flags besides host and port.
    Sim {
        /// As its command takes them.
        flags: Vec<String>,
    },
    /// `python -m sglang.launch_server`.
    Sglang {
        /// The Python that has SGLang.
        python: PathBuf,
        /// What it is told.
        settings: Sglang,
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
pub struct Wanted {
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
    /// Further keys of the proxy's config, which win over ours.
    pub proxy: toml::Table,
    /// The program `queuescope`.
    pub program: PathBuf,
    /// The run's folder, which is there.
    pub dir: PathBuf,
    /// How long each of them may take until it is ready; see [`Engine::start_timeout`].
    pub start_timeout: Duration,
}

/// Policies of sglang-router 0.3.2.
const ROUTER_POLICIES: [&str; 5] = [
    "random",
    "round_robin",
    "cache_aware",
    "power_of_two",
    "manual",
];
/// What smg 1.13 has besides.
const LATER_POLICIES: [&str; 4] = [
    "passthrough",
    "least_load",
    "consistent_hashing",
    "prefix_hash",
];

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
        let (flags, is_plain) = match self {
            Engine::Sim { flags } => (flags, true),
            Engine::Sglang { settings, .. } => (&mut settings.more, false),
            Engine::External { .. } => return,
        };
        let folder = folder.display().to_string();
        let more = [
            "--export-metrics-to-file",
            "--export-metrics-to-file-dir",
            &folder,
        ];
        let is_own = flags.iter().any(|flag| flag.starts_with("--log-requests"));
        let plain: &[&str] = match is_own || is_plain {
            true => &[],
            false => &["--log-requests", "--log-requests-level", "0"],
        };
        flags.extend(more.iter().chain(plain).map(|flag| (*flag).to_owned()));
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

impl Wanted {
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
            for url in urls {
                Address::parse(url)
                    .map_err(|wrong| format!("servers: {}: {wrong}", shown("servers", url)))?;
            }
        }
        let count = self.count();
        if count == 0 && !matches!(self.router, Router::External { .. }) {
            return Err("servers: there are none; give at least one".to_owned());
        }
        if self.hops && count == 0 {
            return Err("hops: they stand before servers, and none are given".to_owned());
        }
        if let (Some(port), false) = (
            self.base_port,
            matches!(self.engine, Engine::External { .. }),
        ) && usize::from(u16::MAX - port) + 1 < count
        {
            return Err(format!(
                "base_port = {port}: {count} servers need ports up to 65535; give a lower one"
            ));
        }
        self.check_router(count)
    }

    fn check_router(&self, count: usize) -> Result<(), String> {
        match &self.router {
            Router::None if count > 1 => Err(format!(
                "router = \"none\": nothing would share requests out over {count} servers; take one server, or a \
                 router (\"builtin\" or \"sglang-router\")"
            )),
            Router::Builtin { policy } => {
                let parsed = toml::Value::from(policy.as_str()).try_into::<Policy>();
                parsed.map_err(|error| format!("routing_policy: {}", error.message())).map(drop)
            }
            Router::SglangRouter { policy, .. } => {
                let mut known = ROUTER_POLICIES.iter().chain(&LATER_POLICIES);
                if known.any(|known| known == policy) {
                    return Ok(());
                }
                Err(format!(
                    "routing_policy = \"{policy}\": sglang-router has {}; other policies need router = \"builtin\"",
                    ROUTER_POLICIES.join(", ")
                ))
            }
            Router::External { .. } if self.hops => Err(
                "hops: an external router knows its servers already, so none can be put before them; begin them \
                 yourself (docs/DEPLOY.md) or take a router that is started here"
                    .to_owned(),
            ),
            Router::External { url } => {
                let parsed = Address::parse(url);
                parsed.map_err(|wrong| format!("router_url: {}: {wrong}", shown("router_url", url))).map(drop)
            }
            Router::None => Ok(()),
        }
    }
}

fn is_loopback(url: &str) -> bool {
    Address::parse(url).is_ok_and(|address| {
        let host = address.host();
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
        for here in [
            "http://127.0.0.1:30000",
            "http://localhost:30000",
            "http://[::1]:30000",
        ] {
            assert!(external(here).has_gpus_here(), "{here}");
        }
        assert!(!external("http://gpu-server:30000").has_gpus_here());
        assert!(!Engine::Sim { flags: Vec::new() }.has_gpus_here());
    }
}
