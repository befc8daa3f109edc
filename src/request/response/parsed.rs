//! What has been read from a body so far: the values of its documents, gathered into sequences, usage and errors.

use crate::clock::Stamp;
use crate::request::meta_info::MetaInfo;
use crate::request::outcome::Failure;
use crate::request::scan::{Field, Scalar, Sink};
use crate::request::sequence::{SequenceObserver, TokenCountSource};

use super::Unread;

/// The maximum number of sequences of one request that are recorded.
pub const MAX_SEQUENCES: usize = 1024;

/// The number of sequences of one request whose gaps are kept for quantiles: memory is bounded.
const MAX_HISTOGRAMS: usize = 3;

/// What has been read from a body so far.
#[derive(Debug, Default)]
pub struct ParsedBody {
    /// The sequences, by index.
    pub sequences: Vec<SequenceObserver>,
    /// When the first event, or the first byte of a body without events, was read.
    pub first_event: Option<Stamp>,
    /// An event other than `[DONE]` has ended.
    pub(super) has_event: bool,
    /// `[DONE]`, or the event that ends a stream of the endpoint, was read.
    pub done: bool,
    /// The first error that the body reported.
    pub failure: Option<Failure>,
    /// Why the body was not read; a reply may say that its generation goes on in the background.
    pub unread: Option<Unread>,
    /// At its end: whether it showed the generation's end; `None` if it cannot be read.
    pub generation_whole: Option<bool>,
    /// The body had more sequences than [`MAX_SEQUENCES`].
    pub has_unrecorded_sequences: bool,
    /// `usage.prompt_tokens`.
    pub usage_prompt_tokens: Option<u64>,
    /// `usage_prompt_tokens` lacks the tokens that came from the cache.
    is_prompt_uncached: bool,
    /// `usage.completion_tokens`.
    pub usage_completion_tokens: Option<u64>,
    /// `usage.prompt_tokens_details.cached_tokens`.
    pub usage_cached_tokens: Option<u64>,
    /// When the current piece was read, and the client's stall by then.
    pub(super) now: Option<Stamp>,
    pub(super) stall_nanos: i64,
    pub(super) is_reply: bool,
    item: Item,
    /// The number of items closed in a reply: the index of the next in its list.
    closed_items: u64,
    engine_id: Vec<u8>,
    /// The id of an OpenAI chunk or reply, for choices that have none of their own.
    response_id: Vec<u8>,
    meta: MetaInfo,
    error: Failure,
    /// The document has an error's message at its top.
    has_flat_error: bool,
    /// `usage.completion_tokens` of the current event.
    event_tokens: Option<u64>,
    /// The number of sequences in the document or event, and the index of the last of them.
    document_sequences: (usize, usize),
}

/// The sequence's object (item or choice) being read.
#[derive(Debug, Default)]
struct Item {
    index: Option<u64>,
    has_text: bool,
    /// It is a call, whose name is generated text too.
    is_call: bool,
    /// It repeats earlier events: an output item that is done.
    is_repeat: bool,
    tokens: Option<u64>,
    is_finished: bool,
    has_meta: bool,
    abort: Failure,
}

impl ParsedBody {
    /// Whether nothing came of a reply, not a byte.
    pub fn is_absent(&self) -> bool {
        self.is_reply && self.first_event.is_none()
    }

