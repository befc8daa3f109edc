//! How requests ended, and how many tokens they moved.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::request::attempt::told;
use crate::request::columns::ColumnId;
use crate::request::outcome::{GIVEN_UP, Outcome};
use crate::table::Table;

use super::request::Request;

/// How many requests, by how they ended.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// All requests.
    pub requests: u64,
    /// Each outcome with its count, in the order of reports, also those that did not occur.
    pub outcomes: [(Outcome, u64); Outcome::ALL.len()],
    /// Those that the generator gave up when its run was stopped: neither ok nor failed.
    pub given_up: u64,
    /// What was said of those that are not ok.
    pub errors: Tally<String>,
    /// How many times they were sent to a server.
    pub attempts: u64,
    /// Requests that took more than one attempt.
    pub retried: u64,
    /// Attempts that did not answer, by server, outcome and status.
    pub failed_attempts: Tally<FailedAttempt>,
    /// Rows, one a sequence.
    pub rows: u64,
    /// Rows whose moments are out of order, and what the first of them says.
    pub inconsistent: (u64, Option<String>),
}

/// How often each of some things was.
pub type Tally<K> = BTreeMap<K, u64>;

/// Each with its count, most frequent first.
pub fn most_frequent<K>(of: &Tally<K>) -> impl Iterator<Item = (&K, u64)> {
    let mut all: Vec<(&K, u64)> = of.iter().map(|(what, count)| (what, *count)).collect();
    all.sort_by_key(|(_, count)| Reverse(*count));
    all.into_iter()
}

/// What a failed attempt is counted by: the server, `host:port`; the outcome's name, `open` when it was not over at the last
/// look; and the status of its response.
pub type FailedAttempt = (String, &'static str, Option<u16>);

/// Tokens of requests that went well.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tokens {
    /// Of the prompts, each prompt once; `None` when no request told.
    pub input: Option<u64>,
    /// Generated; `None` when no request told.
    pub output: Option<u64>,
    /// Requests of which nobody told how many tokens they generated; they are not in `output`.
    pub output_unknown: u64,
}

impl Counts {
    pub(super) fn of(table: &Table, requests: &[Request]) -> Counts {
        let mut counts = Counts {
            requests: requests.len() as u64,
            outcomes: Outcome::ALL.map(|outcome| (outcome, 0)),
            ..Counts::default()
        };
        for request in requests {
            let row = request.row();
            let outcome = outcome_of(table, row);
            for (of, count) in &mut counts.outcomes {
                *count += u64::from(*of == outcome);
            }
            if !request.is_ok {
                let error = table.text(ColumnId::error, row);
                *counts.errors.entry(error.to_owned()).or_default() += 1;
                counts.given_up += u64::from(is_given_up(table, row));
            }
            let attempts = table
                .whole(ColumnId::attempts, row)
                .unwrap_or(0)
                .unsigned_abs();
            counts.attempts += attempts;
            counts.retried += u64::from(attempts > 1);
            for failed in told(table.text(ColumnId::failed_attempts, row)) {
                let outcome = failed.outcome.map_or("open", Outcome::name);
                let of = (failed.host, outcome, failed.status);
                *counts.failed_attempts.entry(of).or_default() += 1;
            }
            for row in request.rows() {
                counts.rows += 1;
                let wrong = table.text(ColumnId::inconsistency, row);
                let (rows, first) = &mut counts.inconsistent;
                if !wrong.is_empty() {
                    *rows += 1;
                    first.get_or_insert_with(|| wrong.to_owned());
                }
            }
        }
        counts
    }

    /// Requests that went well.
    pub fn ok(&self) -> u64 {
        let mut all = self.outcomes.iter();
        let ok = all.find(|(outcome, _)| *outcome == Outcome::Ok);
        ok.map_or(0, |(_, count)| *count)
    }

    /// Requests that failed.
    pub fn failed(&self) -> u64 {
        self.requests - self.ok() - self.given_up
    }

    /// Share of requests that went well, of all; `None` of no requests.
    pub fn success_rate(&self) -> Option<f64> {
        (self.requests > 0).then(|| self.ok() as f64 / self.requests as f64)
    }
}

/// How the request of a row ended.
pub fn outcome_of(table: &Table, row: usize) -> Outcome {
    match table.text(ColumnId::outcome, row) {
        "" if table.is_ok(row) => Outcome::Ok,
        name => Outcome::named(name).unwrap_or(Outcome::ProxyError),
    }
}

/// Whether the generator gave the request of a row up because its run was stopped.
pub fn is_given_up(table: &Table, row: usize) -> bool {
    outcome_of(table, row) == Outcome::ClientAbort && table.text(ColumnId::error, row) == GIVEN_UP
}

impl Tokens {
    pub(super) fn of(table: &Table, requests: impl Iterator<Item = Request>) -> Tokens {
        use ColumnId::{
            actual_output_tokens, actual_prompt_tokens, request_output_tokens,
            request_prompt_tokens,
        };
        let mut tokens = Tokens::default();
        for request in requests {
            let tell = |column| table.whole(column, request.row());
            // Rows of before there was such a column tell those of one sequence.
            let is_one = request.rows().len() == 1;
            let of = |of_request, of_row| {
                let told = tell(of_request).or_else(|| tell(of_row).filter(|_| is_one));
                told.map(i64::unsigned_abs)
            };
            let input = of(request_prompt_tokens, actual_prompt_tokens);
            let output = of(request_output_tokens, actual_output_tokens);
            tokens.output_unknown += u64::from(output.is_none());
            tokens.input = sum(tokens.input, input);
            tokens.output = sum(tokens.output, output);
        }
        tokens
    }

    /// Both, where both are known.
    pub fn total(&self) -> Option<u64> {
        Some(self.input?.saturating_add(self.output?))
    }
}

/// What is known of both.
fn sum(total: Option<u64>, part: Option<u64>) -> Option<u64> {
    part.map(|part| total.unwrap_or(0).saturating_add(part))
        .or(total)
}
