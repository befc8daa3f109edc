//! The life of a proxy: start, reload, hand-over to a successor, drain, end.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::client::listener::{self, ListenSocket, Phase};
use crate::client::takeover::{self, Inherited, Successor};
use crate::clock::{Clock, NANOS, Stamp};
use crate::config::check::Credentials;
use crate::config::proxy::Config;
use crate::engine::Engine;
use crate::keys::AppliedAt;
use crate::proxy::shared::Shared;
use crate::telemetry::prometheus::Metrics;
use crate::telemetry::waits::MAX_JUDGE_DELAY_NANOS;
use crate::units::count;

use super::admin;
use super::start::{Listeners, bind, listen, shared};

/// A running proxy: a front, its hops and its admin listener, on the runtime that started it. Dropping it cuts off open requests.
pub struct Proxy {
    shared: Arc<Shared>,
    listeners: Arc<Listeners>,
    /// The admin listener and that of servers' spans, until they are handed over.
    others: Mutex<Vec<ListenSocket>>,
    /// Has a receiver for each thing besides connections that must end before this process does after a hand-over: the admin listener, and
    /// a predecessor that has not ended yet.
    also_open: watch::Sender<()>,
    /// Whether a successor accepts from the same sockets.
    is_handed_over: Arc<AtomicBool>,
    /// The tasks of the admin listener, of the sweep, and of measuring lag.
    background: [AbortHandle; 3],
}

/// How long idle connections stay open after the start of a drain, for requests that are already on their way.
const IDLE_GRACE: Duration = Duration::from_millis(200);
/// How long the last records may take after open requests were cut off.
const RECORDS_TIMEOUT: Duration = Duration::from_secs(5);
/// The key of the address for servers' spans.
const ENGINE_TRACES: &str = "engine.traces: listen";
/// How often the join tables are swept.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
/// How often the lag of the runtime is measured.
const LAG_INTERVAL: Duration = Duration::from_millis(200);
/// The causes of waiting are counted at every so many sweeps.
const SWEEPS_PER_COUNT: u64 = 10;

