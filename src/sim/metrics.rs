//! `/metrics`: the metric families of SGLang that the simulator has values for, with SGLang's names, labels and buckets.

use std::sync::Arc;

use prometheus::core::Collector as _;
use prometheus::{GaugeVec, HistogramOpts, HistogramVec, IntCounterVec, Opts, TextEncoder};

use crate::clock::Stamp;

use super::config::{Config, Mode};
use super::engine::Load;
use super::handover::Rooms;
use super::request_body::GenerationRequest;

const LATENCY_BUCKETS: [f64; 18] = [
    0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 20.0, 40.0, 60.0, 80.0, 100.0, 200.0,
    400.0,
];
const QUEUE_BUCKETS: [f64; 40] = [
    0.0, 0.001, 0.005, 0.01, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 15.0, 20.0, 30.0,
    40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 100.0, 200.0, 300.0, 400.0, 500.0, 600.0, 700.0, 800.0,
    900.0, 1000.0, 1200.0, 1400.0, 1600.0, 1800.0, 2000.0, 2500.0, 3000.0,
];

/// The server's metrics.
#[derive(Debug)]
pub(super) struct Metrics {
    generated_tokens: IntCounterVec,
    first_token: HistogramVec,
    queue: HistogramVec,
    /// What all families have: the labels that are the same in each series.
    common: Opts,
}

const STREAMING: [&str; 1] = ["is_streaming"];
const RANKS: [&str; 3] = ["moe_ep_rank", "pp_rank", "tp_rank"];
/// The only one of each.
const RANK: [&str; RANKS.len()] = ["0"; RANKS.len()];

impl Metrics {
    /// Creates the families, without values.
    ///
    /// # Errors
    /// If the model cannot be a label value.
    pub(super) fn new(config: &Config) -> Result<Metrics, prometheus::Error> {
        let mode = config.disaggregation.disaggregation_mode;
        let engine_type = match mode {
            Mode::Null => "unified",
            mode => mode.name(),
        };
        let common = Opts::new("", "")
            .const_label("engine_type", engine_type)
            .const_label("model_name", &config.model);
        let opts = |name| named(&common, name);
        let histogram = |name, labels: &[&str], buckets: &[f64]| {
            let opts = HistogramOpts::from(opts(name)).buckets(buckets.to_vec());
            HistogramVec::new(opts, labels)
        };
        Ok(Metrics {
            generated_tokens: IntCounterVec::new(opts("generation_tokens_total"), &STREAMING)?,
            first_token: histogram("time_to_first_token_seconds", &STREAMING, &LATENCY_BUCKETS)?,
            queue: histogram("queue_time_seconds", &RANKS, &QUEUE_BUCKETS)?,
            common,
        })
    }

    /// Counts a request that has finished successfully.
    pub(super) fn count(&self, request: &GenerationRequest, received: Stamp) {
        let stream = [if request.stream { "true" } else { "false" }];
        let generated = self.generated_tokens.with_label_values(&stream);
        generated.inc_by(request.generated());
        for sequence in &request.sequences {
            let moments = &sequence.moments;
            if let Some(first) = moments.first_token {
                let family = self.first_token.with_label_values(&stream);
                family.observe(first.since(received));
            }
            if let Some((from, to)) = moments.queue_start.zip(moments.queue_end) {
                let family = self.queue.with_label_values(&RANK);
                family.observe(to.since(from) + sequence.waited_again());
            }
        }
    }

    /// Renders the response to a scrape.
    ///
    /// # Errors
    /// What the encoder refuses.
    pub(super) fn text(
        &self,
        config: &Config,
        load: &Load,
        rooms: &Rooms,
    ) -> Result<String, prometheus::Error> {
        let requests = |of: &Arc<()>| Arc::strong_count(of) as f64 - 1.0;
        let capacity = config.profile.max_total_tokens as f64;
        let used = load.used_tokens as f64;
        let gauges = [
            ("num_running_reqs", load.running as f64),
            ("num_queue_reqs", load.waiting as f64),
            ("num_used_tokens", used),
            ("token_usage", used / capacity),
            ("cache_hit_rate", load.cache_hit_rate),
            ("gen_throughput", load.gen_throughput),
            ("kv_evictable_tokens", load.evictable_tokens as f64),
            ("max_total_num_tokens", capacity),
        ];
        let of_pair = [
            ("num_prefill_bootstrap_queue_reqs", requests(&rooms.waiting)),
            ("num_prefill_inflight_queue_reqs", requests(&rooms.sending)),
            ("num_decode_prealloc_queue_reqs", load.unreserved as f64),
            ("num_decode_transfer_queue_reqs", load.in_transfer as f64),
        ];
        let is_of_pair = config.disaggregation.disaggregation_mode != Mode::Null;
        let of_pair = of_pair.into_iter().filter(|_| is_of_pair);
        let mut families = Vec::new();
        for (name, value) in gauges.into_iter().chain(of_pair) {
            let gauge = GaugeVec::new(named(&self.common, name), &RANKS)?;
            gauge.with_label_values(&RANK).set(value);
            families.extend(gauge.collect());
        }
        families.extend(self.generated_tokens.collect());
        families.extend(self.first_token.collect());
        families.extend(self.queue.collect());
        families.retain(|family| !family.get_metric().is_empty());
        TextEncoder::new().encode_to_string(&families)
    }
}

/// A family of SGLang's.
fn named(common: &Opts, name: &str) -> Opts {
    Opts {
        name: format!("sglang:{name}"),
        help: name.to_owned(),
        ..common.clone()
    }
}
