//! The stages of a request's life.

use super::Period;

/// A stretch of a request's life; the stages follow each other without gap or overlap.
#[derive(Clone, Copy, Debug)]
pub struct Stage {
    /// Its name in files.
    pub name: &'static str,
    /// What a person reads: "in the router queue".
    pub place: &'static str,
    /// Its ends; those in a request's own life says [`Timeline::period_of`](super::Timeline::period_of).
    pub period: Period,
    /// Whether it is of prefill and decode on two servers, or of one server alone; `None`: of both.
    pub is_of_pair: Option<bool>,
}

/// The life of a request from its scheduled time to its last byte. Where a moment is missing, the stages
/// beside it are unknown, never guessed.
pub const STAGES: [Stage; 15] = [
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
    Stage::new(
        "decode memory",
        "waiting for memory of the decode server",
        Period::DECODE_MEMORY,
    )
    .of_pair(true),
    Stage::new(
        "prefill queue",
        "in the prefill queue",
        Period::PREFILL_QUEUE,
    )
    .of_pair(true),
    Stage::new("queue", "in the server queue", Period::PURE_QUEUE).of_pair(false),
    Stage::new("prefill", "in prefill", Period::PREFILL),
    Stage::new(
        "KV transfer",
        "in the transfer of its KV cache",
        Period::KV_TRANSFER,
    )
    .of_pair(true),
    Stage::new(
        "decode slot",
        "waiting for a slot of the decode server's batch",
        Period::DECODE_SLOT,
    )
    .of_pair(true),
    Stage::new("return", "on the way back", Period::RETURN),
    Stage::new(
        "router hold",
        "in the router, held until prefill's reply was whole",
        Period::ROUTER_HOLD,
    )
    .of_pair(true),
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
            "decode memory" => "decode_memory",
            "prefill queue" => "prefill_queue",
            "KV transfer" => "kv_transfer",
            "decode slot" => "decode_slot",
            "router hold" => "router_hold",
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

    /// Whether a request that two servers served has it, or one that one did.
    pub fn is_in(&self, is_pair: bool) -> bool {
        self.is_of_pair.is_none_or(|of_pair| of_pair == is_pair)
    }

    const fn new(name: &'static str, place: &'static str, period: Period) -> Stage {
        Stage {
            name,
            place,
            period,
            is_of_pair: None,
        }
    }

    const fn of_pair(self, yes: bool) -> Stage {
        Stage {
            is_of_pair: Some(yes),
            ..self
        }
    }
}
