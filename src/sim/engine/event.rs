//! The engine's input, requests, and its output: events and the load.

use std::sync::Arc;

use crate::clock::Stamp;

/// A request as the engine sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Chosen by the caller; never used twice.
    pub id: u64,
    /// Its prompt.
    pub prompt: Prompt,
    /// Tokens to generate; 0 counts as 1, since a prefill ends with a token.
    pub output_tokens: u32,
}

/// A prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// Its token ids; prompts with a common prefix share its KV cache.
    Tokens(Arc<[u32]>),
    /// A prompt known only by its length, as recorded rows hold no prompts.
    Counted {
        /// The number of its tokens.
        tokens: u32,
        /// How many of them the prefix cache has, unless it is off.
        cached: u32,
    },
}

impl Prompt {
    /// The number of its tokens.
    pub fn tokens(&self) -> u64 {
        match self {
            Prompt::Tokens(tokens) => tokens.len() as u64,
            Prompt::Counted { tokens, .. } => u64::from(*tokens),
        }
    }
}

/// A change of a request's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The request's id.
    pub id: u64,
    /// When it happened.
    pub at: Stamp,
    /// What happened.
    pub kind: EventKind,
}

/// What can happen to a request, in this order. After a retraction it is admitted again and goes on with [`EventKind::Token`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// The scheduler picked it up and put it into the waiting queue.
    Queued,
    /// The queue was full, or the request could never fit into the KV cache. Ends it.
    Rejected,
    /// Decode server of a pair: memory in the KV cache was reserved.
    Reserved,
    /// Decode server of a pair: the KV cache has arrived, and the request waits for a slot.
    Arrived,
    /// It left the queue: its prefill began, or, on a decode server, its decode.
    Admitted {
        /// Prompt tokens found in the prefix cache.
        cached: u32,
    },
    /// A token was generated, the first at the end of prefill.
    Token {
        /// Whether it is the last one, which ends the request.
        last: bool,
    },
    /// The KV cache ran out during decode: the request went back into the queue, and its tokens are prefilled again.
    Retracted,
    /// The KV cache of the prefill server never arrived. Ends it. Reported by `handover`, not by the engine.
    Lost,
    /// It was aborted. Ends it.
    Aborted,
}

impl EventKind {
    /// Whether the request ends with it.
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

/// The engine's load at one point in time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Load {
    /// Requests in prefill or decode.
    pub running: usize,
    /// Requests in the waiting queue, and those that the scheduler has not picked up yet.
    pub waiting: usize,
    /// Decode server of a pair: requests that wait for memory.
    pub unreserved: usize,
    /// Decode server of a pair: requests with memory whose KV cache has not arrived.
    pub in_transfer: usize,
    /// Tokens that the waiting requests have to prefill.
    pub waiting_tokens: u64,
    /// Tokens of the KV cache that running requests hold.
    pub used_tokens: u64,
    /// Tokens of the KV cache that only the prefix cache holds: they are evicted when memory is needed.
    pub evictable_tokens: u64,
    /// The share of its tokens that the last prefill batch found in the prefix cache.
    pub cache_hit_rate: f64,
    /// Tokens a second of the last decode step; 0 when idle.
    pub gen_throughput: f64,
}
