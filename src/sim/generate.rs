//! Responses of `/generate`, with SGLang's keys in their recorded order; `meta_info` has its own file.
//!
//! Written by hand, as the order matters and an event then costs a few copies of strings that were rendered before. Numbers are
//! JSON floats as Python writes them.

use std::fmt::Write as _;

use bytes::{Bytes, BytesMut};

use crate::clock::Stamp;

use super::dialect::Dialect;
use super::meta_info;
use super::request_body::Refusal;
use super::sequence::Sequence;
use super::shared::Accepted;

/// The end of every SSE stream.
pub(super) const DONE: &str = "data: [DONE]\n\n";

/// Writes to a buffer, which does not fail.
macro_rules! put {
    ($out:expr, $($arg:tt)*) => {{ let _ = write!($out, $($arg)*); }};
}
pub(super) use put;

/// Renders an event of a stream, to be sent at `now`.
pub(super) fn event(accepted: &Accepted, sequence: &Sequence, now: Stamp) -> Bytes {
    let mut out = BytesMut::with_capacity(1_024);
    let is_incremental = accepted.shared.config.incremental;
    let from = if is_incremental { sequence.streamed } else { 0 };
    out.extend_from_slice(b"data: ");
    output(&mut out, accepted, sequence, from, now);
    if accepted.request.is_list {
        put!(out, ",\"index\":{}", sequence.index);
    }
    out.extend_from_slice(b"}\n\n");
    out.freeze()
}

/// Writes the body of a response that is no stream.
pub(super) fn reply(out: &mut BytesMut, accepted: &Accepted, now: Stamp) {
    let [open, close] = match accepted.request.is_list {
        true => ["[", "]"],
        false => ["", ""],
    };
    out.extend_from_slice(open.as_bytes());
    for sequence in &accepted.request.sequences {
        if sequence.index > 0 {
            out.extend_from_slice(b",");
        }
        output(out, accepted, sequence, 0, now);
        out.extend_from_slice(b"}");
    }
    out.extend_from_slice(close.as_bytes());
}

/// Writes `{"text":…,"output_ids":[…],"meta_info":{…}`, without the closing brace.
fn output(out: &mut BytesMut, accepted: &Accepted, sequence: &Sequence, from: u32, now: Stamp) {
    let (canned, to) = (&accepted.shared.canned_text, sequence.generated());
    let dialect = accepted.shared.config.dialect;
    put!(out, "{{\"text\":\"{}\"", canned.text(from, to));
    if dialect >= Dialect::V054 {
        // In these versions only the new ids are sent, but the whole text.
        let from = match dialect {
            Dialect::V054 | Dialect::V055 => sequence.streamed,
            _ => from,
        };
        put!(out, ",\"output_ids\":[{}]", canned.ids(from, to));
    }
    out.extend_from_slice(b",\"meta_info\":");
    meta_info::write(out, accepted, sequence, now);
}

/// An error body of OpenAI's shape, which `/generate` uses for some errors too.
pub(super) fn error_body(message: &str, kind: &str, code: u16) -> String {
    let message = serde_json::Value::from(message);
    format!(
        "{{\"object\":\"error\",\"message\":{message},\"type\":\"{kind}\",\"param\":null,\"code\":{code}}}"
    )
}

impl Refusal {
    /// The body of the 400 response.
    pub(super) fn body(&self, is_generate: bool) -> String {
        if is_generate {
            let message = serde_json::Value::from(self.message.as_str());
            return format!("{{\"error\":{{\"message\":{message}}}}}");
        }
        error_body(&self.message, "BadRequestError", 400)
    }

    /// The error event of a `/generate` stream, whose status is 200.
    pub(super) fn event(&self) -> String {
        let message = serde_json::Value::from(self.message.as_str());
        format!(
            "data: {{\"error\":{{\"message\":{message},\"type\":\"invalid_request_error\",\
             \"code\":400,\"retryable\":false}}}}\n\n"
        )
    }
}
