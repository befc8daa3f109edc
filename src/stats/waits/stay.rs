//! The inputs: stays of sequences, and what is known of the server besides.

use super::Cause;
use crate::stats::Interval;

/// A sequence at a server. Times are nanoseconds on any one clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stay {
    /// When it entered the waiting queue.
    pub queued: i64,
    /// When it left the queue for its first batch.
    pub started: i64,
    /// When its first token was made; [`Stay::started`] if unknown.
    pub first: i64,
    /// When it left the server; [`Stay::started`] if unknown.
    pub ended: i64,
    /// Prompt tokens without those that were in the prefix cache.
    pub prompt: u64,
    /// Generated tokens.
    pub output: u64,
}

/// What is known of a server besides its requests.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServerFacts {
    /// The most requests that it runs at once.
    pub slots: Option<u32>,
    /// Tokens that its KV cache holds.
    pub pool: Option<u64>,
    /// The measured share of those in use, with its time, in order of time.
    pub usage: Vec<(i64, f64)>,
    /// When it was down or starting, in order of time.
    pub down: Vec<Interval>,
    /// When there were requests of unknown waiting and running times, as an [`Interval::union`].
    pub untimed: Vec<Interval>,
    /// Whether others may have run of which nothing is known: nothing is concluded from what its requests leave free.
    pub is_incomplete: bool,
    /// The cause of all waiting there, if rows have it (servers of pairs).
    pub cause: Option<Cause>,
}

impl Stay {
    /// Its wait, nanoseconds.
    pub fn waited(&self) -> i64 {
        self.started - self.queued
    }

    /// Whether it is known to have run.
    pub fn runs(&self) -> bool {
        self.ended > self.started
    }

    /// The end of its prefill, if known: at least a nanosecond before its end, so that both are in order.
    pub fn prefill_end(&self) -> Option<i64> {
        Some(self.first.min(self.ended - 1)).filter(|first| *first > self.started)
    }

    /// Tokens of its prompt, and generated tokens; bounded, so that absurd numbers of a server do not overflow sums.
    pub fn tokens(&self) -> (f64, f64) {
        let [prompt, output] = [self.prompt, self.output].map(|tokens| tokens.min(u32::MAX.into()));
        (prompt as f64, output as f64)
    }
}
