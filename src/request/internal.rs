//! What a row holds that no column shows: set in the process that saw the request, not in rows read from files.

use crate::clock::Stamp;

use super::attempt::{Attempt, SpanId};
use super::meta_info::Generation;
use super::sequence::{GapCounts, MissingReason};

/// Facts of a row that no column shows.
#[derive(Clone, Debug, Default)]
pub struct Internal {
    /// `error` without the server's message, which may quote the request; `None` if it contains none.
    pub unquoted_error: Option<String>,
    /// The router made the error: no server sent it.
    pub is_routers_error: bool,
    /// The SGLang that wrote its last `meta_info`; `None` if it never ran.
    pub generation: Option<Generation>,
    /// Why times of the engine are missing, if its trace or log was to have them, or if they were impossible.
    pub missing_reason: Option<MissingReason>,
    /// The engine's trace or log is joined to the front's row, not to this one.
    pub front_joins_engine: bool,
    /// The name of the prefill server's hop, if another server did the prefill.
    pub prefill_worker: Option<String>,
    /// The histogram of the gaps behind `itl_mean`, if all are known; for the first few sequences of a request.
    pub gaps: Option<GapCounts>,
    /// Facts that only traces show. The first row has them for all rows of the request.
    pub trace: TraceFacts,
    /// `bootstrap_room`: the number by which the two servers of a pair know it, and it alone; never 0.
    pub room: Option<u64>,
    /// Samples per prompt, as requested.
    pub n: u64,
    /// It had more sequences than are recorded ([`super::response::MAX_SEQUENCES`]).
    pub has_unrecorded_sequences: bool,
    /// `usage.prompt_tokens` of the whole request.
    pub usage_prompt_tokens: Option<u64>,
    /// `usage.completion_tokens` of the whole request.
    pub usage_completion_tokens: Option<u64>,
    /// The response's first event brought its first token.
    pub begins_with_token: bool,
    /// How long writes to the client were held up between the first and the last token event, nanoseconds.
    pub stall_nanos: i64,
    /// When the server wrote its first output, on its own clock, and when that was read.
    pub first_write: Option<(Stamp, Stamp)>,
    /// The name of the engine's clock; only in a request's first row.
    pub engine_clock: Option<String>,
}

/// Facts of a request that only traces show.
#[derive(Clone, Debug, Default)]
pub struct TraceFacts {
    /// Whether the client had sampled it; `None` if the trace was begun here or by a front of ours.
    pub received_sampled: Option<bool>,
    /// The request was sent upstream with the sampled flag.
    pub sent_sampled: bool,
    /// Our own sendings, in order; kept only if traces are.
    pub sendings: Vec<Sending>,
    /// The attempts at hops of this process; the one that answered, else the last, stands last. Kept only if traces are, or the
    /// engine's times are joined.
    pub attempts: Vec<Attempt>,
}

/// One sending of a request upstream.
#[derive(Clone, Debug)]
pub struct Sending {
    /// Its span, sent upstream as the parent.
    pub span: SpanId,
    /// The upstream, `host:port`.
    pub upstream: String,
    /// When the head was about to be written, or connecting began.
    pub at: Stamp,
    /// When connecting failed, so that nothing was sent. Any other sending ends with its request.
    pub failed: Option<Stamp>,
}
