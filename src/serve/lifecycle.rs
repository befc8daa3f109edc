//! A proxy from its start to its end: listeners, draining.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::client::listener::ListenSocket;
use crate::client::phase::Phase;
use crate::client::shortage;
use crate::client::takeover::{Inherited, Line, Successor};
use crate::clock::{Clock, NANOS};
use crate::config::proxy::Config;
use crate::config_error::ConfigError;
use crate::engine::Engine;
use crate::keys::Taken;
use crate::proxy::shared::Shared;
use crate::telemetry::prometheus::Metrics;
use crate::telemetry::waits::JUDGED;
use crate::units::count;

use super::admin;
use super::start::{Listeners, bind, listen, shared};

/// A running proxy: a front, its hops and its admin listener, on the runtime that started it. Dropping it
/// cuts everything off.
pub struct Proxy {
    pub(super) shared: Arc<Shared>,
    pub(super) listeners: Listeners,
    /// The admin listener, and that of servers' spans, until they are another process's.
    others: Mutex<Vec<ListenSocket>>,
    /// One receiver for each that a process that has handed over waits for, besides connections: those of the
    /// admin listener, and the process before this one, for which it answers to the next.
    also_open: watch::Sender<()>,
    /// The admin listener; who looks through the join tables; who sees how late tasks are run.
    background: [AbortHandle; 3],
}

/// How long after the start of draining idle connections stay open, for requests already on their way.
const GRACE: Duration = Duration::from_millis(200);
/// After everything was cut off, how long the last records may take.
const LAST: Duration = Duration::from_secs(5);
/// The key of the address that servers send their spans to.
const ENGINE_TRACES: &str = "engine.traces: listen";
/// How often the join tables are looked through.
const SWEEP: Duration = Duration::from_secs(1);
/// How often is looked how late tasks are run.
const LAG_PAUSE: Duration = Duration::from_millis(200);
/// Every so many times is counted what requests waited for.
const COUNTED: u64 = 5;

impl Proxy {
    /// Binds the listeners and serves, on the current runtime.
    ///
    /// # Errors
    /// A value that cannot be used, as a [`crate::config_error::ConfigError`]; or what the system has not. Nothing is left running.
    pub async fn start(config: Config, clock: Clock) -> anyhow::Result<Proxy> {
        Proxy::start_from(config, clock, &mut Inherited::default()).await
    }

    /// The same, with listeners taken over from another process where their addresses are the same.
    ///
    /// # Errors
    /// See [`Proxy::start`].
    pub async fn start_from(
        config: Config,
        clock: Clock,
        inherited: &mut Inherited,
    ) -> anyhow::Result<Proxy> {
        // Those who load a config have been told of all.
        let credentials = config.check().map_err(|mut all| all.swap_remove(0))?;
        let metrics = Metrics::with_label_sets(config.metrics_label_sets.get() as usize)?;
        let trust = credentials.trust.clone();
        let bound = bind(&config, trust, &[], &metrics, inherited).await?;
        let ours = || bound.iter().map(|bound| &bound.socket);
        let admin = listen("admin", config.admin, inherited, ours())?;
        let traces = config.engine.traces.listen;
        let ours = ours().chain([&admin]);
        let traces = traces.map(|at| listen(ENGINE_TRACES, at, inherited, ours));
        let traces = traces.transpose()?;
        // Last of what can fail: it moves aside what lies where the records go.
        let shared = Arc::new(shared(
            &config,
            &credentials,
            clock,
            metrics,
            inherited.hop_secret.take(),
            traces.as_ref(),
        )?);
        let listeners = Listeners {
            shared: shared.clone(),
            connections: Arc::new(watch::channel(()).0),
            running: Arc::default(),
            had_upstream: Arc::default(),
        };
        if !shared.joins.has_front() {
            log::info!("no upstream given: worker hops only, for a front elsewhere");
        }
        // What waits in a socket that is another process's too is taken only now that nothing can fail any more.
        for line in listeners.take_on(&config, bound) {
            log::info!("{line}");
        }
        log::info!("admin on http://{} (the live page)", admin.address);
        if let Some(ListenSocket { address, .. }) = traces {
            let forward = credentials.forward.as_ref();
            let to = forward.map_or("nobody", |to| &to.endpoint);
            log::info!("engine traces on {address}; all of them go on to {to}");
        }
        if let Some(logs) = &config.engine.logs.path {
            log::info!("engine logs of {}", logs.display());
        }
        let (also_open, open) = watch::channel(());
        let serving = admin::serve(admin.socket.clone(), listeners.clone());
        let serving = async move {
            serving.await;
            drop(open);
        };
        Ok(Proxy {
            background: [
                tokio::spawn(serving).abort_handle(),
                tokio::spawn(sweep(shared.clone())).abort_handle(),
                tokio::spawn(watch_lag(shared.clone())).abort_handle(),
            ],
            also_open,
            others: Mutex::new(std::iter::once(admin).chain(traces).collect()),
            shared,
            listeners,
        })
    }

