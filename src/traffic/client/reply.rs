//! What a reply says, kept for the next turn of its conversation.

use serde_json::Value;

use crate::request::sse::{EventSink, SseScanner};

/// The text of a reply, gathered as it comes. A stream of `/generate` tells the whole text so far with every event (or
/// only what is new, where the server was started so), one of the OpenAI endpoints what is new.
#[derive(Debug, Default)]
pub struct Reply {
    scanner: SseScanner,
    events: Events,
    is_stream: bool,
}

#[derive(Debug, Default)]
struct Events {
    /// The data of the event under way; of a body that is no stream, all of it.
    data: Vec<u8>,
    /// The text of the last event that had any.
    last: String,
    /// The texts of all events, one behind another, as long as each may bring what is new.
    joined: Vec<u8>,
    /// Whether each event tells all so far, as soon as one says so.
    is_whole: Option<bool>,
    /// The data of the last event, of those that tell all: the others are not read.
    kept: Vec<u8>,
    is_too_long: bool,
}

/// A reply with an event of more bytes than this, or with more in all where each event brings what is new, is not kept.
const MOST_BYTES: usize = 1 << 20;

/// A piece does not begin with the one before and go on, if that has more bytes than this.
const SURE: usize = 32;

impl Reply {
    /// Whether its body is a stream of events.
    pub(super) fn begins(&mut self, is_stream: bool) {
        self.is_stream = is_stream;
    }

    /// The next piece of its body.
    pub(super) fn piece(&mut self, piece: &[u8]) {
        match self.is_stream {
            true => self.scanner.feed(piece, &mut self.events),
            false => self.events.data(piece),
        }
    }

    /// What it said; `None` where that was too long.
    pub fn text(self) -> Option<String> {
        let events = self.events;
        if events.is_too_long {
            return None;
        }
        Some(match (self.is_stream, events.is_whole) {
            (false, _) => read(&events.data),
            (true, Some(true)) => read(&events.kept),
            (true, Some(false)) => String::from_utf8(events.joined).ok()?,
            // What events do if nobody has told the server otherwise.
            (true, None) => events.last,
        })
    }
}

impl EventSink for Events {
    fn data(&mut self, piece: &[u8]) {
        self.is_too_long |= !keep(&mut self.data, piece);
    }

    fn event_end(&mut self) {
        let data = std::mem::take(&mut self.data);
        // The stream's end says `[DONE]`.
        if data.first() != Some(&b'{') || self.is_too_long {
            return;
        }
        if self.is_whole != Some(true) {
            self.read(&data);
        }
        if self.is_whole == Some(true) {
            self.kept = data;
        }
    }
}

impl Events {
    /// Reads an event, as long as it may bring what is new.
    fn read(&mut self, data: &[u8]) {
        let body: Value = serde_json::from_slice(data).unwrap_or_default();
        // The text of `/generate` stands at the top.
        let is_piece = body.get("text").is_none();
        let text = text_of(body).unwrap_or_default();
        // Half a character is told anew.
        let so_far = self.last.trim_end_matches('\u{fffd}');
        if is_piece || !(text.is_empty() || text.starts_with(so_far)) {
            self.is_whole.get_or_insert(false);
        } else if text.len() > so_far.len() && so_far.len() > SURE {
            self.is_whole.get_or_insert(true);
        }
        if !keep(&mut self.joined, text.as_bytes()) {
            // So many that begin with the one before are no pieces.
            self.is_too_long = !*self.is_whole.get_or_insert(true);
        }
        if !text.is_empty() {
            self.last = text;
        }
    }
}

/// Puts a piece behind what there is; whether there was room.
fn keep(into: &mut Vec<u8>, piece: &[u8]) -> bool {
    let has_room = into.len() + piece.len() <= MOST_BYTES;
    if has_room {
        into.extend_from_slice(piece);
    }
    has_room
}

