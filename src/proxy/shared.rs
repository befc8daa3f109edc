//! What the listeners of a proxy share.

use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::client::limits::Limits;
use crate::client::phase::Phase;
use crate::client::tls::Tls;
use crate::clock::{Clock, Stamp};
use crate::config::proxy::Config;
use crate::engine::Engine;
use crate::fault::registry::Faults;
use crate::offset::OffsetTable;
use crate::request::{Roles, Row};
use crate::secret::Secret;
use crate::telemetry::Telemetry;
use crate::telemetry::prometheus::Metrics;

use super::hop_key::HopKey;
use super::join::Joins;

pub use crate::request::attempt::{ServerRole, UpstreamKind};

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
