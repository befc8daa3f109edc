//! The response body: events or one JSON value, read into sequences, usage and errors.

use crate::clock::Stamp;

use super::endpoint::Endpoint;
use super::field::Field;
use super::outcome::{Failure, Generation};
use super::scalar::Scalar;
use super::scan::{Progress, Rule, Scanner, Sink};
use super::sequence::{SequenceWatch, TokenEvent};
use super::sglang::MetaInfo;
use super::sse::{EventSink, SseScanner};
use super::token_count::TokenCountSource;
use super::{openai, sglang};

/// Sequences of one request that are told apart; what is beyond is not recorded.
pub const MAX_SEQUENCES: usize = 1024;

/// Sequences of one request whose gaps between tokens are kept for quantiles: memory is bounded.
const FULL_GAPS: usize = 3;

/// Reads a response body in pieces; keeps no bytes of it.
#[derive(Debug)]
pub struct ResponseBody {
    endpoint: Endpoint,
    framing: Framing,
    document: Document,
}

#[derive(Debug)]
enum Framing {
    Events(SseScanner),
    Json,
    Opaque(Unread),
}

/// Why nobody knows what a body said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Unread {
    /// A content coding hides it.
    Encoded,
    /// It is neither events nor JSON.
    ContentType,
    /// The shapes of its endpoint are not read yet.
    Endpoint,
}

/// The JSON that is being read: an event's data, or the whole body.
#[derive(Debug)]
struct Document {
    root: &'static Rule,
    scanner: Scanner,
    parsed: ParsedBody,
    /// Bytes of [`DONE`] that the event's data begins with; `None` once it is something else.
    done: Option<usize>,
}

const DONE: &[u8] = b"[DONE]";

/// What the body has said so far.
#[derive(Debug, Default)]
pub struct ParsedBody {
    /// The sequences, by index.
    pub sequences: Vec<SequenceWatch>,
    /// When the first event, or the first byte of a body without events, was read.
    pub first_event: Option<Stamp>,
    /// `[DONE]` was read.
    pub done: bool,
    /// The body reports an error.
    pub failure: Option<Failure>,
    /// There were more sequences than [`MAX_SEQUENCES`].
    pub untold_sequences: bool,
    /// `usage.prompt_tokens`.
    pub usage_prompt_tokens: Option<u64>,
    /// `usage.completion_tokens`.
    pub usage_completion_tokens: Option<u64>,
    /// `usage.prompt_tokens_details.cached_tokens`.
    pub usage_cached_tokens: Option<u64>,
    now: Option<Stamp>,
    stall_nanos: i64,
    whole_reply: bool,
    /// The document repeats the one before: `item.meta` holds what did not change.
    repeats: bool,
    item: Item,
    error: Failure,
    flat_error: bool,
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

impl ResponseBody {
    /// About to read a response of `endpoint` with this `Content-Type`. `encoded` says that a content
    /// coding hides the body, which is then only timed.
    pub fn new(endpoint: Endpoint, content_type: Option<&str>, encoded: bool) -> ResponseBody {
        let kind = content_type
            .unwrap_or("")
            .split(';')
            .next()
            .unwrap_or("")
            .trim();
        let framing = if encoded {
            Framing::Opaque(Unread::Encoded)
        } else if kind.eq_ignore_ascii_case("text/event-stream") {
            Framing::Events(SseScanner::default())
        } else if kind.eq_ignore_ascii_case("application/json") {
            Framing::Json
        } else {
            Framing::Opaque(Unread::ContentType)
        };
        let whole_reply = !matches!(framing, Framing::Events(_));
        let root = match (endpoint, whole_reply) {
            (Endpoint::Generate, false) => &sglang::EVENT,
            (Endpoint::Generate, true) => &sglang::REPLY,
            _ => &openai::CHUNK,
        };
        ResponseBody {
            endpoint,
            framing,
            document: Document {
                root,
                scanner: match whole_reply {
                    true => Scanner::new(root),
                    false => Scanner::of_many(root),
                },
                parsed: ParsedBody {
                    whole_reply,
                    ..ParsedBody::default()
                },
                done: Some(0),
            },
        }
    }

    /// Takes what the body has said.
    pub fn into_parsed(self) -> ParsedBody {
        self.document.parsed
    }

    /// Whether a generated token has come; of a body that cannot be read, a piece of it. Never of a reply in one JSON.
    pub fn is_streaming(&self) -> bool {
        let parsed = &self.document.parsed;
        match (&self.framing, self.endpoint) {
            (Framing::Json, _) => false,
            (Framing::Opaque(_), _)
            | (Framing::Events(_), Endpoint::Responses | Endpoint::Messages) => {
                parsed.now.is_some()
            }
            (Framing::Events(_), _) => parsed.sequences.iter().any(SequenceWatch::has_token),
        }
    }

