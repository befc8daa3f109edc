//! The HTTP face of the simulated server: HTTP/1.1, as uvicorn speaks it.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::clock::{Clock, NANOS};

use super::Error;
use super::call::Defaults;
use super::driver::{Driver, EngineClock};
use super::engine::Profile;
use super::metrics::Metrics;
use super::script::Script;
use super::served::{Served, ServedLog};
use super::wire::Wire;

/// Connections that may wait to be accepted; more than a burst of clients opens at once.
const BACKLOG: i32 = 4_096;

/// What a simulated server is to be. [`Config::default`] is what the flags default to.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Name or address to listen on.
    pub host: String,
    /// Port to listen on; 0 takes a free one.
    pub port: u16,
    /// The model it says it serves.
    pub model: String,
    /// How fast it is.
    pub profile: Profile,
    /// Tokens made for a request that names no length.
    pub default_output_len: u32,
    /// Prompt and answer together hold at most this many tokens.
    pub context_len: u32,
    /// SGLang's `--enable-metrics`: timings in `meta_info`, and `/metrics`.
    pub metrics: bool,
    /// Events carry only what is new (SGLang's `--incremental-streaming-output`).
    pub incremental: bool,
    /// No queue model: every request is answered at once, in full.
    pub instant: bool,
    /// A file that gets one JSON line a generation request ([`Served`]).
    pub request_log: Option<PathBuf>,
    /// How far the engine's clock is ahead of the clock handed in, seconds.
    pub clock_skew_s: f64,
    /// Time between a request's coming and its entering the queue, milliseconds.
    pub tokenize_ms: f64,
    /// Idle keep-alive connections are closed after this, seconds (uvicorn: 5).
    pub keep_alive_s: f64,
}

/// A simulated server that runs. Dropping it ends it, as [`Sim::shutdown`] does.
#[derive(Debug)]
pub struct Sim {
    addr: SocketAddr,
    shared: Arc<Shared>,
    stop: watch::Sender<bool>,
}

/// What all requests share.
#[derive(Debug)]
pub(super) struct Shared {
    pub config: Config,
    pub addr: SocketAddr,
    pub clock: EngineClock,
    pub wire: Wire,
    pub defaults: Defaults,
    pub driver: Driver,
    pub metrics: Metrics,
    pub served: ServedLog,
    pub next_id: AtomicU64,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            host: "127.0.0.1".to_owned(),
            port: 30_000,
            model: "sim-llama".to_owned(),
            profile: Profile::default(),
            default_output_len: 128,
            context_len: 32_768,
            metrics: true,
            incremental: false,
            instant: false,
            request_log: None,
            clock_skew_s: 0.0,
            tokenize_ms: 0.0,
            keep_alive_s: 5.0,
        }
    }
}

impl Config {
    /// The tokens that fit into the simulated KV cache: never the limit, since the model has none.
    pub(super) fn max_total_tokens(&self) -> u64 {
        (self.profile.max_running_requests as u64).saturating_mul(u64::from(self.context_len))
    }

    /// Checks the values.
    ///
    /// # Errors
    /// [`Error::Value`] for the first that is out of range, by its flag.
    pub fn validate(&self) -> Result<(), Error> {
        let profile = &self.profile;
        at_least_one(
            "--max-running-requests",
            profile.max_running_requests as u64,
        )?;
        if let Some(limit) = profile.max_queued_requests {
            at_least_one("--max-queued-requests", limit as u64)?;
        }
        at_least_one("--max-prefill-tokens", profile.max_prefill_tokens)?;
        at_least_one("--default-output-len", u64::from(self.default_output_len))?;
        in_range("--context-length", f64::from(self.context_len), 2.0, 4e6)?;
        in_range(
            "--prefill-tokens-per-s",
            profile.prefill_tokens_per_s,
            1e-3,
            1e12,
        )?;
        in_range("--decode-step-ms", profile.decode_step_s * 1e3, 0.0, 1e6)?;
        let per_seq = profile.decode_step_per_seq_s * 1e3;
        in_range("--decode-step-per-seq-ms", per_seq, 0.0, 1e6)?;
        in_range("--tokenize-ms", self.tokenize_ms, 0.0, 1e6)?;
        in_range("--clock-skew-s", self.clock_skew_s, -1e8, 1e8)?;
        in_range("--keep-alive-s", self.keep_alive_s, 1e-3, 1e6)
    }
}

fn at_least_one(flag: &'static str, value: u64) -> Result<(), Error> {
    if value == 0 {
        let (value, want) = ("0".to_owned(), "1 or more".to_owned());
        return Err(Error::Value { flag, value, want });
    }
    Ok(())
}

