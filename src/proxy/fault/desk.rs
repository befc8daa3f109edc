//! Where faults are asked for and written down.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwapOption;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::{Fault, Kind};
use crate::clock::Clock;
use crate::telemetry::prometheus::Metrics;

/// The faults of all workers.
#[derive(Debug)]
pub struct Faults {
    workers: Mutex<BTreeMap<String, Arc<WorkerFaults>>>,
    log: Arc<Log>,
}

/// The fault of one worker, if any.
#[derive(Debug)]
pub struct WorkerFaults {
    name: String,
    current: ArcSwapOption<Active>,
    log: Arc<Log>,
}

/// A fault in force, and what came of it so far.
#[derive(Debug)]
struct Active {
    fault: Fault,
    chances: AtomicU64,
    taken: AtomicU64,
    /// Its senders are gone once the fault is taken away.
    in_force: watch::Receiver<()>,
    _ends: watch::Sender<()>,
}

/// What was done, newest last.
#[derive(Debug)]
struct Log {
    clock: Clock,
    metrics: Metrics,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    entries: VecDeque<Entry>,
    dropped: u64,
}

/// A fault that was done to one request or connection.
#[derive(Clone, Debug, Serialize)]
pub struct Entry {
    /// The worker's name.
    pub worker: String,
    /// The kind's name.
    pub kind: &'static str,
    /// Number of the chance, from 0, since the fault was asked for.
    pub chance: u64,
    /// The request's `x-request-id`; `None` where none was read.
    pub request_id: Option<String>,
    /// Who was at the other end.
    pub peer: Option<SocketAddr>,
    /// When it began: nanoseconds since the epoch, on the proxy's clock.
    pub began_ns: i64,
    /// When it was over.
    pub ended_ns: i64,
    /// Bytes of the response's body that were let pass from then on.
    pub bytes: u64,
    /// Pieces of it.
    pub pieces: u64,
}

/// A fault that a request is under. Written down when dropped.
#[derive(Debug)]
pub struct Injected {
    /// What is done.
    pub kind: Kind,
    entry: Entry,
    in_force: watch::Receiver<()>,
    log: Arc<Log>,
}

/// Entries kept; older ones are dropped and counted.
const KEPT: usize = 16_384;

impl Faults {
    /// No fault yet.
    pub fn new(clock: Clock, metrics: Metrics) -> Faults {
        let kept = Mutex::default();
        Faults {
            workers: Mutex::default(),
            log: Arc::new(Log {
                clock,
                metrics,
                kept,
            }),
        }
    }

    /// The faults of the worker of this name; from now on they can be asked for.
    pub fn worker(&self, name: &str) -> Arc<WorkerFaults> {
        let new = || {
            Arc::new(WorkerFaults {
                name: name.to_owned(),
                current: ArcSwapOption::empty(),
                log: self.log.clone(),
            })
        };
        let mut workers = lock(&self.workers);
        workers.entry(name.to_owned()).or_insert_with(new).clone()
    }

    /// The worker of this name, if there is one.
    pub fn find(&self, name: &str) -> Option<Arc<WorkerFaults>> {
        lock(&self.workers).get(name).cloned()
    }

    /// The names that can be asked for.
    pub fn names(&self) -> Vec<String> {
        lock(&self.workers).keys().cloned().collect()
    }

    /// What is in force.
    pub fn shown(&self) -> Value {
        let workers = lock(&self.workers);
        let shown = workers
            .iter()
            .map(|(name, worker)| (name.clone(), worker.shown()));
        json!({ "workers": shown.collect::<BTreeMap<_, _>>() })
    }

    /// What was done.
    pub fn log(&self) -> Value {
        let kept = lock(&self.log.kept);
        json!({ "entries": kept.entries, "dropped": kept.dropped })
    }
}

impl WorkerFaults {
    /// Puts `fault` in force, in the place of what was.
    pub fn set(&self, fault: Fault) {
        let (ends, in_force) = watch::channel(());
        self.current.store(Some(Arc::new(Active {
            fault,
            chances: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            in_force,
            _ends: ends,
        })));
    }

    /// Takes the fault away; requests that it holds go on. Whether there was one.
    pub fn clear(&self) -> bool {
        self.current.swap(None).is_some()
    }

    /// Whether a connection that was just accepted is refused. If so that is written down.
    pub fn refuses(&self, peer: SocketAddr) -> bool {
        let injected = self.chance(|kind| matches!(kind, Kind::Refuse));
        injected.is_some_and(|mut injected| {
            injected.entry.peer = Some(peer);
            true
        })
    }

