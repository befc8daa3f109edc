//! The upstreams of a listener: who gets the next request, who is left out, and how Pingora connects to them.

use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use pingora::upstreams::peer::HttpPeer;
use tokio::net::TcpStream;

use crate::telemetry::prometheus::{ChosenBy, Metrics};
use crate::telemetry::upstreams::UpstreamFigures;

pub mod address;
pub mod affinity;
mod counts;
pub mod health;
pub mod policy;
mod prefixes;
pub mod route;
pub mod trust;

#[cfg(test)]
mod tests;

pub use address::Address;
pub use affinity::Affinity;
pub use policy::Policy;
pub use trust::Trust;

use counts::UpstreamCounts;
use health::Health;
use policy::{Candidate, Chooser};
use prefixes::Prefixes;

/// How the upstreams of a listener are dealt with.
#[derive(Clone, Debug)]
pub struct Rules {
    /// Who gets the next request.
    pub policy: Policy,
    /// When [`Policy::CacheAware`] goes by the prompt.
    pub affinity: Affinity,
    /// How long one that cannot be connected to is left out before the first probe.
    pub out: Duration,
    /// Who may sign the certificates of those that speak TLS; there when one does.
    pub trust: Option<Trust>,
    /// Whether a request whose connection broke before an answer is sent again, whatever it may have begun.
    pub resend_broken: bool,
    /// The time limits.
    pub timeouts: Timeouts,
}

/// The time limits on an upstream.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
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
    /// What it was given by [`Policy::CacheAware`].
    prefixes: Mutex<Prefixes>,
}

/// An upstream that has a request, until this is dropped.
#[derive(Debug)]
pub struct Chosen {
    index: usize,
    by: Option<ChosenBy>,
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
                metrics.upstreams().add(upstream.counts.clone());
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

    /// Whether a request's prompt has a say in who gets it.
    pub fn ask_for_prompt(&self) -> bool {
        self.rules.policy == Policy::CacheAware && self.all.len() > 1
    }

    /// Chooses one for a request whose prompt has these blocks, but none of `tried`, and none that is left out unless all
    /// others are. The blocks are none where nobody asks for them.
    pub fn choose(&self, tried: &[usize], prompt: &[u64]) -> Option<Chosen> {
        // Choosing and counting are one step, or two requests at once would both see the same shortest queue.
        let mut chooser = self.chooser.lock();
        let may = |index, upstream: &Upstream| !tried.contains(&index) && !upstream.counts.is_out();
        let mut candidates = self.candidates(prompt, may);
        if candidates.is_empty() {
            candidates = self.candidates(prompt, |index, _| !tried.contains(&index));
        }
        let asks = self.ask_for_prompt();
        let by = asks.then(|| self.rules.affinity.narrow(&mut candidates, prompt.len()));
        let index = chooser.choose(&candidates)?;
        let upstream = self.all.get(index)?.clone();
        upstream.counts.request_began();
        if asks {
            upstream.prefixes.lock().insert(prompt);
        }
        Some(Chosen {
            index,
            by,
            upstream,
        })
    }

    fn candidates(&self, prompt: &[u64], may: impl Fn(usize, &Upstream) -> bool) -> Vec<Candidate> {
        let asks = self.ask_for_prompt();
        let numbered = self.all.iter().enumerate();
        let can = numbered.filter(|(index, upstream)| may(*index, upstream));
        let candidate = |(index, upstream): (usize, &Arc<Upstream>)| {
            let prefixes = asks.then(|| upstream.prefixes.lock());
            let shared = prefixes.as_ref().map_or(0, |known| known.shared(prompt));
            Candidate {
                index,
                in_flight: upstream.counts.in_flight(),
                shared,
                cached: prefixes.map_or(0, |known| known.len()),
            }
        };
        can.map(candidate).collect()
    }

    /// A request's connection to `upstream` did not come about: it is left out and probed.
    pub fn connection_failed(&self, upstream: &Arc<Upstream>) {
        // A name may mean another machine by now.
        upstream.stale.store(true, Ordering::Relaxed);
        // When it is back it may have been started anew.
        *upstream.prefixes.lock() = Prefixes::default();
        if !upstream.health.request_failed() {
            return;
        }
        let (health, probed) = (Arc::downgrade(&upstream.health), Arc::downgrade(upstream));
        let limit = self.rules.timeouts.connect;
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
        let timeouts = &self.rules.timeouts;
        let options = &mut peer.options;
        options.connection_timeout = Some(timeouts.connect);
        options.total_connection_timeout = Some(timeouts.connect);
        options.read_timeout = Some(timeouts.read);
        options.write_timeout = Some(timeouts.write);
        options.idle_timeout = Some(timeouts.idle);
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
            prefixes: Mutex::default(),
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

    /// What decided, where prompts have a say.
    pub fn by(&self) -> Option<ChosenBy> {
        self.by
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
