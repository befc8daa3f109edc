//! What goes into the engine and what comes out of it.

use std::sync::Arc;

use crate::clock::Stamp;

/// A request as the engine sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Whatever the caller tells it by; never used twice.
    pub id: u64,
    /// What it asks.
    pub prompt: Prompt,
    /// Tokens to make; 0 counts as 1, since a prefill ends with a token.
    pub output_tokens: u32,
}

/// A prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// Its tokens; equal beginnings of prompts share their place in the KV cache.
    Tokens(Arc<[u32]>),
    /// Of rows, which hold no prompts: only how many tokens, and how many of them a prefix cache spares it.
    Counted {
        /// All of them.
        tokens: u32,
        /// Those spared, unless the prefix cache is off.
        cached: u32,
    },
}

impl Prompt {
    /// How many tokens it has.
    pub fn tokens(&self) -> u64 {
        match self {
            Prompt::Tokens(tokens) => tokens.len() as u64,
            Prompt::Counted { tokens, .. } => u64::from(*tokens),
        }
    }
}

impl<T: Into<Arc<[u32]>>> From<T> for Prompt {
    fn from(tokens: T) -> Prompt {
        Prompt::Tokens(tokens.into())
    }
}

/// Something that happened to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The request's id.
    pub id: u64,
    /// When.
    pub at: Stamp,
    /// What.
    pub kind: EventKind,
}

/// What can happen to a request, in this order; from a retraction on it is admitted again and goes on with
/// [`EventKind::Token`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// The scheduler picked it up: it is in the waiting queue.
    Queued,
    /// The queue was at its limit, or it could never fit into the KV cache: its end.
    Rejected,
    /// On a server that decodes what others have prefilled: it has room in the KV cache.
    Reserved,
    /// And what was prefilled has come there: it waits for a slot.
    Arrived,
    /// It left the queue: its prefill began, or where another server has prefilled it, it runs.
    Admitted {
        /// Prompt tokens that the prefix cache spared it.
        cached: u32,
    },
    /// A token was made, the first at the end of prefill.
    Token {
        /// The last one: its end.
        last: bool,
    },
    /// The KV cache ran out in decode: it went back into the queue, and what it has made is prefilled again.
    Retracted,
    /// What another server has prefilled never came: its end. Told by whoever waited for it, not by the engine.
    Lost,
    /// It was taken out: its end.
    Aborted,
}

impl EventKind {
    /// Whether nothing comes after it.
    pub fn is_end(self) -> bool {
        matches!(
            self,
            EventKind::Rejected
                | EventKind::Token { last: true }
                | EventKind::Lost
                | EventKind::Aborted
        )
    }
}

/// The engine's load at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Requests in prefill or decode.
    pub running: usize,
    /// Requests in the waiting queue, and those the scheduler has yet to pick up.
    pub waiting: usize,
    /// Those of them that were retracted.
    pub retracted: usize,
    /// Requests that wait for room in the KV cache, of those that another server prefills.
    pub unreserved: usize,
    /// Those that have room, into which nothing has come yet.
    pub coming: usize,
    /// Tokens that the waiting requests have to prefill.
    pub waiting_tokens: u64,
    /// Tokens of the KV cache that running requests hold.
    pub used_tokens: u64,
    /// Tokens of the KV cache that only the prefix cache holds: they make room for others.
    pub evictable_tokens: u64,
    /// Tokens that the last prefill batch found in the prefix cache.
    pub hit_tokens: u64,
    /// Tokens that the last prefill batch had to compute.
    pub computed_tokens: u64,
    /// Tokens of the last stretch of decode steps, and how long it took, nanoseconds; 0 when idle.
    pub decoded: (u64, i64),
}

impl Load {
    /// Tokens a second of the last stretch of decode steps.
    pub fn gen_throughput(&self) -> f64 {
        let (tokens, nanos) = self.decoded;
        tokens as f64 * 1e9 / nanos.max(1) as f64
    }

    /// The share of its tokens that the last prefill batch found in the prefix cache.
    pub fn cache_hit_rate(&self) -> f64 {
        let all = self.hit_tokens + self.computed_tokens;
        self.hit_tokens as f64 / all.max(1) as f64
    }
}
