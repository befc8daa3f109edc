//! Ends a run from outside: by a handle, by signals.

use std::io;
use std::sync::{Arc, OnceLock};

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::error::Error;

/// A handle that ends a run in two steps: no more requests, then none under way either.
#[derive(Clone, Debug, Default)]
pub struct Stop {
    stopped: CancellationToken,
    aborted: CancellationToken,
    /// The first that came.
    signal: Arc<OnceLock<u8>>,
}

/// Their numbers on every Linux.
const SIGINT: u8 = 2;
const SIGTERM: u8 = 15;

impl Stop {
    /// A handle of a run that goes on.
    pub fn new() -> Stop {
        Stop::default()
    }

    /// Sends no further request; those under way may finish.
    pub fn stop(&self) {
        self.stopped.cancel();
    }

    /// A handle of a part, which ends with the whole, and may be ended alone.
    pub(crate) fn child(&self) -> Stop {
        Stop {
            stopped: self.stopped.child_token(),
            aborted: self.aborted.child_token(),
            signal: self.signal.clone(),
        }
    }

    /// Ends the requests under way as well.
    pub fn abort(&self) {
        self.stop();
        self.aborted.cancel();
    }

    /// Whether [`Stop::stop`] or [`Stop::abort`] was called.
    pub fn is_stopped(&self) -> bool {
        self.stopped.is_cancelled()
    }

    /// Waits for [`Stop::stop`] or [`Stop::abort`].
    pub async fn stopped(&self) {
        self.stopped.cancelled().await;
    }

    /// Waits for [`Stop::abort`].
    pub async fn aborted(&self) {
        self.aborted.cancelled().await;
    }

    /// Ctrl-C or SIGTERM stops from now on, a second one also ends what is under way, until what is given is aborted.
    ///
    /// # Errors
    /// The system gives no handler.
    pub(crate) fn on_signals(&self) -> io::Result<JoinHandle<()>> {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let stop = self.clone();
        Ok(tokio::spawn(async move {
            for step in [Stop::stop, Stop::abort] {
                let number = tokio::select! {
                    _ = interrupt.recv() => SIGINT,
                    _ = terminate.recv() => SIGTERM,
                };
                stop.signal.get_or_init(|| number);
                step(&stop);
            }
        }))
    }

    /// Stops and aborts when it is dropped.
    pub(super) fn on_drop(&self) -> [DropGuard; 2] {
        [&self.stopped, &self.aborted].map(|token| token.clone().drop_guard())
    }

    /// The number of the signal that stopped it.
    pub(crate) fn signal(&self) -> u8 {
        self.signal.get().copied().unwrap_or(SIGINT)
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
    let stop = Stop::new();
    let listening = stop.on_signals().map_err(Error::thread)?;
    let done = tokio::select! {
        done = aside(work) => done,
        () = stop.stopped() => Err(Error::Interrupted(stop.signal())),
    };
    listening.abort();
    done
}
