//! What a request asked for, as spans and the request log repeat it. Read apart from the call itself, and only
//! where either is on.

use opentelemetry::KeyValue;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::request::endpoint::Endpoint;

use super::sequence::Sequence;
use super::served::Named;

/// What a request asked for.
#[derive(Debug)]
pub(super) struct Parameters {
    endpoint: Endpoint,
    stream: bool,
    n: usize,
    body: Body,
}

#[derive(Debug, Default, Deserialize)]
struct Body {
    text: Option<Value>,
    prompt: Option<Value>,
    sampling_params: Option<Value>,
    #[serde(flatten)]
    sampling: Sampling,
}

#[derive(Debug, Default, Deserialize, Serialize)]
struct Sampling {
    #[serde(alias = "max_tokens", alias = "max_completion_tokens")]
    #[serde(skip_serializing_if = "Option::is_none")]
    max_new_tokens: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    temperature: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_p: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_k: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    n: Option<i64>,
}

/// `request_parameters` of the request log: what SGLang's own request holds, in its order, without what is
/// unset.
#[derive(Serialize)]
struct Told<'a> {
    rid: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    input_ids: Option<Vec<u32>>,
    use_audio_in_video: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    sampling_params: Option<&'a Sampling>,
    return_logprob: bool,
    logprob_start_len: i32,
    top_logprobs_num: u32,
    return_sampling_mask: bool,
    return_text_in_logprobs: bool,
    return_flat_raw_top_logprobs: bool,
    return_flat_raw_output_top_logprobs: bool,
    return_flat_raw_top_logprobs_b64: bool,
    stream: bool,
    log_metrics: bool,
    return_hidden_states: bool,
    return_routed_experts: bool,
    routed_experts_start_len: u32,
    return_indexer_topk: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    modalities: Option<[(); 0]>,
    background: bool,
    require_reasoning: bool,
    no_logs: bool,
    return_bytes: bool,
    return_entropy: bool,
    return_prompt_token_ids: bool,
    external_trace_header: Headers<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    received_time: Option<f64>,
}

#[derive(Serialize)]
struct Headers<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    traceparent: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tracestate: Option<&'a str>,
}

/// What of a request its line in the log repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shown {
    pub(super) prompt: bool,
    pub(super) sampling: bool,
}

impl Parameters {
    /// Reads them from a body that is known to be valid.
    pub(super) fn read(endpoint: Endpoint, stream: bool, n: usize, body: &[u8]) -> Parameters {
        let mut body: Body = serde_json::from_slice(body).unwrap_or_default();
        if endpoint == Endpoint::Generate {
            let params = match body.sampling_params.take() {
                Some(Value::Array(mut many)) if !many.is_empty() => many.swap_remove(0),
                params => params.unwrap_or_default(),
            };
            body.sampling = serde_json::from_value(params).unwrap_or_default();
        } else {
            // What these endpoints put in for what the client leaves out.
            let sampling = &mut body.sampling;
            sampling.temperature.get_or_insert(1.0);
            sampling.top_p.get_or_insert(1.0);
            sampling.top_k.get_or_insert(-1);
            sampling.n.get_or_insert(1);
        }
        Parameters {
            endpoint,
            stream,
            n: n.max(1),
            body,
        }
    }

    /// As attributes of a span; what is 0 is left out, as the real one does.
    pub(super) fn attributes(&self, to: &mut Vec<KeyValue>) {
        let sampling = &self.body.sampling;
        let int = |value: Option<i64>| value.filter(|value| *value != 0);
        let float = |value: Option<f64>| value.filter(|value| *value != 0.0);
        if let Some(tokens) = int(sampling.max_new_tokens) {
            to.push(KeyValue::new("gen_ai.request.max_tokens", tokens));
        }
        if let Some(top_p) = float(sampling.top_p) {
            to.push(KeyValue::new("gen_ai.request.top_p", top_p));
        }
        if let Some(temperature) = float(sampling.temperature) {
            to.push(KeyValue::new("gen_ai.request.temperature", temperature));
        }
        if let Some(top_k) = int(sampling.top_k) {
            to.push(KeyValue::new("gen_ai.request.top_k", top_k));
        }
        if let Some(n) = int(sampling.n) {
            to.push(KeyValue::new("gen_ai.request.n", n));
        }
    }

    /// As the JSON text of the request log. `received` is a moment of Python's `perf_counter`, seconds.
    pub(super) fn told(
        &self,
        sequence: &Sequence,
        named: &Named,
        received: f64,
        shown: Shown,
    ) -> String {
        let is_chat = self.endpoint == Endpoint::Chat;
        let is_openai = self.endpoint != Endpoint::Generate;
        let text = self.prompt_of(sequence).filter(|_| shown.prompt);
        let told = Told {
            rid: &sequence.rid,
            // The ids are made up: a token is a word here.
            input_ids: (shown.prompt && text.is_none())
                .then(|| (0..sequence.prompt_tokens).collect()),
            text,
            use_audio_in_video: false,
            sampling_params: shown.sampling.then_some(&self.body.sampling),
            return_logprob: false,
            logprob_start_len: -1,
            top_logprobs_num: 0,
            return_sampling_mask: false,
            return_text_in_logprobs: is_openai,
            return_flat_raw_top_logprobs: false,
            return_flat_raw_output_top_logprobs: false,
            return_flat_raw_top_logprobs_b64: false,
            stream: self.stream,
            log_metrics: true,
            return_hidden_states: false,
            return_routed_experts: false,
            routed_experts_start_len: 0,
            return_indexer_topk: false,
            modalities: (is_chat && self.n == 1).then_some([]),
            background: false,
            require_reasoning: false,
            no_logs: false,
            return_bytes: false,
            return_entropy: false,
            return_prompt_token_ids: false,
            external_trace_header: Headers {
                traceparent: named.traceparent.as_deref(),
                tracestate: named.tracestate.as_deref(),
            },
            received_time: is_openai.then_some(received),
        };
        serde_json::to_string(&told).unwrap_or_default()
    }

    /// The text that a sequence answers; chats go to the engine as ids.
    fn prompt_of(&self, sequence: &Sequence) -> Option<&Value> {
        let prompt = self.body.text.as_ref().or(self.body.prompt.as_ref())?;
        match prompt {
            Value::Array(many) => many.get(sequence.index / self.n),
            one => Some(one),
        }
        .filter(|prompt| prompt.is_string())
    }
}
