//! `queuescope proxy` as a process: signals, its successor, and notifications to the service manager. Its life and the admin listener are
//! below.

use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use futures_util::TryFutureExt as _;
use futures_util::future::OptionFuture;
use tokio::net::UnixStream;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::client::takeover::{Inherited, Successor};
use crate::clock::Clock;
use crate::config::check::Credentials;
use crate::config::proxy::Config;
use crate::request::csv::Base;

mod admin;
pub mod lifecycle;
mod live;
mod start;

use lifecycle::Proxy;

/// The signals that a proxy handles. One that arrives early is kept until it is received.
struct Signals {
    end: End,
    /// Reload.
    hup: Signal,
    /// Start the successor.
    usr2: Signal,
}

/// SIGTERM and SIGINT.
struct End(Signal, Signal);

/// The context of an error of the system at the start.
const START: &str = "cannot start";

/// Reads the config again, with the flags over it. Fails with all of its errors.
pub type Load = Arc<dyn Fn() -> Result<(Config, Credentials), Vec<String>> + Send + Sync>;

/// Runs a proxy until SIGTERM or SIGINT, then drains it; a second signal ends it at once. SIGHUP reloads the config by `load`. SIGUSR2
/// starts a successor, which takes over all listeners.
///
/// # Errors
/// Why it could not start.
pub fn run(load: &Load, loaded: (Config, Credentials), clock: Clock) -> anyhow::Result<()> {
    let (config, credentials) = loaded;
    let program = program().context(START)?;
    let mut inherited = Inherited::take().context(START)?;
    if inherited.predecessor.is_some() && config.records.is_some() && config.time_base == Base::Run
    {
        anyhow::bail!(
            "time_base = \"run\": each process has a records file of its own, and would count from its own start after a restart; use \"epoch\""
        );
    }
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime
        .worker_threads(config.threads.get() as usize)
        .enable_all()
        .build()
        .context(START)?;
    let ran = runtime.block_on(async {
        let mut signals = Signals::new().context(START)?;
        let proxy = tokio::select! {
            biased;
            proxy = Proxy::start(config, credentials, clock, &mut inherited) => proxy?,
            () = signals.end.recv() => {
                log::info!("ended before it served");
                return Ok(());
            }
        };
        if let Some(predecessor) = inherited.report_accepting().await.context(START)? {
            log::info!("took over; the other process drains");
            proxy.follow(predecessor);
        }
        // Also after a takeover.
        notify(&format!("MAINPID={}\nREADY=1", std::process::id()));
        match serve(load, &proxy, &mut signals, &program).await {
            Some((id, _line)) => finish(&proxy, id, &mut signals).await,
            None => {
                notify("STOPPING=1");
                drain(&proxy, &mut signals).await;
            }
        }
        Ok(())
    });
    // Does not wait for threads: an abandoned DNS look-up may still hold one.
    runtime.shutdown_background();
    ran
}

/// Where the program of a successor will be: the path that this process was started by, in which a symbolic link may then lead to a new
/// version; if it was found in `PATH`, its own path. Must be called at the start: later its own path may be "(deleted)".
fn program() -> io::Result<PathBuf> {
    let name = std::env::args_os().next().unwrap_or_default();
    match name.as_bytes().contains(&b'/') {
        true => std::path::absolute(name),
        false => std::env::current_exe(),
    }
}

/// Serves until a signal to end (`None`), or until a successor accepts: its process id, and the line by which it sees this process end.
async fn serve(
    load: &Load,
    proxy: &Proxy,
    signals: &mut Signals,
    program: &Path,
) -> Option<(u32, UnixStream)> {
    let mut successor: Option<Successor> = None;
    loop {
        let starting = successor.as_mut();
        let accepting = OptionFuture::from(
            starting.map(|one| (&mut one.accepting).map_ok(|line| (one.id, line))),
        );
        tokio::select! {
            // A successor that is ready has taken over, whatever signal arrives at the same time.
            biased;
            Some(accepting) = accepting => match accepting {
                Ok(taken_over) => return Some(taken_over),
                Err(error) => {
                    log::warn!("{error}; this process goes on");
                    successor = None;
                }
            },
            () = signals.end.recv() => {
                if let Some(successor) = successor {
                    successor.end();
                }
                return None;
            }
            _ = signals.hup.recv() => {
                if let Some(successor) = successor.take() {
                    log::warn!("the config is read again: the successor is ended; start it again");
                    successor.end();
                }
                // Reading files or a DNS look-up may take long; a signal to end abandons the reload, with nothing changed. SIGHUP and SIGUSR2 that arrive
                // meanwhile are handled after it.
                tokio::select! {
                    () = reload(load, proxy) => {}
                    () = signals.end.recv() => return None,
                }
            }
            _ = signals.usr2.recv() => match &successor {
                Some(successor) => {
                    let id = successor.id;
                    log::warn!("SIGUSR2: process {id} is starting already");
                }
                // If it fails, this process goes on.
                None => match proxy.start_successor(program) {
                    Ok(started) => {
                        let (program, id) = (program.display(), started.id);
                        log::info!("SIGUSR2: started {program} as process {id}");
                        successor = Some(started);
                    }
                    Err(error) => log::error!("SIGUSR2: {error}"),
                },
            },
        }
    }
}

/// Reloads the config, or logs why not.
async fn reload(load: &Load, proxy: &Proxy) {
    let load = load.clone();
    // Reading may block, as a pipe without a writer does.
    let loaded = tokio::task::spawn_blocking(move || load()).await;
    let result = match loaded.unwrap_or_else(|error| Err(vec![error.to_string()])) {
        Ok((config, credentials)) => proxy.reload(config, credentials).await,
        Err(errors) => Err(errors),
    };
    let label = if result.is_ok() { "applied" } else { "refused" };
    proxy.metrics().reloads.with(&[label]).inc();
    match result {
        Ok(changes) => log::info!("reloaded: {changes}"),
        Err(errors) => {
            for error in errors {
                log::error!("reload refused, nothing has changed: {error}");
            }
        }
    }
}

/// Drains; a signal to end cuts off open requests.
async fn drain(proxy: &Proxy, signals: &mut Signals) {
    tokio::select! {
        () = proxy.drain() => {}
        () = signals.end.recv() => proxy.abort().await,
    }
}

/// Stops accepting, and waits for open requests and connections. A signal to end starts a drain; other signals are for the successor.
async fn finish(proxy: &Proxy, id: u32, signals: &mut Signals) {
    log::info!("process {id} has taken over");
    // The successor notifies too; but if this process ends before, the service manager takes the service to have ended.
    notify(&format!("MAINPID={id}"));
    proxy.hand_over();
    tokio::select! {
        () = proxy.finish_requests() => {}
        () = signals.end.recv() => drain(proxy, signals).await,
    }
}

/// Notifies the service manager of a state, if there is one, as sd_notify(3) does.
fn notify(state: &str) {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    let address = match socket.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(&socket),
    };
    let sent = address.and_then(|to| UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &to));
    if let Err(error) = sent {
        log::warn!("cannot notify the service manager: {error}");
    }
}

impl Signals {
    fn new() -> io::Result<Signals> {
        Ok(Signals {
            end: End(
                signal(SignalKind::terminate())?,
                signal(SignalKind::interrupt())?,
            ),
            hup: signal(SignalKind::hangup())?,
            usr2: signal(SignalKind::user_defined2())?,
        })
    }
}

impl End {
    async fn recv(&mut self) {
        tokio::select! {
            _ = self.0.recv() => {}
            _ = self.1.recv() => {}
        }
    }
}
