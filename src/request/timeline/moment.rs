//! The moments of a request, and the stages of its life between them.
//!
//! A new stage is a line of `stages!`; a new moment one of [`Moment`], at its place, and of the table of columns.

use crate::names::names;

names! {
    /// A moment of a request, in the order of a request's life.
    pub enum Moment {
        /// The generator's schedule had it sent.
        Scheduled = "scheduled",
        /// The generator began to send.
        Sent = "sent",
        /// The front read the request's head; without a proxy of ours the same as `sent`.
        Arrival = "arrival",
        /// The front read the last byte of the request body.
        RequestEnd = "request_end",
        /// The front sent the head upstream, of the attempt that answered.
        Forwarded = "forwarded",
        /// The worker hop read the head that the router sent.
        WorkerArrival = "worker_arrival",
        /// The worker hop sent the head to the server.
        WorkerForwarded = "worker_forwarded",
        /// The router sent the request to the server: `worker_arrival`; without a hop, and only where the upstream is the
        /// server itself, our own last send.
        RouterSend = "router_send",
        /// The server received the request.
        ServerCreated = "server_created",
        /// It entered the server queue; of a pair of prefill and decode servers, decode's queue for memory.
        QueueStart = "queue_start",
        /// Decode had reserved memory for it and told prefill so.
        KvReserved = "kv_reserved",
        /// It left the server queue into its first batch.
        QueueEnd = "queue_end",
        /// Its prefill finished.
        PrefillEnd = "prefill_end",
        /// Its KV cache had come from prefill: it waits for a slot of decode's batch.
        KvArrived = "kv_arrived",
        /// It entered decode's batch.
        DecodeStart = "decode_start",
        /// The server made its first token.
        ServerFirstToken = "server_first_token",
        /// The engine's own end.
        ServerFinish = "server_finish",
        /// The first status line that is not 1xx was read.
        ResponseHead = "response_head",
        /// The first event of the stream was read; of other bodies, the first byte.
        FirstEvent = "first_event",
        /// The worker hop read the first token; seen where the response's first bytes brought it. Else the same as
        /// `first_token`.
        WorkerFirstToken = "worker_first_token",
        /// The router, which held the first token until then, had all of prefill's reply: its hop read the last of it.
        PrefillReplied = "prefill_replied",
        /// The first event that carries a generated token was read.
        FirstToken = "first_token",
        /// The last event that carries a generated token was read.
        LastToken = "last_token",
        /// The last byte of the response was read.
        Finish = "finish",
        /// The request was over: its whole response read, or its watcher saw that somebody had given it up.
        End = "end",
    }
}

names! {
    /// The clock that a moment is read from, by the name of whose it is.
    pub enum ClockOf {
        /// The generator.
        Traffic = "generator",
        /// The front proxy.
        Front = "proxy",
        /// The worker hop.
        Hop = "hop",
        /// The serving engine.
        Engine = "server",
    }
}

names! {
    /// The process that observes the response, and on whose clock a row's times therefore are.
    pub enum Side {
        /// The traffic generator.
        Traffic = "traffic",
        /// The front proxy.
        Front = "front",
        /// The worker hop, where no front of its process saw the request.
        Hop = "hop",
    }
}

/// The time from one moment to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Period {
    /// Where it starts.
    pub from: Moment,
    /// Where it ends.
    pub to: Moment,
}

impl Period {
    /// Arrival to the engine's first token.
    pub const TTFT_ENGINE: Period = Period::new(Moment::Arrival, Moment::ServerFirstToken);
    /// Arrival to the first token read.
    pub const TTFT_OBSERVED: Period = Period::new(Moment::Arrival, Moment::FirstToken);
    /// First to last token read.
    pub const TOKENS: Period = Period::new(Moment::FirstToken, Moment::LastToken);

    pub(super) const fn new(from: Moment, to: Moment) -> Period {
        Period { from, to }
    }
}

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
    /// Its colour on pages, light or dark.
    pub color: &'static str,
}

/// Makes [`STAGES`] from a table: name, label, name in metrics, period with its ends, `is_of_pair`, place, colour.
macro_rules! stages {
    ($($name:literal $label:literal $metric:literal $period:ident [$from:ident to $to:ident] $is_of_pair:expr, $place:literal, $color:literal;)+) => {
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
            color: $color,
        }),+];
    };
}

