//! Signals that would end the process though nobody means that by them.

use std::io;
use std::thread;

use nix::sys::signal::Signal;
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};

/// A signal, and what is said when it comes, if anything.
pub(super) type Ignored = (SignalKind, Option<&'static str>);

/// SIGUSR1 means nothing to us; it often means "write your figures", "open your log again".
pub(super) fn usr1(says: &'static str) -> Ignored {
    (SignalKind::user_defined1(), Some(says))
}

/// SIGUSR2 to one that is no proxy.
pub(super) fn usr2() -> Ignored {
    let says = "SIGUSR2 ignored: only a proxy restarts by it; SIGTERM ends this process";
    (SignalKind::user_defined2(), Some(says))
}

/// A file has come to the limit on file sizes (`ulimit -f`). Writing it fails then, and whoever writes it says so.
pub(super) fn xfsz() -> Ignored {
    (SignalKind::from_raw(Signal::SIGXFSZ as i32), None)
}

/// From now on these signals do nothing but to be said.
///
/// # Errors
/// The system gives no thread, or none of what signals need.
pub(super) fn ignore(all: Vec<Ignored>) -> io::Result<()> {
    let runtime = Builder::new_current_thread().enable_io().build()?;
    let entered = runtime.enter();
    let mut signals = Vec::new();
    for (kind, says) in all {
        // Taken here, so that none ends the process from now on.
        signals.push((signal(kind)?, says));
    }
    drop(entered);
    let listen = move || {
        for (mut signal, says) in signals {
            runtime.spawn(async move {
                while signal.recv().await.is_some() {
                    if let Some(says) = says {
                        log::warn!("{says}");
                    }
                }
            });
        }
        runtime.block_on(std::future::pending::<()>());
    };
    thread::Builder::new()
        .name("signals".into())
        .spawn(listen)?;
    Ok(())
}
