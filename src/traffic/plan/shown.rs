//! A plan as it is shown: in summary.json, and in words.

use serde_json::{Value, json};

use crate::clock::Stamp;
use crate::traffic::args::name;
use crate::traffic::arrival::curve::Curve;
use crate::traffic::workload::words::LengthRange;

use super::{Planned, RunPlan};

impl RunPlan {
    /// The settings as they stand in summary.json: what was asked for, without the key.
    pub(in crate::traffic) fn config(&self) -> Value {
        let args = &self.args;
        let rate = self.offered_rate();
        let rate = rate.map_or_else(|| json!("inf"), |rate| json!(rate));
        let talk = Some(&args.talk).filter(|_| self.most_turns > 1);
        let headers: Vec<&str> = args.header.iter().map(|(name, _)| name.as_str()).collect();
        let body = args.extra_request_body.as_ref();
        let body = body.map(crate::secret::shown_members);
        let mut config = json!({
            "backend": name(args.backend),
            "base_url": self.client.target.to_string(),
            "upstream_kind": name(args.upstream_kind),
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
            "turns": self.most_turns,
            "think_time_s": talk.map(|talk| talk.think_time_s.as_secs_f64()),
            "think_time": talk.map(|talk| name(talk.think_time)),
            "follow_up_len": talk.map(|talk| talk.follow_up_len),
            "random_input_len": args.random_input_len,
            "random_input_unit": args.data.input_unit(),
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
            "connect_timeout_s": args.connect_timeout_s.as_secs_f64(),
        });
        let data = args.data.config(self.source.as_ref());
        if let (Value::Object(all), Value::Object(data)) = (&mut config, data) {
            all.extend(data);
        }
        config
    }

    /// What is about to be sent, for the start of a run.
    pub(in crate::traffic) fn announcement(&self, schedule: &[Planned]) -> String {
        let args = &self.args;
        let what = self.described().unwrap_or_else(|| {
            let unit = args.data.input_unit();
            let lengths = |most| LengthRange::up_to(most, args.random_range_ratio);
            let (input, output) = (
                lengths(args.random_input_len),
                lengths(args.random_output_len),
            );
            format!("prompts of {input} {unit}, outputs of {output} tokens")
        });
        let first = schedule.first().map_or(0, |planned| planned.number);
        let first = self.req_id(self.place(first, 0));
        let of = match self.most_turns {
            1 => String::new(),
            _ => format!(" of {} conversations", schedule.len()),
        };
        let count = self.count(schedule);
        let shard = args
            .shard
            .map_or_else(String::new, |shard| format!(" (shard {shard})"));
        let start = args.start_at;
        let start = start.map_or_else(String::new, |at| format!(", from {} on", at.utc()));
        format!("{count} requests{of}{shard}{start}, {what}; ids from {first} on")
    }

    /// The data set in words, where it is none of random lengths.
    pub(in crate::traffic) fn described(&self) -> Option<String> {
        self.args.data.described(self.source.as_ref())
    }
}
