//! Which values of a document are wanted: rules, the values that they select, and how these stand in the document.

use crate::request::cell::nanos;

/// What to do with a value.
#[derive(Debug)]
pub struct Rule {
    /// Report numbers, literals and short strings as this field.
    pub scalar: Option<Field>,
    /// Report a string, of any size, in pieces.
    pub is_text: bool,
    /// Report the begin and end of an object or array as this field.
    pub container: Option<Field>,
    /// The wanted members of an object.
    pub members: &'static [(&'static str, Rule)],
    /// The rule of the elements of an array.
    pub elements: Option<&'static Rule>,
}

impl Rule {
    /// Skips the value.
    pub const SKIP: Rule = Rule {
        scalar: None,
        is_text: false,
        container: None,
        members: &[],
        elements: None,
    };

    /// Reports a string in pieces.
    pub const TEXT: Rule = Rule {
        is_text: true,
        ..Rule::SKIP
    };

    /// Returns the rule of a member and the index after it. The search starts at `from`, as documents repeat an order.
    pub(super) fn member(&self, key: &[u8], from: usize) -> Option<(&'static Rule, usize)> {
        // The first byte tells most keys apart, without a call.
        let same = |name: &str| name.as_bytes().first() == key.first() && name.as_bytes() == key;
        let is = |at: usize| self.members.get(at).filter(|(name, _)| same(name));
        let found = |at: usize| is(at).map(|(_, rule)| (rule, at + 1));
        found(from).or_else(|| (0..self.members.len()).find_map(found))
    }

    /// Adds a rule for the elements if the value is an array.
    pub const fn or_elements(self, rule: &'static Rule) -> Rule {
        Rule {
            elements: Some(rule),
            ..self
        }
    }
}

/// Reports a number, literal or short string.
pub const fn scalar(field: Field) -> Rule {
    Rule {
        scalar: Some(field),
        ..Rule::SKIP
    }
}

/// Looks for these members of an object, best in the order in which documents have them.
pub const fn members(list: &'static [(&'static str, Rule)]) -> Rule {
    Rule {
        members: list,
        ..Rule::SKIP
    }
}

/// Looks for these members of an object, and reports its begin and end.
pub const fn object(field: Field, list: &'static [(&'static str, Rule)]) -> Rule {
    Rule {
        container: Some(field),
        ..members(list)
    }
}

/// Looks at the elements of an array.
pub const fn elements(rule: &'static Rule) -> Rule {
    Rule::SKIP.or_elements(rule)
}

/// A value that a [`Rule`] selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Field {
    /// Request: the model's name.
    Model,
    /// Request: whether to stream.
    Stream,
    /// Request: samples per prompt.
    SamplesPerPrompt,
    /// Request: the maximum number of tokens to generate.
    MaxTokens,
    /// Request: the same by chat's newer name, which wins.
    MaxCompletionTokens,
    /// Request: `bootstrap_room`, the number by which the servers of a pair know it.
    BootstrapRoom,

    /// `/generate`: one sequence's object (a stream event, or an element of a reply's list).
    Item,
    /// `/generate`: index of the sequence; OpenAI: index of the choice.
    Index,
    /// A tool call object.
    ToolCall,
    /// The type of a content block or output item, which says whether it is a call.
    BlockType,
    /// The type of an event of `/v1/responses` or `/v1/messages`.
    EventType,
    /// The status of a reply of `/v1/responses`.
    ResponseStatus,
    /// OpenAI: one choice.
    Choice,
    /// OpenAI: the response's id.
    ResponseId,

    /// The `meta_info` object.
    MetaInfo,
    /// `meta_info.id`.
    EngineId,
    /// `meta_info.finish_reason` as an object: the sequence is over.
    FinishReason,
    /// `meta_info.finish_reason.type`; OpenAI: `finish_reason` of a choice.
    FinishType,
    /// `meta_info.finish_reason.status_code` of an abort.
    FinishStatus,
    /// `meta_info.finish_reason.message` of an abort.
    FinishMessage,
    /// `meta_info.completion_tokens`, cumulative.
    CompletionTokens,
    /// One of the numbers in it: a [`Member`](crate::request::meta_info::Member).
    Meta(u8),

    /// `usage.prompt_tokens` of the whole request.
    UsagePromptTokens,
    /// `usage.completion_tokens` of the whole request.
    UsageCompletionTokens,
    /// `usage.prompt_tokens_details.cached_tokens`; `/v1/messages`: `usage.cache_read_input_tokens`.
    UsageCachedTokens,
    /// `/v1/messages`: `usage.input_tokens`, the prompt tokens that did not come from the cache.
    UsageUncachedTokens,

    /// An `error` member that is an object.
    Error,
    /// An error's message.
    ErrorMessage,
    /// An error's own status code, or its type.
    ErrorCode,
    /// Top-level `object`: `error` in SGLang's flat errors.
    ObjectKind,
}

/// A scalar, as it stands in the document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scalar<'a> {
    /// The bytes of a number or literal.
    Bare(&'a [u8]),
    /// The bytes between the quotes of a string, with escapes.
    Quoted(&'a [u8]),
}

impl Scalar<'_> {
    /// Converts an integer ≥ 0; `None` for numbers with a fraction or exponent, strings and literals.
    pub fn count(self) -> Option<u64> {
        let Scalar::Bare(bytes) = self else {
            return None;
        };
        str::from_utf8(bytes).ok()?.parse().ok()
    }

    /// Converts a number of seconds to nanoseconds.
    pub fn nanos(self) -> Option<i64> {
        match self {
            Scalar::Bare(bytes) => nanos(bytes),
            Scalar::Quoted(_) => None,
        }
    }

    /// Converts `true` or `false`.
    pub fn flag(self) -> Option<bool> {
        match self {
            Scalar::Bare(b"true") => Some(true),
            Scalar::Bare(b"false") => Some(false),
            _ => None,
        }
    }

    /// Converts a string, its escapes resolved.
    pub fn string(self) -> Option<String> {
        let Scalar::Quoted(bytes) = self else {
            return None;
        };
        let raw = String::from_utf8_lossy(bytes);
        if !raw.contains('\\') {
            return Some(raw.into_owned());
        }
        // A capture that was cut within an escape is kept as it stands.
        Some(serde_json::from_str(&format!("\"{raw}\"")).unwrap_or_else(|_| raw.into_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scalars_are_read_strictly() {
        assert_eq!(Scalar::Bare(b"120").count(), Some(120));
        assert_eq!(Scalar::Bare(b"-1").count(), None);
        assert_eq!(Scalar::Bare(b"1.0").count(), None);
        assert_eq!(Scalar::Bare(b"99999999999999999999999").count(), None);
        assert_eq!(Scalar::Bare(b"null").nanos(), None);
        assert_eq!(Scalar::Bare(b"NaN").nanos(), None);
        assert_eq!(Scalar::Bare(b"1e999").nanos(), None);
        assert_eq!(Scalar::Bare(b"1.5e2").nanos(), Some(150_000_000_000));
        for (quoted, text) in [("a\\u00e9\\n", "aé\n"), ("cut \\u00", "cut \\u00")] {
            let read = Scalar::Quoted(quoted.as_bytes()).string();
            assert_eq!(read.as_deref(), Some(text));
        }
    }
}
