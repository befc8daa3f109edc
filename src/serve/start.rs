//! What a proxy's start makes: what listeners share, and what each of them needs.

use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::sync::{Arc, Once};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::client::limits::Limits;
use crate::client::listener::{ListenSocket, Listener};
use crate::client::phase::Phase;
use crate::client::takeover::Inherited;
use crate::clock::{Clock, NANOS};
use crate::config::check::Credentials;
use crate::config::proxy::{Base, Config};
use crate::config::values::Share;
use crate::config_error::ConfigError;
use crate::engine::joiner::Outlet;
use crate::engine::{self, Engine, forward};
use crate::fault::registry::Faults;
use crate::offset::OffsetTable;
use crate::proxy::connection;
use crate::proxy::hop_key::HopKey;
use crate::proxy::join::Joins;
use crate::proxy::service::Service;
use crate::proxy::shared::{Role, Settings, Shared};
use crate::secret::Secret;
use crate::telemetry::Telemetry;
use crate::telemetry::csv::TimeBase;
use crate::telemetry::otlp::sampling::UpstreamFlag;
use crate::telemetry::otlp::{self, Traces};
use crate::telemetry::prometheus::Metrics;
use crate::telemetry::recorder::Recorder;
use crate::telemetry::records_file::RecordsFile;
use crate::telemetry::rotation::Rotation;
use crate::upstream::{self, Address, Affinity, Policy, Rules, Upstreams};

use super::error::Error;

/// Other clocks (engines, hops of other processes) that are kept in mind.
const CLOCKS: usize = 1024;
/// Idle connections kept to the upstreams of a listener.
const POOL: usize = 4096;

/// What starting a listener needs.
#[derive(Clone)]
pub(super) struct Start {
    pub(super) shared: Arc<Shared>,
    pub(super) threads: usize,
    /// One receiver a connection.
    pub(super) connections: Arc<watch::Sender<()>>,
}

/// A listener and where its requests go. Dropping it accepts no more.
pub(super) struct Served {
    pub(super) socket: ListenSocket,
    /// A reload replaces them.
    pub(super) upstreams: Arc<ArcSwap<Upstreams>>,
    service: Arc<Service>,
}

/// A listener as a config asks for it.
pub(super) struct ListenerSpec {
    /// See [`ListenSocket::name`].
    pub(super) name: String,
    pub(super) address: SocketAddr,
    pub(super) role: Role,
    /// The key of its upstreams.
    key: String,
    upstreams: Vec<Address>,
    rules: Rules,
}

/// Takes the socket from another process where there is one for this address, or binds a new one.
pub(super) fn listen(
    name: &str,
    address: SocketAddr,
    inherited: &mut Inherited,
) -> Result<ListenSocket, Error> {
    let claimed = inherited.claim(name, address);
    ListenSocket::new(name, address, claimed).map_err(|source| Error::Listen {
        key: if name.starts_with("worker") {
            format!("{name}: listen")
        } else {
            name.to_owned()
        },
        address,
        source,
    })
}

impl Start {
    /// Makes all that accepting from `socket` needs.
    pub(super) fn ready(
        &self,
        role: Role,
        socket: ListenSocket,
        upstreams: Arc<Upstreams>,
    ) -> Served {
        let shared = self.shared.clone();
        let upstreams = Arc::new(ArcSwap::new(upstreams));
        let (most, phase) = (shared.limits(&role).connections, shared.phase.subscribe());
        let listener = Listener::new(most, phase, self.connections.clone());
        // Of each of the runtime's threads.
        let pool = POOL.div_ceil(self.threads).saturating_mul(self.threads);
        let service = Service::new(shared, role, listener, upstreams.clone(), pool);
        Served {
            socket,
            upstreams,
            service: Arc::new(service),
        }
    }
}

impl Served {
    /// Accepts, on the current runtime.
    pub(super) fn accept(self) -> Served {
        let socket = self.socket.clone();
        tokio::spawn(connection::accept(self.service.clone(), socket));
        self
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.service.listener.stopped.cancel();
    }
}

