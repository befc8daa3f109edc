//! What a proxy's start makes: what listeners share, and what each of them needs.

use std::io;
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
use crate::config::proxy::Config;
use crate::config::values::Share;
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
use crate::telemetry::otlp::sampling::UpstreamFlag;
use crate::telemetry::otlp::{self, Traces};
use crate::telemetry::prometheus::Metrics;
use crate::telemetry::recorder::Recorder;
use crate::telemetry::records_file::RecordsFile;
use crate::telemetry::rotation::Rotation;
use crate::upstream::{self, Address, Affinity, Policy, Rules, Trust, Upstreams};

use super::error::Error;

/// Other clocks (engines, hops of other processes) that are kept in mind.
const CLOCKS: usize = 1024;
/// Idle connections kept to the upstreams of a listener.
const POOL: usize = 4096;

/// The listeners for requests: the front first, then the hops.
#[derive(Clone)]
pub(super) struct Listeners {
    /// What the proxy was told, the last reload included.
    pub(super) config: Arc<ArcSwap<Config>>,
    pub(super) shared: Arc<Shared>,
    /// One receiver a connection.
    pub(super) connections: Arc<watch::Sender<()>>,
    pub(super) running: Arc<Mutex<Vec<Served>>>,
}

/// A listener and where its requests go. Dropping it accepts no more.
pub(super) struct Served {
    pub(super) socket: ListenSocket,
    /// A reload replaces them.
    pub(super) upstreams: Arc<ArcSwap<Upstreams>>,
    service: Arc<Service>,
}

/// A listener that does not accept yet, or one that runs and is to get these upstreams.
pub(super) struct Bound {
    role: Role,
    pub(super) socket: ListenSocket,
    upstreams: Arc<Upstreams>,
    /// Its place among those that run.
    at: Option<usize>,
}

/// Takes the socket from another process where there is one for this address, or binds a new one.
pub(super) fn listen(
    name: &str,
    address: SocketAddr,
    inherited: &mut Inherited,
) -> Result<ListenSocket, Error> {
    let claimed = inherited.claim(name, address);
    ListenSocket::new(name, address, claimed).map_err(|source| Error::Listen {
        key: match name.starts_with("worker") {
            true => format!("{name}: listen"),
            false => name.to_owned(),
        },
        address,
        source,
    })
}

/// Binds the listeners that a config asks for, but for those of `running`, and looks their upstreams up.
pub(super) async fn bind(
    config: &Config,
    trust: Option<Trust>,
    running: &[(ListenSocket, Arc<Upstreams>)],
    metrics: &Metrics,
    inherited: &mut Inherited,
) -> Result<Vec<Bound>, Error> {
    let mut all = Vec::new();
    for (role, address, upstreams, rules) in listeners(config, trust) {
        let (name, key) = match &role {
            Role::Front => ("listen".to_owned(), "upstream".to_owned()),
            Role::Hop(worker) => {
                let name = format!("worker {worker}");
                (name.clone(), name + ": upstream")
            }
        };
        let has_address = |socket: &ListenSocket| socket.configured == address;
        let at = running
            .iter()
            .position(|(socket, _)| socket.name == name && has_address(socket));
        let same = at.and_then(|at| running.get(at));
        // A worker that was renamed keeps its socket.
        let renamed = || {
            running
                .iter()
                .find(|(one, _)| has_address(one) && address.port() != 0)
        };
        let socket = match same.or_else(renamed) {
            Some((socket, _)) => ListenSocket {
                name,
                ..socket.clone()
            },
            None => listen(&name, address, inherited)?,
        };
        let (before, metrics) = (same.map(|(_, all)| all.clone()), metrics.clone());
        // The system's resolver blocks.
        let resolve = move || Upstreams::resolve(&upstreams, rules, before.as_deref(), &metrics);
        let resolved = tokio::task::spawn_blocking(resolve).await;
        let resolved = resolved.map_err(io::Error::other)?;
        let upstreams = resolved.map_err(|problem| Error::Resolve { key, problem })?;
        all.push(Bound {
            role,
            socket,
            upstreams: Arc::new(upstreams),
            at,
        });
    }
    Ok(all)
}

impl Listeners {
    /// Has those run, and no others, with the settings of a config. Gives what has become of them, in words.
    pub(super) fn take_on(&self, config: &Config, bound: Vec<Bound>) -> Vec<String> {
        let shared = &self.shared;
        shared.settings.store(Arc::new(settings(config)));
        self.config.store(Arc::new(config.clone()));
        let workers = config.workers.iter().map(|worker| worker.name.as_str());
        // Metrics of one that was added begin at 0 before its first request.
        workers
            .clone()
            .for_each(|worker| shared.metrics.expect_worker(worker));
        if let Some(faults) = &shared.faults {
            faults.keep(&workers.collect::<Vec<_>>());
        }
        let mut said = Vec::new();
        let mut running = self.running.lock();
        let mut old: Vec<Option<Served>> = running.drain(..).map(Some).collect();
        for one in bound {
            let (name, at, now) = (&one.socket.name, one.socket.address, one.upstreams.names());
            let to = now.join(", ");
            let Some(kept) = one.at.and_then(|at| old.get_mut(at)?.take()) else {
                said.push(match (&one.role, &shared.tls) {
                    (Role::Hop(_), _) => format!("{name} on http://{at} to {to}"),
                    (Role::Front, None) => format!("front on http://{at} to {to}"),
                    (Role::Front, Some(_)) => format!("front on https://{at} to {to}"),
                });
                running.push(self.accept(one));
                continue;
            };
            if kept.upstreams.load().names() != now {
                said.push(format!("{name} to {to}"));
            }
            kept.upstreams.store(one.upstreams);
            running.push(kept);
        }
        let gone = old.iter().flatten();
        said.extend(gone.map(|gone| format!("{} gone", gone.socket.name)));
        said
    }

