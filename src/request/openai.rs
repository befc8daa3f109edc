//! The JSON of OpenAI's completions and chat: chunks of a stream, and replies.
//!
//! Streams carry no timings; a reply has `choices[].meta_info` if the request set `return_meta_info`.

use super::field::Field;
use super::meta_info::META_INFO;
use super::scan::rule::{Rule, elements, members, object, scalar, text};
use super::sglang::ERROR;

/// The generated message: `delta` of a chunk, `message` of a reply.
const MESSAGE: Rule = members(&[
    ("reasoning_content", text(Field::Text)),
    ("content", text(Field::Text)),
    ("reasoning", text(Field::Text)),
    ("tool_calls", TOOL_CALLS),
]);
const TOOL_CALLS: Rule = elements(&TOOL_CALL);
static TOOL_CALL: Rule = object(Field::ToolCall, &[]);

static CHOICE: Rule = object(
    Field::Choice,
    &[
        ("index", scalar(Field::Index)),
        ("text", text(Field::Text)),
        ("delta", MESSAGE),
        ("logprobs", Rule::SKIP),
        ("finish_reason", scalar(Field::FinishType)),
        ("matched_stop", Rule::SKIP),
        ("meta_info", META_INFO),
        ("message", MESSAGE),
    ],
);

/// `prompt_tokens_details`.
pub const DETAILS: Rule = members(&[("cached_tokens", scalar(Field::UsageCachedTokens))]);
const USAGE: Rule = members(&[
    ("prompt_tokens", scalar(Field::UsagePromptTokens)),
    ("completion_tokens", scalar(Field::UsageCompletionTokens)),
    ("prompt_tokens_details", DETAILS),
]);

/// A chunk, or a reply: they differ only in what the choices hold.
pub static CHUNK: Rule = members(&[
    ("id", scalar(Field::ResponseId)),
    ("object", scalar(Field::ObjectKind)),
    ("created", Rule::SKIP),
    ("model", Rule::SKIP),
    ("choices", elements(&CHOICE)),
    ("usage", USAGE),
    ("error", ERROR),
    ("message", scalar(Field::ErrorMessage)),
    ("code", scalar(Field::ErrorCode)),
    ("detail", scalar(Field::ErrorMessage)),
]);
