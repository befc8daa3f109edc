//! The one table of columns: what a row shows, its unit and how to read it.

use super::column::Unit::{Bool, Count, Latency, Text, Time};
use super::column::{
    Column, Value, count, nanos, of_request, of_sequence, period, span_id, text, time, words,
    yes_no,
};
use super::response::Unread;
use super::sequence::TimingSource;
use super::timeline::{Moment, Period};

mod clocks;
mod end;
mod tokens;
mod way_back;

#[cfg(test)]
mod tests;

/// Every column, in the order of the CSV. New ones go to the end.
pub static COLUMNS: [Column; 95] = [
    of_sequence(
        "req_id",
        Text,
        "Request id; `#index` is added when a request has several sequences.",
        |r| Value::Text(r.row_id()),
    ),
    of_request(
        "success",
        Bool,
        "`True` only when `outcome` is `ok`.",
        |r| Value::Bool(r.is_ok()),
    ),
    of_request("error", Text, "What went wrong, in a few words.", |r| {
        words(&*r.facts.error)
    }),
    of_request(
        "host",
        Text,
        "The server that served it: the hop's upstream, smg's \
        `x-smg-routed-worker-id`, or the only upstream.",
        |r| text(r.facts.host.as_deref()),
    ),
    of_sequence(
        "has_generated_text",
        Bool,
        "Any text came back; empty where the body was not read (`unread`).",
        |r| {
            let is_known = r.sequence.has_text || r.facts.unread.is_none();
            yes_no(is_known.then_some(r.sequence.has_text))
        },
    ),
    of_request(
        "input_length",
        Count,
        "Words of the prompt split at white space (chat: of all messages).",
        |r| count(r.facts.input_length),
    ),
    of_request(
        "expected_output_length",
        Count,
        "`max_new_tokens`, `max_tokens` or \
        `max_completion_tokens` of the request.",
        |r| count(r.facts.expected_output_length),
    ),
    tokens::ACTUAL_PROMPT_TOKENS,
    tokens::ACTUAL_OUTPUT_TOKENS,
    tokens::ACTUAL_TOTAL_TOKENS,
    tokens::OUTPUT_TOKENS_FROM_TRACE,
    tokens::DECODE_LENGTH,
    of_request(
        "arrival_time",
        Time,
        "The front listener had read the request head (no proxy: the \
        generator began to send).",
        |r| time(r, Moment::Arrival),
    ),
    of_request(
        "router_send_time",
        Time,
        "The worker hop read the head: the router had forwarded it. \
        Without a hop only known when the upstream is the server itself.",
        |r| time(r, Moment::RouterSend),
    ),
    of_sequence(
        "server_created_time",
        Time,
        "The server received the request.",
        |r| time(r, Moment::ServerCreated),
    ),
    of_sequence(
        "queue_time_start",
        Time,
        "It entered the scheduler's waiting queue.",
        |r| time(r, Moment::QueueStart),
    ),
    of_sequence(
        "queue_time_end",
        Time,
        "It left the queue into its first batch.",
        |r| time(r, Moment::QueueEnd),
    ),
    of_sequence(
        "server_first_token_time",
        Time,
        "The server made its first token.",
        |r| time(r, Moment::ServerFirstToken),
    ),
    of_request(
        "finish_time",
        Time,
        "The last byte of the response was read.",
        |r| time(r, Moment::Finish),
    ),
    of_request(
        "server_latency",
        Latency,
        "`finish_time − router_send_time`.",
        |r| period(r, Period::SERVER_LATENCY),
    ),
    of_request(
        "total_latency",
        Latency,
        "`finish_time − arrival_time`.",
        |r| period(r, Period::TOTAL_LATENCY),
    ),
    of_sequence(
        "ttft",
        Latency,
        "Time to first token: `server_first_token_time − arrival_time`; where the \
        clocks do not compare, `ttft_observed`. `ttft_source` says which.",
        |r| nanos(r.ttft().map(|(nanos, _)| nanos)),
    ),
    of_request(
        "queue_time_in_router",
        Latency,
        "`router_send_time − arrival_time`: what the router held.",
        |r| period(r, Period::QUEUE_IN_ROUTER),
    ),
    of_sequence(
        "queue_time_in_server",
        Latency,
        "`server_first_token_time − server_created_time`: holds \
        tokenizing, queue and prefill.",
        |r| period(r, Period::QUEUE_IN_SERVER),
    ),
    of_sequence(
        "tokenize_time",
        Latency,
        "`queue_time_start − server_created_time`: tokenizing and the \
        hand-over to the scheduler.",
        |r| period(r, Period::TOKENIZE),
    ),
    of_sequence(
        "pure_queue_time",
        Latency,
        "`queue_time_end − queue_time_start`: waiting in the \
        scheduler's queue and nothing else.",
        |r| nanos(r.pure_queue()),
    ),
    of_request(
        "scheduled_time",
        Time,
        "The generator's schedule said: now.",
        |r| time(r, Moment::Scheduled),
    ),
    of_request("sent_time", Time, "The generator began to send.", |r| {
        time(r, Moment::Sent)
    }),
    of_request(
        "schedule_lag",
        Latency,
        "`sent_time − scheduled_time`: the generator's own lateness, or \
        its wait for a `--max-concurrency` slot.",
        |r| period(r, Period::SCHEDULE_LAG),
    ),
    of_sequence(
        "first_token_time",
        Time,
        "The first event with a generated token was read.",
        |r| time(r, Moment::FirstToken),
    ),
    of_sequence("prefill_end_time", Time, "Prefill finished.", |r| {
        time(r, Moment::PrefillEnd)
    }),
    of_sequence(
        "prefill_time",
        Latency,
        "`server_first_token_time − queue_time_end`.",
        |r| period(r, Period::PREFILL),
    ),
    of_sequence(
        "decode_time",
        Latency,
        "`finish_time − first_token_time`, by contract with the `client_stall` in it: a client that \
        does not read delays our reading. The `decode` stage of reports is without it.",
        |r| period(r, Period::DECODE),
    ),
    of_sequence(
        "network_time",
        Latency,
        "`server_created_time − router_send_time`: the way to the server \
        and its wait to be accepted.",
        |r| period(r, Period::NETWORK),
    ),
    of_sequence(
        "server_queue_wait",
        Latency,
        "`queue_time_end − router_send_time`.",
        |r| period(r, Period::SERVER_QUEUE_WAIT),
    ),
    of_sequence(
        "ttft_observed",
        Latency,
        "`first_token_time − arrival_time`: as read from the stream.",
        |r| period(r, Period::TTFT_OBSERVED),
    ),
    of_sequence(
        "ttft_from_schedule",
        Latency,
        "`first_token_time − scheduled_time`: free of coordinated \
        omission.",
        |r| period(r, Period::TTFT_FROM_SCHEDULE),
    ),
    tokens::TPOT,
    tokens::ITL_MEAN,
    tokens::ITL_P99,
    tokens::ITL_MAX,
    of_request(
        "client_stall",
        Latency,
        "Time in which a write to the client was held up: it delays what is \
        read after it and is not the engine's.",
        |r| nanos(r.facts.client_stall_nanos),
    ),
    of_sequence(
        "cached_tokens",
        Count,
        "Prompt tokens served from the prefix cache.",
        |r| count(r.sequence.cached_tokens),
    ),
    of_sequence(
        "num_retractions",
        Count,
        "Times the scheduler took the sequence out of the batch again.",
        |r| count(r.sequence.num_retractions),
    ),
    of_sequence(
        "dp_rank",
        Count,
        "Data-parallel rank that served it.",
        |r| count(r.sequence.dp_rank),
    ),
    of_request("model", Text, "The model the request named.", |r| {
        text(r.facts.model.as_deref())
    }),
    of_request("endpoint", Text, "The request's path.", |r| {
        text(Some(r.facts.endpoint.path()))
    }),
    of_request(
        "stream",
        Bool,
        "Whether the request asked for a stream.",
        |r| yes_no(r.facts.stream),
    ),
    of_request("status", Count, "HTTP status of the response.", |r| {
        count(r.facts.status.map(u64::from))
    }),
    of_request(
        "outcome",
        Text,
        "How it ended: one of the [outcomes](#outcomes).",
        |r| text(Some(r.facts.outcome.name())),
    ),
    of_request(
        "attempts",
        Count,
        "How many times the request was sent to a server: as the worker hops saw it, \
        else our own sendings.",
        |r| Value::Count(u64::from(r.facts.attempts)),
    ),
    of_request(
        "upstream_reused",
        Bool,
        "Whether the upstream connection had been used before.",
        |r| yes_no(r.facts.upstream_reused),
    ),
    clocks::CLOCK_OFFSET,
    clocks::CLOCK_OFFSET_ERROR,
    clocks::CLOCK_STATE,
    of_sequence(
        "timing_source",
        Text,
        "Where the engine's moments came from: `meta_info`, `trace` (its spans), `log` (its request log), or empty. \
        Moments that `meta_info` lacks are taken from the other two where they are joined ([ENGINE.md](ENGINE.md)).",
        |r| text(r.sequence.timing_source.map(TimingSource::name)),
    ),
    of_sequence(
        "ttft_source",
        Text,
        "The moment that `ttft` ends at: `server_first_token` or `first_token`.",
        |r| text(r.ttft().map(|(_, source)| source)),
    ),
    of_sequence(
        "inconsistency",
        Text,
        "What cannot be, named; the values stand as they came, and no figure, mean or histogram holds them: moments out of order \
        (`queue_end<queue_start`), negative durations (`network_time<0`), durations longer than the whole request \
        (`pure_queue_time>elapsed`), all of them beyond the clocks' errors; `actual_output_tokens<token_chunks`: no tokens for \
        events that brought some, or not half as many; `cached_tokens>actual_prompt_tokens`; more than 100,000,000 tokens. \
        Named only: `server_created!=trace`, where the engine's trace (or `log`) puts that moment more than 1 ms elsewhere, and \
        `sequences_not_recorded`.",
        |r| words(r.inconsistency()),
    ),
    of_request("trace_id", Text, "W3C trace id of the request.", |r| {
        text(r.facts.trace_id.as_deref())
    }),
    of_sequence(
        "engine_id",
        Text,
        "The engine's own id of the sequence.",
        |r| text(r.sequence.engine_id.as_deref()),
    ),
    of_request(
        "seen_by",
        Text,
        "Who watched the response and wrote the row: `traffic`, `front` or `hop`.",
        |r| text(Some(r.timeline.side().name())),
    ),
    of_request(
        "worker",
        Text,
        "Name of the worker hop that it came through.",
        |r| text(r.facts.worker.as_deref()),
    ),
    of_request(
        "process",
        Text,
        "Name of the clock that the row's times are on, which is that of the process that wrote it.",
        |r| text(r.facts.clock.as_deref()),
    ),
    of_request(
        "span_id",
        Text,
        "Span that was sent upstream as the parent: a hop's row joins the front's row whose \
        `span_id` is its `parent_span_id`.",
        |r| span_id(r.facts.span),
    ),
    of_request(
        "parent_span_id",
        Text,
        "Span that the request came with.",
        |r| span_id(r.facts.parent_span),
    ),
    of_request(
        "request_end_time",
        Time,
        "The last byte of the request body was read.",
        |r| time(r, Moment::RequestEnd),
    ),
    of_request(
        "forwarded_time",
        Time,
        "The front sent the head upstream.",
        |r| time(r, Moment::Forwarded),
    ),
    of_request(
        "worker_forwarded_time",
        Time,
        "The worker hop sent the head to the server.",
        |r| time(r, Moment::WorkerForwarded),
    ),
    of_request(
        "response_head_time",
        Time,
        "The head of the response was read.",
        |r| time(r, Moment::ResponseHead),
    ),
    of_request(
        "failed_attempts",
        Text,
        "Attempts that did not answer: server, outcome, status, how long the hop had it; joined by `; `.",
        |r| {
            let failed: Vec<String> = r.facts.failed.iter().map(ToString::to_string).collect();
            words(failed.join("; "))
        },
    ),
    clocks::HOP_CLOCK_OFFSET,
    clocks::HOP_CLOCK_OFFSET_ERROR,
    clocks::FRONT_CLOCK_OFFSET,
    clocks::FRONT_CLOCK_OFFSET_ERROR,
    of_request(
        "message_whole",
        Bool,
        "The response was read to the end of its framing (its length, its last chunk); empty without a response.",
        |r| yes_no(r.facts.message_whole),
    ),
    of_request(
        "generation_whole",
        Bool,
        "The body of a 2xx showed the generation's end, and no error: `[DONE]`, or a whole JSON value. Empty where \
        the body does not tell.",
        |r| yes_no(r.facts.generation_whole),
    ),
    of_request(
        "unread",
        Text,
        "Why nobody knows what the body of a 2xx said: `encoded` (`Content-Encoding`), `content_type` (neither \
        events nor JSON), `background` (a reply of `/v1/responses` that only says that the server has queued the request or generates \
        it: no latency of such a row is the generation's).",
        |r| text(r.facts.unread.map(Unread::name)),
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
    clocks::WITHIN_CLOCK_ERROR,
    end::OVERHEAD,
    way_back::RETURN_TIME,
    end::PROMPT_WAIT,
];
