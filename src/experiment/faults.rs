//! Fault injection: kills servers or has their hops inject faults, by a schedule, and logs each fault that worked.

use std::collections::{BTreeMap, BTreeSet};
use std::iter;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use futures_util::future::try_join_all;
use serde::de::DeserializeOwned;
use serde_json::json;
use toml::Value;

use crate::clock::{Clock, Stamp};
use crate::fault::Fault;
use crate::report::files::FaultRow;
use crate::traffic::seconds_or_zero;
use crate::units;

use super::launch::{DeploymentSpec, EngineName, Server};
use super::timed::TimedRows;

/// Which servers fail when, and how.
#[derive(Clone, Debug, PartialEq)]
pub struct FaultPlan {
    /// How servers fail.
    pub kind: FaultKind,
    /// When which servers fail.
    pub schedule: Schedule,
}

/// The key `failure_kind`: how a server fails.
#[derive(Clone, Debug, PartialEq)]
pub enum FaultKind {
    /// Its process group is killed, and later started again.
    Kill,
    /// Its hop injects a fault.
    Hop(Fault),
}

/// The key `failure_schedule`: by the time since the run began, the servers (counted from 1) that are down from then on; all others are up.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule(BTreeMap<Duration, BTreeSet<usize>>);

/// The kind that needs no hop.
const KILL: &str = "kill";
/// The hint of errors about `failure_kind`.
const KINDS: &str = "give kill, refuse, reset or stall, or a table with the fault's fields, as in \
    { kind = \"slow\", ms = 50 } or { kind = \"cut\", after_bytes = 1000 } (docs/FAULTS.md)";

impl Schedule {
    /// Reads `{ 300 = [1, 2], 600 = [] }`: seconds since the run began, and the servers, counted from 1, that are down from
    /// then on.
    ///
    /// # Errors
    /// Names the problem and what would be valid.
    pub fn parse(text: &str) -> Result<Schedule, String> {
        const HINT: &str = "give seconds and servers counted from 1, as in { 300 = [1, 2], 600 = [] }; a time with a point goes in quotes";
        let phases = parse_phases(text).map_err(|problem| format!("{problem}; {HINT}"));
        phases.map(Schedule)
    }
}

fn parse_phases(text: &str) -> Result<BTreeMap<Duration, BTreeSet<usize>>, String> {
    let mut phases = BTreeMap::new();
    let table: BTreeMap<String, BTreeSet<usize>> = inline_table(text)?;
    for (time, down) in table {
        let at = seconds_or_zero(&time).map_err(|problem| format!("`{time}` {problem}"))?;
        if phases.insert(at, down).is_some() {
            return Err(format!("{} s is given twice", at.as_secs_f64()));
        }
    }
    match phases.is_empty() {
        true => Err("is empty".to_owned()),
        false => Ok(phases),
    }
}

impl FaultKind {
    /// Reads the name of a kind, or a table of its fields.
    ///
    /// # Errors
    /// Names the problem and what would be valid.
    pub fn parse(text: &str) -> Result<FaultKind, String> {
        if text == KILL {
            return Ok(FaultKind::Kill);
        }
        let fields = match text.starts_with('{') {
            true => inline_table(text),
            false => Ok(json!({ "kind": text })),
        };
        let fault = fields.and_then(|fields: serde_json::Value| Fault::read(fields));
        let kind = fault.map(FaultKind::Hop);
        kind.map_err(|problem| format!("{problem}; {KINDS}"))
    }

    fn name(&self) -> &str {
        match self {
            FaultKind::Kill => KILL,
            FaultKind::Hop(fault) => fault.kind.name(),
        }
    }
}

/// Reads an inline table of TOML. An error has its place, such as a key that is given twice.
fn inline_table<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    let value: Result<Value, _> = text.parse();
    let table = value.and_then(Value::try_into);
    table.map_err(|error| {
        let place = error.span().and_then(|span| text.get(span)?.lines().next());
        let place = place.filter(|place| !place.trim().is_empty());
        let place = place.map(|place| format!(" `{place}`")).unwrap_or_default();
        format!("{}{place}", error.message().trim())
    })
}