    /// What the body is, if it is neither events nor JSON.
    pub fn misplaced(&self) -> Option<&'static str> {
        match self.unread {
            Some(Unread::Html) => Some("an HTML page"),
            Some(Unread::ContentType) => Some("neither events nor JSON"),
            _ => None,
        }
    }

    /// Makes the state before the first event, or before a reply.
    pub(super) fn new(is_reply: bool) -> ParsedBody {
        ParsedBody {
            is_reply,
            ..ParsedBody::default()
        }
    }

    /// Ends an item or choice: updates its sequence.
    fn end_item(&mut self) {
        let position = if self.is_reply { self.closed_items } else { 0 };
        let index = self.item.index.unwrap_or(position);
        self.closed_items += 1;
        self.item.has_text |= self.item.is_call && !self.item.is_repeat;
        let has_content = self.item.has_meta || self.item.has_text;
        if let (Some(at), true) = (self.now, has_content) {
            // The blank line that ends the event may arrive with a later read.
            self.first_event.get_or_insert(at);
            self.update_sequence(index, at);
        }
        if self.item.abort.is_abort {
            let abort = std::mem::take(&mut self.item.abort);
            self.failure.get_or_insert(abort);
        }
        self.clear_item();
    }

    fn clear_item(&mut self) {
        self.item = Item::default();
        self.engine_id.clear();
    }

    fn update_sequence(&mut self, index: u64, at: Stamp) {
        self.document_sequences.0 += 1;
        let Ok(index @ 0..MAX_SEQUENCES) = usize::try_from(index) else {
            self.has_unrecorded_sequences = true;
            return;
        };
        if self.sequences.len() <= index {
            if self.sequences.is_empty() {
                // Most requests have one sequence, and it is large.
                self.sequences.reserve_exact(index + 1);
            }
            self.sequences
                .resize_with(index + 1, SequenceObserver::default);
        }
        self.document_sequences.1 = index;
        let (sequence, item) = (&mut self.sequences[index], &self.item);
        sequence.has_events = true;
        sequence.has_text |= item.has_text;
        // When the tokens of a reply arrived is unknown.
        if (item.has_text || item.tokens > Some(0)) && !self.is_reply {
            sequence.token_event(at, self.stall_nanos, index < MAX_HISTOGRAMS);
        }
        if let Some(tokens) = item.tokens {
            sequence.count_tokens(tokens, TokenCountSource::MetaInfo);
        }
        sequence.begins_with_token |= !self.has_event && sequence.first_token.is_some();
        if item.has_meta {
            // A reply is its own last event.
            let is_last = item.is_finished || self.is_reply;
            sequence.meta_info(&self.meta, is_last, at);
        }
        // A reply has one id for all its choices: the engine's of the first.
        let is_own = index == 0 || !self.is_reply;
        let id = match self.engine_id.is_empty() {
            true if is_own => &self.response_id,
            _ => &self.engine_id,
        };
        if !id.is_empty() && sequence.engine_id.is_none() {
            sequence.engine_id = Scalar::Quoted(id).string();
        }
    }

    pub(super) fn event_end(&mut self) {
        self.first_event = self.first_event.or(self.now);
        self.record_flat_error();
        self.take_event_tokens();
        self.clear_item();
    }

    /// Ends the event's `usage`. It counts the tokens of the one choice beside it (`continuous_usage_stats`), or those of the
    /// whole request if it stands alone.
    fn take_event_tokens(&mut self) {
        let (count, index) = std::mem::take(&mut self.document_sequences);
        match (self.event_tokens.take(), self.sequences.get_mut(index)) {
            (Some(tokens), Some(sequence)) if count == 1 => {
                sequence.count_tokens(tokens, TokenCountSource::Usage);
            }
            (Some(tokens), _) => self.usage_completion_tokens = Some(tokens),
            (None, _) => {}
        }
    }

    /// Ends the body. A prompt's tokens may have been reported without those that came from the cache.
    pub(super) fn end(&mut self) {
        self.record_flat_error();
        let cached = self.usage_cached_tokens.filter(|_| self.is_prompt_uncached);
        let prompt = self.usage_prompt_tokens;
        self.usage_prompt_tokens = prompt.map(|prompt| prompt.saturating_add(cached.unwrap_or(0)));
    }

    /// Takes the type of an event of `/v1/responses` or `/v1/messages`.
    fn event_type(&mut self, kind: Scalar<'_>) {
        let Scalar::Quoted(kind) = kind else { return };
        match kind {
            b"message_stop" | b"response.completed" | b"response.incomplete" => self.done = true,
            b"response.failed" | b"response.cancelled" => {
                self.done = true;
                self.response_status(Scalar::Quoted(&kind[b"response.".len()..]));
            }
            b"response.output_item.done" => self.item.is_repeat = true,
            _ => {}
        }
    }

    /// Takes the status of a reply of `/v1/responses`, or that of an event that ends a stream.
    fn response_status(&mut self, status: Scalar<'_>) {
        match status {
            Scalar::Quoted(b"queued" | b"in_progress") if self.is_reply => {
                self.unread = Some(Unread::Background);
            }
            Scalar::Quoted(b"failed") => {
                self.failure.get_or_insert_default();
            }
            Scalar::Quoted(b"cancelled") => {
                self.failure.get_or_insert(Failure {
                    is_abort: true,
                    ..Failure::default()
                });
            }
            _ => {}
        }
    }

    /// Ends the document: a message at its top is an error, unless a sequence stands beside it.
    fn record_flat_error(&mut self) {
        if self.has_flat_error && self.document_sequences.0 == 0 {
            self.record_error();
        }
        self.has_flat_error = false;
        self.error = Failure::default();
    }

    /// Records the error that has been read, unless one with a reason is known.
    fn record_error(&mut self) {
        let error = std::mem::take(&mut self.error);
        self.has_flat_error = false;
        let known = self.failure.take_if(|known| *known != Failure::default());
        self.failure = known.or(Some(error));
    }
}

