//! Faults that a hop injects on demand, so that an experiment knows what went wrong, where and when: which there are, which are set,
//! and what one does to a response's bytes.

use std::collections::BTreeMap;
use std::num::NonZeroU64;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::names::names;
use crate::telemetry::prometheus::Metrics;
use crate::units;

#[cfg(test)]
mod tests;

/// A fault as it is set, also in JSON. Parsing checks which fields a kind takes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Given")]
pub struct Fault {
    /// What it does.
    pub kind: Kind,
    /// The most injections; `None` for any number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<NonZeroU64>,
    /// Milliseconds: the delay of each piece of a slow response, or how long a request is stalled; `None` there: until the fault is
    /// removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ms: Option<u32>,
    /// After how many bytes of the body it is cut.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after_bytes: Option<u64>,
}

/// The fields of a fault as they are given: numbers may be texts with a unit.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Given {
    kind: Value,
    count: Option<Value>,
    ms: Option<Value>,
    after_bytes: Option<Value>,
}

names! {
    /// What a fault does to a request, or for [`Kind::Refuse`] to a connection.
    #[serde(rename_all = "lowercase")]
    pub enum Kind {
        /// The connection is reset as soon as it was accepted, and a kept one at its next request. The listener
        /// stays, so that a peer's `connect` mostly succeeds first.
        Refuse = "refuse",
        /// The connection is reset when a request's head was read.
        Reset = "reset",
        /// The request is held before it is sent on.
        Stall = "stall",
        /// The response comes slowly.
        Slow = "slow",
        /// The connection closes within the response's body, without its end.
        Cut = "cut",
    }
}

/// The faults of all workers.
#[derive(Debug)]
pub struct Faults {
    /// The fault of each worker, if it has one.
    workers: Mutex<BTreeMap<String, Option<ActiveFault>>>,
    metrics: Metrics,
}

/// A fault that is set, with its counts.
#[derive(Debug, Serialize)]
struct ActiveFault {
    fault: Fault,
    injected: u64,
    /// Dropped with the fault, which its receivers see: one for each request that it is being injected into.
    #[serde(rename = "under_way", serialize_with = "receiver_count")]
    removal: watch::Sender<()>,
}

/// A fault injected into a request.
#[derive(Debug)]
pub struct Injected {
    /// The fault.
    pub fault: Fault,
    /// Whether the response's body was cut.
    pub is_cut: bool,
    /// Bytes of the response's body that passed so far.
    bytes: u64,
    removal: watch::Receiver<()>,
}

impl Fault {
    /// Parses a fault from JSON.
    ///
    /// # Errors
    /// The field, what is wrong with it, and a hint.
    pub fn parse(json: &[u8]) -> Result<Fault, String> {
        serde_json::from_slice(json).map_err(|problem| {
            format!("{problem}; give an object, as in {{\"kind\": \"stall\", \"ms\": 500}}")
        })
    }
}

impl TryFrom<Given> for Fault {
    type Error = String;

    fn try_from(given: Given) -> Result<Fault, String> {
        let kinds = Kind::ALL.map(Kind::name).join(", ");
        let kind = given.kind.as_str().and_then(Kind::named);
        let milliseconds = |text: &str| Some(units::seconds(text)? / units::MS);
        let of_ms = format!("or a text such as \"250ms\", from 0 to {}", u32::MAX);
        let of_bytes = "or a text such as \"64KiB\", 0 or more";
        let fault = Fault {
            kind: kind.ok_or_else(|| format!("kind = {}: must be one of {kinds}", given.kind))?,
            count: number("count", given.count, |_| None, "1 or more")?,
            ms: number("ms", given.ms, milliseconds, &of_ms)?,
            after_bytes: number("after_bytes", given.after_bytes, units::bytes, of_bytes)?,
        };
        let (has_ms, has_after) = (fault.ms.is_some(), fault.after_bytes.is_some());
        let (is_valid, takes) = match fault.kind {
            Kind::Refuse | Kind::Reset => (!has_ms && !has_after, "no field of its own"),
            Kind::Stall => (!has_after, "ms or nothing"),
            Kind::Slow => (has_ms && !has_after, "ms, before each piece"),
            Kind::Cut => (!has_ms && has_after, "after_bytes"),
        };
        let name = fault.kind.name();
        let error = || format!("kind = \"{name}\": takes {takes}; all kinds take count");
        is_valid.then_some(fault).ok_or_else(error)
    }
}

