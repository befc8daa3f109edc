//! The upstreams of a listener: who gets the next request, who is left out, and how Pingora connects to them.

use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use pingora::upstreams::peer::HttpPeer;
use tokio::net::TcpStream;

use crate::telemetry::prometheus::Metrics;
use crate::telemetry::upstreams::UpstreamCounts;

pub mod address;
pub mod health;
pub mod policy;
pub mod route;
pub mod trust;

#[cfg(test)]
mod tests;

pub use address::Address;
pub use policy::Policy;
pub use trust::Trust;

use health::Health;
use policy::{Candidate, Chooser};

/// How the upstreams of a listener are dealt with.
#[derive(Clone, Debug)]
pub struct Rules {
    /// Who gets the next request.
    pub policy: Policy,
    /// How long one that cannot be connected to is left out before the first probe.
    pub out: Duration,
    /// Who may sign the certificates of those that speak TLS; there when one does.
    pub trust: Option<Trust>,
    /// Whether a request whose connection broke before an answer is sent again, whatever it may have begun.
    pub resend_broken: bool,
    /// The time limits.
    pub limits: Limits,
}

/// The time limits on an upstream.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// On connecting to it.
    pub connect: Duration,
    /// On its silence, before its response and within it.
    pub read: Duration,
    /// On a single write to it.
    pub write: Duration,
    /// After which an idle connection is closed.
    pub idle: Duration,
}

/// The upstreams of one listener. A reload replaces them as a whole.
#[derive(Debug)]
pub struct Upstreams {
    all: Vec<Arc<Upstream>>,
    rules: Rules,
    chooser: Mutex<Chooser>,
}

/// One upstream. Those of the same address share it: two entries of a list, or the lists before and after a
/// reload.
#[derive(Debug)]
pub struct Upstream {
    name: String,
    address: Address,
    resolved: Mutex<SocketAddr>,
    stale: AtomicBool,
    counts: Arc<UpstreamCounts>,
    health: Arc<Health>,
}

/// An upstream that has a request, until this is dropped.
#[derive(Debug)]
pub struct Chosen {
    index: usize,
    upstream: Arc<Upstream>,
}

impl Upstreams {
    /// Resolves the addresses, which may block; those that are in `before` too keep their requests in flight and
    /// their health.
    ///
    /// # Errors
    /// The name that does not resolve, and why.
    pub fn resolve(
        addresses: &[Address],
        rules: Rules,
        before: Option<&Upstreams>,
        metrics: &Metrics,
    ) -> Result<Upstreams, String> {
        let mut all: Vec<Arc<Upstream>> = Vec::new();
        for address in addresses {
            let known = all.iter().chain(before.iter().flat_map(|b| &b.all));
            let known = known.into_iter().find(|known| known.address == *address);
            let upstream = match known {
                Some(known) => known.clone(),
                None => Arc::new(Upstream::resolve(address)?),
            };
            all.push(upstream);
        }
        // Only now: an address that fails leaves nothing behind.
        let old = |upstream| before.is_some_and(|b| b.all.iter().any(|o| Arc::ptr_eq(o, upstream)));
        for (index, upstream) in all.iter().enumerate() {
            let is_twice = all.iter().take(index).any(|o| Arc::ptr_eq(o, upstream));
            if !is_twice && !old(upstream) {
                metrics.upstreams().add(&upstream.counts);
            }
        }
        Ok(Upstreams {
            chooser: Mutex::new(Chooser::seeded(rules.policy, all.len())),
            all,
            rules,
        })
    }

    /// How they are dealt with.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// All of them, in the order of the config.
    pub fn all(&self) -> &[Arc<Upstream>] {
        &self.all
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.all.len()
    }

    /// Their names, in the order of the config.
    pub fn names(&self) -> Vec<String> {
        self.all
            .iter()
            .map(|upstream| upstream.name.clone())
            .collect()
    }