impl FaultPlan {
    /// Whether hops inject the faults. They must exist then, and accept faults.
    pub fn needs_hops(&self) -> bool {
        matches!(self.kind, FaultKind::Hop(_))
    }

    /// When the last change is, in seconds since the run began.
    pub fn last_change(&self) -> f64 {
        let last = self.schedule.0.keys().next_back();
        last.map_or(0.0, Duration::as_secs_f64)
    }

    /// Checks that the faults can be injected into what `spec` starts.
    ///
    /// # Errors
    /// Names the key, the problem and what would be valid.
    pub fn check(&self, spec: &DeploymentSpec) -> anyhow::Result<()> {
        let count = spec.servers.len();
        for (at, down) in &self.schedule.0 {
            if let Some(server) = down.iter().find(|server| !(1..=count).contains(server)) {
                let servers = units::count(count, "server");
                let at = at.as_secs_f64();
                bail!("failure_schedule: {at} s: there is no server {server}, but {servers}");
            }
        }
        ensure!(
            self.needs_hops() || spec.engine != EngineName::External,
            "failure_kind = \"kill\": external servers cannot be killed; use \"refuse\", \"reset\" or \"stall\" at a hop"
        );
        let mut keys = spec.proxy.keys().filter(|_| self.needs_hops());
        if let Some(key) = keys.find(|key| key.starts_with("admin_token")) {
            bail!(
                "proxy.{key}: the experiment asks its proxy for faults without one; leave it out"
            );
        }
        Ok(())
    }

    /// Returns when the server of this index goes down or up: seconds since the run began, and whether it is down from then on.
    fn changes(&self, server: usize) -> Vec<(f64, bool)> {
        let phases = self.schedule.0.iter();
        let phases = phases.map(|(at, down)| (at.as_secs_f64(), down.contains(&(server + 1))));
        let mut changes: Vec<_> = iter::once((0.0, false)).chain(phases).collect();
        changes.dedup_by_key(|(_, is_down)| *is_down);
        changes.split_off(1)
    }
}

/// Injects the planned faults into a run's servers and logs them in `file`. Ends when the last server that is up again is ready. When
/// dropped, it leaves the hops' faults in force: they end with the deployment.
///
/// # Errors
/// The file cannot be written, or a fault cannot be injected. Faults before that are in the file.
pub async fn run(
    plan: &FaultPlan,
    servers: &[Server],
    began: Stamp,
    clock: &Clock,
    file: &Path,
) -> anyhow::Result<()> {
    let log = TimedRows::new(file, began, clock)?;
    let servers = servers.iter().enumerate();
    try_join_all(servers.map(|(index, server)| inject(plan, server, index, &log))).await?;
    Ok(())
}

/// Injects the planned faults into one server.
async fn inject(
    plan: &FaultPlan,
    server: &Server,
    index: usize,
    log: &TimedRows,
) -> anyhow::Result<()> {
    let mut changes = plan.changes(index).into_iter().peekable();
    let write = |at: Stamp, event: &str| {
        let row = FaultRow {
            time: log.seconds(at),
            server: server.file.name.clone(),
            kind: plan.kind.name().to_owned(),
            event: event.to_owned(),
        };
        log.write([row]).context("faults.csv")
    };
    let reach = async |at| log.clock.wait_until(log.began.plus_seconds(at)).await;
    while let Some((at, is_down)) = changes.next() {
        reach(at).await;
        // Taken before, as requests fail while the fault is being injected.
        let begun = log.clock.now();
        match &plan.kind {
            FaultKind::Kill if is_down => server.kill().await,
            FaultKind::Kill => server.start()?,
            FaultKind::Hop(fault) => server.set_fault(is_down.then_some(fault)).await?,
        }
        let event = if is_down { "down" } else { "up" };
        write(begun, event)?;
        if is_down {
            continue;
        }
        // The server may go down again before it is ready.
        let next = changes.peek().map_or(f64::INFINITY, |(next, _)| *next);
        tokio::select! {
            biased;
            ready = server.ready() => {
                ready?;
                write(log.clock.now(), "ready")?;
            }
            () = reach(next), if next.is_finite() => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
