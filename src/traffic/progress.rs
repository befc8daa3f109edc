//! The progress of a run, and how it is shown on standard error: a line each second on a terminal, else
//! every five.

use std::io::IsTerminal;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::SetOnce;

use crate::clock::{Clock, Stamp};
use crate::terminal;

use super::stop::Stop;

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
    // Without their number: some may have ended in the meantime.
    print_line("giving up the requests in flight");
    std::future::pending().await
}

/// Prints a line each second on a terminal, else every five.
async fn print(live: &LiveProgress, total: usize, clock: &Clock) {
    let seconds = if std::io::stderr().is_terminal() {
        1
    } else {
        5
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
