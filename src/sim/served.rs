//! The server's own account of the requests it served: what a proxy's records are compared with.

use crate::clock::Stamp;

/// Entries kept in memory; older ones go.
pub(super) const KEPT: usize = 100_000;

/// One generation request that reached the engine. Stamps are on the engine's clock (with its skew).
#[derive(Clone, Debug, PartialEq)]
pub struct Served {
    /// Request id of its first sequence.
    pub rid: String,
    /// The client's or router's `x-request-id`.
    pub x_request_id: Option<String>,
    /// The `traceparent` that it came with.
    pub traceparent: Option<String>,
    /// The request was read.
    pub received: Option<Stamp>,
    /// Its first sequence entered the waiting queue.
    pub queue_start: Option<Stamp>,
    /// Its first sequence left the waiting queue.
    pub queue_end: Option<Stamp>,
    /// The first token of any sequence.
    pub first_token: Option<Stamp>,
    /// Its end: the last token of all, or the moment it was aborted or rejected.
    pub finish: Option<Stamp>,
    /// How it ended.
    pub outcome: Outcome,
}

/// How a request ended, as the server saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The whole answer was handed to the socket.
    Finished,
    /// The client went away, or `/abort_request`.
    Aborted,
    /// The queue was full.
    Rejected,
}
