//! What the listeners of a proxy share, and what the connections and requests of one listener share.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use pingora::connectors::{ConnectorOptions, TransportConnector};
use pingora::time::fast_timeout::set_fast_timeout_to_tokio_threshold;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio_util::sync::CancellationToken;

use crate::client::limits::Limits;
use crate::client::listener::{Phase, Tls};
use crate::clock::{Clock, Stamp};
use crate::config::proxy::Config;
use crate::engine::Engine;
use crate::fault::{Faults, Injected};
use crate::offset::OffsetTable;
use crate::request::{Roles, Row, ServerRole, UpstreamKind};
use crate::secret::Secret;
use crate::telemetry::Telemetry;
use crate::telemetry::prometheus::Metrics;
use crate::upstream::Upstreams;
use crate::upstream::idle::Idle;

use super::hop_key::HopKey;
use super::join::Joins;

/// What all listeners of a proxy share.
#[derive(Debug)]
pub struct Shared {
    /// The proxy's clock.
    pub clock: Clock,
    /// When the proxy was started.
    pub started: Stamp,
    /// The clock's name in stamps.
    pub clock_name: String,
    /// The metrics.
    pub metrics: Metrics,
    /// Where the rows of requests go.
    pub telemetry: Arc<Telemetry>,
    /// Joins rows with what engines report, if that is on.
    pub engine: Option<Engine>,
    /// The config, as of the last reload. Load it once for values that belong together.
    pub config: ArcSwap<Config>,
    /// The token that the admin listener asks for.
    pub admin_token: Option<Secret>,
    /// The faults that can be injected; `None` if that is off.
    pub faults: Option<Faults>,
    /// The certificate of the front's listener; `None` if it speaks plain HTTP.
    pub tls: Option<Tls>,
    /// The offsets of other clocks: of engines by `host` (and the hop's clock, if that is another), of hops of other processes by
    /// name.
    pub clocks: Arc<Mutex<OffsetTable>>,
    /// The key that hops sign their stamps with.
    pub hop_key: HopKey,
    /// Joins attempts at the hops to requests of the front.
    pub joins: Joins,
    /// What the servers of pairs do, by worker, if they reported it.
    pub roles: Arc<Mutex<Roles>>,
    /// Where the proxy is in its life.
    pub phase: watch::Sender<Phase>,
}

/// Which listener a request came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// Clients speak to it: it records.
    Front,
    /// A router speaks to it: it stamps, and records what belongs to no front here. The worker's name.
    Hop(Arc<str>),
}

/// A listener of the proxy, with its upstreams.
pub struct Service {
    /// What it shares with the other listeners.
    pub shared: Arc<Shared>,
    /// Whether it is the front or a hop.
    pub role: Role,
    /// Where the proxy is in its life.
    pub phase: watch::Receiver<Phase>,
    /// Has one receiver for each open connection, and for each stream of HTTP/2.
    pub open: Arc<watch::Sender<()>>,
    /// Once cancelled, the listener accepts no more, and its connections close after their next response.
    pub stopped: CancellationToken,
    /// A permit for each connection of `max_connections`.
    connections: Arc<Semaphore>,
    /// A permit for each connection beyond the limit that is kept until its client has read the 503.
    pub refusals: Semaphore,
    /// Where requests go. A reload replaces them.
    pub upstreams: ArcSwap<Upstreams>,
    /// Connects to upstreams.
    pub connector: TransportConnector,
    /// Idle connections to upstreams.
    pub idle: Idle,
}

/// The most connections beyond the limit that are kept until their client has read the 503.
const MAX_REFUSALS: usize = 64;

impl Role {
    /// Returns the worker's name at its hop.
    pub fn worker(&self) -> Option<&str> {
        match self {
            Role::Front => None,
            Role::Hop(worker) => Some(worker),
        }
    }
}

impl Shared {
    /// Hands on the rows of a request that has ended; they may wait for what its engine reports.
    pub fn record(&self, rows: Vec<Row>) {
        match &self.engine {
            Some(engine) => engine.record(rows),
            None => self.telemetry.record(rows),
        }
    }

    /// Returns the role of a worker's server: the configured one, else what it reported. `Some(None)` if it is no server of a pair.
    pub fn role(&self, worker: &str) -> Option<Option<ServerRole>> {
        let config = self.config.load();
        let configured = config.worker(worker).and_then(|worker| worker.role);
        configured
            .map(Some)
            .or_else(|| self.roles.lock().of(worker))
    }

    /// Returns the limits on the clients of such a listener. At a hop behind a front of this process they are lifted: its client is
    /// a router, and the front has applied them.
    pub fn limits(&self, role: &Role) -> Limits {
        let limits = self.config.load().limits.clone();
        match role {
            Role::Hop(_) if self.joins.has_front => limits.lifted(),
            _ => limits,
        }
    }

    /// Whether the front's upstreams are the servers themselves.
    pub fn is_before_servers(&self) -> bool {
        self.config.load().upstream_kind == UpstreamKind::Server
    }
}

impl Service {
    /// Creates a listener; `open` has a receiver for each open connection.
    pub fn new(
        shared: Arc<Shared>,
        role: Role,
        open: Arc<watch::Sender<()>>,
        upstreams: Arc<Upstreams>,
    ) -> Service {
        let max_connections = shared.limits(&role).max_connections.get() as usize;
        let max_connections = max_connections.min(Semaphore::MAX_PERMITS);
        // The connector's own pool is not used.
        let mut options = ConnectorOptions::new(1);
        // Has Pingora use the runtime's timers: its own are kept until they are due even if they are dropped, and a thread looks
        // at them 100 times a second.
        set_fast_timeout_to_tokio_threshold(Some(Duration::ZERO));
        // Each peer has its own roots; without a file Pingora would read the system's.
        options.ca_file = Some("/dev/null".into());
        Service {
            phase: shared.phase.subscribe(),
            shared,
            role,
            open,
            stopped: CancellationToken::new(),
            connections: Arc::new(Semaphore::new(max_connections)),
            refusals: Semaphore::new(MAX_REFUSALS),
            upstreams: upstreams.into(),
            connector: TransportConnector::new(Some(options)),
            idle: Idle::start(),
        }
    }

    /// Returns the permit that a connection holds while it is served; `None` at the limit.
    pub fn connection_permit(&self) -> Option<OwnedSemaphorePermit> {
        self.connections.clone().try_acquire_owned().ok()
    }

    /// Injects the fault of its worker, if there is one, into a request or, if none was read, a connection.
    pub fn inject(&self, generates: bool) -> Option<Injected> {
        let faults = self.shared.faults.as_ref()?;
        faults.try_inject(self.role.worker()?, generates)
    }
}
