//! The part of a run that its figures are taken of: without its beginning, in which a server has not yet the load that it
//! will have, and its end, in which it has it no more. Requests are chosen by when they arrived, never by when they ended:
//! the long ones end last, and would be left out.

use std::str::FromStr;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::clock::NANOS;
use crate::request::columns::ColumnId;
use crate::stats::quantile;
use crate::stats::steady::{Trend, trend, warm_up};
use crate::units;

use super::Table;

/// How much of one end of a run is left out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Edge {
    /// So many seconds.
    Seconds(f64),
    /// What the run itself tells is not of its steady state.
    Auto,
}

/// A request, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Arrived {
    /// Seconds since the run began.
    pub at: f64,
    /// How long until its first token (its end, where it had none), seconds; `None`: it failed.
    pub first: Option<f64>,
    /// How long until its end.
    pub total: Option<f64>,
}

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

/// No more than this part of the time of arrivals is left out at either end by itself.
const MOST: f64 = 1.0 / 3.0;
/// Rows tell times so exactly, seconds: of a run that is read again the window holds what it held, also the request that it
/// begins with.
const EXACT: f64 = 1e-6;

impl Default for Edge {
    fn default() -> Edge {
        Edge::Seconds(0.0)
    }
}

impl FromStr for Edge {
    type Err = String;

    fn from_str(text: &str) -> Result<Edge, String> {
        if text == "auto" {
            return Ok(Edge::Auto);
        }
        let seconds = units::seconds(text);
        let fits = |seconds: &f64| (0.0..=3.2e7).contains(seconds);
        let right = "must be a number of seconds, 0 or more, or auto";
        let seconds = seconds.filter(fits).ok_or_else(|| right.to_owned())?;
        Ok(Edge::Seconds(seconds))
    }
}

impl std::fmt::Display for Edge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Edge::Seconds(seconds) => write!(f, "{seconds}"),
            Edge::Auto => write!(f, "auto"),
        }
    }
}

impl Arrived {
    /// The requests of a table, times of which count from the beginning of the run; not those that were never sent.
    pub fn all(table: &Table) -> Vec<Arrived> {
        let arrived = |row| {
            let at = table.begun(row)?;
            let since = |column| {
                let seconds = (table.whole(column, row)? - at) as f64 / NANOS as f64;
                Some(seconds).filter(|_| table.is_ok(row))
            };
            let total = since(ColumnId::finish_time);
            Some(Arrived {
                at: at as f64 / NANOS as f64,
                first: since(ColumnId::first_token_time).or(total),
                total,
            })
        };
        table.firsts().filter_map(arrived).collect()
    }
}

impl Window {
    /// That of a `summary.json`, where one is told.
    pub fn of(summary: &Value) -> Option<Window> {
        serde_json::from_value(summary.get("window")?.clone()).ok()
    }

