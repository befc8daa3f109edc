//! What is told of tokens and of the events that they came in.

use crate::request::column::Unit::{Count, Latency, Text};
use crate::request::column::{Column, count, nanos, of_sequence, text};
use crate::request::token_count::TokenCountSource;

pub const ACTUAL_PROMPT_TOKENS: Column = of_sequence(
    "actual_prompt_tokens",
    Count,
    "Prompt tokens by `meta_info`, else `usage`, else the engine's trace or log.",
    |r| count(r.prompt_tokens()),
);

pub const ACTUAL_OUTPUT_TOKENS: Column = of_sequence(
    "actual_output_tokens",
    Count,
    "Generated tokens by `meta_info`, else `usage` (which \
    speaks of a whole request: not where it has several sequences), else the engine's trace or log.",
    |r| count(r.output_tokens()),
);

pub const ACTUAL_TOTAL_TOKENS: Column = of_sequence(
    "actual_total_tokens",
    Count,
    "Prompt and generated tokens.",
    |r| {
        count(
            r.prompt_tokens()
                .zip(r.output_tokens())
                .map(|(a, b)| a.saturating_add(b)),
        )
    },
);

pub const OUTPUT_TOKENS_FROM_TRACE: Column = of_sequence(
    "output_tokens_from_trace",
    Count,
    "Generated tokens by the engine's trace, where that was joined.",
    |r| count(r.sequence.trace_tokens),
);

pub const DECODE_LENGTH: Column = of_sequence(
    "decode_length",
    Count,
    "The same as `actual_output_tokens`. Events of a stream are never taken for tokens: `token_chunks` counts them.",
    |r| count(r.output_tokens()),
);

pub const TPOT: Column = of_sequence(
    "tpot",
    Latency,
    "Time per output token: (last − first event with a token − `client_stall` between them) / (output tokens − those that \
    the first event brought, 1 where only their whole number is told). Empty where nobody told how many tokens there were.",
    |r| nanos(r.tpot()),
);

pub const ITL_MEAN: Column = of_sequence(
    "itl_mean",
    Latency,
    "Mean gap between tokens; an event that brings several shares its gap \
    among them. Empty where events do not tell how many they bring, unless `usage`, trace or log tell as many tokens \
    as there were events.",
    |r| nanos(r.itl().mean_nanos),
);

pub const ITL_P99: Column = of_sequence(
    "itl_p99",
    Latency,
    "99th percentile of the gaps between tokens, within 3 %. Empty as `itl_mean` is.",
    |r| nanos(r.itl().p99_nanos),
);

pub const ITL_MAX: Column = of_sequence(
    "itl_max",
    Latency,
    "Longest gap between tokens. Empty as `itl_mean` is.",
    |r| nanos(r.itl().max_nanos),
);

pub const TOKEN_COUNT_SOURCE: Column = of_sequence(
    "token_count_source",
    Text,
    "Who told the number of generated tokens: `meta_info`, `usage`, `trace` or `log`; empty where nobody did, and then no figure \
    is per token.",
    |r| text(r.token_source().map(TokenCountSource::name)),
);

pub const TOKEN_CHUNKS: Column = of_sequence(
    "token_chunks",
    Count,
    "Events of the stream that brought text or tokens; each may bring several tokens. Empty of a reply that is no \
    stream.",
    |r| count(Some(r.sequence.token_events).filter(|events| *events > 0)),
);

pub const CHUNK_GAP_MEAN: Column = of_sequence(
    "chunk_gap_mean",
    Latency,
    "Mean gap between those events, whatever the number of tokens in them.",
    |r| nanos(r.sequence.chunk_gaps.mean_nanos),
);

pub const CHUNK_GAP_P99: Column = of_sequence(
    "chunk_gap_p99",
    Latency,
    "99th percentile of the gaps between those events, within 3 %; only where they do not tell how many tokens they \
    bring, else see `itl_p99`.",
    |r| nanos(r.sequence.chunk_gaps.p99_nanos),
);

pub const CHUNK_GAP_MAX: Column = of_sequence(
    "chunk_gap_max",
    Latency,
    "Longest gap between those events.",
    |r| nanos(r.sequence.chunk_gaps.max_nanos),
);
