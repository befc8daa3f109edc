//! Makes what a proxy consists of: the shared state, and the listeners.

use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::sync::Arc;

use anyhow::anyhow;
use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::client::listener::{ListenSocket, Phase};
use crate::client::takeover::Inherited;
use crate::clock::{Clock, NANOS, Stamp};
use crate::config::check::Credentials;
use crate::config::proxy::Config;
use crate::engine::{Engine, JoinOutput};
use crate::fault::Faults;
use crate::keys::values::Whole;
use crate::offset::OffsetTable;
use crate::proxy::connection;
use crate::proxy::hop_key::HopKey;
use crate::proxy::join::Joins;
use crate::proxy::shared::{Role, Service, Shared};
use crate::request::{Roles, Rows};
use crate::secret::Secret;
use crate::telemetry::Telemetry;
use crate::telemetry::otlp::settings::UpstreamFlag;
use crate::telemetry::otlp::{self, Traces};
use crate::telemetry::prometheus::Metrics;
use crate::telemetry::queue::DeliveryQueue;
use crate::telemetry::recorder::{self, RecordsFile, Rotation};
use crate::upstream::{Address, Policy, Rules, Trust, Upstreams, system_resolver};

/// The listeners for requests: the front first, then the hops.
pub(super) struct Listeners {
    pub(super) shared: Arc<Shared>,
    /// Has one receiver for each open connection, and for each stream of HTTP/2.
    pub(super) connections: Arc<watch::Sender<()>>,
    pub(super) running: Mutex<Vec<Arc<RunningListener>>>,
    /// When an upstream was last tried, and whether one could be connected to.
    pub(super) had_upstream: tokio::sync::Mutex<Option<(Stamp, bool)>>,
}

/// A listener that accepts, and its service. It stops accepting when dropped.
pub(super) struct RunningListener {
    pub(super) socket: ListenSocket,
    service: Arc<Service>,
}

/// A listener that does not accept yet, or new upstreams for one that runs.
pub(super) struct BoundListener {
    role: Role,
    socket: ListenSocket,
    upstreams: Arc<Upstreams>,
    /// The running listener that it is, which goes on.
    kept: Option<Arc<RunningListener>>,
}

/// Takes over the socket for this address from another process, if there is one, or binds a new one.
pub(super) fn listen(
    name: &str,
    address: SocketAddr,
    inherited: &mut Inherited,
) -> anyhow::Result<ListenSocket> {
    let claimed = inherited.claim(name, address);
    let key = if name.starts_with("worker") {
        ": listen"
    } else {
        ""
    };
    ListenSocket::new(name, address, claimed).map_err(|cause| {
        anyhow!(
            "{name}{key} = \"{address}\": {cause}; is another process or listener of this proxy there? Give a free address of this machine"
        )
    })
}

/// Binds the listeners of a config, except those of `running`, and resolves their upstreams.
pub(super) async fn bind(
    config: &Config,
    trust: Option<Trust>,
    running: &[Arc<RunningListener>],
    metrics: &Metrics,
    inherited: &mut Inherited,
) -> anyhow::Result<Vec<BoundListener>> {
    let mut all: Vec<BoundListener> = Vec::new();
    for (role, address, upstreams, rules) in listeners(config) {
        let (name, key) = match &role {
            Role::Front => ("listen".to_owned(), "upstream".to_owned()),
            Role::Hop(worker) => {
                let name = format!("worker {worker}");
                (name.clone(), name + ": upstream")
            }
        };
        let is_it = |one: &&Arc<RunningListener>| {
            one.socket.configured == address && one.socket.name == name
        };
        let kept = running.iter().find(is_it);
        let socket = match kept {
            Some(one) => one.socket.clone(),
            None => listen(&name, address, inherited)?,
        };
        let before = kept.map(|kept| kept.service.upstreams.load_full());
        let (metrics, trust) = (metrics.clone(), trust.clone());
        // The system's resolver blocks.
        let resolve = move || {
            let before = before.as_deref();
            Upstreams::resolve(&upstreams, rules, trust, system_resolver, before, &metrics)
        };
        let resolved = tokio::task::spawn_blocking(resolve).await;
        let upstreams = resolved?.map_err(|error| anyhow!("{key}: cannot resolve {error}"))?;
        all.push(BoundListener {
            role,
            socket,
            upstreams: Arc::new(upstreams),
            kept: kept.cloned(),
        });
    }
    Ok(all)
}

