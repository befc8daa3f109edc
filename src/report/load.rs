//! The summary of a run (docs/SUMMARY.md).
//!
//! Failed requests are counted by themselves and enter no latency and no token figure. Rows are per sequence; values of the whole
//! request count once. What was not measured is null, never 0.

mod counts;
mod flow;
mod goodput;
mod json;
mod latency;
mod spent;
mod summary;
mod text;

pub use counts::{Counts, FailedAttempt, FailureKind, Tally, Tokens, is_given_up, outcome_of};
pub use flow::{Flow, OverTime, RunFacts};
pub use goodput::{Goal, Goodput};
pub use json::{Figure, goals_ms};
pub use latency::{Latencies, Latency, latencies};
pub use spent::{PartSpent, TimeSpent};
pub use summary::{Group, Summary};

#[cfg(test)]
pub(super) mod tests;
