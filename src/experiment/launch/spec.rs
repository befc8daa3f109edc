//! The specification of a deployment: servers with their command lines, router and proxy, and the proxy's config. Does no IO.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{anyhow, bail, ensure};
use clap::ValueEnum;
use serde_json::json;
use toml::{Table, Value};

use super::access::Access;
use crate::report::files::PROXY_ROWS;
use crate::request::ServerRole;
use crate::traffic::client::{Target, UpstreamKind};
use crate::{config, secret, traffic};

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

/// The address on which a hop listens, and the URL of its server.
pub(super) type Hop = (SocketAddr, String);

/// The most that the proxy takes, as nobody else sends to it. Workers beyond them are shown as `other`.
const MAX_LABEL_SETS: usize = 4096;
/// Keys that the experiment sets itself.
const OWN_KEYS: [&str; 4] = ["listen", "admin", "upstream", "records"];
/// The config's other sections than `[proxy]`. A plan has them as tables in its own `[proxy]`, as its key `engine` means something else.
const SECTIONS: [&str; 2] = ["engine", "telemetry"];
/// A valid address that clashes with no other.
const ANY: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

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

    /// Checks the plan's keys of the proxy and the routing policy, by the proxy's own reader.
    ///
    /// # Errors
    /// Names the key, the problem and what would be valid.
    pub fn check_proxy(&self) -> anyhow::Result<()> {
        if let Some(key) = OWN_KEYS.iter().find(|key| self.proxy.contains_key(**key)) {
            bail!("proxy.{key}: the experiment sets it; leave it out");
        }
        ensure!(
            self.has_proxy() || self.proxy.is_empty(),
            "[proxy] has no effect: no proxy is started; take front = true, hops = true or router = \"builtin\""
        );
        if !self.has_proxy() {
            return Ok(());
        }
        let upstream = "http://server.invalid:1".to_owned();
        let hops = if self.hops { self.servers.len() } else { 0 };
        let hops = vec![(ANY, upstream.clone()); hops];
        let text = self.proxy_config([ANY; 2], None, &[upstream], &hops);
        let text = text.map_err(|error| anyhow!("[proxy] {error}"))?;
        match config::problems(&text).first() {
            // The proxy's `policy` is the plan's `routing_policy`.
            Some(problem) if problem.starts_with("policy") => bail!("routing_{problem}"),
            Some(problem) => bail!("[proxy] {problem}"),
            None => Ok(()),
        }
    }

    /// Returns the config file of a proxy whose front, admin listener and listener for traces are at these addresses.
    ///
    /// # Errors
    /// TOML cannot represent a key or value.
    pub(super) fn proxy_config(
        &self,
        [front, admin]: [SocketAddr; 2],
        traces: Option<SocketAddr>,
        upstream: &[String],
        hops: &[Hop],
    ) -> anyhow::Result<String> {
        let mut proxy = Table::try_from(json!({
            "listen": front,
            "admin": admin,
            "upstream": upstream,
            "upstream_kind": self.upstream_kind(),
            "records": self.dir.join(PROXY_ROWS).display().to_string(),
            "metrics_label_sets": MAX_LABEL_SETS,
            // Short, as the load is over when the proxy is stopped.
            "drain_timeout_s": 5.0,
        }))?;
        if self.router == Router::Builtin {
            proxy.insert("policy".to_owned(), self.policy.as_str().into());
        }
        let mut file = Table::new();
        for (key, value) in &self.proxy {
            let first = key.split('.').next();
            let is_section = SECTIONS.iter().any(|name| first == Some(name));
            let table = if is_section { &mut file } else { &mut proxy };
            insert(table, key, value.clone());
        }
        if let Some(addr) = traces {
            insert(&mut file, "engine.traces.listen", addr.to_string().into());
        }
        file.insert("proxy".to_owned(), proxy.into());
        let worker = |(number, (listen, upstream)): (usize, &Hop)| {
            let name = self.server_name(number);
            let mut worker = json!({ "name": name, "listen": listen, "upstream": upstream });
            if let Some(role) = self.role(number) {
                worker["role"] = json!(role);
            }
            worker
        };
        if !hops.is_empty() {
            let workers: Vec<_> = hops.iter().enumerate().map(worker).collect();
            file.insert("worker".to_owned(), Value::try_from(workers)?);
        }
        Ok(toml::to_string(&file)?)
    }
}