impl Listeners {
    /// Applies a config: runs these listeners, and stops all others. Returns the changes as text.
    pub(super) fn apply(&self, config: &Config, bound: Vec<BoundListener>) -> Vec<String> {
        let shared = &self.shared;
        shared.config.store(Arc::new(config.clone()));
        let workers = config.workers.iter().map(|worker| worker.name.as_str());
        // The metrics of a new worker exist before its first request, with 0.
        workers
            .clone()
            .for_each(|worker| shared.metrics.expect_worker(worker));
        if let Some(faults) = &shared.faults {
            faults.set_workers(&workers.collect::<Vec<_>>());
        }
        let mut changes = Vec::new();
        let mut running = self.running.lock();
        let old = std::mem::take(&mut *running);
        for one in bound {
            let (name, at, now) = (&one.socket.name, one.socket.address, one.upstreams.names());
            let to = now.join(", ");
            let Some(kept) = one.kept else {
                changes.push(match (&one.role, &shared.tls) {
                    (Role::Hop(_), _) => format!("{name} on http://{at} to {to}"),
                    (Role::Front, None) => format!("front on http://{at} to {to}"),
                    (Role::Front, Some(_)) => format!("front on https://{at} to {to}"),
                });
                running.push(Arc::new(self.accept(one)));
                continue;
            };
            let before = kept.service.upstreams.swap(one.upstreams);
            if before.names() != now {
                changes.push(format!("{name} to {to}"));
                if let Some(worker) = one.role.worker() {
                    shared.roles.lock().forget(worker);
                }
            }
            running.push(kept);
        }
        let stays = |old: &Arc<RunningListener>| running.iter().any(|one| Arc::ptr_eq(one, old));
        let gone = old.iter().filter(|old| !stays(old));
        changes.extend(gone.map(|gone| format!("{} gone", gone.socket.name)));
        changes
    }

    /// Starts accepting, on the current runtime.
    fn accept(&self, bound: BoundListener) -> RunningListener {
        let (shared, open) = (self.shared.clone(), self.connections.clone());
        let service = Arc::new(Service::new(shared, bound.role, open, bound.upstreams));
        tokio::spawn(connection::accept(service.clone(), bound.socket.clone()));
        RunningListener {
            socket: bound.socket,
            service,
        }
    }

    /// The front's upstreams, or those of the hops if there is no front.
    pub(super) fn upstreams(&self) -> Vec<Arc<Upstreams>> {
        let running = self.running.lock();
        let is_shown = |at: usize| at == 0 || !self.shared.joins.has_front;
        let shown = running.iter().enumerate().filter(|(at, _)| is_shown(*at));
        shown
            .map(|(_, one)| one.service.upstreams.load_full())
            .collect()
    }
}

impl Drop for RunningListener {
    fn drop(&mut self) {
        self.service.stopped.cancel();
    }
}

/// A listener of a config: its address, its upstreams and how they are used.
type ListenerSpec = (Role, SocketAddr, Vec<Address>, Rules);

/// The listeners of a config without the admin listener: the front first, then the hops.
fn listeners(config: &Config) -> impl Iterator<Item = ListenerSpec> {
    let hop_rules = Rules {
        policy: Policy::RoundRobin,
        max_concurrent_requests: Whole::of::<0>(),
        ..config.rules.clone()
    };
    // Without an upstream there are only hops, for a front elsewhere.
    let front = (!config.upstream.is_empty()).then(|| {
        let upstreams = config.upstream.clone();
        (Role::Front, config.listen, upstreams, config.rules.clone())
    });
    let hops = config.workers.iter().map(move |worker| {
        let role = Role::Hop(worker.name.as_str().into());
        let upstreams = vec![worker.upstream.clone()];
        (role, worker.listen, upstreams, hop_rules.clone())
    });
    front.into_iter().chain(hops)
}

