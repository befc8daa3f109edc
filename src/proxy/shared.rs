//! What the listeners of a proxy share.

use std::sync::{Arc, Once};

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
use crate::request::roles::Roles;
use crate::request::row::Row;
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
    /// When this was made.
    pub started: Stamp,
    /// Its name in stamps.
    pub clock_name: String,
    /// What is counted.
    pub metrics: Metrics,
    /// Where the rows of requests go.
    pub telemetry: Arc<Telemetry>,
    /// What joins them with what engines tell, where that is on.
    pub engine: Option<Engine>,
    /// What the proxy was told, the last reload included. Read it once for what belongs together.
    pub config: ArcSwap<Config>,
    /// What the admin listener asks for.
    pub admin_token: Option<Secret>,
    /// The faults that can be injected; `None` when that is off.
    pub faults: Option<Faults>,
    /// The certificate of the front's listener; `None` when it speaks plain HTTP.
    pub tls: Option<Tls>,
    /// How far other clocks are from ours: engines by `host` (and the hop's clock, where that is another), hops of other
    /// processes by name.
    pub clocks: Arc<Mutex<OffsetTable>>,
    /// What hops sign their stamps with, and the front knows them by.
    pub hop_key: HopKey,
    /// The log has the warning of stamps that no hop of ours signed.
    pub unsigned_stamps: Once,
    /// Which attempts at the hops belong to which requests of the front.
    pub joins: Joins,
    /// What servers do, by worker, as far as they told.
    pub roles: Arc<Mutex<Roles>>,
    /// Where the proxy is in its life.
    pub phase: watch::Sender<Phase>,
}

/// Which listener a request came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// The one that clients speak to: it records.
    Front,
    /// One that a router speaks to, by the worker's name: it stamps, and records what no front here knows.
    Hop(Arc<str>),
}

impl Shared {
    /// A request has ended. Its rows may wait for what its engine tells; nobody else does.
    pub fn record(&self, rows: Vec<Row>) {
        match &self.engine {
            Some(engine) => engine.record(rows),
            None => self.telemetry.record(rows),
        }
    }

    /// What the server of a worker does, where it is one of a pair: as the config says, else as it told.
    pub fn role(&self, worker: &str) -> Option<ServerRole> {
        let given = self
            .config
            .load()
            .worker(worker)
            .and_then(|worker| worker.role);
        given.or_else(|| self.roles.lock().of(worker)?)
    }

    /// A worker's server told what it does.
    pub fn learn(&self, worker: &str, role: Option<ServerRole>) {
        self.roles.lock().learn(worker, role);
    }

    /// Whether requests to the server of a worker may be legs of one that another serves too: not where it said that it is no server
    /// of a pair, as routers ask.
    pub fn may_have_legs(&self, worker: &str) -> bool {
        let config = self.config.load();
        let is_given = config
            .worker(worker)
            .is_some_and(|worker| worker.role.is_some());
        is_given || self.roles.lock().of(worker) != Some(None)
    }

    /// The present limits on the clients of such a listener. Those of a hop behind a front of this process are lifted:
    /// they are a router, and what is slow or large has passed the front and must not break off twice.
    pub fn limits(&self, role: &Role) -> Limits {
        let limits = self.config.load().limits.clone();
        match role {
            Role::Hop(_) if self.joins.has_front() => limits.lifted(),
            _ => limits,
        }
    }

    /// Whether the front's upstreams are the servers themselves.
    pub fn is_before_servers(&self) -> bool {
        self.config.load().upstream_kind == UpstreamKind::Server
    }
}
