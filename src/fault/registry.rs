//! The faults in force, and the log of what was injected.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::clock::Clock;
use crate::fault::{Fault, Kind};
use crate::telemetry::prometheus::Metrics;

/// The faults of all workers.
#[derive(Debug)]
pub struct Faults {
    /// The fault of each worker that there is, if it has one.
    workers: Mutex<BTreeMap<String, Option<ActiveFault>>>,
    log: Arc<Log>,
}

/// A fault in force, with its counts.
#[derive(Debug, Serialize)]
struct ActiveFault {
    fault: Fault,
    chances: u64,
    injected: u64,
    /// Gone with the fault: then its receivers see that it is removed.
    #[serde(skip)]
    in_force: watch::Sender<()>,
}

/// What was injected, newest last.
#[derive(Debug)]
struct Log {
    clock: Clock,
    metrics: Metrics,
    /// And how many were before them.
    kept: Mutex<(VecDeque<Entry>, u64)>,
}

/// What was injected into one request or connection.
#[derive(Clone, Debug, Serialize)]
struct Entry {
    /// The worker's name.
    worker: String,
    /// The kind's name.
    kind: &'static str,
    /// Number of the chance, from 0, since the fault was set.
    chance: u64,
    /// The request's `x-request-id`; `None` where none was read.
    request_id: Option<String>,
    /// Who was at the other end.
    peer: SocketAddr,
    /// When it began: nanoseconds since the epoch, on the proxy's clock.
    began_ns: i64,
    /// When it was over.
    ended_ns: i64,
    /// Bytes of the response's body that were let pass from then on.
    bytes: u64,
    /// Pieces of it.
    pieces: u64,
}

/// A fault injected into a request. Logged when dropped.
#[derive(Debug)]
pub struct Injected {
    /// What it does.
    pub fault: Fault,
    entry: Entry,
    in_force: watch::Receiver<()>,
    log: Arc<Log>,
}

/// What becomes of a piece of the response's body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Treated {
    /// It is held back for so long.
    pub held: Option<Duration>,
    /// The response ends with it.
    pub is_cut: bool,
}

/// Entries kept; older ones are dropped and counted.
const KEPT: usize = 16_384;

impl Faults {
    /// No fault yet.
    pub fn new(clock: Clock, metrics: Metrics) -> Faults {
        Faults {
            workers: Mutex::default(),
            log: Arc::new(Log {
                clock,
                metrics,
                kept: Mutex::default(),
            }),
        }
    }

    /// From now on there are the workers of these names. The fault of any other is removed: its connections may
    /// last, and requests that the fault holds go on.
    pub fn keep(&self, names: &[&str]) {
        let mut workers = self.workers.lock();
        let mut before = std::mem::take(&mut *workers);
        let kept = |name: &&str| ((*name).to_owned(), before.remove(*name).flatten());
        *workers = names.iter().map(kept).collect();
    }

    /// The names of all workers.
    pub fn names(&self) -> Vec<String> {
        self.workers.lock().keys().cloned().collect()
    }

    /// What is in force.
    pub fn shown(&self) -> Value {
        json!({ "workers": &*self.workers.lock() })
    }

    /// What was injected.
    pub fn log(&self) -> Value {
        let (entries, dropped) = &*self.log.kept.lock();
        json!({ "entries": entries, "dropped": dropped })
    }

    /// Puts `fault` in force at a worker in the place of what was, or removes that; requests that it holds go on. Whether there
    /// was one.
    pub fn set(&self, worker: &str, fault: Option<Fault>) -> bool {
        let active = fault.map(|fault| ActiveFault {
            fault,
            chances: 0,
            injected: 0,
            in_force: watch::channel(()).0,
        });
        let mut workers = self.workers.lock();
        let current = workers.get_mut(worker);
        current.is_some_and(|current| std::mem::replace(current, active).is_some())
    }

    /// Whether a connection to a worker that was just accepted is reset, which is logged.
    pub fn refuses(&self, worker: &str, peer: SocketAddr) -> bool {
        let is_chance = |kind| kind == Kind::Refuse;
        self.chance(worker, peer, None, is_chance).is_some()
    }

    /// What happens to a request whose head was just read, if it is a chance. All but [`Kind::Refuse`] is done to
    /// requests that generate only, so that a router's health checks use nothing up. Refused is any
    /// request but the first of its connection, which itself was the chance.
    pub fn request(
        &self,
        worker: &str,
        peer: SocketAddr,
        id: Option<&str>,
        (generates, is_first): (bool, bool),
    ) -> Option<Injected> {
        let is_chance = |kind| match kind {
            Kind::Refuse => !is_first,
            _ => generates,
        };
        self.chance(worker, peer, id, is_chance)
    }

