//! A server that reads requests strictly and keeps what it read, and messages taken apart.

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::http2::Answer;
use crate::support::listening::Listening;

use super::cases::{answer, table};

/// A whole message, its framing taken off.
#[derive(Clone, PartialEq)]
pub struct Message {
    /// The first line.
    pub line: String,
    /// Names in lower case and values, by name.
    pub fields: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// It came to the end of its framing.
    pub whole: bool,
}

impl fmt::Debug for Message {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fields: Vec<_> = self
            .fields
            .iter()
            .map(|(k, v)| format!("{k}: {v}"))
            .collect();
        let (fields, body) = (fields.join("; "), self.body.escape_ascii());
        let end = if self.whole { "" } else { " (cut)" };
        write!(formatter, "{} | {fields} | {body}{end}", self.line)
    }
}

/// The server; it ends when dropped.
pub struct Server {
    pub addr: SocketAddr,
    seen: Arc<Mutex<Vec<Message>>>,
    _listening: Listening,
}

impl Server {
    pub async fn start() -> Server {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let log = seen.clone();
        let listening = Listening::start(move |_, stream| serve(stream, log.clone())).await;
        Server {
            addr: listening.addr,
            seen,
            _listening: listening,
        }
    }

    /// The whole requests since the last call.
    pub fn take(&self) -> Vec<Message> {
        std::mem::take(&mut *self.seen.lock().unwrap())
    }
}

async fn serve(mut stream: TcpStream, seen: Arc<Mutex<Vec<Message>>>) {
    let mut bytes = Vec::new();
    let mut continued = false;
    loop {
        let parsed = Message::first(&bytes, false);
        match parsed {
            Some((message, length)) if message.whole => {
                bytes.drain(..length);
                continued = false;
                let asked = message.field("x-answer").and_then(|n| n.parse().ok());
                let (answer, closes) = answer(asked.unwrap_or(0) % table("answers").len());
                let is_head = message.line.starts_with("HEAD ");
                seen.lock().unwrap().push(message);
                let answer = if is_head {
                    without_body(answer)
                } else {
                    answer
                };
                if stream.write_all(answer.as_bytes()).await.is_err() || closes {
                    return;
                }
            }
            parsed => {
                let expects = parsed.is_some_and(|(m, _)| m.field("expect").is_some());
                if expects && !continued {
                    continued = true;
                    let _ = stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await;
                }
                if stream.read_buf(&mut bytes).await.unwrap_or(0) == 0 {
                    return;
                }
            }
        }
    }
}

/// An answer to a HEAD: up to the end of the head that this server marks as the last.
fn without_body(answer: &str) -> &str {
    let last = answer.find("x-server").unwrap_or(0);
    let end = answer[last..]
        .find("\r\n\r\n")
        .map_or(answer.len(), |end| last + end + 4);
    &answer[..end]
}

impl Message {
    /// What stands for any refusal of a proxy's own.
    pub fn refusal(status: u16) -> Message {
        Message {
            line: format!("HTTP/1.1 {status} refused"),
            fields: Vec::new(),
            body: Vec::new(),
            whole: true,
        }
    }

    pub fn of_http2(answer: Answer) -> Message {
        let whole = answer.broken.is_none();
        let fields = answer.headers.iter();
        let fields =
            fields.map(|(k, v)| (k.to_string(), String::from_utf8_lossy(v.as_bytes()).into()));
        let mut message = Message {
            line: format!("HTTP/2 {}", answer.status),
            fields: fields.collect(),
            whole,
            body: if whole { answer.body } else { Vec::new() },
        };
        message.fields.sort();
        message
    }

