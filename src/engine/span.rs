//! One span of an engine's trace, as far as a join needs it.

use crate::clock::Stamp;
use crate::request::attempt::ServerRole;
use crate::request::engine_report::Told;

/// A span that was picked out of a batch. Stamps are on the engine's clock.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineSpan {
    /// Its trace. The upper half is zero where the engine made it.
    pub trace: u128,
    /// Its own id.
    pub id: u64,
    /// The span above it; 0 where there is none.
    pub parent: u64,
    /// When it began.
    pub start: Stamp,
    /// When it ended.
    pub end: Stamp,
    /// What it is.
    pub part: Part,
    /// Times the request was retracted meanwhile.
    pub retractions: u32,
}

impl EngineSpan {
    /// The span above it and what its server does, if it is the root of a request that two servers serve.
    pub fn root_of_pair(&self) -> Option<(u64, ServerRole)> {
        match &self.part {
            Part::Root(told) => Some((self.parent, told.role?)),
            _ => None,
        }
    }
}

/// What a span tells of a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Part {
    /// The whole request, from the server's receiving it to its end. Its `rid` is only the part after the last `_` where the
    /// request never generated.
    Root(Box<Told>),
    /// A scheduler's share of it. The stages below it name it as their parent.
    Scheduler(Scheduler),
    /// What a scheduler did with it, one after the other.
    Stage(Stage),
    /// A router's handling of the request.
    Router {
        /// Its `x-request-id`.
        request_id: Box<str>,
    },
}

/// What a scheduler did with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// From receiving it to the waiting queue.
    Process,
    /// In the waiting queue.
    Waiting,
    /// Prefill, all chunks of it.
    Prefill,
    /// At a decode server: until it had reserved memory, and told prefill so.
    Bootstrap,
    /// At a decode server: until the KV cache had come.
    Transferred,
    /// At a decode server: until it entered the batch.
    Slot,
    /// At a prefill server: sending the KV cache.
    Sending,
}

/// What a scheduler's span says beside its times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scheduler {
    /// Tensor-parallel rank.
    pub tp_rank: Option<u64>,
    /// Pipeline-parallel rank.
    pub pp_rank: Option<u64>,
    /// Data-parallel rank.
    pub dp_rank: Option<u64>,
    /// The request left the scheduler before its end, as by an abort in the waiting queue.
    pub is_cut_short: bool,
}