/// Starts the writer of the records file, if there is one.
fn recorder(
    config: &Config,
    clock: &Clock,
    metrics: &Metrics,
) -> anyhow::Result<Option<DeliveryQueue<Rows>>> {
    let Some(path) = config.records.clone() else {
        return Ok(None);
    };
    let base = config.time_base.of_run(clock.now());
    let rotation = Rotation {
        bytes: (config.records_rotate_mb * 1e6).round() as u64,
        age_nanos: (config.records_rotate_hours * 3600.0 * NANOS as f64).round() as i64,
        keep: config.records_keep.get() as usize,
    };
    let file = RecordsFile {
        path,
        base,
        rotation,
        clock: clock.clone(),
    };
    let recorder = recorder::start(file, config.record_queue.get() as usize, metrics);
    Ok(Some(recorder.map_err(|error| anyhow!("records: {error}"))?))
}

/// Starts what rows go to: the records file, and traces.
fn telemetry(
    config: &Config,
    credentials: &Credentials,
    clock: &Clock,
    metrics: &Metrics,
) -> anyhow::Result<Arc<Telemetry>> {
    let to = credentials.traces.as_ref();
    let export = |to| Traces::start(to, clock.name(), metrics.clone(), otlp::SHUTDOWN_TIMEOUT);
    let traces = to.map(export).transpose()?;
    // Servers make no spans of requests without the flag, and rows wait for them.
    let default_flag = match config.engine.traces.listen {
        Some(_) => UpstreamFlag::Ratio,
        None => UpstreamFlag::default(),
    };
    let recorder = recorder(config, clock, metrics)?;
    let has_front = !config.upstream.is_empty();
    let mut telemetry = Telemetry::new(recorder, metrics.clone(), has_front, clock.clone());
    telemetry.traces = traces;
    telemetry.upstream_flag = config.otlp.upstream_flag.unwrap_or(default_flag);
    telemetry.ratio = config.otlp.ratio;
    Ok(Arc::new(telemetry))
}

pub(super) fn shared(
    config: &Config,
    credentials: &Credentials,
    clock: Clock,
    metrics: Metrics,
    inherited: Option<Secret>,
    engine_traces: Option<&ListenSocket>,
) -> anyhow::Result<Shared> {
    let telemetry = telemetry(config, credentials, &clock, &metrics)?;
    let clocks = Arc::<Mutex<OffsetTable>>::default();
    let roles = Arc::<Mutex<Roles>>::default();
    let output = JoinOutput {
        telemetry: telemetry.clone(),
        clocks: clocks.clone(),
        roles: roles.clone(),
    };
    let socket = |bound: &ListenSocket| bound.socket.as_fd().try_clone_to_owned();
    let socket = engine_traces
        .map(socket)
        .transpose()?
        .map(TcpListener::from);
    let (keys, forward) = (&config.engine, credentials.forward.clone());
    let engine = || Engine::start(keys, socket, forward, output, clock.clone());
    let engine = keys.is_on().then(engine);
    let faults = || Faults::new(metrics.clone());
    let hop_secret = credentials.hop_secret.clone().or(inherited);
    Ok(Shared {
        started: clock.now(),
        telemetry,
        engine: engine.transpose()?,
        clock_name: clock.name(),
        admin_token: credentials.admin_token.clone(),
        faults: config.fault_injection.then(faults),
        tls: credentials.tls.clone().map(ArcSwap::from),
        config: ArcSwap::from_pointee(config.clone()),
        clocks,
        hop_key: hop_secret.map_or_else(HopKey::of_process, HopKey::from_secret),
        joins: Joins::new(!config.upstream.is_empty(), metrics.clone()),
        roles,
        phase: watch::channel(Phase::Serving).0,
        metrics,
        clock,
    })
}
