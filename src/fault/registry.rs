//! The faults in force, and the log of what was injected.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::client::accept::Admission;
use crate::clock::Clock;
use crate::fault::{Fault, Kind};
use crate::telemetry::prometheus::Metrics;

/// The faults of all workers.
#[derive(Debug)]
pub struct Faults {
    /// Their listeners hold them.
    workers: Mutex<BTreeMap<String, Weak<WorkerFaults>>>,
    log: Arc<Log>,
}

/// The fault of one worker, if any.
#[derive(Debug)]
pub struct WorkerFaults {
    name: String,
    current: Mutex<Option<ActiveFault>>,
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

    /// The faults of the worker of this name. A new one stays for as long as somebody holds it: a reload that is
    /// refused leaves none behind.
    pub fn worker(&self, name: &str) -> Arc<WorkerFaults> {
        let mut workers = self.workers.lock();
        let known = workers.get(name).and_then(Weak::upgrade);
        known.unwrap_or_else(|| {
            let new = Arc::new(WorkerFaults {
                name: name.to_owned(),
                current: Mutex::default(),
                log: self.log.clone(),
            });
            workers.insert(name.to_owned(), Arc::downgrade(&new));
            new
        })
    }

    /// From now on there are only the workers of these names. The fault of any other is removed: its connections may
    /// last, and requests that the fault holds go on.
    pub fn keep(&self, names: &[&str]) {
        self.workers.lock().retain(|name, worker| {
            let stays = names.contains(&name.as_str());
            if let Some(worker) = worker.upgrade().filter(|_| !stays) {
                worker.clear();
            }
            stays
        });
    }

    /// The worker of this name, if there is one.
    pub fn find(&self, name: &str) -> Option<Arc<WorkerFaults>> {
        self.workers.lock().get(name).and_then(Weak::upgrade)
    }

    /// The names of all workers.
    pub fn names(&self) -> Vec<String> {
        self.present().into_keys().collect()
    }

    /// What is in force.
    pub fn shown(&self) -> Value {
        let shown = |worker: &Arc<WorkerFaults>| json!(&*worker.current.lock());
        let workers = self.present();
        let shown = workers.iter().map(|(name, worker)| (name, shown(worker)));
        json!({ "workers": shown.collect::<BTreeMap<_, _>>() })
    }

    fn present(&self) -> BTreeMap<String, Arc<WorkerFaults>> {
        let workers = self.workers.lock();
        let present = |(name, worker): (&String, &Weak<_>)| Some((name.clone(), worker.upgrade()?));
        workers.iter().filter_map(present).collect()
    }

    /// What was injected.
    pub fn log(&self) -> Value {
        let (entries, dropped) = &*self.log.kept.lock();
        json!({ "entries": entries, "dropped": dropped })
    }
}

impl WorkerFaults {
    /// Puts `fault` in force, in the place of what was.
    pub fn set(&self, fault: Fault) {
        *self.current.lock() = Some(ActiveFault {
            fault,
            chances: 0,
            injected: 0,
            in_force: watch::channel(()).0,
        });
    }

    /// Removes the fault; requests that it holds go on. Whether there was one.
    pub fn clear(&self) -> bool {
        self.current.lock().take().is_some()
    }

    /// Decides on a connection that was just accepted, and logs a refusal.
    pub fn admit(&self, peer: SocketAddr) -> Admission {
        match self.chance(peer, None, |kind| kind == Kind::Refuse) {
            None => Admission::Served,
            Some(None) => Admission::Spared,
            Some(Some(_logged)) => Admission::Refused,
        }
    }

    /// What happens to a request of `peer` whose head was just read, if it is a chance. All but [`Kind::Refuse`] is done to
    /// requests that generate only, so that a router's health checks use nothing up. Refused is any
    /// request, unless its connection was [spared](Admission::Spared) just before.
    pub fn request(
        &self,
        peer: SocketAddr,
        id: Option<&str>,
        (generates, is_spared): (bool, bool),
    ) -> Option<Injected> {
        let is_chance = |kind| match kind {
            Kind::Refuse => !is_spared,
            _ => generates,
        };
        self.chance(peer, id, is_chance).flatten()
    }

