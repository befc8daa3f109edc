//! The causes of waiting.

use crate::names::names;

names! {
    /// Why a request waited.
    pub enum Cause {
        /// As many requests ran as the server runs at once.
        Slots = "slots",
        /// The KV cache had no room for it.
        Memory = "kv_memory",
        /// A batch was under way, or earlier prompts were prefilled.
        Prefill = "prefill_turn",
        /// The known requests left room for it, so others, which are not among them, took it.
        NotSeen = "not_seen_here",
        /// The router held it back.
        Router = "router",
        /// The proxy held it back.
        Proxy = "proxy",
        /// The server was down or starting.
        Down = "server_down",
        /// The cause is unknown.
        Unknown = "unknown",
        /// The decode server of a pair had no memory for it.
        DecodeMemory = "decode_memory",
        /// It waited in the queue of a pair's prefill server.
        PrefillQueue = "prefill_queue",
        /// Its KV cache was being transferred between the servers of a pair.
        Transfer = "kv_transfer",
        /// The batch of the decode server of a pair was full.
        DecodeSlots = "decode_slots",
    }
}

/// Nanoseconds of waiting by cause. Sums saturate, at centuries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByCause([i64; Cause::ALL.len()]);

/// For each cause: its heading in tables, its description, and advice.
const TEXTS: [[&str; 3]; Cause::ALL.len()] = [
    [
        "slots full",
        "all slots were taken",
        "Raise `max_running_requests` while the time per output token allows it, or add servers.",
    ],
    [
        "KV memory",
        "the KV memory was full",
        "Give the KV cache more memory (`mem_fraction_static`, a smaller `kv_cache_dtype`), ask for shorter contexts and \
         answers, or add servers: more slots do not help.",
    ],
    [
        "prefill turn",
        "its turn of prefill had not come",
        "Send requests that begin alike to the same server (`cache_aware`), shorten prompts, or add servers; a smaller \
         `chunked_prefill_size` lets others in between: more slots do not help.",
    ],
    [
        "not seen here",
        "requests that are not seen here had the server",
        "Find out who else sends requests to these servers, and send those through the same proxy: only what is seen \
         can be blamed.",
    ],
    ["router", "the router held it back", ADVICE_UNKNOWN],
    [
        "proxy",
        "the proxy held it back",
        "Raise `max_concurrent_requests` while the servers have room, or add servers.",
    ],
    [
        "server down",
        "the server was down or starting",
        "Look at why a server was down; others took over what it had.",
    ],
    ["unknown", "what it waited for is not known", ADVICE_UNKNOWN],
    [
        "decode memory",
        "the decode server had no memory for it",
        "Give decode servers more memory for the KV cache (`mem_fraction_static`), let more requests run if these are as many as \
         their `max_running_requests`, or add decode servers: more prefill servers do not help.",
    ],
    [
        "prefill queue",
        "it was in the prefill server's queue",
        "Add prefill servers, send requests that begin alike to the same one (`cache_aware`), or shorten prompts: more decode \
         servers do not help.",
    ],
    [
        "KV transfer",
        "its KV cache was on the way",
        "Look at the network between prefill and decode, and compare `kv_send_time`, what prefill itself needed to send: a \
         faster link or transfer backend, a smaller `kv_cache_dtype`, or shorter prompts.",
    ],
    [
        "decode slot",
        "the decode server's batch was full",
        "Raise decode's `max_running_requests` while the time per output token allows it, or add decode servers: more prefill \
         servers do not help.",
    ],
];
const ADVICE_UNKNOWN: &str = "Look at `token_usage` over time: near 1, the KV cache is full (raise `mem_fraction_static`); else raise \
                    `max_running_requests` if as many ran, or add servers.";

impl Cause {
    /// The number of causes, the first of [`Cause::ALL`], of requests that a single server serves.
    pub const AT_ONE_SERVER: usize = 8;

    /// Its heading in tables.
    pub const fn heading(self) -> &'static str {
        TEXTS[self as usize][0]
    }

    /// Whether it is a wait at a prefill/decode pair of servers.
    pub const fn is_of_pair(self) -> bool {
        self as usize >= Cause::AT_ONE_SERVER
    }

    /// Whether those that are known to have run meanwhile are what it waited for.
    pub const fn has_holders(self) -> bool {
        !matches!(self, Cause::NotSeen | Cause::Down | Cause::Unknown)
    }

    /// Its description in a few words.
    pub const fn description(self) -> &'static str {
        TEXTS[self as usize][1]
    }

    /// The same; of slots with their number and ` of each server`.
    pub fn described(self, slots: Option<(u32, &str)>) -> String {
        match (self, slots) {
            (Cause::Slots, Some((1, of))) => format!("the only slot{of} was taken"),
            (Cause::Slots, Some((slots, of))) => format!("all {slots} slots{of} were taken"),
            (cause, _) => cause.description().to_owned(),
        }
    }

    /// Advice on how to reduce it.
    pub const fn advice(self) -> &'static str {
        TEXTS[self as usize][2]
    }
}

impl ByCause {
    /// The nanoseconds of a cause.
    pub const fn of(&self, cause: Cause) -> i64 {
        self.0[cause as usize]
    }

    /// Adds to a cause.
    pub fn add(&mut self, cause: Cause, nanos: i64) {
        let sum = &mut self.0[cause as usize];
        *sum = sum.saturating_add(nanos);
    }

    /// Adds all causes of another.
    pub fn add_all(&mut self, more: &ByCause) {
        more.all().for_each(|(cause, nanos)| self.add(cause, nanos));
    }

    /// The difference to another.
    pub fn minus(&self, other: &ByCause) -> ByCause {
        ByCause(std::array::from_fn(|cause| {
            self.0[cause].saturating_sub(other.0[cause])
        }))
    }

    /// The causes with any waiting, in the order of [`Cause::ALL`].
    pub fn all(&self) -> impl Iterator<Item = (Cause, i64)> + '_ {
        let all = Cause::ALL.into_iter().map(|cause| (cause, self.of(cause)));
        all.filter(|(_, nanos)| *nanos != 0)
    }

    /// The sum of all causes.
    pub fn total(&self) -> i64 {
        self.0.into_iter().fold(0, i64::saturating_add)
    }

    /// The sum of the causes at pairs of servers.
    pub fn of_pair(&self) -> i64 {
        let of_pairs = self.all().filter(|(cause, _)| cause.is_of_pair());
        of_pairs.fold(0, |sum, (_, nanos)| sum.saturating_add(nanos))
    }

    /// The cause of most of it.
    pub fn main(&self) -> Option<Cause> {
        let largest = self.all().max_by_key(|(_, nanos)| *nanos);
        largest.map(|(cause, _)| cause)
    }
}
