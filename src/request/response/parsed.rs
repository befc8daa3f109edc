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
    /// The document repeats the one before: `item.meta` holds what did not change.
    repeats: bool,
    item: Item,
    error: Failure,
    flat_error: bool,
    /// The document says that the generation failed, whether or not it says why.
    failed: bool,
    /// The document told of a sequence.
    told: bool,
    /// `usage.completion_tokens` of the event.
    event_tokens: Option<u64>,
    /// The sequences that the event told of.
    event_of: EventOf,
}

/// Sequences that an event told of.
#[derive(Clone, Copy, Debug, Default)]
enum EventOf {
    #[default]
    None,
    One(usize),
    Several,
}

/// The sequence's object that is being read.
#[derive(Debug, Default)]
struct Item {
    index: Option<u64>,
    /// Objects of a reply's list that have closed: their place is their index.
    closed: u64,
    text: bool,
    /// It is a call, whose name is generated too.
    call: bool,
    /// It was told of before: an output item that is done.
    told_before: bool,
    tokens: Option<u64>,
    finished: bool,
    has_meta: bool,
    aborted: bool,
    abort_code: Option<u64>,
    abort_message: Option<String>,
    engine_id: Vec<u8>,
    /// The id beside the choices of an OpenAI chunk or reply, for choices that have none of their own.
    response_id: Vec<u8>,
    meta: MetaInfo,
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
        let index = self.item.index.unwrap_or(if self.whole_reply {
            self.item.closed
        } else {
            0
        });
        self.item.closed += 1;
        self.item.text |= self.item.call && !self.item.told_before;
        let says_something = self.item.has_meta || self.item.text;
        if let (Some(at), true) = (self.now, says_something) {
            self.told = true;
            // Its blank line may come with a later read.
            self.first_event.get_or_insert(at);
            self.give(index, at);
        }
        if std::mem::take(&mut self.item.aborted) {
            self.failure.get_or_insert(Failure {
                code: self.item.abort_code,
                message: self.item.abort_message.take().unwrap_or_default(),
                abort: true,
            });
        }
        self.item.clear();
    }

    fn give(&mut self, index: u64, at: Stamp) {
        let Ok(index @ 0..MAX_SEQUENCES) = usize::try_from(index) else {
            self.untold_sequences = true;
            return;
        };
        if self.sequences.len() <= index {
            self.sequences
                .resize_with(index + 1, SequenceWatch::default);
        }
        self.event_of = match self.event_of {
            EventOf::None => EventOf::One(index),
            EventOf::One(_) | EventOf::Several => EventOf::Several,
        };
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
            sequence.timings(&item.meta, last, at);
        }
        // A whole reply has one id for all its choices: the engine's of the first.
        let is_own = index == 0 || !self.whole_reply;
        let id = match item.engine_id.is_empty() {
            true if is_own => &item.response_id,
            _ => &item.engine_id,
        };
        if !id.is_empty() {
            sequence.engine_id(|| Scalar::Quoted(id).string());
        }
    }

    pub(super) fn event_end(&mut self) {
        self.first_event = self.first_event.or(self.now);
        self.fail_flat();
        self.take_event_tokens();
        self.told = false;
        self.item.clear();
    }

    /// The event is over: its `usage` counts the tokens of the one choice beside it (`continuous_usage_stats`), and
    /// those of the whole request where it stands alone.
    fn take_event_tokens(&mut self) {
        let of = std::mem::take(&mut self.event_of);
        let Some(tokens) = self.event_tokens.take() else {
            return;
        };
        match of {
            EventOf::One(index) => {
                if let Some(sequence) = self.sequences.get_mut(index) {
                    sequence.counted(tokens, TokenCountSource::Usage);
                }
            }
            EventOf::None | EventOf::Several => self.usage_completion_tokens = Some(tokens),
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
        if std::mem::take(&mut self.flat_error) && !std::mem::take(&mut self.told) {
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

impl Item {
    /// Forgets the item, but not how many there were.
    fn clear(&mut self) {
        self.index = None;
        self.text = false;
        self.call = false;
        self.told_before = false;
        self.tokens = None;
        self.finished = false;
        self.aborted = false;
        self.engine_id.clear();
        self.has_meta = false;
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
    fn begin(&mut self, repeats: bool) {
        self.repeats = repeats;
    }

    fn keeps(field: Field) -> bool {
        MetaInfo::keeps(field)
    }

    fn scalar(&mut self, field: Field, value: Scalar<'_>) {
        match field {
            Field::Index => self.item.index = value.count(),
            Field::CompletionTokens => self.item.tokens = value.count(),
            Field::EngineId => keep_id(&mut self.item.engine_id, value),
            Field::ResponseId => keep_id(&mut self.item.response_id, value),
            Field::FinishType => {
                self.item.aborted = value == Scalar::Quoted(b"abort");
            }
            Field::FinishStatus => self.item.abort_code = value.count(),
            Field::FinishMessage => self.item.abort_message = value.string(),
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
            other => self.item.meta.keep(other, value),
        }
    }

    fn text(&mut self, _field: Field, _piece: &[u8]) {
        self.item.text = true;
    }

    fn open(&mut self, field: Field) {
        match field {
            Field::MetaInfo => {
                self.item.has_meta = true;
                if !self.repeats {
                    self.item.meta.clear();
                }
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
