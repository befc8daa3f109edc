//! The config of a run's proxy.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use anyhow::{anyhow, bail, ensure};
use serde_json::json;
use toml::{Table, Value};

use crate::config;
use crate::report::files::PROXY_ROWS;

use super::spec::{DeploymentSpec, Router};

/// Where a hop listens, and the URL of its server.
pub(super) type Hop = (SocketAddr, String);

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
pub fn check(spec: &DeploymentSpec) -> anyhow::Result<()> {
    if let Some(key) = OWN.iter().find(|key| spec.proxy.contains_key(**key)) {
        bail!("proxy.{key}: the experiment sets it; leave it out");
    }
    if !spec.has_proxy() {
        ensure!(
            spec.proxy.is_empty(),
            "[proxy] means nothing: no proxy is started; take front = true, hops = true or router = \"builtin\""
        );
        return Ok(());
    }
    let upstream = "http://server.invalid:1".to_owned();
    let hops = if spec.hops { spec.servers.len() } else { 0 };
    let hops = vec![(ANY, upstream.clone()); hops];
    let text = text(spec, ANY, ANY, std::slice::from_ref(&upstream), &hops);
    let text = text.map_err(|error| anyhow!("[proxy] {error}"))?;
    match config::wrong(&text).first() {
        // That is the plan's own key.
        Some(wrong) if wrong.starts_with("policy") => bail!("routing_{wrong}"),
        Some(wrong) => bail!("[proxy] {wrong}"),
        None => Ok(()),
    }
}

/// The config of a proxy with its front and its admin listener there, as `queuescope proxy --config` reads it.
///
/// # Errors
/// A key or value that TOML does not have.
pub(super) fn text(
    spec: &DeploymentSpec,
    front: SocketAddr,
    admin: SocketAddr,
    upstream: &[String],
    hops: &[Hop],
) -> anyhow::Result<String> {
    let mut proxy = Table::try_from(json!({
        "listen": front,
        "admin": admin,
        "upstream": upstream,
        "upstream_kind": spec.upstream_kind(),
        "records": spec.dir.join(PROXY_ROWS).display().to_string(),
        "metrics_label_sets": USUAL_LABEL_SETS.max(LABEL_SETS * hops.len()),
        // It is stopped when the load is over: what is open by then is nobody's.
        "drain_timeout_s": 5.0,
    }))?;
    if spec.router == Router::Builtin {
        proxy.insert("policy".to_owned(), spec.policy.as_str().into());
    }
    let mut file = Table::new();
    for (key, value) in &spec.proxy {
        let first = key.split('.').next();
        let is_beside = SECTIONS.iter().any(|name| first == Some(name));
        let table = if is_beside { &mut file } else { &mut proxy };
        put(table, key, value.clone());
    }
    file.insert("proxy".to_owned(), proxy.into());
    let worker = |(number, (listen, upstream)): (usize, &Hop)| {
        let name = spec.server_name(number);
        let mut worker = json!({ "name": name, "listen": listen, "upstream": upstream });
        if let Some(role) = spec.role(number) {
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

/// Puts a value in its place: points in its key make tables of them.
fn put(table: &mut Table, key: &str, value: Value) {
    let Some((name, rest)) = key.split_once('.') else {
        table.insert(key.to_owned(), value);
        return;
    };
    let inner = table.entry(name).or_insert_with(|| Table::new().into());
    // What is none is refused by who reads it.
    if let Value::Table(inner) = inner {
        put(inner, rest, value);
    }
}
