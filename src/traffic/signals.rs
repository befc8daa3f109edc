//! The signals that end a run.

use std::io;
use std::sync::Arc;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

use super::error::Error;
use super::stop::Stop;

/// The number of the first signal that came to a run.
#[derive(Debug, Default)]
pub(crate) struct FirstSignal(std::sync::OnceLock<u8>);

/// The signals that end a run, as far as they come from now on.
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    /// Those that come from now on.
    ///
    /// # Errors
    /// The system gives no handler.
    pub(crate) fn listen() -> io::Result<Signals> {
        Ok(Signals {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    /// The number of the next one.
    pub(super) async fn next(&mut self) -> u8 {
        tokio::select! {
            _ = self.interrupt.recv() => SIGINT,
            _ = self.terminate.recv() => SIGTERM,
        }
    }
}

impl FirstSignal {
    /// Ctrl-C or SIGTERM stops the run, a second one also ends what is under way.
    pub(crate) async fn stop(self: Arc<FirstSignal>, mut signals: Signals, stop: Stop) {
        for step in [Stop::stop, Stop::abort] {
            let number = signals.next().await;
            self.0.get_or_init(|| number);
            step(&stop);
        }
    }

    /// The signal's number.
    pub(crate) fn number(&self) -> u8 {
        self.0.get().copied().unwrap_or(SIGINT)
    }
}

/// What `work` gives, which waits for nothing and so cannot be told to end: on a thread of its own. Dropped, nobody waits for
/// it any longer, not even the runtime when it ends, as it would for a task of `spawn_blocking`.
pub(super) async fn aside<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Error> {
    let (told, done) = oneshot::channel();
    let thread = std::thread::Builder::new().name("aside".to_owned());
    // Nobody may be left to be told.
    let work = move || drop(told.send(work()));
    thread.spawn(work).map_err(Error::thread)?;
    done.await.map_err(Error::thread)
}

/// The same, unless a signal comes first: then [`Error::Interrupted`]. Where the process was told before that signals end
/// something of it, they do so here.
///
/// # Errors
/// A signal came, or the system gives no handler or thread.
pub async fn unless_signalled<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Error> {
    let mut signals = Signals::listen().map_err(Error::thread)?;
    tokio::select! {
        done = aside(work) => done,
        number = signals.next() => Err(Error::Interrupted(number)),
    }
}

/// Their numbers on every Linux.
pub(super) const SIGINT: u8 = 2;
pub(super) const SIGTERM: u8 = 15;
