//! Bodies of responses, of `/generate` with SGLang's keys in their recorded order, and of `/v1/completions` and
//! `/v1/chat/completions`, as recorded; `meta_info` has its own file.
//!
//! Written by hand, as the order matters and an event then costs a few copies of strings that were rendered before. Numbers are
//! JSON floats as Python writes them.

use std::collections::VecDeque;
use std::fmt::Write as _;

use bytes::{Bytes, BytesMut};

use crate::clock::{NANOS, Stamp};
use crate::request::Endpoint;

use super::Accepted;
use super::config::Dialect;
use super::engine::EventKind;
use super::meta_info;
use super::sequence::{QUEUE_FULL, Sequence};

/// The end of every SSE stream.
pub(super) const DONE: &[u8] = b"data: [DONE]\n\n";

/// Writes to a buffer, which does not fail.
macro_rules! put {
    ($out:expr, $($arg:tt)*) => {{ let _ = write!($out, $($arg)*); }};
}

/// The words, one per token, escaped for JSON. They include what needs care in a stream: multi-byte characters, quotes, backslashes, line breaks.
const WORDS: [&str; 24] = [
    " the", " quick", " queue", " waits", " for", " no", " one", ",", " na", "ï", "ve", " worker",
    " 🙂", " says", " \\\"", "prefill", "\\\"", " then", " decode", ".", "\\n", " a", "\\\\", "b",
];

/// The text that the simulated model generates, the same for every request: its text and token ids of the longest possible output.
///
/// An output of `n` tokens is the first `n` tokens of one long text. So the cumulative text and ids of an event are prefixes of
/// two strings, which are escaped and rendered once.
#[derive(Debug)]
pub(super) struct CannedText {
    text: String,
    /// Where each token's text ends.
    text_ends: Vec<u32>,
    /// Three digits and a comma per token.
    ids: String,
}

impl CannedText {
    /// Renders `tokens` tokens.
    pub(super) fn new(tokens: u32) -> CannedText {
        let mut canned = CannedText {
            text: String::new(),
            text_ends: vec![0],
            ids: String::new(),
        };
        for token in 0..tokens as usize {
            // A stride coprime to the number of words mixes their order.
            let word = (token * 7 + token / WORDS.len()) % WORDS.len();
            canned.text.push_str(WORDS[word]);
            canned.text_ends.push(canned.text.len() as u32);
            canned.ids.push_str(&format!("{},", word + 100));
        }
        canned
    }

    /// The JSON-escaped text of the tokens `from..to`, without quotes.
    fn text(&self, from: u32, to: u32) -> &str {
        let [from, to] = [from, to].map(|token| self.text_ends[token as usize] as usize);
        &self.text[from..to]
    }

    /// The ids of the tokens `from..to`, joined by commas.
    fn ids(&self, from: u32, to: u32) -> &str {
        let piece = &self.ids[from as usize * 4..to as usize * 4];
        piece.strip_suffix(',').unwrap_or(piece)
    }
}

/// Renders an event of a stream of `/generate`, to be sent at `now`.
pub(super) fn generate_event(accepted: &Accepted, sequence: &Sequence, now: Stamp) -> Bytes {
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

/// Writes the body of a response of `/generate` that is no stream.
pub(super) fn generate_reply(out: &mut BytesMut, accepted: &Accepted, now: Stamp) {
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

/// Renders the chunks of an OpenAI endpoint for a sequence's newest token or end.
pub(super) fn openai_chunks(accepted: &Accepted, sequence: &Sequence, out: &mut VecDeque<Bytes>) {
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
pub(super) fn openai_tail(accepted: &Accepted, last: &Sequence, out: &mut VecDeque<Bytes>) {
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

/// Writes the body of a response of an OpenAI endpoint that is no stream.
pub(super) fn openai_reply(out: &mut BytesMut, accepted: &Accepted, now: Stamp) {
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

/// An error body of OpenAI's shape, which `/generate` uses for some errors too.
pub(super) fn error_body(message: &str, kind: &str, code: u16) -> String {
    let message = serde_json::Value::from(message);
    format!(
        "{{\"object\":\"error\",\"message\":{message},\"type\":\"{kind}\",\"param\":null,\"code\":{code}}}"
    )
}
