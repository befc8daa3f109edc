//! Passive health: an upstream that cannot be connected to is left out, and probed until it can.
//!
//! A probe is a connect of our own, so no client waits for one. That an upstream took a probe does not say that
//! it takes a request (its TLS may fail): the pause before the next probe only starts afresh when a request has
//! connected.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::Upstream;

/// What is known of an upstream by connecting to it, besides whether it is out.
#[derive(Debug, Default)]
pub(super) struct Health {
    /// Failures since a request last connected; many at once count as one.
    failures: u32,
    /// There is a probe, though it may find that none is needed any more.
    is_probed: bool,
}

/// The longest pause between two probes, unless the first is longer.
const LONGEST: Duration = Duration::from_secs(30);

impl Upstream {
    /// A request's connection did not come about. Whether the caller has to begin to [probe](Upstream::probe).
    #[must_use]
    pub(super) fn request_failed(&self) -> bool {
        let mut health = self.health.lock();
        if !self.counts.is_out.swap(true, Relaxed) {
            health.failures += 1;
            log::warn!("upstream {}: cannot be connected to, left out", self.name());
        }
        !std::mem::replace(&mut health.is_probed, true)
    }

    /// A request has a new connection.
    pub(super) fn request_connected(&self) {
        let mut health = self.health.lock();
        health.failures = 0;
        self.put_back("a request has connected");
    }

    /// A probe has ended.
    fn probed(&self, has_connected: bool) {
        let mut health = self.health.lock();
        match has_connected {
            true => self.put_back("a probe has connected"),
            false => health.failures += 1,
        }
    }

    /// It gets requests again, if it did not. The caller holds its health.
    fn put_back(&self, why: &str) {
        if self.counts.is_out.swap(false, Relaxed) {
            log::info!("upstream {}: is back, {why}", self.name());
        }
    }

    /// Whether there is more to probe; if not, the next failure asks for it anew.
    fn needs_probe(&self) -> bool {
        let mut health = self.health.lock();
        health.is_probed = self.counts.is_out.load(Relaxed);
        health.is_probed
    }

    /// How long to wait before the next probe: `first`, doubled with each failure.
    fn pause(&self, first: Duration) -> Duration {
        let doubled = self.health.lock().failures.saturating_sub(1).min(16);
        (first * 2_u32.pow(doubled)).min(first.max(LONGEST))
    }

    /// Probes by `connect` after a pause of `first`, and again after longer ones, until it connects or nobody uses
    /// the upstream any more.
    pub(super) async fn probe(
        upstream: Weak<Upstream>,
        first: Duration,
        connect: impl AsyncFn(Arc<Upstream>) -> bool,
    ) {
        while let Some(pause) = upstream.upgrade().map(|upstream| upstream.pause(first)) {
            tokio::time::sleep(pause).await;
            let Some(upstream) = upstream.upgrade().filter(|one| one.needs_probe()) else {
                return;
            };
            let has_connected = connect(upstream.clone()).await;
            upstream.probed(has_connected);
            if !upstream.needs_probe() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use tokio::task::JoinHandle;

    use super::super::{Address, system};
    use super::*;

    const FIRST: Duration = Duration::from_secs(1);

    /// An upstream whose probes succeed when `takes` is set.
    struct Probed {
        upstream: Arc<Upstream>,
        takes: Arc<AtomicBool>,
        probes: Arc<AtomicUsize>,
    }

    impl Probed {
        fn new() -> Probed {
            let address = Address::parse("127.0.0.1:1").unwrap();
            let upstream = Upstream::resolve(&address, system);
            Probed {
                upstream: Arc::new(upstream.unwrap()),
                takes: Arc::default(),
                probes: Arc::default(),
            }
        }

        /// A request fails, and the probing begins if it has to.
        fn fail(&self) -> Option<JoinHandle<()>> {
            let (takes, probes) = (self.takes.clone(), self.probes.clone());
            let connect = async move |_| {
                probes.fetch_add(1, Ordering::Relaxed);
                takes.load(Ordering::Relaxed)
            };
            let weak = Arc::downgrade(&self.upstream);
            let begins = self.upstream.request_failed();
            begins.then(|| tokio::spawn(Upstream::probe(weak, FIRST, connect)))
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
        let one = Probed::new();
        let probing = one.fail().unwrap();
        assert!(one.upstream.counts.is_out.load(Relaxed));
        assert!(one.fail().is_none(), "one probes for all");
        // Probes after 1, 2, 4 and 8 s.
        tokio::time::sleep(Duration::from_secs(8)).await;
        assert_eq!(one.probes.load(Ordering::Relaxed), 3);
        one.takes.store(true, Ordering::Relaxed);
        assert_eq!(8 + seconds(probing).await, 15);
        assert!(!one.upstream.counts.is_out.load(Relaxed));
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_grow_to_a_limit_and_start_afresh_with_a_request() {
        let one = Probed::new();
        one.takes.store(true, Ordering::Relaxed);
        let mut waited = Vec::new();
        for _ in 0..7 {
            waited.push(seconds(one.fail().unwrap()).await);
        }
        assert_eq!(waited, [1, 2, 4, 8, 16, 30, 30], "a probe is no request");
        one.upstream.request_connected();
        assert_eq!(seconds(one.fail().unwrap()).await, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_connects_ends_the_probing() {
        let one = Probed::new();
        let probing = one.fail().unwrap();
        one.upstream.request_connected();
        assert!(!one.upstream.counts.is_out.load(Relaxed));
        // It fails again before the probing woke: that one goes on.
        assert!(one.fail().is_none());
        one.upstream.request_connected();
        probing.await.unwrap();
        assert_eq!(one.probes.load(Ordering::Relaxed), 0);
        assert!(one.fail().is_some(), "the next failure asks anew");
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_probes_what_nobody_uses() {
        let one = Probed::new();
        let probing = one.fail().unwrap();
        let probes = one.probes.clone();
        drop(one);
        probing.await.unwrap();
        assert_eq!(probes.load(Ordering::Relaxed), 0);
    }
}
