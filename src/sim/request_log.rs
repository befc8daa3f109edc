//! The request log of `--export-metrics-to-file`: a JSON line a request, as SGLang writes it.

use bytes::BytesMut;
use serde_json::Value;

use crate::clock::Stamp;
use crate::request::endpoint::Endpoint;

use super::disaggregation::Bootstrap;
use super::meta_info;
use super::sequence::Sequence;
use super::shared::Exchange;

/// The line of an answer that has ended: what SGLang's own request holds, in its order and without what is unset or
/// a prompt, and `meta_info`.
pub(super) fn line(exchange: &Exchange, sequence: &Sequence, now: Stamp) -> String {
    let is_openai = exchange.call.endpoint != Endpoint::Generate;
    let is_one_chat = exchange.call.endpoint == Endpoint::Chat && exchange.call.n == 1;
    let headers = ["traceparent", "tracestate"].into_iter();
    let headers = headers.filter_map(|name| {
        let value = Value::from(exchange.header(name)?);
        Some(format!("\"{name}\":{value}"))
    });
    let received = exchange.shared.perf(exchange.received);
    let parameters = format!(
        "{{\"rid\":{},\"use_audio_in_video\":false,\"return_logprob\":false,\"logprob_start_len\":-1,\
         \"top_logprobs_num\":0,\"return_sampling_mask\":false,\"return_text_in_logprobs\":{is_openai},\
         \"return_flat_raw_top_logprobs\":false,\"return_flat_raw_output_top_logprobs\":false,\
         \"return_flat_raw_top_logprobs_b64\":false,\"stream\":{},\"log_metrics\":true,\
         \"return_hidden_states\":false,\"return_routed_experts\":false,\"routed_experts_start_len\":0,\
         \"return_indexer_topk\":false,{}{}\"background\":false,\"require_reasoning\":false,\
         \"no_logs\":false,\"return_bytes\":false,\"return_entropy\":false,\
         \"return_prompt_token_ids\":false,\"external_trace_header\":{{{}}}{}}}",
        sequence.rid_json,
        exchange.call.stream,
        if is_one_chat {
            "\"modalities\":[],"
        } else {
            ""
        },
        match &sequence.bootstrap {
            Some(Bootstrap { host, port, room }) => format!(
                "\"bootstrap_host\":{},\"bootstrap_port\":{port},\"bootstrap_room\":{room},",
                Value::from(host.as_str())
            ),
            None => String::new(),
        },
        headers.collect::<Vec<_>>().join(","),
        match is_openai {
            true => format!(",\"received_time\":{received:?}"),
            false => String::new(),
        },
    );
    let mut out = BytesMut::new();
    meta_info::write(&mut out, exchange, sequence, now);
    let members = spaced(&String::from_utf8_lossy(&out));
    let members = members.strip_prefix('{').unwrap_or_default();
    let parameters = Value::from(spaced(&parameters));
    format!("{{\"request_parameters\": {parameters}, {members}\n")
}

/// JSON as Python writes it: a space after `,` and `:`, and nothing but ASCII.
fn spaced(json: &str) -> String {
    let mut out = String::with_capacity(json.len() + json.len() / 8);
    let (mut in_string, mut escaped) = (false, false);
    for c in json.chars() {
        if c.is_ascii() {
            out.push(c);
        } else {
            for unit in c.encode_utf16(&mut [0; 2]) {
                out.push_str(&format!("\\u{unit:04x}"));
            }
        }
        if !in_string && matches!(c, ',' | ':') {
            out.push(' ');
        }
        in_string ^= c == '"' && !escaped;
        escaped = in_string && c == '\\' && !escaped;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_spaced_outside_of_strings_only() {
        let json = r#"{"a":"b,c:\"d\\","e":[1,2.5],"ü":"😀"}"#;
        let python = r#"{"a": "b,c:\"d\\", "e": [1, 2.5], "\u00fc": "\ud83d\ude00"}"#;
        assert_eq!(spaced(json), python);
    }
}
