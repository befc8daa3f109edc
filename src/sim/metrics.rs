//! `/metrics`: the families of SGLang that a simulation has values for, under SGLang's names, labels
//! and buckets.

use std::sync::Arc;

use prometheus::core::Collector;
use prometheus::{
    Encoder, GaugeVec, HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry, TextEncoder,
};

use crate::clock::Stamp;

use super::call::Call;
use super::config::Config;
use super::disaggregation::{Mode, Rooms};
use super::engine::Load;
use super::sequence::Sequence;

const LATENCY_BUCKETS: [f64; 22] = [
    0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 20.0, 40.0, 60.0, 80.0, 100.0, 200.0,
    400.0, 600.0, 1200.0, 1800.0, 2400.0,
];
const ITL_BUCKETS: [f64; 23] = [
    0.002, 0.004, 0.006, 0.008, 0.010, 0.015, 0.020, 0.025, 0.030, 0.035, 0.040, 0.060, 0.080,
    0.100, 0.200, 0.400, 0.600, 0.800, 1.0, 2.0, 4.0, 6.0, 8.0,
];
const QUEUE_BUCKETS: [f64; 40] = [
    0.0, 0.001, 0.005, 0.01, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 15.0, 20.0, 30.0,
    40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 100.0, 200.0, 300.0, 400.0, 500.0, 600.0, 700.0, 800.0,
    900.0, 1000.0, 1200.0, 1400.0, 1600.0, 1800.0, 2000.0, 2500.0, 3000.0,
];

/// The server's metrics: the families of the three tables, in their order.
#[derive(Debug)]
pub(super) struct Metrics {
    registry: Registry,
    counters: Vec<IntCounterVec>,
    histograms: Vec<HistogramVec>,
    gauges: Vec<GaugeVec>,
    max_tokens: u64,
    /// The gauges name the data-parallel rank.
    is_ranked: bool,
}

/// Family, label, what a request adds.
type Counter = (&'static str, &'static str, fn(&Call) -> u64);
/// Family, labels, buckets, what a sequence of a request that was received then is counted as (and how often).
type Histogram = (
    &'static str,
    &'static [&'static str],
    &'static [f64],
    fn(Stamp, &Sequence) -> Option<(f64, u32)>,
);
/// What the scheduler tells of one rank, given the tokens of the KV cache, and of a pair's rooms: family, value.
type Gauge = (&'static str, fn(&Load, u64, &Rooms) -> f64);

const RANKS: [&str; 3] = ["moe_ep_rank", "pp_rank", "tp_rank"];
/// A family and its help a line, in SGLang's words.
const HELP: &str = include_str!("metrics.txt");

const COUNTERS: [Counter; 4] = [
    ("prompt_tokens_total", "is_streaming", Call::prompt_tokens),
    ("generation_tokens_total", "is_streaming", Call::made),
    ("num_requests_total", "is_streaming", |call| {
        call.sequences.len() as u64
    }),
    ("cached_tokens_total", "cache_source", |call| {
        call.sequences.iter().map(|one| u64::from(one.cached)).sum()
    }),
];

const HISTOGRAMS: [Histogram; 4] = [
    (
        "time_to_first_token_seconds",
        &["is_streaming"],
        LATENCY_BUCKETS.split_at(18).0,
        |received, one| Some((one.moments.first_token?.since(received), 1)),
    ),
    (
        "e2e_request_latency_seconds",
        &["is_streaming"],
        &LATENCY_BUCKETS,
        |received, one| Some((one.moments.finish?.since(received), 1)),
    ),
    (
        "inter_token_latency_seconds",
        &[],
        &ITL_BUCKETS,
        // The model's steps of one request are alike: their mean stands for each of them.
        |_, one| {
            let decode = one.moments.finish?.since(one.moments.first_token?);
            let steps = one.made().checked_sub(1)?;
            Some((decode / f64::from(steps), steps))
        },
    ),
    ("queue_time_seconds", &RANKS, &QUEUE_BUCKETS, |_, one| {
        let first = one.moments.queue_end?.since(one.moments.queue_start?);
        Some((first + one.waited_again(), 1))
    }),
];

/// So many at the end of [`GAUGES`] are of servers of a pair.
const OF_PAIR: usize = 4;

/// The last are those of a pair: on their way to a decode server, and on one.
const GAUGES: [Gauge; 15] = [
    ("num_running_reqs", |load, _, _| load.running as f64),
    ("num_queue_reqs", |load, _, _| load.waiting as f64),
    ("num_retracted_reqs", |load, _, _| load.retracted as f64),
    ("num_used_tokens", |load, _, _| load.used_tokens as f64),
    ("token_usage", |load, most, _| {
        load.used_tokens as f64 / most as f64
    }),
    ("cache_hit_rate", |load, _, _| load.cache_hit_rate()),
    ("gen_throughput", |load, _, _| load.gen_throughput()),
    ("kv_used_tokens", |load, _, _| load.used_tokens as f64),
    ("kv_evictable_tokens", |load, _, _| {
        load.evictable_tokens as f64
    }),
    ("kv_available_tokens", |load, most, _| {
        (most - load.used_tokens - load.evictable_tokens) as f64
    }),
    ("max_total_num_tokens", |_, most, _| most as f64),
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
        load.coming as f64
    }),
];