    /// All responses in `bytes`; the first one may be to a HEAD.
    pub fn all(bytes: &[u8], is_to_head: bool) -> Vec<Message> {
        let (mut all, mut rest, mut is_to_head) = (Vec::new(), bytes, is_to_head);
        while let Some((mut message, length)) = Message::first(rest, is_to_head) {
            rest = &rest[length..];
            let is_interim = message.status() / 100 == 1 && message.status() != 101;
            is_to_head &= is_interim;
            if message.field("connection").is_some_and(|c| c == "close") && message.is_until_close()
            {
                (message.body, message.whole, rest) = (rest.to_vec(), true, &[]);
            }
            all.push(message);
        }
        all
    }

    fn is_until_close(&self) -> bool {
        self.field("content-length").is_none() && self.field("transfer-encoding").is_none()
    }

    /// The first message in `bytes`, and where it ends; one that is not whole ends with them.
    fn first(bytes: &[u8], is_to_head: bool) -> Option<(Message, usize)> {
        let end = bytes.windows(4).position(|w| w == b"\r\n\r\n")? + 4;
        let head: String = bytes[..end].iter().map(|byte| char::from(*byte)).collect();
        let mut lines = head.trim_end_matches("\r\n").split("\r\n");
        let line = lines.next()?.to_owned();
        let fields = lines.map(|line| line.split_once(':').unwrap_or((line, "")));
        let fields = fields.map(|(k, v)| (k.to_ascii_lowercase(), v.trim().to_owned()));
        let mut message = Message {
            line,
            fields: fields.collect(),
            body: Vec::new(),
            whole: true,
        };
        message.fields.sort();
        let rest = &bytes[end..];
        let has_none = is_to_head || matches!(message.status(), 100..=199 | 204 | 304);
        let chunked = message.field("transfer-encoding").is_some();
        let length = message.field("content-length");
        // It may be told twice.
        let length = length.map(|n| n.split(',').next().unwrap_or(n).parse::<usize>());
        let (body, length) = match (has_none, chunked, length) {
            (true, ..) | (_, false, None) => (Some(Vec::new()), 0),
            (_, true, _) => unchunked(rest),
            (_, _, Some(length)) => {
                // What cannot be read as a number is as if it never ended.
                let length = length.unwrap_or(usize::MAX);
                let whole = rest.len() >= length;
                (
                    whole.then(|| rest[..length].to_vec()),
                    length.min(rest.len()),
                )
            }
        };
        message.whole = body.is_some();
        message.body = body.unwrap_or_default();
        Some((message, end + length))
    }

    pub fn field(&self, name: &str) -> Option<&str> {
        let mut fields = self.fields.iter();
        fields
            .find(|(key, _)| key == name)
            .map(|(_, value)| &**value)
    }

    /// Of a response; 0 of a request.
    pub fn status(&self) -> u16 {
        let status = self
            .line
            .strip_prefix("HTTP/")
            .and_then(|rest| rest.split(' ').nth(1));
        status.and_then(|status| status.parse().ok()).unwrap_or(0)
    }

    /// Whether it stands for a refusal of a proxy's own.
    pub fn is_refusal(&self) -> bool {
        self.line.ends_with(" refused")
    }

    /// Whether the server said it, and not a proxy.
    pub fn is_servers(&self) -> bool {
        self.field("x-server").is_some()
    }
}

/// A chunked body and its length in bytes; `None` where it is not whole.
fn unchunked(bytes: &[u8]) -> (Option<Vec<u8>>, usize) {
    let (mut body, mut at) = (Vec::new(), 0);
    loop {
        let Some(line) = bytes[at..].windows(2).position(|w| w == b"\r\n") else {
            return (None, bytes.len());
        };
        let size = String::from_utf8_lossy(&bytes[at..at + line]).into_owned();
        let Ok(size) = usize::from_str_radix(&size, 16) else {
            return (None, bytes.len());
        };
        at += line + 2;
        if bytes.len() < at + size + 2 {
            return (None, bytes.len());
        }
        body.extend_from_slice(&bytes[at..at + size]);
        at += size + 2;
        if size == 0 {
            return (Some(body), at);
        }
    }
}
