//! Collects the text of a response, for the next turn of its conversation.

use serde_json::Value;

use crate::request::sse::{EventSink, SseScanner};

/// The text of a response, collected as it is read. Each event of a stream of `/generate` holds the whole text so far (cumulative), or
/// only what is new if the server was started that way (incremental); events of the OpenAI endpoints are incremental.
#[derive(Debug, Default)]
pub struct Reply {
    scanner: SseScanner,
    events: Events,
    is_stream: bool,
}

#[derive(Debug, Default)]
struct Events {
    /// The data of the current event; the whole body if it is not a stream.
    data: Vec<u8>,
    /// The text of the last event that had one, while the kind of stream is not known.
    last_text: String,
    /// The texts of all events joined, unless the stream is known to be cumulative.
    joined: Vec<u8>,
    /// `None` until an event shows it.
    is_cumulative: Option<bool>,
    /// The data of the last event of a cumulative stream; the events before it are not parsed.
    last_data: Vec<u8>,
    is_too_long: bool,
}

/// The limit of an event's data, and of the joined texts of an incremental stream. A longer reply is dropped.
const MAX_BYTES: usize = 1 << 20;

/// A text that begins with all of the text before it, of more bytes than this, shows that the stream is cumulative.
const MIN_CUMULATIVE_BYTES: usize = 32;

impl Reply {
    /// Sets whether the body is a stream of events.
    pub(super) fn set_stream(&mut self, is_stream: bool) {
        self.is_stream = is_stream;
    }

    /// Adds the next piece of the body.
    pub(super) fn push(&mut self, piece: &[u8]) {
        match self.is_stream {
            true => self.scanner.feed(piece, &mut self.events),
            false => self.events.data(piece),
        }
    }

    /// The text; `None` if it was too long.
    pub fn text(self) -> Option<String> {
        let events = self.events;
        if events.is_too_long {
            return None;
        }
        Some(match (self.is_stream, events.is_cumulative) {
            (false, _) => parse_text(&events.data),
            (true, Some(true)) => parse_text(&events.last_data),
            (true, Some(false)) => String::from_utf8(events.joined).ok()?,
            // Cumulative is the server's default.
            (true, None) => events.last_text,
        })
    }
}

impl EventSink for Events {
    fn data(&mut self, piece: &[u8]) {
        self.is_too_long |= !append(&mut self.data, piece);
    }

    fn event_end(&mut self) {
        let data = std::mem::take(&mut self.data);
        // The last event is `[DONE]`.
        if data.first() != Some(&b'{') || self.is_too_long {
            return;
        }
        if self.is_cumulative != Some(true) {
            self.parse(&data);
        }
        if self.is_cumulative == Some(true) {
            self.last_data = data;
        }
    }
}

impl Events {
    /// Parses an event of a stream that is not known to be cumulative.
    fn parse(&mut self, data: &[u8]) {
        let body: Value = serde_json::from_slice(data).unwrap_or_default();
        // Only `/generate` has its text at the top level.
        let is_openai = body.get("text").is_none();
        let text = text_of(body).unwrap_or_default();
        // An incomplete character at the end is replaced by the next event.
        let so_far = self.last_text.trim_end_matches('\u{fffd}');
        if is_openai || !(text.is_empty() || text.starts_with(so_far)) {
            self.is_cumulative.get_or_insert(false);
        } else if text.len() > so_far.len() && so_far.len() > MIN_CUMULATIVE_BYTES {
            self.is_cumulative.get_or_insert(true);
        }
        if !append(&mut self.joined, text.as_bytes()) {
            // If every text so far began with the one before, the stream is cumulative.
            self.is_too_long = !*self.is_cumulative.get_or_insert(true);
        }
        if !text.is_empty() {
            self.last_text = text;
        }
    }
}

/// Appends a piece if there is room for it; returns whether there was.
fn append(into: &mut Vec<u8>, piece: &[u8]) -> bool {
    let has_room = into.len() + piece.len() <= MAX_BYTES;
    if has_room {
        into.extend_from_slice(piece);
    }
    has_room
}

fn parse_text(json: &[u8]) -> String {
    let body = serde_json::from_slice(json).ok();
    body.and_then(text_of).unwrap_or_default()
}

