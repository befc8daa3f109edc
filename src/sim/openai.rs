//! Chunks and replies of `/v1/completions` and `/v1/chat/completions`, as recorded.

use std::fmt::Write as _;

use bytes::{Bytes, BytesMut};

use crate::clock::{NANOS, Stamp};
use crate::request::endpoint::Endpoint;

use super::engine::EventKind;
use super::meta_info;
use super::sequence::{QUEUE_FULL, Sequence};
use super::shared::Exchange;
use super::wire::{error_body, put};

/// The chunks that tell of a sequence's newest token or end; each event is written for itself.
pub(super) fn chunks(exchange: &Exchange, sequence: &Sequence, send: &mut dyn FnMut(Bytes)) {
    if sequence.ending == Some(EventKind::Rejected) {
        let error = error_body(QUEUE_FULL, "SERVICE_UNAVAILABLE", 503);
        send(format!("data: {{\"error\":{error}}}\n\n").into());
        return;
    }
    let (index, from, made) = (sequence.index, sequence.shown, sequence.made());
    if sequence.ending.is_none() && from == made {
        // Retracted: nothing new to tell.
        return;
    }
    let text = exchange.shared.script.text(from, made);
    let is_chat = exchange.call.endpoint == Endpoint::Chat;
    let mut chunk = |choice: &str| {
        let mut out = open(exchange, sequence);
        put!(out, "{{\"index\":{index},{choice},\"matched_stop\":null}}]");
        if !is_chat {
            out.extend_from_slice(b",\"usage\":null");
        }
        out.extend_from_slice(b"}\n\n");
        send(out.freeze());
    };
    if !is_chat {
        let reason = finish_reason(sequence);
        chunk(&format!(
            "\"text\":\"{text}\",\"logprobs\":null,\"finish_reason\":{reason}"
        ));
        return;
    }
    let mut delta = |delta: &str| {
        chunk(&format!(
            "\"delta\":{{\"reasoning_content\":null,{delta}}},\"logprobs\":null,\"finish_reason\":null"
        ));
    };
    if from == 0 && made > 0 {
        delta("\"role\":\"assistant\",\"content\":\"\"");
    }
    if !text.is_empty() {
        delta(&format!("\"content\":\"{text}\""));
    }
}

/// The chunks after the last token of all: how each choice ended, and the usage. `last` is the
/// sequence that spoke last; as with the real server these chunks carry its id.
pub(super) fn tail(exchange: &Exchange, last: &Sequence, send: &mut dyn FnMut(Bytes)) {
    let call = &exchange.call;
    let ran = |one: &&Sequence| one.ending != Some(EventKind::Rejected);
    if call.endpoint == Endpoint::Chat {
        for sequence in call.sequences.iter().filter(ran) {
            let mut out = open(exchange, last);
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
    if call.include_usage && call.sequences.iter().any(|one| ran(&one)) {
        let mut out = open(exchange, last);
        out.extend_from_slice(b"],\"usage\":");
        usage(&mut out, exchange, call.endpoint == Endpoint::Chat);
        out.extend_from_slice(b"}\n\n");
        send(out.freeze());
    }
}

/// The body of a reply that is no stream.
pub(super) fn reply(out: &mut BytesMut, exchange: &Exchange, now: Stamp) {
    let call = &exchange.call;
    let rid = call.sequences.first().map_or("null", |s| &s.rid_json);
    put!(out, "{{\"id\":{rid},{}\"choices\":[", head(exchange));
    for sequence in &call.sequences {
        if sequence.index > 0 {
            out.extend_from_slice(b",");
        }
        let index = sequence.index;
        let text = exchange.shared.script.text(0, sequence.made());
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
            meta_info::write(out, exchange, sequence, now);
        }
        out.extend_from_slice(b"}");
    }
    out.extend_from_slice(b"],\"usage\":");
    usage(out, exchange, true);
    let made = call.sequences.first().map_or(0, Sequence::made);
    put!(
        out,
        ",\"metadata\":{{\"weight_version\":\"default\",\"weight_versions\":\
         [{{\"version\":\"default\",\"start\":0,\"end\":{made}}}]}}}}"
    );
}

/// A chunk up to and including `"choices":[`.
fn open(exchange: &Exchange, sequence: &Sequence) -> BytesMut {
    let mut out = BytesMut::with_capacity(320);
    let rid = &sequence.rid_json;
    put!(out, "data: {{\"id\":{rid},{}\"choices\":[", head(exchange));
    out
}

/// `"object":…,"created":…,"model":…,`
fn head(exchange: &Exchange) -> String {
    let call = &exchange.call;
    let object = match (call.endpoint, call.stream) {
        (Endpoint::Chat, true) => "chat.completion.chunk",
        (Endpoint::Chat, false) => "chat.completion",
        _ => "text_completion",
    };
    let model = serde_json::Value::from(call.model.as_str());
    let created = exchange.received.nanos().div_euclid(NANOS);
    format!("\"object\":\"{object}\",\"created\":{created},\"model\":{model},")
}

fn finish_reason(sequence: &Sequence) -> &'static str {
    match sequence.ending {
        None => "null",
        Some(EventKind::Token { .. }) => "\"length\"",
        Some(_) => "\"abort\"",
    }
}

/// The prompt counts once, however many answers it got.
fn usage(out: &mut BytesMut, exchange: &Exchange, details: bool) {
    let (prompt, made) = (exchange.call.prompt_tokens(), exchange.call.made());
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
