//! `/metrics`: the metric families of SGLang that the simulator has values for, with SGLang's names, labels and buckets.

use std::sync::Arc;

use prometheus::core::Collector;
use prometheus::{
    Encoder, HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry, TextEncoder,
};

use crate::clock::Stamp;

use super::config::Config;
use super::disaggregation::{Mode, Rooms};
use super::engine::Load;
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
    registry: Registry,
    generated_tokens: IntCounterVec,
    first_token: HistogramVec,
    queue: HistogramVec,
    gauges: Vec<prometheus::Gauge>,
    max_tokens: u64,
}

/// A gauge's family, and its value by load, KV cache capacity (tokens) and rooms.
type Gauge = (&'static str, fn(&Load, u64, &Rooms) -> f64);

const STREAMING: [&str; 1] = ["is_streaming"];
const RANKS: [&str; 3] = ["moe_ep_rank", "pp_rank", "tp_rank"];

/// The number of gauges, at the end of [`GAUGES`], that only servers of a pair have.
const PAIR_GAUGES: usize = 4;

const GAUGES: [Gauge; 12] = [
    ("num_running_reqs", |load, _, _| load.running as f64),
    ("num_queue_reqs", |load, _, _| load.waiting as f64),
    ("num_used_tokens", |load, _, _| load.used_tokens as f64),
    ("token_usage", |load, capacity, _| {
        load.used_tokens as f64 / capacity as f64
    }),
    ("cache_hit_rate", |load, _, _| load.cache_hit_rate()),
    ("gen_throughput", |load, _, _| load.gen_throughput()),
    ("kv_evictable_tokens", |load, _, _| {
        load.evictable_tokens as f64
    }),
    ("max_total_num_tokens", |_, capacity, _| capacity as f64),
    ("num_prefill_bootstrap_queue_reqs", |_, _, rooms| {
        Arc::strong_count(&rooms.waiting) as f64 - 1.0
    }),
    ("num_prefill_inflight_queue_reqs", |_, _, rooms| {
        Arc::strong_count(&rooms.sending) as f64 - 1.0
    }),
    ("num_decode_prealloc_queue_reqs", |load, _, _| {
        load.unreserved as f64
    }),
    ("num_decode_transfer_queue_reqs", |load, _, _| {
        load.in_transfer as f64
    }),
];

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
        let registry = Registry::new();
        let opts = |name: &str| {
            Opts::new(format!("sglang:{name}"), name)
                .const_label("engine_type", engine_type)
                .const_label("model_name", config.model.clone())
        };
        let histogram = |name: &str, label, buckets: &[f64]| {
            let opts = HistogramOpts::from(opts(name)).buckets(buckets.to_vec());
            registered(&registry, HistogramVec::new(opts, label)?)
        };
        let gauge = |(name, _): &Gauge| {
            let opts = RANKS
                .iter()
                .fold(opts(name), |opts, rank| opts.const_label(*rank, "0"));
            registered(&registry, prometheus::Gauge::with_opts(opts)?)
        };
        let gauges = match mode {
            Mode::Null => GAUGES.len() - PAIR_GAUGES,
            _ => GAUGES.len(),
        };
        let generated_tokens = IntCounterVec::new(opts("generation_tokens_total"), &STREAMING)?;
        Ok(Metrics {
            generated_tokens: registered(&registry, generated_tokens)?,
            first_token: histogram("time_to_first_token_seconds", &STREAMING, &LATENCY_BUCKETS)?,
            queue: histogram("queue_time_seconds", &RANKS, &QUEUE_BUCKETS)?,
            gauges: GAUGES
                .iter()
                .take(gauges)
                .map(gauge)
                .collect::<Result<_, _>>()?,
            registry,
            max_tokens: config.profile.max_total_tokens,
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
                let family = self.queue.with_label_values(&["0"; RANKS.len()]);
                family.observe(to.since(from) + sequence.waited_again());
            }
        }
    }

    /// Renders the response to a scrape.
    pub(super) fn text(&self, load: &Load, rooms: &Rooms) -> Vec<u8> {
        for (gauge, (_, value)) in self.gauges.iter().zip(&GAUGES) {
            gauge.set(value(load, self.max_tokens, rooms));
        }
        let mut out = Vec::new();
        if let Err(error) = TextEncoder::new().encode(&self.registry.gather(), &mut out) {
            log::error!("the metrics cannot be written: {error}");
        }
        out
    }
}

fn registered<C: Collector + Clone + 'static>(
    registry: &Registry,
    family: C,
) -> Result<C, prometheus::Error> {
    registry.register(Box::new(family.clone()))?;
    Ok(family)
}
