//! Goodput: requests a second that kept every goal (DistServe's definition, as bench_serving's `--goodput`).

use std::fmt;
use std::str::FromStr;

use crate::table::Table;
use crate::units;

use super::latency::{LatencyId, end_to_end, first_token, later_tokens};
use super::request::Request;

/// A goal of one request, written `name:milliseconds` or with a unit: `ttft:500`, `ttft:0.5s`. Names are those of vLLM's and SGLang's
/// clients (`ttft` and `e2el` from the send as the client reads them, `tpot`), or a latency of the summary.
#[derive(Clone, Debug, PartialEq)]
pub struct Goal {
    /// The latency.
    pub name: String,
    /// The most it may be, milliseconds.
    pub most_ms: f64,
}

/// How many requests kept all goals.
#[derive(Clone, Debug)]
pub struct Goodput {
    /// Requests that kept them all.
    pub good: u64,
    /// Requests that went well, but lack a latency that a goal names; not good.
    pub unknown: u64,
}

impl fmt::Display for Goal {
    /// As it is read.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.name, self.most_ms)
    }
}

impl FromStr for Goal {
    type Err = String;

    fn from_str(text: &str) -> Result<Goal, String> {
        let (name, limit) = text.split_once(':').ok_or_else(|| {
            format!("`{text}` is no goal: write NAME:MILLISECONDS, such as ttft:500")
        })?;
        let name = name.trim();
        if name != "e2el" && LatencyId::named(name).is_none() {
            let known: Vec<&str> = LatencyId::all().map(LatencyId::name).collect();
            let known = known.join(", ");
            return Err(format!(
                "goal `{name}` names no latency: use ttft, tpot, e2el or one of {known}"
            ));
        }
        let limit = limit.trim();
        // A plain number is of milliseconds.
        let seconds = || units::seconds(limit).map(|seconds| seconds * 1e3);
        let limit = limit.parse().ok().or_else(seconds);
        let most_ms = limit.filter(|ms: &f64| ms.is_finite() && *ms > 0.0);
        let most_ms = most_ms.ok_or_else(|| {
            format!("the limit of goal `{text}` must be a number of milliseconds above 0, such as ttft:500 or ttft:0.5s")
        })?;
        Ok(Goal {
            name: name.to_owned(),
            most_ms,
        })
    }
}

impl Goal {
    /// Checks the goals of `--goodput`.
    ///
    /// # Errors
    /// A latency has two limits.
    pub fn each_once(goals: &[Goal]) -> Result<(), String> {
        let mut names: Vec<&str> = goals.iter().map(|goal| &*goal.name).collect();
        names.sort_unstable();
        match names.windows(2).find(|two| two[0] == two[1]) {
            Some(two) => Err(format!(
                "--goodput: {} must have one limit, not several",
                two[0]
            )),
            None => Ok(()),
        }
    }
}

impl Goodput {
    /// Of requests that went well; `None` without goals.
    pub(super) fn of(table: &Table, ok: &[Request], goals: &[Goal]) -> Option<Goodput> {
        let known = goals.iter();
        let known = known.map(|goal| (goal, LatencyId::named(&goal.name)));
        let known: Vec<(&Goal, Option<LatencyId>)> = known.collect();
        let kept = ok.iter().map(|request| kept(table, *request, &known));
        let kept: Vec<Option<bool>> = kept.collect();
        let count = |wanted| kept.iter().filter(|kept| **kept == wanted).count() as u64;
        (!goals.is_empty()).then(|| Goodput {
            good: count(Some(true)),
            unknown: count(None),
        })
    }
}

/// Whether every sequence of a request kept all goals; `None` when that cannot be known.
fn kept(table: &Table, request: Request, goals: &[(&Goal, Option<LatencyId>)]) -> Option<bool> {
    let mut all = Some(true);
    for row in request.rows() {
        for (Goal { name, most_ms }, id) in goals {
            match latency(table, row, name, *id) {
                Some(nanos) if nanos as f64 > most_ms * 1e6 => return Some(false),
                Some(_) => {}
                // One token has no time between tokens, and so keeps any goal for it.
                None if name == "tpot" && later_tokens(table, row) == Some(0) => {}
                None => all = None,
            }
        }
    }
    all
}

/// That of a goal of this name, looked up once for all rows where it is one of the summary's.
fn latency(table: &Table, row: usize, name: &str, id: Option<LatencyId>) -> Option<i64> {
    match name {
        "ttft" => first_token(table, row),
        "e2el" => end_to_end(table, row),
        _ => id?.nanos(table, row),
    }
}
