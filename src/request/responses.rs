//! The shapes of `/v1/responses`: events that each tell their type, and a reply.
//!
//! SGLang 0.5.23 (and OpenAI) send a `delta` for each piece of text, reasoning or arguments of a call; the last event holds the
//! whole response once more, with its status and `usage`, and no `[DONE]` follows.

use super::field::Field;
use super::scan::{Members, Rule};
use super::sglang::ERROR;

/// Newer servers count as OpenAI does, older ones as in a chat.
const USAGE: Rule = Rule {
    members: Members::of(&[
        ("input_tokens", Rule::scalar(Field::UsagePromptTokens)),
        ("input_tokens_details", DETAILS),
        ("output_tokens", Rule::scalar(Field::UsageCompletionTokens)),
        ("prompt_tokens", Rule::scalar(Field::UsagePromptTokens)),
        ("prompt_tokens_details", DETAILS),
        (
            "completion_tokens",
            Rule::scalar(Field::UsageCompletionTokens),
        ),
    ]),
    ..Rule::SKIP
};

const DETAILS: Rule = Rule {
    members: Members::of(&[("cached_tokens", Rule::scalar(Field::UsageCachedTokens))]),
    ..Rule::SKIP
};

/// `response` of an event.
const RESPONSE: Rule = Rule {
    members: Members::of(&[
        ("id", Rule::scalar(Field::ResponseId)),
        ("error", ERROR),
        ("usage", USAGE),
    ]),
    ..Rule::SKIP
};

/// An output item; only what makes it a call is looked at.
const ITEM: Rule = Rule {
    members: Members::of(&[("type", Rule::scalar(Field::BlockType))]),
    ..Rule::SKIP
};

/// One event of a stream.
pub static EVENT: Rule = Rule {
    container: Some(Field::Item),
    members: Members::of(&[
        ("delta", Rule::text(Field::Text)),
        ("item", ITEM),
        ("type", Rule::scalar(Field::EventType)),
        ("response", RESPONSE),
        ("error", ERROR),
        ("message", Rule::scalar(Field::ErrorMessage)),
        ("code", Rule::scalar(Field::ErrorCode)),
    ]),
    ..Rule::SKIP
};

/// A part of an item's content: an answer's, or a reasoning's.
static PART: Rule = Rule {
    members: Members::of(&[("text", Rule::text(Field::Text))]),
    ..Rule::SKIP
};
const PARTS: Rule = Rule {
    elements: Some(&PART),
    ..Rule::SKIP
};
static OUTPUT: Rule = Rule {
    members: Members::of(&[
        ("content", PARTS),
        ("summary", PARTS),
        ("type", Rule::scalar(Field::BlockType)),
    ]),
    ..Rule::SKIP
};

/// A whole reply.
pub static REPLY: Rule = Rule {
    container: Some(Field::Item),
    members: Members::of(&[
        ("id", Rule::scalar(Field::ResponseId)),
        (
            "output",
            Rule {
                elements: Some(&OUTPUT),
                ..Rule::SKIP
            },
        ),
        ("status", Rule::scalar(Field::ResponseStatus)),
        ("usage", USAGE),
        ("error", ERROR),
        ("message", Rule::scalar(Field::ErrorMessage)),
        ("detail", Rule::scalar(Field::ErrorMessage)),
    ]),
    ..Rule::SKIP
};
