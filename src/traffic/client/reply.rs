//! What a reply says, kept for the next turn of its conversation.

use serde_json::Value;

use crate::request::sse::{EventSink, SseScanner};

/// The text of a reply, gathered as it comes. A stream of `/generate` tells the whole text so far with every event (or
/// only what is new, where the server was started so), one of the OpenAI endpoints what is new.
#[derive(Debug, Default)]
pub struct Reply {
    scanner: SseScanner,
    events: Events,
    /// A body that is no stream.
    whole: Vec<u8>,
    is_stream: bool,
}

#[derive(Debug)]
struct Events {
    /// The data of the event under way.
    data: Vec<u8>,
    /// All that events brought, one behind another.
    text: String,
    /// Events that brought text.
    count: usize,
    /// What the first one brought, bytes.
    first: usize,
    /// What the last one brought.
    last: String,
    /// Every event began with what the one before it brought.
    repeats: bool,
    /// The data of the last event, once it is clear that each tells all the text so far: the others are not read.
    whole: Option<Vec<u8>>,
}

/// Pieces of a text begin like the piece before them now and then, but not so many times in a row.
const SURE: usize = 4;
/// A reply of more bytes than this (an event, or a body that is no stream) is not kept whole.
const MOST_BYTES: usize = 64 << 20;

impl Reply {
    /// Whether its body is a stream of events.
    pub(super) fn begins(&mut self, is_stream: bool) {
        self.is_stream = is_stream;
    }

    /// The next piece of its body.
    pub(super) fn piece(&mut self, piece: &[u8]) {
        match self.is_stream {
            true => self.scanner.feed(piece, &mut self.events),
            false => keep(&mut self.whole, piece),
        }
    }

    /// What it said.
    pub fn text(self) -> String {
        if !self.is_stream {
            return text_of(&self.whole).unwrap_or_default();
        }
        let events = self.events;
        let is_whole = events.is_whole();
        match events.whole.and_then(|last| text_of(&last)) {
            Some(text) => text,
            None if is_whole => events.last,
            None => events.text,
        }
    }
}

impl Default for Events {
    fn default() -> Events {
        Events {
            data: Vec::new(),
            text: String::new(),
            count: 0,
            first: 0,
            last: String::new(),
            repeats: true,
            whole: None,
        }
    }
}

impl Events {
    /// Whether each event seems to tell all the text so far.
    fn is_whole(&self) -> bool {
        self.repeats && self.last.len() > self.first
    }
}

impl EventSink for Events {
    fn data(&mut self, piece: &[u8]) {
        keep(&mut self.data, piece);
    }

    fn event_end(&mut self) {
        let data = std::mem::take(&mut self.data);
        // The stream's end says `[DONE]`.
        if data.first() != Some(&b'{') {
            return;
        }
        if let Some(last) = &mut self.whole {
            *last = data;
            return;
        }
        let Some(text) = text_of(&data).filter(|text| !text.is_empty()) else {
            return;
        };
        self.repeats &= is_generate(&data) && text.starts_with(&self.last);
        self.count += 1;
        if self.count == 1 {
            self.first = text.len();
        }
        self.text.push_str(&text);
        self.last = text;
        if self.count >= SURE && self.is_whole() {
            self.whole = Some(data);
        }
    }
}

fn keep(into: &mut Vec<u8>, piece: &[u8]) {
    if into.len() + piece.len() <= MOST_BYTES {
        into.extend_from_slice(piece);
    }
}

/// Whether it is of `/generate`, whose text stands at the top.
fn is_generate(json: &[u8]) -> bool {
    serde_json::from_slice(json).is_ok_and(|body: Value| body.get("text").is_some())
}

/// The text of a body or event of `/generate`, `/v1/completions` or `/v1/chat/completions`.
fn text_of(json: &[u8]) -> Option<String> {
    let mut body: Value = serde_json::from_slice(json).ok()?;
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
    use super::*;

    /// The text of a stream of these events, in pieces of every size.
    fn streamed(events: &[&str]) -> String {
        let events = events.iter().map(|event| format!("data: {event}\n\n"));
        let stream: String = events.chain(["data: [DONE]\n\n".to_owned()]).collect();
        let of_size = |size| {
            let mut reply = Reply::default();
            reply.begins(true);
            for piece in stream.as_bytes().chunks(size) {
                reply.piece(piece);
            }
            reply.text()
        };
        let whole = of_size(usize::MAX);
        assert!((1..20).all(|size| of_size(size) == whole));
        whole
    }

    #[test]
    fn the_text_of_every_kind_of_reply_is_read() {
        let whole = ["a", "a b", "a b", "a bc", "a bcd", "a bcde"];
        let whole = whole.map(|text| format!("{{\"text\":\"{text}\"}}"));
        let whole: Vec<&str> = whole.iter().map(String::as_str).collect();
        for (count, text) in [
            (6, "a bcde"),
            (5, "a bcd"),
            (4, "a bc"),
            (2, "a b"),
            (1, "a"),
        ] {
            assert_eq!(streamed(&whole[..count]), text);
        }
        let pieces = [r#"{"text":"1"}"#, r#"{"text":"10"}"#, r#"{"text":" c"}"#];
        assert_eq!(streamed(&pieces), "110 c");
        let pieces = [r#"{"text":" a"}"#, r#"{"text":" a"}"#, r#"{"text":" b"}"#];
        assert_eq!(streamed(&pieces), " a a b");
        let chat = [
            r#"{"choices":[{"delta":{"role":"assistant","content":""}}]}"#,
            r#"{"choices":[{"delta":{"content":"o"}}]}"#,
            r#"{"choices":[{"delta":{"content":"oh"}}]}"#,
            r#"{"choices":[{"delta":{}}]}"#,
            r#"{"choices":[],"usage":{}}"#,
        ];
        assert_eq!(streamed(&chat), "ooh");
        assert_eq!(streamed(&[r#"{"choices":[{"text":"a"}]}"#]), "a");
        assert_eq!(streamed(&[]), "");
        for body in [
            r#"{"text":"a"}"#,
            r#"{"choices":[{"message":{"content":"a"}}]}"#,
        ] {
            let mut reply = Reply::default();
            reply.piece(body.as_bytes());
            assert_eq!(reply.text(), "a");
        }
    }
}
