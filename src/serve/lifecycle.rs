//! A proxy from its start to its end: listeners, draining.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::client::listener::ListenSocket;
use crate::client::phase::Phase;
use crate::client::takeover::{Channel, Inherited, Offer};
use crate::clock::{Clock, NANOS};
use crate::config::proxy::Config;
use crate::engine::Engine;
use crate::proxy::shared::Shared;
use crate::telemetry::prometheus::Metrics;
use crate::upstream::Address;

use super::admin;
use super::error::Error;
use super::lag;
use super::start::{Served, Start, listen, listeners, shared};

/// A running proxy: a front, its hops and its admin listener, on the runtime that started it. Dropping it
/// cuts everything off.
pub struct Proxy {
    /// What it was told, the last reload included.
    pub(super) config: Mutex<Config>,
    pub(super) shared: Arc<Shared>,
    pub(super) start: Start,
    /// The front first, then the hops.
    pub(super) running: Arc<Mutex<Vec<Served>>>,
    /// The admin listener, and that of servers' spans, until they are another process's.
    others: Mutex<Vec<ListenSocket>>,
    engine_addr: Option<SocketAddr>,
    /// One receiver for each that a process that has handed over waits for, besides connections: those of the
    /// admin listener, and the process before this one, for which it answers to the next.
    also_open: watch::Sender<()>,
    /// The admin listener; who looks through the join tables; who sees how late tasks are run.
    background: [AbortHandle; 3],
    front_addr: Option<SocketAddr>,
    admin_addr: SocketAddr,
}

/// How long after the start of draining idle connections stay open, for requests already on their way.
const GRACE: Duration = Duration::from_millis(200);
/// After everything was cut off, how long the last records may take.
const LAST: Duration = Duration::from_secs(5);
/// The key of the address that servers send their spans to.
const ENGINE_TRACES: &str = "engine.traces: listen";
/// How often the join tables are looked through.
const SWEEP: Duration = Duration::from_secs(1);

impl Proxy {
    /// Binds the listeners and serves, on the current runtime.
    ///
    /// # Errors
    /// See [`Error`]. Nothing is left running.
    pub async fn start(config: Config, clock: Clock) -> Result<Proxy, Error> {
        Proxy::start_from(config, clock, &mut Inherited::default()).await
    }

    /// The same, with listeners taken over from another process where their addresses are the same.
    ///
    /// # Errors
    /// See [`Error`]. Nothing is left running.
    pub async fn start_from(
        config: Config,
        clock: Clock,
        inherited: &mut Inherited,
    ) -> Result<Proxy, Error> {
        let credentials = config.check()?;
        let metrics = Metrics::with_label_sets(config.metrics_label_sets.get() as usize)?;
        let workers = config.workers.iter();
        workers.for_each(|worker| metrics.expect_worker(&worker.name));
        let mut bound = Vec::new();
        for spec in listeners(&config)? {
            let socket = listen(&spec.name, spec.address, inherited)?;
            let role = spec.role.clone();
            bound.push((role, socket, Arc::new(spec.resolve(None, &metrics)?)));
        }
        let admin = listen("admin", config.admin, inherited)?;
        let traces = config.engine.traces.listen;
        let traces = traces.map(|at| listen(ENGINE_TRACES, at, inherited));
        let traces = traces.transpose()?;
        // Last of what can fail: it moves aside what lies where the records go.
        let shared = shared(
            &config,
            &credentials,
            clock,
            metrics,
            inherited.hop_secret.take(),
            traces.as_ref(),
        )?;
        let shared = Arc::new(shared);
        let start = Start {
            shared: shared.clone(),
            threads: config.threads.get() as usize,
            connections: Arc::new(watch::channel(()).0),
        };
        let has_front = shared.joins.has_front();
        let mut worker_addrs: Vec<SocketAddr> =
            bound.iter().map(|(_, socket, _)| socket.address).collect();
        let front_addr = has_front.then(|| worker_addrs.remove(0));
        let (admin_addr, engine_addr) = (admin.address, traces.as_ref().map(|bound| bound.address));
        let ready = bound
            .into_iter()
            .map(|(role, socket, upstreams)| start.ready(role, socket, upstreams));
        // What waits in a socket that is another process's too is taken only now that nothing can fail any more.
        let running = Arc::new(Mutex::new(ready.map(Served::accept).collect()));
        announce(&config, front_addr, &worker_addrs, admin_addr);
        let forward = credentials.forward.as_ref().map(|to| &*to.endpoint);
        announce_engine(&config, engine_addr, forward);
        let (also_open, open) = watch::channel(());
        let upstreams = upstreams_of(running.clone(), has_front);
        let serving = admin::serve(admin.socket.clone(), shared.clone(), upstreams);
        let serving = async move {
            serving.await;
            drop(open);
        };
        Ok(Proxy {
            background: [
                tokio::spawn(serving).abort_handle(),
                tokio::spawn(sweep(shared.clone())).abort_handle(),
                tokio::spawn(lag::watch(shared.clone())).abort_handle(),
            ],
            also_open,
            others: Mutex::new(std::iter::once(admin).chain(traces).collect()),
            engine_addr,
            shared,
            config: Mutex::new(config),
            start,
            running,
            front_addr,
            admin_addr,
        })
    }

