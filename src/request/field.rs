//! The values that the scanner picks out of requests and responses.

/// A value that a [`super::scan::Rule`] selects.
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
    /// Generated text, content, reasoning or tool call, in pieces.
    Text,
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
    /// One of the numbers in it: a [`Member`](super::meta_info::Member).
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