impl Metrics {
    /// The families, empty.
    ///
    /// # Errors
    /// When the model cannot be a label value.
    pub(super) fn new(config: &Config) -> Result<Metrics, prometheus::Error> {
        let mode = config.disaggregation.disaggregation_mode;
        let engine_type = match mode {
            Mode::Null => "unified",
            of_a_pair => of_a_pair.name(),
        };
        let registry = Registry::new();
        let opts = |name: &str| {
            let mut helps = HELP.lines().filter_map(|line| line.split_once(' '));
            let help = helps.find(|(family, _)| *family == name);
            Opts::new(format!("sglang:{name}"), help.map_or("", |(_, help)| help))
                .const_label("engine_type", engine_type)
                .const_label("model_name", config.model.clone())
        };
        let counters = COUNTERS.iter().map(|(name, label, _)| {
            registered(&registry, IntCounterVec::new(opts(name), &[label])?)
        });
        let histograms = HISTOGRAMS.iter().map(|(name, labels, buckets, _)| {
            let opts = HistogramOpts::from(opts(name)).buckets(buckets.to_vec());
            registered(&registry, HistogramVec::new(opts, labels)?)
        });
        let is_ranked = config.dp_size > 1;
        let by_rank: &[&str] = if is_ranked { &["dp_rank"] } else { &[] };
        let gauge = |name| {
            let opts = RANKS
                .iter()
                .fold(opts(name), |opts, rank| opts.const_label(*rank, "0"));
            registered(&registry, GaugeVec::new(opts, by_rank)?)
        };
        let told = match mode {
            Mode::Null => GAUGES.len() - OF_PAIR,
            _ => GAUGES.len(),
        };
        let gauges = GAUGES.iter().take(told).map(|(name, _)| gauge(name));
        Ok(Metrics {
            counters: counters.collect::<Result<_, _>>()?,
            histograms: histograms.collect::<Result<_, _>>()?,
            gauges: gauges.collect::<Result<_, _>>()?,
            registry,
            max_tokens: config.profile.max_total_tokens,
            is_ranked,
        })
    }

    /// Counts a request that has ended well.
    pub(super) fn count(&self, call: &Call, received: Stamp) {
        let value_of = |label: &str| match label {
            "is_streaming" if call.stream => "true",
            "is_streaming" => "false",
            "cache_source" => "device",
            _ => "0",
        };
        for (family, (_, label, value)) in self.counters.iter().zip(&COUNTERS) {
            let counter = family.with_label_values(&[value_of(label)]);
            counter.inc_by(value(call));
        }
        for (family, (_, labels, _, value)) in self.histograms.iter().zip(&HISTOGRAMS) {
            let labels: Vec<&str> = labels.iter().map(|label| value_of(label)).collect();
            let histogram = family.with_label_values(&labels);
            let counted = call.sequences.iter();
            for (value, times) in counted.filter_map(|one| value(received, one)) {
                (0..times).for_each(|_| histogram.observe(value));
            }
        }
    }

    /// The text that a scrape gets.
    pub(super) fn text(&self, loads: &[Load], rooms: &Rooms) -> Vec<u8> {
        for (rank, load) in loads.iter().enumerate() {
            let rank = rank.to_string();
            let labels: &[&str] = if self.is_ranked { &[&rank] } else { &[] };
            for (gauge, (_, value)) in self.gauges.iter().zip(&GAUGES) {
                let value = value(load, self.max_tokens, rooms);
                gauge.with_label_values(labels).set(value);
            }
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
