//! The response body, read into sequences, usage and errors: a stream of events, or one JSON document, called a reply here.

mod parsed;
pub mod rules;

pub use parsed::{MAX_SEQUENCES, ParsedBody};
pub use rules::Endpoint;

use crate::clock::Stamp;

use super::scan::{Progress, Scanner};
use super::sse::{EventSink, SseScanner};
use crate::names::names;

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
    /// Why a body was not read.
    pub enum Unread {
        /// A content coding hides it.
        Encoded = "encoded",
        /// It is neither events nor JSON.
        ContentType = "content_type",
        /// It is a page for people, as of a login.
        Html = "html",
        /// It only says that the server generates in the background.
        Background = "background",
    }
}

/// The JSON document being read: an event's data, or a reply.
#[derive(Debug)]
struct Document {
    scanner: Scanner,
    parsed: ParsedBody,
    /// The number of bytes of [`DONE`] matched so far; `None` once the event's data is something else.
    done: Option<usize>,
}

const DONE: &[u8] = b"[DONE]";

impl ResponseBody {
    /// Makes a reader for a response of `endpoint` with this `Content-Type`. `is_encoded`: a content coding hides the body, which
    /// is then only timed.
    pub fn new(endpoint: Endpoint, content_type: Option<&str>, is_encoded: bool) -> ResponseBody {
        let is = |kind| content_type.is_some_and(|value| is_kind(value, kind));
        let framing = if is("text/html") || is("application/xhtml+xml") {
            Framing::Opaque(Unread::Html)
        } else if is_encoded {
            Framing::Opaque(Unread::Encoded)
        } else if is("text/event-stream") {
            Framing::Events(SseScanner::default())
        } else if is("application/json") || content_type.is_none() {
            Framing::Json
        } else {
            Framing::Opaque(Unread::ContentType)
        };
        let is_reply = !matches!(framing, Framing::Events(_));
        let root = endpoint.rule();
        ResponseBody {
            framing,
            document: Document {
                scanner: match is_reply {
                    true => Scanner::new(root),
                    false => Scanner::with_template(root),
                },
                parsed: ParsedBody::new(is_reply),
                done: Some(0),
            },
        }
    }

    /// Whether a generated token has arrived; for a body that cannot be read, any byte. Always `false` for a reply.
    pub fn is_streaming(&self) -> bool {
        let parsed = &self.document.parsed;
        match &self.framing {
            Framing::Json => false,
            Framing::Opaque(_) => parsed.now.is_some(),
            Framing::Events(_) => parsed.sequences.iter().any(|s| s.first_token.is_some()),
        }
    }

    /// Returns the engine's ids of the sequences seen so far.
    pub fn engine_ids(&self) -> impl Iterator<Item = &str> {
        let sequences = self.document.parsed.sequences.iter();
        sequences.filter_map(|sequence| sequence.engine_id.as_deref())
    }

    /// Reads the next piece, which arrived at `at`. `stall_nanos`: how long writes to the client had been held up by then in all.
    pub fn feed(&mut self, bytes: &[u8], at: Stamp, stall_nanos: i64) {
        if bytes.is_empty() {
            return;
        }
        let document = &mut self.document;
        document.parsed.now = Some(at);
        document.parsed.stall_nanos = stall_nanos;
        if document.parsed.is_reply {
            document.parsed.first_event.get_or_insert(at);
        }
        match &mut self.framing {
            Framing::Events(events) => events.feed(bytes, document),
            Framing::Json => document.scanner.feed(bytes, &mut document.parsed),
            Framing::Opaque(_) => {}
        }
    }

    /// Ends the body: an event without its blank line ends here. Returns what was read of it.
    pub fn finish(mut self) -> ParsedBody {
        match &mut self.framing {
            Framing::Events(events) => events.finish(&mut self.document),
            Framing::Json => self.document.scanner.finish(),
            Framing::Opaque(_) => {}
        }
        let mut parsed = self.document.parsed;
        parsed.end();
        // A router that was cut off passes on what it has as if it were whole: only the body tells.
        parsed.generation_whole = match self.framing {
            Framing::Events(_) => Some(parsed.done && parsed.has_event),
            Framing::Opaque(_) if parsed.first_event.is_none() => Some(false),
            Framing::Opaque(reason) => {
                parsed.unread = Some(reason);
                None
            }
            Framing::Json => match self.document.scanner.progress() {
                Progress::Part => Some(false),
                Progress::Whole if parsed.unread.is_none() => Some(true),
                Progress::Whole => None,
                Progress::Broken => {
                    parsed.unread = Some(Unread::ContentType);
                    None
                }
            },
        };
        parsed
    }
}

/// Whether a `Content-Type` is of this kind, whatever its parameters.
fn is_kind(content_type: &str, kind: &str) -> bool {
    let media_type = content_type.split(';').next().unwrap_or_default();
    media_type.trim().eq_ignore_ascii_case(kind)
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
            false => self.parsed.has_event = true,
        }
        self.parsed.event_end();
        self.scanner.reset();
    }
}
