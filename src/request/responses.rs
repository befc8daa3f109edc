//! The JSON of `/v1/responses`: events that name their type, and a reply.
//!
//! SGLang 0.5.23 (and OpenAI) send a `delta` for each piece of text, reasoning or call arguments. The last event repeats the
//! whole response with its status and `usage`, and no `[DONE]` follows.

use super::field::Field;
use super::openai::DETAILS;
use super::scan::rule::{Rule, elements, members, object, scalar, text};
use super::sglang::ERROR;

/// Newer servers name the counts as OpenAI does, older ones as in a chat.
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

/// A part of an output item's content or reasoning summary.
static PART: Rule = members(&[("text", text(Field::Text))]);
static OUTPUT: Rule = members(&[
    ("content", elements(&PART)),
    ("summary", elements(&PART)),
    ("type", scalar(Field::BlockType)),
]);

/// One event of a stream, or a reply: the few members that both have mean the same. Of an event's output item only the type is
/// read, which says whether it is a call.
pub static BODY: Rule = object(
    Field::Item,
    &[
        ("delta", text(Field::Text)),
        ("item", members(&[("type", scalar(Field::BlockType))])),
        ("type", scalar(Field::EventType)),
        ("response", RESPONSE),
        ("id", scalar(Field::ResponseId)),
        ("output", elements(&OUTPUT)),
        ("status", scalar(Field::ResponseStatus)),
        ("usage", USAGE),
        ("error", ERROR),
        ("message", scalar(Field::ErrorMessage)),
        ("code", scalar(Field::ErrorCode)),
        ("detail", scalar(Field::ErrorMessage)),
    ],
);
