//! Goodput: requests a second that kept every goal (DistServe's definition, as bench_serving's `--goodput`).

use std::str::FromStr;

use crate::request::column::{Unit, Value};
use crate::request::columns::COLUMNS;
use crate::request::row::Row;

use super::latency::{FROM_THE_CLIENT, end_to_end, first_token};
use super::rows::Rows;

/// A goal of one request, written `name:milliseconds`: `ttft:500`. Names are those of vLLM's and SGLang's
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

impl FromStr for Goal {
    type Err = String;

    fn from_str(text: &str) -> Result<Goal, String> {
        let (name, limit) = text.split_once(':').ok_or_else(|| {
            format!("`{text}` is no goal: write NAME:MILLISECONDS, such as ttft:500")
        })?;
        let name = name.trim();
        if !is_latency(name) {
            let known: Vec<&str> = latency_names().collect();
            let known = known.join(", ");
            return Err(format!(
                "goal `{name}` names no latency: use ttft, tpot, e2el or one of {known}"
            ));
        }
        let limit = limit.trim().parse().ok();
        let most_ms = limit.filter(|ms: &f64| ms.is_finite() && *ms > 0.0);
        let most_ms = most_ms.ok_or_else(|| {
            format!("the limit of goal `{text}` must be a number of milliseconds above 0, such as ttft:500")
        })?;
        Ok(Goal {
            name: name.to_owned(),
            most_ms,
        })
    }
}

impl Goodput {
    /// `None` without goals.
    pub fn of(ok: &[Rows<'_>], goals: &[Goal]) -> Option<Goodput> {
        if goals.is_empty() {
            return None;
        }
        let mut goodput = Goodput {
            good: 0,
            unknown: 0,
        };
        for rows in ok {
            match kept(rows, goals) {
                Some(true) => goodput.good += 1,
                Some(false) => {}
                None => goodput.unknown += 1,
            }
        }
        Some(goodput)
    }

    /// Adds those of other requests.
    pub fn add(&mut self, more: &Goodput) {
        self.good += more.good;
        self.unknown += more.unknown;
    }
}

/// Whether every sequence of a request kept all goals; `None` when that cannot be known.
fn kept(rows: Rows<'_>, goals: &[Goal]) -> Option<bool> {
    let mut all = Some(true);
    for row in rows {
        for Goal { name, most_ms } in goals {
            match latency(row, name) {
                Some(nanos) if nanos as f64 > most_ms * 1e6 => return Some(false),
                Some(_) => {}
                // One token has no time between tokens, and so keeps any goal for it.
                None if name == "tpot" && row.later_tokens() == Some(0) => {}
                None => all = None,
            }
        }
    }
    all
}

fn latency(row: &Row, name: &str) -> Option<i64> {
    match name {
        "ttft" => return first_token(row),
        "e2el" => return end_to_end(row),
        _ => {}
    }
    if let Some((.., period)) = FROM_THE_CLIENT.iter().find(|(known, ..)| *known == name) {
        return row.timeline.nanos(*period);
    }
    let column = COLUMNS
        .iter()
        .find(|column| column.name == name && column.unit == Unit::Latency)?;
    match (column.get)(row) {
        Value::Nanos(nanos) => Some(nanos),
        _ => None,
    }
}

fn is_latency(name: &str) -> bool {
    name == "e2el" || latency_names().any(|known| known == name)
}

fn latency_names() -> impl Iterator<Item = &'static str> {
    let columns = COLUMNS.iter().filter(|column| column.unit == Unit::Latency);
    columns
        .map(|column| column.name)
        .chain(FROM_THE_CLIENT.iter().map(|(name, ..)| *name))
}
