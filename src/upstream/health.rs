//! Passive health checks: an upstream that cannot be connected to is out, and probed until it can.
//!
//! A probe is a connect of our own, for which no client waits. An upstream that accepts a probe may still fail requests (by its
//! TLS).

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::task::JoinHandle;

use super::Upstream;

impl Upstream {
    /// A request could not connect: marks the upstream as out and has it probed with `connect`, each time after a pause, until that or
    /// a request connects, or it is used no more. One task probes it, whatever fails meanwhile.
    pub(super) fn mark_out<C: Future<Output = bool> + Send>(
        self: &Arc<Self>,
        pause: Duration,
        connect: impl Fn(Arc<Upstream>) -> C + Send + Sync + 'static,
    ) -> Option<JoinHandle<()>> {
        if !self.counts.is_out.swap(true, Relaxed) {
            log::warn!("upstream {}: cannot be connected to, left out", self.name());
        }
        if self.is_probed.swap(true, Relaxed) {
            return None;
        }
        let upstream = Arc::downgrade(self);
        Some(tokio::spawn(async move {
            loop {
                tokio::time::sleep(pause).await;
                let Some(upstream) = upstream.upgrade() else {
                    return;
                };
                if !upstream.counts.is_out.load(Relaxed) || connect(upstream.clone()).await {
                    upstream.is_probed.store(false, Relaxed);
                    return upstream.restore("a probe connected");
                }
            }
        }))
    }

    /// It was connected to: ends that it is out.
    pub(super) fn restore(&self, why: &str) {
        if self.counts.is_out.swap(false, Relaxed) {
            log::info!("upstream {}: is back: {why}", self.name());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use super::super::{Address, system_resolver};
    use super::*;

    const PAUSE: Duration = Duration::from_secs(1);

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
            self.upstream.mark_out(PAUSE, move |_| {
                probes.fetch_add(1, Ordering::Relaxed);
                std::future::ready(accepts.load(Ordering::Relaxed))
            })
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_upstream_is_out_until_a_probe_or_a_request_connects() {
        let one = Probed::new();
        let is_out = || one.upstream.counts.is_out.load(Relaxed);
        let probing = one.fail().unwrap();
        assert!(is_out());
        assert!(one.fail().is_none(), "one probes for all");
        // Probes after each second.
        tokio::time::sleep(Duration::from_millis(3500)).await;
        assert_eq!(one.probes.load(Ordering::Relaxed), 3);
        one.accepts.store(true, Ordering::Relaxed);
        probing.await.unwrap();
        assert_eq!(one.probes.load(Ordering::Relaxed), 4);
        assert!(!is_out());
        // The next failure starts again; after a request that connects there is no probe.
        let probing = one.fail().unwrap();
        one.upstream.restore("a request has connected");
        assert!(!is_out());
        probing.await.unwrap();
        assert_eq!(one.probes.load(Ordering::Relaxed), 4);
        assert!(one.fail().is_some(), "also after that");
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