    /// What happens to a request whose head was just read.
    pub fn request(&self, peer: Option<SocketAddr>, id: Option<String>) -> Option<Injected> {
        let mut injected = self.chance(|_| true)?;
        injected.entry.peer = peer;
        injected.entry.request_id = id;
        Some(injected)
    }

    /// Takes a chance at a fault of the right kind.
    fn chance(&self, is_right: impl Fn(&Kind) -> bool) -> Option<Injected> {
        let active = self.current.load_full()?;
        if !is_right(&active.fault.kind) {
            return None;
        }
        let chance = active.chances.fetch_add(1, Ordering::Relaxed);
        if !active.fault.takes(chance) {
            return None;
        }
        let left = |taken: u64| {
            let is_left = active.fault.count.is_none_or(|count| taken < count);
            is_left.then_some(taken + 1)
        };
        let taken = &active.taken;
        taken
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, left)
            .ok()?;
        let kind = active.fault.kind.name();
        self.log.metrics.fault_injected(&self.name, kind);
        let now = self.log.clock.now().nanos();
        Some(Injected {
            kind: active.fault.kind.clone(),
            entry: Entry {
                worker: self.name.clone(),
                kind,
                chance,
                request_id: None,
                peer: None,
                began_ns: now,
                ended_ns: now,
                bytes: 0,
                pieces: 0,
            },
            in_force: active.in_force.clone(),
            log: self.log.clone(),
        })
    }

    fn shown(&self) -> Value {
        let Some(active) = self.current.load_full() else {
            return Value::Null;
        };
        json!({
            "fault": active.fault,
            "chances": active.chances.load(Ordering::Relaxed),
            "injected": active.taken.load(Ordering::Relaxed),
        })
    }
}

impl Injected {
    /// Waits until the fault is taken away or replaced.
    pub async fn taken_away(&mut self) {
        while self.in_force.changed().await.is_ok() {}
    }

    /// A piece of `bytes` is let pass.
    pub fn passed(&mut self, bytes: u64) {
        self.entry.bytes += bytes;
        self.entry.pieces += 1;
    }

    /// Bytes and pieces that were let pass.
    pub fn so_far(&self) -> (u64, u64) {
        (self.entry.bytes, self.entry.pieces)
    }
}

impl Drop for Injected {
    fn drop(&mut self) {
        self.entry.ended_ns = self.log.clock.now().nanos();
        let mut kept = lock(&self.log.kept);
        if kept.entries.len() >= KEPT {
            kept.entries.pop_front();
            kept.dropped += 1;
        }
        kept.entries.push_back(self.entry.clone());
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Stamp;

    fn faults() -> Faults {
        let (clock, _) = Clock::manual(Stamp::from_nanos(5));
        Faults::new(clock, Metrics::new().unwrap())
    }

    fn reset(count: Option<u64>) -> Fault {
        Fault {
            kind: Kind::Reset,
            probability: 1.0,
            seed: 0,
            count,
        }
    }

    #[test]
    fn a_fault_is_injected_as_often_as_asked_and_written_down() {
        let faults = faults();
        let worker = faults.worker("w");
        assert!(worker.request(None, None).is_none());
        worker.set(reset(Some(2)));
        let done = (0..5).filter(|n| worker.request(None, Some(n.to_string())).is_some());
        assert_eq!(done.count(), 2);
        // It refuses no connection: it is of another kind.
        assert!(!worker.refuses(([127, 0, 0, 1], 1).into()));
        assert_eq!(faults.shown()["workers"]["w"]["chances"], 5);
        assert_eq!(faults.shown()["workers"]["w"]["injected"], 2);
        let log = faults.log();
        let ids: Vec<_> = log["entries"].as_array().unwrap().iter().collect();
        assert_eq!(ids.len(), 2);
        assert_eq!(
            (&ids[1]["request_id"], &ids[1]["chance"]),
            (&"1".into(), &1.into())
        );
        assert!(worker.clear() && !worker.clear());
        assert!(worker.request(None, None).is_none());
    }

    #[test]
    fn the_log_is_bounded() {
        let faults = faults();
        let worker = faults.worker("w");
        worker.set(reset(None));
        for _ in 0..KEPT + 3 {
            worker.request(None, None);
        }
        let log = faults.log();
        assert_eq!(log["dropped"], 3);
        assert_eq!(log["entries"].as_array().unwrap().len(), KEPT);
        assert_eq!(log["entries"][0]["chance"], 3);
    }
}
