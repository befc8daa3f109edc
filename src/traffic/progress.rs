//! What a person sees while a run goes on, on standard error: a bar on a terminal, else a line now and
//! then.

use std::io::IsTerminal;
use std::sync::Arc;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressFinish, ProgressStyle};

use crate::clock::{Clock, Stamp};
use crate::terminal;

use super::live::{Live, Progress};
use super::stop::Stop;

/// How often the bar is drawn.
const DRAW: Duration = Duration::from_millis(200);
/// How often a line is written where there is no terminal.
const LINE: Duration = Duration::from_secs(5);

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
        // The bar is gone by then: what follows takes seconds.
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
    let bar = std::io::stderr().is_terminal().then(|| bar(total));
    let step = if bar.is_some() { DRAW } else { LINE };
    let mut rate = Rate::new(clock.now());
    loop {
        tokio::time::sleep(step).await;
        let counts = live.counts();
        let state = state(counts, rate.of(counts.due, clock.now()));
        match &bar {
            Some(bar) => {
                bar.set_position(counts.done as u64);
                bar.set_message(state);
            }
            None => tell(&format!("{}/{total} done, {state}", counts.done)),
        }
    }
}

/// Cleared when it is dropped, also when the run ends in the midst of a draw.
fn bar(total: usize) -> ProgressBar {
    let bar = ProgressBar::new(total as u64).with_finish(ProgressFinish::AndClear);
    match ProgressStyle::with_template("{bar:20} {pos}/{len}  {wide_msg}") {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

fn state(counts: Progress, rate: f64) -> String {
    format!(
        "{rate:.1} req/s, {} in flight, {} failed",
        counts.under_way, counts.failed
    )
}

/// Requests a second over about the last second.
struct Rate {
    seen: (Stamp, usize),
    rate: f64,
}

impl Rate {
    fn new(now: Stamp) -> Rate {
        Rate {
            seen: (now, 0),
            rate: 0.0,
        }
    }

    fn of(&mut self, due: usize, now: Stamp) -> f64 {
        let (since, before) = self.seen;
        let seconds = now.since(since);
        if seconds >= 1.0 {
            self.rate = (due - before.min(due)) as f64 / seconds;
            self.seen = (now, due);
        }
        self.rate
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_that_of_the_last_second() {
        let at = |seconds: f64| Stamp::from_nanos(0).plus_seconds(seconds);
        let mut rate = Rate::new(at(0.0));
        assert!((rate.of(100, at(2.0)) - 50.0).abs() < 1e-9);
        assert!((rate.of(500, at(2.5)) - 50.0).abs() < 1e-9);
        assert!((rate.of(130, at(3.0)) - 30.0).abs() < 1e-9);
    }
}
