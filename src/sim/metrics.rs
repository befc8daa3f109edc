//! `/metrics`: the families of SGLang that a simulation has values for, under SGLang's names, labels
//! and buckets.

use prometheus::{
    Encoder, GaugeVec, HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry, TextEncoder,
};

use super::engine::Load;
use super::sequence::Sequence;
use super::served::{Outcome, Served};

const LATENCY_BUCKETS: [f64; 22] = [
    0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 20.0, 40.0, 60.0, 80.0, 100.0, 200.0,
    400.0, 600.0, 1200.0, 1800.0, 2400.0,
];
const TTFT_BUCKETS: usize = 18;
const ITL_BUCKETS: [f64; 23] = [
    0.002, 0.004, 0.006, 0.008, 0.010, 0.015, 0.020, 0.025, 0.030, 0.035, 0.040, 0.060, 0.080,
    0.100, 0.200, 0.400, 0.600, 0.800, 1.0, 2.0, 4.0, 6.0, 8.0,
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
    time_to_first_token: HistogramVec,
    e2e_request_latency: HistogramVec,
    inter_token_latency: HistogramVec,
    queue_time: HistogramVec,
    prompt_tokens: IntCounterVec,
    generation_tokens: IntCounterVec,
    requests: IntCounterVec,
    cached_tokens: IntCounterVec,
    /// One for each of [`GAUGES`].
    gauges: Vec<GaugeVec>,
    max_tokens: u64,
    /// The gauges name the data-parallel rank.
    is_ranked: bool,
}

/// What the scheduler tells of one rank, given the tokens of the KV cache: family, help, value.
type SchedulerGauge = (&'static str, &'static str, fn(&Load, u64) -> f64);

const GAUGES: [SchedulerGauge; 11] = [
    (
        "num_running_reqs",
        "The number of running requests.",
        |load, _| load.running as f64,
    ),
    (
        "num_queue_reqs",
        "The number of requests in the waiting queue.",
        |load, _| load.waiting as f64,
    ),
    (
        "num_retracted_reqs",
        "The number of retracted requests.",
        |load, _| load.retracted as f64,
    ),
    (
        "num_used_tokens",
        "The number of used tokens.",
        |load, _| load.used_tokens as f64,
    ),
    ("token_usage", "The token usage.", |load, most| {
        load.used_tokens as f64 / most as f64
    }),
    ("cache_hit_rate", "The prefix cache hit rate.", |load, _| {
        load.cache_hit_rate()
    }),
    (
        "gen_throughput",
        "The generation throughput (token/s).",
        |load, _| load.gen_throughput(),
    ),
    (
        "kv_used_tokens",
        "Number of used token slots in the KV cache pool.",
        |load, _| load.used_tokens as f64,
    ),
    (
        "kv_evictable_tokens",
        "Number of evictable (radix-cached) token slots in the KV cache pool.",
        |load, _| load.evictable_tokens as f64,
    ),
    (
        "kv_available_tokens",
        "Number of free token slots in the KV cache pool.",
        |load, most| (most - load.used_tokens - load.evictable_tokens) as f64,
    ),
    (
        "max_total_num_tokens",
        "Maximum total number of tokens in the KV cache pool.",
        |_, most| most as f64,
    ),
];

impl Metrics {
    /// The families, empty. `max_tokens` is the token capacity that usage is told against, of each of
    /// `ranks` engines.
    ///
    /// # Errors
    /// When `model` cannot be a label value.
    pub(super) fn new(
        model: &str,
        max_tokens: u64,
        ranks: usize,
    ) -> Result<Metrics, prometheus::Error> {
        let registry = Registry::new();
        let is_ranked = ranks > 1;
        let histogram = |name: &str, help: &str, labels: &[&str], buckets: &[f64]| {
            let opts = HistogramOpts::from(labelled(name, help, model)).buckets(buckets.to_vec());
            let histogram = HistogramVec::new(opts, labels)?;
            registry.register(Box::new(histogram.clone()))?;
            Ok::<_, prometheus::Error>(histogram)
        };
        let counter = |name: &str, help: &str, label: &str| {
            let counter = IntCounterVec::new(labelled(name, help, model), &[label])?;
            registry.register(Box::new(counter.clone()))?;
            Ok::<_, prometheus::Error>(counter)
        };
        Ok(Metrics {
            time_to_first_token: histogram(
                "time_to_first_token_seconds",
                "Histogram of time to first token in seconds.",
                &["is_streaming"],
                &LATENCY_BUCKETS[..TTFT_BUCKETS],
            )?,
            e2e_request_latency: histogram(
                "e2e_request_latency_seconds",
                "Histogram of End-to-end request latency in seconds",
                &["is_streaming"],
                &LATENCY_BUCKETS,
            )?,
            inter_token_latency: histogram(
                "inter_token_latency_seconds",
                "Histogram of inter-token latency in seconds.",
                &[],
                &ITL_BUCKETS,
            )?,
            queue_time: histogram(
                "queue_time_seconds",
                "Histogram of queueing time in seconds.",
                &["moe_ep_rank", "pp_rank", "tp_rank"],
                &QUEUE_BUCKETS,
            )?,
            prompt_tokens: counter(
                "prompt_tokens_total",
                "Number of prefill tokens processed.",
                "is_streaming",
            )?,
            generation_tokens: counter(
                "generation_tokens_total",
                "Number of generation tokens processed.",
                "is_streaming",
            )?,
            requests: counter(
                "num_requests_total",
                "Number of requests processed.",
                "is_streaming",
            )?,
            cached_tokens: counter(
                "cached_tokens_total",
                "Number of cached prompt tokens by source (device/host/storage).",
                "cache_source",
            )?,
            gauges: gauges(&registry, model, is_ranked)?,
            max_tokens,
            is_ranked,
            registry: registry.clone(),
        })
    }

