//! The upstreams of a listener: which gets the next request, which are out, and how Pingora connects to them.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;
use pingora::protocols::tls::CaType;
use pingora::tls::CertificateDer;
use pingora::upstreams::peer::{HttpPeer, Peer};
use pingora::utils::tls::WrappedX509;
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::client::socket::limit_unsent;
use crate::keys::keys;
use crate::keys::values::{self, Seconds, Whole};
use crate::telemetry::prometheus::{ChosenBy, Metrics, UpstreamFigures};
use crate::trust::Roots;

pub mod address;
pub mod connection;
pub mod idle;
pub mod policy;

#[cfg(test)]
mod tests;

pub use address::Address;
pub use policy::Policy;

use policy::{Candidate, Prefixes};

keys! {
/// The settings of a listener's upstreams.
Rules {
    /// Which upstream gets the next request: "round_robin", "random", "shortest_queue", "power_of_two" or "cache_aware". The
    /// shortest queue is that with the fewest requests in flight from this proxy (ties are broken evenly); "power_of_two" takes
    /// the shorter of two random ones; "cache_aware" the one that was given the longest beginning of the prompt before, so that
    /// its prefix cache has it. Only this one waits for the prompt (at most 32 KiB of the body) before it chooses: column
    /// `prompt_wait`.
    policy: Policy = Policy::RoundRobin, Reload "--policy POLICY" in "Upstreams";
    /// With "cache_aware": a request goes to the upstream that has had the longest beginning of its prompt, if that is more than
    /// this share of the prompt (its first 16 KiB); else to the one with the fewest requests in flight. sglang-router has the same
    /// key, and the next two.
    cache_threshold: f64 as values::share = 0.3, Reload "--cache-threshold SHARE" in "Upstreams";
    /// With "cache_aware": by how many requests the longest queue may exceed the shortest. If it exceeds it by more, and is also
    /// more than `balance_rel_threshold` times as long, requests go to the upstream with the fewest in flight, whatever their prompt.
    balance_abs_threshold: Whole<0, { u64::MAX }> = Whole::of::<64>(), Reload "--balance-abs-threshold N" in "Upstreams";
    /// With "cache_aware": how many times as long as the shortest queue the longest may be (see `balance_abs_threshold`).
    balance_rel_threshold: f64 as values::ratio = 1.5, Reload "--balance-rel-threshold RATIO" in "Upstreams";
    /// How long an upstream that cannot be connected to gets no requests. Then the proxy tries to connect to it, and again after
    /// as long. When all upstreams are out, requests are sent all the same.
    upstream_out_s: Seconds = Seconds::of::<1>(), Reload "--upstream-out-s S" in "Upstreams";
    /// PEM file with the CA certificates by which https:// upstreams are verified; without it the system's roots.
    upstream_ca: Option<PathBuf> = None, Reload "--upstream-ca FILE" in "Upstreams" like "ca.pem";
    /// Generation requests that the upstreams have at once, all together; 0: no limit. Each counts until its response has
    /// ended; the others wait in the front, in order of arrival, as in a router with a limit.
    max_concurrent_requests: Whole<0, 1_000_000> = Whole::of::<0>(), Reload "--max-concurrent-requests N" in "Upstreams";
    /// How long a request may wait for `max_concurrent_requests`; then it is answered 503. 0: as long as its client stays.
    queue_timeout_s: Seconds<0> = Seconds::of::<0>(), Reload "--queue-timeout-s S" in "Upstreams";
    /// Limit on connecting to an upstream; 504 after it.
    upstream_connect_timeout_s: Seconds = Seconds::of::<5>(), Reload "--upstream-connect-timeout-s S" in "Upstreams";
    /// Limit on the silence of an upstream; 504 after it, or a cut stream. That is before its response and within it. A
    /// request that is not streamed is silent from its start to its end.
    upstream_read_timeout_s: Seconds = Seconds::of::<1800>(), Reload "--upstream-read-timeout-s S" in "Upstreams";
    /// Limit on a single write to an upstream; 504 after it.
    upstream_write_timeout_s: Seconds = Seconds::of::<60>(), Reload "--upstream-write-timeout-s S" in "Upstreams";
    /// After how much idleness an upstream connection is closed. It must be less than the server's own limit (SGLang:
    /// 5 s), or requests run into connections that the server is closing and get a 502.
    upstream_idle_timeout_s: Seconds = Seconds::of::<4>(), Reload "--upstream-idle-timeout-s S" in "Upstreams";
}}

