//! The upstreams of a listener: who gets the next request, who is left out, and how Pingora connects to them.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;
use pingora::upstreams::peer::{HttpPeer, Peer};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::task::JoinHandle;

use crate::keys::keys;
use crate::keys::values::{self, Seconds, Whole};
use crate::telemetry::prometheus::{ChosenBy, Metrics};
use crate::telemetry::upstreams::UpstreamFigures;

pub mod address;
mod addresses;
mod affinity;
mod health;
pub mod idle;
pub mod policy;
mod prefixes;
pub mod trust;

#[cfg(test)]
mod tests;

pub use address::Address;
pub use addresses::{Resolver, system};
pub use policy::Policy;
pub use trust::Trust;

use addresses::Addresses;
use health::Health;
use policy::{Candidate, Chooser};
use prefixes::Prefixes;

keys! {
/// How the upstreams of a listener are dealt with.
Rules {
    /// Which upstream gets the next request: "round_robin", "random", "shortest_queue", "power_of_two" or "cache_aware". The
    /// shortest queue is that with the fewest requests in flight from this proxy (ties are broken evenly); "power_of_two" takes
    /// the shorter of two random ones; "cache_aware" the one that was given the longest beginning of the prompt before, so that
    /// its prefix cache has it. Only this one waits for the prompt (at most 32 KiB of the body) before it chooses: column
    /// `prompt_wait`.
    policy: Policy = Policy::RoundRobin, Reload "--policy POLICY" in "Upstreams";
    /// With "cache_aware": by the prompt if an upstream has had more than this share of it. Of its first 16 KiB, that is; else a
    /// request goes to the one with the fewest in flight. This and the next two are as sglang-router has them.
    cache_threshold: f64 as values::share = 0.3, Reload "--cache-threshold SHARE" in "Upstreams";
    /// With "cache_aware": by the fewest in flight while the longest queue is ahead by more than this. It must be ahead of the
    /// shortest by more than `balance_rel_threshold`, too.
    balance_abs_threshold: Whole<0, { u64::MAX }> = Whole::of::<64>(), Reload "--balance-abs-threshold N" in "Upstreams";
    /// With "cache_aware": the longest queue must be more than so many times the shortest for that.
    balance_rel_threshold: f64 as values::ratio = 1.5, Reload "--balance-rel-threshold RATIO" in "Upstreams";
    /// How long an upstream that cannot be connected to gets no requests. Then we probe it by a connect of our own. The pause
    /// doubles up to 30 s while it fails. When all are out, they are tried all the same.
    upstream_out_s: Seconds = Seconds::of::<1>(), Reload "--upstream-out-s S" in "Upstreams";
    /// Whether a request whose connection broke before an answer came is sent once more. It goes to another upstream where
    /// there is one. The first may have run it already, so an answer may be generated twice. Bodies up to 64 KiB only.
    /// Requests that may be repeated by their method (GET) are sent again over a fresh connection anyway.
    resend_broken: bool = false, Reload "--resend-broken BOOL" in "Upstreams";
    /// PEM file with the certificates of those who may sign an https:// upstream's; without it the system's roots.
    upstream_ca: Option<PathBuf> = None, Reload "--upstream-ca FILE" in "Upstreams" like "ca.pem";
    /// Generation requests that the upstreams have at once, all together; 0: no limit. Each counts until its response has
    /// ended; the others wait in the front, in order of arrival, as in a router with a limit.
    max_concurrent_requests: Whole<0, 1_000_000> = Whole::of::<0>(), Reload "--max-concurrent-requests N" in "Upstreams";
    /// How long a request may wait for that; then it is answered 503. 0: as long as its client stays.
    queue_timeout_s: Seconds<0> = Seconds::of::<0>(), Reload "--queue-timeout-s S" in "Upstreams";
    /// Limit on connecting to an upstream; 504 after it.
    upstream_connect_timeout_s: Seconds = Seconds::of::<5>(), Reload "--upstream-connect-timeout-s S" in "Upstreams";
    /// Limit on the silence of an upstream; 504 after it, or a cut stream. That is before its response and within it. A
    /// request that is not streamed is silent from its start to its end.
    upstream_read_timeout_s: Seconds = Seconds::of::<1800>(), Reload "--upstream-read-timeout-s S" in "Upstreams";
    /// Limit on a single write to an upstream.
    upstream_write_timeout_s: Seconds = Seconds::of::<60>(), Reload "--upstream-write-timeout-s S" in "Upstreams";
    /// After how much idleness an upstream connection is closed. It must be less than the server's own limit (SGLang:
    /// 5 s), or requests run into connections that the server is closing and get a 502.
    upstream_idle_timeout_s: Seconds = Seconds::of::<4>(), Reload "--upstream-idle-timeout-s S" in "Upstreams";
}}

