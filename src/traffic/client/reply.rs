//! Collects the text of a response, for the next turn of its conversation.

use serde_json::Value;

use crate::request::sse::{EventSink, SseScanner};

/// The text of a response, collected as it is read. Each event of a stream of `/generate` holds the whole text so far (cumulative), or
/// only what is new if the server was started that way (incremental); events of the OpenAI endpoints are incremental.
#[derive(Debug, Default)]
pub struct Reply {
    scanner: SseScanner,
    events: Events,
    /// Whether the body is a stream of events.
    pub(super) is_stream: bool,
}

#[derive(Debug, Default)]
struct Events {
    /// The data of the current event; the whole body if it is not a stream.
    data: Vec<u8>,
    /// The text so far.
    text: String,
    /// Whether the events' texts are appended: one did not begin with the text so far. (In an incremental stream, texts up to the
    /// first such one may be lost: it looked cumulative, which is the server's default.)
    is_incremental: bool,
    /// Whether the events are known to be cumulative. Of those that follow only the last counts, and no other is parsed.
    is_cumulative: bool,
    /// The data of the last event since then.
    last: Vec<u8>,
    is_too_long: bool,
}

/// The limit of an event's data, and of the text. A longer reply is dropped.
const MAX_BYTES: usize = 1 << 20;
/// By chance no text of more bytes than this is the beginning of the next one, or begins as the one before.
const MIN_SAME_BYTES: usize = 32;

impl Reply {
    /// Adds the next piece of the body.
    pub(super) fn push(&mut self, piece: &[u8]) {
        match self.is_stream {
            true => self.scanner.feed(piece, &mut self.events),
            false => self.events.data(piece),
        }
    }

    /// The text; `None` if it was too long.
    pub fn text(mut self) -> Option<String> {
        if !self.is_stream {
            self.events.event_end();
        }
        let events = self.events;
        let last = serde_json::from_slice(&events.last).ok();
        let text = last.and_then(text_of).unwrap_or(events.text);
        Some(text).filter(|_| !events.is_too_long)
    }
}

impl EventSink for Events {
    fn data(&mut self, piece: &[u8]) {
        self.is_too_long |= self.data.len() + piece.len() > MAX_BYTES;
        if !self.is_too_long {
            self.data.extend_from_slice(piece);
        }
    }

    fn event_end(&mut self) {
        let data = std::mem::take(&mut self.data);
        if self.is_too_long {
            return;
        }
        // The last event of a stream is `[DONE]`, which has no text.
        if self.is_cumulative {
            if data.starts_with(b"{") {
                self.last = data;
            }
            return;
        }
        let body: Value = serde_json::from_slice(&data).unwrap_or_default();
        // Only `/generate` has its text at the top level.
        self.is_incremental |= body.get("text").is_none();
        let text = text_of(body).unwrap_or_default();
        // An incomplete character at the end is replaced by the next event.
        let so_far = self.text.trim_end_matches('\u{fffd}');
        if !self.is_incremental && text.len() > MIN_SAME_BYTES && so_far.starts_with(&text) {
            // The last event may be without the stop string that the others had begun.
            self.text = text;
            return;
        }
        self.is_incremental |= !text.starts_with(so_far);
        let has_grown = so_far.len() > MIN_SAME_BYTES && text.len() > so_far.len();
        self.is_cumulative = has_grown && !self.is_incremental;
        match self.is_incremental {
            true => self.text.push_str(&text),
            false => self.text = text,
        }
        self.is_too_long |= self.text.len() > MAX_BYTES;
    }
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
            let mut reply = Reply {
                is_stream: true,
                ..Reply::default()
            };
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
            (&[" a", " b", " b c", " a"][..], " a b b c a"),
            // An incomplete character adds no text, and is replaced.
            (&["a", "a", "ab"], "ab"),
            (&["a\u{fffd}", "a\u{e9}"], "a\u{e9}"),
            // It looks cumulative, which is the server's default, until the last.
            (&["1", "10", " c"], "10 c"),
            (&[], ""),
        ] {
            assert_eq!(of_texts(texts), text, "{texts:?}");
        }
    }

    #[test]
    fn the_last_text_of_a_cumulative_stream_may_be_shorter() {
        let all = "0123456789".repeat(5);
        for sizes in [&[40, 38][..], &[20, 36, 40, 38], &[33, 50, 33]] {
            let texts: Vec<&str> = sizes.iter().map(|size| &all[..*size]).collect();
            assert_eq!(of_texts(&texts), texts[texts.len() - 1]);
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
    fn a_reply_that_is_too_long_is_not_kept() {
        let text = |bytes: usize, events: usize, is_stream| {
            let mut reply = Reply {
                is_stream,
                ..Reply::default()
            };
            let body = format!("{{\"choices\":[{{\"text\":\"{}\"}}]}}", "a".repeat(bytes));
            for _ in 0..events {
                match is_stream {
                    true => reply.push(format!("data: {body}\n\n").as_bytes()),
                    false => reply.push(body.as_bytes()),
                }
                assert!(reply.events.data.len() + reply.events.text.len() < 3 * MAX_BYTES);
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