/// The upstreams of one listener. A reload replaces them as a whole.
#[derive(Debug)]
pub struct Upstreams {
    /// All upstreams, in the order of the config.
    pub all: Vec<Arc<Upstream>>,
    /// Their settings.
    pub rules: Rules,
    /// Root certificates; present if an upstream speaks TLS.
    trust: Option<Trust>,
    /// One permit for each of `max_concurrent_requests`, first come first served; `None` without a limit.
    pub slots: Option<Arc<Semaphore>>,
    choosing: Mutex<Choosing>,
    metrics: Metrics,
}

/// The root certificates for upstreams. Pingora would read them itself, once at the start, and panic if it cannot. Given with each
/// connection, we check them, and a reload can change them.
#[derive(Clone, Debug)]
pub struct Trust {
    /// As Pingora's options have them.
    roots: Arc<CaType>,
    /// A hash of the roots: a connection that other roots verified is not used.
    key: u64,
}

#[derive(Debug)]
struct Choosing {
    /// Whose turn it is.
    turn: usize,
    /// How each upstream was last connected to.
    peers: Vec<Option<Arc<HttpPeer>>>,
}

/// Looks up host and port; may block.
pub type Resolver = fn(&str, u16) -> io::Result<Vec<SocketAddr>>;

/// One upstream. Entries of the same address share it, in one list and in the lists before and after a reload.
///
/// An address is used until it cannot be connected to, then the next: what is known of an upstream (its clock, its queue) is then known
/// of one server. If none can be connected to, the upstream is out, and probed until one can. A probe is a connect of our own, for which
/// no client waits. An upstream that accepts a probe may still fail requests (by its TLS).
#[derive(Debug)]
pub struct Upstream {
    /// Host and port as configured, and whether it speaks TLS.
    pub address: Address,
    resolver: Resolver,
    /// The addresses of its name, at least one. The first is in use; one that fails becomes the last.
    addresses: Mutex<Vec<SocketAddr>>,
    counts: Arc<UpstreamFigures>,
    /// Whether a task probes it.
    is_probed: AtomicBool,
    /// Which prompts it got by [`Policy::CacheAware`](Policy::CacheAware).
    prefixes: Mutex<Prefixes>,
}

/// The upstream of a request. The request is in flight there until this is dropped.
#[derive(Debug)]
pub struct Chosen {
    /// Its index in the config.
    pub index: usize,
    /// What decided, if the policy goes by prompts.
    pub by: Option<ChosenBy>,
    /// How Pingora connects to it, with our limits.
    pub peer: Arc<HttpPeer>,
    /// What is known of it.
    pub upstream: Arc<Upstream>,
    /// The address that it is connected to at.
    at: SocketAddr,
    /// Its other addresses, which are tried next.
    left: std::vec::IntoIter<SocketAddr>,
}

