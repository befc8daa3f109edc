//! A simulated SGLang that queues as the real one does, for tests, the demo and loading clients.
//!
//! [`engine`] is the model, without IO; `driver` runs it in real time. Here are the HTTP server (HTTP/1.1, as SGLang's uvicorn), whose
//! responses have the shape of those recorded from SGLang 0.5.23, and the state that its requests share. `route` reads a request
//! and `request_body` parses it. `responder` turns the engine's events into bytes by `response_body`, and reports the request when
//! it has ended: by `spans`, the request log, `metrics`, and the server's own record ([`Served`]).

pub mod config;
mod driver;
pub mod engine;
mod handover;
mod meta_info;
mod metrics;
mod request_body;
mod responder;
mod response_body;
mod route;
mod sequence;
mod spans;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt::Display;
use std::io::Write as _;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use http::HeaderMap;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Handle, Runtime};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::clock::{Clock, NANOS, Stamp};
use crate::error::Error;

pub use sequence::Moments;

use config::{Config, Mode};
use driver::Driver;
use engine::Profile;
use handover::Rooms;
use metrics::Metrics;
use request_body::GenerationRequest;
use response_body::CannedText;
use spans::Tracer;

/// Connections that may wait to be accepted; more than a burst of clients opens at once.
const BACKLOG: i32 = 4_096;

/// A running simulated server. Dropping it shuts it down, as [`Sim::shutdown`] does.
#[derive(Debug)]
pub struct Sim {
    shared: Arc<Shared>,
    stop: CancellationToken,
}

/// The server's own record of one generation request that reached the engine, with which tests compare a proxy's rows.
///
/// Stamps are on the engine's clock (with its skew).
#[derive(Clone, Debug)]
pub struct Served {
    /// Its `x-request-id` header, of the client or router.
    pub x_request_id: Option<String>,
    /// Its `traceparent` header.
    pub traceparent: Option<String>,
    /// When the request had been read.
    pub received: Stamp,
    /// The moments of its first sequence.
    pub moments: Moments,
    /// Whether the whole response was handed to the socket: it was not aborted or rejected.
    pub is_finished: bool,
}

/// The state that all requests share.
#[derive(Debug)]
struct Shared {
    config: Config,
    addr: SocketAddr,
    /// The address of a prefill server's bootstrap port.
    bootstrap_addr: Option<SocketAddr>,
    /// The engine's clock.
    clock: Clock,
    /// When the server started.
    started: Stamp,
    canned_text: CannedText,
    driver: Arc<Driver>,
    metrics: Metrics,
    /// The requests that have ended, in order of ending.
    served: Mutex<VecDeque<Served>>,
    tracer: Option<Tracer>,
    /// The folder of the request log.
    request_log: Option<PathBuf>,
    /// Used by a prefill server of a pair.
    rooms: Rooms,
    next_id: AtomicU64,
}

/// A generation request that was not refused, with its sequences and timestamps.
#[derive(Debug)]
struct Accepted {
    shared: Arc<Shared>,
    request: GenerationRequest,
    headers: HeaderMap,
    received: Stamp,
    /// When it was tokenized and handed to the scheduler.
    dispatched: Stamp,
}

impl Sim {
    /// Binds and serves on the current Tokio runtime until [`Sim::shutdown`] or drop.
    ///
    /// # Errors
    /// If the host is invalid, the port is in use, the log's folder cannot be created, or there is no Tokio runtime (with IO
    /// and time enabled).
    pub fn start(mut config: Config, clock: Clock) -> Result<Sim, Error> {
        if config.instant {
            config.profile = Profile::instant();
        }
        let runtime = Handle::try_current().map_err(cannot_start)?;
        let (listener, addr) = bind(&config.host, "--port", config.port)?;
        let stop = CancellationToken::new();
        let telemetry = &config.telemetry;
        let tracer = telemetry.enable_trace.then(|| Tracer::start(telemetry));
        let tracer = tracer.transpose().map_err(cannot_start)?;
        let folder = telemetry.export_metrics_to_file_dir.clone();
        let request_log = folder.filter(|_| telemetry.export_metrics_to_file);
        if let Some(path) = &request_log {
            std::fs::create_dir_all(path).map_err(|error| {
                let path = path.display();
                Error::usage(format!(
                    "--export-metrics-to-file-dir {path}: must be a folder that can be made and written ({error})"
                ))
            })?;
        }
        let clock = clock.ahead_by((config.clock_skew_s * NANOS as f64) as i64);
        let pair = &config.disaggregation;
        let (flag, host) = ("--disaggregation-bootstrap-port", &config.host);
        let bootstrap = match pair.disaggregation_mode {
            Mode::Prefill => Some(bind(host, flag, pair.disaggregation_bootstrap_port)?),
            _ => None,
        };
        let metrics = Metrics::new(&config).map_err(cannot_start)?;
        let driver = Driver::start(&config, clock.clone()).map_err(cannot_start)?;
        let shared = Arc::new(Shared {
            addr,
            bootstrap_addr: bootstrap.as_ref().map(|(_, addr)| *addr),
            driver,
            metrics,
            served: Mutex::default(),
            tracer,
            request_log,
            rooms: Rooms::default(),
            canned_text: CannedText::new(config.context_len),
            started: clock.now(),
            next_id: AtomicU64::new(0),
            clock,
            config,
        });
        let for_http = shared.clone();
        let http = accept(listener, move |stream| serve(stream, for_http.clone()));
        runtime.spawn(stop.clone().run_until_cancelled_owned(http));
        if let Some((listener, _)) = bootstrap {
            let shared = shared.clone();
            let handover = accept(listener, move |stream| {
                handover::serve_decode(stream, shared.clone())
            });
            runtime.spawn(stop.clone().run_until_cancelled_owned(handover));
        }
        Ok(Sim { shared, stop })
    }

