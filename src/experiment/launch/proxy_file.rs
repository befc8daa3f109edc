//! The config of a run's proxy.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use anyhow::Context;
use http::HeaderValue;
use serde_json::json;
use toml::{Table, Value};

use crate::config;
use crate::traffic::client::bearer;

use super::spec::{DeploymentSpec, Router};

/// Where a run's proxy listens, and what lies behind it.
pub(super) struct ProxyFile<'a> {
    pub(super) spec: &'a DeploymentSpec,
    pub(super) front: SocketAddr,
    pub(super) admin: SocketAddr,
    /// What the front sends to.
    pub(super) upstream: Vec<String>,
    /// Name, where it listens, and the server.
    pub(super) hops: Vec<(String, SocketAddr, String)>,
}

/// The proxy's rows in the run's folder.
const RECORDS: &str = "proxy.csv";
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

/// Whether the proxy's own reader takes the further keys, and its policy.
///
/// # Errors
/// The key, what is wrong with it, and what would be right.
pub fn check(spec: &DeploymentSpec) -> Result<(), String> {
    if let Some(key) = OWN.iter().find(|key| spec.proxy.contains_key(**key)) {
        return Err(format!("proxy.{key}: the experiment sets it; leave it out"));
    }
    if !spec.has_proxy() {
        let right = "means nothing: no proxy is started; take front = true, hops = true or router = \"builtin\"";
        return if spec.proxy.is_empty() {
            Ok(())
        } else {
            Err(format!("[proxy] {right}"))
        };
    }
    let place = |number: usize| format!("http://server-{number}.invalid:1");
    let hops = if spec.hops { spec.servers.len() } else { 0 };
    let hop = |number| (format!("server-{number}"), ANY, place(number));
    let file = ProxyFile {
        spec,
        front: ANY,
        admin: ANY,
        upstream: vec![place(1)],
        hops: (1..=hops).map(hop).collect(),
    };
    let text = file.text().map_err(|error| format!("[proxy] {error}"))?;
    match config::wrong(&text).first() {
        // That is the plan's own key.
        Some(wrong) if wrong.to_string().starts_with("policy") => Err(format!("routing_{wrong}")),
        Some(wrong) => Err(format!("[proxy] {wrong}")),
        None => Ok(()),
    }
}

/// What the admin listener of a proxy that takes faults asks for, as `Authorization`.
///
/// # Errors
/// The key, and why there is none.
pub(super) fn authorization(spec: &DeploymentSpec) -> anyhow::Result<Option<HeaderValue>> {
    let text = |key: &str| spec.proxy.get(key).and_then(Value::as_str);
    let token = match (text("admin_token"), text("admin_token_file")) {
        _ if !spec.fault_injection => return Ok(None),
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
        let spec = self.spec;
        let is_server = spec.sends_to_servers();
        let mut proxy = Table::try_from(json!({
            "listen": self.front,
            "admin": self.admin,
            "upstream": self.upstream,
            "upstream_kind": if is_server { "server" } else { "router" },
            "records": spec.dir.join(RECORDS).display().to_string(),
            "fault_injection": spec.fault_injection,
            "metrics_label_sets": USUAL_LABEL_SETS.max(LABEL_SETS * self.hops.len()),
            // It is stopped when the load is over: what is open by then is nobody's.
            "drain_timeout_s": 5.0,
        }))?;
        if let Router::Builtin(policy) = &spec.router {
            proxy.insert("policy".to_owned(), policy.as_str().into());
        }
        // What stands beside [proxy] in its file.
        let mut more = spec.proxy.clone();
        let beside = SECTIONS.map(|name| Some((name.to_owned(), more.remove(name)?)));
        proxy.extend(more);
        let mut file: Table = beside.into_iter().flatten().collect();
        file.insert("proxy".to_owned(), proxy.into());
        let hops = self.hops.iter().map(|(name, listen, upstream)| {
            Value::try_from(json!({ "name": name, "listen": listen, "upstream": upstream }))
        });
        let hops: Vec<Value> = hops.collect::<Result<_, _>>()?;
        if !hops.is_empty() {
            file.insert("worker".to_owned(), hops.into());
        }
        toml::to_string(&file)
    }
}