fn in_range(flag: &'static str, value: f64, low: f64, high: f64) -> Result<(), Error> {
    // Not a number is outside of every range.
    if (low..=high).contains(&value) {
        return Ok(());
    }
    Err(Error::Value {
        flag,
        value: value.to_string(),
        want: format!("a number from {low} to {high}"),
    })
}

impl Sim {
    /// Binds and serves on the current Tokio runtime until [`Sim::shutdown`] or drop.
    ///
    /// # Errors
    /// A value out of range, a host that is none, a port in use, a log file that cannot be made; no
    /// Tokio runtime around (which must have IO and time enabled).
    pub fn start(config: Config, clock: Clock) -> Result<Sim, Error> {
        config.validate()?;
        let runtime = tokio::runtime::Handle::try_current()
            .map_err(|error| Error::Start(std::io::Error::other(error)))?;
        let listener = bind(&config.host, config.port)?;
        let addr = listener.local_addr().map_err(Error::Start)?;
        let served = match ServedLog::create(config.request_log.as_deref()) {
            Ok(served) => served,
            Err(source) => {
                let path = config.request_log.unwrap_or_default();
                return Err(Error::RequestLog { path, source });
            }
        };
        let clock = EngineClock::new(clock, (config.clock_skew_s * NANOS as f64) as i64);
        let driver = Driver::start(config.profile.clone(), clock.clone()).map_err(Error::Start)?;
        let metrics = Metrics::new(&config.model, config.max_total_tokens() as f64)
            .map_err(|error| Error::Start(std::io::Error::other(error)))?;
        let shared = Arc::new(Shared {
            addr,
            clock,
            driver,
            metrics,
            served,
            wire: Wire {
                script: Script::new(config.context_len),
                metrics: config.metrics,
                incremental: config.incremental,
            },
            defaults: Defaults {
                model: config.model.clone(),
                output_len: config.default_output_len,
                context_len: config.context_len,
            },
            next_id: AtomicU64::new(0),
            config,
        });
        let (stop, stopped) = watch::channel(false);
        runtime.spawn(accept(listener, shared.clone(), stopped));
        Ok(Sim { addr, shared, stop })
    }

    /// The address it listens on.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The generation requests that have ended, in order of ending; the last 100,000.
    pub fn served(&self) -> Vec<Served> {
        self.shared.served.entries()
    }

    /// Ends the server as a crash would: connections close where they are.
    pub fn shutdown(&self) {
        self.stop.send_replace(true);
        self.shared.driver.stop();
    }
}

impl Drop for Sim {
    fn drop(&mut self) {
        self.shutdown();
    }
}

fn bind(host: &str, port: u16) -> Result<TcpListener, Error> {
    let want = || Error::Value {
        flag: "--host",
        value: host.to_owned(),
        want: "an address or a name of this machine, such as 127.0.0.1".to_owned(),
    };
    let mut addrs = (host, port).to_socket_addrs().map_err(|_| want())?;
    let addr = addrs.next().ok_or_else(want)?;
    let listen = || {
        let domain = socket2::Domain::for_address(addr);
        let socket = socket2::Socket::new(domain, socket2::Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        socket.bind(&addr.into())?;
        socket.listen(BACKLOG)?;
        socket.set_nonblocking(true)?;
        TcpListener::from_std(socket.into())
    };
    listen().map_err(|source| Error::Bind { addr, source })
}

async fn accept(listener: TcpListener, shared: Arc<Shared>, mut stopped: watch::Receiver<bool>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            // Dropping the set ends its connections where they are. An error: the `Sim` was dropped.
            () = asked(&mut stopped) => return,
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(serve(stream, shared.clone()));
                }
                Err(error) => {
                    // Out of descriptors, mostly: give connections a moment to end.
                    log::warn!("a connection was not accepted: {error}");
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            },
        }
    }
}

async fn asked(stopped: &mut watch::Receiver<bool>) {
    let _ = stopped.wait_for(|stopped| *stopped).await;
}

async fn serve(stream: TcpStream, shared: Arc<Shared>) {
    // Only a dead connection refuses, and it is noticed below.
    let _ = stream.set_nodelay(true);
    let keep_alive = Duration::from_secs_f64(shared.config.keep_alive_s);
    let service = service_fn(move |request| super::route::answer(shared.clone(), request));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        // Also the time an idle connection is kept.
        .header_read_timeout(keep_alive)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(error) = connection.await {
        log::debug!("a connection ended early: {error}");
    }
}
