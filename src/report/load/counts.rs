//! The requests of a table, counts of them by outcome and of their tokens; how those failed that did, where they were last seen, and how
//! long they had waited.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Range;

use crate::clock::seconds;
use crate::request::stages::place;
use crate::request::{Breakdown, ColumnId, GIVEN_UP, Outcome, Row, StageSet, parse_failed};
use crate::stats::Summary;
use crate::table::Table;
use crate::units::duration;

/// A request of a table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    /// The index of its first row.
    pub row: u32,
    /// The number of its rows.
    pub rows: u32,
    /// Whether it succeeded.
    pub is_ok: bool,
    /// Whether it arrived within the window.
    pub is_inside: bool,
    /// Whether it ended within the window.
    pub ends_inside: bool,
}

impl Request {
    /// The index of its first row.
    pub fn row(&self) -> usize {
        self.row as usize
    }

    /// The indices of its rows.
    pub fn rows(&self) -> Range<usize> {
        self.row()..self.row() + self.rows as usize
    }
}

/// Counts of requests.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// All requests.
    pub requests: u64,
    /// The number of each of [`Outcome::ALL`].
    pub outcomes: [u64; Outcome::ALL.len()],
    /// Requests that the generator gave up when its run was stopped: neither ok nor failed.
    pub given_up: u64,
    /// The errors of requests that are not ok.
    pub errors: Tally<String>,
    /// The attempts at all requests.
    pub attempts: u64,
    /// Requests that took more than one attempt.
    pub retried: u64,
    /// Failed attempts, by server, outcome and status.
    pub failed_attempts: Tally<FailedAttempt>,
    /// Rows, one per sequence.
    pub rows: u64,
    /// The number of rows with impossible values, and the `inconsistency` of the first.
    pub inconsistent: (u64, Option<String>),
}

/// The number of occurrences of each key.
pub type Tally<K> = BTreeMap<K, u64>;

/// Returns the keys with their counts, most frequent first.
pub fn most_frequent<K>(tally: &Tally<K>) -> impl Iterator<Item = (&K, u64)> {
    let mut all: Vec<(&K, u64)> = tally.iter().map(|(key, count)| (key, *count)).collect();
    all.sort_by_key(|(_, count)| Reverse(*count));
    all.into_iter()
}

/// The key of a failed attempt: the server (`host:port`), the outcome's name (`open` if it had not ended when last seen), and the
/// status of its response.
pub type FailedAttempt = (String, &'static str, Option<u16>);

/// The tokens of successful requests.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tokens {
    /// Prompt tokens, each prompt once; `None` if no request reported any.
    pub input: Option<u64>,
    /// Generated tokens; `None` if no request reported any.
    pub output: Option<u64>,
    /// The number of requests that did not report their generated tokens, and are not in `output`.
    pub output_unknown: u64,
}

impl Counts {
    pub(super) fn of(table: &Table, requests: &[Request]) -> Counts {
        let mut counts = Counts {
            requests: requests.len() as u64,
            ..Counts::default()
        };
        for request in requests {
            let row = request.row();
            counts.outcomes[outcome_of(table, row) as usize] += 1;
            if !request.is_ok {
                let error = table.text(ColumnId::error, row);
                *counts.errors.entry(error.to_owned()).or_default() += 1;
                counts.given_up += u64::from(is_given_up(table, row));
            }
            let attempts = table.integer(ColumnId::attempts, row);
            let attempts = attempts.map_or(0, i64::unsigned_abs);
            counts.attempts = counts.attempts.saturating_add(attempts);
            counts.retried += u64::from(attempts > 1);
            for failed in parse_failed(table.text(ColumnId::failed_attempts, row)) {
                let outcome = failed.outcome.map_or("open", Outcome::name);
                let key = (failed.host, outcome, failed.status);
                *counts.failed_attempts.entry(key).or_default() += 1;
            }
            for row in request.rows() {
                counts.rows += 1;
                let inconsistency = table.text(ColumnId::inconsistency, row);
                let (rows, first) = &mut counts.inconsistent;
                if !inconsistency.is_empty() {
                    *rows += 1;
                    first.get_or_insert_with(|| inconsistency.to_owned());
                }
            }
        }
        counts
    }

    /// The number of successful requests.
    pub fn ok(&self) -> u64 {
        self.outcomes[Outcome::Ok as usize]
    }

    /// The number of failed requests, without those that were given up.
    pub fn failed(&self) -> u64 {
        self.requests - self.ok() - self.given_up
    }

    /// The share of successful requests; `None` if there were no requests.
    pub fn success_rate(&self) -> Option<f64> {
        (self.requests > 0).then(|| self.ok() as f64 / self.requests as f64)
    }
}

