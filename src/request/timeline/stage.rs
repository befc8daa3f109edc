//! The stages of a request's life.

use super::{Moment, Period};

/// A piece of a request's life; stages follow each other without gap or overlap.
#[derive(Clone, Copy, Debug)]
pub struct Stage {
    /// Its name in files.
    pub name: &'static str,
    /// Its label.
    pub label: &'static str,
    /// Its name in metrics and spans.
    pub metric: &'static str,
    /// Its ends; [`Timeline::period_of`](super::Timeline::period_of) has those of a given request.
    pub period: Period,
    /// Whether only requests of a prefill/decode pair have it, or only those of one server; `None` for both.
    pub is_of_pair: Option<bool>,
    /// Its text after "was spent": "in the router queue".
    pub place: &'static str,
}

/// Makes [`STAGES`] from a table: name, label, name in metrics, period with its ends, `is_of_pair`, place.
macro_rules! stages {
    ($($name:literal $label:literal $metric:literal $period:ident [$from:ident to $to:ident] $is_of_pair:expr, $place:literal;)+) => {
        impl Period {
            $(#[doc = concat!("The stage that is spent ", $place, ".")]
            pub const $period: Period = Period::new(Moment::$from, Moment::$to);)+
        }

        /// The stages of a request, from its scheduled time to its last byte. If a moment is missing, the stages beside it are
        /// unknown, never guessed.
        pub const STAGES: [Stage; [$($name),+].len()] = [$(Stage {
            name: $name,
            label: $label,
            metric: $metric,
            period: Period::$period,
            is_of_pair: $is_of_pair,
            place: $place,
        }),+];
    };
}

stages! {
    "client lag" "client lag" "client_lag" SCHEDULE_LAG [Scheduled to Sent] None, "in the client, before it was sent";
    "to proxy" "to proxy" "to_proxy" TO_PROXY [Sent to Arrival] None, "on the way to the proxy";
    "router" "router queue" "router_queue" QUEUE_IN_ROUTER [Arrival to RouterSend] None, "in the router queue";
    "network" "network" "network" NETWORK [RouterSend to ServerCreated] None, "on the way into the server";
    "tokenize" "tokenize" "tokenize" TOKENIZE [ServerCreated to QueueStart] None, "in tokenizing and the hand-over to the scheduler";
    "decode memory" "decode memory" "decode_memory" DECODE_MEMORY [QueueStart to KvReserved] Some(true), "waiting for memory of the decode server";
    "prefill queue" "prefill queue" "prefill_queue" PREFILL_QUEUE [KvReserved to QueueEnd] Some(true), "in the prefill queue";
    "queue" "server queue" "server_queue" PURE_QUEUE [QueueStart to QueueEnd] Some(false), "in the server queue";
    "prefill" "prefill" "prefill" PREFILL [QueueEnd to ServerFirstToken] None, "in prefill";
    "KV transfer" "KV transfer" "kv_transfer" KV_TRANSFER [PrefillEnd to KvArrived] Some(true), "in the transfer of its KV cache";
    "decode slot" "decode slot" "decode_slot" DECODE_SLOT [KvArrived to DecodeStart] Some(true), "waiting for a slot of the decode server's batch";
    "return" "return" "return" RETURN [ServerFirstToken to WorkerFirstToken] None, "on the way back";
    "router hold" "router hold" "router_hold" ROUTER_HOLD [WorkerFirstToken to PrefillReplied] Some(true), "in the router, held until prefill's reply was whole";
    "router return" "router return" "router_return" ROUTER_RETURN [WorkerFirstToken to FirstToken] None, "in the router on the way back";
    "decode" "decode" "decode" DECODE [FirstToken to Finish] None, "in decoding";
}

impl Stage {
    /// Whether a request of a pair, or of one server, has this stage.
    pub fn is_in(&self, is_pair: bool) -> bool {
        self.is_of_pair.is_none_or(|of_pair| of_pair == is_pair)
    }
}
