//! How requests ended, and how many tokens they moved.

use crate::request::attempt::Failed;
use crate::request::outcome::Outcome;

use super::rows::Rows;
use super::tally::Tally;

/// How many requests, by how they ended.
#[derive(Clone, Debug)]
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

/// What a failed attempt is counted by.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FailedAttempt {
    /// The server, `host:port`.
    pub host: String,
    /// The outcome's name; `open` when it was not over at the last look.
    pub outcome: &'static str,
    /// Status of its response.
    pub status: Option<u16>,
}

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
    pub(super) fn of(requests: &[Rows<'_>]) -> Counts {
        let firsts = || requests.iter().filter_map(|rows| rows.first());
        let count = |outcome| firsts().filter(|row| row.outcome() == outcome).count() as u64;
        let failed = firsts().filter(|row| !row.is_ok());
        let errors = failed.map(|row| row.error.clone().unwrap_or_default());
        let rows = || requests.iter().copied().flatten();
        let mut inconsistencies = rows().filter_map(|row| row.inconsistency.clone());
        let first = inconsistencies.next();
        let inconsistent = inconsistencies.count() as u64 + u64::from(first.is_some());
        Counts {
            requests: requests.len() as u64,
            outcomes: Outcome::ALL.map(|outcome| (outcome, count(outcome))),
            given_up: firsts().filter(|row| row.is_given_up()).count() as u64,
            errors: errors.collect(),
            attempts: firsts().filter_map(|row| row.attempts).sum(),
            retried: firsts().filter(|row| row.attempts > Some(1)).count() as u64,
            failed_attempts: firsts()
                .flat_map(|row| row.failed_attempts.iter().flatten())
                .map(FailedAttempt::of)
                .collect(),
            rows: rows().count() as u64,
            inconsistent: (inconsistent, first),
        }
    }

    /// Adds those of later requests.
    pub fn add(&mut self, more: Counts) {
        self.requests += more.requests;
        for ((_, count), (_, more)) in self.outcomes.iter_mut().zip(more.outcomes) {
            *count += more;
        }
        self.given_up += more.given_up;
        self.errors.add(more.errors);
        self.attempts += more.attempts;
        self.retried += more.retried;
        self.failed_attempts.add(more.failed_attempts);
        self.rows += more.rows;
        let (inconsistent, first) = &mut self.inconsistent;
        *inconsistent += more.inconsistent.0;
        *first = first.take().or(more.inconsistent.1);
    }

    /// Requests that went well.
    pub fn ok(&self) -> u64 {
        let ok = self
            .outcomes
            .iter()
            .find(|(outcome, _)| *outcome == Outcome::Ok);
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

impl FailedAttempt {
    fn of(failed: &Failed) -> FailedAttempt {
        FailedAttempt {
            host: failed.host.clone(),
            outcome: failed.outcome.map_or("open", Outcome::name),
            status: failed.status,
        }
    }
}

impl Tokens {
    pub(super) fn of(ok: &[Rows<'_>]) -> Tokens {
        let mut tokens = Tokens::default();
        for first in ok.iter().filter_map(|rows| rows.first()) {
            add(&mut tokens.input, first.request_prompt_tokens);
            let told = first.request_output_tokens;
            tokens.output_unknown += u64::from(told.is_none());
            add(&mut tokens.output, told);
        }
        tokens
    }

    /// Adds those of other requests.
    pub fn add(&mut self, more: Tokens) {
        add(&mut self.input, more.input);
        add(&mut self.output, more.output);
        self.output_unknown += more.output_unknown;
    }

    /// Both, where both are known.
    pub fn total(&self) -> Option<u64> {
        Some(self.input?.saturating_add(self.output?))
    }
}

fn add(total: &mut Option<u64>, part: Option<u64>) {
    if let Some(part) = part {
        *total = Some(total.unwrap_or(0).saturating_add(part));
    }
}
