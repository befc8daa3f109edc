//! SGLang's own shapes: `/generate` events and replies, and `meta_info` of every generation. What its fields mean:
//! `meta_info.rs`.

use super::field::Field;
use super::scan::{Members, Rule};

const FINISH_REASON: Rule = Rule {
    container: Some(Field::FinishReason),
    members: Members::of(&[
        ("type", Rule::scalar(Field::FinishType)),
        ("status_code", Rule::scalar(Field::FinishStatus)),
        ("message", Rule::scalar(Field::FinishMessage)),
    ]),
    ..Rule::SKIP
};

/// The members of `meta_info` that are read, and between them those that every event has: keys that come
/// in the order of this list cost no search. It is the order of 0.5.23; those of older generations are at the end.
const META_MEMBERS: &[(&str, Rule)] = &[
    ("id", Rule::scalar(Field::EngineId)),
    ("finish_reason", FINISH_REASON),
    ("prompt_tokens", Rule::scalar(Field::PromptTokens)),
    ("weight_version", Rule::SKIP),
    ("num_retractions", Rule::scalar(Field::NumRetractions)),
    ("storage_prefetch_wait", Rule::scalar(Field::StorageWait)),
    ("storage_staging_wait", Rule::SKIP),
    ("forward_entry_time", Rule::scalar(Field::ForwardEntryTime)),
    (
        "prefill_finished_time",
        Rule::scalar(Field::PrefillFinishedTime),
    ),
    ("queue_time", Rule::scalar(Field::QueueTime)),
    ("reasoning_tokens", Rule::SKIP),
    ("completion_tokens", Rule::scalar(Field::CompletionTokens)),
    ("cached_tokens", Rule::scalar(Field::CachedTokens)),
    ("cached_tokens_details", Rule::SKIP),
    ("dp_rank", Rule::scalar(Field::DpRank)),
    ("e2e_latency", Rule::scalar(Field::EndToEnd)),
    ("request_received_ts", Rule::scalar(Field::RequestReceived)),
    (
        "first_token_latency",
        Rule::scalar(Field::FirstTokenLatency),
    ),
    (
        "response_sent_to_client_ts",
        Rule::scalar(Field::ResponseSent),
    ),
    ("request_finished_ts", Rule::scalar(Field::RequestFinished)),
    // Until 0.5.11.
    ("total_retractions", Rule::scalar(Field::TotalRetractions)),
    ("inference_time", Rule::scalar(Field::InferenceTime)),
    // 0.5.5 to 0.5.9.
    (
        "prefill_finished_ts",
        Rule::scalar(Field::PrefillFinishedTs),
    ),
    ("decode_finished_ts", Rule::scalar(Field::DecodeFinished)),
    // 0.5.5.
    (
        "request_scheduled_ts",
        Rule::scalar(Field::RequestScheduled),
    ),
    ("response_sent_ts", Rule::scalar(Field::ResponseSent)),
    ("forward_time", Rule::scalar(Field::InferenceTime)),
    // A fork of about 0.4.9.
    ("server_created_time", Rule::scalar(Field::ServerCreated)),
    (
        "server_first_token_time",
        Rule::scalar(Field::ServerFirstToken),
    ),
    ("queue_time_start", Rule::scalar(Field::QueueTimeStart)),
    ("queue_time_end", Rule::scalar(Field::QueueTimeEnd)),
];

/// `meta_info` itself, wherever it stands.
pub const META_INFO: Rule = Rule {
    container: Some(Field::MetaInfo),
    members: Members::of(META_MEMBERS),
    ..Rule::SKIP
};

/// A line of the request log (`--export-metrics-to-file`): the same members on their own, and besides them the request,
/// which is skipped.
pub static LOG_LINE: Rule = Rule {
    members: Members::of(META_MEMBERS),
    ..Rule::SKIP
};

/// An `error` member: an object with a message, or the message itself.
pub const ERROR: Rule = Rule {
    scalar: Some(Field::ErrorMessage),
    container: Some(Field::Error),
    members: Members::of(&[
        ("message", Rule::scalar(Field::ErrorMessage)),
        ("code", Rule::scalar(Field::ErrorCode)),
        ("type", Rule::scalar(Field::ErrorType)),
    ]),
    ..Rule::SKIP
};

/// The members of a sequence's object, and of an error that stands in its place.
const ITEM_MEMBERS: &[(&str, Rule)] = &[
    ("text", Rule::text(Field::Text)),
    ("output_ids", Rule::SKIP),
    ("meta_info", META_INFO),
    ("index", Rule::scalar(Field::Index)),
    ("error", ERROR),
    ("object", Rule::scalar(Field::ObjectKind)),
    ("message", Rule::scalar(Field::ErrorMessage)),
    ("code", Rule::scalar(Field::ErrorCode)),
    ("detail", Rule::scalar(Field::ErrorMessage)),
];

/// One event of a `/generate` stream.
pub static EVENT: Rule = Rule {
    container: Some(Field::Item),
    members: Members::of(ITEM_MEMBERS),
    ..Rule::SKIP
};

/// A whole `/generate` reply: one sequence, or the list of a batch or of n > 1.
pub static REPLY: Rule = Rule {
    container: Some(Field::Item),
    members: Members::of(ITEM_MEMBERS),
    elements: Some(&EVENT),
    ..Rule::SKIP
};
