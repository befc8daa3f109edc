//! How late the generator itself was: a saturated client must not pass for a slow server.

use crate::clock::NANOS;
use crate::stats;

/// The generator's own lateness over a run, seconds: sent − scheduled, without what a request waited for a
/// `--max-concurrency` slot or for its connection to open.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Lag {
    /// Half of the requests were sent no later than this.
    pub p50: f64,
    /// 99 % of the requests were sent no later than this.
    pub p99: f64,
    /// The latest.
    pub max: f64,
    /// How many requests waited for a slot.
    pub waited: usize,
    /// The longest such wait.
    pub longest_wait: f64,
}

/// Later than this at the 99th percentile, and times from the send no longer tell what a punctual client
/// would have seen.
const LATE: f64 = 0.005;

impl Lag {
    /// From pairs of own lateness and wait for a slot, nanoseconds.
    pub fn of(pairs: impl Iterator<Item = (i64, i64)>) -> Lag {
        let (mut own, waits): (Vec<f64>, Vec<i64>) = pairs
            .map(|(own, wait)| (own as f64 / NANOS as f64, wait))
            .unzip();
        own.sort_by(f64::total_cmp);
        let at = |q| stats::quantile(&own, q).unwrap_or(0.0);
        let waited = waits.iter().filter(|wait| **wait > 0);
        Lag {
            p50: at(0.5),
            p99: at(0.99),
            max: at(1.0),
            waited: waited.count(),
            longest_wait: waits.into_iter().max().unwrap_or(0) as f64 / NANOS as f64,
        }
    }

    /// What a reader of the run's figures must know, if anything.
    pub fn warnings(&self) -> Vec<String> {
        let mut found = Vec::new();
        if self.p99 > LATE {
            found.push(format!(
                "the client could not keep its own schedule: p99 {:.1} ms late, at most {:.1} ms, not \
                 counting waits for a slot or a connection; lower the rate or use a faster client",
                self.p99 * 1e3,
                self.max * 1e3
            ));
        }
        if self.waited > 0 {
            found.push(format!(
                "{} requests waited for a --max-concurrency slot, at most {:.3} s: the load was not an open \
                 loop, and only figures from the schedule hold that wait",
                self.waited, self.longest_wait
            ));
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_punctual_run_has_nothing_to_say_and_a_late_one_says_so() {
        let punctual = Lag::of((0..1000).map(|i| (100_000 + i, 0)));
        assert!(punctual.warnings().is_empty());
        assert!((punctual.p50 - 1.005e-4).abs() < 1e-6, "{punctual:?}");
        let late = Lag::of((0..1000).map(|i| (if i % 50 == 0 { 30_000_000 } else { 50_000 }, 0)));
        assert_eq!(late.warnings().len(), 1);
        assert!(late.warnings()[0].contains("at most 30.0 ms"), "{late:?}");
        assert_eq!(Lag::of(std::iter::empty()), Lag::default());
    }

    #[test]
    fn waits_for_a_slot_are_told_apart() {
        let waiting = Lag::of([(10, 0), (10, 2_000_000_000)].into_iter());
        assert_eq!((waiting.waited, waiting.longest_wait), (1, 2.0));
        assert!(waiting.warnings()[0].contains("--max-concurrency"));
    }
}
