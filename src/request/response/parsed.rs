//! What a body has said so far: its documents' values, put together into sequences, usage and errors.

use crate::clock::Stamp;
use crate::request::field::Field;
use crate::request::meta_info::MetaInfo;
use crate::request::outcome::Failure;
use crate::request::scalar::Scalar;
use crate::request::scan::Sink;
use crate::request::sequence::{SequenceWatch, TokenEvent};
use crate::request::token_count::TokenCountSource;

/// Sequences of one request that are told apart; what is beyond is not recorded.
pub const MAX_SEQUENCES: usize = 1024;

/// Sequences of one request whose gaps between tokens are kept for quantiles: memory is bounded.
const FULL_GAPS: usize = 3;

/// What the body has said so far.
#[derive(Debug, Default)]
pub struct ParsedBody {
    /// The sequences, by index.
    pub sequences: Vec<SequenceWatch>,
    /// When the first event, or the first byte of a body without events, was read.
    pub first_event: Option<Stamp>,
    /// `[DONE]`, or the event that ends a stream of the endpoint, was read.
    pub done: bool,
    /// The body reports an error.
    pub failure: Option<Failure>,
    /// The reply says that its generation goes on in the background.
    pub(super) in_background: bool,
    /// There were more sequences than [`MAX_SEQUENCES`].
    pub untold_sequences: bool,
    /// `usage.prompt_tokens`.
    pub usage_prompt_tokens: Option<u64>,
    /// Those are only the tokens that did not come from the cache.
    are_uncached: bool,
    /// `usage.completion_tokens`.
    pub usage_completion_tokens: Option<u64>,
    /// `usage.prompt_tokens_details.cached_tokens`.
    pub usage_cached_tokens: Option<u64>,
    pub(super) now: Option<Stamp>,
    pub(super) stall_nanos: i64,
    whole_reply: bool,
    item: Item,
    /// Objects of a reply's list that have closed: their place is their index.
    closed: u64,
    engine_id: Vec<u8>,
    /// The id beside the choices of an OpenAI chunk or reply, for choices that have none of their own.
    response_id: Vec<u8>,
    meta: MetaInfo,
    error: Failure,
    flat_error: bool,
    /// The document says that the generation failed, whether or not it says why.
    failed: bool,
    /// `usage.completion_tokens` of the event.
    event_tokens: Option<u64>,
    /// How many sequences the document, or the event, told of, and the last of them.
    told_of: (usize, usize),
}

/// The sequence's object that is being read.
#[derive(Debug, Default)]
struct Item {
    index: Option<u64>,
    text: bool,
    /// It is a call, whose name is generated too.
    call: bool,
    /// It was told of before: an output item that is done.
    told_before: bool,
    tokens: Option<u64>,
    finished: bool,
    has_meta: bool,
    abort: Failure,
}

impl ParsedBody {
    /// About to read events, or a reply in one document.
    pub(super) fn new(whole_reply: bool) -> ParsedBody {
        ParsedBody {
            whole_reply,
            ..ParsedBody::default()
        }
    }

    /// An item or choice has closed: gives what it said to its sequence.
    fn item_over(&mut self) {
        let place = if self.whole_reply { self.closed } else { 0 };
        let index = self.item.index.unwrap_or(place);
        self.closed += 1;
        self.item.text |= self.item.call && !self.item.told_before;
        let says_something = self.item.has_meta || self.item.text;
        if let (Some(at), true) = (self.now, says_something) {
            // Its blank line may come with a later read.
            self.first_event.get_or_insert(at);
            self.give(index, at);
        }
        if self.item.abort.abort {
            let abort = std::mem::take(&mut self.item.abort);
            self.failure.get_or_insert(abort);
        }
        self.forget_item();
    }

    fn forget_item(&mut self) {
        self.item = Item::default();
        self.engine_id.clear();
    }

    fn give(&mut self, index: u64, at: Stamp) {
        self.told_of.0 += 1;
        let Ok(index @ 0..MAX_SEQUENCES) = usize::try_from(index) else {
            self.untold_sequences = true;
            return;
        };
        if self.sequences.len() <= index {
            if self.sequences.is_empty() {
                // Most requests have one, and it is large.
                self.sequences.reserve_exact(index + 1);
            }
            self.sequences
                .resize_with(index + 1, SequenceWatch::default);
        }
        self.told_of.1 = index;
        let (sequence, item) = (&mut self.sequences[index], &self.item);
        sequence.event(TokenEvent {
            at,
            stall_nanos: self.stall_nanos,
            text: item.text,
            tokens: item.tokens,
            whole_reply: self.whole_reply,
            gaps_in_full: index < FULL_GAPS,
        });
        if item.has_meta {
            // A reply that never streamed is its own last event.
            let last = item.finished || self.whole_reply;
            sequence.timings(&self.meta, last, at);
        }
        // A whole reply has one id for all its choices: the engine's of the first.
        let is_own = index == 0 || !self.whole_reply;
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
        self.fail_flat();
        self.take_event_tokens();
        self.forget_item();
    }

    /// The event is over: its `usage` counts the tokens of the one choice beside it (`continuous_usage_stats`), and
    /// those of the whole request where it stands alone.
    fn take_event_tokens(&mut self) {
        let (count, index) = std::mem::take(&mut self.told_of);
        match (self.event_tokens.take(), self.sequences.get_mut(index)) {
            (Some(tokens), Some(sequence)) if count == 1 => {
                sequence.counted(tokens, TokenCountSource::Usage);
            }
            (Some(tokens), _) => self.usage_completion_tokens = Some(tokens),
            (None, _) => {}
        }
    }

