//! A run's progress, and what a person sees of it on standard error: a line that is written over on a terminal, else one now and then.

use std::io::{IsTerminal, Write as _};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::SetOnce;

use crate::clock::{Clock, Stamp};
use crate::terminal;

use super::stop::Stop;

/// A run's progress, for who looks on.
#[derive(Debug, Default)]
pub struct Live {
    pub(super) began: SetOnce<Stamp>,
    counts: Mutex<Progress>,
}

/// What [`Live`] says at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Requests whose time has come.
    pub due: usize,
    /// Requests sent and not yet answered whole.
    pub under_way: usize,
    /// Requests that have ended.
    pub done: usize,
    /// Of these, how many not well.
    pub failed: usize,
    /// Turns of the conversations that have begun that have not been due.
    pub turns_to_come: usize,
}

/// How often a terminal's line is drawn.
const DRAW: Duration = Duration::from_millis(200);
/// How often a line is written where there is no terminal.
const LINE: Duration = Duration::from_secs(5);

impl Live {
    /// The moment that all scheduled offsets count from, when it has come.
    pub async fn began(&self) -> Stamp {
        *self.began.wait().await
    }

    /// The present counts.
    pub fn counts(&self) -> Progress {
        *self.counts.lock()
    }

    pub(super) fn count(&self, change: impl FnOnce(&mut Progress)) {
        change(&mut self.counts.lock());
    }
}

/// Says a line on standard error. Nobody reads it: then there is nobody to tell.
pub(super) fn tell(line: &str) {
    terminal::complain(&format!("{line}\n"));
}

/// Shows progress until it is dropped. Once stopped, a run waits for requests under way for as long as `ending` says.
pub(super) async fn show<T>(
    live: Arc<Live>,
    total: usize,
    clock: Clock,
    (stop, drain): (Stop, Duration),
) -> T {
    tokio::select! {
        () = draw(&live, total, &clock) => {}
        // The line is gone by then: what follows takes seconds.
        () = stop.stopped() => {}
    }
    let under_way = live.counts().under_way;
    let drain = drain.as_secs_f64();
    tell(&format!(
        "stopping: no further request is sent; waiting up to {drain} s for {under_way} in flight, Ctrl-C \
         again drops them"
    ));
    stop.aborted().await;
    let under_way = live.counts().under_way;
    tell(&format!("giving up {under_way} in flight"));
    std::future::pending().await
}

async fn draw(live: &Live, total: usize, clock: &Clock) {
    let line = Line {
        is_drawn: std::io::stderr().is_terminal(),
    };
    let step = if line.is_drawn { DRAW } else { LINE };
    let began = live.began().await;
    loop {
        tokio::time::sleep(step).await;
        let counts = live.counts();
        let rate = counts.due as f64 / clock.now().since(began).max(1.0);
        let state = format!(
            "{}/{total} done, {rate:.1} req/s, {} in flight, {} failed",
            counts.done, counts.under_way, counts.failed
        );
        match line.is_drawn {
            true => over(&state),
            false => tell(&state),
        }
    }
}

/// Writes over the terminal's last line; a closed one has nobody to tell.
fn over(text: &str) {
    let _ = write!(std::io::stderr(), "\r{text}\x1b[K");
}

/// A terminal's line is gone when this is dropped, also when the run ends in the midst of a draw.
struct Line {
    is_drawn: bool,
}

impl Drop for Line {
    fn drop(&mut self) {
        if self.is_drawn {
            over("");
        }
    }
}
