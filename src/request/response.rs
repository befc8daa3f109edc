//! The response body: events or one JSON value, read into sequences, usage and errors.

use crate::clock::Stamp;

use super::endpoint::Endpoint;
use super::field::Field;
use super::record::TokenCountSource;
use super::scan::{Progress, Rule, Scalar, Scanner, Sink};
use super::sequence::{Heard, SequenceWatch};
use super::sglang::MetaInfo;
use super::sse::{EventSink, SseScanner};
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
    scanner: Scanner,
    said: Said,
}

#[derive(Debug)]
enum Framing {
    Events { scanner: SseScanner, event: Event },
    Json,
    Opaque(Unread),
}

/// Why nobody knows what a body said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unread {
    /// A content coding hides it.
    Encoded,
    /// It is neither events nor JSON.
    ContentType,
    /// The shapes of its endpoint are not read yet.
    Endpoint,
}

/// What a body showed of the generation's end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shown {
    /// Nothing that can be read.
    #[default]
    Unknown,
    /// There was no body.
    Nothing,
    /// It began, and its end is missing.
    Part,
    /// Its end.
    End,
}

/// The event being read.
#[derive(Debug, Default)]
struct Event {
    /// Bytes of [`DONE`] matched from its start; `None` once it is something else.
    done: Option<usize>,
    /// Data came at all.
    begun: bool,
}

const DONE: &[u8] = b"[DONE]";

/// What the body has said so far.
#[derive(Debug, Default)]
pub struct Said {
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
    item: Item,
    error: Failure,
    flat_error: bool,
    /// The document told of a sequence.
    told: bool,
    /// `usage.completion_tokens` of the event.
    event_tokens: Option<u64>,
    /// The sequences that the event told of.
    event_of: Told,
}

/// Sequences that an event told of.
#[derive(Clone, Copy, Debug, Default)]
enum Told {
    #[default]
    None,
    One(usize),
    Several,
}

/// An error that a body reports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Failure {
    /// A status code that it names: an error's `code`, an abort's `status_code`.
    pub code: Option<u64>,
    /// Its message.
    pub message: String,
    /// It is an engine's abort of a sequence (`finish_reason.type` is `abort`), not an error event.
    pub abort: bool,
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
            Framing::Events {
                scanner: SseScanner::default(),
                event: Event::default(),
            }
        } else if kind.eq_ignore_ascii_case("application/json") {
            Framing::Json
        } else {
            Framing::Opaque(Unread::ContentType)
        };
        let whole_reply = !matches!(framing, Framing::Events { .. });
        let said = Said {
            whole_reply,
            ..Said::default()
        };
        ResponseBody {
            endpoint,
            scanner: Scanner::new(rule(endpoint, whole_reply)),
            framing,
            said,
        }
    }

    /// Takes what the body has said.
    pub fn into_said(self) -> Said {
        self.said
    }

    /// What the body showed of the generation's end. A router that was cut off passes on what came as if it were
    /// whole: only the body tells.
    pub fn shown(&self) -> Shown {
        let has_begun = self.said.first_event.is_some();
        match (&self.framing, self.endpoint) {
            _ if self.said.done => Shown::End,
            (Framing::Opaque(_), _) if !has_begun => Shown::Nothing,
            (Framing::Opaque(_), _) => Shown::Unknown,
            (Framing::Json, _) => match self.scanner.progress() {
                Progress::Nothing => Shown::Nothing,
                Progress::Part => Shown::Part,
                Progress::Whole => Shown::End,
                Progress::Broken => Shown::Unknown,
            },
            (Framing::Events { .. }, Endpoint::Responses | Endpoint::Messages) => Shown::Unknown,
            (Framing::Events { .. }, _) => Shown::Part,
        }
    }

    /// Why nobody knows whether the body held text, where that is so.
    pub fn unread(&self) -> Option<Unread> {
        self.said.first_event?;
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
        self.said.now = Some(at);
        self.said.stall_nanos = stall_nanos;
        let root = rule(self.endpoint, self.said.whole_reply);
        match &mut self.framing {
            Framing::Events { scanner, event } => {
                let mut reader = EventReader {
                    event,
                    root,
                    scanner: &mut self.scanner,
                    said: &mut self.said,
                };
                scanner.feed(bytes, &mut reader);
            }
            Framing::Json => {
                self.said.first_event.get_or_insert(at);
                self.scanner.feed(bytes, &mut self.said);
            }
            Framing::Opaque(_) => {
                self.said.first_event.get_or_insert(at);
            }
        }
    }

    /// The body is over: an event without its blank line ends here.
    pub fn finish(&mut self) {
        let root = rule(self.endpoint, self.said.whole_reply);
        match &mut self.framing {
            Framing::Events { scanner, event } => {
                let mut reader = EventReader {
                    event,
                    root,
                    scanner: &mut self.scanner,
                    said: &mut self.said,
                };
                scanner.finish(&mut reader);
            }
            Framing::Json => self.scanner.finish(),
            Framing::Opaque(_) => {}
        }
        self.said.fail_flat();
    }
}

