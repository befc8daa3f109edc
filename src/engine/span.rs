//! One span of an engine's trace, reduced to what a join needs.

use crate::clock::Stamp;
use crate::request::attempt::ServerRole;
use crate::request::engine_report::EngineReport;

/// A span picked out of a batch. Its timestamps are on the engine's clock.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineSpan {
    /// The trace's id. The upper half is zero if the engine began the trace.
    pub trace: u128,
    /// The span's own id.
    pub id: u64,
    /// The id of the parent span; 0 if there is none.
    pub parent: u64,
    /// When it began.
    pub start: Stamp,
    /// When it ended.
    pub end: Stamp,
    /// What it describes.
    pub kind: SpanKind,
    /// How often the request was retracted during the span.
    pub retractions: u32,
}

impl EngineSpan {
    /// Returns the parent span and the server's role if this is the root span of a request that two servers serve.
    pub fn root_of_pair(&self) -> Option<(u64, ServerRole)> {
        self.root().and_then(|root| Some((self.parent, root.role?)))
    }

    /// Returns what the span reports if it is a request's root.
    pub fn root(&self) -> Option<&EngineReport> {
        match &self.kind {
            SpanKind::Root(root) => Some(root),
            _ => None,
        }
    }
}

/// What a span describes.
#[derive(Clone, Debug, PartialEq)]
pub enum SpanKind {
    /// The whole request at the server. If the request never generated, its `rid` is only the part after the last `_`.
    Root(Box<EngineReport>),
    /// A scheduler's work on the request: a child of the root, and the parent of the stages.
    Scheduler(Scheduler),
    /// One step of a scheduler's work.
    Stage(Stage),
    /// A router's handling of the request.
    Router {
        /// The request's `x-request-id`.
        request_id: Box<str>,
    },
}

/// A step of a scheduler's work on a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// From receipt to the waiting queue.
    Process,
    /// In the waiting queue.
    Waiting,
    /// Prefill, all chunks of it.
    Prefill,
    /// At a decode server: until memory was reserved and the prefill server was notified.
    Bootstrap,
    /// At a decode server: until the KV cache had arrived.
    KvTransfer,
    /// At a decode server: until the request entered the batch.
    DecodeWaiting,
    /// At a prefill server: sending the KV cache.
    KvSend,
}

/// The attributes of a scheduler's span.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scheduler {
    /// Tensor-parallel rank.
    pub tp_rank: Option<u64>,
    /// Pipeline-parallel rank.
    pub pp_rank: Option<u64>,
    /// Data-parallel rank.
    pub dp_rank: Option<u64>,
    /// Whether the request left the scheduler before its end, for example by an abort in the waiting queue.
    pub is_aborted: bool,
}