/// Whether a block or output item of this type is a call: `tool_use`, `function_call`, `custom_tool_call`, ….
fn is_call(kind: Scalar<'_>) -> bool {
    matches!(kind, Scalar::Quoted(kind) if kind == b"tool_use" || kind.ends_with(b"_call"))
}

/// Returns the status that an error's code or type means. `/v1/messages` gives a type only, and some servers write codes as strings.
fn status_of(code: Scalar<'_>) -> Option<u64> {
    match code {
        Scalar::Quoted(b"rate_limit_error" | b"rate_limit_exceeded") => Some(429),
        Scalar::Quoted(b"overloaded_error") => Some(503),
        Scalar::Quoted(digits) | Scalar::Bare(digits) => Scalar::Bare(digits).count(),
    }
}

fn copy_id(id: &mut Vec<u8>, value: Scalar<'_>) {
    if let Scalar::Quoted(bytes) = value {
        id.clear();
        id.extend_from_slice(bytes);
    }
}

impl Sink for ParsedBody {
    fn wants_optional(&self) -> bool {
        let sequence = usize::try_from(self.item.index.unwrap_or(0)).ok();
        let sequence = sequence.and_then(|index| self.sequences.get(index));
        self.item.is_finished || sequence.is_none_or(|sequence| sequence.first.is_none())
    }

    fn scalar(&mut self, field: Field, value: Scalar<'_>) {
        match field {
            Field::Index => self.item.index = value.count(),
            Field::CompletionTokens => self.item.tokens = value.count(),
            Field::EngineId => copy_id(&mut self.engine_id, value),
            Field::ResponseId => copy_id(&mut self.response_id, value),
            Field::FinishType => self.item.abort.is_abort = value == Scalar::Quoted(b"abort"),
            Field::FinishStatus => self.item.abort.code = value.count(),
            Field::FinishMessage => self.item.abort.message = value.string().unwrap_or_default(),
            Field::UsagePromptTokens => self.usage_prompt_tokens = value.count(),
            Field::UsageCompletionTokens if self.is_reply => {
                self.usage_completion_tokens = value.count();
            }
            Field::UsageCompletionTokens => self.event_tokens = value.count(),
            Field::UsageCachedTokens => self.usage_cached_tokens = value.count(),
            Field::UsageUncachedTokens => {
                self.is_prompt_uncached = true;
                self.usage_prompt_tokens = value.count().or(self.usage_prompt_tokens);
            }
            Field::BlockType => self.item.is_call |= is_call(value),
            Field::EventType => self.event_type(value),
            Field::ResponseStatus => self.response_status(value),
            Field::ErrorMessage => {
                if let Some(message) = value.string() {
                    self.error.message = message;
                    // `{"error": "…"}` and `{"detail": "…"}`; an error object is recorded when it closes.
                    self.has_flat_error = true;
                }
            }
            Field::ErrorCode => self.error.code = status_of(value).or(self.error.code),
            Field::ObjectKind => self.has_flat_error |= value == Scalar::Quoted(b"error"),
            Field::Meta(member) => self.meta.keep(member, value),
            _ => {}
        }
    }

    fn text(&mut self, _piece: &[u8]) {
        self.item.has_text = true;
    }

    fn open(&mut self, field: Field) {
        match field {
            Field::MetaInfo => {
                self.item.has_meta = true;
                self.meta.clear();
            }
            Field::FinishReason => self.item.is_finished = true,
            Field::ToolCall => self.item.has_text = true,
            _ => {}
        }
    }

    fn close(&mut self, field: Field) {
        match field {
            Field::Item | Field::Choice => self.end_item(),
            Field::Error => self.record_error(),
            _ => {}
        }
    }
}
