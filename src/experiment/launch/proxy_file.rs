//! Writes the config of a run's proxy.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use anyhow::{anyhow, bail, ensure};
use serde_json::json;
use toml::{Table, Value};

use crate::config;
use crate::report::files::PROXY_ROWS;

use super::spec::{DeploymentSpec, Router};

/// The address on which a hop listens, and the URL of its server.
pub(super) type Hop = (SocketAddr, String);

/// Label sets of metrics per worker, with a margin: docs say 12.
const LABEL_SETS_PER_WORKER: usize = 16;
/// The proxy's default.
const DEFAULT_LABEL_SETS: usize = 64;

/// Keys that the experiment sets itself.
const OWN_KEYS: [&str; 4] = ["listen", "admin", "upstream", "records"];
/// The config's other sections than `[proxy]`. A plan has them as tables in its own `[proxy]`, as its key `engine` means something else.
const SECTIONS: [&str; 2] = ["engine", "telemetry"];
/// A valid address that clashes with no other.
const ANY: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Checks the plan's keys of the proxy and the routing policy, by the proxy's own reader.
///
/// # Errors
/// Names the key, the problem and what would be valid.
pub fn check(spec: &DeploymentSpec) -> anyhow::Result<()> {
    if let Some(key) = OWN_KEYS.iter().find(|key| spec.proxy.contains_key(**key)) {
        bail!("proxy.{key}: the experiment sets it; leave it out");
    }
    if !spec.has_proxy() {
        ensure!(
            spec.proxy.is_empty(),
            "[proxy] has no effect: no proxy is started; take front = true, hops = true or router = \"builtin\""
        );
        return Ok(());
    }
    let upstream = "http://server.invalid:1".to_owned();
    let hops = if spec.hops { spec.servers.len() } else { 0 };
    let hops = vec![(ANY, upstream.clone()); hops];
    let text = text(spec, [ANY; 2], None, std::slice::from_ref(&upstream), &hops);
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
pub(super) fn text(
    spec: &DeploymentSpec,
    [front, admin]: [SocketAddr; 2],
    traces: Option<SocketAddr>,
    upstream: &[String],
    hops: &[Hop],
) -> anyhow::Result<String> {
    let mut proxy = Table::try_from(json!({
        "listen": front,
        "admin": admin,
        "upstream": upstream,
        "upstream_kind": spec.upstream_kind(),
        "records": spec.dir.join(PROXY_ROWS).display().to_string(),
        "metrics_label_sets": DEFAULT_LABEL_SETS + LABEL_SETS_PER_WORKER * hops.len(),
        // Short, as the load is over when the proxy is stopped.
        "drain_timeout_s": 5.0,
    }))?;
    if spec.router == Router::Builtin {
        proxy.insert("policy".to_owned(), spec.policy.as_str().into());
    }
    let mut file = Table::new();
    for (key, value) in &spec.proxy {
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