fn read(json: &[u8]) -> String {
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
                .find_map(|place| choice.pointer_mut(place).map(Value::take))?
        }
    };
    match text {
        Value::String(text) => Some(text),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::fmt;

    use super::*;

    /// The text of a stream of these events, in pieces of every size.
    fn streamed(events: &[impl fmt::Display]) -> String {
        let events = events.iter().map(|event| format!("data: {event}\n\n"));
        let stream: String = events.chain(["data: [DONE]\n\n".to_owned()]).collect();
        let of_size = |size| {
            let mut reply = Reply::default();
            reply.begins(true);
            for piece in stream.as_bytes().chunks(size) {
                reply.piece(piece);
            }
            reply.text().unwrap()
        };
        let whole = of_size(usize::MAX);
        assert!((1..20).all(|size| of_size(size) == whole));
        whole
    }

    /// The same of `/generate`, whose events have these texts.
    fn of_texts(texts: &[&str]) -> String {
        let events = texts.iter().map(|text| format!("{{\"text\":\"{text}\"}}"));
        streamed(&Vec::from_iter(events))
    }

    #[test]
    fn each_event_of_a_stream_tells_all_so_far_or_what_is_new() {
        let so_far = ["a", "a b", "a b", "a bc", "a bcd", "a bcde"];
        for count in 1..=so_far.len() {
            assert_eq!(of_texts(&so_far[..count]), so_far[count - 1]);
        }
        for (texts, said) in [
            (&["1", "10", " c"][..], "110 c"),
            (&[" a", " a", " b"], " a a b"),
            // As the server does unless told otherwise.
            (&["a", "a"], "a"),
            // Half a character adds no text, and is no piece when it is told anew.
            (&["a", "a", "ab"], "ab"),
            (&["a\u{fffd}", "a\u{e9}"], "a\u{e9}"),
            (&["1", "10", "", "1"], "1101"),
            (&[], ""),
        ] {
            assert_eq!(of_texts(texts), said, "{texts:?}");
        }
    }

    #[test]
    fn the_text_of_every_kind_of_reply_is_read() {
        let chat = [
            r#"{"choices":[{"delta":{"role":"assistant","content":""}}]}"#,
            r#"{"choices":[{"delta":{"content":"o"}}]}"#,
            r#"{"choices":[{"delta":{"content":"oh"}}]}"#,
            r#"{"choices":[{"delta":{}}]}"#,
            r#"{"choices":[],"usage":{}}"#,
        ];
        assert_eq!(streamed(&chat), "ooh");
        assert_eq!(streamed(&[r#"{"choices":[{"text":"a"}]}"#]), "a");
        let chat = r#"{"choices":[{"message":{"content":"a"}}]}"#;
        for body in [r#"{"text":"a"}"#, chat] {
            let mut reply = Reply::default();
            reply.piece(body.as_bytes());
            assert_eq!(reply.text().unwrap(), "a");
        }
    }

    #[test]
    fn a_long_stream_is_read_without_ids_whatever_its_events_tell() {
        let text = "0123456789 ".repeat(360);
        let mut reply = Reply::default();
        reply.begins(true);
        for tokens in 1..=1_800 {
            let so_far = &text[..tokens * 2];
            reply.piece(format!("data: {{\"text\":\"{so_far}\"}}\n\n").as_bytes());
            assert!(reply.events.joined.len() < 1 << 10, "it is told early");
        }
        assert_eq!(reply.text().as_deref(), Some(&text[..3_600]));
        // The first ones begin like what tells all so far.
        let pieces = ["a", "a", "ab", "abc", "b"].repeat(400);
        assert_eq!(of_texts(&pieces), "aaababcb".repeat(400));
    }

    #[test]
    fn a_reply_that_is_too_long_is_not_kept() {
        let text = |bytes: usize, events: usize, is_stream| {
            let mut reply = Reply::default();
            reply.begins(is_stream);
            let body = format!("{{\"choices\":[{{\"text\":\"{}\"}}]}}", "a".repeat(bytes));
            for _ in 0..events {
                match is_stream {
                    true => reply.piece(format!("data: {body}\n\n").as_bytes()),
                    false => reply.piece(body.as_bytes()),
                }
                assert!(reply.events.data.len() + reply.events.joined.len() < 2 * MOST_BYTES);
            }
            reply.text().map(|text| text.len())
        };
        let half = MOST_BYTES / 2;
        assert_eq!(text(half, 1, false), Some(half));
        assert_eq!(text(half, 2, true), Some(2 * half));
        assert_eq!(text(half, 100, true), None);
        for is_stream in [true, false] {
            assert_eq!(text(MOST_BYTES, 1, is_stream), None);
        }
    }
}