impl Upstreams {
    /// Resolves the addresses, which may block. Upstreams that are in `previous` too keep their requests in flight and their
    /// health.
    ///
    /// # Errors
    /// The name that does not resolve, and why.
    pub fn resolve(
        addresses: &[Address],
        rules: Rules,
        trust: Option<Trust>,
        resolver: Resolver,
        previous: Option<&Upstreams>,
        metrics: &Metrics,
    ) -> Result<Upstreams, String> {
        let mut all: Vec<Arc<Upstream>> = Vec::new();
        for address in addresses {
            let mut known = all.iter().chain(previous.iter().flat_map(|old| &old.all));
            let upstream = match known.find(|known| known.address == *address) {
                Some(known) => known.clone(),
                None => {
                    let upstream = Arc::new(Upstream::resolve(address, resolver)?);
                    metrics.show_upstream(&upstream.counts);
                    upstream
                }
            };
            all.push(upstream);
        }
        // Under the same limit, requests keep their slots.
        let limit = rules.max_concurrent_requests;
        let slots = match previous.filter(|old| old.rules.max_concurrent_requests == limit) {
            Some(same) => same.slots.clone(),
            None => (limit.get() > 0).then(|| Arc::new(Semaphore::new(limit.get() as usize))),
        };
        Ok(Upstreams {
            choosing: Mutex::new(Choosing {
                turn: 0,
                peers: vec![None; all.len()],
            }),
            all,
            rules,
            trust,
            slots,
            metrics: metrics.clone(),
        })
    }

    /// Returns their names, in the order of the config.
    pub fn names(&self) -> Vec<String> {
        let names = self.all.iter().map(|upstream| upstream.name().to_owned());
        names.collect()
    }

    /// Whether the choice depends on a request's prompt.
    pub fn needs_prompt(&self) -> bool {
        self.rules.policy.is_by_prompt() && self.all.len() > 1
    }

