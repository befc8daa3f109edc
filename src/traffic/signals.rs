//! The signals that end a run.

use std::io;
use std::sync::Arc;

use tokio::signal::unix::{Signal, SignalKind, signal};

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

/// Their numbers on every Linux.
pub(super) const SIGINT: u8 = 2;
pub(super) const SIGTERM: u8 = 15;
