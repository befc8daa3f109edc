//! Facts of a request that only traces show: no column holds them.

use crate::clock::Stamp;

use super::attempt::{Attempt, SpanId};

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
