//! Faults that a hop injects on demand, so that an experiment knows what went wrong, where and when: which there are, which are set,
//! and what one does to a response's bytes.

use std::collections::BTreeMap;
use std::fmt::Display;

use parking_lot::Mutex;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::keys::values::{self, Whole};
use crate::names::names;
use crate::telemetry::prometheus::Metrics;

#[cfg(test)]
mod tests;

/// A fault as it is set, also in JSON. Which fields a kind takes is checked by [`Fault::read`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// What it does.
    pub kind: Kind,
    /// The most injections; `None` for any number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<Whole<1, { u64::MAX }>>,
    /// The delay of each piece of a slow response, or how long a request is stalled; `None` there: until the fault is removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ms: Option<Milliseconds>,
    /// After how many bytes of the body it is cut.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after_bytes: Option<Bytes>,
}

/// Milliseconds; parsed, they may be a text with another unit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Milliseconds(
    #[serde(deserialize_with = "values::milliseconds")] pub Whole<0, { u32::MAX as u64 }>,
);

/// Bytes; parsed, they may be a text with another unit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bytes(#[serde(deserialize_with = "values::bytes")] pub Whole<0, { u64::MAX }>);

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
        let mut json = serde_json::Deserializer::from_slice(json);
        let fault = Fault::read(&mut json);
        let end = json.end().map_err(|problem| problem.to_string());
        fault
            .and_then(|fault| end.map(|()| fault))
            .map_err(|problem| {
                format!("{problem}; give an object, as in {{\"kind\": \"stall\", \"ms\": 500}}")
            })
    }

    /// Reads a fault, and checks that its kind takes the fields that it has.
    ///
    /// # Errors
    /// The field, and what is wrong with it.
    pub fn read<'de>(from: impl Deserializer<'de, Error: Display>) -> Result<Fault, String> {
        let fault: Result<Fault, _> = serde_path_to_error::deserialize(from);
        let fault = fault.map_err(|problem| problem.to_string())?;
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
        if active.injected >= active.fault.count.map_or(u64::MAX, Whole::get) {
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
            let left = after.0.get().saturating_sub(self.bytes);
            self.is_cut = left <= piece.len() as u64;
            piece.truncate(usize::try_from(left).unwrap_or(usize::MAX));
        }
        self.bytes += piece.len() as u64;
    }
}
