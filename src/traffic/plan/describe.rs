//! Describes a plan: as JSON for `summary.json`, and as text.

use serde_json::{Value, json};

use crate::clock::Stamp;
use crate::traffic::args::{ArrivalSource, DatasetName, value_name};
use crate::traffic::arrival::Curve;

use super::RunPlan;

impl RunPlan {
    /// The settings as in `summary.json`, without the API key.
    pub(in crate::traffic) fn config(&self) -> Value {
        let args = &self.args;
        let rate = self.offered_rate();
        let rate = rate.map_or_else(|| json!("inf"), |rate| json!(rate));
        let conversation = Some(&args.conversation).filter(|_| self.max_turns > 1);
        let headers: Vec<&str> = args.header.iter().map(|(name, _)| name.as_str()).collect();
        let body = args.extra_request_body.as_ref();
        let body = body.map(crate::secret::masked_members);
        let data = &args.data;
        let is_shared = data.dataset_name == DatasetName::GeneratedSharedPrefix;
        let shared = Some(&data.shared_prefix).filter(|_| is_shared);
        let unit = match data.dataset_name {
            DatasetName::RandomIds => "tokens",
            _ => "words",
        };
        let has_times = data.arrival == Some(ArrivalSource::Trace);
        json!({
            "backend": value_name(args.backend),
            "base_url": self.client.target.to_string(),
            "upstream_kind": value_name(args.upstream_kind),
            "model": args.model,
            "request_rate": rate,
            "arrival": self.arrival.name(),
            "rate_curve": args.rate_curve.as_ref().map(Curve::to_string),
            "burstiness": args.burstiness,
            "num_prompts": args.num_prompts,
            "exact_rate": args.exact_rate,
            "duration_s": args.duration.map(|duration| duration.as_secs_f64()),
            "max_concurrency": args.max_concurrency,
            "seed": args.seed,
            "request_id_prefix": self.request_id_prefix,
            "warmup_requests": args.warmup_requests,
            "shard": args.shard.map(|shard| shard.to_string()),
            "start_at": args.start_at.map(Stamp::seconds),
            "turns": self.max_turns,
            "think_time_s": conversation.map(|args| args.think_time_s.as_secs_f64()),
            "follow_up_len": conversation.map(|args| args.follow_up_len),
            "random_input_len": args.random_input_len,
            "random_input_unit": unit,
            "random_output_len": args.random_output_len,
            "random_range_ratio": args.random_range_ratio,
            "vocab_size": args.vocab_size,
            "extra_request_body": body,
            "headers": headers,
            "ca": args.tls.ca,
            "insecure": args.tls.insecure,
            "stream": !args.disable_stream,
            "ignore_eos": !args.disable_ignore_eos,
            "connection_reuse": !args.disable_connection_reuse,
            "flush_cache": args.flush_cache,
            "max_failed": args.max_failed,
            "leave_out_first": args.leave_out_first.as_secs_f64().to_string(),
            "leave_out_last": args.leave_out_last.as_secs_f64().to_string(),
            "request_timeout_s": args.request_timeout_s.as_secs_f64(),
            "dataset_name": value_name(data.dataset_name),
            "dataset_path": data.dataset_path,
            "dataset_sha256": self.dataset.sha256,
            "trace_speed": has_times.then(|| data.trace_speed.unwrap_or(1.0)),
            "sharegpt_output_len": data.sharegpt.sharegpt_output_len,
            "sharegpt_context_len": data.sharegpt.sharegpt_context_len,
            "gsp_num_groups": shared.map(|args| args.gsp_num_groups),
            "gsp_prompts_per_group": shared.map(|args| args.gsp_prompts_per_group),
            "gsp_system_prompt_len": shared.map(|args| args.gsp_system_prompt_len),
            "gsp_question_len": shared.map(|args| args.gsp_question_len),
            "gsp_output_len": shared.map(|args| args.gsp_output_len),
        })
    }

    /// The line that is printed at the start of a run.
    pub(in crate::traffic) fn announcement(&self) -> String {
        let first = self.schedule().next().map_or(0, |(number, _)| number);
        let first = self.req_id(self.request_index(first, 0));
        format!("{} requests, ids from {first} on", self.count())
    }
}
