//! The bytes of `/generate`, in the order of SGLang's keys as recorded; `meta_info` has its own file.
//!
//! Written by hand: the order matters, and an event costs a few copies of strings that are laid out
//! before. Numbers are JSON floats as Python writes them.

use std::fmt::Write as _;

use bytes::BytesMut;

use crate::clock::Stamp;
use crate::request::endpoint::Endpoint;

use super::call::{Call, Refusal, RefusalKind};
use super::dialect::Dialect;
use super::script::Script;
use super::sequence::Sequence;

/// The end of every SSE stream.
pub(super) const DONE: &str = "data: [DONE]\n\n";

/// The message of a rejected request.
pub(super) const QUEUE_FULL: &str = "The request queue is full.";

/// What is the same for all replies of a server.
#[derive(Debug)]
pub(super) struct Wire {
    pub script: Script,
    /// `--enable-metrics`: `meta_info` has its timings.
    pub metrics: bool,
    /// `--incremental-streaming-output`.
    pub incremental: bool,
    /// `--dialect`: whose `meta_info` it has.
    pub dialect: Dialect,
    /// When the server started.
    pub started: Stamp,
    /// Data-parallel ranks (`--dp-size`).
    pub ranks: usize,
}

/// What is the same for all events of a reply.
#[derive(Debug)]
pub(super) struct Receipt {
    pub received: Stamp,
    /// Tokenized and handed to the scheduler.
    pub dispatched: Stamp,
    /// `"object":…,"created":…,"model":…,` of OpenAI replies, in this order.
    pub head: String,
}

/// Writes to a `BytesMut` do not fail; this says it once.
macro_rules! put {
    ($out:expr, $($arg:tt)*) => {{ let _ = write!($out, $($arg)*); }};
}
pub(super) use put;

impl Receipt {
    /// Of a request that never gets to the scheduler.
    pub(super) fn bare(received: Stamp) -> Receipt {
        Receipt {
            received,
            dispatched: received,
            head: String::new(),
        }
    }

    pub(super) fn new(call: &Call, received: Stamp, dispatched: Stamp) -> Receipt {
        let created = received.nanos().div_euclid(crate::clock::NANOS);
        let model = serde_json::Value::from(call.model.as_str());
        let object = object(call);
        Receipt {
            received,
            dispatched,
            head: format!("\"object\":\"{object}\",\"created\":{created},\"model\":{model},"),
        }
    }
}

/// The `object` of replies to `call`.
fn object(call: &Call) -> &'static str {
    match (call.endpoint, call.stream) {
        (Endpoint::Chat, true) => "chat.completion.chunk",
        (Endpoint::Chat, false) => "chat.completion",
        _ => "text_completion",
    }
}

impl Wire {
    /// An event of a `/generate` stream, to be handed to the socket at `now`.
    pub(super) fn generate_event(
        &self,
        out: &mut BytesMut,
        call: &Call,
        receipt: &Receipt,
        sequence: &mut Sequence,
        now: Stamp,
    ) {
        let from = if self.incremental { sequence.shown } else { 0 };
        out.extend_from_slice(b"data: ");
        self.answer(out, receipt, sequence, from, now);
        if call.listed {
            put!(out, ",\"index\":{}", sequence.index);
        }
        out.extend_from_slice(b"}\n\n");
    }

    /// The body of a `/generate` reply that is no stream.
    pub(super) fn generate_reply(
        &self,
        out: &mut BytesMut,
        call: &Call,
        receipt: &Receipt,
        sequences: &mut [Sequence],
        now: Stamp,
    ) {
        let [open, close] = if call.listed { ["[", "]"] } else { ["", ""] };
        out.extend_from_slice(open.as_bytes());
        for (place, sequence) in sequences.iter_mut().enumerate() {
            if place > 0 {
                out.extend_from_slice(b",");
            }
            self.answer(out, receipt, sequence, 0, now);
            out.extend_from_slice(b"}");
        }
        out.extend_from_slice(close.as_bytes());
    }

    /// `{"text":…,"output_ids":[…],"meta_info":{…}`, left open.
    fn answer(
        &self,
        out: &mut BytesMut,
        receipt: &Receipt,
        sequence: &mut Sequence,
        from: u32,
        now: Stamp,
    ) {
        let made = sequence.made;
        out.extend_from_slice(b"{\"text\":\"");
        out.extend_from_slice(self.script.text(from, made).as_bytes());
        out.extend_from_slice(b"\"");
        if self.dialect.has_output_ids() {
            let from = match self.dialect.sends_new_ids() {
                true => sequence.shown,
                false => from,
            };
            out.extend_from_slice(b",\"output_ids\":[");
            out.extend_from_slice(self.script.ids(from, made).as_bytes());
            out.extend_from_slice(b"]");
        }
        out.extend_from_slice(b",\"meta_info\":");
        self.meta_info(out, receipt, sequence, now);
        sequence.shown = made;
    }
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
