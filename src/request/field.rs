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
    /// `meta_info.prompt_tokens`. This and the fields up to `QueueTimeEnd` are those that [`super::meta_info`] keeps.
    PromptTokens,
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
    /// `meta_info.response_sent_to_client_ts` (0.5.5: `response_sent_ts`), epoch seconds.
    ResponseSent,
    /// `meta_info.e2e_latency`, seconds.
    EndToEnd,
    /// `meta_info.storage_prefetch_wait`, seconds.
    StorageWait,
    /// `meta_info.total_retractions`: `num_retractions` until 0.5.11.
    TotalRetractions,
    /// `meta_info.inference_time` (0.5.5: `forward_time`), seconds from the first batch to the end.
    InferenceTime,
    /// `meta_info.prefill_finished_ts`, epoch seconds.
    PrefillFinishedTs,
    /// `meta_info.decode_finished_ts`, epoch seconds.
    DecodeFinished,
    /// `meta_info.request_scheduled_ts`, epoch seconds.
    RequestScheduled,
    /// `meta_info.server_created_time` of a fork, epoch seconds.
    ServerCreated,
    /// `meta_info.server_first_token_time` of a fork, epoch seconds.
    ServerFirstToken,
    /// `meta_info.queue_time_start` of a fork, seconds of the epoch or of `perf_counter`.
    QueueTimeStart,
    /// `meta_info.queue_time_end` of a fork, on the same clock.
    QueueTimeEnd,

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
    /// An error's own status code.
    ErrorCode,
    /// An error's type: `/v1/messages` gives no code.
    ErrorType,
    /// Top-level `object`: `error` in SGLang's flat errors.
    ObjectKind,
}
