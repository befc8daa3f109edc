//! What waits are made of.

use super::Cause;
use crate::stats::Interval;

/// A sequence's way through a server, nanoseconds on any one clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stay {
    /// It entered the waiting queue.
    pub queued: i64,
    /// It left the queue into its first batch.
    pub started: i64,
    /// Its first token was made; [`Stay::started`] where nobody knows.
    pub first: i64,
    /// It held its place until then; [`Stay::started`] where nobody knows.
    pub ended: i64,
    /// Prompt tokens that it needed room for: without those that the prefix cache had.
    pub prompt: u64,
    /// Tokens that it made.
    pub output: u64,
}

/// What is known of a server beside its requests.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Known {
    /// Requests that it runs at once.
    pub slots: Option<u32>,
    /// Tokens that its KV cache holds.
    pub pool: Option<u64>,
    /// The share of those in use, by the nanosecond at which it was said, in order of time.
    pub usage: Vec<(i64, f64)>,
    /// When it was down or starting, in order of time.
    pub down: Vec<Interval>,
    /// When requests were there of which nobody knows when they waited and ran, as their [`Interval::union`].
    pub untimed: Vec<Interval>,
    /// What all of its requests waited for, where they tell.
    pub cause: Option<Cause>,
}

impl Stay {
    /// How long it waited, nanoseconds.
    pub fn waited(&self) -> i64 {
        self.started - self.queued
    }

    /// Whether it is known to have run.
    pub fn runs(&self) -> bool {
        self.ended > self.started
    }

    /// When its prefill was over, where it is known to have had one: before its end, which may be the same moment.
    pub fn first_seen(&self) -> Option<i64> {
        Some(self.first.min(self.ended - 1)).filter(|first| *first > self.started)
    }

    /// Tokens of its prompt, and those that it makes: whatever a server claims, sums of these are numbers.
    pub fn tokens(&self) -> (f64, f64) {
        let [prompt, output] = [self.prompt, self.output].map(|tokens| tokens.min(u32::MAX.into()));
        (prompt as f64, output as f64)
    }

    /// Tokens that it needs room for to begin.
    pub fn room(&self) -> u64 {
        let (prompt, output) = self.tokens();
        (prompt + output) as u64
    }
}
