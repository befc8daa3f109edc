//! The stages of a request's life.

use super::{Moment, Span};

/// A stretch of a request's life; the stages follow each other without gap or overlap.
#[derive(Clone, Copy, Debug)]
pub struct Stage {
    /// Short name.
    pub name: &'static str,
    /// What a person reads: "in the router".
    pub place: &'static str,
    /// Its ends.
    pub span: Span,
}

/// The life of a request from its scheduled time to its last byte. Where a moment is missing, the stages
/// beside it are unknown, never guessed.
pub const STAGES: [Stage; 10] = [
    Stage::new(
        "client lag",
        "in the client, before it was sent",
        Span::SCHEDULE_LAG,
    ),
    Stage::new(
        "to proxy",
        "on the way to the proxy",
        Span::new(Moment::Sent, Moment::Arrival),
    ),
    Stage::new("router", "in the router", Span::QUEUE_IN_ROUTER),
    Stage::new("network", "on the way into the server", Span::NETWORK),
    Stage::new(
        "tokenize",
        "in tokenizing and the hand-over to the scheduler",
        Span::TOKENIZE,
    ),
    Stage::new("queue", "in the server's queue", Span::PURE_QUEUE),
    Stage::new("prefill", "in prefill", Span::PREFILL),
    Stage::new("return", "on the way back", Span::RETURN),
    Stage::new(
        "router return",
        "in the router on the way back",
        Span::ROUTER_RETURN,
    ),
    Stage::new("decode", "in decoding", Span::DECODE),
];

impl Stage {
    const fn new(name: &'static str, place: &'static str, span: Span) -> Stage {
        Stage { name, place, span }
    }
}
