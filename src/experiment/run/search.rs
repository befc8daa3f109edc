//! The search of the highest rate that meets an objective: doubling, then halving the way between. Pure.

use crate::report::files::{MaxRate, Trial, TrialFile};
use crate::units::four_digits;

/// A search under way.
#[derive(Clone, Debug)]
pub struct Search {
    first: f64,
    precision: f64,
    /// What it is of, and what was found so far.
    pub found: MaxRate,
    /// A rate that could not be sent once: it is tried again.
    again: Option<f64>,
}

/// More trials than this end a search: doubling from one a second would be beyond any machine.
const MOST_TRIALS: usize = 40;
/// A rate below this share of the first is not tried: the objective cannot be met.
const LOWEST: f64 = 1.0 / 1024.0;

impl Search {
    /// From `first` (requests a second), until the lowest miss is at most the share `precision` above the highest hit.
    pub fn new(first: f64, precision: f64, found: MaxRate) -> Search {
        Search {
            first,
            precision,
            found,
            again: None,
        }
    }

    /// The next rate to try; `None`: the search is over.
    pub fn next(&self) -> Option<f64> {
        if self.found.trials.len() >= MOST_TRIALS {
            return None;
        }
        if self.again.is_some() {
            return self.again;
        }
        match (self.found.met, self.above()) {
            (None, None) => Some(self.first),
            (Some(met), None) => Some(four_digits(met * 2.0)),
            (None, Some(above)) => {
                Some(four_digits(above / 2.0)).filter(|rate| *rate >= self.first * LOWEST)
            }
            (Some(met), Some(above)) if above <= met * (1.0 + self.precision) => None,
            // What lies between may be too close to be another number.
            (Some(met), Some(above)) => Some(four_digits(f64::midpoint(met, above)))
                .filter(|rate| *rate > met && *rate < above),
        }
    }

    /// Says how the rate of [`Search::next`] did.
    pub fn tell(&mut self, trial: TrialFile) {
        let (rate, found) = (trial.rate, &mut self.found);
        let least = |known: Option<f64>| Some(known.map_or(rate, |known| known.min(rate)));
        let again = self.again.take();
        match trial.result {
            Trial::Met => found.met = Some(found.met.map_or(rate, |known| known.max(rate))),
            Trial::Missed => found.missed = least(found.missed),
            Trial::Invalid if again.is_some() => found.invalid = least(found.invalid),
            Trial::Invalid => self.again = Some(rate),
        }
        found.trials.push(trial);
    }

    /// The lowest rate that is known to be too high, for whatever reason.
    fn above(&self) -> Option<f64> {
        match (self.found.missed, self.found.invalid) {
            (Some(missed), Some(invalid)) => Some(missed.min(invalid)),
            (missed, invalid) => missed.or(invalid),
        }
    }
}

/// How many requests a trial of this rate sends: for so many seconds at least, and so many that ten may fail, so that the
/// share can be told.
pub fn requests(rate: f64, seconds: f64, share: f64) -> usize {
    let to_tell = MISSES / (1.0 - share);
    // A cast saturates; the last bit of a quotient makes no request.
    ((rate * seconds).max(to_tell) - 1e-6).ceil().max(1.0) as usize
}

/// Requests that may fail in a trial that just meets its share: fewer would be too much by chance.
const MISSES: f64 = 10.0;

#[cfg(test)]
mod tests {
    use super::*;

    /// Searches where rates up to `capacity` meet the objective and none above `machine` can be sent.
    fn search(first: f64, precision: f64, capacity: f64, machine: f64) -> (MaxRate, Vec<f64>) {
        let mut search = Search::new(first, precision, MaxRate::default());
        while let Some(rate) = search.next() {
            let result = match rate {
                rate if rate > machine => Trial::Invalid,
                rate if rate > capacity => Trial::Missed,
                _ => Trial::Met,
            };
            search.tell(trial(rate, result));
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
    fn the_capacity_is_enclosed_as_closely_as_asked_from_wherever_it_begins() {
        for first in [0.5, 10.0, 300.0] {
            for capacity in [0.4, 7.0, 63.2, 1999.0] {
                if capacity < first * LOWEST {
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
    fn what_cannot_be_sent_is_tried_twice_and_is_no_miss() {
        let (found, tried) = search(10.0, 0.05, 1e9, 65.0);
        assert_eq!(found.missed, None);
        assert_eq!(tried[..6], [10.0, 20.0, 40.0, 80.0, 80.0, 60.0]);
        let (met, invalid) = (found.met.unwrap(), found.invalid.unwrap());
        let is_near = met <= 65.0 && invalid > 65.0 && invalid <= met * 1.05;
        assert!(is_near, "{met} {invalid}");
        // Once is chance: what is sent the second time counts.
        let mut once = Search::new(8.0, 0.05, MaxRate::default());
        once.tell(trial(8.0, Trial::Invalid));
        assert_eq!(once.next(), Some(8.0));
        once.tell(trial(8.0, Trial::Met));
        assert_eq!((once.next(), once.found.invalid), (Some(16.0), None));
    }

    #[test]
    fn an_objective_that_no_rate_meets_ends_the_search() {
        let (found, tried) = search(10.0, 0.05, 0.0, f64::INFINITY);
        assert_eq!((found.met, tried.len()), (None, 11));
    }

    #[test]
    fn a_trial_is_long_enough_to_tell_its_share() {
        assert_eq!(requests(1.0, 20.0, 0.95), 200);
        assert_eq!(requests(1.0, 20.0, 0.9), 100);
        assert_eq!(requests(50.0, 20.0, 0.9), 1000);
        assert_eq!(requests(0.1, 1.0, 0.0), 10);
    }
}
