//! The shapes of Anthropic's `/v1/messages`: events that each tell their type, and a reply.
//!
//! The prompt's tokens come with `message_start`, those generated with `message_delta`, and `message_stop` ends the stream, after
//! an error too. The message's id is made up by the API layer: it is not the engine's.

use super::field::Field;
use super::scan::rule::{Rule, elements, members, object, scalar, text};
use super::sglang::ERROR;

const INPUT: (&str, Rule) = ("input_tokens", scalar(Field::UsageUncachedTokens));
const CACHED: (&str, Rule) = ("cache_read_input_tokens", scalar(Field::UsageCachedTokens));
const OUTPUT: (&str, Rule) = ("output_tokens", scalar(Field::UsageCompletionTokens));
const USAGE: Rule = members(&[INPUT, OUTPUT, CACHED]);
/// That of `message_start`: SGLang says 0 generated there, whatever comes. Or the words of an error that is no object.
const MESSAGE: Rule = Rule {
    scalar: Some(Field::ErrorMessage),
    ..members(&[("usage", members(&[INPUT, CACHED]))])
};

/// A block of content, or what is added to one.
const BLOCK: Rule = members(&[
    ("type", scalar(Field::BlockType)),
    ("text", text(Field::Text)),
    ("thinking", text(Field::Text)),
    ("partial_json", text(Field::Text)),
]);
static ELEMENT: Rule = BLOCK;

/// One event of a stream, or a whole reply: they share few members, and those mean the same.
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
