//! What a row knows that no column shows: of a request that this process saw, and not of rows that were read.

use crate::clock::Stamp;

use super::gaps::GapCounts;
use super::generation::Generation;
use super::sequence::{TimingSource, Untold};
use super::timeline::Moment;
use super::trace::TraceFacts;

/// What no column shows.
#[derive(Clone, Debug, Default)]
pub struct More {
    /// Words of the server's stand in `error`: they may quote the request.
    pub error_quotes_server: bool,
    /// The code that stands before them in `error`: the status, or one that the body named as such.
    pub error_code: Option<u64>,
    /// The error is the router's own: no server gave it.
    pub is_routers_error: bool,
    /// The SGLang that its last `meta_info` is of; `None` of what never ran.
    pub generation: Option<Generation>,
    /// Why the engine's trace or log brought nothing, where it was asked.
    pub untold: Option<Untold>,
    /// What servers tell by those goes into the front's row, not into this one.
    pub front_joins_engine: bool,
    /// The name of the hop before the server that prefilled it, where that was another.
    pub prefill_worker: Option<String>,
    /// How many gaps there are of which length: those of `itl_mean`, where all are known. Of the first few sequences of a request.
    pub gaps: Option<GapCounts>,
    /// What only traces tell. The first row of a request has it for all.
    pub trace: TraceFacts,
    /// By what number its two servers, and no other request's, know it; 0 is none.
    pub room: Option<u64>,
    /// Samples per prompt that the request asked for.
    pub n: u64,
    /// It had more sequences than are recorded ([`super::response::MAX_SEQUENCES`]).
    pub untold_sequences: bool,
    /// `usage.prompt_tokens` of the whole request.
    pub usage_prompt_tokens: Option<u64>,
    /// `usage.completion_tokens` of the whole request.
    pub usage_completion_tokens: Option<u64>,
    /// How long writes to the client were held up between the first and the last event with a token, nanoseconds.
    pub stall_nanos: i64,
    /// The server's first write of it, by its own clock, and when that was read.
    pub first_write: Option<(Stamp, Stamp)>,
    /// Moments that another source puts elsewhere, and that source.
    pub differing: Vec<(Moment, TimingSource)>,
    /// The key of the engine's clock among the offsets of a proxy.
    pub engine_clock: Option<String>,
}