    /// Where clients connect; `None` when there are only hops.
    pub fn front_addr(&self) -> Option<SocketAddr> {
        self.front_addr
    }

    /// Where the router connects, in the order of the workers.
    pub fn worker_addrs(&self) -> Vec<SocketAddr> {
        let running = self.running.lock();
        let hops = running.iter().skip(usize::from(self.front_addr.is_some()));
        hops.map(|running| running.socket.address).collect()
    }

    /// Where `/healthz`, `/readyz` and `/metrics` are.
    pub fn admin_addr(&self) -> SocketAddr {
        self.admin_addr
    }

    /// Where servers send their spans, if anywhere.
    pub fn engine_addr(&self) -> Option<SocketAddr> {
        self.engine_addr
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
            let _ = tokio::time::timeout(GRACE, self.start.connections.closed()).await;
            self.enter(Phase::Closing);
            self.start.connections.closed().await;
        };
        let limit = self.shared.settings.load().limits.drain;
        self.wait_for_connections(rest, limit, "drain_timeout_s")
            .await;
        self.abort().await;
    }

    /// Ends at once: open requests are cut off. All records are on disk when it returns.
    pub async fn abort(&self) {
        self.stop_accepting(Phase::Cut);
        let _ = tokio::time::timeout(LAST, self.start.connections.closed()).await;
        self.background.iter().for_each(AbortHandle::abort);
        let shared = self.shared.clone();
        let close = move || {
            for rows in shared.joins.flush() {
                shared.record(rows);
            }
            if let Some(engine) = &shared.engine {
                engine.close();
            }
            shared.telemetry.close();
        };
        // Joining a thread would hold up the runtime.
        if tokio::task::spawn_blocking(close).await.is_err() {
            log::error!("records: the recorder could not be closed");
        }
        let trouble = self.shared.telemetry.trouble();
        // Counts of repeated lines come before the last line.
        log::logger().flush();
        let total = self.metrics().total(trouble.as_deref());
        log::info!("ended: {total}");
    }

    /// Every listening socket, for a process that takes them over, and what its hops are known by.
    pub fn offer(&self) -> Offer {
        let config = self.config.lock();
        let is_configured = config.hop_secret.is_some() || config.hop_secret_file.is_some();
        drop(config);
        let running = self.running.lock();
        let others = self.others.lock().clone();
        let running = running.iter().map(|running| running.socket.clone());
        Offer {
            sockets: running.chain(others).collect(),
            hop_secret: (!is_configured).then(|| self.shared.hop_key.secret().clone()),
        }
    }

    /// Accepts no more, since another process does, from the same sockets.
    pub fn hand_over(&self) {
        self.stop_accepting(Phase::HandedOver);
        // The successor's front may reach hops of ours on connections that its router keeps.
        self.shared.joins.shared_with_successor();
        // Nobody could take a fault away here any more: `/faults` is the successor's.
        if let Some(faults) = &self.shared.faults {
            faults.keep(&[]);
        }
        self.others.lock().clear();
        if self.engine_addr.is_some() {
            // Servers connect anew, to the successor. What is on its way is read first, which may take a moment.
            let shared = self.shared.clone();
            let stop = move || shared.engine.iter().for_each(Engine::stop_listening);
            tokio::task::spawn_blocking(stop);
        }
    }

    /// This process has taken over from another one.
    pub fn follows(&self, predecessor: Channel) {
        let shared = self.shared.clone();
        shared.joins.shared_with_predecessor(None);
        let waiting = self.also_open.subscribe();
        tokio::spawn(async move {
            predecessor.ended().await;
            // Its hops' clients may notice the end of its last responses a little later.
            let end = shared.clock.now().plus_nanos(NANOS);
            shared.joins.shared_with_predecessor(Some(end));
            drop(waiting);
        });
    }

    /// After [`Proxy::hand_over`]: waits until clients have no more open requests nor kept connections here, or
    /// for the longer of `drain_timeout_s` and `upstream_read_timeout_s`; all records are on disk then. An idle connection stays open until its next request, so
    /// that none is closed under a client that is about to use it.
    pub async fn finish_requests(&self) {
        let open = self.metrics().in_flight();
        log::info!("handed over: {open} requests in flight here");
        let all = async {
            self.start.connections.closed().await;
            self.also_open.closed().await;
        };
        let settings = self.shared.settings.load_full();
        let (drain, read) = (settings.limits.drain, settings.upstream_read);
        // The service is not down meanwhile: nobody is in a hurry, and a stream may be long.
        let (limit, key) = if read > drain {
            (read, "upstream_read_timeout_s")
        } else {
            (drain, "drain_timeout_s")
        };
        self.wait_for_connections(all, limit, key).await;
        self.abort().await;
    }

    async fn wait_for_connections(
        &self,
        rest: impl Future<Output = ()>,
        limit: Duration,
        key: &str,
    ) {
        let limit = limit.max(Duration::from_millis(1));
        if tokio::time::timeout(limit, rest).await.is_err() {
            let left = self.start.connections.receiver_count();
            log::warn!("{left} connections were still open after {key}");
        }
    }

    fn stop_accepting(&self, phase: Phase) {
        self.enter(phase);
        self.running.lock().clear();
    }

    fn enter(&self, phase: Phase) {
        let later = |now: &mut Phase| std::mem::replace(now, phase.max(*now)) < phase;
        self.shared.phase.send_if_modified(later);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.stop_accepting(Phase::Cut);
        self.background.iter().for_each(AbortHandle::abort);
    }
}

