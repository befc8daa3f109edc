//! The summary of a run (docs/SUMMARY.md).
//!
//! Failed requests are counted by themselves and enter no latency and no token figure. Rows are per sequence; values of the whole
//! request count once. What was not measured is null, never 0.

mod counts;
mod failures;
mod flow;
mod goodput;
mod json;
mod latency;
mod spent;
mod summary;
mod text;

pub use counts::{Counts, FailedAttempt, Tally, Tokens, is_given_up, outcome_of};
pub use failures::FailureKind;
pub use flow::{Flow, OverTime};
pub use goodput::{Goal, Goodput};
pub use json::{Figure, goals_ms};
pub use latency::{Latencies, Latency, LatencyId};
pub use spent::{PartSpent, TimeSpent};
pub use summary::{Group, RunFacts, Summary};

#[cfg(test)]
pub(super) mod tests;
