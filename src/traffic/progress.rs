//! What a person sees while a run goes on, on standard error: a bar on a terminal, else a line now and
//! then.

use std::io::IsTerminal;
use std::sync::Arc;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressFinish, ProgressStyle};

use crate::clock::Clock;
use crate::terminal;

use super::live::Live;
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
    let began = live.began().await;
    loop {
        tokio::time::sleep(step).await;
        let counts = live.counts();
        let rate = counts.due as f64 / clock.now().since(began).max(1.0);
        let state = format!(
            "{rate:.1} req/s, {} in flight, {} failed",
            counts.under_way, counts.failed
        );
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