    /// Chooses it, of a run of `run_s` seconds. With nothing left, it is the whole run, and the rule says so.
    pub fn choose(mut arrived: Vec<Arrived>, run_s: f64, first: Edge, last: Edge) -> Window {
        arrived.sort_by(|a, b| a.at.total_cmp(&b.at));
        let (from_s, why_first) = beginning(&arrived, first);
        let (to_s, why_last) = end(&arrived, run_s, last);
        let rules: Vec<String> = [why_first, why_last].into_iter().flatten().collect();
        let window = Window::between(&arrived, from_s, to_s, rules.join("; "));
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
            rule: Some(rule)
                .filter(|rule| !rule.is_empty())
                .unwrap_or("all".to_owned()),
            ..Window::default()
        };
        let (inside, outside): (Vec<&Arrived>, Vec<&Arrived>) =
            arrived.iter().partition(|one| window.holds(one.at));
        let before = outside.iter().filter(|one| one.at < from_s).count();
        window.left_out_first = before as u64;
        window.left_out_last = (outside.len() - before) as u64;
        let waits: Vec<f64> = inside.iter().filter_map(|one| one.first).collect();
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

fn last_arrival(arrived: &[Arrived]) -> f64 {
    arrived.last().map_or(0.0, |one| one.at)
}

/// When the steady state begins, and how that was found.
fn beginning(arrived: &[Arrived], edge: Edge) -> (f64, Option<String>) {
    match edge {
        Edge::Seconds(0.0) => (0.0, None),
        Edge::Seconds(seconds) => (seconds, Some(format!("without the first {seconds} s"))),
        Edge::Auto => {
            let known = arrived.iter().filter_map(|one| Some((one.at, one.first?)));
            let (came, waits): (Vec<f64>, Vec<f64>) = known.unzip();
            let words = "the beginning by MSER-5 of the time to the first token";
            let most = last_arrival(arrived) * MOST;
            let steady = warm_up(&waits).and_then(|count| came.get(count)).copied();
            match steady.filter(|at| *at <= most) {
                Some(at) if came.first() == Some(&at) => (0.0, Some(words.to_owned())),
                Some(at) => (at, Some(words.to_owned())),
                None => {
                    let rule = format!("{words}, which is not over after a third");
                    (most, Some(rule))
                }
            }
        }
    }
}

/// When it ends.
fn end(arrived: &[Arrived], run_s: f64, edge: Edge) -> (f64, Option<String>) {
    let last = last_arrival(arrived);
    match edge {
        Edge::Seconds(0.0) => (run_s, None),
        Edge::Seconds(seconds) => (
            last - seconds,
            Some(format!("without the last {seconds} s of arrivals")),
        ),
        Edge::Auto => {
            let mut totals: Vec<f64> = arrived.iter().filter_map(|one| one.total).collect();
            totals.sort_unstable_by(f64::total_cmp);
            let median = quantile(&totals, 0.5).unwrap_or(0.0);
            let words = "the end from one median latency before the last arrival on";
            (last - median.min(last * MOST), Some(words.to_owned()))
        }
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
            Arrived {
                at: f64::from(second),
                first: Some(first),
                total: Some(first + 9.0),
            }
        };
        (0..300).map(one).collect()
    }

    #[test]
    fn nothing_is_left_out_unless_asked_and_a_trend_is_told() {
        let window = Window::choose(arrived(), 310.0, Edge::default(), Edge::default());
        assert!(window.is_all() && window.rule == "all", "{window:?}");
        assert_eq!((window.from_s, window.to_s), (0.0, 310.0));
        // A beginning that differs is no trend yet.
        let trend = window.trend.unwrap();
        assert!(trend.first < 0.5 && trend.is_steady, "{window:?}");
    }

    #[test]
    fn seconds_are_counted_from_the_first_and_to_the_last_arrival() {
        let window = Window::choose(arrived(), 310.0, Edge::Seconds(100.0), Edge::Seconds(20.0));
        assert_eq!((window.from_s, window.to_s), (100.0, 279.0));
        assert_eq!((window.left_out_first, window.left_out_last), (100, 20));
        assert!(window.trend.unwrap().is_steady, "{window:?}");
        assert!(
            window.rule.contains("first 100 s; without the last 20 s"),
            "{window:?}"
        );
    }

    #[test]
    fn by_itself_it_finds_the_beginning_and_leaves_out_who_met_no_load_at_the_end() {
        let window = Window::choose(arrived(), 310.0, Edge::Auto, Edge::Auto);
        assert_eq!(window.from_s, 50.0, "{window:?}");
        assert!((window.to_s - 288.97).abs() < 0.02, "{window:?}");
        assert_eq!((window.left_out_first, window.left_out_last), (50, 11));
        // A queue that only grows has no steady state: a third goes, and it is said.
        let mut grows = arrived();
        for one in &mut grows {
            one.first = Some(one.at);
        }
        let window = Window::choose(grows, 310.0, Edge::Auto, Edge::default());
        assert!(window.rule.contains("not over after a third"), "{window:?}");
        assert!(!window.trend.unwrap().is_steady);
    }

    #[test]
    fn where_nothing_would_be_left_all_is() {
        let window = Window::choose(arrived(), 310.0, Edge::Seconds(500.0), Edge::default());
        assert!(
            window.is_all() && window.rule.contains("none would be left"),
            "{window:?}"
        );
        let window = Window::choose(Vec::new(), 1.0, Edge::Auto, Edge::Auto);
        assert!(window.is_all() && window.trend.is_none());
    }

    #[test]
    fn an_edge_is_seconds_or_auto() {
        assert_eq!("auto".parse(), Ok(Edge::Auto));
        assert_eq!("2.5".parse(), Ok(Edge::Seconds(2.5)));
        assert_eq!("2min".parse(), Ok(Edge::Seconds(120.0)));
        for wrong in ["-1", "x", "NaN", "inf"] {
            assert!(wrong.parse::<Edge>().unwrap_err().contains("or auto"));
        }
    }
}
