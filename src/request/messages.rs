//! The shapes of Anthropic's `/v1/messages`: events that each tell their type, and a reply.
//!
//! The prompt's tokens come with `message_start`, those generated with `message_delta`, and `message_stop` ends the stream, after
//! an error too. The message's id is made up by the API layer: it is not the engine's.

use super::field::Field;
use super::scan::{Members, Rule};
use super::sglang::ERROR;

const USAGE: Rule = Rule {
    members: Members::of(&[
        ("input_tokens", Rule::scalar(Field::UsageUncachedTokens)),
        ("output_tokens", Rule::scalar(Field::UsageCompletionTokens)),
        (
            "cache_read_input_tokens",
            Rule::scalar(Field::UsageCachedTokens),
        ),
    ]),
    ..Rule::SKIP
};

/// That of `message_start`: SGLang says 0 generated there, whatever comes.
const USAGE_OF_PROMPT: Rule = Rule {
    members: Members::of(&[
        ("input_tokens", Rule::scalar(Field::UsageUncachedTokens)),
        (
            "cache_read_input_tokens",
            Rule::scalar(Field::UsageCachedTokens),
        ),
    ]),
    ..Rule::SKIP
};

/// A block of content, or what is added to one.
const BLOCK_MEMBERS: &[(&str, Rule)] = &[
    ("type", Rule::scalar(Field::BlockType)),
    ("text", Rule::text(Field::Text)),
    ("thinking", Rule::text(Field::Text)),
    ("partial_json", Rule::text(Field::Text)),
];
const BLOCK: Rule = Rule {
    members: Members::of(BLOCK_MEMBERS),
    ..Rule::SKIP
};
static ELEMENT: Rule = BLOCK;

/// One event of a stream.
pub static EVENT: Rule = Rule {
    container: Some(Field::Item),
    members: Members::of(&[
        ("type", Rule::scalar(Field::EventType)),
        ("index", Rule::SKIP),
        ("delta", BLOCK),
        ("content_block", BLOCK),
        (
            "message",
            Rule {
                members: Members::of(&[("usage", USAGE_OF_PROMPT)]),
                ..Rule::SKIP
            },
        ),
        ("usage", USAGE),
        ("error", ERROR),
    ]),
    ..Rule::SKIP
};

/// A whole reply.
pub static REPLY: Rule = Rule {
    container: Some(Field::Item),
    members: Members::of(&[
        (
            "content",
            Rule {
                elements: Some(&ELEMENT),
                ..Rule::SKIP
            },
        ),
        ("usage", USAGE),
        ("error", ERROR),
        ("message", Rule::scalar(Field::ErrorMessage)),
        ("detail", Rule::scalar(Field::ErrorMessage)),
    ]),
    ..Rule::SKIP
};
