//! The part of a run that its figures are taken of: without its beginning, in which a server has not yet the load that it
//! will have, and its end, in which it has it no more. Requests are chosen by when they arrived, never by when they ended:
//! the long ones end last, and would be left out.

use serde::{Deserialize, Serialize};

use crate::clock::NANOS;
use crate::request::columns::ColumnId;
use crate::stats::steady::{Trend, trend};

use super::Table;

/// A request: when it arrived, seconds since the run began, and how long it took until its first token (its end, where it had none);
/// `None`: it failed.
pub type Arrived = (f64, Option<f64>);

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
    /// How the time to the first token moved within it; `None` of too few requests.
    pub trend: Option<Trend>,
}

/// Rows tell times so exactly, seconds: of a run that is read again the window holds what it held, also the request that it
/// begins with.
const EXACT: f64 = 1e-6;

/// The requests of a table, times of which count from the beginning of the run; not those that were never sent.
pub fn arrived(table: &Table) -> Vec<Arrived> {
    let arrived = |row| {
        let at = table.begun(row)?;
        let since = |column| {
            let seconds = (table.whole(column, row)? - at) as f64 / NANOS as f64;
            Some(seconds).filter(|_| table.is_ok(row))
        };
        let first = since(ColumnId::first_token_time).or(since(ColumnId::finish_time));
        Some((at as f64 / NANOS as f64, first))
    };
    table.firsts().filter_map(arrived).collect()
}

impl Window {
    /// Chooses it, of a run of `run_s` seconds, without the first seconds and the last before the last arrival. With nothing
    /// left, it is the whole run, and the rule says so.
    pub fn choose(mut arrived: Vec<Arrived>, run_s: f64, first: f64, last: f64) -> Window {
        arrived.sort_by(|a, b| a.0.total_cmp(&b.0));
        let came = arrived.last().map_or(0.0, |(at, _)| *at);
        let to_s = if last > 0.0 { came - last } else { run_s };
        let rule = match (first > 0.0, last > 0.0) {
            (true, true) => {
                format!("without the first {first} s; without the last {last} s of arrivals")
            }
            (true, false) => format!("without the first {first} s"),
            (false, true) => format!("without the last {last} s of arrivals"),
            (false, false) => "all".to_owned(),
        };
        let window = Window::between(&arrived, first, to_s, rule);
        let left_out = window.left_out_first + window.left_out_last;
        if left_out > 0 && left_out as usize == arrived.len() {
            let rule = "of all requests: none would be left otherwise".to_owned();
            return Window::between(&arrived, 0.0, run_s, rule);
        }
        window
    }

    fn between(arrived: &[Arrived], from_s: f64, to_s: f64, rule: String) -> Window {
        let mut window = Window {
            from_s,
            to_s,
            rule,
            ..Window::default()
        };
        let mut waits = Vec::new();
        for (at, first) in arrived {
            match window.holds(*at) {
                true => waits.extend(first),
                false if *at < from_s => window.left_out_first += 1,
                false => window.left_out_last += 1,
            }
        }
        window.trend = trend(&waits);
        window
    }

    /// Whether a request that arrived at this second is in it.
    pub fn holds(&self, at: f64) -> bool {
        // The end of the run is its own.
        self.from_s - EXACT <= at && at <= self.to_s + EXACT
    }

    /// Whether it is the whole run.
    pub fn is_all(&self) -> bool {
        self.left_out_first + self.left_out_last == 0 && self.from_s <= 0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One a second for 300 s, the first 50 quick, as the server was empty.
    fn arrived() -> Vec<Arrived> {
        let one = |second: i32| {
            let first = if second < 50 {
                0.1
            } else {
                1.0 + f64::from(second % 7) / 100.0
            };
            (f64::from(second), Some(first))
        };
        (0..300).map(one).collect()
    }

    #[test]
    fn nothing_is_left_out_unless_asked_and_a_trend_is_told() {
        let window = Window::choose(arrived(), 310.0, 0.0, 0.0);
        assert!(window.is_all() && window.rule == "all", "{window:?}");
        assert_eq!((window.from_s, window.to_s), (0.0, 310.0));
        // A beginning that differs is no trend yet.
        let trend = window.trend.unwrap();
        assert!(trend.first < 0.5 && trend.is_steady, "{window:?}");
    }

    #[test]
    fn seconds_are_counted_from_the_first_and_to_the_last_arrival() {
        let window = Window::choose(arrived(), 310.0, 100.0, 20.0);
        assert_eq!((window.from_s, window.to_s), (100.0, 279.0));
        assert_eq!((window.left_out_first, window.left_out_last), (100, 20));
        assert!(window.trend.unwrap().is_steady, "{window:?}");
        assert!(
            window.rule.contains("first 100 s; without the last 20 s"),
            "{window:?}"
        );
    }

    #[test]
    fn where_nothing_would_be_left_all_is() {
        let window = Window::choose(arrived(), 310.0, 500.0, 0.0);
        assert!(
            window.is_all() && window.rule.contains("none would be left"),
            "{window:?}"
        );
        let window = Window::choose(Vec::new(), 1.0, 0.0, 0.0);
        assert!(window.is_all() && window.trend.is_none());
    }
}
