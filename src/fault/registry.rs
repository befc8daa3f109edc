//! The faults that are set.

use std::collections::BTreeMap;
use std::num::NonZeroU64;

use parking_lot::Mutex;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::fault::{Fault, Kind};
use crate::telemetry::prometheus::Metrics;

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

#[cfg(test)]
mod tests {
    use super::*;

    fn inject(faults: &Faults, worker: &str) -> Option<Injected> {
        faults.try_inject(worker, true)
    }

    fn fault(kind: &str, count: u64) -> Option<Fault> {
        let json = format!(r#"{{"kind":"{kind}","count":{count}}}"#);
        Some(Fault::parse(json.as_bytes()).unwrap())
    }

    #[test]
    fn only_known_workers_have_faults() {
        let faults = Faults::new(Metrics::new().unwrap());
        faults.set_workers(&["stays", "goes"]);
        assert_eq!(faults.names(), ["goes", "stays"]);
        for worker in ["stays", "goes", "unknown"] {
            faults.set(worker, fault("reset", 99));
        }
        assert!(inject(&faults, "unknown").is_none());
        faults.set_workers(&["stays"]);
        assert!(inject(&faults, "goes").is_none());
        faults.set_workers(&["stays", "goes"]);
        // A worker that is added again has no fault.
        assert!(inject(&faults, "goes").is_none() && inject(&faults, "stays").is_some());
    }
}
