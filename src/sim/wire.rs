//! The bytes of `/generate`, in the order of SGLang's keys as recorded; `meta_info` has its own file.
//!
//! Written by hand: the order matters, and an event costs a few copies of strings that are laid out
//! before. Numbers are JSON floats as Python writes them.

use std::fmt::Write as _;

use bytes::{Bytes, BytesMut};

use crate::clock::Stamp;

use super::call::{Refusal, RefusalKind};
use super::dialect::Dialect;
use super::meta_info;
use super::sequence::Sequence;
use super::shared::Exchange;

/// The end of every SSE stream.
pub(super) const DONE: &str = "data: [DONE]\n\n";

/// Writes to a `BytesMut` do not fail; this says it once.
macro_rules! put {
    ($out:expr, $($arg:tt)*) => {{ let _ = write!($out, $($arg)*); }};
}
pub(super) use put;

/// An event of a `/generate` stream, to be handed to the socket at `now`.
pub(super) fn event(exchange: &Exchange, sequence: &Sequence, now: Stamp) -> Bytes {
    let mut out = BytesMut::with_capacity(1_024);
    let is_incremental = exchange.shared.config.incremental;
    let from = if is_incremental { sequence.shown } else { 0 };
    out.extend_from_slice(b"data: ");
    answer(&mut out, exchange, sequence, from, now);
    if exchange.call.listed {
        put!(out, ",\"index\":{}", sequence.index);
    }
    out.extend_from_slice(b"}\n\n");
    out.freeze()
}

/// The body of a `/generate` reply that is no stream.
pub(super) fn reply(out: &mut BytesMut, exchange: &Exchange, now: Stamp) {
    let [open, close] = if exchange.call.listed {
        ["[", "]"]
    } else {
        ["", ""]
    };
    out.extend_from_slice(open.as_bytes());
    for sequence in &exchange.call.sequences {
        if sequence.index > 0 {
            out.extend_from_slice(b",");
        }
        answer(out, exchange, sequence, 0, now);
        out.extend_from_slice(b"}");
    }
    out.extend_from_slice(close.as_bytes());
}

/// `{"text":…,"output_ids":[…],"meta_info":{…}`, left open.
fn answer(out: &mut BytesMut, exchange: &Exchange, sequence: &Sequence, from: u32, now: Stamp) {
    let (script, made) = (&exchange.shared.script, sequence.made());
    let dialect = exchange.shared.config.dialect;
    put!(out, "{{\"text\":\"{}\"", script.text(from, made));
    if dialect >= Dialect::V054 {
        // Their ids are only the new ones, while the text is all so far.
        let from = match dialect {
            Dialect::V054 | Dialect::V055 => sequence.shown,
            _ => from,
        };
        put!(out, ",\"output_ids\":[{}]", script.ids(from, made));
    }
    out.extend_from_slice(b",\"meta_info\":");
    meta_info::write(out, exchange, sequence, now);
}

/// An error of the OpenAI shape, which `/generate` has too for some.
pub(super) fn error_body(message: &str, kind: &str, code: u16) -> String {
    let message = serde_json::Value::from(message);
    format!(
        "{{\"object\":\"error\",\"message\":{message},\"type\":\"{kind}\",\"param\":null,\"code\":{code}}}"
    )
}

impl Refusal {
    /// The body of a 400 from `/generate` or an OpenAI endpoint.
    pub(super) fn body(&self, generate: bool) -> String {
        match self.kind {
            RefusalKind::Invalid => error_body(&self.message, "Bad Request", 400),
            RefusalKind::Unsupported => error_body(&self.message, "BadRequest", 400),
            RefusalKind::Unfit if generate => {
                let message = serde_json::Value::from(self.message.as_str());
                format!("{{\"error\":{{\"message\":{message}}}}}")
            }
            RefusalKind::Unfit => error_body(&self.message, "BadRequestError", 400),
        }
    }

    /// The event with which a `/generate` stream says it inside a 200.
    pub(super) fn event(&self) -> String {
        let message = serde_json::Value::from(self.message.as_str());
        format!(
            "data: {{\"error\":{{\"message\":{message},\"type\":\"invalid_request_error\",\
             \"code\":400,\"retryable\":false}}}}\n\n"
        )
    }
}
