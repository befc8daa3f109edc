//! The JSON of Anthropic's `/v1/messages`: events that name their type, and a reply.
//!
//! The prompt's tokens come with `message_start`, generated tokens with `message_delta`, and `message_stop` ends the stream,
//! after an error too. The API layer makes up the message's id: it is not the engine's.

use super::field::Field;
use super::scan::rule::{Rule, elements, members, object, scalar, text};
use super::sglang::ERROR;

const INPUT: (&str, Rule) = ("input_tokens", scalar(Field::UsageUncachedTokens));
const CACHED: (&str, Rule) = ("cache_read_input_tokens", scalar(Field::UsageCachedTokens));
const OUTPUT: (&str, Rule) = ("output_tokens", scalar(Field::UsageCompletionTokens));
const USAGE: Rule = members(&[INPUT, OUTPUT, CACHED]);
/// `message` of `message_start`, whose output count is always 0 in SGLang. In an error that is no object: its text.
const MESSAGE: Rule = Rule {
    scalar: Some(Field::ErrorMessage),
    ..members(&[("usage", members(&[INPUT, CACHED]))])
};

/// A block of content, or what a delta adds to one.
const BLOCK: Rule = members(&[
    ("type", scalar(Field::BlockType)),
    ("text", text(Field::Text)),
    ("thinking", text(Field::Text)),
    ("partial_json", text(Field::Text)),
]);
static ELEMENT: Rule = BLOCK;

/// One event of a stream, or a reply: the few members that both have mean the same.
pub static BODY: Rule = object(
    Field::Item,
    &[
        ("type", scalar(Field::EventType)),
        ("index", Rule::SKIP),
        ("delta", BLOCK),
        ("content_block", BLOCK),
        ("message", MESSAGE),
        ("usage", USAGE),
        ("error", ERROR),
        ("content", elements(&ELEMENT)),
        ("detail", scalar(Field::ErrorMessage)),
    ],
);
