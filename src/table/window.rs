//! The part of a run that its figures are taken of: without its beginning, in which a server has not yet the load that it
//! will have, and its end, in which it has it no more. Requests are chosen by when they arrived, never by when they ended:
//! the long ones end last, and would be left out.

use serde::{Deserialize, Serialize};

use crate::clock::NANOS;

use super::Table;

/// The part of a run that its figures are of.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Window {
    /// From this second of the run on.
    pub from_s: f64,
    /// To this one.
    pub to_s: f64,
    /// Requests that arrived before.
    pub left_out_first: u64,
    /// Requests that arrived after.
    pub left_out_last: u64,
    /// How it was chosen.
    pub rule: String,
}

/// Rows tell times so exactly, seconds: of a run that is read again the window holds what it held, also the request that it
/// begins with.
const EXACT: f64 = 1e-6;

/// So begins the rule where nothing would be left of what was asked for.
const NONE_LEFT: &str = "of all requests: none would be left";

/// When the requests of a table arrived, seconds since the beginning of the run; not those that were never sent.
pub fn arrived(table: &Table) -> Vec<f64> {
    let arrived = |row| Some(table.begun(row)? as f64 / NANOS as f64);
    table.firsts().filter_map(arrived).collect()
}

impl Window {
    /// Chooses it, of a run of `run_s` seconds, without the first seconds and the last before the last arrival. With nothing
    /// left, it is the whole run, and the rule says so.
    pub fn choose(arrived: &[f64], run_s: f64, first: f64, last: f64) -> Window {
        let came = arrived.iter().copied().fold(0.0, f64::max);
        let to_s = if last > 0.0 { came - last } else { run_s };
        let rule = match (first > 0.0, last > 0.0) {
            (true, true) => {
                format!("without the first {first} s; without the last {last} s of arrivals")
            }
            (true, false) => format!("without the first {first} s"),
            (false, true) => format!("without the last {last} s of arrivals"),
            (false, false) => "all".to_owned(),
        };
        let window = Window::between(arrived, first, to_s, rule.clone());
        let left_out = window.left_out_first + window.left_out_last;
        if left_out > 0 && left_out as usize == arrived.len() {
            let rule = format!("{NONE_LEFT} {rule}");
            return Window::between(arrived, 0.0, run_s, rule);
        }
        window
    }

    fn between(arrived: &[f64], from_s: f64, to_s: f64, rule: String) -> Window {
        let mut window = Window {
            from_s,
            to_s,
            rule,
            ..Window::default()
        };
        let outside = || arrived.iter().filter(|at| !window.holds(**at));
        let first = outside().filter(|at| **at < from_s).count() as u64;
        let last = outside().count() as u64 - first;
        (window.left_out_first, window.left_out_last) = (first, last);
        window
    }

    /// Whether a request that arrived at this second is in it.
    pub fn holds(&self, at: f64) -> bool {
        // The end of the run is its own.
        self.from_s - EXACT <= at && at <= self.to_s + EXACT
    }

    /// That it is the whole run because nothing would be left of what was asked for.
    pub fn warning(&self) -> Option<String> {
        let is_ignored = self.rule.starts_with(NONE_LEFT);
        is_ignored.then(|| format!("figures are {}", self.rule))
    }

    /// Whether it is the whole run.
    pub fn is_all(&self) -> bool {
        self.left_out_first + self.left_out_last == 0 && self.from_s <= 0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One a second for 300 s.
    fn arrived() -> Vec<f64> {
        (0..300).map(f64::from).collect()
    }

    #[test]
    fn seconds_are_counted_from_the_first_and_to_the_last_arrival() {
        let window = Window::choose(&arrived(), 310.0, 100.0, 20.0);
        assert_eq!((window.from_s, window.to_s), (100.0, 279.0));
        assert_eq!((window.left_out_first, window.left_out_last), (100, 20));
        let rule = "first 100 s; without the last 20 s";
        assert!(window.rule.contains(rule), "{window:?}");
        assert_eq!(window.warning(), None);
    }

    #[test]
    fn all_is_left_where_nothing_is_asked_or_nothing_would_be_left() {
        let none = "figures are of all requests: none would be left without the first 500 s";
        for (arrived, first, warning) in [
            (arrived(), 0.0, None),
            (arrived(), 500.0, Some(none)),
            (Vec::new(), 0.0, None),
        ] {
            let window = Window::choose(&arrived, 310.0, first, 0.0);
            assert!(window.is_all(), "{window:?}");
            assert_eq!((window.from_s, window.to_s), (0.0, 310.0));
            assert_eq!(window.warning().as_deref(), warning);
        }
    }
}
