//! Faults that a hop injects on demand, so that an experiment knows what went wrong, where and when: which there are, which are set,
//! and what one does to a response's bytes.

use std::collections::BTreeMap;
use std::num::NonZeroU64;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Map, Value, json};
use tokio::sync::watch;

use crate::names::names;
use crate::telemetry::prometheus::Metrics;
use crate::units;

#[cfg(test)]
mod tests;

/// A fault as it is set, also in JSON. Parsing checks which fields a kind takes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
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

/// The fields of a fault, each given at most once: of a map, the last one would be taken.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Given {
    kind: Option<Value>,
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
        let given: Result<Given, _> = serde_json::from_slice(json);
        let fields = given.and_then(serde_json::to_value);
        let fields = fields.and_then(serde_json::from_value);
        let fields = fields.map_err(|error| error.to_string());
        fields.and_then(Fault::from_fields).map_err(|problem| {
            format!("{problem}; give an object, as in {{\"kind\": \"stall\", \"ms\": 500}}")
        })
    }

    /// Reads a fault from its fields, of which numbers may be texts with a unit.
    ///
    /// # Errors
    /// See [`Fault::parse`].
    pub fn from_fields(mut fields: Map<String, Value>) -> Result<Fault, String> {
        for (field, value) in &mut fields {
            let text = value.as_str().filter(|text| text.parse::<f64>().is_err());
            if let Some(number) = text.and_then(|text| number(field, text)) {
                *value = number;
            }
        }
        let fields = Value::Object(fields);
        let read: Result<Fault, _> = serde_path_to_error::deserialize(&fields);
        let read = read.map_err(|error| {
            let field = error.path().to_string();
            let message = error.inner().to_string();
            match fields.get(&field) {
                Some(value) if !message.starts_with("unknown field") => invalid(&field, value),
                _ => message,
            }
        });
        read?.check()
    }

    fn check(self) -> Result<Fault, String> {
        let (has_ms, has_after) = (self.ms.is_some(), self.after_bytes.is_some());
        let (is_valid, takes) = match self.kind {
            Kind::Refuse | Kind::Reset => (!has_ms && !has_after, "no field of its own"),
            Kind::Stall => (!has_after, "ms or nothing"),
            Kind::Slow => (has_ms && !has_after, "ms, before each piece"),
            Kind::Cut => (!has_ms && has_after, "after_bytes"),
        };
        let name = self.kind.name();
        let error = || format!("kind = \"{name}\": takes {takes}; all kinds take count");
        is_valid.then_some(self).ok_or_else(error)
    }
}

/// Parses a field's text with a unit.
fn number(field: &str, text: &str) -> Option<Value> {
    let whole = match field {
        "ms" => units::seconds(text)? / units::MS,
        "after_bytes" => units::bytes(text)?,
        _ => return None,
    };
    (whole >= 0.0 && whole.fract() == 0.0).then(|| (whole as u64).into())
}

/// Returns the message for a field's invalid value.
fn invalid(field: &str, value: &Value) -> String {
    let (number, max) = ("a whole number,", u32::MAX);
    let expected = match field {
        "kind" => format!("one of {}", Kind::ALL.map(Kind::name).join(", ")),
        "ms" => format!("{number} or a text such as \"250ms\", from 0 to {max}"),
        "after_bytes" => format!("{number} or a text such as \"64KiB\", 0 or more"),
        _ => format!("{number} 1 or more"),
    };
    format!("{field} = {value}: must be {expected}")
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
