//! What only traces tell of a request: no column holds it.

use crate::clock::Stamp;

use super::attempt::{Attempt, SpanId};

/// What only traces tell of a request.
#[derive(Clone, Debug, Default)]
pub struct TraceFacts {
    /// Whether the client had sampled it; `None` in a trace that was begun here, or by a front of ours.
    pub came_sampled: Option<bool>,
    /// It went upstream with the sampled flag.
    pub sent_sampled: bool,
    /// Our own sendings, the last one last; kept only where traces are.
    pub sendings: Vec<Sending>,
    /// The attempts at hops of this process, the one that answered (else the last) last; kept only where traces are, or
    /// the engine's are joined.
    pub attempts: Vec<Attempt>,
}

/// One sending of a request upstream.
#[derive(Clone, Debug)]
pub struct Sending {
    /// Its span, which went upstream as the parent.
    pub span: SpanId,
    /// Where to, `host:port`.
    pub upstream: String,
    /// The head was about to be written, or we began to connect.
    pub at: Stamp,
    /// It broke, and the request was sent again. The last one ends with its request.
    pub broke: Option<Stamp>,
    /// `false`: no connection came about, and nothing was sent.
    pub is_connected: bool,
}
