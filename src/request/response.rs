//! The response body: events or one JSON value, read into sequences, usage and errors.

mod parsed;

pub use parsed::{MAX_SEQUENCES, ParsedBody};

use crate::clock::Stamp;

use super::endpoint::Endpoint;
use super::head::is_kind;
use super::names::names;
use super::outcome::Generation;
use super::scan::{Progress, Rule, Scanner};
use super::sse::{EventSink, SseScanner};
use super::{messages, openai, responses, sglang};

/// Reads a response body in pieces; keeps no bytes of it.
#[derive(Debug)]
pub struct ResponseBody {
    framing: Framing,
    document: Document,
}

#[derive(Debug)]
enum Framing {
    Events(SseScanner),
    Json,
    Opaque(Unread),
}

names! {
    /// Why nobody knows what a body said.
    pub enum Unread {
        /// A content coding hides it.
        Encoded = "encoded",
        /// It is neither events nor JSON.
        ContentType = "content_type",
        /// It only says that the server generates in the background.
        Background = "background",
    }
}

/// The JSON that is being read: an event's data, or the whole body.
#[derive(Debug)]
struct Document {
    root: &'static Rule,
    scanner: Scanner,
    parsed: ParsedBody,
    /// Bytes of [`DONE`] that the event's data begins with; `None` once it is something else.
    done: Option<usize>,
    /// An event came that was not [`DONE`].
    has_event: bool,
}

const DONE: &[u8] = b"[DONE]";

impl ResponseBody {
    /// About to read a response of `endpoint` with this `Content-Type`. `encoded` says that a content
    /// coding hides the body, which is then only timed.
    pub fn new(endpoint: Endpoint, content_type: Option<&str>, encoded: bool) -> ResponseBody {
        let is = |kind| content_type.is_some_and(|told| is_kind(told, kind));
        let framing = if encoded {
            Framing::Opaque(Unread::Encoded)
        } else if is("text/event-stream") {
            Framing::Events(SseScanner::default())
        } else if is("application/json") {
            Framing::Json
        } else {
            Framing::Opaque(Unread::ContentType)
        };
        let whole_reply = !matches!(framing, Framing::Events(_));
        let root = match endpoint {
            Endpoint::Generate => &sglang::BODY,
            Endpoint::Completions | Endpoint::Chat => &openai::CHUNK,
            Endpoint::Responses => &responses::BODY,
            Endpoint::Messages => &messages::BODY,
        };
        ResponseBody {
            framing,
            document: Document {
                root,
                scanner: match whole_reply {
                    true => Scanner::new(root),
                    false => Scanner::of_many(root),
                },
                parsed: ParsedBody::new(whole_reply),
                done: Some(0),
                has_event: false,
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
        match &self.framing {
            Framing::Json => false,
            Framing::Opaque(_) => parsed.now.is_some(),
            Framing::Events(_) => parsed.sequences.iter().any(|of| of.first_token.is_some()),
        }
    }

    /// The engine's ids of its sequences, as far as they have come.
    pub fn engine_ids(&self) -> impl Iterator<Item = &str> {
        let sequences = self.document.parsed.sequences.iter();
        sequences.filter_map(|of| of.engine_id.as_deref())
    }

    /// What the body showed of the generation's end. A router that was cut off passes on what came as if it were
    /// whole: only the body tells.
    pub fn generation(&self) -> Generation {
        let has_begun = self.document.parsed.first_event.is_some();
        match &self.framing {
            Framing::Events(_) if !self.document.has_event => Generation::Empty,
            _ if self.document.parsed.done => Generation::Whole,
            Framing::Opaque(_) if !has_begun => Generation::Absent,
            Framing::Opaque(_) => Generation::Unknown,
            Framing::Json => match self.document.scanner.progress() {
                Progress::Nothing => Generation::Absent,
                Progress::Part => Generation::Cut,
                Progress::Whole if self.document.parsed.in_background => Generation::Unknown,
                Progress::Whole => Generation::Whole,
                Progress::Broken => Generation::Unknown,
            },
            Framing::Events(_) => Generation::Cut,
        }
    }

    /// Why nobody knows whether the body held text, where that is so.
    pub fn unread(&self) -> Option<Unread> {
        self.document.parsed.first_event?;
        match &self.framing {
            Framing::Json if self.document.parsed.in_background => Some(Unread::Background),
            Framing::Opaque(why) => Some(*why),
            Framing::Events(_) | Framing::Json => None,
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
        self.document.parsed.add_up_prompt();
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
        match self.done.replace(0) == Some(DONE.len()) {
            true => self.parsed.done = true,
            false => self.has_event = true,
        }
        self.parsed.event_end();
        self.scanner.reset(self.root);
    }
}