    /// The address it listens on.
    pub fn addr(&self) -> SocketAddr {
        self.shared.addr
    }

    /// The address of its bootstrap port, if it is a prefill server.
    pub fn bootstrap_addr(&self) -> Option<SocketAddr> {
        self.shared.bootstrap_addr
    }

    /// The last 100,000 generation requests that have ended, in order of ending.
    pub fn served(&self) -> Vec<Served> {
        self.shared.served.lock().iter().cloned().collect()
    }

    /// Ends the server as a crash would: connections close at once.
    pub fn shutdown(&self) {
        self.stop.cancel();
        self.shared.driver.stop();
    }
}

impl Drop for Sim {
    fn drop(&mut self) {
        self.shutdown();
    }
}

impl Shared {
    /// Which part of a request this server does.
    fn mode(&self) -> Mode {
        self.config.disaggregation.disaggregation_mode
    }
}

impl Accepted {
    /// A header of the request.
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// Whether the scheduler reports all tokens at the end: as recorded from decode servers, for responses that are no stream.
    fn is_reported_at_end(&self) -> bool {
        self.shared.mode() == Mode::Decode && !self.request.stream
    }
}

/// Serves until Ctrl-C or SIGTERM.
///
/// # Errors
/// As [`Sim::start`]; also if the system refuses a runtime or signal handler, or if called within a runtime.
pub fn run(config: Config) -> Result<(), Error> {
    if Handle::try_current().is_ok() {
        return Err(cannot_start(
            "it makes a Tokio runtime of its own, and was called within one, which must call Sim::start",
        ));
    }
    let runtime = Runtime::new().map_err(cannot_start)?;
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate()).map_err(cannot_start)?;
        let sim = Sim::start(config, Clock::system())?;
        // With port 0 the addresses are not known before.
        let mut out = std::io::stdout();
        let _ = writeln!(out, "sim listening on http://{}", sim.addr());
        if let Some(addr) = sim.bootstrap_addr() {
            let _ = writeln!(out, "decode servers find it on {addr}");
        }
        tokio::select! {
            interrupted = tokio::signal::ctrl_c() => interrupted.map_err(cannot_start),
            _ = terminate.recv() => Ok(()),
        }
    })
}

/// The system refused a thread, socket or runtime.
fn cannot_start(error: impl Display) -> Error {
    Error::failed(format!("the simulator cannot start: {error}"))
}

fn bind(host: &str, flag: &str, port: u16) -> Result<(TcpListener, SocketAddr), Error> {
    let found = (host, port).to_socket_addrs().ok();
    let addr = found.and_then(|mut found| found.next()).ok_or_else(|| {
        let hint = "must be an address or a name of this machine, such as 127.0.0.1";
        Error::usage(format!("--host {host}: {hint}"))
    })?;
    let listen = || {
        let socket = std::net::TcpListener::bind(addr)?;
        SockRef::from(&socket).listen(BACKLOG)?;
        socket.set_nonblocking(true)?;
        let addr = socket.local_addr()?;
        Ok((TcpListener::from_std(socket)?, addr))
    };
    listen().map_err(|error: std::io::Error| {
        Error::failed(format!(
            "cannot listen on {addr} (--host, {flag}): {error}; a free port is taken with {flag} 0"
        ))
    })
}

/// Serves each connection in a task. Dropping the future closes them all at once.
async fn accept<F: Future<Output = ()> + Send + 'static>(
    listener: TcpListener,
    serve: impl Fn(TcpStream) -> F,
) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(serve(stream));
                }
                Err(error) => {
                    // Mostly for lack of file descriptors: wait until connections end.
                    log::warn!("a connection was not accepted: {error}");
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            },
        }
    }
}

async fn serve(stream: TcpStream, shared: Arc<Shared>) {
    // Fails only on a dead connection, which is noticed below.
    let _ = stream.set_nodelay(true);
    let keep_alive = Duration::from_secs_f64(shared.config.keep_alive_s);
    let service = service_fn(move |request| {
        let response = route::handle(shared.clone(), request);
        async { Ok::<_, Infallible>(response.await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        // Also limits how long a connection may be idle.
        .header_read_timeout(keep_alive)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(error) = connection.await {
        log::debug!("a connection ended early: {error}");
    }
}