stages! {
    "client lag" "client lag" "client_lag" SCHEDULE_LAG [Scheduled to Sent] None, "in the client, before it was sent", "#a39382";
    "to proxy" "to proxy" "to_proxy" TO_PROXY [Sent to Arrival] None, "on the way to the proxy", "#d3c7b6";
    "router" "router queue" "router_queue" QUEUE_IN_ROUTER [Arrival to RouterSend] None, "in the router queue", "#9670cc";
    "network" "network" "network" NETWORK [RouterSend to ServerCreated] None, "on the way into the server", "#8c959f";
    "tokenize" "tokenize" "tokenize" TOKENIZE [ServerCreated to QueueStart] None, "in tokenizing and the hand-over to the scheduler", "#56b4e9";
    "decode memory" "decode memory" "decode_memory" DECODE_MEMORY [QueueStart to KvReserved] Some(true), "waiting for memory of the decode server", "#c0483a";
    "prefill queue" "prefill queue" "prefill_queue" PREFILL_QUEUE [KvReserved to QueueEnd] Some(true), "in the prefill queue", "#e67e22";
    "queue" "server queue" "server_queue" PURE_QUEUE [QueueStart to QueueEnd] Some(false), "in the server queue", "#dc6414";
    "prefill" "prefill" "prefill" PREFILL [QueueEnd to ServerFirstToken] None, "in prefill", "#ebdf40";
    "KV transfer" "KV transfer" "kv_transfer" KV_TRANSFER [PrefillEnd to KvArrived] Some(true), "in the transfer of its KV cache", "#3b74d8";
    "decode slot" "decode slot" "decode_slot" DECODE_SLOT [KvArrived to DecodeStart] Some(true), "waiting for a slot of the decode server's batch", "#d03a70";
    "return" "return" "return" RETURN [ServerFirstToken to WorkerFirstToken] None, "on the way back", "#757e88";
    "router hold" "router hold" "router_hold" ROUTER_HOLD [WorkerFirstToken to PrefillReplied] Some(true), "in the router, held until prefill's reply was whole", "#6b4fa8";
    "router return" "router return" "router_return" ROUTER_RETURN [WorkerFirstToken to FirstToken] None, "in the router on the way back", "#a58fc8";
    "decode" "decode" "decode" DECODE [FirstToken to Finish] None, "in decoding", "#0aa178";
}

impl Stage {
    /// Whether a request of a pair, or of one server, has this stage.
    pub fn is_in(&self, is_pair: bool) -> bool {
        self.is_of_pair.is_none_or(|of_pair| of_pair == is_pair)
    }
}

/// The moments of a server that prefills and decodes, in the order of a request's life.
pub const ENGINE: [Moment; 6] = [
    Moment::ServerCreated,
    Moment::QueueStart,
    Moment::QueueEnd,
    Moment::PrefillEnd,
    Moment::ServerFirstToken,
    Moment::ServerFinish,
];

impl Moment {
    /// The number of moments.
    pub const COUNT: usize = Moment::ALL.len();

    /// Returns the clock that this moment is read from if `side` observes the response. It follows from the moment's place.
    pub fn clock(self, side: Side) -> ClockOf {
        match self {
            Moment::WorkerFirstToken | Moment::PrefillReplied => ClockOf::Hop,
            moment if moment <= Moment::Sent => ClockOf::Traffic,
            moment if moment <= Moment::Forwarded => ClockOf::Front,
            moment if moment <= Moment::RouterSend => ClockOf::Hop,
            moment if moment <= Moment::ServerFinish => ClockOf::Engine,
            _ => side.clock(),
        }
    }
}

impl Side {
    /// Returns the first moment of a request that this observer sees.
    pub const fn first_moment(self) -> Moment {
        match self {
            Side::Traffic => Moment::Sent,
            Side::Front => Moment::Arrival,
            Side::Hop => Moment::RouterSend,
        }
    }

    /// Returns the clock of this observer.
    pub const fn clock(self) -> ClockOf {
        match self {
            Side::Traffic => ClockOf::Traffic,
            Side::Front => ClockOf::Front,
            Side::Hop => ClockOf::Hop,
        }
    }
}