pub(super) fn settings(config: &Config) -> Settings {
    let hosts = config.workers.iter();
    let hosts = hosts.filter_map(|worker| Some((worker.name.clone(), worker.host.clone()?)));
    Settings {
        limits: Limits {
            drain: config.drain_timeout_s.get(),
            client_idle_s: config.client_idle_timeout_s.get(),
            client_read: config.client_read_timeout_s.get(),
            client_write: config.client_write_timeout_s.get(),
            client_head: config.client_head_timeout_s.get(),
            client_body: config.client_body_timeout_s.get(),
            client_stall: config.client_stall_timeout_s.get(),
            request_head_bytes: config.request_head_max_bytes.get(),
            request_body_bytes: config.request_body_max_bytes.get(),
            connections: config.max_connections.get() as usize,
        },
        upstream_read: config.upstream_read_timeout_s.get(),
        stamps: config.stamps,
        stamps_token: config.stamps_token.clone(),
        admin_hosts: config.admin_hosts.clone(),
        ready_needs_upstream: config.ready_needs_upstream,
        hosts: hosts.collect(),
    }
}

fn timeouts(config: &Config) -> upstream::Timeouts {
    upstream::Timeouts {
        connect: config.upstream_connect_timeout_s.get(),
        read: config.upstream_read_timeout_s.get(),
        write: config.upstream_write_timeout_s.get(),
        idle: config.upstream_idle_timeout_s.get(),
    }
}

/// The listeners that a config asks for, but for the admin listener: the front first, then the hops.
///
/// # Errors
/// Who may sign the certificates of upstreams is not known.
pub(super) fn listeners(config: &Config) -> Result<Vec<ListenerSpec>, ConfigError> {
    let front_rules = Rules {
        policy: config.policy,
        affinity: Affinity {
            cache_threshold: config.cache_threshold.get(),
            balance_abs_threshold: usize::try_from(config.balance_abs_threshold.get())
                .unwrap_or(usize::MAX),
            balance_rel_threshold: config.balance_rel_threshold,
        },
        out: config.upstream_out_s.get(),
        trust: config.trust()?,
        resend_broken: config.resend_broken,
        timeouts: timeouts(config),
    };
    let hop_rules = Rules {
        policy: Policy::RoundRobin,
        // The one server would get the request twice.
        resend_broken: false,
        ..front_rules.clone()
    };
    // Without an upstream there are only hops, for a front elsewhere.
    let front = (!config.upstream.is_empty()).then(|| ListenerSpec {
        name: "listen".into(),
        address: config.listen,
        role: Role::Front,
        key: "upstream".into(),
        upstreams: config.upstream.clone(),
        rules: front_rules,
    });
    let hops = config.workers.iter().map(|worker| ListenerSpec {
        name: format!("worker {}", worker.name),
        address: worker.listen,
        role: Role::Hop(worker.name.as_str().into()),
        key: worker.key("upstream"),
        upstreams: vec![worker.upstream.clone()],
        rules: hop_rules.clone(),
    });
    Ok(front.into_iter().chain(hops).collect())
}

impl ListenerSpec {
    /// Looks the upstreams up; those that were there `before` go on. Blocks.
    ///
    /// # Errors
    /// Which name does not resolve.
    pub(super) fn resolve(
        self,
        before: Option<&Upstreams>,
        metrics: &Metrics,
    ) -> Result<Upstreams, Error> {
        let key = self.key;
        let resolved = Upstreams::resolve(&self.upstreams, self.rules, before, metrics);
        resolved.map_err(|problem| Error::Resolve { key, problem })
    }
}

/// When the sampled flag goes upstream: by the ratio where servers' spans are waited for, which make none without it, unless
/// the user says otherwise.
fn upstream_flag(config: &Config) -> UpstreamFlag {
    let listens = config.engine.traces.listen.is_some();
    let flag = match (config.otlp.upstream_flag, listens) {
        (Some(flag), _) => flag,
        (None, true) => UpstreamFlag::Ratio,
        (None, false) => UpstreamFlag::default(),
    };
    if listens && matches!(flag, UpstreamFlag::Never | UpstreamFlag::Client) {
        let what = match flag {
            UpstreamFlag::Never => "none",
            _ => "only those whose client sends a sampled trace",
        };
        log::warn!(
            "engine traces: upstream_flag lets servers make spans of {what} of the requests; without it, or with \
             \"always\", they make them of all"
        );
    }
    flag
}

