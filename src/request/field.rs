//! The values that are picked out of requests and responses.

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
