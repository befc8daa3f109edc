//! `queuescope proxy` as a process: signals, its successor, and what the service manager hears.

use std::future::pending;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;

use anyhow::{Context as _, anyhow};
use tokio::process::Command;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::client::takeover::{Channel, Takeover};
use crate::clock::Clock;
use crate::config::proxy::Config;

use super::lifecycle::Proxy;

/// The signals that a proxy heeds.
struct Signals {
    term: Signal,
    int: Signal,
    hup: Signal,
    usr2: Signal,
}

/// What came first.
enum Event {
    /// SIGTERM or SIGINT.
    End,
    /// SIGHUP.
    Reload,
    /// SIGUSR2: start the successor.
    Upgrade,
    /// The successor, of this process id, serves; it waits for the end of the other value.
    HandedOver(u32, Channel),
}

/// What the system has not for a start, in an error's first words.
const START: &str = "cannot start";

/// The target of the log lines that answer a reload: a line a fault of the config, all of them.
pub const RELOAD: &str = "queuescope::serve::reload";

/// Gives the config as it is now, flags over it; or all that is wrong with it.
pub type Load<'a> = &'a dyn Fn() -> Result<Config, Vec<String>>;

/// Runs a proxy until SIGTERM or SIGINT, and drains it; a second signal cuts it off. SIGHUP takes on what `load`
/// gives then. With `takeover`, it takes the listeners over from a process that runs, and gives them to the next,
/// which SIGUSR2 starts.
///
/// # Errors
/// Why it could not start.
pub fn run(load: Load<'_>, config: Config, clock: Clock) -> anyhow::Result<()> {
    // A new version will stand at the same path; by then this one's own is only "(deleted)".
    let program = std::env::current_exe()
        .unwrap_or_else(|_| std::env::args_os().next().unwrap_or_default().into());
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime
        .worker_threads(config.threads.get() as usize)
        .enable_all()
        .build()
        .context(START)?;
    let ran = runtime.block_on(async {
        let mut signals = Signals::new().context(START)?;
        let Some((proxy, mut takeover)) = start(config, clock, &mut signals).await? else {
            return Ok(());
        };
        // Also where it took over from another.
        notify(&format!("MAINPID={}\nREADY=1", std::process::id()));
        let handed = serve(load, &proxy, takeover.as_mut(), &mut signals, &program).await;
        // Who comes now must not wait here: the successor listens there, or nobody does.
        drop(takeover);
        match handed {
            Some(handed) => finish(&proxy, handed, &mut signals).await,
            None => {
                notify("STOPPING=1");
                drain(&proxy, &mut signals).await;
            }
        }
        Ok(())
    });
    // A look-up of a name that was given up may still hold a thread.
    runtime.shutdown_background();
    ran
}

/// A proxy that serves, and where it waits for its successor.
type Begun = (Proxy, Option<Takeover>);

/// Starts, with the listeners of the process that runs, if there is one, which is told to stop. `None`: a signal
/// to end came first.
async fn start(
    config: Config,
    clock: Clock,
    signals: &mut Signals,
) -> anyhow::Result<Option<Begun>> {
    let (proxy, takeover) = tokio::select! {
        biased;
        begun = begin(config, clock) => begun?,
        () = signals.end() => {
            log::info!("ended before it served");
            return Ok(None);
        }
    };
    let Some(mut takeover) = takeover else {
        return Ok(Some((proxy, None)));
    };
    let ready = tokio::select! {
        ready = takeover.ready() => ready.map(Some),
        // It may have been acknowledged at this moment: whoever ends this process ends the service then.
        () = signals.end() => Ok(None),
    };
    if let Ok(Some(predecessor)) = ready {
        if let Some(predecessor) = predecessor {
            proxy.follows(predecessor);
        }
        return Ok(Some((proxy, Some(takeover))));
    }
    let path = takeover.path.clone();
    drop(takeover);
    drain(&proxy, signals).await;
    ready
        .map(|_| None)
        .map_err(|why| not_taken_over(&path, &why))
}

async fn begin(config: Config, clock: Clock) -> anyhow::Result<Begun> {
    let Some(path) = config.takeover.clone() else {
        return Ok((Proxy::start(config, clock).await?, None));
    };
    let begun = Takeover::begin(&path).await;
    let (takeover, mut inherited) = begun.map_err(|why| not_taken_over(&path, &why))?;
    let proxy = Proxy::start_from(config, clock, &mut inherited).await?;
    Ok((proxy, Some(takeover)))
}

fn not_taken_over(path: &Path, why: &io::Error) -> anyhow::Error {
    // The other errors say themselves what would be right.
    let right = match why.raw_os_error() {
        Some(_) => "; give a path in a folder where this user may write",
        None => "",
    };
    anyhow!("takeover = \"{}\": {why}{right}", path.display())
}

