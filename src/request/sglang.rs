//! The JSON of SGLang's `/generate`, and `meta_info` of every version. `meta_info.rs` interprets its fields.

use super::field::Field;
use super::scan::rule::{Rule, members, object, scalar, text};

const FINISH_REASON: Rule = object(
    Field::FinishReason,
    &[
        ("type", scalar(Field::FinishType)),
        ("status_code", scalar(Field::FinishStatus)),
        ("message", scalar(Field::FinishMessage)),
    ],
);

/// The members of `meta_info` that are read, and between them those that every event has: keys in the order of this list are
/// found without a search. It is the order of 0.5.23; members of older versions are at the end.
const META_MEMBERS: &[(&str, Rule)] = &[
    ("id", scalar(Field::EngineId)),
    ("finish_reason", FINISH_REASON),
    ("prompt_tokens", scalar(Field::PromptTokens)),
    ("weight_version", Rule::SKIP),
    ("num_retractions", scalar(Field::NumRetractions)),
    ("storage_prefetch_wait", scalar(Field::StorageWait)),
    ("storage_staging_wait", Rule::SKIP),
    ("forward_entry_time", scalar(Field::ForwardEntryTime)),
    ("prefill_finished_time", scalar(Field::PrefillFinishedTime)),
    ("queue_time", scalar(Field::QueueTime)),
    ("reasoning_tokens", Rule::SKIP),
    ("completion_tokens", scalar(Field::CompletionTokens)),
    ("cached_tokens", scalar(Field::CachedTokens)),
    ("cached_tokens_details", Rule::SKIP),
    ("dp_rank", scalar(Field::DpRank)),
    ("e2e_latency", scalar(Field::EndToEnd)),
    ("request_received_ts", scalar(Field::RequestReceived)),
    ("first_token_latency", scalar(Field::FirstTokenLatency)),
    ("response_sent_to_client_ts", scalar(Field::ResponseSent)),
    ("request_finished_ts", scalar(Field::RequestFinished)),
    // Until 0.5.11.
    ("total_retractions", scalar(Field::TotalRetractions)),
    ("inference_time", scalar(Field::InferenceTime)),
    // 0.5.5 to 0.5.9.
    ("prefill_finished_ts", scalar(Field::PrefillFinishedTs)),
    ("decode_finished_ts", scalar(Field::DecodeFinished)),
    // 0.5.5.
    ("request_scheduled_ts", scalar(Field::RequestScheduled)),
    ("response_sent_ts", scalar(Field::ResponseSent)),
    ("forward_time", scalar(Field::InferenceTime)),
    // A fork of about 0.4.9.
    ("server_created_time", scalar(Field::ServerCreated)),
    ("server_first_token_time", scalar(Field::ServerFirstToken)),
    ("queue_time_start", scalar(Field::QueueTimeStart)),
    ("queue_time_end", scalar(Field::QueueTimeEnd)),
];

/// `meta_info`, wherever it stands.
pub const META_INFO: Rule = object(Field::MetaInfo, META_MEMBERS);

/// A line of the request log (`--export-metrics-to-file`): the same members at the top, besides the request, which is skipped.
pub static LOG_LINE: Rule = members(META_MEMBERS);

/// An `error` member: an object with a message, or the message itself.
pub const ERROR: Rule = Rule {
    scalar: Some(Field::ErrorMessage),
    ..object(
        Field::Error,
        &[
            ("message", scalar(Field::ErrorMessage)),
            ("code", scalar(Field::ErrorCode)),
            ("type", scalar(Field::ErrorType)),
        ],
    )
};

/// A sequence's object, or an error in its place.
const ITEM: Rule = object(
    Field::Item,
    &[
        ("text", text(Field::Text)),
        ("output_ids", Rule::SKIP),
        ("meta_info", META_INFO),
        ("index", scalar(Field::Index)),
        ("error", ERROR),
        ("object", scalar(Field::ObjectKind)),
        ("message", scalar(Field::ErrorMessage)),
        ("code", scalar(Field::ErrorCode)),
        ("detail", scalar(Field::ErrorMessage)),
    ],
);

static ELEMENT: Rule = ITEM;

/// One event of a `/generate` stream, or a reply: one sequence, or a list for a batch or `n` > 1.
pub static BODY: Rule = ITEM.or_elements(&ELEMENT);
