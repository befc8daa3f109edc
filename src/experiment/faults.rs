//! Faults done to servers on purpose while a run goes on: what was planned, done at its time, and written down once it had
//! worked.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use futures_util::future::try_join_all;
use parking_lot::Mutex;
use serde_json::json;
use tokio::time::sleep;
use toml::{Table, Value};

use crate::clock::{Clock, Stamp};
use crate::fault::Fault;
use crate::report::files::FaultRow;

use super::launch::{Engine, Servers, Wanted};

/// Which servers are down when, and how.
#[derive(Clone, Debug, PartialEq)]
pub struct FaultPlan {
    kind: Kind,
    /// Ascending in time.
    phases: Vec<Phase>,
}

/// What is done to a server.
#[derive(Clone, Debug, PartialEq)]
enum Kind {
    /// Its process group is killed, and started again.
    Kill,
    /// Its hop injects a fault.
    Hop { name: String, json: String },
}

/// From a moment on these servers are down, and no others.
#[derive(Clone, Debug, PartialEq)]
struct Phase {
    /// Seconds since the run began.
    at: f64,
    /// Counted from 0.
    down: BTreeSet<usize>,
}

/// A server goes down or up.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Change {
    at: f64,
    is_down: bool,
}

/// `faults.csv` of a run.
struct Log {
    began: Stamp,
    clock: Clock,
    kind: String,
    written: Mutex<(csv::Writer<File>, Vec<FaultRow>)>,
}

/// The kinds that need no further field, as an error lists them.
const KINDS: &str = "must be \"kill\", \"refuse\", \"reset\" or \"stall\", or a table as the hop takes it, as in \
    { kind = \"slow\", ms = 50 } (docs/FAULTS.md)";

impl FaultPlan {
    /// Reads the keys `failure_schedule` (`{ 300 = [1, 2], 600 = [] }`: seconds since the run began, and the servers,
    /// counted from 1, that are down from then on) and `failure_kind`. Each may be a string that holds it, as a flag's
    /// value is one.
    ///
    /// # Errors
    /// The key, what is wrong with it and what would be right.
    pub fn parse(schedule: &Value, kind: &Value) -> Result<FaultPlan, String> {
        const RIGHT: &str = "give seconds and servers counted from 1, as in { 300 = [1, 2], 600 = [] }; a time with a point goes in quotes";
        let wrong = |problem: &str| format!("failure_schedule: {problem}; {RIGHT}");
        let Value::Table(schedule) = inline(schedule).map_err(|problem| wrong(&problem))? else {
            return Err(wrong("is no table"));
        };
        let mut phases: Vec<Phase> = Vec::new();
        for (at, servers) in times(&schedule) {
            let seconds: f64 = at
                .parse()
                .ok()
                .filter(|at: &f64| at.is_finite() && *at >= 0.0)
                .ok_or_else(|| wrong(&format!("`{at}` is no time, 0 or more")))?;
            if phases.iter().any(|phase| phase.at == seconds) {
                return Err(wrong(&format!("{seconds} s stands there twice")));
            }
            let down = servers
                .as_array()
                .and_then(|servers| servers.iter().map(number).collect());
            let down =
                down.ok_or_else(|| wrong(&format!("{at} = {servers}: is no list of servers")))?;
            phases.push(Phase { at: seconds, down });
        }
        if phases.is_empty() {
            return Err(wrong("is empty"));
        }
        phases.sort_by(|a, b| a.at.total_cmp(&b.at));
        Ok(FaultPlan {
            kind: Kind::parse(kind)?,
            phases,
        })
    }

    /// Whether it is done by hops, which then must be there and take faults.
    pub fn needs_hops(&self) -> bool {
        matches!(self.kind, Kind::Hop { .. })
    }

    /// When the last change is, seconds since the run began.
    pub fn last(&self) -> f64 {
        self.phases.last().map_or(0.0, |phase| phase.at)
    }

    /// When a killed server is started again for the last time, seconds since the run began; `None`: never.
    pub fn last_start(&self) -> Option<f64> {
        let is_start = |pair: &&[Phase]| {
            let [before, after] = pair else { return false };
            before
                .down
                .iter()
                .any(|server| !after.down.contains(server))
        };
        let starts = self.phases.windows(2).filter(is_start);
        let mut starts = starts.filter_map(|pair| pair.last());
        let last = starts.next_back().map(|phase| phase.at);
        last.filter(|_| self.kind == Kind::Kill)
    }

    /// Whether it can be done to what `wanted` starts.
    ///
    /// # Errors
    /// The key, what is wrong with it and what would be right.
    pub fn check(&self, wanted: &Wanted) -> Result<(), String> {
        let count = wanted.count();
        for Phase { at, down } in &self.phases {
            if let Some(server) = down.iter().find(|server| **server >= count) {
                let servers = if count == 1 { "server" } else { "servers" };
                let server = server + 1;
                return Err(format!(
                    "failure_schedule: {at} s: there is no server {server}, but {count} {servers}"
                ));
            }
        }
        match (&self.kind, &wanted.engine) {
            (Kind::Kill, Engine::External { .. }) => Err(
                "failure_kind = \"kill\": external servers are not ours to kill; \"refuse\", \"reset\" or \"stall\" at a \
                 hop looks much the same to whoever asks them"
                    .to_owned(),
            ),
            (Kind::Hop { name, .. }, _) if !(wanted.hops && wanted.fault_injection) => {
                Err(format!("failure_kind = \"{name}\": it is done by hops, and there are none; give hops = true"))
            }
            _ => Ok(()),
        }
    }

