//! Which gauges of a page in Prometheus's text format are taken, and how those of several ranks become one value; pure.

use std::collections::BTreeMap;

use crate::report::series::{QUEUED, RUNNING};

/// A sample: its name, labels as they are written, and value.
struct Sample<'a>(&'a str, &'a str, f64);

/// How the values of several data-parallel ranks become one.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Ranks {
    Sum,
    Mean,
}

/// SGLang's gauge without its prefix, the series' metric, and what becomes of ranks. `gen_throughput` is tokens a second.
const SERVER: [(&str, &str, Ranks); 5] = [
    ("num_running_reqs", RUNNING, Ranks::Sum),
    ("num_queue_reqs", QUEUED, Ranks::Sum),
    ("token_usage", "token_usage", Ranks::Mean),
    ("cache_hit_rate", "cache_hit_rate", Ranks::Mean),
    ("gen_throughput", "gen_throughput", Ranks::Sum),
];

/// The DCGM exporter's gauges, the series' metrics, and what makes their unit a share or bytes.
const DCGM: [(&str, &str, f64); 2] = [
    ("DCGM_FI_DEV_GPU_UTIL", super::gpu::USE, 0.01),
    ("DCGM_FI_DEV_FB_USED", super::gpu::MEMORY, super::gpu::MIB),
];

/// What a server's page tells: metric and value. Ranks of tensor and pipeline parallelism repeat one another: the highest
/// of them counts. Data-parallel ranks are summed up, or their mean taken. Of each priority's own the total alone counts.
pub(super) fn of_server(page: &str) -> Vec<(&'static str, f64)> {
    let mut found: BTreeMap<usize, BTreeMap<String, f64>> = BTreeMap::new();
    for sample in samples(page) {
        let Some(place) = SERVER.iter().position(|(name, ..)| is_of(&sample, name)) else {
            continue;
        };
        if !sample.label("priority").is_empty() {
            continue;
        }
        let ranks = found.entry(place).or_default();
        let rank = ranks
            .entry(sample.label("dp_rank").to_owned())
            .or_insert(sample.2);
        *rank = rank.max(sample.2);
    }
    let value = |(place, ranks): (usize, BTreeMap<String, f64>)| {
        let (_, metric, how) = *SERVER.get(place)?;
        let sum: f64 = ranks.values().sum();
        let value = match how {
            Ranks::Sum => sum,
            Ranks::Mean => sum / ranks.len() as f64,
        };
        Some((metric, value))
    };
    found.into_iter().filter_map(value).collect()
}

/// The samples of a page that are numbers; lines that are none are passed over.
fn samples<'a>(page: &'a str) -> impl Iterator<Item = Sample<'a>> {
    let sample = |line: &'a str| {
        let (name, labels, rest) = match line.rsplit_once('}') {
            Some((before, rest)) => {
                let (name, labels) = before.split_once('{')?;
                (name, labels, rest)
            }
            None => {
                let (name, rest) = line.split_once([' ', '\t'])?;
                (name, "", rest)
            }
        };
        // A time may follow the value.
        let value: f64 = rest.split_ascii_whitespace().next()?.parse().ok()?;
        value.is_finite().then_some(Sample(name, labels, value))
    };
    page.lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(sample)
}

impl Sample<'_> {
    /// A label's value; empty: it has none. None of ours has a quote in it.
    fn label(&self, name: &str) -> &str {
        let mut labels = self
            .1
            .split("\",")
            .map(|label| label.trim_start_matches([',', ' ']));
        let value = labels.find_map(|label| label.strip_prefix(name)?.strip_prefix("=\""));
        value.map_or("", |value| value.trim_end_matches('"'))
    }
}

/// Behind the prefix stands `:`, or what some exporters make of it.
fn is_of(sample: &Sample<'_>, name: &str) -> bool {
    let bare = sample.0.strip_prefix("sglang");
    let bare = bare.and_then(|rest| rest.strip_prefix([':', '_']));
    bare == Some(name)
}

/// What a DCGM exporter's page tells: the GPU, metric and value.
pub(super) fn of_dcgm(page: &str) -> Vec<(String, &'static str, f64)> {
    let gauge = |sample: Sample<'_>| {
        let (_, metric, factor) = DCGM.iter().find(|(name, ..)| sample.0 == *name)?;
        let gpu = format!("gpu-{}", sample.label("gpu"));
        Some((gpu, *metric, sample.2 * factor))
    };
    samples(page).filter_map(gauge).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recorded_page_tells_all_five() {
        let page = include_str!("../../../tests/data/sglang-0.5.23/info_metrics.body");
        let metrics: Vec<&str> = of_server(page)
            .into_iter()
            .map(|(metric, _)| metric)
            .collect();
        assert_eq!(
            metrics,
            [
                "running",
                "queued",
                "token_usage",
                "cache_hit_rate",
                "gen_throughput"
            ]
        );
    }

    #[test]
    fn samples_with_and_without_labels() {
        let page = "# HELP a b\na 1\nb{x=\"1\",y=\"a}, z=\"} 2.5e3 1700000000\n\nbroken{x=\"1\nc{} NaN\nd\n";
        let found: Vec<_> = samples(page).collect();
        let [Sample("a", "", 1.0), Sample("b", _, 2500.0)] = &found[..] else {
            panic!("{}", found.len())
        };
        let labels = ["x", "y", "z"].map(|name| found[1].label(name));
        assert_eq!(labels, ["1", "a}, z=", ""]);
    }

    #[test]
    fn ranks_become_one_value() {
        let page = "sglang:num_running_reqs{dp_rank=\"0\",tp_rank=\"0\"} 3\n\
            sglang:num_running_reqs{dp_rank=\"0\",tp_rank=\"1\"} 3\n\
            sglang:num_running_reqs{dp_rank=\"1\",tp_rank=\"0\"} 4\n\
            sglang_num_queue_reqs{priority=\"\"} 5\n\
            sglang_num_queue_reqs{priority=\"1\"} 5\n\
            sglang:token_usage{dp_rank=\"0\"} 0.5\n\
            sglang:token_usage{dp_rank=\"1\"} 0.25\n\
            sglang:gen_throughput NaN\n\
            sglang:num_running_reqs_other 99\n";
        assert_eq!(
            of_server(page),
            [("running", 7.0), ("queued", 5.0), ("token_usage", 0.375)]
        );
    }

    #[test]
    fn a_dcgm_page_tells_use_and_memory() {
        let page = "# TYPE DCGM_FI_DEV_GPU_UTIL gauge\n\
            DCGM_FI_DEV_GPU_UTIL{gpu=\"0\",UUID=\"GPU-1\",modelName=\"NVIDIA H200\"} 37\n\
            DCGM_FI_DEV_GPU_TEMP{gpu=\"0\"} 50\n\
            DCGM_FI_DEV_FB_USED{gpu=\"1\"} 1024\n";
        assert_eq!(
            of_dcgm(page),
            [
                ("gpu-0".to_owned(), "gpu_use", 0.37),
                ("gpu-1".to_owned(), "gpu_memory", 1024.0 * 1_048_576.0),
            ]
        );
    }
}
