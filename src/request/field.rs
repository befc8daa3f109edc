//! The values that are picked out of requests and responses, and how a scalar is read.

use super::scan::Scalar;

/// A value that a [`super::scan::Rule`] asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Field {
    /// Request: text of the prompt, in pieces.
    Prompt,
    /// Request: the model's name.
    Model,
    /// Request: whether to stream.
    Stream,
    /// Request: samples per prompt.
    SamplesPerPrompt,
    /// Request: the most tokens to generate.
    MaxTokens,
    /// Request: the same by chat's newer name, which wins.
    MaxCompletionTokens,

    /// `/generate`: one sequence's object (a stream event, or an element of a reply's list).
    Item,
    /// `/generate`: place of the sequence; OpenAI: place of the choice.
    Index,
    /// Generated text, content, reasoning or tool call, in pieces.
    Text,
    /// A tool call object.
    ToolCall,
    /// OpenAI: one choice.
    Choice,
    /// OpenAI: the response's id.
    ResponseId,

    /// `meta_info` begins.
    MetaInfo,
    /// `meta_info.id`.
    EngineId,
    /// `meta_info.finish_reason` is an object: the sequence is over.
    FinishReason,
    /// `meta_info.finish_reason.type`; OpenAI: `finish_reason` of a choice.
    FinishType,
    /// `meta_info.finish_reason.status_code` of an abort.
    FinishStatus,
    /// `meta_info.finish_reason.message` of an abort.
    FinishMessage,
    /// `meta_info.prompt_tokens`.
    PromptTokens,
    /// `meta_info.completion_tokens`, cumulative.
    CompletionTokens,
    /// `meta_info.cached_tokens`.
    CachedTokens,
    /// `meta_info.num_retractions`.
    NumRetractions,
    /// `meta_info.dp_rank`.
    DpRank,
    /// `meta_info.forward_entry_time`, epoch seconds.
    ForwardEntryTime,
    /// `meta_info.prefill_finished_time`, epoch seconds.
    PrefillFinishedTime,
    /// `meta_info.queue_time`, seconds.
    QueueTime,
    /// `meta_info.request_received_ts`, epoch seconds.
    RequestReceived,
    /// `meta_info.first_token_latency`, seconds.
    FirstTokenLatency,
    /// `meta_info.request_finished_ts`, epoch seconds.
    RequestFinished,
    /// `meta_info.response_sent_to_client_ts`, epoch seconds.
    ResponseSent,

    /// `usage.prompt_tokens` of the whole request.
    UsagePromptTokens,
    /// `usage.completion_tokens` of the whole request.
    UsageCompletionTokens,
    /// `usage.prompt_tokens_details.cached_tokens`.
    UsageCachedTokens,

    /// An `error` member that is an object.
    Error,
    /// What an error says.
    ErrorMessage,
    /// An error's own status code.
    ErrorCode,
    /// Top-level `object`: `error` in SGLang's flat errors.
    ObjectKind,
}

impl Scalar<'_> {
    /// A whole number ≥ 0. Numbers with a fraction or exponent, strings and literals give `None`.
    pub fn count(self) -> Option<u64> {
        let Scalar::Bare(bytes) = self else {
            return None;
        };
        if bytes.is_empty() {
            return None;
        }
        bytes.iter().try_fold(0u64, |sum, byte| {
            let digit = byte.wrapping_sub(b'0');
            (digit < 10).then_some(())?;
            sum.checked_mul(10)?.checked_add(u64::from(digit))
        })
    }

    /// A finite number.
    pub fn number(self) -> Option<f64> {
        let Scalar::Bare(bytes) = self else {
            return None;
        };
        std::str::from_utf8(bytes)
            .ok()?
            .parse()
            .ok()
            .filter(|n: &f64| n.is_finite())
    }

    /// `true` or `false`.
    pub fn flag(self) -> Option<bool> {
        match self {
            Scalar::Bare(b"true") => Some(true),
            Scalar::Bare(b"false") => Some(false),
            _ => None,
        }
    }

    /// The text of a string, its escapes resolved.
    pub fn string(self) -> Option<String> {
        let Scalar::Quoted(bytes) = self else {
            return None;
        };
        let raw = String::from_utf8_lossy(bytes);
        if !raw.contains('\\') {
            return Some(raw.into_owned());
        }
        // A capture cut within an escape is shown as it stands.
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
        assert_eq!(Scalar::Bare(b"null").number(), None);
        assert_eq!(Scalar::Bare(b"NaN").number(), None);
        assert_eq!(Scalar::Bare(b"1e999").number(), None);
        assert_eq!(Scalar::Bare(b"1.5e2").number(), Some(150.0));
        assert_eq!(
            Scalar::Quoted(b"a\\u00e9\\n").string().as_deref(),
            Some("aé\n")
        );
        assert_eq!(
            Scalar::Quoted(b"cut \\u00").string().as_deref(),
            Some("cut \\u00")
        );
    }
}
