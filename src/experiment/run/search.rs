//! The search for the highest rate that meets an objective: doubles the rate, then bisects. Does no IO.

use serde_json::Value;

use crate::report::files::{MaxRate, Trial, TrialFile};
use crate::units::round_to_four_digits;

/// A search in progress.
#[derive(Clone, Debug)]
pub struct Search {
    first: f64,
    precision: f64,
    /// The objective, and what was found so far.
    pub found: MaxRate,
    /// A rate whose first trial was invalid: it is tried once more.
    retry: Option<f64>,
}

/// The lowest rate that is tried, as a share of the first. If it misses, the objective cannot be met.
const MIN_SHARE_OF_FIRST: f64 = 1.0 / 1024.0;

impl Search {
    /// Begins at `first` requests a second. The search ends when the lowest miss is at most the share `precision` above the highest
    /// hit.
    pub fn new(first: f64, precision: f64, found: MaxRate) -> Search {
        Search {
            first,
            precision,
            found,
            retry: None,
        }
    }

    /// Returns the next rate to try; `None` if the search is over.
    pub fn next(&self) -> Option<f64> {
        if self.retry.is_some() {
            return self.retry;
        }
        // The lowest rate that missed or could not be sent.
        let bounds = [self.found.missed, self.found.invalid];
        let above = bounds.into_iter().flatten().reduce(f64::min);
        match (self.found.met, above) {
            (None, None) => Some(self.first),
            (Some(met), None) => Some(round_to_four_digits(met * 2.0)),
            (None, Some(above)) => Some(round_to_four_digits(above / 2.0))
                .filter(|rate| *rate >= self.first * MIN_SHARE_OF_FIRST),
            (Some(met), Some(above)) if above <= met * (1.0 + self.precision) => None,
            // The rounded middle may equal one of the two.
            (Some(met), Some(above)) => Some(round_to_four_digits(f64::midpoint(met, above)))
                .filter(|rate| *rate > met && *rate < above),
        }
    }

    /// Adds the trial of the rate that [`Search::next`] returned.
    pub fn add(&mut self, trial: TrialFile) {
        let (rate, found) = (trial.rate, &mut self.found);
        let retry = self.retry.take();
        // It lies between the bounds so far, so it is the new one.
        match trial.result {
            Trial::Met => found.met = Some(rate),
            Trial::Missed => found.missed = Some(rate),
            Trial::Invalid if retry.is_some() => found.invalid = Some(rate),
            Trial::Invalid => self.retry = Some(rate),
        }
        found.trials.push(trial);
    }
}

/// Whether no lower rate can meet the objective either: no request of a trial, of these figures, kept the limits, though most came while
/// no other was under way.
pub fn is_hopeless(trial: &TrialFile, figures: &Value) -> bool {
    // So many are under way on average over time; arrivals find what time does.
    let concurrency = figures["mean_concurrency"].as_f64();
    trial.result == Trial::Missed && trial.kept == 0.0 && concurrency.is_some_and(|of| of < 0.5)
}

/// Returns how many requests a trial of `rate` sends: for `seconds` at least, and so many that a rate which just meets the share has
/// [`MISSES`] misses.
pub fn requests(rate: f64, seconds: f64, share: f64) -> usize {
    let count = MISSES / (1.0 - share);
    // A rounding error of the quotient must not add a request. The cast saturates.
    ((rate * seconds).max(count) - 1e-6).ceil().max(1.0) as usize
}

/// How many requests miss the limits in a trial that just meets its share. With fewer, the result would depend too much on chance.
const MISSES: f64 = 10.0;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Searches where rates up to `capacity` meet the objective and rates above `machine` cannot be sent.
    fn search(first: f64, precision: f64, capacity: f64, machine: f64) -> (MaxRate, Vec<f64>) {
        let mut search = Search::new(first, precision, MaxRate::default());
        while let Some(rate) = search.next() {
            let result = match rate {
                rate if rate > machine => Trial::Invalid,
                rate if rate > capacity => Trial::Missed,
                _ => Trial::Met,
            };
            search.add(trial(rate, result));
        }
        let tried = search.found.trials.iter().map(|trial| trial.rate);
        (search.found.clone(), tried.collect())
    }

    fn trial(rate: f64, result: Trial) -> TrialFile {
        TrialFile {
            rate,
            result,
            ..TrialFile::default()
        }
    }

    #[test]
    fn the_capacity_is_found_to_the_given_precision_from_any_first_rate() {
        for first in [0.5, 10.0, 300.0] {
            for capacity in [0.4, 7.0, 63.2, 1999.0] {
                if capacity < first * MIN_SHARE_OF_FIRST {
                    continue;
                }
                let (found, tried) = search(first, 0.05, capacity, f64::INFINITY);
                let (met, missed) = (found.met.unwrap(), found.missed.unwrap());
                let is_near = met <= capacity && capacity < missed && missed <= met * 1.05 + 1e-9;
                assert!(is_near, "{first} {capacity}: {met} {missed}");
                assert!(tried.len() < 25, "{tried:?}");
            }
        }
        let (_, tried) = search(10.0, 0.05, 64.0, f64::INFINITY);
        assert_eq!(tried, [10.0, 20.0, 40.0, 80.0, 60.0, 70.0, 65.0, 62.5]);
    }

    #[test]
    fn a_rate_that_cannot_be_sent_is_tried_twice_and_is_no_miss() {
        let (found, tried) = search(10.0, 0.05, 1e9, 65.0);
        assert_eq!(found.missed, None);
        assert_eq!(tried[..6], [10.0, 20.0, 40.0, 80.0, 80.0, 60.0]);
        let (met, invalid) = (found.met.unwrap(), found.invalid.unwrap());
        let is_near = met <= 65.0 && invalid > 65.0 && invalid <= met * 1.05;
        assert!(is_near, "{met} {invalid}");
        // The second trial decides.
        let mut once = Search::new(8.0, 0.05, MaxRate::default());
        once.add(trial(8.0, Trial::Invalid));
        assert_eq!(once.next(), Some(8.0));
        once.add(trial(8.0, Trial::Met));
        assert_eq!((once.next(), once.found.invalid), (Some(16.0), None));
    }

    #[test]
    fn an_objective_that_no_rate_meets_ends_the_search() {
        let (found, tried) = search(10.0, 0.05, 0.0, f64::INFINITY);
        assert_eq!((found.met, tried.len()), (None, 10));
    }

    #[test]
    fn a_miss_of_all_that_did_not_wait_for_each_other_is_final() {
        let missed = |kept| TrialFile {
            kept,
            ..trial(5.0, Trial::Missed)
        };
        assert!(is_hopeless(
            &missed(0.0),
            &json!({"mean_concurrency": 0.49})
        ));
        for (trial, concurrency) in [
            (missed(0.0), json!(0.5)),
            (missed(0.0), Value::Null),
            (missed(0.01), json!(0.1)),
            (trial(5.0, Trial::Invalid), json!(0.1)),
        ] {
            let figures = json!({"mean_concurrency": concurrency});
            assert!(!is_hopeless(&trial, &figures), "{trial:?} {figures}");
        }
    }

    #[test]
    fn a_trial_is_long_enough_to_measure_its_share() {
        assert_eq!(requests(1.0, 20.0, 0.95), 200);
        assert_eq!(requests(1.0, 20.0, 0.9), 100);
        assert_eq!(requests(50.0, 20.0, 0.9), 1000);
        assert_eq!(requests(0.1, 1.0, 0.0), 10);
    }
}