/// Reads a whole number, or a text that is one `in_unit`.
fn number<T: TryFrom<u64>>(
    field: &str,
    given: Option<Value>,
    in_unit: fn(&str) -> Option<f64>,
    expected: &str,
) -> Result<Option<T>, String> {
    let Some(given) = given else { return Ok(None) };
    let text = given.as_str().filter(|text| text.parse::<f64>().is_err());
    let with_unit = text.and_then(in_unit);
    let with_unit = with_unit.filter(|number| *number >= 0.0 && number.fract() == 0.0);
    let number = given.as_u64().or(with_unit.map(|number| number as u64));
    let number = number.and_then(|number| number.try_into().ok()).map(Some);
    number.ok_or_else(|| format!("{field} = {given}: must be a whole number, {expected}"))
}

/// Serializes the number of requests that the fault stalls, slows or is to cut.
fn receiver_count<S: Serializer>(removal: &watch::Sender<()>, to: S) -> Result<S::Ok, S::Error> {
    removal.receiver_count().serialize(to)
}

impl Faults {
    /// Creates the registry, with no fault set.
    pub fn new(metrics: Metrics) -> Faults {
        Faults {
            workers: Mutex::default(),
            metrics,
        }
    }

    /// Sets the names of the workers. The fault of any other is removed, as requests on its connections may go on.
    pub fn set_workers(&self, names: &[&str]) {
        let mut workers = self.workers.lock();
        let mut before = std::mem::take(&mut *workers);
        let kept = |name: &&str| ((*name).to_owned(), before.remove(*name).flatten());
        *workers = names.iter().map(kept).collect();
    }

    /// Returns the names of all workers.
    pub fn names(&self) -> Vec<String> {
        self.workers.lock().keys().cloned().collect()
    }

    /// Returns the faults that are set, as JSON.
    pub fn to_json(&self) -> Value {
        json!({ "workers": &*self.workers.lock() })
    }

    /// Sets or removes the fault of a worker; requests that a previous fault stalls go on. Returns whether there was one.
    pub fn set(&self, worker: &str, fault: Option<Fault>) -> bool {
        let active = fault.map(|fault| ActiveFault {
            fault,
            injected: 0,
            removal: watch::channel(()).0,
        });
        let mut workers = self.workers.lock();
        let current = workers.get_mut(worker);
        current.is_some_and(|current| std::mem::replace(current, active).is_some())
    }

    /// Injects the worker's fault into a request or, if none was read, a connection. Only [`Kind::Refuse`] takes those that do not
    /// generate: a router's health checks are spared.
    pub fn try_inject(&self, worker: &str, generates: bool) -> Option<Injected> {
        let mut workers = self.workers.lock();
        let active = workers.get_mut(worker)?.as_mut();
        let active = active.filter(|one| generates || one.fault.kind == Kind::Refuse)?;
        if active.injected >= active.fault.count.map_or(u64::MAX, NonZeroU64::get) {
            return None;
        }
        active.injected += 1;
        let kind = active.fault.kind.name();
        self.metrics.faults_injected.with(&[kind, worker]).inc();
        Some(Injected {
            fault: active.fault.clone(),
            is_cut: false,
            bytes: 0,
            removal: active.removal.subscribe(),
        })
    }
}

impl Injected {
    /// Waits until the fault is removed or replaced.
    pub async fn removed(&mut self) {
        while self.removal.changed().await.is_ok() {}
    }

    /// Counts a piece of the response's body, and shortens it to the cut, if the body is cut there.
    pub fn cut(&mut self, piece: &mut Vec<u8>) {
        if piece.is_empty() {
            return;
        }
        if let Some(after) = self.fault.after_bytes {
            let left = after.saturating_sub(self.bytes);
            self.is_cut = left <= piece.len() as u64;
            piece.truncate(usize::try_from(left).unwrap_or(usize::MAX));
        }
        self.bytes += piece.len() as u64;
    }
}