fn is_loopback(url: &str) -> bool {
    Target::parse(url).is_ok_and(|target| {
        let host = &*target.address.host;
        host == "localhost" || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
    })
}

/// Inserts a value; points in its key stand for nested tables.
fn insert(table: &mut Table, key: &str, value: Value) {
    let Some((name, rest)) = key.split_once('.') else {
        table.insert(key.to_owned(), value);
        return;
    };
    let inner = table.entry(name).or_insert_with(|| Table::new().into());
    // Otherwise the proxy's reader refuses the value in its place.
    if let Value::Table(inner) = inner {
        insert(inner, rest, value);
    }
}

/// A program with its arguments and additional environment variables. Its `Display` is quoted for a shell, with secrets masked.
#[derive(Clone, Debug, PartialEq)]
pub struct CommandLine {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
    /// Names and values of environment variables.
    pub env: Vec<(String, String)>,
    /// How many arguments, at the beginning, select a subcommand or module of the program.
    leading: usize,
}

impl fmt::Display for CommandLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in &self.env {
            write!(f, "{name}={} ", quoted(&secret::masked(name, value)))?;
        }
        write!(f, "{}", quoted(&self.program.display().to_string()))?;
        let mut args = self.masked_args();
        args.try_for_each(|(arg, _)| write!(f, " {}", quoted(&arg)))
    }
}

impl CommandLine {
    /// Makes a command line. All arguments that are added later stand behind `args`.
    pub fn new(program: impl Into<PathBuf>, args: &[&str]) -> CommandLine {
        CommandLine {
            program: program.into(),
            args: args.iter().map(ToString::to_string).collect(),
            env: Vec::new(),
            leading: args.len(),
        }
    }

    /// Adds arguments.
    pub fn with<T: ToString>(mut self, args: impl IntoIterator<Item = T>) -> CommandLine {
        self.args
            .extend(args.into_iter().map(|arg| arg.to_string()));
        self
    }

    /// Adds the address to listen on. It stands before other flags, so that they can override it.
    pub(super) fn listening_on(mut self, addr: SocketAddr) -> CommandLine {
        let (host, port) = (addr.ip().to_string(), addr.port().to_string());
        let flags = ["--host", &host, "--port", &port].map(str::to_owned);
        self.args.splice(self.leading..self.leading, flags);
        self
    }

    /// Returns each argument with secrets masked, and the secret if there is one.
    fn masked_args(&self) -> impl Iterator<Item = (String, Option<&str>)> {
        let mut flag = "";
        self.args.iter().map(move |arg| {
            let (before, name, value) = match arg.split_once('=') {
                _ if !arg.starts_with('-') => ("", flag, arg.as_str()),
                Some((name, value)) => (arg.strip_suffix(value).unwrap_or_default(), name, value),
                None => {
                    flag = arg;
                    (flag, "", "")
                }
            };
            let shown = secret::masked(name, value);
            let secret = (shown != value).then_some(value);
            (format!("{before}{shown}"), secret)
        })
    }

    /// The secrets in the command line, without empty ones, which would match everywhere in a log.
    pub(super) fn secrets(&self) -> Vec<&str> {
        let env = self.env.iter();
        let env = env.filter(|(name, value)| secret::masked(name, value) != *value);
        let all = self.masked_args().filter_map(|(_, secret)| secret);
        let all = all.chain(env.map(|(_, value)| value.as_str()));
        all.filter(|secret| !secret.is_empty()).collect()
    }
}

/// Quotes a word for a shell.
fn quoted(word: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_@%+=:,./-".contains(&byte);
    match !word.is_empty() && word.bytes().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests;