    /// Counts a request that has ended.
    pub(super) fn count(&self, served: &Served, sequences: &[Sequence]) {
        if served.outcome != Outcome::Finished {
            return;
        }
        let streaming = [if served.stream { "true" } else { "false" }];
        self.requests
            .with_label_values(&streaming)
            .inc_by(sequences.len() as u64);
        self.prompt_tokens
            .with_label_values(&streaming)
            .inc_by(served.prompt_tokens);
        self.generation_tokens
            .with_label_values(&streaming)
            .inc_by(served.output_tokens);
        let cached = sequences.iter().map(|s| u64::from(s.cached)).sum();
        self.cached_tokens
            .with_label_values(&["device"])
            .inc_by(cached);
        let time_to_first_token = self.time_to_first_token.with_label_values(&streaming);
        let e2e_request_latency = self.e2e_request_latency.with_label_values(&streaming);
        let queue_time = self.queue_time.with_label_values(&["0", "0", "0"]);
        let inter_token_latency = self.inter_token_latency.with_label_values::<&str>(&[]);
        for sequence in sequences {
            let moments = &sequence.moments;
            if let (Some(start), Some(end)) = (moments.queue_start, moments.queue_end) {
                queue_time.observe(end.since(start) + moments.waited_again);
            }
            let (Some(received), Some(first)) = (served.received, moments.first_token) else {
                continue;
            };
            time_to_first_token.observe(first.since(received));
            let Some(finish) = moments.finish else {
                continue;
            };
            e2e_request_latency.observe(finish.since(received));
            let decode = finish.since(first);
            // The model's steps of one request are alike: their mean stands for each of them.
            for _ in 1..sequence.made {
                inter_token_latency.observe(decode / f64::from(sequence.made - 1));
            }
        }
    }

    /// The text that a scrape gets.
    pub(super) fn text(&self, loads: &[Load]) -> Vec<u8> {
        for (rank, load) in loads.iter().enumerate() {
            let rank = rank.to_string();
            let labels: &[&str] = if self.is_ranked { &[&rank] } else { &[] };
            for (gauge, (_, _, value)) in self.gauges.iter().zip(&GAUGES) {
                gauge
                    .with_label_values(labels)
                    .set(value(load, self.max_tokens));
            }
        }
        let mut out = Vec::new();
        if let Err(error) = TextEncoder::new().encode(&self.registry.gather(), &mut out) {
            log::error!("the metrics cannot be written: {error}");
        }
        out
    }
}

/// The gauges of [`GAUGES`], in their order.
fn gauges(
    registry: &Registry,
    model: &str,
    is_ranked: bool,
) -> Result<Vec<GaugeVec>, prometheus::Error> {
    let labels: &[&str] = if is_ranked { &["dp_rank"] } else { &[] };
    let gauge = |(name, help, _): &SchedulerGauge| {
        let mut opts = labelled(name, help, model);
        for rank in ["moe_ep_rank", "pp_rank", "tp_rank"] {
            opts = opts.const_label(rank, "0");
        }
        let gauge = GaugeVec::new(opts, labels)?;
        registry.register(Box::new(gauge.clone()))?;
        Ok(gauge)
    };
    GAUGES.iter().map(gauge).collect()
}

fn labelled(name: &str, help: &str, model: &str) -> Opts {
    Opts::new(format!("sglang:{name}"), help)
        .const_label("engine_type", "unified")
        .const_label("model_name", model)
}
