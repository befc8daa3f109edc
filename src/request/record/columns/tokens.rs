//! What is told of tokens and of the events that they came in.

use super::super::TokenCountSource;
use super::super::column::{Column, Unit, column, count, nanos, text};

pub const TPOT: Column = column!(
    "tpot",
    Latency,
    "Time per output token: (last − first event with a token) / (output tokens − those that the first event \
    brought, 1 where `usage` alone tells the number). Empty where nobody told how many tokens there were.",
    |r| nanos(r.tpot())
);

pub const ITL_MEAN: Column = column!(
    "itl_mean",
    Latency,
    "Mean gap between tokens; an event that brings several shares its gap \
    among them. Empty where events do not tell how many they bring, unless `usage` tells as many tokens as there \
    were events.",
    |r| nanos(r.itl().mean_nanos)
);

pub const ITL_P99: Column = column!(
    "itl_p99",
    Latency,
    "99th percentile of the gaps between tokens, within 3 %. Empty as `itl_mean` is.",
    |r| nanos(r.itl().p99_nanos)
);

pub const ITL_MAX: Column = column!(
    "itl_max",
    Latency,
    "Longest gap between tokens. Empty as `itl_mean` is.",
    |r| nanos(r.itl().max_nanos)
);

pub const TOKEN_COUNT_SOURCE: Column = column!(
    "token_count_source",
    Text,
    "Who told the number of generated tokens: `meta_info` or `usage`; empty where nobody did, and then no figure \
    is per token.",
    |r| text(r.token_source().map(TokenCountSource::name))
);

pub const TOKEN_CHUNKS: Column = column!(
    "token_chunks",
    Count,
    "Events of the stream that brought text or tokens; each may bring several tokens. Empty of a reply that is no \
    stream.",
    |r| count(Some(r.sequence.token_events).filter(|events| *events > 0))
);

pub const CHUNK_GAP_MEAN: Column = column!(
    "chunk_gap_mean",
    Latency,
    "Mean gap between those events, whatever the number of tokens in them.",
    |r| nanos(r.sequence.chunk_gaps.mean_nanos)
);

pub const CHUNK_GAP_P99: Column = column!(
    "chunk_gap_p99",
    Latency,
    "99th percentile of the gaps between those events, within 3 %; only where they do not tell how many tokens they \
    bring, else see `itl_p99`.",
    |r| nanos(r.sequence.chunk_gaps.p99_nanos)
);

pub const CHUNK_GAP_MAX: Column = column!(
    "chunk_gap_max",
    Latency,
    "Longest gap between those events.",
    |r| nanos(r.sequence.chunk_gaps.max_nanos)
);
