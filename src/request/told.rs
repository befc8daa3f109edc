//! What an engine told of a sequence outside of its response: in its trace or its log.

use crate::clock::Stamp;

use super::sequence::TimingSource;

/// What one source told of one sequence. Stamps are on the engine's clock.
#[derive(Clone, Debug, PartialEq)]
pub struct Told {
    /// Who told it.
    pub source: TimingSource,
    /// The engine's whole id of the sequence, which is that of the response.
    pub rid: Option<String>,
    /// The trace that the engine's spans are part of.
    pub trace: Option<u128>,
    /// The span above the engine's: that of whoever sent it the request.
    pub parent: Option<u64>,
    /// The request id (`x-request-id`) that a router's span of that trace names.
    pub request_id: Option<String>,
    /// The server received the request.
    pub received: Option<Stamp>,
    /// It entered the waiting queue.
    pub queue_start: Option<Stamp>,
    /// It left the waiting queue for its first batch; `None` of one that was aborted there.
    pub queue_end: Option<Stamp>,
    /// Time in the waiting queue, retractions included, nanoseconds.
    pub queue_nanos: Option<i64>,
    /// Prefill finished.
    pub prefill_end: Option<Stamp>,
    /// The first token was made.
    pub first_token: Option<Stamp>,
    /// The engine's own end.
    pub finished: Option<Stamp>,
    /// Prompt tokens.
    pub prompt_tokens: Option<u64>,
    /// Prompt tokens served from the cache.
    pub cached_tokens: Option<u64>,
    /// Tokens generated.
    pub output_tokens: Option<u64>,
    /// Times the scheduler took the sequence out of the batch again.
    pub num_retractions: Option<u64>,
    /// Data-parallel rank.
    pub dp_rank: Option<u64>,
}

impl Told {
    /// Of a source, nothing yet.
    pub fn of(source: TimingSource) -> Told {
        Told {
            source,
            rid: None,
            trace: None,
            parent: None,
            request_id: None,
            received: None,
            queue_start: None,
            queue_end: None,
            queue_nanos: None,
            prefill_end: None,
            first_token: None,
            finished: None,
            prompt_tokens: None,
            cached_tokens: None,
            output_tokens: None,
            num_retractions: None,
            dp_rank: None,
        }
    }
}