    /// Takes a chance, where `is_one` says that it is one for a fault of that kind.
    fn chance(
        &self,
        peer: SocketAddr,
        request_id: Option<&str>,
        is_one: impl Fn(Kind) -> bool,
    ) -> Option<Option<Injected>> {
        let mut current = self.current.lock();
        let active = current.as_mut().filter(|one| is_one(one.fault.kind))?;
        let chance = active.chances;
        active.chances += 1;
        let most = active.fault.count.map_or(u64::MAX, NonZeroU64::get);
        if active.injected >= most || !active.fault.takes(chance) {
            return Some(None);
        }
        active.injected += 1;
        let (log, kind) = (self.log.clone(), active.fault.kind.name());
        let counter = log.metrics.faults_injected.with(&[kind, &self.name]);
        counter.inc();
        let now = log.clock.now().nanos();
        Some(Some(Injected {
            fault: active.fault.clone(),
            entry: Entry {
                worker: self.name.clone(),
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
        }))
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
        Faults::new(clock, Metrics::new().unwrap())
    }

    const PEER: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 1));

    fn generation(worker: &WorkerFaults) -> Option<Injected> {
        worker.request(PEER, None, (true, false))
    }

    fn fault(kind: &str, probability: f64, count: u64) -> Fault {
        let json = format!(r#"{{"kind":"{kind}","probability":{probability},"count":{count}}}"#);
        Fault::parse(json.as_bytes()).unwrap()
    }

    #[test]
    fn a_fault_is_injected_as_often_as_asked_and_written_down() {
        let faults = faults();
        let worker = faults.worker("w");
        assert!(generation(&worker).is_none());
        worker.set(fault("reset", 1.0, 2));
        let request = |n: i32| worker.request(PEER, Some(&n.to_string()), (true, false));
        assert_eq!((0..5).filter(|n| request(*n).is_some()).count(), 2);
        // It refuses no connection: it is of another kind.
        let admission = worker.admit(PEER);
        assert_eq!(admission, Admission::Served);
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
        assert!(generation(&worker).is_none());
    }

    #[test]
    fn what_does_not_generate_uses_nothing_up() {
        let faults = faults();
        let worker = faults.worker("w");
        let health = || worker.request(PEER, None, (false, false));
        worker.set(fault("reset", 1.0, 1));
        assert!((0..5).all(|_| health().is_none()));
        assert_eq!(faults.shown()["workers"]["w"]["chances"], 0);
        assert!(generation(&worker).is_some());
        worker.set(fault("refuse", 1.0, 1));
        assert!(health().is_some(), "a kept connection");
    }

    #[test]
    fn only_workers_that_are_there_can_be_asked_for() {
        let faults = faults();
        let stays = faults.worker("stays");
        let goes = faults.worker("goes");
        drop(faults.worker("never came"));
        assert_eq!(faults.names(), ["goes", "stays"]);
        stays.set(fault("reset", 1.0, 99_999));
        goes.set(fault("reset", 1.0, 99_999));
        faults.keep(&["stays"]);
        assert_eq!(faults.names(), ["stays"]);
        assert!(faults.find("goes").is_none() && generation(&goes).is_none());
        assert!(Arc::ptr_eq(&faults.worker("stays"), &stays));
        assert!(generation(&stays).is_some());
        // One that comes again is another.
        assert!(!Arc::ptr_eq(&faults.worker("goes"), &goes));
    }

    #[test]
    fn the_log_is_bounded() {
        let faults = faults();
        let worker = faults.worker("w");
        worker.set(fault("reset", 1.0, 99_999));
        for _ in 0..KEPT + 3 {
            generation(&worker);
        }
        let log = faults.log();
        assert_eq!(log["dropped"], 3);
        assert_eq!(log["entries"].as_array().unwrap().len(), KEPT);
        assert_eq!(log["entries"][0]["chance"], 3);
    }
}