/// Returns the outcome of a row's request.
pub fn outcome_of(table: &Table, row: usize) -> Outcome {
    match table.text(ColumnId::outcome, row) {
        "" if table.is_ok(row) => Outcome::Ok,
        name => Outcome::named(name).unwrap_or(Outcome::ProxyError),
    }
}

/// Whether the generator gave up a row's request because its run was stopped.
pub fn is_given_up(table: &Table, row: usize) -> bool {
    outcome_of(table, row) == Outcome::ClientAbort && table.text(ColumnId::error, row) == GIVEN_UP
}

impl Tokens {
    pub(super) fn of(table: &Table, requests: impl Iterator<Item = Request>) -> Tokens {
        let mut tokens = Tokens::default();
        for request in requests {
            let cell = |column| table.integer(column, request.row());
            // Files of older versions have only the column of the sequence.
            let is_single = request.rows().len() == 1;
            let tokens_of = |of_request, of_row| {
                let count = cell(of_request).or_else(|| cell(of_row).filter(|_| is_single));
                count.map(i64::unsigned_abs)
            };
            let input = tokens_of(
                ColumnId::request_prompt_tokens,
                ColumnId::actual_prompt_tokens,
            );
            let output = tokens_of(
                ColumnId::request_output_tokens,
                ColumnId::actual_output_tokens,
            );
            tokens.output_unknown += u64::from(output.is_none());
            tokens.input = sum(tokens.input, input);
            tokens.output = sum(tokens.output, output);
        }
        tokens
    }

    /// Prompt and generated tokens; `None` if either is unknown.
    pub fn total(&self) -> Option<u64> {
        Some(self.input?.saturating_add(self.output?))
    }
}

/// Adds what is known; `None` if neither is.
fn sum(total: Option<u64>, part: Option<u64>) -> Option<u64> {
    part.map(|part| total.unwrap_or(0).saturating_add(part))
        .or(total)
}

/// Requests with the same outcome that were last seen at the same stage.
#[derive(Clone, Debug)]
pub struct FailureKind {
    /// The outcome.
    pub outcome: Outcome,
    /// Where they were last seen.
    pub last_seen: Option<StageSet>,
    /// The number of requests.
    pub requests: u64,
    /// How long they had waited, seconds; see [`waited`].
    pub waited: Option<Summary>,
}

/// The most kinds that a sentence names.
const MAX_NAMED: usize = 3;

impl FailureKind {
    /// The kinds of failures of requests, most frequent first.
    pub(super) fn all(table: &Table, requests: &[Request]) -> Vec<FailureKind> {
        let mut by_kind: BTreeMap<_, Vec<Row>> = BTreeMap::new();
        let is_failed = |of: &&Request| !of.is_ok && !is_given_up(table, of.row());
        for request in requests.iter().filter(is_failed) {
            let row = table.row(request.row());
            let kind = (row.outcome().name(), row.last_seen());
            by_kind.entry(kind).or_default().push(row);
        }
        let kind = |((_, last_seen), rows): ((_, Option<StageSet>), Vec<Row>)| {
            Some(FailureKind {
                outcome: rows.first()?.outcome(),
                last_seen,
                requests: rows.len() as u64,
                waited: Summary::of(rows.iter().filter_map(waited)),
            })
        };
        let mut kinds: Vec<FailureKind> = by_kind.into_iter().filter_map(kind).collect();
        kinds.sort_by_key(|kind| Reverse(kind.requests));
        kinds
    }

    /// The most frequent of these kinds, and the numbers of other failed requests by outcome.
    pub fn list(kinds: &[FailureKind]) -> String {
        let (named, others) = kinds.split_at(kinds.len().min(MAX_NAMED));
        let mut shown: Vec<String> = named.iter().map(FailureKind::text).collect();
        if !others.is_empty() {
            let mut by_outcome: Tally<&str> = BTreeMap::new();
            for kind in others {
                *by_outcome.entry(kind.outcome.name()).or_default() += kind.requests;
            }
            let others = most_frequent(&by_outcome);
            let others = others.map(|(outcome, count)| format!("{count} {outcome}"));
            let others: Vec<String> = others.collect();
            shown.push(format!("others: {}", others.join(", ")));
        }
        shown.join("; ")
    }

    fn text(&self) -> String {
        let mut text = format!("{} {}", self.requests, self.outcome.name());
        if let Some(last_seen) = self.last_seen {
            text.push_str(&format!(", last seen {}", place(last_seen)));
        }
        if let Some(waited) = &self.waited {
            text.push_str(&format!(", after {} on average", duration(waited.mean)));
        }
        text
    }
}

/// The time that [`TimeSpent`] splits into stages, seconds: from the schedule to the end; in a proxy's rows from the send or arrival.
fn waited(row: &Row) -> Option<f64> {
    Breakdown::of(row).map(|breakdown| seconds(breakdown.total_nanos))
}
