//! The stages of a request's life.

use super::Period;

/// A stretch of a request's life; the stages follow each other without gap or overlap.
#[derive(Clone, Copy, Debug)]
pub struct Stage {
    /// Its name in files.
    pub name: &'static str,
    /// What a person reads: "in the router queue".
    pub place: &'static str,
    /// Its ends.
    pub period: Period,
}

/// The life of a request from its scheduled time to its last byte. Where a moment is missing, the stages
/// beside it are unknown, never guessed.
pub const STAGES: [Stage; 10] = [
    Stage::new(
        "client lag",
        "in the client, before it was sent",
        Period::SCHEDULE_LAG,
    ),
    Stage::new("to proxy", "on the way to the proxy", Period::TO_PROXY),
    Stage::new("router", "in the router queue", Period::QUEUE_IN_ROUTER),
    Stage::new("network", "on the way into the server", Period::NETWORK),
    Stage::new(
        "tokenize",
        "in tokenizing and the hand-over to the scheduler",
        Period::TOKENIZE,
    ),
    Stage::new("queue", "in the server queue", Period::PURE_QUEUE),
    Stage::new("prefill", "in prefill", Period::PREFILL),
    Stage::new("return", "on the way back", Period::RETURN),
    Stage::new(
        "router return",
        "in the router on the way back",
        Period::ROUTER_RETURN,
    ),
    Stage::new("decode", "in decoding", Period::DECODE),
];

impl Stage {
    /// The name in metrics and spans.
    pub fn metric_name(&self) -> &'static str {
        match self.name {
            "client lag" => "client_lag",
            "to proxy" => "to_proxy",
            "router" => "router_queue",
            "queue" => "server_queue",
            "router return" => "router_return",
            name => name,
        }
    }

    /// What people call it.
    pub fn label(&self) -> &'static str {
        match self.name {
            "router" => "router queue",
            "queue" => "server queue",
            name => name,
        }
    }

    const fn new(name: &'static str, place: &'static str, period: Period) -> Stage {
        Stage {
            name,
            place,
            period,
        }
    }
}
