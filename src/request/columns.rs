//! The table of columns: name, unit, help and origin of each.
//!
//! A new column is a line at the end of the table, with its help above it. It then is a field of [`Row`], and in the CSV,
//! Parquet, spans, live page and `docs/METRICS.md` (`UPDATE_DOCS=1 cargo test --test it house`). Its value is set by whoever
//! measures it or, if it follows from other fields, in [`Row::ended`].

use crate::clock::Stamp;

use super::attempt::{FailedAttempt, SpanId};
use super::cell::{Cell, Value, cells};
use super::internal::Internal;
use super::outcome::Outcome;
use super::response::{Endpoint, Unread};
use super::sequence::{TimingSource, TokenCountSource};
use super::stages::StageSet;
use super::timeline::{ClockOf, ClockState, Moment, Period, Side, Timeline, TtftSource};
use super::unseen::Unseens;

/// A column of the per-request table.
#[derive(Debug)]
pub struct Column {
    /// Its id.
    pub id: ColumnId,
    /// Its name, as in the CSV header.
    pub name: &'static str,
    /// Its name for people: `name`, unless it has a label of its own.
    pub label: &'static str,
    /// Its unit.
    pub unit: Unit,
    /// Whether a value belongs to a sequence or to its request.
    pub scope: Scope,
    /// What it is computed from.
    pub origin: Origin,
    /// What it is and how to read it.
    pub help: &'static str,
    /// Reads its cell of a row.
    pub get: for<'a> fn(&'a Row) -> Value<'a>,
    /// Sets its cell of a row, which is empty if the value is of another kind. [`Row::finish_reading`] then sets the timeline.
    pub put: fn(&mut Row, Value<'_>),
}

/// The unit of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Text.
    Text,
    /// `True` or `False`.
    Bool,
    /// A count.
    Count,
    /// A duration in seconds for which summaries have quantiles.
    Latency,
    /// A duration in seconds.
    Seconds,
    /// A moment, in seconds from the file's time base.
    Time,
}

/// What a value belongs to. In sums and quantiles a request's value counts once, however many rows it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The request: the same in the rows of all its sequences.
    Request,
    /// The sequence.
    Sequence,
}

/// What a column is computed from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A moment, on the row's clock if the clocks compare.
    Moment(Moment),
    /// The time between two moments.
    Period(Period),
    /// Anything else.
    Own,
}

impl ColumnId {
    /// Returns the column.
    pub fn column(self) -> &'static Column {
        &COLUMNS[self as usize]
    }

    /// Finds a column by its name.
    pub fn named(name: &str) -> Option<ColumnId> {
        let found = COLUMNS.iter().find(|column| column.name == name);
        found.map(|column| column.id)
    }
}

cells! { ClockState, Outcome, Side, TimingSource, TokenCountSource, TtftSource, Unread }
cells! {
    Endpoint: Value::Text(path) => Endpoint::from_path(&path), |one| Value::Text(one.path().into());
}