/// What engines tell, where any of it is on.
fn engine(
    config: &Config,
    credentials: &Credentials,
    traces: Option<&ListenSocket>,
) -> Result<Option<engine::Settings>, Error> {
    let given = &config.engine;
    if !given.is_on() {
        return Ok(None);
    }
    let socket = |bound: &ListenSocket| bound.socket.as_fd().try_clone_to_owned();
    let forward = credentials.forward.clone().map(|to| forward::Settings {
        to,
        queue_bytes: given.traces.queue_bytes.get() as usize,
    });
    Ok(Some(engine::Settings {
        traces: traces.map(socket).transpose()?.map(TcpListener::from),
        forward,
        logs: given.logs.path.clone(),
        wait: given.wait_s.get(),
        wait_abort: given.wait_abort_s.get(),
        most: given.most_waiting.get() as usize,
    }))
}

/// The records file, where there is one.
fn recorder(config: &Config, clock: &Clock, metrics: &Metrics) -> Result<Option<Recorder>, Error> {
    let Some(path) = config.records.clone() else {
        return Ok(None);
    };
    let base = match config.time_base {
        Base::Epoch => TimeBase::Epoch,
        Base::Run => TimeBase::Since(clock.now()),
    };
    let rotation = Rotation {
        bytes: (config.records_rotate_mb * 1e6).round() as u64,
        age_nanos: (config.records_rotate_hours * 3600.0 * NANOS as f64).round() as i64,
        keep: config.records_keep,
    };
    let file = RecordsFile {
        path,
        base,
        rotation,
        clock: clock.clone(),
    };
    let recorder = Recorder::start(file, config.record_queue.get() as usize, metrics.clone())?;
    Ok(Some(recorder))
}

/// Where rows go: the records file, and traces.
fn telemetry(
    config: &Config,
    credentials: &Credentials,
    clock: &Clock,
    metrics: &Metrics,
) -> Result<Arc<Telemetry>, Error> {
    for note in &credentials.traces.notes {
        log::warn!("traces: {note}");
    }
    let to = credentials.traces.settings.as_ref();
    let own_ratio = config.otlp.ratio.map_or(1.0, Share::get);
    let ratio = to.map_or(own_ratio, |to| to.sampling.ratio);
    let export = |to| Traces::start(to, clock.name(), metrics.clone(), otlp::LAST);
    let traces = to.map(export).transpose()?;
    let recorder = recorder(config, clock, metrics)?;
    let telemetry = Telemetry::new(recorder, metrics.clone(), !config.upstream.is_empty());
    Ok(Arc::new(telemetry.with_traces(
        traces,
        upstream_flag(config),
        ratio,
    )))
}

pub(super) fn shared(
    config: &Config,
    credentials: &Credentials,
    clock: Clock,
    metrics: Metrics,
    inherited: Option<Secret>,
    engine_traces: Option<&ListenSocket>,
) -> Result<Shared, Error> {
    let telemetry = telemetry(config, credentials, &clock, &metrics)?;
    let clocks = Arc::new(Mutex::new(OffsetTable::with_capacity(CLOCKS)));
    let outlet = Outlet {
        telemetry: telemetry.clone(),
        clocks: clocks.clone(),
        metrics: metrics.clone(),
    };
    let engine = engine(config, credentials, engine_traces)?;
    let engine = engine.map(|settings| Engine::start(settings, outlet, clock.clone(), &metrics));
    let faults = || Faults::new(clock.clone(), metrics.clone());
    let hop_secret = credentials.hop_secret.clone().or(inherited);
    Ok(Shared {
        started: clock.now(),
        telemetry,
        engine: engine.transpose()?,
        clock_name: clock.name(),
        admin_token: credentials.admin_token.clone(),
        faults: config.fault_injection.then(faults),
        tls: credentials.tls.clone().map(ArcSwap::from),
        settings: ArcSwap::from_pointee(settings(config)),
        upstream_kind: config.upstream_kind,
        clocks,
        hop_key: hop_secret.map_or_else(HopKey::of_process, HopKey::of),
        unsigned_stamps: Once::new(),
        joins: Joins::new(!config.upstream.is_empty(), metrics.clone()),
        phase: watch::channel(Phase::Serving).0,
        metrics,
        clock,
    })
}
