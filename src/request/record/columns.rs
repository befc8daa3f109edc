//! The one table of columns: what a row shows, its unit and how to read it.

use super::TimingSource;
use super::column::{
    Column, Unit, Value, column, count, nanos, span, span_id, text, time, words, yes_no,
};
use crate::request::response::Unread;
use crate::request::timeline::{ClockOf, Moment, Relation, Span};

mod end;
mod tokens;
mod way_back;

/// Every column, in the order of the CSV. New ones go to the end.
pub static COLUMNS: [Column; 92] = [
    column!(
        "req_id",
        Text,
        "Request id; `#index` is added when a request has several sequences.",
        |r| Value::Text(r.row_id())
    ),
    column!(
        "success",
        Bool,
        "`True` only when `outcome` is `ok`.",
        |r| Value::Bool(r.is_ok())
    ),
    column!(
        "error",
        Text,
        "What went wrong, in a few words.",
        |r| words(&*r.facts.error)
    ),
    column!(
        "host",
        Text,
        "The server that served it: the hop's upstream, smg's \
        `x-smg-routed-worker-id`, or the only upstream.",
        |r| text(r.facts.host.as_deref())
    ),
    column!(
        "has_generated_text",
        Bool,
        "Any text came back; empty where the body was not read (`unread`).",
        |r| {
            let is_known = r.sequence.has_text || r.facts.unread.is_none();
            yes_no(is_known.then_some(r.sequence.has_text))
        }
    ),
    column!(
        "input_length",
        Count,
        "Words of the prompt split at white space (chat: of all messages).",
        |r| count(r.facts.input_length)
    ),
    column!(
        "expected_output_length",
        Count,
        "`max_new_tokens`, `max_tokens` or \
        `max_completion_tokens` of the request.",
        |r| count(r.facts.expected_output_length)
    ),
    column!(
        "actual_prompt_tokens",
        Count,
        "Prompt tokens by `meta_info`, else `usage`.",
        |r| count(r.prompt_tokens())
    ),
    column!(
        "actual_output_tokens",
        Count,
        "Generated tokens by `meta_info`, else `usage` (which \
        speaks of a whole request: empty when it has several sequences).",
        |r| count(r.output_tokens())
    ),
    column!(
        "actual_total_tokens",
        Count,
        "Prompt and generated tokens.",
        |r| {
            count(
                r.prompt_tokens()
                    .zip(r.output_tokens())
                    .map(|(a, b)| a.saturating_add(b)),
            )
        }
    ),
    column!(
        "output_tokens_from_trace",
        Count,
        "Generated tokens by a joined trace; no trace is joined \
        yet, so always empty.",
        |_| Value::Empty
    ),
    column!(
        "decode_length",
        Count,
        "The same as `actual_output_tokens`. Events of a stream are never taken for tokens: `token_chunks` counts them.",
        |r| count(r.output_tokens())
    ),
    column!(
        "arrival_time",
        Time,
        "The front listener had read the request head (no proxy: the \
        generator began to send).",
        |r| time(r, Moment::Arrival)
    ),
    column!(
        "router_send_time",
        Time,
        "The worker hop read the head: the router had forwarded it. \
        Without a hop only known when the upstream is the server itself.",
        |r| time(r, Moment::RouterSend)
    ),
    column!(
        "server_created_time",
        Time,
        "The server received the request.",
        |r| time(r, Moment::ServerCreated)
    ),
    column!(
        "queue_time_start",
        Time,
        "It entered the scheduler's waiting queue.",
        |r| time(r, Moment::QueueStart)
    ),
    column!(
        "queue_time_end",
        Time,
        "It left the queue into its first batch.",
        |r| time(r, Moment::QueueEnd)
    ),
    column!(
        "server_first_token_time",
        Time,
        "The server made its first token.",
        |r| time(r, Moment::ServerFirstToken)
    ),
    column!(
        "finish_time",
        Time,
        "The last byte of the response was read.",
        |r| time(r, Moment::Finish)
    ),
    column!(
        "server_latency",
        Latency,
        "`finish_time − router_send_time`.",
        |r| span(r, Span::SERVER_LATENCY)
    ),
    column!(
        "total_latency",
        Latency,
        "`finish_time − arrival_time`.",
        |r| span(r, Span::TOTAL_LATENCY)
    ),
    column!(
        "ttft",
        Latency,
        "Time to first token: `server_first_token_time − arrival_time`; where the \
        clocks do not compare, `ttft_observed`. `ttft_source` says which.",
        |r| nanos(r.ttft().map(|(nanos, _)| nanos))
    ),
    column!(
        "queue_time_in_router",
        Latency,
        "`router_send_time − arrival_time`: what the router held.",
        |r| span(r, Span::QUEUE_IN_ROUTER)
    ),
    column!(
        "queue_time_in_server",
        Latency,
        "`server_first_token_time − server_created_time`: holds \
        tokenizing, queue and prefill.",
        |r| span(r, Span::QUEUE_IN_SERVER)
    ),
    column!(
        "tokenize_time",
        Latency,
        "`queue_time_start − server_created_time`: tokenizing and the \
        hand-over to the scheduler.",
        |r| span(r, Span::TOKENIZE)
    ),
    column!(
        "pure_queue_time",
        Latency,
        "`queue_time_end − queue_time_start`: waiting in the \
        scheduler's queue and nothing else.",
        |r| nanos(r.pure_queue())
    ),
    column!(
        "scheduled_time",
        Time,
        "The generator's schedule said: now.",
        |r| time(r, Moment::Scheduled)
    ),
    column!("sent_time", Time, "The generator began to send.", |r| time(
        r,
        Moment::Sent
    )),
    column!(
        "schedule_lag",
        Latency,
        "`sent_time − scheduled_time`: the generator's own lateness, or \
        its wait for a `--max-concurrency` slot.",
        |r| span(r, Span::SCHEDULE_LAG)
    ),
    column!(
        "first_token_time",
        Time,
        "The first event with a generated token was read.",
        |r| time(r, Moment::FirstToken)
    ),
    column!("prefill_end_time", Time, "Prefill finished.", |r| time(
        r,
        Moment::PrefillEnd
    )),
    column!(
        "prefill_time",
        Latency,
        "`server_first_token_time − queue_time_end`.",
        |r| span(r, Span::PREFILL)
    ),
    column!(
        "decode_time",
        Latency,
        "`finish_time − first_token_time`, by contract with the `client_stall` in it: a client that \
        does not read delays our reading. The `decode` stage of reports is without it.",
        |r| span(r, Span::DECODE)
    ),
    column!(
        "network_time",
        Latency,
        "`server_created_time − router_send_time`: the way to the server \
        and its wait to be accepted.",
        |r| span(r, Span::NETWORK)
    ),
    column!(
        "server_queue_wait",
        Latency,
        "`queue_time_end − router_send_time`.",
        |r| span(r, Span::SERVER_QUEUE_WAIT)
    ),
    column!(
        "ttft_observed",
        Latency,
        "`first_token_time − arrival_time`: as read from the stream.",
        |r| span(r, Span::TTFT_OBSERVED)
    ),
    column!(
        "ttft_from_schedule",
        Latency,
        "`first_token_time − scheduled_time`: free of coordinated \
        omission.",
        |r| span(r, Span::TTFT_FROM_SCHEDULE)
    ),
    tokens::TPOT,
    tokens::ITL_MEAN,
    tokens::ITL_P99,
    tokens::ITL_MAX,
    column!(
        "client_stall",
        Latency,
        "Time in which a write to the client was held up: it delays what is \
        read after it and is not the engine's.",
        |r| nanos(r.facts.client_stall_nanos)
    ),
    column!(
        "cached_tokens",
        Count,
        "Prompt tokens served from the prefix cache.",
        |r| count(r.sequence.cached_tokens)
    ),
    column!(
        "num_retractions",
        Count,
        "Times the scheduler took the sequence out of the batch again.",
        |r| count(r.sequence.num_retractions)
    ),
    column!(
        "dp_rank",
        Count,
        "Data-parallel rank that served it.",
        |r| count(r.sequence.dp_rank)
    ),
    column!("model", Text, "The model the request named.", |r| text(
        r.facts.model.as_deref()
    )),
    column!("endpoint", Text, "The request's path.", |r| text(Some(
        r.facts.endpoint.path()
    ))),
    column!(
        "stream",
        Bool,
        "Whether the request asked for a stream.",
        |r| yes_no(r.facts.stream)
    ),
    column!("status", Count, "HTTP status of the response.", |r| count(
        r.facts.status.map(u64::from)
    )),
    column!(
        "outcome",
        Text,
        "How it ended: one of the [outcomes](#outcomes).",
        |r| text(Some(r.facts.outcome.name()))
    ),
    column!(
        "attempts",
        Count,
        "How many times the request was sent to a server: as the worker hops saw it, \
        else our own sendings.",
        |r| Value::Count(u64::from(r.facts.attempts))
    ),
    column!(
        "upstream_reused",
        Bool,
        "Whether the upstream connection had been used before.",
        |r| yes_no(r.facts.upstream_reused)
    ),
    column!(
        "clock_offset",
        Seconds,
        "The engine's clock minus ours.",
        |r| nanos(r.offset(ClockOf::Engine).map(|offset| offset.nanos))
    ),
    column!(
        "clock_offset_error",
        Seconds,
        "The true offset lies within ± this.",
        |r| nanos(r.offset(ClockOf::Engine).map(|offset| offset.error_nanos))
    ),
    column!(
        "clock_state",
        Text,
        "`offset`: the engine's times were put on our clock; `raw`: they stand \
        as the engine gave them.",
        |r| match r.timeline.relation(ClockOf::Engine) {
            _ if !r.has_engine_times() => Value::Empty,
            Relation::Unknown => text(Some("raw")),
            Relation::Same | Relation::Apart(_) => text(Some("offset")),
        }
    ),
    column!(
        "timing_source",
        Text,
        "Where the engine's moments came from: `meta_info`, or empty.",
        |r| text(r.sequence.timing_source.map(TimingSource::name))
    ),
    column!(
        "ttft_source",
        Text,
        "The moment that `ttft` ends at: `server_first_token` or `first_token`.",
        |r| text(r.ttft().map(|(_, source)| source))
    ),
    column!(
        "inconsistency",
        Text,
        "Moments out of order and negative durations, named; the values stand \
        as they came.",
        |r| words(r.inconsistency())
    ),
    column!("trace_id", Text, "W3C trace id of the request.", |r| text(
        r.facts.trace_id.as_deref()
    )),
    column!(
        "engine_id",
        Text,
        "The engine's own id of the sequence.",
        |r| text(r.sequence.engine_id.as_deref())
    ),
    column!(
        "seen_by",
        Text,
        "Who watched the response and wrote the row: `traffic`, `front` or `hop`.",
        |r| text(Some(r.timeline.side().name()))
    ),
    column!(
        "worker",
        Text,
        "Name of the worker hop that it came through.",
        |r| text(r.facts.worker.as_deref())
    ),
    column!(
        "process",
        Text,
        "Name of the clock that the row's times are on, which is that of the process that wrote it.",
        |r| text(r.facts.clock.as_deref())
    ),
    column!(
        "span_id",
        Text,
        "Span that was sent upstream as the parent: a hop's row joins the front's row whose \
        `span_id` is its `parent_span_id`.",
        |r| span_id(r.facts.span)
    ),
    column!(
        "parent_span_id",
        Text,
        "Span that the request came with.",
        |r| span_id(r.facts.parent_span)
    ),
    column!(
        "request_end_time",
        Time,
        "The last byte of the request body was read.",
        |r| time(r, Moment::RequestEnd)
    ),
    column!(
        "forwarded_time",
        Time,
        "The front sent the head upstream.",
        |r| time(r, Moment::Forwarded)
    ),
    column!(
        "worker_forwarded_time",
        Time,
        "The worker hop sent the head to the server.",
        |r| time(r, Moment::WorkerForwarded)
    ),
    column!(
        "response_head_time",
        Time,
        "The head of the response was read.",
        |r| time(r, Moment::ResponseHead)
    ),
    column!(
        "failed_attempts",
        Text,
        "Attempts that did not answer: server, outcome, status, how long the hop had it; joined by `; `.",
        |r| {
            let failed: Vec<String> = r.facts.failed.iter().map(ToString::to_string).collect();
            words(failed.join("; "))
        }
    ),
    column!(
        "hop_clock_offset",
        Seconds,
        "The worker hop's clock minus ours, where it is another process.",
        |r| nanos(r.offset(ClockOf::Hop).map(|offset| offset.nanos))
    ),
    column!(
        "hop_clock_offset_error",
        Seconds,
        "The true offset of the hop's clock lies within ± this.",
        |r| nanos(r.offset(ClockOf::Hop).map(|offset| offset.error_nanos))
    ),
    column!(
        "front_clock_offset",
        Seconds,
        "The front's clock minus ours, where it is another process.",
        |r| nanos(r.offset(ClockOf::Front).map(|offset| offset.nanos))
    ),
    column!(
        "front_clock_offset_error",
        Seconds,
        "The true offset of the front's clock lies within ± this.",
        |r| nanos(r.offset(ClockOf::Front).map(|offset| offset.error_nanos))
    ),
    column!(
        "message_whole",
        Bool,
        "The response was read to the end of its framing (its length, its last chunk); empty without a response.",
        |r| yes_no(r.facts.message_whole)
    ),
    column!(
        "generation_whole",
        Bool,
        "The body of a 2xx showed the generation's end, and no error: `[DONE]`, or a whole JSON value. Empty where \
        the body does not tell.",
        |r| yes_no(r.facts.generation_whole)
    ),
    column!(
        "unread",
        Text,
        "Why nobody knows what the body of a 2xx said: `encoded` (`Content-Encoding`), `content_type` (neither \
        events nor JSON), `endpoint` (its shapes are not read yet).",
        |r| text(r.facts.unread.map(Unread::name))
    ),
    tokens::TOKEN_COUNT_SOURCE,
    tokens::TOKEN_CHUNKS,
    tokens::CHUNK_GAP_MEAN,
    tokens::CHUNK_GAP_P99,
    tokens::CHUNK_GAP_MAX,
    end::END_TIME,
    end::ELAPSED,
    end::ENDED_IN,
    way_back::WORKER_FIRST_BYTE_TIME,
    way_back::WORKER_LAST_BYTE_TIME,
    way_back::WORKER_LONGEST_GAP,
    way_back::ROUTER_RETURN,
    way_back::ROUTER_RETURN_LAST,
    way_back::ROUTER_GAP_ADDED,
    way_back::WITHIN_CLOCK_ERROR,
];
