//! The faults in force, and the log of what was injected.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Serialize, Serializer};
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
    log: Arc<Mutex<Log>>,
    clock: Clock,
    metrics: Metrics,
}

/// A fault in force, with its counts.
#[derive(Debug, Serialize)]
struct ActiveFault {
    fault: Fault,
    chances: u64,
    injected: u64,
    /// Gone with the fault: then its receivers, the requests that it is being done to, see that it is removed.
    #[serde(rename = "under_way", serialize_with = "receivers")]
    in_force: watch::Sender<()>,
}

/// What was injected, newest last.
#[derive(Debug, Default, Serialize)]
struct Log {
    entries: VecDeque<Entry>,
    /// So many were before them.
    dropped: u64,
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
    log: Arc<Mutex<Log>>,
    clock: Clock,
}

/// How many requests the fault holds, slows or is to cut.
fn receivers<S: Serializer>(in_force: &watch::Sender<()>, to: S) -> Result<S::Ok, S::Error> {
    in_force.receiver_count().serialize(to)
}

/// Entries kept; older ones are dropped and counted.
const KEPT: usize = 16_384;

impl Faults {
    /// No fault yet.
    pub fn new(clock: Clock, metrics: Metrics) -> Faults {
        Faults {
            workers: Mutex::default(),
            log: Arc::default(),
            clock,
            metrics,
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
        json!(&*self.log.lock())
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

    /// Takes a chance to inject into a request, or a connection of which none was read, where `is_one` says that it is one for a
    /// fault of that kind. What is injected is logged.
    pub fn chance(
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
        let (kind, now) = (active.fault.kind.name(), self.clock.now().nanos());
        self.metrics.faults_injected.with(&[kind, worker]).inc();
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
            log: self.log.clone(),
            clock: self.clock.clone(),
        })
    }
}

impl Injected {
    /// Waits until the fault is removed or replaced.
    pub async fn removed(&mut self) {
        while self.in_force.changed().await.is_ok() {}
    }

    /// A piece of the response's body comes, of which what is beyond a cut is taken away: for how long it is held back, and whether
    /// the response ends with it.
    pub fn piece(&mut self, piece: &mut Vec<u8>) -> (Option<Duration>, bool) {
        if piece.is_empty() {
            return (None, false);
        }
        let Entry { bytes, pieces, .. } = &mut self.entry;
        let left = self.fault.cuts(*bytes, *pieces, piece.len() as u64);
        piece.truncate(left.map_or(piece.len(), |left| left as usize));
        (*bytes, *pieces) = (*bytes + piece.len() as u64, *pieces + 1);
        (self.fault.delay(piece.len()), left.is_some())
    }
}

impl Drop for Injected {
    fn drop(&mut self) {
        self.entry.ended_ns = self.clock.now().nanos();
        let log = &mut *self.log.lock();
        if log.entries.len() >= KEPT {
            log.entries.pop_front();
            log.dropped += 1;
        }
        log.entries.push_back(self.entry.clone());
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
        faults.chance(worker, PEER, None, |_| true)
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