    /// Takes a chance, where `is_one` says that it is one for a fault of that kind.
    fn chance(
        &self,
        worker: &str,
        peer: SocketAddr,
        request_id: Option<&str>,
        is_one: impl Fn(Kind) -> bool,
    ) -> Option<Injected> {
        let mut workers = self.workers.lock();
        let active = workers.get_mut(worker)?.as_mut();
        let active = active.filter(|one| is_one(one.fault.kind))?;
        let chance = active.chances;
        active.chances += 1;
        let most = active.fault.count.map_or(u64::MAX, NonZeroU64::get);
        if active.injected >= most || !active.fault.takes(chance) {
            return None;
        }
        active.injected += 1;
        let (log, kind) = (self.log.clone(), active.fault.kind.name());
        let counter = log.metrics.faults_injected.with(&[kind, worker]);
        counter.inc();
        let now = log.clock.now().nanos();
        Some(Injected {
            fault: active.fault.clone(),
            entry: Entry {
                worker: worker.to_owned(),
                kind,
                chance,
                request_id: request_id.map(str::to_owned),
                peer,
                began_ns: now,
                ended_ns: now,
                bytes: 0,
                pieces: 0,
            },
            in_force: active.in_force.subscribe(),
            log,
        })
    }
}

impl Injected {
    /// Waits until the fault is removed or replaced.
    pub async fn removed(&mut self) {
        while self.in_force.changed().await.is_ok() {}
    }

    /// A piece of the response's body comes. What is beyond a cut is taken away.
    pub fn piece(&mut self, piece: &mut Vec<u8>) -> Treated {
        if piece.is_empty() {
            return Treated::default();
        }
        let Entry { bytes, pieces, .. } = &mut self.entry;
        let left = self.fault.cuts(*bytes, *pieces, piece.len() as u64);
        piece.truncate(left.map_or(piece.len(), |left| left as usize));
        (*bytes, *pieces) = (*bytes + piece.len() as u64, *pieces + 1);
        Treated {
            held: self.fault.delay(piece.len()),
            is_cut: left.is_some(),
        }
    }
}

impl Drop for Injected {
    fn drop(&mut self) {
        self.entry.ended_ns = self.log.clock.now().nanos();
        let (entries, dropped) = &mut *self.log.kept.lock();
        if entries.len() >= KEPT {
            entries.pop_front();
            *dropped += 1;
        }
        entries.push_back(self.entry.clone());
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddrV4};

    use super::*;
    use crate::clock::Stamp;

    fn faults() -> Faults {
        let (clock, _) = Clock::manual(Stamp::from_nanos(5));
        let faults = Faults::new(clock, Metrics::new().unwrap());
        faults.keep(&["w"]);
        faults
    }

    const PEER: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 1));

    fn generation(faults: &Faults, worker: &str) -> Option<Injected> {
        faults.request(worker, PEER, None, (true, false))
    }

    fn fault(kind: &str, count: u64) -> Option<Fault> {
        let json = format!(r#"{{"kind":"{kind}","count":{count}}}"#);
        Some(Fault::parse(json.as_bytes()).unwrap())
    }

    #[test]
    fn only_workers_that_are_there_have_faults() {
        let faults = faults();
        faults.keep(&["stays", "goes"]);
        assert_eq!(faults.names(), ["goes", "stays"]);
        for worker in ["stays", "goes", "never came"] {
            faults.set(worker, fault("reset", 99));
        }
        assert!(generation(&faults, "never came").is_none());
        faults.keep(&["stays"]);
        assert!(generation(&faults, "goes").is_none());
        faults.keep(&["stays", "goes"]);
        // One that comes again is another.
        assert!(generation(&faults, "goes").is_none() && generation(&faults, "stays").is_some());
    }

    #[test]
    fn the_log_is_bounded() {
        let faults = faults();
        faults.set("w", fault("reset", 99_999));
        for _ in 0..KEPT + 3 {
            generation(&faults, "w");
        }
        let log = faults.log();
        assert_eq!(log["dropped"], 3);
        assert_eq!(log["entries"].as_array().unwrap().len(), KEPT);
        assert_eq!(log["entries"][0]["chance"], 3);
    }
}