    /// Chooses an upstream for a request whose prompt has these blocks, which are only used by [`Policy::CacheAware`]. Leaves out
    /// those `tried`, and those that are out unless all others are. `None` if none is left.
    pub fn choose(&self, tried: &[usize], prompt: &[u64]) -> Option<Chosen> {
        // Choosing and counting are one step, or two requests at once would both see the same shortest queue.
        let mut choosing = self.choosing.lock();
        let is_by_prompt = self.needs_prompt();
        let candidate = |(index, upstream): (usize, &Arc<Upstream>)| {
            let prefixes = is_by_prompt.then(|| upstream.prefixes.lock());
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
        let by = is_by_prompt.then(|| self.rules.narrow(&mut candidates, prompt.len()));
        let (policy, rng) = (self.rules.policy, &mut rand::rng());
        let index = policy.choose(&candidates, &mut choosing.turn, rng)?;
        let upstream = self.all.get(index)?.clone();
        let mut left = upstream.in_order().into_iter();
        let at = left.next()?;
        let last_peer = choosing.peers.get_mut(index)?;
        let known = last_peer.take().filter(|peer| *peer.address() == at.into());
        let peer = known.unwrap_or_else(|| self.peer(&upstream.address, at));
        *last_peer = Some(peer.clone());
        upstream.counts.in_flight.fetch_add(1, Relaxed);
        if is_by_prompt {
            upstream.prefixes.lock().insert(prompt);
        }
        Some(Chosen {
            index,
            by,
            peer,
            at,
            upstream,
            left,
        })
    }

    /// A request could not be connected to `chosen`. Moves it on to the next address and returns `true`; without one, the upstream
    /// is out and probed.
    pub fn connect_failed(&self, chosen: &mut Chosen) -> bool {
        let upstream = &chosen.upstream;
        let failures = &self.metrics.upstream_connect_failures;
        failures.with(&[upstream.name()]).inc();
        upstream.failed_at(chosen.at);
        // If it was restarted, its cache is empty.
        *upstream.prefixes.lock() = Prefixes::default();
        if let Some(next) = chosen.left.next() {
            chosen.at = next;
            chosen.peer = self.peer(&upstream.address, next);
            return true;
        }
        let limit = self.rules.upstream_connect_timeout_s.get();
        upstream.mark_out(self.rules.upstream_out_s.get(), limit);
        false
    }

    fn peer(&self, address: &Address, at: SocketAddr) -> Arc<HttpPeer> {
        let is_tls = address.is_tls;
        // Never an empty name with TLS: Pingora would verify nothing.
        let mut peer = HttpPeer::new(at, is_tls, address.host.clone());
        let options = &mut peer.options;
        let rules = &self.rules;
        options.connection_timeout = Some(rules.upstream_connect_timeout_s.get());
        options.total_connection_timeout = options.connection_timeout;
        options.read_timeout = Some(rules.upstream_read_timeout_s.get());
        options.write_timeout = Some(rules.upstream_write_timeout_s.get());
        options.idle_timeout = Some(rules.upstream_idle_timeout_s.get());
        options.upstream_tcp_sock_tweak_hook = Some(Arc::new(|socket: &TcpSocket| {
            limit_unsent(socket);
            Ok(())
        }));
        if let Some(trust) = self.trust.as_ref().filter(|_| is_tls) {
            options.ca = Some(trust.roots.clone());
            // Pingora's hash for reusing connections leaves the roots out.
            peer.group_key = trust.key;
        }
        Arc::new(peer)
    }
}

impl Upstream {
    /// Looks `address` up. Blocks.
    ///
    /// # Errors
    /// There is none, and why.
    fn resolve(address: &Address, resolver: Resolver) -> Result<Upstream, String> {
        let name = address.name();
        let found = resolver(&address.host, address.port);
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
    fn in_order(&self) -> Vec<SocketAddr> {
        self.addresses.lock().clone()
    }

    /// Moves `at`, which could not be connected to, to the end.
    fn failed_at(&self, at: SocketAddr) {
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
    fn look_up_again(&self) {
        let (host, port) = (&self.address.host, self.address.port);
        let found = (self.resolver)(host, port).unwrap_or_default();
        let mut all = self.addresses.lock();
        if !found.is_empty() && self.counts.is_out.load(Relaxed) {
            *all = found;
        }
    }

    /// A request could not connect: marks the upstream as out and has it probed, each time after a pause, until that or a request
    /// connects, or it is used no more. One task probes it, whatever fails meanwhile.
    fn mark_out(self: &Arc<Self>, pause: Duration, limit: Duration) -> Option<JoinHandle<()>> {
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
    pub fn restore(&self, why: &str) {
        if self.counts.is_out.swap(false, Relaxed) {
            log::info!("upstream {}: is back: {why}", self.name());
        }
    }
}

impl Drop for Chosen {
    fn drop(&mut self) {
        self.upstream.counts.in_flight.fetch_sub(1, Relaxed);
    }
}

impl Trust {
    /// Reads the certificates of a PEM file.
    ///
    /// # Errors
    /// What is wrong with the file, with a hint.
    pub fn from_file(path: &Path) -> Result<Trust, String> {
        let trust = Trust::of(&Roots::file(path)?);
        let hint = "has no certificate that Pingora can read; give another of the same CA";
        let is_usable = !trust.roots.is_empty();
        is_usable.then_some(trust).ok_or_else(|| hint.to_owned())
    }

    /// Reads the system's roots; unusable ones are left out.
    ///
    /// # Errors
    /// The system has none.
    pub fn system() -> Result<Trust, String> {
        let trust = Roots::system().map(|roots| Trust::of(&roots));
        trust.map_err(|problem| format!("is needed for an https:// upstream, as {problem}"))
    }

    /// Parses them for Pingora; those that it cannot read are left out.
    fn of(roots: &Roots) -> Trust {
        let mut hasher = DefaultHasher::new();
        roots.certificates().hash(&mut hasher);
        Trust {
            roots: roots.certificates().iter().filter_map(parsed).collect(),
            key: hasher.finish(),
        }
    }
}

fn parsed(certificate: &CertificateDer<'_>) -> Option<WrappedX509> {
    let parsed = WrappedX509::try_new(certificate.to_vec(), |raw| {
        X509Certificate::from_der(raw).map(|(_, parsed)| parsed)
    });
    parsed.ok()
}

/// The system's resolver.
pub fn system_resolver(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    (host, port).to_socket_addrs().map(Iterator::collect)
}
