//! Chunks and replies of `/v1/completions` and `/v1/chat/completions`, as recorded.

use std::fmt::Write as _;

use bytes::{Bytes, BytesMut};

use crate::clock::Stamp;
use crate::request::endpoint::Endpoint;

use super::call::Call;
use super::sequence::{Ending, Sequence};
use super::wire::{QUEUE_FULL, Receipt, Wire, put};

impl Wire {
    /// The chunks that tell of a sequence's newest token or end; each event is written for itself.
    pub(super) fn openai_chunks(
        &self,
        call: &Call,
        receipt: &Receipt,
        sequence: &mut Sequence,
        send: &mut dyn FnMut(Bytes),
    ) {
        if sequence.ending == Some(Ending::Rejected) {
            let error = super::wire::error_body(QUEUE_FULL, "SERVICE_UNAVAILABLE", 503);
            send(format!("data: {{\"error\":{error}}}\n\n").into());
            return;
        }
        let (index, from) = (sequence.index, sequence.shown);
        if sequence.ending.is_none() && from == sequence.made {
            // Retracted: nothing new to tell.
            return;
        }
        let text = self.script.text(from, sequence.made);
        let mut chunk = |choice: &str| {
            let mut out = open(receipt, sequence);
            put!(out, "{{\"index\":{index},{choice}}}]");
            if call.endpoint != Endpoint::Chat {
                out.extend_from_slice(b",\"usage\":null");
            }
            out.extend_from_slice(b"}\n\n");
            send(out.freeze());
        };
        if call.endpoint == Endpoint::Chat {
            let rest = "\"logprobs\":null,\"finish_reason\":null,\"matched_stop\":null";
            if from == 0 && sequence.made > 0 {
                let delta = "\"reasoning_content\":null,\"role\":\"assistant\",\"content\":\"\"";
                chunk(&format!("\"delta\":{{{delta}}},{rest}"));
            }
            if !text.is_empty() {
                let delta = format!("\"reasoning_content\":null,\"content\":\"{text}\"");
                chunk(&format!("\"delta\":{{{delta}}},{rest}"));
            }
        } else {
            let reason = finish_reason(sequence);
            chunk(&format!(
                "\"text\":\"{text}\",\"logprobs\":null,\"finish_reason\":{reason},\"matched_stop\":null"
            ));
        }
        sequence.shown = sequence.made;
    }

    /// The chunks after the last token of all: how each choice ended, and the usage. `last` is the
    /// sequence that spoke last; as with the real server these chunks carry its id.
    pub(super) fn openai_tail(
        &self,
        call: &Call,
        receipt: &Receipt,
        sequences: &[Sequence],
        last: &Sequence,
        send: &mut dyn FnMut(Bytes),
    ) {
        let ran = || {
            sequences
                .iter()
                .filter(|s| s.ending != Some(Ending::Rejected))
        };
        if call.endpoint == Endpoint::Chat {
            for sequence in ran() {
                let mut out = open(receipt, last);
                put!(
                    out,
                    "{{\"index\":{},\"delta\":{{\"reasoning_content\":null}},\"logprobs\":null,\
                     \"finish_reason\":{},\"matched_stop\":null}}]}}\n\n",
                    sequence.index,
                    finish_reason(sequence)
                );
                send(out.freeze());
            }
        }
        if call.include_usage && ran().next().is_some() {
            let mut out = open(receipt, last);
            out.extend_from_slice(b"],\"usage\":");
            usage(&mut out, call, sequences, call.endpoint == Endpoint::Chat);
            out.extend_from_slice(b"}\n\n");
            send(out.freeze());
        }
    }

    /// The body of a reply that is no stream.
    pub(super) fn openai_reply(
        &self,
        out: &mut BytesMut,
        call: &Call,
        receipt: &Receipt,
        sequences: &mut [Sequence],
        now: Stamp,
    ) {
        let rid = sequences.first().map_or("null", |s| s.rid_json.as_str());
        put!(out, "{{\"id\":{rid},{}\"choices\":[", receipt.head);
        for sequence in sequences.iter_mut() {
            if sequence.index > 0 {
                out.extend_from_slice(b",");
            }
            let (index, text) = (sequence.index, self.script.text(0, sequence.made));
            match call.endpoint {
                Endpoint::Chat => put!(
                    out,
                    "{{\"index\":{index},\"message\":{{\"role\":\"assistant\",\"content\":\"{text}\",\
                     \"reasoning_content\":null}}"
                ),
                _ => put!(out, "{{\"index\":{index},\"text\":\"{text}\""),
            }
            let reason = finish_reason(sequence);
            put!(
                out,
                ",\"logprobs\":null,\"finish_reason\":{reason},\"matched_stop\":null"
            );
            if call.return_meta_info {
                out.extend_from_slice(b",\"meta_info\":");
                self.meta_info(out, receipt, sequence, now);
            }
            out.extend_from_slice(b"}");
        }
        out.extend_from_slice(b"],\"usage\":");
        usage(out, call, sequences, true);
        let made = sequences.first().map_or(0, |s| s.made);
        put!(
            out,
            ",\"metadata\":{{\"weight_version\":\"default\",\"weight_versions\":\
             [{{\"version\":\"default\",\"start\":0,\"end\":{made}}}]}}}}"
        );
    }
}

/// A chunk up to and including `"choices":[`.
fn open(receipt: &Receipt, sequence: &Sequence) -> BytesMut {
    let mut out = BytesMut::with_capacity(320);
    put!(
        out,
        "data: {{\"id\":{},{}\"choices\":[",
        sequence.rid_json,
        receipt.head
    );
    out
}

fn finish_reason(sequence: &Sequence) -> &'static str {
    match sequence.ending {
        None => "null",
        Some(Ending::Length) => "\"length\"",
        Some(Ending::Rejected | Ending::Aborted(_)) => "\"abort\"",
    }
}

/// The prompt counts once, however many answers it got.
fn usage(out: &mut BytesMut, call: &Call, sequences: &[Sequence], details: bool) {
    let prompt: u64 = sequences
        .iter()
        .step_by(call.n.max(1))
        .map(|s| u64::from(s.prompt_tokens))
        .sum();
    let made: u64 = sequences.iter().map(|s| u64::from(s.made)).sum();
    let total = prompt + made;
    put!(
        out,
        "{{\"prompt_tokens\":{prompt},\"total_tokens\":{total},\"completion_tokens\":{made}"
    );
    out.extend_from_slice(if details {
        b",\"prompt_tokens_details\":null,\"reasoning_tokens\":0,\"completion_tokens_details\":null}"
    } else {
        b",\"reasoning_tokens\":0}"
    });
}
