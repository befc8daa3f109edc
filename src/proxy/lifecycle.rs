//! A proxy from its start to its end: listeners, draining, signals.

use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::ArcSwap;
use pingora::proxy::HttpProxy;
use pingora::server::ShutdownWatch;
use pingora::server::configuration::ServerConf;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::clock::Clock;
use crate::offset::OffsetTable;
use crate::telemetry::csv::TimeBase;
use crate::telemetry::prometheus::Metrics;
use crate::telemetry::recorder::{self, Recorder, RecordsFile};

use super::admin;
use super::config::{Base, Config, Limits, Plan, Wrong};
use super::connection::{self, Clients};
use super::door;
use super::fault::desk::Faults;
use super::join::Joins;
use super::service::Service;
use super::shared::{Role, Shared};
use super::tls::{self, Tls};
use super::upstream::{Address, Rules, Upstreams};

/// Where a proxy is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// It serves.
    Serving,
    /// It takes no new connections, and says on each response that the connection closes.
    Draining,
    /// Idle connections are closed too.
    Closing,
    /// Everything is cut off.
    Cut,
}

/// What the connections of one listener share.
pub struct Listener {
    /// Pingora's part.
    pub proxy: HttpProxyOf,
    /// The proxy's clock.
    pub clock: Clock,
    /// What is counted.
    pub metrics: Metrics,
    /// After how much idleness a connection is closed, seconds.
    pub client_idle_s: u64,
    /// How its clients are taken.
    pub clients: Clients,
    /// Pingora's view of the phase: true from [`Phase::Draining`] on.
    pub shutdown: ShutdownWatch,
}

/// Pingora's proxy around our service.
pub type HttpProxyOf = Arc<HttpProxy<Service>>;

/// A running proxy: a front, its hops and its admin listener, on the runtime that started it. Dropping it
/// cuts everything off.
pub struct Proxy {
    shared: Arc<Shared>,
    drain_limit: Duration,
    shutdown: watch::Sender<bool>,
    /// One receiver a connection.
    connections: Arc<watch::Sender<()>>,
    accepting: Mutex<Vec<JoinHandle<()>>>,
    admin: JoinHandle<()>,
    front_addr: Option<SocketAddr>,
    worker_addrs: Vec<SocketAddr>,
    admin_addr: SocketAddr,
}