/// Tells whom requests go to: the front's upstreams, or those of the hops where there is no front.
fn upstreams_of(running: Arc<Mutex<Vec<Served>>>, has_front: bool) -> admin::CurrentUpstreams {
    let listeners = if has_front { 1 } else { usize::MAX };
    Box::new(move || {
        let running = running.lock();
        let running = running.iter().take(listeners);
        running.map(|one| one.upstreams.load_full()).collect()
    })
}

/// Writes the rows of hops' attempts that no front here has, and lets the join tables forget.
async fn sweep(shared: Arc<Shared>) {
    loop {
        tokio::time::sleep(SWEEP).await;
        for rows in shared.joins.sweep(shared.clock.now()) {
            shared.record(rows);
        }
    }
}

fn announce(config: &Config, front: Option<SocketAddr>, workers: &[SocketAddr], admin: SocketAddr) {
    let names: Vec<String> = config.upstream.iter().map(Address::name).collect();
    let scheme = config.tls_cert.as_ref().map_or("http", |_| "https");
    match front {
        Some(front) => log::info!("front on {scheme}://{front} to {}", names.join(", ")),
        None => log::info!("no upstream given: worker hops only, for a front elsewhere"),
    }
    for (worker, address) in config.workers.iter().zip(workers) {
        let (name, upstream) = (&worker.name, worker.upstream.name());
        log::info!("worker {name} on http://{address} to {upstream}");
    }
    log::info!("admin on http://{admin} (the live page)");
}

/// Says what is listened to besides requests.
fn announce_engine(config: &Config, traces: Option<SocketAddr>, forward: Option<&str>) {
    if let Some(traces) = traces {
        let to = forward.unwrap_or("nobody");
        log::info!("engine traces on {traces}; all of them go on to {to}");
    }
    if let Some(logs) = &config.engine.logs.path {
        log::info!("engine logs of {}", logs.display());
    }
}