    /// Where a prompt's tokens are told in parts, their sum.
    pub(super) fn add_up_prompt(&mut self) {
        if std::mem::take(&mut self.are_uncached) {
            let cached = self.usage_cached_tokens.unwrap_or(0);
            self.usage_prompt_tokens = self.usage_prompt_tokens.map(|n| n.saturating_add(cached));
        }
    }

    /// An event of `/v1/responses` or `/v1/messages` is of this type.
    fn event_type(&mut self, kind: &[u8]) {
        match kind {
            b"message_stop" | b"response.completed" | b"response.incomplete" => self.done = true,
            b"response.failed" => {
                self.done = true;
                self.failed = true;
            }
            b"response.cancelled" => {
                self.done = true;
                self.cancelled();
            }
            b"response.output_item.done" => self.item.told_before = true,
            _ => {}
        }
    }

    /// A reply of `/v1/responses` has this status.
    fn response_status(&mut self, status: &[u8]) {
        match status {
            b"queued" | b"in_progress" => self.in_background = true,
            b"failed" => self.failed = true,
            b"cancelled" => self.cancelled(),
            _ => {}
        }
    }

    fn cancelled(&mut self) {
        self.failure.get_or_insert(Failure {
            abort: true,
            ..Failure::default()
        });
    }

    /// The document is over: a message at its top is an error, unless it told of a sequence too.
    pub(super) fn fail_flat(&mut self) {
        if std::mem::take(&mut self.flat_error) && self.told_of.0 == 0 {
            self.fail();
        }
        if std::mem::take(&mut self.failed) {
            self.failure.get_or_insert_default();
        }
    }

    /// Records the error that has been read, unless there is one already.
    fn fail(&mut self) {
        let error = std::mem::take(&mut self.error);
        self.flat_error = false;
        self.failure.get_or_insert(error);
    }
}

/// The status that stands behind an error of this type: of those that say that there is too much to do.
fn code_of(kind: Scalar<'_>) -> Option<u64> {
    match kind {
        Scalar::Quoted(b"rate_limit_error") => Some(429),
        Scalar::Quoted(b"overloaded_error") => Some(503),
        _ => None,
    }
}

/// Whether a block or output item of this type is a call: `tool_use`, `function_call`, `custom_tool_call`, ….
fn is_call(kind: Scalar<'_>) -> bool {
    matches!(kind, Scalar::Quoted(kind) if kind == b"tool_use" || kind.ends_with(b"_call"))
}

fn keep_id(place: &mut Vec<u8>, value: Scalar<'_>) {
    if let Scalar::Quoted(id) = value {
        place.clear();
        place.extend_from_slice(id);
    }
}

impl Sink for ParsedBody {
    fn may_skip(field: Field) -> bool {
        MetaInfo::keeps(field)
    }

    fn wants(&self) -> bool {
        let sequence = usize::try_from(self.item.index.unwrap_or(0)).ok();
        let sequence = sequence.and_then(|index| self.sequences.get(index));
        self.item.finished || sequence.is_none_or(|of| of.first.is_none())
    }

    fn scalar(&mut self, field: Field, value: Scalar<'_>) {
        match field {
            Field::Index => self.item.index = value.count(),
            Field::CompletionTokens => self.item.tokens = value.count(),
            Field::EngineId => keep_id(&mut self.engine_id, value),
            Field::ResponseId => keep_id(&mut self.response_id, value),
            Field::FinishType => self.item.abort.abort = value == Scalar::Quoted(b"abort"),
            Field::FinishStatus => self.item.abort.code = value.count(),
            Field::FinishMessage => self.item.abort.message = value.string().unwrap_or_default(),
            Field::UsagePromptTokens => self.usage_prompt_tokens = value.count(),
            Field::UsageCompletionTokens if self.whole_reply => {
                self.usage_completion_tokens = value.count();
            }
            Field::UsageCompletionTokens => self.event_tokens = value.count(),
            Field::UsageCachedTokens => self.usage_cached_tokens = value.count(),
            Field::UsageUncachedTokens => {
                self.are_uncached = true;
                self.usage_prompt_tokens = value.count().or(self.usage_prompt_tokens);
            }
            Field::BlockType => self.item.call |= is_call(value),
            Field::EventType => {
                if let Scalar::Quoted(kind) = value {
                    self.event_type(kind);
                }
            }
            Field::ResponseStatus => {
                if let Scalar::Quoted(status) = value {
                    self.response_status(status);
                }
            }
            Field::ErrorMessage => {
                if let Some(message) = value.string() {
                    self.error.message = message;
                    // `{"error": "…"}` and `{"detail": "…"}`; an object reports itself when it closes.
                    self.flat_error = true;
                }
            }
            Field::ErrorCode => {
                // Some write it as a string.
                let quoted = value.string().and_then(|code| code.parse().ok());
                self.error.code = value.count().or(quoted);
            }
            Field::ErrorType => self.error.code = self.error.code.or(code_of(value)),
            Field::ObjectKind => self.flat_error |= value == Scalar::Quoted(b"error"),
            other => self.meta.keep(other, value),
        }
    }

    fn text(&mut self, _field: Field, _piece: &[u8]) {
        self.item.text = true;
    }

    fn open(&mut self, field: Field) {
        match field {
            Field::MetaInfo => {
                self.item.has_meta = true;
                self.meta.clear();
            }
            Field::FinishReason => self.item.finished = true,
            Field::ToolCall => self.item.text = true,
            _ => {}
        }
    }

    fn close(&mut self, field: Field) {
        match field {
            Field::Item | Field::Choice => self.item_over(),
            Field::Error => self.fail(),
            _ => {}
        }
    }
}