    /// Chooses one for a request, but none of `tried`, and none that is left out unless all others are.
    pub fn choose(&self, tried: &[usize]) -> Option<Chosen> {
        // Choosing and counting are one step, or two requests at once would both see the same shortest queue.
        let mut chooser = self.chooser.lock();
        let mut candidates =
            self.candidates(|index, upstream| !tried.contains(&index) && !upstream.counts.is_out());
        if candidates.is_empty() {
            candidates = self.candidates(|index, _| !tried.contains(&index));
        }
        let index = chooser.choose(&candidates)?;
        let upstream = self.all.get(index)?.clone();
        upstream.counts.request_began();
        Some(Chosen { index, upstream })
    }

    fn candidates(&self, may: impl Fn(usize, &Upstream) -> bool) -> Vec<Candidate> {
        let numbered = self.all.iter().enumerate();
        let can = numbered.filter(|(index, upstream)| may(*index, upstream));
        let candidate = |(index, upstream): (usize, &Arc<Upstream>)| Candidate {
            index,
            in_flight: upstream.counts.in_flight(),
        };
        can.map(candidate).collect()
    }

    /// A request's connection to `upstream` did not come about: it is left out and probed.
    pub fn connection_failed(&self, upstream: &Arc<Upstream>) {
        // A name may mean another machine by now.
        upstream.stale.store(true, Ordering::Relaxed);
        if !upstream.health.request_failed() {
            return;
        }
        let (health, probed) = (Arc::downgrade(&upstream.health), Arc::downgrade(upstream));
        let limit = self.rules.limits.connect;
        let connect = async move || match probed.upgrade() {
            Some(upstream) => upstream.can_connect(limit).await,
            None => true,
        };
        tokio::spawn(health::probe(health, self.rules.out, connect));
    }

    /// How Pingora connects to `upstream`, with our limits.
    pub async fn peer(&self, upstream: &Upstream) -> HttpPeer {
        let is_tls = upstream.address.is_tls();
        // Never empty with TLS: Pingora verifies nothing for an empty name.
        let name = upstream.address.host().to_owned();
        let mut peer = HttpPeer::new(upstream.current().await, is_tls, name);
        let limits = &self.rules.limits;
        let options = &mut peer.options;
        options.connection_timeout = Some(limits.connect);
        options.total_connection_timeout = Some(limits.connect);
        options.read_timeout = Some(limits.read);
        options.write_timeout = Some(limits.write);
        options.idle_timeout = Some(limits.idle);
        options.ca = self
            .rules
            .trust
            .as_ref()
            .filter(|_| is_tls)
            .map(Trust::roots);
        peer
    }
}

impl Upstream {
    fn resolve(address: &Address) -> Result<Upstream, String> {
        let name = address.name();
        let found = (address.host(), address.port()).to_socket_addrs();
        let resolved = found
            .map_err(|error| error.to_string())
            .and_then(|mut all| all.next().ok_or_else(|| "no address found".into()))
            .map_err(|error| format!("{name}: {error}"))?;
        let counts = Arc::new(UpstreamCounts::new(&name));
        Ok(Upstream {
            name,
            address: address.clone(),
            resolved: Mutex::new(resolved),
            stale: AtomicBool::new(false),
            health: Arc::new(Health::new(counts.clone())),
            counts,
        })
    }

    /// `host:port` as configured.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A request has a new connection.
    pub fn connected(&self) {
        self.health.request_connected();
    }

    /// Whether it takes a connection within the limit.
    pub async fn can_connect(&self, limit: Duration) -> bool {
        let connecting = async { TcpStream::connect(self.current().await).await };
        matches!(tokio::time::timeout(limit, connecting).await, Ok(Ok(_)))
    }

    async fn current(&self) -> SocketAddr {
        if self.address.is_name() && self.stale.swap(false, Ordering::Relaxed) {
            let name = (self.address.host(), self.address.port());
            if let Ok(mut found) = tokio::net::lookup_host(name).await
                && let Some(address) = found.next()
            {
                *self.resolved.lock() = address;
            }
        }
        *self.resolved.lock()
    }
}

impl Chosen {
    /// Its number among all.
    pub fn index(&self) -> usize {
        self.index
    }

    /// The upstream.
    pub fn upstream(&self) -> &Arc<Upstream> {
        &self.upstream
    }
}

impl Drop for Chosen {
    fn drop(&mut self) {
        self.upstream.counts.request_ended();
    }
}