    /// Where the first of the listeners is whose key begins so: `listen`, `worker NAME`, `admin`, `engine.traces`.
    pub fn address(&self, key: &str) -> Option<SocketAddr> {
        let mut all = self.sockets().into_iter();
        all.find_map(|socket| socket.name.starts_with(key).then_some(socket.address))
    }

    /// What it counts.
    pub fn metrics(&self) -> &Metrics {
        &self.shared.metrics
    }

    /// Ends in good order: no new connections, open requests go on to their end or `drain_timeout_s`, all
    /// records on disk.
    pub async fn drain(&self) {
        self.stop_accepting(Phase::Draining);
        let open = count(self.metrics().in_flight(), "request");
        log::info!("draining: {open} in flight; another signal ends at once");
        let rest = async {
            let _ = tokio::time::timeout(GRACE, self.listeners.connections.closed()).await;
            self.enter(Phase::Closing);
            self.listeners.connections.closed().await;
        };
        let limit = self.shared.config.load().drain_timeout_s.get();
        self.wait_for_connections(rest, limit, "drain_timeout_s")
            .await;
        self.abort().await;
    }

    /// Ends at once: open requests are cut off. All records are on disk when it returns.
    pub async fn abort(&self) {
        self.stop_accepting(Phase::Cut);
        let _ = tokio::time::timeout(LAST, self.listeners.connections.closed()).await;
        self.background.iter().for_each(AbortHandle::abort);
        let shared = self.shared.clone();
        let close = move || {
            for rows in shared.joins.flush() {
                shared.record(rows);
            }
            if let Some(engine) = &shared.engine {
                engine.close();
            }
            // Nothing more comes that a wait could be judged by.
            shared
                .telemetry
                .count_waits(shared.clock.now().plus_nanos(JUDGED));
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

    /// Takes on what can change without a restart: upstreams, policy, workers, time limits, stamps. Requests
    /// under way end as they began. A worker that is gone is accepted from no more, and its connections end with
    /// their next response. Gives what has changed, in words.
    ///
    /// # Errors
    /// Why it is refused, in words, each reason by itself; then nothing has changed.
    pub async fn reload(&self, config: Config) -> Result<String, Vec<String>> {
        let done = self.try_reload(config).await;
        let result = if done.is_ok() { "applied" } else { "refused" };
        self.metrics().reloads.with(&[result]).inc();
        done
    }

    async fn try_reload(&self, config: Config) -> Result<String, Vec<String>> {
        let wrong = |all: Vec<ConfigError>| all.iter().map(ToString::to_string).collect::<Vec<_>>();
        let credentials = config.check().map_err(wrong)?;
        let old = self.shared.config.load_full();
        let changes = old.changes(&config);
        let mut fixed = needs_restart(&old, &config);
        // The file is the same, what it holds is not.
        let is_new = |key: &str| !fixed.iter().any(|fixed| fixed.starts_with(key));
        let admin_token =
            is_new("admin_token") && credentials.admin_token != self.shared.admin_token;
        let hop_secret = credentials.hop_secret.as_ref();
        let hop_secret = is_new("hop_secret")
            && hop_secret.is_some_and(|secret| secret != self.shared.hop_key.secret());
        fixed.extend(admin_token.then_some("admin_token_file"));
        fixed.extend(hop_secret.then_some("hop_secret_file"));
        if !fixed.is_empty() {
            let keys = fixed.join(", ");
            let why = format!("{keys}: needs a restart to change; take it back, or restart");
            return Err(vec![why]);
        }
        let running = self.listeners.running.lock().clone();
        let (metrics, none) = (self.metrics(), &mut Inherited::default());
        let bound = bind(&config, credentials.trust, &running, metrics, none).await;
        let bound = bound.map_err(|wrong| vec![wrong.to_string()])?;
        // From here on nothing can fail.
        let keys: Vec<&str> = changes.into_iter().map(|(key, _)| key).collect();
        let mut said = Vec::new();
        said.extend((!keys.is_empty()).then(|| format!("changed {}", keys.join(", "))));
        if let (Some(tls), Some(read)) = (&self.shared.tls, credentials.tls) {
            tls.store(read);
            said.push("certificate read again".to_owned());
        }
        said.extend(self.listeners.take_on(&config, bound));
        if said.is_empty() {
            return Ok("every key is as before".into());
        }
        Ok(said.join("; "))
    }

    /// Starts `program` with the arguments of this process, to take over every listening socket.
    ///
    /// # Errors
    /// Why it cannot be, in words.
    pub fn start_successor(&self, program: &Path) -> Result<Successor, String> {
        let config = self.shared.config.load();
        let is_configured = config.hop_secret.is_some() || config.hop_secret_file.is_some();
        let hop_secret = (!is_configured).then(|| self.shared.hop_key.secret().clone());
        let arguments = std::env::args_os().skip(1);
        let started = Successor::start(program, arguments, &self.sockets(), hop_secret);
        started.map_err(|why| {
            let helps = shortage::remedy(&why);
            format!("cannot start {}: {why}{helps}", program.display())
        })
    }

    fn sockets(&self) -> Vec<ListenSocket> {
        let running = self.listeners.running.lock();
        let running = running.iter().map(|running| running.socket.clone());
        running.chain(self.others.lock().clone()).collect()
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
        // Servers connect anew, to the successor. What is on its way is read first, which may take a moment.
        let shared = self.shared.clone();
        let stop = move || shared.engine.iter().for_each(Engine::stop_listening);
        tokio::task::spawn_blocking(stop);
    }

    /// This process has taken over from another one.
    pub fn follows(&self, predecessor: Line) {
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
        let open = count(self.metrics().in_flight(), "request");
        log::info!("handed over: {open} in flight here");
        let all = async {
            self.listeners.connections.closed().await;
            self.also_open.closed().await;
        };
        let config = self.shared.config.load_full();
        let drain = config.drain_timeout_s.get();
        let read = config.rules.upstream_read_timeout_s.get();
        // The service is not down meanwhile: nobody is in a hurry, and a stream may be long.
        let keys = "drain_timeout_s and upstream_read_timeout_s";
        self.wait_for_connections(all, drain.max(read), keys).await;
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
            let left = count(self.listeners.connections.receiver_count(), "connection");
            log::warn!("still open after {key}: {left}");
        }
    }

    fn stop_accepting(&self, phase: Phase) {
        self.enter(phase);
        self.listeners.running.lock().clear();
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

/// Wakes again and again and counts how late it was: whether this process is what requests wait for.
async fn watch_lag(shared: Arc<Shared>) {
    loop {
        let asked = shared.clock.now();
        tokio::time::sleep(LAG_PAUSE).await;
        let lag = shared.clock.now().since(asked) - LAG_PAUSE.as_secs_f64();
        shared.metrics.runtime_lag.with(&[]).observe(lag.max(0.0));
    }
}

/// Writes the rows of hops' attempts that no front here has, lets the join tables forget, and counts what requests waited for.
async fn sweep(shared: Arc<Shared>) {
    for second in 1_u64.. {
        tokio::time::sleep(SWEEP).await;
        let now = shared.clock.now();
        for rows in shared.joins.sweep(now) {
            shared.record(rows);
        }
        if second % COUNTED == 0 {
            let telemetry = shared.telemetry.clone();
            // Not on a thread that moves bytes.
            let counted = tokio::task::spawn_blocking(move || telemetry.count_waits(now));
            if counted.await.is_err() {
                log::error!("what requests waited for could not be counted");
            }
        }
    }
}

/// The keys that differ, of those that are read only at the start.
fn needs_restart(old: &Config, new: &Config) -> Vec<&'static str> {
    let changes = old.changes(new).into_iter();
    let fixed = changes.filter(|(_, taken)| *taken == Taken::Restart);
    let mut keys: Vec<&str> = fixed.map(|(key, _)| key).collect();
    if old.upstream.is_empty() != new.upstream.is_empty() {
        // A front comes or goes.
        keys.push("upstream");
    }
    keys
}
