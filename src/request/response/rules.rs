//! The endpoints whose requests generate text and so get a row, and the rules by which their responses are read: the JSON of each API;
//! `meta_info.rs` has that of `meta_info`.

use crate::names::names;
use crate::request::meta_info::META_INFO;
use crate::request::scan::rule::{Field, Rule, elements, members, object, scalar};

names! {
    path, from_path:
    /// A generation endpoint of SGLang or of the OpenAI and Anthropic APIs it serves.
    pub enum Endpoint {
        /// `/generate`, SGLang's own.
        Generate = "/generate",
        /// `/v1/completions`.
        Completions = "/v1/completions",
        /// `/v1/chat/completions`.
        Chat = "/v1/chat/completions",
        /// `/v1/responses`.
        Responses = "/v1/responses",
        /// `/v1/messages`.
        Messages = "/v1/messages",
    }
}

impl Endpoint {
    /// Returns the operation's name by OpenTelemetry's GenAI conventions.
    pub const fn operation(self) -> &'static str {
        match self {
            Endpoint::Chat | Endpoint::Responses | Endpoint::Messages => "chat",
            Endpoint::Completions | Endpoint::Generate => "text_completion",
        }
    }

    /// Returns the rule by which its responses are read.
    pub(super) fn rule(self) -> &'static Rule {
        match self {
            Endpoint::Generate => &GENERATE,
            Endpoint::Completions | Endpoint::Chat => &OPENAI,
            Endpoint::Responses => &RESPONSES,
            Endpoint::Messages => &MESSAGES,
        }
    }
}

/// An `error` member: an object with a message, or the message itself.
const ERROR: Rule = Rule {
    scalar: Some(Field::ErrorMessage),
    ..object(
        Field::Error,
        &[
            ("message", scalar(Field::ErrorMessage)),
            ("code", scalar(Field::ErrorCode)),
            ("type", scalar(Field::ErrorCode)),
        ],
    )
};

/// A sequence's object, or an error in its place.
const SEQUENCE: Rule = object(
    Field::Item,
    &[
        ("text", Rule::TEXT),
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

/// `/generate`: one event of a stream, or a reply: one sequence, or a list for a batch or `n` > 1.
pub static GENERATE: Rule = SEQUENCE.or_elements(&SEQUENCE);

/// The generated message: `delta` of a chunk, `message` of a reply.
const CHAT_MESSAGE: Rule = members(&[
    ("reasoning_content", Rule::TEXT),
    ("content", Rule::TEXT),
    ("reasoning", Rule::TEXT),
    ("tool_calls", TOOL_CALLS),
]);
const TOOL_CALLS: Rule = elements(&TOOL_CALL);
static TOOL_CALL: Rule = object(Field::ToolCall, &[]);

static CHOICE: Rule = object(
    Field::Choice,
    &[
        ("index", scalar(Field::Index)),
        ("text", Rule::TEXT),
        ("delta", CHAT_MESSAGE),
        ("logprobs", Rule::SKIP),
        ("finish_reason", scalar(Field::FinishType)),
        ("matched_stop", Rule::SKIP),
        ("meta_info", META_INFO),
        ("message", CHAT_MESSAGE),
    ],
);

/// `prompt_tokens_details`.
const DETAILS: Rule = members(&[("cached_tokens", scalar(Field::UsageCachedTokens))]);
const USAGE: Rule = members(&[
    ("prompt_tokens", scalar(Field::UsagePromptTokens)),
    ("completion_tokens", scalar(Field::UsageCompletionTokens)),
    ("prompt_tokens_details", DETAILS),
]);

/// Completions and chat: a chunk of a stream, or a reply; they differ only in what the choices hold. Streams carry no timings; a reply
/// has `choices[].meta_info` if the request set `return_meta_info`.
pub static OPENAI: Rule = members(&[
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

/// Newer servers name the counts as OpenAI does, older ones as in a chat.
const RESPONSE_USAGE: Rule = members(&[
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
    ("usage", RESPONSE_USAGE),
]);

/// A part of an output item's content or reasoning summary.
static PART: Rule = members(&[("text", Rule::TEXT)]);
static OUTPUT: Rule = members(&[
    ("content", elements(&PART)),
    ("summary", elements(&PART)),
    ("type", scalar(Field::BlockType)),
]);

/// `/v1/responses`. SGLang 0.5.23 (and OpenAI) send a `delta` for each piece of text, reasoning or call arguments. The last event repeats
/// the whole response with its status and `usage`, and no `[DONE]` follows.
///
/// One event of a stream, or a reply: the few members that both have mean the same. Of an event's output item only the type is
/// read, which says whether it is a call.
static RESPONSES: Rule = object(
    Field::Item,
    &[
        ("delta", Rule::TEXT),
        ("item", members(&[("type", scalar(Field::BlockType))])),
        ("type", scalar(Field::EventType)),
        ("response", RESPONSE),
        ("id", scalar(Field::ResponseId)),
        ("output", elements(&OUTPUT)),
        ("status", scalar(Field::ResponseStatus)),
        ("usage", RESPONSE_USAGE),
        ("error", ERROR),
        ("message", scalar(Field::ErrorMessage)),
        ("code", scalar(Field::ErrorCode)),
        ("detail", scalar(Field::ErrorMessage)),
    ],
);

const INPUT: (&str, Rule) = ("input_tokens", scalar(Field::UsageUncachedTokens));
const CACHED: (&str, Rule) = ("cache_read_input_tokens", scalar(Field::UsageCachedTokens));
const GENERATED: (&str, Rule) = ("output_tokens", scalar(Field::UsageCompletionTokens));
/// `message` of `message_start`, whose output count is always 0 in SGLang. In an error that is no object: its text.
const MESSAGE_START: Rule = Rule {
    scalar: Some(Field::ErrorMessage),
    ..members(&[("usage", members(&[INPUT, CACHED]))])
};

/// A block of content, or what a delta adds to one.
const BLOCK: Rule = members(&[
    ("type", scalar(Field::BlockType)),
    ("text", Rule::TEXT),
    ("thinking", Rule::TEXT),
    ("partial_json", Rule::TEXT),
]);

/// `/v1/messages`. The prompt's tokens come with `message_start`, generated tokens with `message_delta`, and `message_stop` ends the
/// stream, after an error too. The API layer makes up the message's id: it is not the engine's.
///
/// One event of a stream, or a reply: the few members that both have mean the same.
static MESSAGES: Rule = object(
    Field::Item,
    &[
        ("type", scalar(Field::EventType)),
        ("index", Rule::SKIP),
        ("delta", BLOCK),
        ("content_block", BLOCK),
        ("message", MESSAGE_START),
        ("usage", members(&[INPUT, GENERATED, CACHED])),
        ("error", ERROR),
        ("content", elements(&BLOCK)),
        ("detail", scalar(Field::ErrorMessage)),
    ],
);
