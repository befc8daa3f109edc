//! Faults done to servers on purpose while a run goes on: what was planned, done at its time, and written down once it had
//! worked.

use std::collections::BTreeSet;
use std::fmt;
use std::iter;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use futures_util::future::try_join_all;
use serde::de::DeserializeOwned;
use serde_json::Map;
use tokio::time::sleep;
use toml::{Table, Value};

use crate::clock::{Clock, Stamp};
use crate::fault::{Fault, Kind};
use crate::report::files::FaultRow;
use crate::units;

use super::launch::{DeploymentSpec, EngineName, Server};
use super::plan::read::inline;
use super::timed::TimedRows;

/// Which servers are down when, and how.
#[derive(Clone, Debug, PartialEq)]
pub struct FaultPlan {
    /// What is done to servers.
    pub kind: FaultKind,
    /// When, and to which.
    pub schedule: Schedule,
}

/// The key `failure_kind`: what is done to a server.
#[derive(Clone, Debug, PartialEq)]
pub enum FaultKind {
    /// Its process group is killed, and started again.
    Kill,
    /// Its hop injects this.
    Hop(Fault),
}

/// The key `failure_schedule`, ascending in time: from so many seconds since the run began on these servers, counted from 0, are down,
/// and no others.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule(Vec<(f64, BTreeSet<usize>)>);

/// What a kind may be, as an error lists it.
const KINDS: &str = "give kill, refuse, reset or stall, or a table with what else a hop is to know, as in \
    { kind = \"slow\", ms = 50 } or { kind = \"cut\", after_bytes = 1000 } (docs/FAULTS.md)";

impl Schedule {
    /// Reads `{ 300 = [1, 2], 600 = [] }`: seconds since the run began, and the servers, counted from 1, that are down from
    /// then on.
    ///
    /// # Errors
    /// What is wrong with it and what would be right.
    pub fn parse(text: &str) -> Result<Schedule, String> {
        const RIGHT: &str = "give seconds and servers counted from 1, as in { 300 = [1, 2], 600 = [] }; a time with a point goes in quotes";
        let wrong = |problem: &str| format!("{problem}; {RIGHT}");
        let schedule: Table = table(text).ok_or_else(|| wrong("is no table"))?;
        let mut phases: Vec<(f64, BTreeSet<usize>)> = Vec::new();
        for (at, servers) in &schedule {
            let seconds = units::seconds(at).filter(|at| at.is_finite() && *at >= 0.0);
            let seconds = seconds.ok_or_else(|| wrong(&format!("`{at}` is no time, 0 or more")))?;
            if phases.iter().any(|(at, _)| *at == seconds) {
                return Err(wrong(&format!("{seconds} s is given twice")));
            }
            let all = servers.as_array();
            let down = all.and_then(|servers| servers.iter().map(number).collect());
            let down =
                down.ok_or_else(|| wrong(&format!("{at} = {servers}: is no list of servers")))?;
            phases.push((seconds, down));
        }
        if phases.is_empty() {
            return Err(wrong("is empty"));
        }
        phases.sort_by(|a, b| a.0.total_cmp(&b.0));
        Ok(Schedule(phases))
    }
}

impl fmt::Display for Schedule {
    /// As a plan has it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let phase = |(at, down): &(f64, BTreeSet<usize>)| {
            let servers = down.iter().map(|server| Value::Integer(*server as i64 + 1));
            (at.to_string(), servers.collect::<Vec<_>>().into())
        };
        let phases: Table = self.0.iter().map(phase).collect();
        Value::Table(phases).fmt(f)
    }
}

impl fmt::Display for FaultKind {
    /// As a plan has it: without what is not said.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FaultKind::Hop(fault) = self else {
            return f.write_str(self.name());
        };
        let mut fields = Table::try_from(fault).unwrap_or_default();
        let usual = [("probability", 1.0.into()), ("seed", 0.into())];
        fields.retain(|field, value| !usual.contains(&(field, value.clone())));
        match fields.len() {
            ..2 => f.write_str(self.name()),
            _ => Value::Table(fields).fmt(f),
        }
    }
}

impl FaultKind {
    /// Reads `kill`, the name of a fault, or a table of its fields.
    ///
    /// # Errors
    /// What is wrong with it and what would be right.
    pub fn parse(text: &str) -> Result<FaultKind, String> {
        let fields = match table(text) {
            _ if text == "kill" => return Ok(FaultKind::Kill),
            Some(fields) => fields,
            None if Kind::named(text).is_none() => return Err(KINDS.to_owned()),
            None => Map::from_iter([("kind".to_owned(), text.into())]),
        };
        let fault = Fault::of(fields).map_err(|wrong| format!("{wrong}; {KINDS}"));
        fault.map(FaultKind::Hop)
    }

    fn name(&self) -> &str {
        match self {
            FaultKind::Kill => "kill",
            FaultKind::Hop(fault) => fault.kind.name(),
        }
    }
}

/// A table as TOML has it.
fn table<T: DeserializeOwned>(text: &str) -> Option<T> {
    inline(text)?.try_into().ok()
}

impl FaultPlan {
    /// Whether it is done by hops, which then must be there and take faults.
    pub fn needs_hops(&self) -> bool {
        matches!(self.kind, FaultKind::Hop(_))
    }

