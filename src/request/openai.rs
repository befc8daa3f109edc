//! The OpenAI shapes: chunks of a stream and whole replies, of completions and of chat.
//!
//! Streams carry no timings; a reply has `choices[].meta_info` when the request said
//! `return_meta_info`.

use super::field::Field;
use super::scan::{Members, Rule};
use super::sglang::{ERROR, META_INFO};

const SAID_MEMBERS: &[(&str, Rule)] = &[
    ("reasoning_content", Rule::text(Field::Text)),
    ("content", Rule::text(Field::Text)),
    ("reasoning", Rule::text(Field::Text)),
    (
        "tool_calls",
        Rule {
            elements: Some(&ONE_TOOL_CALL),
            ..Rule::SKIP
        },
    ),
];

/// What the model said: `delta` of a chunk, `message` of a reply.
const SAID: Rule = Rule {
    members: Members::of(SAID_MEMBERS),
    ..Rule::SKIP
};

static ONE_TOOL_CALL: Rule = TOOL_CALL;

const TOOL_CALL: Rule = Rule {
    container: Some(Field::ToolCall),
    ..Rule::SKIP
};

static CHOICE: Rule = Rule {
    container: Some(Field::Choice),
    members: Members::of(&[
        ("index", Rule::scalar(Field::Index)),
        ("text", Rule::text(Field::Text)),
        ("delta", SAID),
        ("logprobs", Rule::SKIP),
        ("finish_reason", Rule::scalar(Field::FinishType)),
        ("matched_stop", Rule::SKIP),
        ("meta_info", META_INFO),
        ("message", SAID),
    ]),
    ..Rule::SKIP
};

const USAGE: Rule = Rule {
    members: Members::of(&[
        ("prompt_tokens", Rule::scalar(Field::UsagePromptTokens)),
        (
            "completion_tokens",
            Rule::scalar(Field::UsageCompletionTokens),
        ),
        (
            "prompt_tokens_details",
            Rule {
                members: Members::of(&[("cached_tokens", Rule::scalar(Field::UsageCachedTokens))]),
                ..Rule::SKIP
            },
        ),
    ]),
    ..Rule::SKIP
};

/// A chunk, or a whole reply: they differ only in what the choices hold.
pub static CHUNK: Rule = Rule {
    members: Members::of(&[
        ("id", Rule::scalar(Field::ResponseId)),
        ("object", Rule::scalar(Field::ObjectKind)),
        ("created", Rule::SKIP),
        ("model", Rule::SKIP),
        (
            "choices",
            Rule {
                elements: Some(&CHOICE),
                ..Rule::SKIP
            },
        ),
        ("usage", USAGE),
        ("error", ERROR),
        ("message", Rule::scalar(Field::ErrorMessage)),
        ("code", Rule::scalar(Field::ErrorCode)),
        ("detail", Rule::scalar(Field::ErrorMessage)),
    ]),
    ..Rule::SKIP
};