/// Why a proxy could not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A value cannot be used.
    #[error(transparent)]
    Config(#[from] Wrong),
    /// An address cannot be listened on.
    #[error("{key} = \"{address}\": {source}; is another process there? Give a free address")]
    Listen {
        /// The key of the address.
        key: String,
        /// The address.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// An upstream's name does not resolve.
    #[error("{key}: cannot resolve {problem}")]
    Resolve {
        /// The key of the upstream.
        key: String,
        /// The name, and why.
        problem: String,
    },
    /// The records file cannot be used.
    #[error("records: {0}")]
    Records(#[from] recorder::Error),
    /// The counters.
    #[error("metrics: {0}")]
    Metrics(#[from] prometheus::Error),
    /// The certificate cannot be used.
    #[error(transparent)]
    Tls(#[from] tls::Error),
    /// The runtime or the signals.
    #[error("cannot start: {0}")]
    System(#[from] io::Error),
}

/// How long after the start of draining idle connections stay open, for requests already on their way.
const GRACE: Duration = Duration::from_millis(200);
/// After everything was cut off, how long the last records may take.
const LAST: Duration = Duration::from_secs(5);
/// Other clocks (engines, hops of other processes) that are kept in mind.
const CLOCKS: usize = 1024;
/// How often the join tables are looked through.
const SWEEP: Duration = Duration::from_secs(1);
/// Idle connections kept to the upstreams of a listener.
const POOL: usize = 4096;
/// Upstreams that a request is tried at, at most. Below it, `Route` says when there is no other.
const TRIES: usize = 64;

impl Error {
    /// Whether the one who started it can mend it by other arguments.
    pub fn is_usage(&self) -> bool {
        matches!(self, Error::Config(_) | Error::Tls(_))
    }
}

impl Proxy {
    /// Binds the listeners and serves, on the current runtime.
    ///
    /// # Errors
    /// See [`Error`]. Nothing is left running.
    pub async fn start(config: Config, clock: Clock) -> Result<Proxy, Error> {
        let plan = config.check()?;
        // Without an upstream there are only hops, for a front elsewhere.
        let has_front = !plan.upstream.is_empty();
        let front = has_front.then(|| bind("listen", plan.listen)).transpose()?;
        let admin = bind("admin", plan.admin)?;
        let workers = plan.workers.iter().map(|(name, listen, upstream)| {
            let key = format!("worker {name}: listen");
            Ok((name.clone(), bind(&key, *listen)?, upstream.clone()))
        });
        let workers = workers.collect::<Result<Vec<_>, Error>>()?;
        let shared = Arc::new(shared(&config, &plan, clock)?);
        let (shutdown, _) = watch::channel(false);
        let mut start = Start {
            shared: shared.clone(),
            limits: plan.limits,
            threads: config.threads,
            shutdown: shutdown.clone(),
            connections: Arc::new(watch::channel(()).0),
            accepting: Vec::new(),
        };
        let rules = plan.rules(&Role::Front)?;
        let front_addr = front
            .map(|front| start.listener("upstream", Role::Front, front, &plan.upstream, rules))
            .transpose()?;
        let mut worker_addrs = Vec::new();
        for (name, socket, upstream) in workers {
            let key = format!("worker {name}: upstream");
            let role = Role::Hop(name.into());
            let rules = plan.rules(&role)?;
            worker_addrs.push(start.listener(&key, role, socket, &[upstream], rules)?);
        }
        let admin = TcpListener::from_std(admin)?;
        let admin_addr = admin.local_addr()?;
        announce(&plan, front_addr, &worker_addrs, admin_addr);
        start.accepting.push(tokio::spawn(sweep(shared.clone())));
        Ok(Proxy {
            admin: tokio::spawn(admin::serve(admin, shared.clone())),
            shared,
            drain_limit: plan.limits.drain,
            shutdown,
            connections: start.connections.clone(),
            accepting: Mutex::new(std::mem::take(&mut start.accepting)),
            front_addr,
            worker_addrs,
            admin_addr,
        })
    }

    /// Where clients connect; `None` when there are only hops.
    pub fn front_addr(&self) -> Option<SocketAddr> {
        self.front_addr
    }

    /// Where the router connects, in the order of the workers.
    pub fn worker_addrs(&self) -> &[SocketAddr] {
        &self.worker_addrs
    }

    /// Where `/healthz`, `/readyz` and `/metrics` are.
    pub fn admin_addr(&self) -> SocketAddr {
        self.admin_addr
    }

    /// The front's certificate, for a reload; `None` when it speaks plain HTTP.
    pub fn tls(&self) -> Option<&Tls> {
        self.shared.tls.as_ref()
    }

    /// What it counts.
    pub fn metrics(&self) -> &Metrics {
        &self.shared.metrics
    }

    /// Ends in good order: no new connections, open requests go on to their end or `drain_timeout_s`, all
    /// records on disk.
    pub async fn drain(&self) {
        self.stop_accepting(Phase::Draining);
        let open = self.metrics().in_flight();
        log::info!("draining: {open} requests in flight; another signal ends at once");
        let rest = async {
            let _ = tokio::time::timeout(GRACE, self.connections.closed()).await;
            self.enter(Phase::Closing);
            self.connections.closed().await;
        };
        let limit = self.drain_limit.max(Duration::from_millis(1));
        if tokio::time::timeout(limit, rest).await.is_err() {
            let left = self.connections.receiver_count();
            log::warn!("{left} connections were still open after drain_timeout_s");
        }
        self.abort().await;
    }

    /// Ends at once: open requests are cut off. All records are on disk when it returns.
    pub async fn abort(&self) {
        self.stop_accepting(Phase::Cut);
        let _ = tokio::time::timeout(LAST, self.connections.closed()).await;
        self.admin.abort();
        let shared = self.shared.clone();
        let close = move || {
            if let Some(recorder) = &shared.recorder {
                for rows in shared.joins.flush() {
                    recorder.record(rows);
                }
                recorder.close();
            }
        };
        // Joining a thread would hold up the runtime.
        if tokio::task::spawn_blocking(close).await.is_err() {
            log::error!("records: the recorder could not be closed");
        }
    }

    fn stop_accepting(&self, phase: Phase) {
        self.enter(phase);
        self.shutdown.send_replace(true);
        let accepting = self.accepting.lock();
        let mut accepting = accepting.unwrap_or_else(std::sync::PoisonError::into_inner);
        for task in accepting.drain(..) {
            task.abort();
        }
    }

    fn enter(&self, phase: Phase) {
        let later = |now: &mut Phase| {
            let is_later = phase > *now;
            if is_later {
                *now = phase;
            }
            is_later
        };
        self.shared.phase.send_if_modified(later);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.stop_accepting(Phase::Cut);
        self.admin.abort();
    }
}

/// What starting a listener needs.
struct Start {
    shared: Arc<Shared>,
    limits: Limits,
    threads: usize,
    shutdown: watch::Sender<bool>,
    connections: Arc<watch::Sender<()>>,
    accepting: Vec<JoinHandle<()>>,
}

impl Start {
    fn listener(
        &mut self,
        key: &str,
        role: Role,
        socket: StdListener,
        upstreams: &[Address],
        rules: Rules,
    ) -> Result<SocketAddr, Error> {
        let upstreams = Upstreams::resolve(upstreams, rules, None, &self.shared.metrics);
        let upstreams = upstreams.map_err(|problem| Error::Resolve {
            key: key.into(),
            problem,
        })?;
        let conf = ServerConf {
            threads: self.threads,
            upstream_keepalive_pool_size: POOL.div_ceil(self.threads),
            max_retries: TRIES,
            // Each peer brings its own roots; without a file Pingora would read the system's.
            ca_file: Some("/dev/null".into()),
            ..ServerConf::default()
        };
        let clients = Clients::of(&role, &self.shared, &self.limits);
        let upstreams = Arc::new(ArcSwap::from_pointee(upstreams));
        let service = Service::new(self.shared.clone(), role, upstreams, self.limits);
        let mut proxy = HttpProxy::new(service, Arc::new(conf));
        proxy.handle_init_modules();
        let socket = TcpListener::from_std(socket)?;
        let address = socket.local_addr()?;
        let listener = Arc::new(Listener {
            proxy: Arc::new(proxy),
            clock: self.shared.clock.clone(),
            metrics: self.shared.metrics.clone(),
            client_idle_s: self.limits.client_idle_s,
            clients,
            shutdown: self.shutdown.subscribe(),
        });
        let phase = self.shared.phase.subscribe();
        let accept = accept(socket, listener, phase, self.connections.clone());
        self.accepting.push(tokio::spawn(accept));
        Ok(address)
    }
}

impl Drop for Start {
    fn drop(&mut self) {
        // Only a start that failed half-way still has some.
        for task in self.accepting.drain(..) {
            task.abort();
        }
    }
}

/// Writes the rows of hops' attempts that no front here claims in time, and lets the join tables forget.
async fn sweep(shared: Arc<Shared>) {
    loop {
        tokio::time::sleep(SWEEP).await;
        for rows in shared.joins.sweep(shared.clock.now()) {
            if let Some(recorder) = &shared.recorder {
                recorder.record(rows);
            }
        }
    }
}

async fn accept(
    socket: TcpListener,
    listener: Arc<Listener>,
    phase: watch::Receiver<Phase>,
    connections: Arc<watch::Sender<()>>,
) {
    loop {
        match socket.accept().await {
            Ok((stream, peer)) => {
                let open = connections.subscribe();
                let serve = connection::serve(stream, peer, listener.clone(), phase.clone());
                tokio::spawn(async move {
                    serve.await;
                    drop(open);
                });
            }
            Err(error) => {
                // Out of file descriptors, mostly: those who are connected go on.
                log::warn!("cannot accept a connection: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

fn shared(config: &Config, plan: &Plan, clock: Clock) -> Result<Shared, Error> {
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
        tls: plan.tls.clone().map(Tls::load).transpose()?,
        recorder: config.records.as_ref().map(start).transpose()?,
        clock_name: clock.name(),
        stamps: config.stamps,
        stamps_token: config.stamps_token.clone(),
        admin_token: plan.admin_token.clone(),
        faults: config
            .fault_injection
            .then(|| Faults::new(clock.clone(), metrics.clone())),
        upstream_kind: config.upstream_kind,
        clocks: Mutex::new(OffsetTable::with_capacity(CLOCKS)),
        joins: Joins::new(!plan.upstream.is_empty(), metrics.clone()),
        phase: watch::channel(Phase::Serving).0,
        metrics,
        clock,
    })
}

fn bind(key: &str, address: SocketAddr) -> Result<StdListener, Error> {
    let bound = || {
        let socket = Socket::new(
            Domain::for_address(address),
            Type::STREAM,
            Some(Protocol::TCP),
        )?;
        // A restart must not wait for the last connections' TIME_WAIT.
        socket.set_reuse_address(true)?;
        socket.set_nonblocking(true)?;
        socket.bind(&address.into())?;
        socket.listen(1024)?;
        Ok(StdListener::from(socket))
    };
    bound().map_err(|source| Error::Listen {
        key: key.into(),
        address,
        source,
    })
}

fn announce(plan: &Plan, front: Option<SocketAddr>, workers: &[SocketAddr], admin: SocketAddr) {
    let names: Vec<String> = plan.upstream.iter().map(Address::name).collect();
    let scheme = plan.tls.as_ref().map_or("http", |_| "https");
    match front {
        Some(front) => log::info!("front on {scheme}://{front} to {}", names.join(", ")),
        None => log::info!("no upstream given: worker hops only, for a front elsewhere"),
    }
    for ((name, _, upstream), address) in plan.workers.iter().zip(workers) {
        log::info!("worker {name} on http://{address} to {}", upstream.name());
    }
    log::info!("admin on http://{admin}");
}

/// Runs a proxy until SIGTERM or SIGINT, and drains it; a second signal cuts it off.
///
/// # Errors
/// Why it could not start.
pub fn run(config: Config, clock: Clock) -> Result<(), Error> {
    config.check()?;
    door::allow_many_connections();
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime
        .worker_threads(config.threads)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let mut signals = Signals::new()?;
        let proxy = Proxy::start(config, clock).await?;
        signals.next().await;
        tokio::select! {
            () = proxy.drain() => {}
            () = signals.next() => proxy.abort().await,
        }
        Ok(())
    })
}

/// The signals that end a process.
struct Signals {
    term: Signal,
    int: Signal,
}

impl Signals {
    fn new() -> io::Result<Signals> {
        Ok(Signals {
            term: signal(SignalKind::terminate())?,
            int: signal(SignalKind::interrupt())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.term.recv() => {}
            _ = self.int.recv() => {}
        }
    }
}
