//! Passive health: an upstream that cannot be connected to is left out, and probed until it can.
//!
//! A probe is a connect of our own, so no client waits for one. That an upstream took a probe does not say that
//! it takes a request (its TLS may fail): the pause before the next probe only starts afresh when a request has
//! connected.

use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;

use crate::telemetry::upstreams::UpstreamFigures;

/// The state of one upstream, shared by its requests and its probe.
#[derive(Debug)]
pub struct Health {
    counts: Arc<UpstreamFigures>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Failures since a request last connected; many at once count as one.
    failures: u32,
    /// There is a probe, though it may find that none is needed any more.
    is_probed: bool,
}

/// The longest pause between two probes, unless the first is longer.
const LONGEST: Duration = Duration::from_secs(30);

impl Health {
    /// Healthy until shown otherwise; what is known is written to `counts`.
    pub fn new(counts: Arc<UpstreamFigures>) -> Health {
        Health {
            counts,
            state: Mutex::default(),
        }
    }

    /// A request's connection did not come about. Whether the caller has to begin to [`probe`].
    #[must_use]
    pub fn request_failed(&self) -> bool {
        let mut state = self.state.lock();
        if !self.counts.set_out(true) {
            state.failures += 1;
            let name = &self.counts.name;
            log::warn!("upstream {name}: cannot be connected to, left out");
        }
        !std::mem::replace(&mut state.is_probed, true)
    }

    /// A request has a new connection.
    pub fn request_connected(&self) {
        let mut state = self.state.lock();
        state.failures = 0;
        self.put_back("a request has connected");
    }

    /// A probe has ended.
    fn probed(&self, has_connected: bool) {
        let mut state = self.state.lock();
        if has_connected {
            self.put_back("a probe has connected");
        } else {
            state.failures += 1;
        }
    }

    /// It gets requests again, if it did not. The caller holds the state.
    fn put_back(&self, why: &str) {
        if self.counts.set_out(false) {
            log::info!("upstream {}: is back, {why}", self.counts.name);
        }
    }

    /// Whether there is more to probe; if not, the next failure asks for it anew.
    fn needs_probe(&self) -> bool {
        let mut state = self.state.lock();
        state.is_probed = self.counts.is_out();
        state.is_probed
    }

    /// How long to wait before the next probe: `first`, doubled with each failure.
    fn pause(&self, first: Duration) -> Duration {
        let doubled = self.state.lock().failures.saturating_sub(1).min(16);
        (first * 2_u32.pow(doubled)).min(first.max(LONGEST))
    }
}

/// Probes by `connect` after a pause of `first`, and again after longer ones, until it connects or nobody uses
/// the upstream any more.
pub async fn probe(health: Weak<Health>, first: Duration, connect: impl AsyncFn() -> bool) {
    loop {
        let Some(pause) = health.upgrade().map(|health| health.pause(first)) else {
            return;
        };
        tokio::time::sleep(pause).await;
        let needs_probe = || health.upgrade().is_some_and(|health| health.needs_probe());
        if !needs_probe() {
            return;
        }
        let has_connected = connect().await;
        if let Some(health) = health.upgrade() {
            health.probed(has_connected);
        }
        if !needs_probe() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use tokio::task::JoinHandle;

    const FIRST: Duration = Duration::from_secs(1);

    /// An upstream whose probes succeed when `takes` is set.
    struct Upstream {
        health: Arc<Health>,
        counts: Arc<UpstreamFigures>,
        takes: Arc<AtomicBool>,
        probes: Arc<AtomicUsize>,
    }

    impl Upstream {
        fn new() -> Upstream {
            let counts = Arc::new(UpstreamFigures::new("a:1".into()));
            Upstream {
                health: Arc::new(Health::new(counts.clone())),
                counts,
                takes: Arc::default(),
                probes: Arc::default(),
            }
        }

        /// A request fails, and the probing begins if it has to.
        fn fail(&self) -> Option<JoinHandle<()>> {
            let (takes, probes) = (self.takes.clone(), self.probes.clone());
            let connect = async move || {
                probes.fetch_add(1, Ordering::Relaxed);
                takes.load(Ordering::Relaxed)
            };
            let health = Arc::downgrade(&self.health);
            let begins = self.health.request_failed();
            begins.then(|| tokio::spawn(probe(health, FIRST, connect)))
        }
    }

    /// How many seconds pass until the probing ends. It looks half-way between them.
    async fn seconds(mut probing: JoinHandle<()>) -> u64 {
        let mut step = Duration::from_millis(500);
        let mut passed = 0;
        while tokio::time::timeout(step, &mut probing).await.is_err() {
            step = Duration::from_secs(1);
            passed += 1;
        }
        passed
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_left_out_until_a_probe_connects() {
        let upstream = Upstream::new();
        let probing = upstream.fail().unwrap();
        assert!(upstream.counts.is_out());
        assert!(upstream.fail().is_none(), "one probes for all");
        // Probes after 1, 2, 4 and 8 s.
        tokio::time::sleep(Duration::from_secs(8)).await;
        assert_eq!(upstream.probes.load(Ordering::Relaxed), 3);
        upstream.takes.store(true, Ordering::Relaxed);
        assert_eq!(8 + seconds(probing).await, 15);
        assert!(!upstream.counts.is_out());
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_grow_to_a_limit_and_start_afresh_with_a_request() {
        let upstream = Upstream::new();
        upstream.takes.store(true, Ordering::Relaxed);
        let mut waited = Vec::new();
        for _ in 0..7 {
            waited.push(seconds(upstream.fail().unwrap()).await);
        }
        assert_eq!(waited, [1, 2, 4, 8, 16, 30, 30], "a probe is no request");
        upstream.health.request_connected();
        assert_eq!(seconds(upstream.fail().unwrap()).await, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_connects_ends_the_probing() {
        let upstream = Upstream::new();
        let probing = upstream.fail().unwrap();
        upstream.health.request_connected();
        assert!(!upstream.counts.is_out());
        // It fails again before the probing woke: that one goes on.
        assert!(upstream.fail().is_none());
        upstream.health.request_connected();
        probing.await.unwrap();
        assert_eq!(upstream.probes.load(Ordering::Relaxed), 0);
        assert!(upstream.fail().is_some(), "the next failure asks anew");
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_probes_what_nobody_uses() {
        let upstream = Upstream::new();
        let probing = upstream.fail().unwrap();
        let probes = upstream.probes.clone();
        drop(upstream);
        probing.await.unwrap();
        assert_eq!(probes.load(Ordering::Relaxed), 0);
    }
}
