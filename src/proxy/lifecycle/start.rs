//! What a proxy's start makes: what listeners share, and what each of them needs.

use std::path::PathBuf;
use std::sync::{Arc, Once};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use pingora::proxy::HttpProxy;
use pingora::server::configuration::ServerConf;
use tokio::sync::watch;

use crate::clock::Clock;
use crate::offset::OffsetTable;
use crate::proxy::config::{Base, Config, Limits, Plan};
use crate::proxy::connection::Clients;
use crate::proxy::fault::desk::Faults;
use crate::proxy::hop_key::HopKey;
use crate::proxy::join::Joins;
use crate::proxy::listener::{Accept, Bound, Ready};
use crate::proxy::secret::Secret;
use crate::proxy::service::Service;
use crate::proxy::shared::{Role, Settings, Shared};
use crate::proxy::tls::Tls;
use crate::proxy::upstream::{Address, Rules, Upstreams};
use crate::telemetry::csv::TimeBase;
use crate::telemetry::prometheus::Metrics;
use crate::telemetry::recorder::{Recorder, RecordsFile};

use super::{Error, Listener, Phase};

/// Other clocks (engines, hops of other processes) that are kept in mind.
const CLOCKS: usize = 1024;
/// Idle connections kept to the upstreams of a listener.
const POOL: usize = 4096;
/// Upstreams that a request is tried at, at most. Below it, `Route` says when there is no other.
const TRIES: usize = 64;

/// What starting a listener needs.
#[derive(Clone)]
pub(super) struct Start {
    pub(super) shared: Arc<Shared>,
    pub(super) threads: usize,
    /// One receiver a connection.
    pub(super) connections: Arc<watch::Sender<()>>,
}

impl Start {
    /// Makes all that accepting from `bound` needs; `key` is that of its upstreams.
    pub(super) fn listener(
        &self,
        key: &str,
        role: Role,
        bound: Bound,
        upstreams: &[Address],
        rules: Rules,
    ) -> Result<Ready, Error> {
        let upstreams = Upstreams::resolve(upstreams, rules, None, &self.shared.metrics);
        let upstreams = upstreams.map_err(|problem| Error::Resolve {
            key: key.into(),
            problem,
        })?;
        Ok(self.ready(role, bound, Arc::new(upstreams)))
    }

    pub(super) fn ready(&self, role: Role, bound: Bound, upstreams: Arc<Upstreams>) -> Ready {
        let conf = ServerConf {
            threads: self.threads,
            upstream_keepalive_pool_size: POOL.div_ceil(self.threads),
            max_retries: TRIES,
            // Each peer brings its own roots; without a file Pingora would read the system's.
            ca_file: Some("/dev/null".into()),
            ..ServerConf::default()
        };
        let upstreams = Arc::new(ArcSwap::new(upstreams));
        let clients = Clients::of(&role, &self.shared);
        let service = Service::new(self.shared.clone(), role, upstreams.clone());
        let mut proxy = HttpProxy::new(service, Arc::new(conf));
        proxy.handle_init_modules();
        let stop = watch::channel(false).0;
        let listener = Arc::new(Listener {
            proxy: Arc::new(proxy),
            clock: self.shared.clock.clone(),
            metrics: self.shared.metrics.clone(),
            shared: self.shared.clone(),
            clients,
            shutdown: stop.subscribe(),
        });
        let accept = Accept {
            listener,
            phase: self.shared.phase.subscribe(),
            connections: self.connections.clone(),
        };
        Ready {
            bound,
            upstreams,
            accept,
            stop,
        }
    }
}

pub(super) fn settings(config: &Config, limits: Limits) -> Settings {
    Settings {
        limits,
        stamps: config.stamps,
        stamps_token: config.stamps_token.clone(),
        ready_needs_upstream: config.ready_needs_upstream,
        hosts: config
            .workers
            .iter()
            .filter_map(|worker| Some((worker.name.clone(), worker.host.clone()?)))
            .collect(),
    }
}

pub(super) fn shared(
    config: &Config,
    plan: &Plan,
    clock: Clock,
    has_front: bool,
    inherited: Option<Secret>,
) -> Result<Shared, Error> {
    let metrics = Metrics::new()?;
    let base = match config.time_base {
        Base::Epoch => TimeBase::Epoch,
        Base::Run => TimeBase::Since(clock.now()),
    };
    let start = |path: &PathBuf| {
        let file = RecordsFile {
            path: path.clone(),
            base,
            rotation: plan.rotation,
            clock: clock.clone(),
        };
        Recorder::start(file, config.record_queue, metrics.clone())
    };
    Ok(Shared {
        recorder: config.records.as_ref().map(start).transpose()?,
        clock_name: clock.name(),
        admin_token: plan.admin_token.clone(),
        faults: config
            .fault_injection
            .then(|| Faults::new(clock.clone(), metrics.clone())),
        tls: plan.tls.clone().map(Tls::load).transpose()?,
        clock,
        settings: ArcSwap::from_pointee(settings(config, plan.limits)),
        upstream_kind: config.upstream_kind,
        clocks: Mutex::new(OffsetTable::with_capacity(CLOCKS)),
        hop_key: plan
            .hop_secret
            .clone()
            .or(inherited)
            .map_or_else(HopKey::of_process, HopKey::of),
        foreign_hop: Once::new(),
        joins: Joins::new(has_front, metrics.clone()),
        phase: watch::channel(Phase::Serving).0,
        metrics,
    })
}