    /// The changes of one server.
    fn changes(&self, server: usize) -> Vec<Change> {
        let mut was_down = false;
        let changes = self.phases.iter().filter_map(|phase| {
            let is_down = phase.down.contains(&server);
            let changes = is_down != was_down;
            was_down = is_down;
            changes.then_some(Change {
                at: phase.at,
                is_down,
            })
        });
        changes.collect()
    }
}

impl Kind {
    fn parse(kind: &Value) -> Result<Kind, String> {
        let kind = inline(kind).map_err(|problem| format!("failure_kind: {problem}; {KINDS}"))?;
        let json = match &kind {
            Value::String(name) if name == "kill" => return Ok(Kind::Kill),
            Value::String(name) => json!({ "kind": name }),
            Value::Table(table) => json!(table),
            other => return Err(format!("failure_kind = {other}: {KINDS}")),
        };
        let json = json.to_string();
        let fault = Fault::parse(json.as_bytes())
            .map_err(|wrong| format!("failure_kind = {kind}: {wrong}; {KINDS}"))?;
        Ok(Kind::Hop {
            name: fault.kind.name().to_owned(),
            json,
        })
    }

    fn name(&self) -> &str {
        match self {
            Kind::Kill => "kill",
            Kind::Hop { name, .. } => name,
        }
    }
}

/// A table that a string holds, as a flag gives it; else the value as it is.
fn inline(value: &Value) -> Result<Value, String> {
    let text = value
        .as_str()
        .filter(|text| text.trim_start().starts_with('{'));
    let Some(text) = text else {
        return Ok(value.clone());
    };
    let parsed = toml::from_str::<Table>(&format!("it = {text}"));
    let mut parsed =
        parsed.map_err(|error| format!("{text} is no TOML table: {}", error.message()))?;
    Ok(parsed.remove("it").unwrap_or_else(|| value.clone()))
}

/// The times of a schedule as they were written: `0.5 = []` is a key in a key to TOML.
fn times(schedule: &Table) -> Vec<(String, &Value)> {
    let mut times = Vec::new();
    for (whole, value) in schedule {
        match value {
            Value::Table(parts) => times.extend(
                parts
                    .iter()
                    .map(|(part, value)| (format!("{whole}.{part}"), value)),
            ),
            value => times.push((whole.clone(), value)),
        }
    }
    times
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
    servers: &Servers,
    began: Stamp,
    clock: &Clock,
    file: &Path,
) -> anyhow::Result<Vec<FaultRow>> {
    let writer = csv::Writer::from_path(file).with_context(|| format!("{}", file.display()))?;
    let log = Log {
        began,
        clock: clock.clone(),
        kind: plan.kind.name().to_owned(),
        written: Mutex::new((writer, Vec::new())),
    };
    try_join_all((0..servers.count()).map(|server| one(plan, servers, server, &log))).await?;
    Ok(log.written.into_inner().1)
}

/// Does to one server what is planned.
async fn one(plan: &FaultPlan, servers: &Servers, server: usize, log: &Log) -> anyhow::Result<()> {
    let name = servers.name(server);
    let changes = plan.changes(server);
    let mut changes = changes.iter().peekable();
    while let Some(change) = changes.next() {
        log.until(change.at).await;
        // Requests break while it is being done: a time taken afterwards would have them fail before the fault.
        let begun = log.clock.now();
        match (&plan.kind, change.is_down) {
            (Kind::Kill, true) => servers.kill(server).await?,
            (Kind::Kill, false) => servers.start(server)?,
            (Kind::Hop { json, .. }, true) => servers.set_fault(server, Some(json)).await?,
            (Kind::Hop { .. }, false) => servers.set_fault(server, None).await?,
        }
        let event = if change.is_down { "down" } else { "up" };
        log.write(begun, &name, event)?;
        if change.is_down {
            continue;
        }
        // It may be taken down again before it is ready.
        let next = async {
            match changes.peek() {
                Some(next) => log.until(next.at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            ready = servers.ready(server) => {
                ready?;
                log.write(log.clock.now(), &name, "ready")?;
            }
            () = next => {}
        }
    }
    Ok(())
}

impl Log {
    /// Waits until so many seconds after the run began.
    async fn until(&self, at: f64) {
        let at = self.began.plus_seconds(at);
        loop {
            let left = at.since(self.clock.now());
            if left <= 0.0 {
                return;
            }
            sleep(Duration::from_secs_f64(left)).await;
        }
    }

    /// What was done, and when it was begun.
    fn write(&self, at: Stamp, server: &str, event: &str) -> anyhow::Result<()> {
        let seconds = at.since(self.began);
        let row = FaultRow {
            time: (seconds * 1e6).round() / 1e6,
            server: server.to_owned(),
            kind: self.kind.clone(),
            event: event.to_owned(),
        };
        let mut written = self.written.lock();
        let (file, rows) = &mut *written;
        file.serialize(&row).context("faults.csv")?;
        file.flush().context("faults.csv")?;
        rows.push(row);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
