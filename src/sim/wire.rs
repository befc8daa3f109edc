//! The bytes of SGLang 0.5.23, in the order of its keys as recorded.
//!
//! Written by hand: the order matters, and an event costs a few copies of strings that are laid out
//! before. Numbers are JSON floats as Python writes them.

use std::fmt::Write as _;

use bytes::BytesMut;

use crate::clock::Stamp;
use crate::request::endpoint::Endpoint;

use super::call::{Call, Refusal, RefusalKind};
use super::engine::Aborted;
use super::script::Script;
use super::sequence::{Ending, Sequence};

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
        out.extend_from_slice(b"\",\"output_ids\":[");
        out.extend_from_slice(self.script.ids(from, made).as_bytes());
        out.extend_from_slice(b"],\"meta_info\":");
        self.meta_info(out, receipt, sequence, now);
        sequence.shown = made;
    }

    /// `meta_info` as it stands; the first one written of a sequence stamps its sending.
    pub(super) fn meta_info(
        &self,
        out: &mut BytesMut,
        receipt: &Receipt,
        sequence: &mut Sequence,
        now: Stamp,
    ) {
        put!(out, "{{\"id\":{},\"finish_reason\":", sequence.rid_json);
        finish_reason(out, sequence);
        let first = sequence.moments.first_sent.is_none();
        sequence.moments.first_sent.get_or_insert(now);
        let unscheduled = Some(Ending::Aborted(Aborted::Waiting));
        if sequence.ending == Some(Ending::Rejected) || sequence.ending == unscheduled {
            minimal(out, receipt, sequence);
        } else {
            self.progress(out, sequence);
            if sequence.ending.is_some() {
                self.closing(out, receipt, sequence, first);
            }
        }
        if first {
            stamp(
                out,
                "response_sent_to_client_ts",
                sequence.moments.first_sent,
            );
        }
        out.extend_from_slice(b"}");
    }

    /// The members that every event has.
    fn progress(&self, out: &mut BytesMut, sequence: &mut Sequence) {
        if sequence.fixed.is_empty() {
            sequence.fixed = self.fixed(sequence);
        }
        out.extend_from_slice(sequence.fixed.as_bytes());
        let (made, cached) = (sequence.made, sequence.cached);
        put!(
            out,
            "\"completion_tokens\":{made},\"cached_tokens\":{cached}"
        );
        if sequence.ending.is_some() {
            weight_versions(out, made);
        }
        out.extend_from_slice(b",\"cached_tokens_details\":");
        match cached {
            0 => out.extend_from_slice(b"null"),
            _ => put!(out, "{{\"device\":{cached},\"host\":0}}"),
        }
        if self.ranks > 1 {
            put!(out, ",\"dp_rank\":{}", sequence.rank);
        } else {
            out.extend_from_slice(b",\"dp_rank\":null");
        }
    }

    fn fixed(&self, sequence: &Sequence) -> String {
        let mut out = BytesMut::new();
        put!(
            out,
            ",\"prompt_tokens\":{},\"weight_version\":\"default\",\"num_retractions\":{}",
            sequence.prompt_tokens,
            sequence.retractions
        );
        if self.metrics {
            out.extend_from_slice(b",\"storage_prefetch_wait\":0.0,\"storage_staging_wait\":0.0");
            let moments = &sequence.moments;
            stamp(&mut out, "forward_entry_time", moments.queue_end);
            stamp(&mut out, "prefill_finished_time", moments.prefill_end);
            let queue = between(moments.queue_start, moments.queue_end);
            // As the real one: adds up over retractions, while the moments stay those of the first wait.
            let queue = queue.unwrap_or(0.0) + moments.waited_again;
            put!(out, ",\"queue_time\":{queue:?}");
        }
        out.extend_from_slice(b",\"reasoning_tokens\":0,");
        String::from_utf8_lossy(&out).into_owned()
    }

    /// The members that only the last event has.
    fn closing(&self, out: &mut BytesMut, receipt: &Receipt, sequence: &Sequence, first: bool) {
        let moments = &sequence.moments;
        let received = Some(receipt.received);
        let e2e = between(received, moments.finish).unwrap_or(0.0);
        put!(out, ",\"e2e_latency\":{e2e:?}");
        if !self.metrics {
            return;
        }
        stamp(out, "request_received_ts", received);
        if let Some(latency) = between(received, moments.first_token) {
            put!(out, ",\"first_token_latency\":{latency:?}");
        }
        let dispatched = Some(receipt.dispatched);
        stamp(out, "api_server_dispatch_finish_ts", dispatched);
        if !first {
            stamp(out, "response_sent_to_client_ts", moments.first_sent);
        }
        stamp(out, "request_finished_ts", moments.finish);
        if let (2.., Some(decode)) = (sequence.made, between(moments.first_token, moments.finish)) {
            // A step of no length (`--instant`) has no throughput.
            let throughput = f64::from(sequence.made - 1) / decode;
            put!(
                out,
                ",\"decode_throughput\":{:?}",
                if throughput.is_finite() {
                    throughput
                } else {
                    0.0
                }
            );
        }
    }
}

/// `meta_info` of a request that never ran.
fn minimal(out: &mut BytesMut, receipt: &Receipt, sequence: &Sequence) {
    let e2e = between(Some(receipt.received), sequence.moments.finish).unwrap_or(0.0);
    put!(
        out,
        ",\"weight_version\":\"default\",\"e2e_latency\":{e2e:?}"
    );
    weight_versions(out, 0);
    out.extend_from_slice(b",\"completion_tokens\":0");
}

fn weight_versions(out: &mut BytesMut, made: u32) {
    put!(
        out,
        ",\"weight_versions\":[{{\"version\":\"default\",\"start\":0,\"end\":{made}}}]"
    );
}

fn finish_reason(out: &mut BytesMut, sequence: &Sequence) {
    match sequence.ending {
        None => out.extend_from_slice(b"null"),
        Some(Ending::Length) => put!(
            out,
            "{{\"type\":\"length\",\"length\":{}}}",
            sequence.wanted
        ),
        Some(Ending::Rejected) => put!(
            out,
            "{{\"type\":\"abort\",\"status_code\":503,\"message\":\"{QUEUE_FULL}\"}}"
        ),
        Some(Ending::Aborted(Aborted::Waiting)) => {
            out.extend_from_slice(b"{\"type\":\"abort\",\"message\":\"Abort in waiting queue\"}");
        }
        Some(Ending::Aborted(Aborted::Running)) => out.extend_from_slice(
            b"{\"type\":\"abort\",\"message\":\"Aborted\",\"status_code\":null,\"err_type\":null}",
        ),
    }
}

/// Seconds between two moments, as the difference of the floats that are printed: so a reader who adds
/// it to one of them gets the other exactly.
fn between(from: Option<Stamp>, to: Option<Stamp>) -> Option<f64> {
    Some(to?.seconds() - from?.seconds())
}

fn stamp(out: &mut BytesMut, key: &str, at: Option<Stamp>) {
    if let Some(at) = at {
        put!(out, ",\"{key}\":{:?}", at.seconds());
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
