//! The server's own record of the requests it served, with which tests compare a proxy's rows.

use crate::clock::Stamp;

/// The most entries kept in memory; the oldest are dropped.
pub(super) const MAX_SERVED: usize = 100_000;

/// One generation request that reached the engine. Stamps are on the engine's clock (with its skew).
#[derive(Clone, Debug, PartialEq)]
pub struct Served {
    /// Request id of its first sequence.
    pub rid: String,
    /// Its `x-request-id` header, of the client or router.
    pub x_request_id: Option<String>,
    /// Its `traceparent` header.
    pub traceparent: Option<String>,
    /// When the request had been read.
    pub received: Option<Stamp>,
    /// When its first sequence entered the waiting queue.
    pub queue_start: Option<Stamp>,
    /// When its first sequence left the waiting queue.
    pub queue_end: Option<Stamp>,
    /// When the first token of any sequence was reported.
    pub first_token: Option<Stamp>,
    /// When the last sequence ended, by its last token, an abort or a rejection.
    pub finish: Option<Stamp>,
    /// How it ended.
    pub outcome: Outcome,
}

/// How a request ended, as the server saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The whole response was handed to the socket.
    Finished,
    /// The client left, or `/abort_request` was called.
    Aborted,
    /// The queue was full.
    Rejected,
}
