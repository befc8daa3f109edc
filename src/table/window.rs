//! The measurement window of a run: without its start, when a server's load has not built up yet, and its end, when the load
//! falls. Requests are not chosen by their end: long requests end last and would be excluded.

use serde::{Deserialize, Serialize};

use crate::clock::seconds;

use super::Table;

/// The part of a run whose requests count in its figures: those that arrived in it, or were due in it and never sent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Window {
    /// Its start, seconds of the run.
    pub from_s: f64,
    /// Its end, seconds of the run.
    pub to_s: f64,
    /// The number of requests before it.
    pub left_out_first: u64,
    /// The number of requests after it.
    pub left_out_last: u64,
    /// Whether it is the whole run only because no request would be left in the one asked for.
    #[serde(default)]
    pub is_ignored: bool,
}

/// Tolerance at both ends, seconds, as times in rows are rounded: a run that is read again has the same requests in its window.
const TOLERANCE_S: f64 = 1e-6;

/// When each request of a table arrived, or was due if it was never sent, seconds since the run's start.
pub fn arrived_or_due(table: &Table) -> Vec<f64> {
    let at = |row| table.arrival_or_due(row).map(seconds);
    table.first_rows().filter_map(at).collect()
}

impl Window {
    /// Chooses the window of a run of `run_s` seconds with requests at these `times`: without its `first` seconds, and without the
    /// `last` seconds up to the last request. If no request is left, it is the whole run, and `is_ignored` says so.
    pub fn choose(times: &[f64], run_s: f64, first: f64, last: f64) -> Window {
        let latest = times.iter().copied().fold(0.0, f64::max);
        let to_s = if last > 0.0 { latest - last } else { run_s };
        let mut window = Window {
            from_s: first,
            to_s,
            ..Window::default()
        };
        let outside = times.iter().copied().filter(|at| !window.contains(*at));
        let outside: Vec<f64> = outside.collect();
        window.left_out_first = outside.iter().filter(|at| **at < first).count() as u64;
        window.left_out_last = outside.len() as u64 - window.left_out_first;
        match first + last > 0.0 && outside.len() == times.len() {
            true => Window {
                to_s: run_s,
                is_ignored: true,
                ..Window::default()
            },
            false => window,
        }
    }

    /// The number of requests before or after it.
    pub fn left_out(&self) -> u64 {
        self.left_out_first + self.left_out_last
    }

    /// Whether a request of this second is in it.
    pub fn contains(&self, at: f64) -> bool {
        // Both ends are included.
        self.from_s - TOLERANCE_S <= at && at <= self.to_s + TOLERANCE_S
    }

    /// The warning that it is the whole run because no request would be left.
    pub fn warning(&self) -> Option<String> {
        let warning = "figures are of all requests: none would be left without the first and last ones (--leave-out-first, \
            --leave-out-last)";
        self.is_ignored.then(|| warning.to_owned())
    }

    /// Whether it is the whole run.
    pub fn is_whole_run(&self) -> bool {
        self.left_out() == 0 && self.from_s <= 0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One a second for 300 s.
    fn times() -> Vec<f64> {
        (0..300).map(f64::from).collect()
    }

    #[test]
    fn seconds_are_counted_from_the_start_and_to_the_last_request() {
        let window = Window::choose(&times(), 310.0, 100.0, 20.0);
        assert_eq!((window.from_s, window.to_s), (100.0, 279.0));
        assert_eq!((window.left_out_first, window.left_out_last), (100, 20));
        assert_eq!(window.warning(), None);
    }

    #[test]
    fn it_is_the_whole_run_by_default_or_if_no_request_would_be_left() {
        for (times, first, is_ignored) in [
            (times(), 0.0, false),
            (times(), 500.0, true),
            (Vec::new(), 0.0, false),
            (Vec::new(), 500.0, true),
        ] {
            let window = Window::choose(&times, 310.0, first, 0.0);
            assert!(window.is_whole_run(), "{window:?}");
            assert_eq!((window.from_s, window.to_s), (0.0, 310.0));
            assert_eq!(window.warning().is_some(), is_ignored);
        }
    }
}