    /// When the last change is, seconds since the run began.
    pub fn last(&self) -> f64 {
        self.schedule.0.last().map_or(0.0, |(at, _)| *at)
    }

    /// Whether it can be done to what `spec` starts.
    ///
    /// # Errors
    /// The key, what is wrong with it and what would be right.
    pub fn check(&self, spec: &DeploymentSpec) -> anyhow::Result<()> {
        let count = spec.servers.len();
        for (at, down) in &self.schedule.0 {
            if let Some(server) = down.iter().find(|server| **server >= count) {
                let (server, servers) = (server + 1, units::count(count, "server"));
                bail!("failure_schedule: {at} s: there is no server {server}, but {servers}");
            }
        }
        ensure!(
            self.needs_hops() || spec.engine != EngineName::External,
            "failure_kind = \"kill\": external servers cannot be killed; use \"refuse\", \"reset\" or \"stall\" at a hop"
        );
        if self.needs_hops() {
            ensure!(
                spec.hops,
                "failure_kind = \"{}\": it is done by hops, and there are none; give hops = true",
                self.kind.name()
            );
            let mut keys = spec.proxy.keys();
            if let Some(key) = keys.find(|key| key.starts_with("admin_token")) {
                bail!(
                    "proxy.{key}: the experiment asks its proxy for faults without one; leave it out"
                );
            }
        }
        Ok(())
    }

    /// What is likely to be no intention.
    pub fn note(&self) -> Option<String> {
        let FaultKind::Hop(fault) = &self.kind else {
            return None;
        };
        let (at, down) = self.schedule.0.last()?;
        let is_never_lifted = fault.holds_on() && !down.is_empty();
        is_never_lifted.then(|| {
            format!(
                "failure_schedule: what is stalled at {at} s is held until the generator gives it up (request_timeout_s); \
                 to let it go on, end with a later time and no server, as in {} = []",
                at + 30.0
            )
        })
    }

    /// When one server goes down or up: seconds since the run began, and whether it is down from then on.
    fn changes(&self, server: usize) -> Vec<(f64, bool)> {
        let phases = self.schedule.0.iter();
        let phases = phases.map(|(at, down)| (*at, down.contains(&server)));
        let mut changes: Vec<_> = iter::once((0.0, false)).chain(phases).collect();
        changes.dedup_by_key(|(_, is_down)| *is_down);
        changes.split_off(1)
    }
}

/// A server's number, counted from 0.
fn number(server: &Value) -> Option<usize> {
    usize::try_from(server.as_integer()?).ok()?.checked_sub(1)
}

/// Does what is planned to a run's servers, and writes `file` as it goes. Ends when the last server that is up again answers;
/// dropped, it does nothing more: what hops inject then ends with the deployment.
///
/// # Errors
/// The file cannot be written, or something could not be done; what was done before is in the file.
pub async fn run(
    plan: &FaultPlan,
    servers: &[Server],
    began: Stamp,
    clock: &Clock,
    file: &Path,
) -> anyhow::Result<()> {
    let columns = ["time", "server", "kind", "event"];
    let log = TimedRows::new(file, &columns, began, clock)?;
    let servers = servers.iter().enumerate();
    try_join_all(servers.map(|(number, server)| one(plan, server, number, &log))).await?;
    Ok(())
}

/// Does to one server what is planned.
async fn one(
    plan: &FaultPlan,
    server: &Server,
    number: usize,
    log: &TimedRows,
) -> anyhow::Result<()> {
    let mut changes = plan.changes(number).into_iter().peekable();
    // What was done, and when it was begun.
    let write = |at: Stamp, event: &str| {
        let row = FaultRow {
            time: log.seconds(at),
            server: server.file.name.clone(),
            kind: plan.kind.name().to_owned(),
            event: event.to_owned(),
        };
        log.write(&[row]).context("faults.csv")
    };
    while let Some((at, is_down)) = changes.next() {
        until(log, at).await;
        // Requests break while it is being done: a time taken afterwards would have them fail before the fault.
        let begun = log.clock.now();
        match (&plan.kind, is_down) {
            (FaultKind::Kill, true) => server.kill().await?,
            (FaultKind::Kill, false) => server.start()?,
            (FaultKind::Hop(fault), true) => server.set_fault(Some(fault)).await?,
            (FaultKind::Hop(_), false) => server.set_fault(None).await?,
        }
        let event = if is_down { "down" } else { "up" };
        write(begun, event)?;
        if is_down {
            continue;
        }
        // It may be taken down again before it is ready.
        let next = async {
            match changes.peek() {
                Some((next, _)) => until(log, *next).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            ready = server.ready() => {
                ready?;
                write(log.clock.now(), "ready")?;
            }
            () = next => {}
        }
    }
    Ok(())
}

/// Waits until so many seconds after the run began.
async fn until(log: &TimedRows, at: f64) {
    let at = log.began.plus_seconds(at);
    loop {
        let left = at.since(log.clock.now());
        if left <= 0.0 {
            return;
        }
        sleep(Duration::from_secs_f64(left)).await;
    }
}

#[cfg(test)]
mod tests;