    /// What the body showed of the generation's end. A router that was cut off passes on what came as if it were
    /// whole: only the body tells.
    pub fn generation(&self) -> Generation {
        let has_begun = self.document.parsed.first_event.is_some();
        match (&self.framing, self.endpoint) {
            _ if self.document.parsed.done => Generation::Whole,
            (Framing::Opaque(_), _) if !has_begun => Generation::Absent,
            (Framing::Opaque(_), _) => Generation::Unknown,
            (Framing::Json, _) => match self.document.scanner.progress() {
                Progress::Nothing => Generation::Absent,
                Progress::Part => Generation::Cut,
                Progress::Whole => Generation::Whole,
                Progress::Broken => Generation::Unknown,
            },
            (Framing::Events(_), Endpoint::Responses | Endpoint::Messages) => Generation::Unknown,
            (Framing::Events(_), _) => Generation::Cut,
        }
    }

    /// Why nobody knows whether the body held text, where that is so.
    pub fn unread(&self) -> Option<Unread> {
        self.document.parsed.first_event?;
        match (&self.framing, self.endpoint) {
            (Framing::Opaque(why), _) => Some(*why),
            (_, Endpoint::Responses | Endpoint::Messages) => Some(Unread::Endpoint),
            _ => None,
        }
    }

    /// Reads the next piece, which came at `at` when writes to the client had been held up for
    /// `stall_nanos` in all.
    pub fn feed(&mut self, bytes: &[u8], at: Stamp, stall_nanos: i64) {
        if bytes.is_empty() {
            return;
        }
        let document = &mut self.document;
        document.parsed.now = Some(at);
        document.parsed.stall_nanos = stall_nanos;
        match &mut self.framing {
            Framing::Events(events) => events.feed(bytes, document),
            Framing::Json => {
                document.parsed.first_event.get_or_insert(at);
                document.scanner.feed(bytes, &mut document.parsed);
            }
            Framing::Opaque(_) => {
                document.parsed.first_event.get_or_insert(at);
            }
        }
    }

    /// The body is over: an event without its blank line ends here.
    pub fn finish(&mut self) {
        match &mut self.framing {
            Framing::Events(events) => events.finish(&mut self.document),
            Framing::Json => self.document.scanner.finish(),
            Framing::Opaque(_) => {}
        }
        self.document.parsed.fail_flat();
    }
}

impl Unread {
    /// Every reason.
    pub const ALL: [Unread; 3] = [Unread::Encoded, Unread::ContentType, Unread::Endpoint];

    /// The name in the column and in the metric's label.
    pub const fn name(self) -> &'static str {
        match self {
            Unread::Encoded => "encoded",
            Unread::ContentType => "content_type",
            Unread::Endpoint => "endpoint",
        }
    }
}

impl EventSink for Document {
    fn data(&mut self, piece: &[u8]) {
        if let Some(matched) = self.done {
            let rest = DONE.get(matched..).unwrap_or_default();
            self.done = rest.starts_with(piece).then(|| matched + piece.len());
        }
        self.scanner.feed(piece, &mut self.parsed);
    }

    fn event_end(&mut self) {
        self.parsed.done |= self.done == Some(DONE.len());
        self.done = Some(0);
        self.parsed.event_end();
        self.scanner.reset(self.root);
    }
}

impl ParsedBody {
    /// An item or choice has closed: gives what it said to its sequence.
    fn item_over(&mut self) {
        let index = self.item.index.unwrap_or(if self.whole_reply {
            self.item.closed
        } else {
            0
        });
        self.item.closed += 1;
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
            sequence.timings(|| item.meta.timings(), last, at);
        }
        let id = if item.engine_id.is_empty() {
            &item.response_id
        } else {
            &item.engine_id
        };
        if !id.is_empty() {
            sequence.engine_id(|| Scalar::Quoted(id).string());
        }
    }

    fn event_end(&mut self) {
        self.first_event = self.first_event.or(self.now);
        self.fail_flat();
        self.take_event_tokens();
        self.told = false;
        self.item.clear();
        self.item.response_id.clear();
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

    /// The document is over: a message at its top is an error, unless it told of a sequence too.
    fn fail_flat(&mut self) {
        if std::mem::take(&mut self.flat_error) && !std::mem::take(&mut self.told) {
            self.fail();
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
        self.tokens = None;
        self.finished = false;
        self.aborted = false;
        self.engine_id.clear();
        self.has_meta = false;
    }
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
