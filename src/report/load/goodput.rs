//! Goodput: requests per second that met every goal (DistServe's definition, as bench_serving's `--goodput`).

use std::fmt;
use std::str::FromStr;

use crate::request::ColumnId;
use crate::table::Table;
use crate::units;

use super::counts::Request;
use super::latency::{latencies, later_tokens, nanos, of_goal};

/// A goal of one request, written `name:milliseconds` or with a unit: `ttft:500`, `ttft:0.5s`. Names are those of vLLM's and SGLang's
/// clients (`ttft` and `e2el` from the send as the client reads them, `tpot`), or a latency of the summary.
#[derive(Clone, Debug, PartialEq)]
pub struct Goal {
    /// The name of the latency.
    pub name: String,
    /// Its limit, milliseconds.
    pub limit_ms: f64,
}

/// The requests that met all goals.
#[derive(Clone, Debug)]
pub struct Goodput {
    /// The number of requests that met all goals.
    pub good: u64,
    /// The number of successful requests that lack a latency that a goal names. They are not good.
    pub unknown: u64,
}

impl fmt::Display for Goal {
    /// The form that [`Goal::from_str`] parses.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.name, self.limit_ms)
    }
}

impl FromStr for Goal {
    type Err = String;

    fn from_str(text: &str) -> Result<Goal, String> {
        let (name, limit) = text.split_once(':').ok_or_else(|| {
            format!("`{text}` is no goal: write NAME:MILLISECONDS, such as ttft:500")
        })?;
        let name = name.trim();
        if of_goal(name).is_empty() {
            let known: Vec<&str> = latencies().map(|known| known.name).collect();
            let known = known.join(", ");
            return Err(format!(
                "goal `{name}` names no latency: use ttft, tpot, e2el or one of {known}"
            ));
        }
        let limit = limit.trim();
        // A plain number is in milliseconds.
        let seconds = || units::seconds(limit).map(|seconds| seconds * 1e3);
        let limit = limit.parse().ok().or_else(seconds);
        let limit_ms = limit.filter(|ms: &f64| ms.is_finite() && *ms > 0.0);
        let limit_ms = limit_ms.ok_or_else(|| {
            format!("the limit of goal `{text}` must be a number of milliseconds above 0, such as ttft:500 or ttft:0.5s")
        })?;
        Ok(Goal {
            name: name.to_owned(),
            limit_ms,
        })
    }
}

impl Goal {
    /// Checks that no latency of `--goodput` has two limits.
    ///
    /// # Errors
    /// One has.
    pub fn each_once(goals: &[Goal]) -> Result<(), String> {
        let mut names: Vec<&str> = goals.iter().map(|goal| &*goal.name).collect();
        names.sort_unstable();
        match names.windows(2).find(|two| two[0] == two[1]) {
            Some([name, _]) => Err(format!(
                "--goodput: {name} must have one limit, not several"
            )),
            _ => Ok(()),
        }
    }
}

impl Goodput {
    /// Counts the successful requests that met all goals; `None` without goals.
    pub(super) fn of(table: &Table, ok: &[Request], goals: &[Goal]) -> Option<Goodput> {
        let ids = |goal: &Goal| of_goal(&goal.name);
        let with_ids: Vec<_> = goals.iter().map(|goal| (goal, ids(goal))).collect();
        let is_good = ok.iter().map(|of| is_good(table, *of, &with_ids));
        let is_good: Vec<Option<bool>> = is_good.collect();
        let count = |value| is_good.iter().filter(|is_good| **is_good == value).count() as u64;
        (!goals.is_empty()).then(|| Goodput {
            good: count(Some(true)),
            unknown: count(None),
        })
    }
}

/// Whether every sequence of a request met all goals; `None` if a latency is missing.
fn is_good(table: &Table, request: Request, goals: &[(&Goal, Vec<ColumnId>)]) -> Option<bool> {
    let mut all = Some(true);
    for row in request.rows() {
        for (Goal { name, limit_ms }, ids) in goals {
            match ids.iter().find_map(|id| nanos(table, *id, row)) {
                Some(nanos) if nanos as f64 > limit_ms * 1e6 => return Some(false),
                Some(_) => {}
                // A single token has no time between tokens, and meets any goal for it.
                None if name == "tpot" && later_tokens(table, row) == Some(0) => {}
                None => all = None,
            }
        }
    }
    all
}