    /// Accepts, on the current runtime.
    fn accept(&self, bound: Bound) -> Served {
        let (shared, role) = (self.shared.clone(), bound.role);
        let upstreams = Arc::new(ArcSwap::new(bound.upstreams));
        let (most, phase) = (shared.limits(&role).connections, shared.phase.subscribe());
        let listener = Listener::new(most, phase, self.connections.clone());
        // Of each of the runtime's threads.
        let threads = self.config.load().threads.get() as usize;
        let pool = POOL.div_ceil(threads).saturating_mul(threads);
        let service = Service::new(shared, role, listener, upstreams.clone(), pool);
        let service = Arc::new(service);
        tokio::spawn(connection::accept(service.clone(), bound.socket.clone()));
        Served {
            socket: bound.socket,
            upstreams,
            service,
        }
    }

    /// Where requests go: the front's upstreams, or those of the hops where there is no front.
    pub(super) fn upstreams(&self) -> Vec<Arc<Upstreams>> {
        let fronts = if self.shared.joins.has_front() {
            1
        } else {
            usize::MAX
        };
        let running = self.running.lock();
        let running = running.iter().take(fronts);
        running.map(|one| one.upstreams.load_full()).collect()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.service.listener.stopped.cancel();
    }
}

fn settings(config: &Config) -> Settings {
    let hosts = config.workers.iter();
    let hosts = hosts.filter_map(|worker| Some((worker.name.clone(), worker.host.clone()?)));
    let roles = config.workers.iter();
    let roles = roles.filter_map(|worker| Some((worker.name.clone(), worker.role?)));
    Settings {
        limits: Limits {
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
        stamps: config.stamps,
        stamps_token: config.stamps_token.clone(),
        label_headers: config.label_headers.clone(),
        hosts: hosts.collect(),
        roles: roles.collect(),
    }
}

/// A listener as a config asks for it.
type Asked = (Role, SocketAddr, Vec<Address>, Rules);

/// The listeners that a config asks for, but for the admin listener: the front first, then the hops.
fn listeners(config: &Config, trust: Option<Trust>) -> impl Iterator<Item = Asked> {
    let front_rules = Rules {
        policy: config.policy,
        affinity: Affinity {
            cache_threshold: config.cache_threshold.get(),
            balance_abs_threshold: usize::try_from(config.balance_abs_threshold.get())
                .unwrap_or(usize::MAX),
            balance_rel_threshold: config.balance_rel_threshold,
        },
        out: config.upstream_out_s.get(),
        trust,
        resend_broken: config.resend_broken,
        most: config.max_concurrent_requests.get() as usize,
        queue_timeout: config.queue_timeout_s.get(),
        connect_timeout: config.upstream_connect_timeout_s.get(),
        read_timeout: config.upstream_read_timeout_s.get(),
        write_timeout: config.upstream_write_timeout_s.get(),
        idle_timeout: config.upstream_idle_timeout_s.get(),
        resolver: upstream::system,
    };
    let hop_rules = Rules {
        policy: Policy::RoundRobin,
        // The one server would get the request twice.
        resend_broken: false,
        most: 0,
        ..front_rules.clone()
    };
    // Without an upstream there are only hops, for a front elsewhere.
    let front = (!config.upstream.is_empty()).then(|| {
        let upstreams = config.upstream.clone();
        (Role::Front, config.listen, upstreams, front_rules)
    });
    let hops = config.workers.iter().map(move |worker| {
        let role = Role::Hop(worker.name.as_str().into());
        let upstreams = vec![worker.upstream.clone()];
        (role, worker.listen, upstreams, hop_rules.clone())
    });
    front.into_iter().chain(hops)
}

/// When the sampled flag goes upstream: by the ratio where servers' spans are waited for, which make none without it, unless
/// the user says otherwise.
fn upstream_flag(config: &Config) -> UpstreamFlag {
    let listens = config.engine.traces.listen.is_some();
    let usual = if listens {
        UpstreamFlag::Ratio
    } else {
        UpstreamFlag::default()
    };
    config.otlp.upstream_flag.unwrap_or(usual)
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
    let base = config.time_base.of_run(clock.now());
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
    if let Some(off) = credentials.traces.off {
        log::warn!("traces: {off} turns them off");
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
        roles: Mutex::default(),
        phase: watch::channel(Phase::Serving).0,
        metrics,
        clock,
    })
}