impl Unread {
    /// The name in the column and in the metric's label.
    pub const fn name(self) -> &'static str {
        match self {
            Unread::Encoded => "encoded",
            Unread::ContentType => "content_type",
            Unread::Endpoint => "endpoint",
        }
    }
}

fn rule(endpoint: Endpoint, whole_reply: bool) -> &'static Rule {
    match (endpoint, whole_reply) {
        (Endpoint::Generate, false) => &sglang::EVENT,
        (Endpoint::Generate, true) => &sglang::REPLY,
        _ => &openai::CHUNK,
    }
}

/// Hands the data of events to the scanner.
struct EventReader<'a> {
    event: &'a mut Event,
    root: &'static Rule,
    scanner: &'a mut Scanner,
    said: &'a mut Said,
}

impl EventSink for EventReader<'_> {
    fn data(&mut self, piece: &[u8]) {
        if !std::mem::replace(&mut self.event.begun, true) {
            self.event.done = Some(0);
        }
        if let Some(matched) = self.event.done {
            let rest = DONE.get(matched..).unwrap_or_default();
            let same = !rest.is_empty() && piece.len() <= rest.len() && rest.starts_with(piece);
            self.event.done = same.then(|| matched + piece.len());
        }
        self.scanner.feed(piece, self.said);
    }

    fn event_end(&mut self) {
        let event = std::mem::take(self.event);
        self.said.first_event = self.said.first_event.or(self.said.now);
        if event.done == Some(DONE.len()) {
            self.said.done = true;
        }
        self.said.fail_flat();
        self.said.take_event_tokens();
        self.said.told = false;
        self.said.item.clear();
        self.said.item.response_id.clear();
        self.scanner.reset(self.root);
    }
}

impl Said {
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
            Told::None => Told::One(index),
            Told::One(_) | Told::Several => Told::Several,
        };
        let (sequence, item) = (&mut self.sequences[index], &self.item);
        sequence.heard(Heard {
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

    /// The event is over: its `usage` counts the tokens of the one choice beside it (`continuous_usage_stats`), and
    /// those of the whole request where it stands alone.
    fn take_event_tokens(&mut self) {
        let of = std::mem::take(&mut self.event_of);
        let Some(tokens) = self.event_tokens.take() else {
            return;
        };
        match of {
            Told::One(index) => {
                if let Some(sequence) = self.sequences.get_mut(index) {
                    sequence.counted(tokens, TokenCountSource::Usage);
                }
            }
            Told::None | Told::Several => self.usage_completion_tokens = Some(tokens),
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
        if std::mem::take(&mut self.has_meta) {
            self.meta.clear();
        }
    }
}

fn keep_id(place: &mut Vec<u8>, value: Scalar<'_>) {
    if let Scalar::Quoted(id) = value {
        place.clear();
        place.extend_from_slice(id);
    }
}

impl Sink for Said {
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
            Field::MetaInfo => self.item.has_meta = true,
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
