//! Responses of `/v1/completions` and `/v1/chat/completions`, as recorded from SGLang.

use std::collections::VecDeque;
use std::fmt::Write as _;

use bytes::{Bytes, BytesMut};

use crate::clock::{NANOS, Stamp};
use crate::request::Endpoint;

use super::engine::EventKind;
use super::generate::{error_body, put};
use super::meta_info;
use super::sequence::{QUEUE_FULL, Sequence};
use super::shared::Accepted;

/// Renders the chunks for a sequence's newest token or end.
pub(super) fn chunks(accepted: &Accepted, sequence: &Sequence, out: &mut VecDeque<Bytes>) {
    if sequence.ending == Some(EventKind::Rejected) {
        let error = error_body(QUEUE_FULL, "SERVICE_UNAVAILABLE", 503);
        out.push_back(format!("data: {{\"error\":{error}}}\n\n").into());
        return;
    }
    let (index, from, to) = (sequence.index, sequence.streamed, sequence.generated());
    if sequence.ending.is_none() && from == to {
        // Retracted: no new token.
        return;
    }
    let text = accepted.shared.canned_text.text(from, to);
    let mut push = |choice: &str| out.push_back(chunk(accepted, sequence, index, choice));
    if accepted.request.endpoint != Endpoint::Chat {
        let reason = finish_reason(sequence);
        push(&format!(
            "\"text\":\"{text}\",\"logprobs\":null,\"finish_reason\":{reason}"
        ));
        return;
    }
    if from == 0 && to > 0 {
        push(&delta(",\"role\":\"assistant\",\"content\":\"\"", "null"));
    }
    if !text.is_empty() {
        push(&delta(&format!(",\"content\":\"{text}\""), "null"));
    }
}

/// Renders the chunks after the last token of all: each choice's end, and the usage. They have the id of `last`, the sequence
/// whose event was the last one, as with SGLang.
pub(super) fn tail(accepted: &Accepted, last: &Sequence, out: &mut VecDeque<Bytes>) {
    let request = &accepted.request;
    let ran = |one: &&Sequence| one.ending != Some(EventKind::Rejected);
    if request.endpoint == Endpoint::Chat {
        for sequence in request.sequences.iter().filter(ran) {
            let choice = delta("", finish_reason(sequence));
            out.push_back(chunk(accepted, last, sequence.index, &choice));
        }
    }
    if request.include_usage && request.sequences.iter().any(|one| ran(&one)) {
        let mut chunk = open(accepted, last);
        chunk.extend_from_slice(b"],\"usage\":");
        usage(&mut chunk, accepted, request.endpoint == Endpoint::Chat);
        chunk.extend_from_slice(b"}\n\n");
        out.push_back(chunk.freeze());
    }
}

/// Writes the body of a response that is no stream.
pub(super) fn reply(out: &mut BytesMut, accepted: &Accepted, now: Stamp) {
    let request = &accepted.request;
    let rid = request.sequences.first().map_or("null", |s| &s.rid_json);
    put!(out, "{{\"id\":{rid},{}\"choices\":[", head(accepted));
    for sequence in &request.sequences {
        if sequence.index > 0 {
            out.extend_from_slice(b",");
        }
        let index = sequence.index;
        let text = accepted.shared.canned_text.text(0, sequence.generated());
        match request.endpoint {
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
        if request.return_meta_info {
            out.extend_from_slice(b",\"meta_info\":");
            meta_info::write(out, accepted, sequence, now);
        }
        out.extend_from_slice(b"}");
    }
    out.extend_from_slice(b"],\"usage\":");
    usage(out, accepted, true);
    let end = request.sequences.first().map_or(0, Sequence::generated);
    put!(
        out,
        ",\"metadata\":{{\"weight_version\":\"default\",\"weight_versions\":\
         [{{\"version\":\"default\",\"start\":0,\"end\":{end}}}]}}}}"
    );
}

/// Renders a chunk of one choice, with the id of `sequence`.
fn chunk(accepted: &Accepted, sequence: &Sequence, index: usize, choice: &str) -> Bytes {
    let mut chunk = open(accepted, sequence);
    put!(
        chunk,
        "{{\"index\":{index},{choice},\"matched_stop\":null}}]"
    );
    if accepted.request.endpoint != Endpoint::Chat {
        chunk.extend_from_slice(b",\"usage\":null");
    }
    chunk.extend_from_slice(b"}\n\n");
    chunk.freeze()
}

/// A choice of a chat's chunk.
fn delta(members: &str, finish_reason: &str) -> String {
    format!(
        "\"delta\":{{\"reasoning_content\":null{members}}},\"logprobs\":null,\"finish_reason\":{finish_reason}"
    )
}

/// Renders the start of a chunk, up to and including `"choices":[`.
fn open(accepted: &Accepted, sequence: &Sequence) -> BytesMut {
    let mut out = BytesMut::with_capacity(320);
    let rid = &sequence.rid_json;
    put!(out, "data: {{\"id\":{rid},{}\"choices\":[", head(accepted));
    out
}

/// `"object":…,"created":…,"model":…,`
fn head(accepted: &Accepted) -> String {
    let request = &accepted.request;
    let object = match (request.endpoint, request.stream) {
        (Endpoint::Chat, true) => "chat.completion.chunk",
        (Endpoint::Chat, false) => "chat.completion",
        _ => "text_completion",
    };
    let model = serde_json::Value::from(request.model.as_str());
    let created = accepted.received.nanos().div_euclid(NANOS);
    format!("\"object\":\"{object}\",\"created\":{created},\"model\":{model},")
}

fn finish_reason(sequence: &Sequence) -> &'static str {
    match sequence.ending {
        None => "null",
        Some(EventKind::Token { .. }) => "\"length\"",
        Some(_) => "\"abort\"",
    }
}

/// Writes the usage. A prompt counts once, however many sequences it has.
fn usage(out: &mut BytesMut, accepted: &Accepted, details: bool) {
    let request = &accepted.request;
    let (prompt, completion) = (request.prompt_tokens, request.generated());
    let total = prompt + completion;
    put!(
        out,
        "{{\"prompt_tokens\":{prompt},\"total_tokens\":{total},\"completion_tokens\":{completion}"
    );
    out.extend_from_slice(if details {
        b",\"prompt_tokens_details\":null,\"reasoning_tokens\":0,\"completion_tokens_details\":null}"
    } else {
        b",\"reasoning_tokens\":0}"
    });
}