/// The text of a body or event of `/generate`, `/v1/completions` or `/v1/chat/completions`.
fn text_of(mut body: Value) -> Option<String> {
    let text = match body.get_mut("text") {
        Some(text) => text.take(),
        None => {
            let choice = body.pointer_mut("/choices/0")?;
            ["/text", "/delta/content", "/message/content"]
                .into_iter()
                .find_map(|path| choice.pointer_mut(path).map(Value::take))?
        }
    };
    match text {
        Value::String(text) => Some(text),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text of a stream of these events, which is the same in pieces of any size.
    fn streamed(events: impl IntoIterator<Item = String>) -> String {
        let events = events.into_iter().map(|event| format!("data: {event}\n\n"));
        let stream: String = events.chain(["data: [DONE]\n\n".to_owned()]).collect();
        let of_size = |size| {
            let mut reply = Reply::default();
            reply.set_stream(true);
            for piece in stream.as_bytes().chunks(size) {
                reply.push(piece);
            }
            reply.text().unwrap()
        };
        let whole = of_size(usize::MAX);
        assert!((1..20).all(|size| of_size(size) == whole));
        whole
    }

    /// The same for events of `/generate` with these texts.
    fn of_texts(texts: &[&str]) -> String {
        let texts = texts.iter();
        streamed(texts.map(|text| format!("{{\"text\":\"{text}\"}}")))
    }

    #[test]
    fn streams_are_cumulative_or_incremental() {
        let so_far = ["a", "a b", "a b", "a bc", "a bcd", "a bcde"];
        for count in 1..=so_far.len() {
            assert_eq!(of_texts(&so_far[..count]), so_far[count - 1]);
        }
        for (texts, text) in [
            (&["1", "10", " c"][..], "110 c"),
            (&[" a", " a", " b"], " a a b"),
            // Either would do: cumulative is the server's default.
            (&["a", "a"], "a"),
            // An incomplete character adds no text, and is replaced.
            (&["a", "a", "ab"], "ab"),
            (&["a\u{fffd}", "a\u{e9}"], "a\u{e9}"),
            (&["1", "10", "", "1"], "1101"),
            (&[], ""),
        ] {
            assert_eq!(of_texts(texts), text, "{texts:?}");
        }
    }

    #[test]
    fn the_events_of_a_chat_are_joined_even_if_they_look_cumulative() {
        let deltas = r#"{"role":"assistant","content":""} {"content":"o"} {"content":"oh"} {}"#;
        let events = deltas.split(' ');
        let events = events.map(|delta| format!("{{\"choices\":[{{\"delta\":{delta}}}]}}"));
        let usage = r#"{"choices":[],"usage":{}}"#.to_owned();
        assert_eq!(streamed(events.chain([usage])), "ooh");
    }

    #[test]
    fn the_kind_of_a_long_stream_is_found_early() {
        let text = "0123456789 ".repeat(360);
        let mut reply = Reply::default();
        reply.set_stream(true);
        for tokens in 1..=1_800 {
            let so_far = &text[..tokens * 2];
            reply.push(format!("data: {{\"text\":\"{so_far}\"}}\n\n").as_bytes());
            let joined = reply.events.joined.len();
            assert!(joined < 1 << 10, "the kind is known early");
        }
        assert_eq!(reply.text().as_deref(), Some(&text[..3_600]));
        // The first texts look cumulative.
        let pieces = ["a", "a", "ab", "abc", "b"].repeat(400);
        assert_eq!(of_texts(&pieces), "aaababcb".repeat(400));
    }

    #[test]
    fn a_reply_that_is_too_long_is_not_kept() {
        let text = |bytes: usize, events: usize, is_stream| {
            let mut reply = Reply::default();
            reply.set_stream(is_stream);
            let body = format!("{{\"choices\":[{{\"text\":\"{}\"}}]}}", "a".repeat(bytes));
            for _ in 0..events {
                match is_stream {
                    true => reply.push(format!("data: {body}\n\n").as_bytes()),
                    false => reply.push(body.as_bytes()),
                }
                assert!(reply.events.data.len() + reply.events.joined.len() < 2 * MAX_BYTES);
            }
            reply.text().map(|text| text.len())
        };
        let half = MAX_BYTES / 2;
        assert_eq!(text(half, 1, false), Some(half));
        assert_eq!(text(half, 2, true), Some(2 * half));
        assert_eq!(text(half, 100, true), None);
        for is_stream in [true, false] {
            assert_eq!(text(MAX_BYTES, 1, is_stream), None);
        }
    }
}
