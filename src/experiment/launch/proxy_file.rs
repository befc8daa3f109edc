//! The config of a run's proxy.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;

use anyhow::Context;
use http::HeaderValue;
use toml::{Table, Value};

use crate::config;
use crate::traffic::client::bearer;

use super::wanted::{Router, Wanted};

/// What a run's proxy is to be.
pub(super) struct ProxyFile<'a> {
    pub(super) front: SocketAddr,
    pub(super) admin: SocketAddr,
    /// What the front sends to.
    pub(super) upstream: Vec<String>,
    /// Whether these are the servers themselves.
    pub(super) is_server: bool,
    pub(super) policy: Option<&'a str>,
    pub(super) records: &'a Path,
    pub(super) fault_injection: bool,
    /// Name, where it listens, and the server.
    pub(super) hops: Vec<(String, SocketAddr, String)>,
    /// Further keys.
    pub(super) more: &'a Table,
}

/// Label sets of metrics for each worker: docs say 12 a worker.
const LABEL_SETS: usize = 16;
/// The proxy's own default.
const USUAL_LABEL_SETS: usize = 64;

/// What the experiment itself has to know of its proxy.
const OWN: [&str; 4] = ["listen", "admin", "upstream", "records"];
/// The other sections of its config, which a plan has as tables in `[proxy]`: its own key `engine` takes their names.
const SECTIONS: [&str; 2] = ["engine", "telemetry"];
/// An address that goes with any other.
const ANY: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Whether the proxy's own reader takes the further keys.
///
/// # Errors
/// The key, what is wrong with it, and what would be right.
pub fn check(wanted: &Wanted) -> Result<(), String> {
    if wanted.proxy.is_empty() {
        return Ok(());
    }
    if let Some(key) = OWN.iter().find(|key| wanted.proxy.contains_key(**key)) {
        return Err(format!("proxy.{key}: the experiment sets it; leave it out"));
    }
    if !wanted.has_proxy() {
        let right = "means nothing: no proxy is started; take front = true, hops = true or router = \"builtin\"";
        return Err(format!("[proxy] {right}"));
    }
    let place = |number: usize| format!("http://server-{number}.invalid:1");
    let hops = if wanted.hops { wanted.count() } else { 0 };
    let file = ProxyFile {
        front: ANY,
        admin: ANY,
        upstream: vec![place(1)],
        is_server: wanted.sends_to_servers(),
        policy: match &wanted.router {
            Router::Builtin { policy } => Some(policy),
            _ => None,
        },
        records: Path::new("proxy.csv"),
        fault_injection: wanted.fault_injection,
        hops: (1..=hops)
            .map(|number| (format!("server-{number}"), ANY, place(number)))
            .collect(),
        more: &wanted.proxy,
    };
    let text = file.text().map_err(|error| format!("[proxy] {error}"))?;
    match config::wrong(&text).first() {
        Some(wrong) => Err(format!("[proxy] {wrong}")),
        None => Ok(()),
    }
}

/// What the admin listener of a proxy that takes faults asks for, as `Authorization`.
///
/// # Errors
/// The key, and why there is none.
pub(super) fn authorization(wanted: &Wanted) -> anyhow::Result<Option<HeaderValue>> {
    let text = |key: &str| wanted.proxy.get(key).and_then(Value::as_str);
    let token = match (text("admin_token"), text("admin_token_file")) {
        _ if !wanted.fault_injection => return Ok(None),
        (Some(token), _) => token.to_owned(),
        (None, Some(file)) => std::fs::read_to_string(file)
            .with_context(|| format!("proxy.admin_token_file = \"{file}\""))?,
        (None, None) => return Ok(None),
    };
    let wrong = |wrong| anyhow::anyhow!("proxy.admin_token {wrong}");
    bearer(token.trim()).map(Some).map_err(wrong)
}

impl ProxyFile<'_> {
    /// As `queuescope proxy --config` reads it.
    ///
    /// # Errors
    /// A value that TOML does not have.
    pub(super) fn text(&self) -> Result<String, toml::ser::Error> {
        let label_sets = USUAL_LABEL_SETS.max(LABEL_SETS * self.hops.len());
        let mut proxy = Table::new();
        let mut set = |key: &str, value: Value| proxy.insert(key.to_owned(), value);
        set("listen", self.front.to_string().into());
        set("admin", self.admin.to_string().into());
        set("upstream", self.upstream.clone().into());
        set(
            "upstream_kind",
            if self.is_server { "server" } else { "router" }.into(),
        );
        set("records", self.records.display().to_string().into());
        set("fault_injection", self.fault_injection.into());
        set("metrics_label_sets", (label_sets as i64).into());
        // It is stopped when the load is over: what is open by then is nobody's.
        set("drain_timeout_s", 5.0.into());
        if let Some(policy) = self.policy {
            set("policy", policy.into());
        }
        // What stands beside [proxy] in its file.
        let mut more = self.more.clone();
        let beside = SECTIONS.map(|name| Some((name.to_owned(), more.remove(name)?)));
        proxy.extend(more);
        let hop = |(name, listen, upstream): &(String, SocketAddr, String)| {
            let keys = [
                ("name", name.clone()),
                ("listen", listen.to_string()),
                ("upstream", upstream.clone()),
            ];
            Value::from(
                keys.map(|(key, value)| (key.to_owned(), value.into()))
                    .into_iter()
                    .collect::<Table>(),
            )
        };
        let mut file: Table = beside.into_iter().flatten().collect();
        file.insert("proxy".to_owned(), proxy.into());
        if !self.hops.is_empty() {
            file.insert(
                "worker".to_owned(),
                Value::Array(self.hops.iter().map(hop).collect()),
            );
        }
        toml::to_string(&file)
    }
}