/// Makes, from a table of columns, the struct [`Row`] with a field per column, the table [`COLUMNS`], an index into it for each
/// ([`ColumnId`]), and [`TypedRow`], which reads a row's cells wherever it is held.
///
/// A line: `name "label": Unit of Scope origin`, its help above it. The label may be left out if it equals the name; a text
/// column with a type of its own is `Text<Type>`. The origin is `[Moment]`, `[Moment to Moment]` or `(function)` of the timeline;
/// it is left out if the value follows from something else.
macro_rules! columns {
    ($(
        $(#[doc = $help:literal])+
        $name:ident $($label:literal)?: $unit:ident $(<$type:ty>)? of $scope:ident
        $([$($moments:tt)+])? $(($($of:tt)+))?
    )+) => {
        /// What is known of a generated sequence and of its request: a field per column, and what no column shows. Fields that
        /// follow from others are set when the request has ended.
        #[derive(Clone, Debug, Default)]
        pub struct Row {
            $($(#[doc = $help])+ pub $name: Option<columns!(@type $unit $($type)?)>,)+
            /// The moments, and the relations of their clocks.
            pub timeline: Timeline,
            /// The sequence's index within its request.
            pub index: u32,
            /// The number of sequences of the request.
            pub sequences: u32,
            /// What no column shows: known only in the process that saw the request.
            pub internal: Internal,
        }

        /// A column, by its index in [`COLUMNS`].
        #[expect(non_camel_case_types, reason = "a variant is called as its column is")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum ColumnId {
            $($(#[doc = $help])+ $name,)+
        }

        /// Every column, in the order of the CSV.
        pub static COLUMNS: [Column; [$(stringify!($name)),+].len()] = [$(Column {
            id: ColumnId::$name,
            name: stringify!($name),
            label: columns!(@label $name $($label)?),
            unit: Unit::$unit,
            scope: Scope::$scope,
            origin: columns!(@origin $([$($moments)+])?),
            help: concat!($($help),+).trim_ascii(),
            get: |row| row.$name.as_ref().map_or(Value::Empty, Cell::value),
            put: |row, value| row.$name = Cell::of(value),
        }),+];

        /// A row whose cells are read as their columns' types, wherever it is held: in a [`Row`], or by a function of the column.
        pub trait TypedRow {
            $($(#[doc = $help])+ fn $name(&self) -> Option<columns!(@type $unit $($type)?)>;)+
        }

        impl TypedRow for Row {
            $(fn $name(&self) -> Option<columns!(@type $unit $($type)?)> {
                self.$name.clone()
            })+
        }

        impl<'a, F: Fn(ColumnId) -> Value<'a>> TypedRow for F {
            $(fn $name(&self) -> Option<columns!(@type $unit $($type)?)> {
                Cell::of(self(ColumnId::$name))
            })+
        }

        impl Row {
            /// Passes the row's cells to `take`, in the order of the columns.
            pub fn cells<'a>(&'a self, mut take: impl FnMut(Value<'a>)) {
                $(take(self.$name.as_ref().map_or(Value::Empty, Cell::value));)+
            }

            /// Computes the columns that follow from moments.
            pub(super) fn derive(&mut self) {
                $(
                    $(self.$name = columns!(@of self [$($moments)+]);)?
                    $(self.$name = ($($of)+)(&self.timeline);)?
                )+
            }
        }
    };
    (@label $name:ident) => { stringify!($name) };
    (@label $name:ident $label:literal) => { $label };
    (@type Text $type:ty) => { $type };
    (@type Text) => { String };
    (@type Bool) => { bool };
    (@type Count) => { u64 };
    (@type Time) => { Stamp };
    (@type $nanos:ident) => { i64 };
    (@origin [$moment:ident]) => { Origin::Moment(Moment::$moment) };
    (@origin [$from:ident to $to:ident]) => { Origin::Period(columns!(@period $from $to)) };
    (@origin) => { Origin::Own };
    (@period $from:ident $to:ident) => { Period { from: Moment::$from, to: Moment::$to } };
    (@of $row:ident [$moment:ident]) => { $row.timeline.time(Moment::$moment) };
    (@of $row:ident [$from:ident to $to:ident]) => { $row.timeline.nanos(columns!(@period $from $to)) };
}

columns! {
    /// Request id; `#index` is added when a request has several sequences.
    req_id: Text of Sequence
    /// `True` only when `outcome` is `ok`.
    success: Bool of Request
    /// What went wrong, in a few words.
    error: Text of Request
    /// The server that served it: the hop's upstream, smg's `x-smg-routed-worker-id`, or the only upstream.
    host: Text of Request
    /// Any text came back; empty where the body was not read (`unread`).
    has_generated_text: Bool of Sequence
    /// Words of the prompt split at ASCII white space (chat: of all messages).
    input_length: Count of Request
    /// `max_new_tokens`, `max_tokens` or `max_completion_tokens` of the request.
    expected_output_length: Count of Request
    /// Prompt tokens by `meta_info`, else `usage`, else the engine's trace or log.
    actual_prompt_tokens: Count of Sequence
    /// Generated tokens by `meta_info`, else `usage` (which speaks of a whole request: not where it has several sequences), else the
    /// engine's trace or log.
    actual_output_tokens: Count of Sequence
    /// Prompt and generated tokens.
    actual_total_tokens: Count of Sequence
    /// Generated tokens by the engine's trace, where that was joined.
    output_tokens_from_trace: Count of Sequence
    /// The same as `actual_output_tokens`. Events of a stream are never taken for tokens: `token_chunks` counts them.
    decode_length: Count of Sequence
    /// The front listener had read the request head (no proxy: the generator began to send).
    arrival_time: Time of Request [Arrival]
    /// The worker hop read the head: the router had forwarded it. Without a hop only known when the upstream is the server itself.
    router_send_time: Time of Request [RouterSend]
    /// The server received the request.
    server_created_time: Time of Sequence [ServerCreated]
    /// It entered the server queue.
    queue_time_start: Time of Sequence [QueueStart]
    /// It left the server queue into its first batch.
    queue_time_end: Time of Sequence [QueueEnd]
    /// The server made its first token.
    server_first_token_time: Time of Sequence [ServerFirstToken]
    /// The last byte of the response was read.
    finish_time: Time of Request [Finish]
    /// `finish_time − router_send_time`.
    server_latency "server latency": Latency of Request [RouterSend to Finish]
    /// `finish_time − arrival_time`.
    total_latency "total latency": Latency of Request [Arrival to Finish]
    /// Time to first token: `server_first_token_time − arrival_time`; where the clocks do not compare, `ttft_observed`.
    /// `ttft_source` says which.
    ttft "TTFT": Latency of Sequence (|of: &Timeline| of.ttft().map(|(nanos, _)| nanos))
    /// `router_send_time − arrival_time`: the router queue, all that the router held.
    queue_time_in_router "router queue": Latency of Request [Arrival to RouterSend]
    /// `server_first_token_time − server_created_time`: tokenize, server queue and prefill together.
    queue_time_in_server: Latency of Sequence [ServerCreated to ServerFirstToken]
    /// `queue_time_start − server_created_time`: tokenizing and the hand-over to the scheduler.
    tokenize_time "tokenize": Latency of Sequence [ServerCreated to QueueStart]
    /// `queue_time_end − queue_time_start`: the server queue and nothing else.
    pure_queue_time "server queue": Latency of Sequence
    /// The generator's schedule had it sent.
    scheduled_time: Time of Request [Scheduled]
    /// The generator began to send.
    sent_time: Time of Request [Sent]
    /// `sent_time − scheduled_time`: the generator's own lateness, and the waits for a `--max-concurrency` slot and
    /// for the connection to open.
    schedule_lag "client lag": Latency of Request [Scheduled to Sent]
    /// The first event with a generated token was read.
    first_token_time: Time of Sequence [FirstToken]
    /// Prefill finished.
    prefill_end_time: Time of Sequence [PrefillEnd]
    /// `server_first_token_time − queue_time_end`.
    prefill_time "prefill": Latency of Sequence [QueueEnd to ServerFirstToken]
    /// `finish_time − first_token_time`, by contract with the `client_stall` in it: a client that does not read delays our reading.
    /// The `decode` stage of reports is without it.
    decode_time "decode": Latency of Sequence [FirstToken to Finish]
    /// `server_created_time − router_send_time`: the way to the server and its wait to be accepted.
    network_time "network": Latency of Sequence [RouterSend to ServerCreated]
    /// `queue_time_end − router_send_time`.
    server_queue_wait: Latency of Sequence [RouterSend to QueueEnd]
    /// `first_token_time − arrival_time`: as read from the stream.
    ttft_observed "TTFT, as read": Latency of Sequence [Arrival to FirstToken]
    /// `first_token_time − scheduled_time`: free of coordinated omission.
    ttft_from_schedule "TTFT, from schedule": Latency of Sequence [Scheduled to FirstToken]
    /// Time per output token: (last − first event with a token − `client_stall` between them) / (output tokens − those that the
    /// first event brought, 1 where only their total is known). Empty where the number of tokens is not known.
    tpot "time per output token": Latency of Sequence
    /// Mean gap between tokens; an event that brings several shares its gap among them. Empty where events do not show how many they
    /// bring, unless `usage`, trace or log report as many tokens as there were events.
    itl_mean: Latency of Sequence
    /// 99th percentile of the gaps between tokens, within 3 %. Empty as `itl_mean` is.
    itl_p99: Latency of Sequence
    /// Longest gap between tokens. Empty as `itl_mean` is.
    itl_max: Latency of Sequence
    /// Time in which a write to the client was held up: it delays what is read after it and is not the engine's.
    client_stall "client stall": Latency of Request
    /// Prompt tokens served from the prefix cache.
    cached_tokens: Count of Sequence
    /// Times the scheduler took the sequence out of the batch again.
    num_retractions: Count of Sequence
    /// Data-parallel rank that served it.
    dp_rank: Count of Sequence
    /// The model the request named.
    model: Text of Request
    /// The request's path.
    endpoint: Text<Endpoint> of Request
    /// Whether the request asked for a stream.
    stream: Bool of Request
    /// HTTP status of the response.
    status: Count of Request
    /// How it ended: one of the [outcomes](#outcomes).
    outcome: Text<Outcome> of Request
    /// How many times the request was sent to a server, or could not be, as the server took no connection: as the worker hops saw
    /// it, else as the proxy before the servers did.
    attempts: Count of Request
    /// Whether the upstream connection had been used before.
    upstream_reused: Bool of Request
    /// The engine's clock minus ours.
    clock_offset: Seconds of Request (|of: &Timeline| Some(of.offset(ClockOf::Engine)?.nanos))
    /// The true offset lies within ± this.
    clock_offset_error: Seconds of Request (|of: &Timeline| Some(of.offset(ClockOf::Engine)?.error_nanos))
    /// `offset`: the engine's times were put on our clock; `raw`: they stand as the engine gave them.
    clock_state: Text<ClockState> of Sequence (Timeline::clock_state)
    /// Where the engine's moments came from: `meta_info`, `trace` (its spans), `log` (its request log), or empty. Moments that
    /// `meta_info` lacks are taken from the other two where they are joined ([ENGINE.md](ENGINE.md)).
    timing_source: Text<TimingSource> of Sequence
    /// The moment that `ttft` ends at: `server_first_token` or `first_token`.
    ttft_source: Text<TtftSource> of Sequence (|of: &Timeline| of.ttft().map(|(_, source)| source))
    /// Impossible values, by name; they stay as reported, and no figure, mean or histogram includes them: moments out of order
    /// (`queue_end<queue_start`), negative durations (`network_time<0`), durations longer than the whole request
    /// (`pure_queue_time>elapsed`), all of them beyond the clocks' errors; `actual_output_tokens<token_chunks`: no tokens for events
    /// that brought some; more than 100,000,000 tokens (`tokens>100000000`). Named only: `sequences_not_recorded`.
    inconsistency: Text of Sequence
    /// W3C trace id of the request.
    trace_id: Text of Request
    /// The engine's own id of the sequence.
    engine_id: Text of Sequence
    /// Who watched the response and wrote the row: `traffic`, `front` or `hop`.
    seen_by: Text<Side> of Request
    /// Name of the worker hop that it came through.
    worker: Text of Request
    /// Name of the clock that the row's times are on, which is that of the process that wrote it.
    process: Text of Request
    /// Span that was sent upstream as the parent: a hop's row joins the front's row whose `span_id` is its `parent_span_id`.
    span_id: Text<SpanId> of Request
    /// Span that the request came with.
    parent_span_id: Text<SpanId> of Request
    /// The last byte of the request body was read.
    request_end_time: Time of Request [RequestEnd]
    /// The front sent the head upstream.
    forwarded_time: Time of Request [Forwarded]
    /// The worker hop sent the head to the server.
    worker_forwarded_time: Time of Request [WorkerForwarded]
    /// The head of the response was read.
    response_head_time: Time of Request [ResponseHead]
    /// Attempts that did not answer: server, outcome, status, how long each took; joined by `; `.
    failed_attempts: Text<Vec<FailedAttempt>> of Request
    /// The worker hop's clock minus ours, where it is another process.
    hop_clock_offset: Seconds of Request (|of: &Timeline| Some(of.offset(ClockOf::Hop)?.nanos))
    /// The true offset of the hop's clock lies within ± this.
    hop_clock_offset_error: Seconds of Request (|of: &Timeline| Some(of.offset(ClockOf::Hop)?.error_nanos))
    /// The front's clock minus ours, where it is another process.
    front_clock_offset: Seconds of Request (|of: &Timeline| Some(of.offset(ClockOf::Front)?.nanos))
    /// The true offset of the front's clock lies within ± this.
    front_clock_offset_error: Seconds of Request (|of: &Timeline| Some(of.offset(ClockOf::Front)?.error_nanos))
    /// The response was read to the end of its framing (its length, its last chunk); empty without a response.
    message_whole: Bool of Request
    /// The body of a 2xx showed the generation's end, and no error: `[DONE]`, or a whole JSON value. Empty where the body does not
    /// tell.
    generation_whole: Bool of Request
    /// Why the body of a 2xx was not read: `encoded` (`Content-Encoding`), `content_type` (neither events nor JSON), `html` (an HTML
    /// page, which no engine gives), `background` (a reply of `/v1/responses` that only says that the server has queued the request or generates it: no latency of
    /// such a row is the generation's).
    unread: Text<Unread> of Request
    /// Where the number of generated tokens is from: `meta_info`, `usage`, `trace` or `log`; empty where it is not known, and then no
    /// figure is per token.
    token_count_source: Text<TokenCountSource> of Sequence
    /// Events of the stream that brought text or tokens; each may bring several tokens. Empty of a reply that is no stream.
    token_chunks: Count of Sequence
    /// Mean gap between those events, whatever the number of tokens in them.
    chunk_gap_mean: Latency of Sequence
    /// 99th percentile of the gaps between those events, within 3 %; only where they do not tell how many tokens they bring, else
    /// see `itl_p99`.
    chunk_gap_p99: Latency of Sequence
    /// Longest gap between those events.
    chunk_gap_max: Latency of Sequence
    /// The request was over, whoever ended it: the response's last byte was read, or the client, the upstream, a limit or this
    /// process had given it up.
    end_time: Time of Request [End]
    /// `end_time − arrival_time`, however it ended (a hop's own row: from when the hop had read the head).
    elapsed: Seconds of Request (Timeline::elapsed)
    /// The stage it was last seen in, named as in the table of stages; several are joined by `+` where it is not known which, and
    /// `server` stands for all of `network` to `return`: sent to the server, and no token came back. `network` alone: the hop
    /// before the server, or without hops the proxy before the servers, had it and could not send it on, as where the server refused
    /// the connection. `proxy`: a proxy of ours had not sent it on. `connecting`: the generator got no connection. `done`: it went well.
    ended_in: Text<StageSet> of Sequence
    /// The worker hop passed the first bytes of the response's body on: of a stream, its first event.
    worker_first_byte_time: Time of Request
    /// The worker hop passed the last bytes of the response's body on.
    worker_last_byte_time: Time of Request
    /// Longest time between two pieces of the response's body at the worker hop.
    worker_longest_gap: Seconds of Request
    /// What the router held the first event back on its way to the client: first bytes of the body read at the front − passed on by
    /// the hop. Known in the file of a front that has the hop in its process. No stage: an event without a token may come first.
    router_return "router return, first bytes": Latency of Request
    /// The same of the last bytes, a stalled client's time in it. Where it is less than `router_return`, the router held the first
    /// event back longer than the rest: what is measured between tokens is too short by the difference.
    router_return_last: Latency of Request
    /// Longest time between two pieces of the body at the front − `worker_longest_gap`, both without stalls: what the router added
    /// to it; negative where it took from it.
    router_gap_added: Seconds of Request
    /// Durations of this row that are not larger than the errors of the clocks they were taken with, so that only this bound of them
    /// is known; columns joined by `;`. How to take means is described below the columns.
    within_clock_error: Text of Sequence
    /// What the proxy that wrote the row added: the time from `arrival_time` until it had written the last of the
    /// response, without the time in which an upstream had the request (of each sending: from the head's until the last
    /// byte of the response was read, or the sending had failed), without the time that the client held up writes after
    /// that and without `prompt_wait` and the wait for `max_concurrent_requests`. Connecting to an upstream is in it.
    overhead: Seconds of Request
    /// The first token's way from the server to the worker hop; to the front, router and all, where no hop saw it pass: the stage
    /// `return`.
    return_time "return": Latency of Sequence [ServerFirstToken to WorkerFirstToken]
    /// How long the proxy waited for the client to send its prompt before it chose an upstream; only with the policy `cache_aware`,
    /// which goes by it. It is in `ttft` and `total_latency`, and in `queue_time_in_router` where that is known: with other policies
    /// the head has been sent by then, and the same wait is in `network_time`.
    prompt_wait: Seconds of Request
    /// The engine's own end of the request.
    server_finish_time: Time of Sequence [ServerFinish]
    /// The last event with a generated token was read.
    last_token_time: Time of Sequence [LastToken]
    /// The worker hop read the first token, where it was seen there.
    worker_first_token_time: Time of Sequence (|of: &Timeline| of.mark(Moment::WorkerFirstToken).and(of.time(Moment::WorkerFirstToken)))
    /// The part of `client_stall` that had passed when the last of the response was read: what came later delayed nothing.
    client_stall_until_finish: Seconds of Request
    /// Tokens that the first event with any brought, where each event's are known: `tpot` leaves them out.
    first_event_tokens: Count of Sequence
    /// Prompt tokens of the whole request: a prompt's once, however many sequences it has.
    request_prompt_tokens: Count of Request
    /// Those of them that the prefix cache served.
    request_cached_tokens: Count of Request
    /// Generated tokens of the whole request.
    request_output_tokens: Count of Request
    /// What of the request was not measured, joined by `;`: `router` (when it forwarded), `first_token` (a reply that is no stream),
    /// `engine_clock`, `proxy_clock` (how far they are from ours), or why the engine's times lack: `engine_metrics_off`,
    /// `engine_stream` and others, as in `unseen` of the summary.
    unseen: Text<Unseens> of Sequence
    /// `True` where prefill and decode were two servers; else empty.
    disaggregated: Bool of Request (|of: &Timeline| of.prefill().map(|_| true))
    /// The server that prefilled it, where that was another than `host`, which decoded it.
    prefill_host: Text of Request
    /// `bootstrap_room`: the number by which the two servers know the request; of several, the first.
    bootstrap_room: Text of Request
    /// `kv_reserved_time − queue_time_start`: decode's handshake with prefill, and its queue for memory. Prefill waits meanwhile.
    decode_bootstrap_time "decode memory": Latency of Sequence [QueueStart to KvReserved]
    /// In the prefill server queue, by its own clock.
    prefill_queue_time "prefill queue": Latency of Sequence [KvReserved to QueueEnd]
    /// What is left of `kv_arrived_time − kv_reserved_time` without `prefill_queue_time` and `prefill_time`: the transfer of the KV
    /// cache, and what prefill needed to begin with it.
    kv_transfer_time "KV transfer": Latency of Sequence [PrefillEnd to KvArrived]
    /// The part of `kv_transfer_time` in which the prefill server sent, by its own clock. Where it is much less, prefill had the
    /// request late, or decode saw late that all had come.
    kv_send_time: Seconds of Sequence (|of: &Timeline| of.prefill()?.sending)
    /// `decode_start_time − kv_arrived_time`: waiting for a slot of decode's batch.
    decode_queue_time "decode slot": Latency of Sequence [KvArrived to DecodeStart]
    /// `prefill_replied_time − worker_first_token_time`: the router had the first token, and held it until prefill's reply was whole.
    router_hold_time "router hold": Seconds of Sequence [WorkerFirstToken to PrefillReplied]
    /// Decode had reserved memory and told prefill so.
    kv_reserved_time: Time of Sequence [KvReserved]
    /// The KV cache had come to decode.
    kv_arrived_time: Time of Sequence [KvArrived]
    /// It entered decode's batch.
    decode_start_time: Time of Sequence [DecodeStart]
    /// The hop of the prefill server read the last of its reply, for which the router held the first token; empty where it did not.
    prefill_replied_time: Time of Sequence [PrefillReplied]
    /// What the request's headers said that the proxy's `label_headers` names: `x-tenant=acme; x-team=search`.
    labels: Text of Request
    /// `first_token_time − worker_first_token_time`, or − `prefill_replied_time` where the router held the first token until then: the
    /// stage `router return`. Empty where the hop did not see the first token: then its time is in `return_time`.
    router_return_time "router return": Seconds of Sequence [WorkerFirstToken to FirstToken]
    /// `finish_time − sent_time`: bench_serving's end-to-end latency.
    total_latency_from_send "total, from send": Latency of Request [Sent to Finish]
    /// `finish_time − scheduled_time`: free of coordinated omission.
    total_latency_from_schedule "total, from schedule": Latency of Request [Scheduled to Finish]
    /// `first_token_time − sent_time`: bench_serving's TTFT.
    ttft_from_send "TTFT, from send": Latency of Sequence [Sent to FirstToken]
}

#[cfg(test)]
mod tests;
