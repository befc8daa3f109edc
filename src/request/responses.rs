//! The shapes of `/v1/responses`: events that each tell their type, and a reply.
//!
//! SGLang 0.5.23 (and OpenAI) send a `delta` for each piece of text, reasoning or arguments of a call; the last event holds the
//! whole response once more, with its status and `usage`, and no `[DONE]` follows.

use super::field::Field;
use super::openai::DETAILS;
use super::scan::rule::{Rule, elements, members, object, scalar, text};
use super::sglang::ERROR;

/// Newer servers count as OpenAI does, older ones as in a chat.
const USAGE: Rule = members(&[
    ("input_tokens", scalar(Field::UsagePromptTokens)),
    ("input_tokens_details", DETAILS),
    ("output_tokens", scalar(Field::UsageCompletionTokens)),
    ("prompt_tokens", scalar(Field::UsagePromptTokens)),
    ("prompt_tokens_details", DETAILS),
    ("completion_tokens", scalar(Field::UsageCompletionTokens)),
]);

/// `response` of an event.
const RESPONSE: Rule = members(&[
    ("id", scalar(Field::ResponseId)),
    ("error", ERROR),
    ("usage", USAGE),
]);

/// One event of a stream. Of an output item only what makes it a call is looked at.
pub static EVENT: Rule = object(
    Field::Item,
    &[
        ("delta", text(Field::Text)),
        ("item", members(&[("type", scalar(Field::BlockType))])),
        ("type", scalar(Field::EventType)),
        ("response", RESPONSE),
        ("error", ERROR),
        ("message", scalar(Field::ErrorMessage)),
        ("code", scalar(Field::ErrorCode)),
    ],
);

/// A part of an item's content: an answer's, or a reasoning's.
static PART: Rule = members(&[("text", text(Field::Text))]);
static OUTPUT: Rule = members(&[
    ("content", elements(&PART)),
    ("summary", elements(&PART)),
    ("type", scalar(Field::BlockType)),
]);

/// A whole reply.
pub static REPLY: Rule = object(
    Field::Item,
    &[
        ("id", scalar(Field::ResponseId)),
        ("output", elements(&OUTPUT)),
        ("status", scalar(Field::ResponseStatus)),
        ("usage", USAGE),
        ("error", ERROR),
        ("message", scalar(Field::ErrorMessage)),
        ("detail", scalar(Field::ErrorMessage)),
    ],
);
