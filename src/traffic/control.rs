//! A run as it goes on: its progress, and how that is shown; its early end, by a handle or by signals.

use std::fmt::Display;
use std::io::{self, IsTerminal};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use nix::sys::signal::Signal;
use parking_lot::Mutex;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{SetOnce, oneshot};
use tokio::task::JoinSet;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::clock::{Clock, Stamp};
use crate::error::{Error, SIGNALLED};
use crate::terminal;

/// The progress of a run, shared with whoever displays it.
#[derive(Debug, Default)]
pub struct LiveProgress {
    pub(super) began: SetOnce<Stamp>,
    counts: Mutex<Progress>,
}

/// The counts of [`LiveProgress`] at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Requests that are or were due.
    pub due: usize,
    /// Requests in flight: sent or connecting, and not ended.
    pub in_flight: usize,
    /// Requests that have ended.
    pub done: usize,
    /// Requests that have failed.
    pub failed: usize,
}

/// A handle that ends a run in two steps: first no further request is sent, then those in flight are given up.
#[derive(Clone, Debug, Default)]
pub struct Stop {
    stopped: CancellationToken,
    aborted: CancellationToken,
    /// The first signal.
    signal: Arc<OnceLock<Signal>>,
}

impl LiveProgress {
    /// Waits until the run's start is known: the time that all scheduled offsets count from, which may still be to come.
    pub async fn began(&self) -> Stamp {
        *self.began.wait().await
    }

    /// The current counts.
    pub fn counts(&self) -> Progress {
        *self.counts.lock()
    }

    pub(super) fn count(&self, change: impl FnOnce(&mut Progress)) {
        change(&mut self.counts.lock());
    }
}

/// Prints a line on standard error; an error is ignored.
pub(super) fn print_line(line: &str) {
    terminal::print_error(&format!("{line}\n"));
}

/// Shows the progress of `total` requests until it is dropped. When the run is stopped, says for how long it waits for requests in
/// flight (up to `drain`), and when it gives them up.
pub(super) async fn show<T>(
    live: Arc<LiveProgress>,
    total: usize,
    clock: Clock,
    stop: &Stop,
    drain: Duration,
) -> T {
    tokio::select! {
        () = print(&live, total, &clock) => {}
        () = stop.stopped() => {}
    }
    let (in_flight, drain) = (live.counts().in_flight, drain.as_secs_f64());
    print_line(&format!(
        "stopping: no further request is sent; waiting up to {drain} s for {in_flight} in flight, Ctrl-C \
         again drops them"
    ));
    stop.aborted().await;
    // Without their number, which the verdict has: some may have ended in the meantime.
    print_line("giving up the requests in flight");
    std::future::pending().await
}

/// Prints a line each second on a terminal, else every five.
async fn print(live: &LiveProgress, total: usize, clock: &Clock) {
    let seconds = match io::stderr().is_terminal() {
        true => 1,
        false => 5,
    };
    let began = live.began().await;
    loop {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        let counts = live.counts();
        let rate = counts.due as f64 / clock.now().since(began).max(1.0);
        print_line(&format!(
            "{}/{total} done, {rate:.1} req/s, {} in flight, {} failed",
            counts.done, counts.in_flight, counts.failed
        ));
    }
}

impl Stop {
    /// Stops sending; requests in flight may finish.
    pub fn stop(&self) {
        self.stopped.cancel();
    }

    /// Returns a handle of a part of the run: it ends with the whole, but may be ended on its own.
    pub(crate) fn child(&self) -> Stop {
        Stop {
            stopped: self.stopped.child_token(),
            aborted: self.aborted.child_token(),
            signal: self.signal.clone(),
        }
    }

    /// Stops sending, and gives up the requests in flight.
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

    /// Starts to listen for signals: the first Ctrl-C or SIGTERM stops, the second aborts. Ends when the returned task is dropped.
    ///
    /// # Errors
    /// The system refuses a signal handler.
    pub(crate) fn on_signals(&self) -> io::Result<JoinSet<()>> {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let (stop, mut listening) = (self.clone(), JoinSet::new());
        listening.spawn(async move {
            for step in [Stop::stop, Stop::abort] {
                let received = tokio::select! {
                    _ = interrupt.recv() => Signal::SIGINT,
                    _ = terminate.recv() => Signal::SIGTERM,
                };
                stop.signal.get_or_init(|| received);
                step(&stop);
            }
        });
        Ok(listening)
    }

    /// Returns guards that stop and abort when they are dropped.
    pub(super) fn on_drop(&self) -> [DropGuard; 2] {
        [&self.stopped, &self.aborted].map(|token| token.clone().drop_guard())
    }

    /// The number of the signal that stopped the run; SIGINT if none did.
    pub(crate) fn signal(&self) -> u8 {
        self.signal.get().copied().unwrap_or(Signal::SIGINT) as u8
    }

    /// The error of a run that ended before there was anything to keep.
    pub(super) fn interrupted(&self) -> Error {
        let message = "interrupted before there was a result";
        Error::new(SIGNALLED + self.signal(), message)
    }
}

/// The system refused a thread, a runtime or a signal handler.
pub(super) fn cannot_start(error: impl Display) -> Error {
    Error::failed(format!("the generator could not start: {error}"))
}

/// Runs blocking work on its own thread. If this future is dropped, the work goes on but nothing waits for it; with
/// `spawn_blocking` the runtime would, when it shuts down.
pub(super) async fn on_own_thread<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Error> {
    let (sender, done) = oneshot::channel();
    let thread = std::thread::Builder::new().name("aside".to_owned());
    // The receiver may be gone by then.
    let work = move || drop(sender.send(work()));
    thread.spawn(work).map_err(cannot_start)?;
    done.await.map_err(cannot_start)
}

/// Runs blocking work like [`on_own_thread`], until a signal arrives. Needed where this process has a handler for signals already:
/// they no longer end it by themselves.
///
/// # Errors
/// A signal arrived, or the system refuses a signal handler or thread.
pub async fn unless_signalled<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Error> {
    let stop = Stop::default();
    let _listening = stop.on_signals().map_err(cannot_start)?;
    tokio::select! {
        done = on_own_thread(work) => done,
        () = stop.stopped() => Err(stop.interrupted()),
    }
}
