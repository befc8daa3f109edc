//! Passive health checks: an upstream that cannot be connected to is out, and probed until it can.
//!
//! A probe is a connect of our own, for which no client waits. An upstream that accepts a probe may still fail requests (by its
//! TLS): only a request that connects resets the pause before the next probe.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::task::{AbortHandle, JoinHandle};

use super::Upstream;

/// An upstream's health, besides whether it is out.
#[derive(Debug, Default)]
pub(super) struct Health {
    /// How often it went out since a request last connected, and how many probes failed.
    failures: u32,
    /// The task that probes it while it is out.
    probing: Option<AbortHandle>,
}

/// The longest pause between two probes, unless the first is longer.
const MAX_PAUSE: Duration = Duration::from_secs(30);

impl Upstream {
    /// A request could not connect: marks the upstream as out and has it probed with `connect`, after a pause of `first` and then
    /// longer ones, until it connects or is used no more. Does nothing if it is out already.
    pub(super) fn mark_out<C: Future<Output = bool> + Send>(
        self: &Arc<Self>,
        first: Duration,
        connect: impl Fn(Arc<Upstream>) -> C + Send + Sync + 'static,
    ) -> Option<JoinHandle<()>> {
        let mut health = self.health.lock();
        if self.counts.is_out.swap(true, Relaxed) {
            return None;
        }
        health.failures += 1;
        log::warn!("upstream {}: cannot be connected to, left out", self.name());
        let upstream = Arc::downgrade(self);
        let probing = tokio::spawn(async move {
            while let Some(pause) = upstream.upgrade().map(|upstream| upstream.pause(first)) {
                tokio::time::sleep(pause).await;
                let Some(upstream) = upstream.upgrade() else {
                    return;
                };
                if connect(upstream.clone()).await {
                    return upstream.restore("a probe connected");
                }
                upstream.health.lock().failures += 1;
            }
        });
        health.probing = Some(probing.abort_handle());
        Some(probing)
    }

    /// A request has connected.
    pub(super) fn request_connected(&self) {
        let mut health = self.health.lock();
        health.failures = 0;
        if let Some(probing) = health.probing.take() {
            probing.abort();
        }
        self.restore("a request has connected");
    }

    /// Ends that it is out.
    fn restore(&self, why: &str) {
        if self.counts.is_out.swap(false, Relaxed) {
            log::info!("upstream {}: is back: {why}", self.name());
        }
    }

    /// Returns the pause before the next probe: `first`, doubled with each failure.
    fn pause(&self, first: Duration) -> Duration {
        let doublings = self.health.lock().failures.saturating_sub(1).min(16);
        (first * 2_u32.pow(doublings)).min(first.max(MAX_PAUSE))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use super::super::{Address, system_resolver};
    use super::*;

    const FIRST: Duration = Duration::from_secs(1);

    /// An upstream whose probes succeed if `accepts` is set.
    struct Probed {
        upstream: Arc<Upstream>,
        accepts: Arc<AtomicBool>,
        probes: Arc<AtomicUsize>,
    }

    impl Probed {
        fn new() -> Probed {
            let address = Address::parse("127.0.0.1:1").unwrap();
            let upstream = Upstream::resolve(&address, system_resolver);
            Probed {
                upstream: Arc::new(upstream.unwrap()),
                accepts: Arc::default(),
                probes: Arc::default(),
            }
        }

        /// Has a request fail, and starts probing if that is needed.
        fn fail(&self) -> Option<JoinHandle<()>> {
            let (accepts, probes) = (self.accepts.clone(), self.probes.clone());
            self.upstream.mark_out(FIRST, move |_| {
                probes.fetch_add(1, Ordering::Relaxed);
                std::future::ready(accepts.load(Ordering::Relaxed))
            })
        }
    }

    /// Returns after how many seconds the probing ends, looking half-way between them.
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
    async fn an_upstream_is_out_until_a_probe_connects() {
        let one = Probed::new();
        let probing = one.fail().unwrap();
        assert!(one.upstream.counts.is_out.load(Relaxed));
        assert!(one.fail().is_none(), "one probes for all");
        // Probes after 1, 2, 4 and 8 s.
        tokio::time::sleep(Duration::from_secs(8)).await;
        assert_eq!(one.probes.load(Ordering::Relaxed), 3);
        one.accepts.store(true, Ordering::Relaxed);
        assert_eq!(8 + seconds(probing).await, 15);
        assert!(!one.upstream.counts.is_out.load(Relaxed));
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_grow_to_a_limit_and_a_request_resets_them() {
        let one = Probed::new();
        one.accepts.store(true, Ordering::Relaxed);
        let mut pauses = Vec::new();
        for _ in 0..7 {
            pauses.push(seconds(one.fail().unwrap()).await);
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30], "a probe is no request");
        one.upstream.request_connected();
        assert_eq!(seconds(one.fail().unwrap()).await, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_connects_ends_the_probing() {
        let one = Probed::new();
        let probing = one.fail().unwrap();
        one.upstream.request_connected();
        assert!(!one.upstream.counts.is_out.load(Relaxed));
        assert!(probing.await.unwrap_err().is_cancelled());
        assert_eq!(one.probes.load(Ordering::Relaxed), 0);
        assert!(one.fail().is_some(), "the next failure starts again");
    }

    #[tokio::test(start_paused = true)]
    async fn an_upstream_that_is_used_no_more_is_not_probed() {
        let one = Probed::new();
        let probing = one.fail().unwrap();
        let probes = one.probes.clone();
        drop(one);
        probing.await.unwrap();
        assert_eq!(probes.load(Ordering::Relaxed), 0);
    }
}
