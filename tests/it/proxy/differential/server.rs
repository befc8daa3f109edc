//! The server behind both, and messages as they are compared.

use super::cases::{answer, table};
use super::*;

/// A message, its framing taken off.
#[derive(Debug, PartialEq)]
pub struct Message {
    /// The first line.
    pub line: String,
    /// Names in lower case and values, by name.
    pub fields: Vec<(String, String)>,
    /// As it is shown; nothing of one that was cut.
    pub body: String,
    /// It came to the end of its framing.
    pub whole: bool,
}

/// Gives each request the answer that it asks for.
pub async fn start() -> Upstream {
    Upstream::start(|_, request| {
        let asked = request.header("x-answer").and_then(|n| n.parse().ok());
        let (answer, closes) = answer(asked.unwrap_or(0) % table("answers").len());
        let answer = match request.head.starts_with("HEAD ") {
            true => without_body(answer),
            false => answer,
        };
        let then = closes.then_some(Step::Close);
        let sends = [Step::Send(answer.into())].into_iter();
        sends.chain(then).collect()
    })
    .await
}

/// An answer to a HEAD: up to the end of the head that this server marks as the last.
fn without_body(answer: &str) -> &str {
    let last = answer.find("x-server").unwrap_or(0);
    let end = answer[last..].find("\r\n\r\n");
    &answer[..end.map_or(answer.len(), |end| last + end + 4)]
}

impl Message {
    fn of(head: &str, body: &[u8], whole: bool) -> Message {
        let mut lines = head.trim_end_matches("\r\n").split("\r\n");
        let line = lines.next().unwrap().to_owned();
        let fields = lines.map(|line| line.split_once(':').unwrap_or((line, "")));
        let fields = fields.map(|(k, v)| (k.to_ascii_lowercase(), v.trim().to_owned()));
        let mut fields: Vec<_> = fields.collect();
        fields.sort();
        let body = if whole { body } else { &[] };
        Message {
            line,
            fields,
            body: body.escape_ascii().to_string(),
            whole,
        }
    }

    /// What stands for any refusal of a proxy's own.
    pub fn refusal(status: u16) -> Message {
        Message::of(&format!("HTTP/1.1 {status} refused"), b"", true)
    }

    pub fn of_request(seen: &Seen) -> Message {
        Message::of(&seen.head, &seen.body, seen.whole)
    }

    pub fn of_http2(answer: Answer) -> Message {
        let mut head = format!("HTTP/2 {}", answer.status);
        for (name, value) in &answer.headers {
            head += &format!("\r\n{name}: {}", String::from_utf8_lossy(value.as_bytes()));
        }
        Message::of(&head, &answer.body, answer.broken.is_none())
    }

    /// All responses of a connection that closed then; the first one may be to a HEAD.
    pub fn all(bytes: &[u8], mut is_to_head: bool) -> Vec<Message> {
        let mut reader = Reader::default().next(is_to_head);
        reader.feed(bytes);
        let mut all = Vec::new();
        while let Some(head) = &reader.head {
            let whole = reader.is_whole(0);
            let message = Message::of(head, &reader.body, whole);
            let is_interim = message.status() / 100 == 1 && message.status() != 101;
            all.push(message);
            if !whole {
                break;
            }
            is_to_head &= is_interim;
            reader = reader.next(is_to_head);
        }
        all
    }

    /// Of a response; 0 of a request.
    pub fn status(&self) -> u16 {
        let rest = self.line.strip_prefix("HTTP/");
        let status = rest.and_then(|rest| rest.split(' ').nth(1)?.parse().ok());
        status.unwrap_or(0)
    }

    /// Whether it stands for a refusal of a proxy's own.
    pub fn is_refusal(&self) -> bool {
        self.line.ends_with(" refused")
    }

    /// Whether the server said it, and not a proxy.
    pub fn is_servers(&self) -> bool {
        self.fields.iter().any(|(name, _)| name == "x-server")
    }
}