/// What upstreams need that no key tells.
#[derive(Clone, Debug)]
pub struct Means {
    /// Who may sign the certificates of those that speak TLS; there when one does.
    pub trust: Option<Trust>,
    /// Looks names up.
    pub resolver: Resolver,
}

/// The upstreams of one listener. A reload replaces them as a whole.
#[derive(Debug)]
pub struct Upstreams {
    all: Vec<Arc<Upstream>>,
    rules: Rules,
    means: Means,
    /// Free places, where there is a limit on requests.
    slots: Option<Arc<Semaphore>>,
    choosing: Mutex<Choosing>,
}

#[derive(Debug)]
struct Choosing {
    chooser: Chooser,
    /// How each was last connected to.
    peers: Vec<Option<Arc<HttpPeer>>>,
}

/// One upstream. Those of the same address share it: two entries of a list, or the lists before and after a
/// reload.
#[derive(Debug)]
pub struct Upstream {
    address: Address,
    addresses: Addresses,
    is_looked_up: AtomicBool,
    counts: Arc<UpstreamFigures>,
    health: Mutex<Health>,
    /// What it was given by [`Policy::CacheAware`].
    prefixes: Mutex<Prefixes>,
}

/// An upstream that has a request, until this is dropped.
#[derive(Debug)]
pub struct Chosen {
    /// Its number among all.
    pub index: usize,
    /// What decided, where prompts have a say.
    pub by: Option<ChosenBy>,
    /// How Pingora connects to it, with our limits.
    pub peer: Arc<HttpPeer>,
    upstream: Arc<Upstream>,
    /// Where it is connected to.
    at: SocketAddr,
    /// Addresses of it that failed the request.
    tried: Vec<SocketAddr>,
    /// The request is one of those in flight.
    is_in_flight: bool,
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
        means: Means,
        before: Option<&Upstreams>,
        metrics: &Metrics,
    ) -> Result<Upstreams, String> {
        let (mut all, mut new): (Vec<Arc<Upstream>>, Vec<_>) = Default::default();
        for address in addresses {
            let mut known = all.iter().chain(before.iter().flat_map(|b| &b.all));
            let upstream = match known.find(|known| known.address == *address) {
                Some(known) => known.clone(),
                None => {
                    let upstream = Arc::new(Upstream::resolve(address, means.resolver)?);
                    new.push(upstream.counts.clone());
                    upstream
                }
            };
            all.push(upstream);
        }
        // Only now: an address that fails leaves nothing behind.
        new.into_iter().for_each(|new| metrics.upstreams.add(new));
        // Under the same limit, requests from before keep their places.
        let most = rules.max_concurrent_requests;
        let slots = match before.filter(|before| before.rules.max_concurrent_requests == most) {
            Some(same) => same.slots.clone(),
            None => (most.get() > 0).then(|| Arc::new(Semaphore::new(most.get() as usize))),
        };
        Ok(Upstreams {
            choosing: Mutex::new(Choosing {
                chooser: Chooser::seeded(rules.policy, all.len()),
                peers: vec![None; all.len()],
            }),
            all,
            rules,
            means,
            slots,
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

    /// Their names, in the order of the config.
    pub fn names(&self) -> Vec<String> {
        let names = self.all.iter().map(|upstream| upstream.name().to_owned());
        names.collect()
    }

    /// Whether a request's prompt has a say in who gets it.
    pub fn ask_for_prompt(&self) -> bool {
        self.rules.policy == Policy::CacheAware && self.all.len() > 1
    }

    /// A place for one more request, in order of asking, until it is dropped; `None` where there is no limit.
    pub async fn slot(&self) -> Option<SemaphorePermit<'_>> {
        self.slots.as_ref()?.acquire().await.ok()
    }

    /// Chooses one for a request whose prompt has these blocks, but none of `tried`, and none that is left out unless all
    /// others are. The blocks are none where nobody asks for them.
    pub fn choose(&self, tried: &[usize], prompt: &[u64]) -> Option<Chosen> {
        // Choosing and counting are one step, or two requests at once would both see the same shortest queue.
        let mut choosing = self.choosing.lock();
        let mut candidates = self.candidates(tried, prompt);
        let asks = self.ask_for_prompt();
        let by = asks.then(|| self.rules.narrow(&mut candidates, prompt.len()));
        let index = choosing.chooser.choose(&candidates)?;
        let upstream = self.all.get(index)?.clone();
        let at = upstream.addresses.current()?;
        let known = choosing.peers.get_mut(index)?;
        let peer = match known.take_if(|peer| *peer.address() == at.into()) {
            Some(peer) => peer,
            None => self.peer(&upstream.address, at),
        };
        *known = Some(peer.clone());
        upstream.counts.in_flight.fetch_add(1, Relaxed);
        if asks {
            upstream.prefixes.lock().insert(prompt);
        }
        Some(Chosen {
            index,
            by,
            peer,
            at,
            upstream,
            tried: Vec::new(),
            is_in_flight: true,
        })
    }

    /// All but those that were tried, and those that are left out unless all are.
    fn candidates(&self, tried: &[usize], prompt: &[u64]) -> Vec<Candidate> {
        let asks = self.ask_for_prompt();
        let candidate = |(index, upstream): (usize, &Arc<Upstream>)| {
            let prefixes = asks.then(|| upstream.prefixes.lock());
            let shared = prefixes.as_ref().map_or(0, |known| known.shared(prompt));
            Candidate {
                index,
                is_out: upstream.counts.is_out.load(Relaxed),
                in_flight: upstream.counts.in_flight.load(Relaxed),
                shared,
                cached: prefixes.map_or(0, |known| known.len()),
            }
        };
        let left = self.all.iter().enumerate();
        let left = left.filter(|(index, _)| !tried.contains(index));
        let mut candidates: Vec<Candidate> = left.map(candidate).collect();
        if candidates.iter().any(|candidate| !candidate.is_out) {
            candidates.retain(|candidate| !candidate.is_out);
        }
        candidates
    }

    /// A request's connection to `chosen` did not come about. Whether it has another address, which the request has now;
    /// else it is left out and probed. A name is looked up anew meanwhile: it may mean another machine by now.
    pub fn connection_failed(&self, chosen: &mut Chosen) -> bool {
        let upstream = &chosen.upstream;
        upstream.counts.connect_failures.fetch_add(1, Relaxed);
        upstream.addresses.tried(chosen.at, false);
        // When it is back it may have been started anew.
        *upstream.prefixes.lock() = Prefixes::default();
        upstream.look_up_again();
        chosen.tried.push(chosen.at);
        let all = upstream.addresses.in_turn();
        let mut left = all.iter().filter(|at| !chosen.tried.contains(at));
        if let Some(next) = left.next().filter(|_| chosen.tried.len() < all.len()) {
            chosen.at = *next;
            chosen.peer = self.peer(&upstream.address, *next);
            return true;
        }
        if upstream.request_failed() {
            let limit = self.rules.upstream_connect_timeout_s.get();
            let connect = async move |upstream: Arc<Upstream>| {
                if let Some(looked_up) = upstream.look_up_again() {
                    // Only a runtime that ends does not get it done.
                    let _ = looked_up.await;
                }
                upstream.can_connect(limit).await
            };
            let probed = Arc::downgrade(upstream);
            tokio::spawn(Upstream::probe(
                probed,
                self.rules.upstream_out_s.get(),
                connect,
            ));
        }
        false
    }

    /// The client of a request that was being connected to `chosen` has left. An upstream that no client waits for is found to be
    /// unreachable all the same.
    pub fn left_connecting(self: Arc<Self>, mut chosen: Chosen) {
        let limit = self.rules.upstream_connect_timeout_s.get();
        // At once, however long the look takes: policies choose by it.
        chosen.let_go();
        tokio::spawn(async move {
            while is_silent(chosen.at, limit).await && self.connection_failed(&mut chosen) {}
        });
    }

    fn peer(&self, address: &Address, at: SocketAddr) -> Arc<HttpPeer> {
        let is_tls = address.is_tls();
        // Never empty with TLS: Pingora verifies nothing for an empty name.
        let mut peer = HttpPeer::new(at, is_tls, address.host().to_owned());
        let options = &mut peer.options;
        let rules = &self.rules;
        options.connection_timeout = Some(rules.upstream_connect_timeout_s.get());
        options.total_connection_timeout = options.connection_timeout;
        options.read_timeout = Some(rules.upstream_read_timeout_s.get());
        options.write_timeout = Some(rules.upstream_write_timeout_s.get());
        options.idle_timeout = Some(rules.upstream_idle_timeout_s.get());
        if let Some(trust) = self.means.trust.as_ref().filter(|_| is_tls) {
            options.ca = Some(trust.roots());
            // Pingora leaves roots out when it looks for a connection to use again.
            peer.group_key = trust.key();
        }
        Arc::new(peer)
    }
}

/// Nobody answers there. Any error of our own machine says nothing of it.
async fn is_silent(at: SocketAddr, limit: Duration) -> bool {
    use std::io::ErrorKind::{ConnectionRefused, HostUnreachable, NetworkUnreachable, TimedOut};
    let silent = [
        ConnectionRefused,
        HostUnreachable,
        NetworkUnreachable,
        TimedOut,
    ];
    let connected = connect(at, limit).await;
    connected.is_err_and(|error| silent.contains(&error.kind()))
}

/// A connection of our own; an error also after `limit`.
async fn connect(at: SocketAddr, limit: Duration) -> std::io::Result<TcpStream> {
    tokio::time::timeout(limit, TcpStream::connect(at)).await?
}

impl Upstream {
    fn resolve(address: &Address, resolver: Resolver) -> Result<Upstream, String> {
        Ok(Upstream {
            address: address.clone(),
            addresses: Addresses::look_up(address, resolver)?,
            is_looked_up: AtomicBool::new(false),
            counts: Arc::new(UpstreamFigures {
                name: address.name(),
                ..UpstreamFigures::default()
            }),
            health: Mutex::default(),
            prefixes: Mutex::default(),
        })
    }

    /// `host:port` as configured.
    pub fn name(&self) -> &str {
        &self.counts.name
    }

    /// Whether one of its addresses takes a connection, each within the limit.
    pub async fn can_connect(&self, limit: Duration) -> bool {
        for at in self.addresses.in_turn() {
            if connect(at, limit).await.is_ok() {
                self.addresses.tried(at, true);
                return true;
            }
        }
        false
    }

    /// Looks up what a name means now, on a thread that may block; not twice at a time.
    fn look_up_again(self: &Arc<Self>) -> Option<JoinHandle<()>> {
        if !self.address.is_name() || self.is_looked_up.swap(true, Relaxed) {
            return None;
        }
        let upstream = self.clone();
        Some(tokio::task::spawn_blocking(move || {
            upstream.addresses.look_up_again(&upstream.address);
            upstream.is_looked_up.store(false, Relaxed);
        }))
    }
}

impl Chosen {
    /// The request has a new connection to it.
    pub fn connected(&self) {
        self.upstream.addresses.tried(self.at, true);
        self.upstream.request_connected();
    }

    /// The upstream's name.
    pub fn name(&self) -> &str {
        self.upstream.name()
    }

    /// The request is over: it is in flight no more.
    fn let_go(&mut self) {
        if std::mem::take(&mut self.is_in_flight) {
            self.upstream.counts.in_flight.fetch_sub(1, Relaxed);
        }
    }
}

impl Drop for Chosen {
    fn drop(&mut self) {
        self.let_go();
    }
}