/// Until a signal to end, or a successor: its process id, and what it waits for the end of.
async fn serve(
    load: Load<'_>,
    proxy: &Proxy,
    mut takeover: Option<&mut Takeover>,
    signals: &mut Signals,
    program: &Path,
) -> Option<(u32, Channel)> {
    loop {
        let handed = async {
            match &mut takeover {
                Some(takeover) => takeover.handed_over(|| proxy.offer()).await,
                None => pending().await,
            }
        };
        let event = tokio::select! {
            event = signals.next() => event,
            (successor, channel) = handed => Event::HandedOver(successor, channel),
        };
        match event {
            Event::End => return None,
            Event::HandedOver(successor, channel) => return Some((successor, channel)),
            Event::Reload => {
                if let Some(takeover) = &mut takeover {
                    let why = "its config was reloaded meanwhile; start again";
                    takeover.withdraw(why).await;
                }
                // A name that does not resolve may take long; given up, nothing has changed. SIGHUP and
                // SIGUSR2 that come meanwhile are heeded after it, and successors wait.
                tokio::select! {
                    () = reload(load, proxy) => {}
                    () = signals.end() => return None,
                }
            }
            Event::Upgrade if takeover.is_some() => start_successor(program),
            Event::Upgrade => {
                log::warn!("SIGUSR2: no `takeover` is configured, so there can be no successor");
            }
        }
    }
}

/// Takes on the config as it is now, or says why not.
async fn reload(load: Load<'_>, proxy: &Proxy) {
    let done = match load() {
        Ok(config) => proxy.reload(config).await,
        Err(faults) => {
            proxy.metrics().reloads.with(&["refused"]).inc();
            Err(faults)
        }
    };
    match done {
        Ok(change) => log::info!("reloaded: {change}"),
        Err(faults) => {
            for why in faults {
                log::error!(target: RELOAD, "reload refused, nothing has changed: {why}");
            }
        }
    }
}

/// Drains; a signal to end cuts off.
async fn drain(proxy: &Proxy, signals: &mut Signals) {
    tokio::select! {
        () = proxy.drain() => {}
        () = signals.end() => proxy.abort().await,
    }
}

/// Stops accepting, and lets open requests and connections go on. A signal to end makes that an ordinary
/// draining; others are for the successor.
async fn finish(proxy: &Proxy, (successor, _open): (u32, Channel), signals: &mut Signals) {
    log::info!("process {successor} has taken over");
    // The successor says so, too; but this process may have ended by then, and the service with it.
    notify(&format!("MAINPID={successor}"));
    proxy.hand_over();
    tokio::select! {
        () = proxy.finish_requests() => {}
        () = signals.end() => drain(proxy, signals).await,
    }
}

/// Tells the service manager of a state, where there is one, as sd_notify(3) does.
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

/// Starts this program with the same arguments: it will take over. One that fails leaves this process as it is.
fn start_successor(program: &Path) {
    let arguments = std::env::args_os().skip(1);
    let mut child = match Command::new(program).args(arguments).spawn() {
        Ok(child) => child,
        Err(error) => return log::error!("cannot start {}: {error}", program.display()),
    };
    log::info!("SIGUSR2: started {}", program.display());
    tokio::spawn(async move {
        match child.wait().await {
            Ok(status) if status.success() => {}
            Ok(status) => log::warn!("the successor ended: {status}"),
            Err(error) => log::warn!("the successor: {error}"),
        }
    });
}

impl Signals {
    fn new() -> io::Result<Signals> {
        Ok(Signals {
            term: signal(SignalKind::terminate())?,
            int: signal(SignalKind::interrupt())?,
            hup: signal(SignalKind::hangup())?,
            usr2: signal(SignalKind::user_defined2())?,
        })
    }

    async fn next(&mut self) -> Event {
        tokio::select! {
            _ = self.term.recv() => Event::End,
            _ = self.int.recv() => Event::End,
            _ = self.hup.recv() => Event::Reload,
            _ = self.usr2.recv() => Event::Upgrade,
        }
    }

    /// Waits for SIGTERM or SIGINT. The others wait for [`Signals::next`].
    async fn end(&mut self) {
        tokio::select! {
            _ = self.term.recv() => {}
            _ = self.int.recv() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_reload_that_is_asked_for_while_another_runs_is_not_forgotten() {
        let mut signals = Signals::new().unwrap();
        let mut witness = signal(SignalKind::hangup()).unwrap();
        nix::sys::signal::raise(nix::sys::signal::Signal::SIGHUP).unwrap();
        // As `serve` waits while it reloads.
        tokio::select! {
            biased;
            () = signals.end() => panic!("no signal to end came"),
            _ = witness.recv() => {}
        }
        assert!(matches!(signals.next().await, Event::Reload));
    }
}
