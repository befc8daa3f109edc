//! One upstream: which of its addresses is used, and whether it is out.
//!
//! An address is used until it cannot be connected to, then the next: what is known of an upstream (its clock, its queue) is then known
//! of one server. If none can be connected to, the upstream is out, and probed until one can. A probe is a connect of our own, for which
//! no client waits. An upstream that accepts a probe may still fail requests (by its TLS).

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use crate::telemetry::prometheus::UpstreamFigures;

use super::address::Address;
use super::prefixes::Prefixes;

/// Looks up host and port; may block.
pub type Resolver = fn(&str, u16) -> io::Result<Vec<SocketAddr>>;

/// One upstream. Entries of the same address share it, in one list and in the lists before and after a reload.
#[derive(Debug)]
pub struct Upstream {
    pub(super) address: Address,
    resolver: Resolver,
    /// The addresses of its name, at least one. The first is in use; one that fails becomes the last.
    addresses: Mutex<Vec<SocketAddr>>,
    pub(super) counts: Arc<UpstreamFigures>,
    /// Whether a task probes it.
    is_probed: AtomicBool,
    /// Which prompts it got by [`Policy::CacheAware`](super::Policy::CacheAware).
    pub(super) prefixes: Mutex<Prefixes>,
}

/// The system's resolver.
pub fn system_resolver(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    (host, port).to_socket_addrs().map(Iterator::collect)
}

impl Upstream {
    /// Looks `address` up. Blocks.
    ///
    /// # Errors
    /// There is none, and why.
    pub(super) fn resolve(address: &Address, resolver: Resolver) -> Result<Upstream, String> {
        let name = address.name();
        let found = resolver(address.host(), address.port());
        let found = found.map_err(|error| format!("{name}: {error}"))?;
        let Some(first) = found.first() else {
            return Err(format!("{name}: no address found"));
        };
        let same_family = found.iter().filter(|at| at.is_ipv4() == first.is_ipv4());
        let count = same_family.count();
        if count > 1 {
            log::warn!(
                "upstream {name} has {count} addresses: requests go to one at a time, now {first}; to share them out over all, \
                 give each as an upstream of its own"
            );
        }
        Ok(Upstream {
            address: address.clone(),
            resolver,
            addresses: Mutex::new(found),
            counts: Arc::new(UpstreamFigures {
                name,
                ..UpstreamFigures::default()
            }),
            is_probed: AtomicBool::default(),
            prefixes: Mutex::default(),
        })
    }

    /// `host:port` as configured.
    pub fn name(&self) -> &str {
        &self.counts.name
    }

    /// Returns its addresses, in the order in which they are to be tried.
    pub(super) fn in_order(&self) -> Vec<SocketAddr> {
        self.addresses.lock().clone()
    }

    /// Moves `at`, which could not be connected to, to the end.
    pub(super) fn failed_at(&self, at: SocketAddr) {
        let mut all = self.addresses.lock();
        all.sort_by_key(|known| *known == at);
    }

    /// Whether one of its addresses takes a connection, each within the limit.
    pub async fn can_connect(&self, limit: Duration) -> bool {
        for at in self.in_order() {
            let connecting = tokio::time::timeout(limit, TcpStream::connect(at));
            if let Ok(Ok(_)) = connecting.await {
                return true;
            }
            self.failed_at(at);
        }
        false
    }

    /// Looks the name up again. If none is found, or a known address took a connection meanwhile, nothing changes. Blocks.
    pub(super) fn look_up_again(&self) {
        let (host, port) = (self.address.host(), self.address.port());
        let found = (self.resolver)(host, port).unwrap_or_default();
        let mut all = self.addresses.lock();
        if !found.is_empty() && self.counts.is_out.load(Relaxed) {
            *all = found;
        }
    }

    /// A request could not connect: marks the upstream as out and has it probed, each time after a pause, until that or a request
    /// connects, or it is used no more. One task probes it, whatever fails meanwhile.
    pub(super) fn mark_out(
        self: &Arc<Self>,
        pause: Duration,
        limit: Duration,
    ) -> Option<JoinHandle<()>> {
        if !self.counts.is_out.swap(true, Relaxed) {
            log::warn!("upstream {}: cannot be connected to, left out", self.name());
        }
        if self.is_probed.swap(true, Relaxed) {
            return None;
        }
        let weak = Arc::downgrade(self);
        Some(tokio::spawn(async move {
            let mut look_up: Option<JoinHandle<()>> = None;
            loop {
                // Its addresses may have changed. A slow resolver delays no probe.
                if look_up.as_ref().is_none_or(JoinHandle::is_finished) {
                    let weak = weak.clone();
                    let again = move || weak.upgrade().iter().for_each(|of| of.look_up_again());
                    look_up = Some(tokio::task::spawn_blocking(again));
                }
                tokio::time::sleep(pause).await;
                let Some(upstream) = weak.upgrade() else {
                    return;
                };
                if !upstream.counts.is_out.load(Relaxed) || upstream.can_connect(limit).await {
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
    use tokio::net::TcpSocket;

    use super::*;

    const PAUSE: Duration = Duration::from_secs(1);

    /// An upstream at a port of ours, where nobody listens yet.
    fn upstream() -> (Arc<Upstream>, TcpSocket) {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = socket.local_addr().unwrap().into();
        let upstream = Upstream::resolve(&address, system_resolver);
        (Arc::new(upstream.unwrap()), socket)
    }

    #[tokio::test(start_paused = true)]
    async fn an_upstream_is_out_until_a_probe_or_a_request_connects() {
        let (one, socket) = upstream();
        let is_out = || one.counts.is_out.load(Relaxed);
        let probing = one.mark_out(PAUSE, PAUSE).unwrap();
        assert!(is_out());
        assert!(one.mark_out(PAUSE, PAUSE).is_none(), "one probes for all");
        tokio::time::sleep(PAUSE * 4).await;
        assert!(is_out() && !probing.is_finished());
        let listener = socket.listen(8).unwrap();
        probing.await.unwrap();
        assert!(!is_out());
        listener.accept().await.unwrap();
        // The next failure starts again; after a request that connects there is no probe.
        let probing = one.mark_out(PAUSE, PAUSE).unwrap();
        one.restore("a request has connected");
        assert!(!is_out());
        probing.await.unwrap();
        let probed = tokio::time::timeout(PAUSE, listener.accept()).await;
        assert!(probed.is_err());
        assert!(one.mark_out(PAUSE, PAUSE).is_some(), "also after that");
    }

    #[tokio::test(start_paused = true)]
    async fn an_upstream_that_is_used_no_more_is_not_probed() {
        let (one, socket) = upstream();
        let listener = socket.listen(8).unwrap();
        let probing = one.mark_out(PAUSE, PAUSE).unwrap();
        tokio::time::sleep(PAUSE / 2).await;
        drop(one);
        probing.await.unwrap();
        let probed = tokio::time::timeout(PAUSE, listener.accept()).await;
        assert!(probed.is_err());
    }
}