impl Proxy {
    /// Binds the listeners of a checked config, or takes those over that another process has at their addresses, and serves, on the current
    /// runtime.
    ///
    /// # Errors
    /// The system refuses a resource. Nothing is left running.
    pub async fn start(
        config: Config,
        credentials: Credentials,
        clock: Clock,
        inherited: &mut Inherited,
    ) -> anyhow::Result<Proxy> {
        let metrics = Metrics::with_label_sets(config.metrics_label_sets.get() as usize)?;
        let trust = credentials.trust.clone();
        let bound = bind(&config, trust, &[], &metrics, inherited).await?;
        let admin = listen("admin", config.admin, inherited)?;
        let traces = config.engine.traces.listen;
        let traces = traces.map(|at| listen(ENGINE_TRACES, at, inherited));
        let traces = traces.transpose()?;
        // The last step that can fail, as it moves an existing records file aside.
        let shared = Arc::new(shared(
            &config,
            &credentials,
            clock,
            metrics,
            inherited.hop_secret.take(),
            traces.as_ref(),
        )?);
        let listeners = Arc::new(Listeners {
            shared: shared.clone(),
            connections: Arc::new(watch::channel(()).0),
            running: Mutex::default(),
            had_upstream: tokio::sync::Mutex::default(),
        });
        // Connections that wait in a socket shared with another process are accepted only now, as nothing can fail any more.
        for line in listeners.apply(&config, bound) {
            log::info!("{line}");
        }
        log::info!("admin on http://{} (the live page)", admin.address);
        if let Some(ListenSocket { address, .. }) = traces {
            let forward = credentials.forward.as_ref();
            let to = forward.map_or("nobody", |to| &to.endpoint);
            log::info!("engine traces on {address}; all of them go on to {to}");
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
            is_handed_over: Arc::default(),
            others: Mutex::new(std::iter::once(admin).chain(traces).collect()),
            shared,
            listeners,
        })
    }

    /// The address of the first listener whose key begins with `key`: `listen`, `worker NAME`, `admin`, `engine.traces`.
    pub fn address(&self, key: &str) -> Option<SocketAddr> {
        let mut all = self.sockets().into_iter();
        all.find_map(|socket| socket.name.starts_with(key).then_some(socket.address))
    }

    /// Its metrics.
    pub fn metrics(&self) -> &Metrics {
        &self.shared.metrics
    }

    /// Drains and ends: accepts no more connections, and waits for open requests up to `drain_timeout_s`. All records are on disk when it
    /// returns.
    pub async fn drain(&self) {
        self.stop_accepting(Phase::Draining);
        let open = count(self.metrics().in_flight(), "generation request");
        log::info!("draining: {open} in flight; another signal ends at once");
        let rest = async {
            let _ = tokio::time::timeout(IDLE_GRACE, self.listeners.connections.closed()).await;
            self.enter(Phase::Closing);
            self.listeners.connections.closed().await;
        };
        let limit = self.shared.config.load().drain_timeout_s.get();
        self.wait_for_connections(rest, limit, "drain_timeout_s")
            .await;
        self.abort().await;
    }

    /// Ends at once and cuts off open requests. All records are on disk when it returns.
    pub async fn abort(&self) {
        self.stop_accepting(Phase::Aborting);
        let _ = tokio::time::timeout(RECORDS_TIMEOUT, self.listeners.connections.closed()).await;
        self.background.iter().for_each(AbortHandle::abort);
        let shared = self.shared.clone();
        let close = move || {
            for rows in shared.joins.sweep(Stamp::MAX) {
                shared.record(rows);
            }
            if let Some(engine) = &shared.engine {
                engine.close();
            }
            // No more rows follow that could change the cause of a wait.
            shared
                .telemetry
                .count_waits(shared.clock.now().plus_nanos(MAX_JUDGE_DELAY_NANOS));
            shared.telemetry.close();
        };
        // Joining a thread would block the runtime.
        if tokio::task::spawn_blocking(close).await.is_err() {
            log::error!("records: the recorder could not be closed");
        }
        let total = self.shared.telemetry.totals();
        log::info!("ended: {total}");
    }

    /// Applies what can change of a checked config without a restart: upstreams, policy, workers, time limits, stamps. Requests in flight keep the old config.
    /// The listener of a removed worker closes, and its connections close after their next response. Returns the changes as text.
    ///
    /// # Errors
    /// The reasons why it is refused. Nothing has changed then.
    pub async fn reload(
        &self,
        config: Config,
        credentials: Credentials,
    ) -> Result<String, Vec<String>> {
        let old = self.shared.config.load_full();
        let changes = old.changes(&config);
        let at_restart = changes.iter().filter(|(_, at)| *at == AppliedAt::Restart);
        let mut fixed: Vec<&str> = at_restart.map(|(key, _)| *key).collect();
        // A front is added or removed.
        let is_front_new = old.upstream.is_empty() != config.upstream.is_empty();
        fixed.extend(is_front_new.then_some("upstream"));
        // The key may be the same, and the content of its file not.
        let is_unchanged = |key: &str| !fixed.iter().any(|fixed| fixed.starts_with(key));
        let is_new_token =
            is_unchanged("admin_token") && credentials.admin_token != self.shared.admin_token;
        let hop_secret = credentials.hop_secret.as_ref();
        let is_new_secret = is_unchanged("hop_secret")
            && hop_secret.is_some_and(|secret| *secret != self.shared.hop_key.secret);
        fixed.extend(is_new_token.then_some("admin_token_file"));
        fixed.extend(is_new_secret.then_some("hop_secret_file"));
        if !fixed.is_empty() {
            let keys = fixed.join(", ");
            let reason = format!("{keys}: needs a restart to change; take it back, or restart");
            return Err(vec![reason]);
        }
        let running = self.listeners.running.lock().clone();
        let (metrics, none) = (self.metrics(), &mut Inherited::default());
        let bound = bind(&config, credentials.trust, &running, metrics, none).await;
        let bound = bound.map_err(|error| vec![error.to_string()])?;
        // Nothing can fail from here on.
        let keys: Vec<&str> = changes.into_iter().map(|(key, _)| key).collect();
        let mut texts = Vec::new();
        texts.extend((!keys.is_empty()).then(|| format!("changed {}", keys.join(", "))));
        if let (Some(tls), Some(read)) = (&self.shared.tls, credentials.tls) {
            tls.store(read);
            texts.push("certificate read again".to_owned());
        }
        texts.extend(self.listeners.apply(&config, bound));
        if texts.is_empty() {
            return Ok("every key is as before".into());
        }
        Ok(texts.join("; "))
    }

    /// Starts `program` with the arguments of this process; it takes over every listening socket.
    ///
    /// # Errors
    /// Why it cannot be started.
    pub fn start_successor(&self, program: &Path) -> Result<Successor, String> {
        let config = self.shared.config.load();
        let is_configured = config.hop_secret.is_some() || config.hop_secret_file.is_some();
        let hop_secret = (!is_configured).then(|| self.shared.hop_key.secret.clone());
        let arguments = std::env::args_os().skip(1);
        let started = Successor::start(program, arguments, &self.sockets(), hop_secret);
        started.map_err(|error| {
            let hint = listener::hint(&error);
            format!("cannot start {}: {error}{hint}", program.display())
        })
    }

    fn sockets(&self) -> Vec<ListenSocket> {
        let running = self.listeners.running.lock();
        let running = running.iter().map(|running| running.socket.clone());
        running.chain(self.others.lock().clone()).collect()
    }

    /// Stops accepting, as the successor accepts from the same sockets now.
    pub fn hand_over(&self) {
        self.is_handed_over.store(true, Relaxed);
        self.stop_accepting(Phase::HandedOver);
        // The successor's front may reach hops of this process on connections that the router keeps open.
        self.shared.joins.share_until(Stamp::MAX);
        // Faults could not be removed any more, as `/faults` is the successor's now.
        if let Some(faults) = &self.shared.faults {
            faults.set_workers(&[]);
        }
        self.others.lock().clear();
        // Servers reconnect, to the successor. What they have already sent is read first, which may block.
        let shared = self.shared.clone();
        let stop = move || shared.engine.iter().for_each(Engine::stop_listening);
        tokio::task::spawn_blocking(stop);
    }

    /// Follows a predecessor, whose listeners this process has taken over: until it has ended, attempts that arrive here may belong to
    /// requests of its front.
    pub fn follow(&self, predecessor: UnixStream) {
        let shared = self.shared.clone();
        shared.joins.share_until(Stamp::MAX);
        let waiting = self.also_open.subscribe();
        let is_handed_over = self.is_handed_over.clone();
        tokio::spawn(async move {
            takeover::ended(predecessor).await;
            // Fronts may read the end of its last responses a little later.
            let end = shared.clock.now().plus_nanos(NANOS);
            // Where this process was taken over itself, its successor's front may have them.
            if !is_handed_over.load(Relaxed) {
                shared.joins.share_until(end);
            }
            drop(waiting);
        });
    }

    /// After [`Proxy::hand_over`]: waits until clients have no more open connections here, at most for the longer of `drain_timeout_s` and
    /// `upstream_read_timeout_s`, and ends. All records are on disk then. Idle connections stay open until their next request, so that none
    /// is closed while a client is about to use it.
    pub async fn finish_requests(&self) {
        let open = count(self.metrics().in_flight(), "generation request");
        log::info!("handed over: {open} in flight here");
        let all = async {
            self.listeners.connections.closed().await;
            self.also_open.closed().await;
        };
        let config = self.shared.config.load_full();
        let drain = config.drain_timeout_s.get();
        let read = config.rules.upstream_read_timeout_s.get();
        // The successor serves meanwhile, so a long stream has time to end.
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
            let left = self.listeners.connections.receiver_count();
            log::warn!("still open after {key}: connections and streams of HTTP/2: {left}");
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
        self.stop_accepting(Phase::Aborting);
        self.background.iter().for_each(AbortHandle::abort);
    }
}

/// Measures how late tasks of the runtime wake: whether requests wait for this process itself.
async fn watch_lag(shared: Arc<Shared>) {
    loop {
        let slept_at = shared.clock.now();
        tokio::time::sleep(LAG_INTERVAL).await;
        let lag = shared.clock.now().since(slept_at) - LAG_INTERVAL.as_secs_f64();
        shared.metrics.runtime_lag.with(&[]).observe(lag.max(0.0));
    }
}

/// Writes the rows of hops' attempts that belong to no front here, expires entries of the join tables, and counts the causes of waiting.
async fn sweep(shared: Arc<Shared>) {
    for sweeps in 1_u64.. {
        tokio::time::sleep(SWEEP_INTERVAL).await;
        let now = shared.clock.now();
        for rows in shared.joins.sweep(now) {
            shared.record(rows);
        }
        if sweeps % SWEEPS_PER_COUNT == 0 {
            let telemetry = shared.telemetry.clone();
            // Takes too long for a thread of the runtime.
            let counted = tokio::task::spawn_blocking(move || telemetry.count_waits(now));
            if counted.await.is_err() {
                log::error!("what requests waited for could not be counted");
            }
        }
    }
}
