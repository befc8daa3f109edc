//! What waits are made of, and what they can be for.

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
}

/// Why a request waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// As many requests ran as the server runs at once.
    Slots,
    /// The KV cache had no room for it.
    Memory,
    /// A batch was under way, or prompts before its own took the prefill.
    Prefill,
    /// Those that are known to have run left room: others, that are not among these requests, took it.
    NotSeen,
    /// The router held it back.
    Router,
    /// The server was down or starting.
    Down,
    /// What is known does not tell.
    Unknown,
}

impl Cause {
    /// All of them.
    pub const ALL: [Cause; 7] = [
        Cause::Slots,
        Cause::Memory,
        Cause::Prefill,
        Cause::NotSeen,
        Cause::Router,
        Cause::Down,
        Cause::Unknown,
    ];

    /// Its name, in files and as a label.
    pub const fn name(self) -> &'static str {
        match self {
            Cause::Slots => "slots",
            Cause::Memory => "kv_memory",
            Cause::Prefill => "prefill_turn",
            Cause::NotSeen => "not_seen_here",
            Cause::Router => "router",
            Cause::Down => "server_down",
            Cause::Unknown => "unknown",
        }
    }

    /// As a table's head.
    pub const fn short(self) -> &'static str {
        match self {
            Cause::Slots => "slots full",
            Cause::Memory => "KV memory",
            Cause::Prefill => "prefill turn",
            Cause::NotSeen => "not seen here",
            Cause::Router => "router",
            Cause::Down => "server down",
            Cause::Unknown => "unknown",
        }
    }

    /// What it is, in a few words.
    pub const fn words(self) -> &'static str {
        match self {
            Cause::Slots => "all slots were taken",
            Cause::Memory => "the KV memory was full",
            Cause::Prefill => "its turn of prefill had not come",
            Cause::NotSeen => "requests that are not seen here had the server",
            Cause::Router => "the router held it back",
            Cause::Down => "the server was down or starting",
            Cause::Unknown => "what it waited for is not known",
        }
    }
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

    /// Tokens that a server keeps room for while it runs: its prompt and most of what it may make. SGLang counts what has been
    /// made, and 10 to 70 % of what is to come.
    pub fn room(&self) -> u64 {
        self.prompt + self.output * 17 / 20
    }
}
