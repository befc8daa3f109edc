//! How late tasks are run: whether this process is what requests wait for.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::NANOS;
use crate::proxy::shared::Shared;

/// How often it wakes.
const PAUSE: Duration = Duration::from_millis(200);
/// What is told is looked at this often: a minute.
const WINDOW: usize = 300;
/// The 99th percentile of the lag from which on it is told, nanoseconds.
const TOO_LATE: i64 = NANOS / 20;

/// The lags of a minute.
#[derive(Debug, Default)]
struct Lags(Vec<i64>);

/// Wakes again and again and counts how late it was.
pub async fn watch(shared: Arc<Shared>) {
    let mut lags = Lags::default();
    loop {
        let asked = shared.clock.now();
        tokio::time::sleep(PAUSE).await;
        let slept = shared.clock.now().nanos_since(asked);
        let lag = (slept - PAUSE.as_nanos() as i64).max(0);
        shared
            .metrics
            .runtime_lag
            .with(&[])
            .observe(lag.max(0) as f64 / crate::clock::NANOS as f64);
        if let Some(late) = lags.add(lag).filter(|late| *late > TOO_LATE) {
            let ms = late / 1_000_000;
            log::warn!(
                "the proxy is the bottleneck: over the last minute 1 of 100 of its tasks was run {ms} ms late or more. It \
                 needs more CPU (and then more `threads`); what it measures is late by as much. See \
                 queuescope_runtime_lag_seconds"
            );
        }
    }
}

impl Lags {
    /// Adds one; at the end of a minute, the 99th percentile.
    fn add(&mut self, lag: i64) -> Option<i64> {
        self.0.push(lag);
        if self.0.len() < WINDOW {
            return None;
        }
        self.0.sort_unstable();
        let late = self.0.get(WINDOW * 99 / 100).copied();
        self.0.clear();
        late
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minute_is_told_by_its_99th_percentile() {
        let mut lags = Lags::default();
        let told = |lags: &mut Lags, late: usize| {
            let all = (0..WINDOW).map(|n| if n < late { TOO_LATE + 1 } else { 7 });
            let told: Vec<i64> = all.filter_map(|lag| lags.add(lag)).collect();
            told
        };
        assert_eq!(told(&mut lags, 2), [7]);
        assert_eq!(told(&mut lags, 3), [TOO_LATE + 1]);
        assert_eq!(told(&mut lags, 0), [7]);
    }
}
