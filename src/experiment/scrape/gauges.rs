//! Parses gauges of a page in Prometheus's text format, and the output of `nvidia-smi`. Combines the gauges of several ranks.

use std::collections::BTreeMap;

use crate::report::files::{POOL, QUEUED, RUNNING};

/// A sample: its name, its labels as text, and its value.
type Sample<'a> = (&'a str, &'a str, f64);

/// A gauge: its name, the metric in the series, and whether data-parallel ranks are combined by their mean instead of their sum.
type Gauge = (&'static str, &'static str, bool);

/// The gauges that are taken of SGLang's page. `gen_throughput` is in tokens per second.
const GAUGES: [Gauge; 6] = [
    ("sglang:num_running_reqs", RUNNING, false),
    ("sglang:num_queue_reqs", QUEUED, false),
    ("sglang:token_usage", "token_usage", true),
    ("sglang:max_total_num_tokens", POOL, true),
    ("sglang:cache_hit_rate", "cache_hit_rate", true),
    ("sglang:gen_throughput", "gen_throughput", false),
];

/// A mebibyte, in bytes.
const MIB: f64 = 1_048_576.0;

/// Parses the gauges of a page. Ranks of tensor and pipeline parallelism report the same value: the highest counts. Samples of single
/// priorities are skipped, as there is also their total.
pub(super) fn parse_gauges(page: &str) -> Vec<(&'static str, f64)> {
    let mut found: BTreeMap<usize, BTreeMap<&str, f64>> = BTreeMap::new();
    for (name, labels, value) in samples(page) {
        // Some exporters replace the colon.
        let name = name.replacen("sglang_", "sglang:", 1);
        let gauge = GAUGES.iter().position(|(known, ..)| *known == name);
        let Some(gauge) = gauge.filter(|_| label(labels, "priority").is_empty()) else {
            continue;
        };
        let ranks = found.entry(gauge).or_default();
        let rank = ranks.entry(label(labels, "dp_rank")).or_insert(value);
        *rank = rank.max(value);
    }
    let combined = |(gauge, ranks): (usize, BTreeMap<&str, f64>)| {
        let (_, metric, is_mean) = GAUGES[gauge];
        let count = if is_mean { ranks.len() as f64 } else { 1.0 };
        (metric, ranks.values().sum::<f64>() / count)
    };
    found.into_iter().map(combined).collect()
}

/// Parses lines of `nvidia-smi` such as `0, 37, 1024` (index, percent, mebibytes) into a share and bytes of `gpu-0`. `[N/A]` is skipped.
pub(super) fn parse_nvidia_smi(output: &str) -> Vec<(String, &'static str, f64)> {
    let mut found = Vec::new();
    for line in output.lines() {
        let mut cells = line.split(',').map(str::trim);
        let gpu = format!("gpu-{}", cells.next().unwrap_or_default());
        for ((metric, factor), cell) in [("gpu_use", 0.01), ("gpu_memory", MIB)].iter().zip(cells) {
            let value = cell.parse::<f64>().ok();
            found.extend(value.map(|value| (gpu.clone(), *metric, value * factor)));
        }
    }
    found
}

/// Parses the samples of a page. Other lines, and values that are not finite, are skipped.
fn samples<'a>(page: &'a str) -> impl Iterator<Item = Sample<'a>> {
    let sample = |line: &'a str| {
        let (series, rest) = line
            .rsplit_once('}')
            .or_else(|| line.split_once([' ', '\t']))?;
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        // A timestamp may follow the value.
        let value: f64 = rest.split_ascii_whitespace().next()?.parse().ok()?;
        value.is_finite().then_some((name, labels, value))
    };
    let lines = page.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(sample)
}

/// The value of a label, empty if there is none. The labels that are read contain no quotes.
fn label<'a>(labels: &'a str, name: &str) -> &'a str {
    let mut labels = labels
        .split("\",")
        .map(|label| label.trim_start_matches([',', ' ']));
    let value = labels.find_map(|label| label.strip_prefix(name)?.strip_prefix("=\""));
    value.map_or("", |value| value.trim_end_matches('"'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recorded_page_has_all_six_gauges() {
        let page = include_str!("../../../tests/data/sglang-0.5.23/info_metrics.body");
        let metrics = parse_gauges(page).into_iter().map(|(metric, _)| metric);
        let metrics: Vec<&str> = metrics.collect();
        let all = "running queued token_usage max_total_num_tokens cache_hit_rate gen_throughput";
        assert_eq!(metrics.join(" "), all);
    }

    #[test]
    fn ranks_become_one_value() {
        // Unreadable lines are skipped; a value may have a timestamp, a label any character.
        let page = "# HELP a b\nbroken{x=\"1\nd\n\nsglang:num_running_reqs{x=\"}, z=\",dp_rank=\"0\",tp_rank=\"0\"} 3 1700000000\n\
            sglang:num_running_reqs{dp_rank=\"0\",tp_rank=\"1\"} 3\n\
            sglang:num_running_reqs{dp_rank=\"1\",tp_rank=\"0\"} 4\n\
            sglang_num_queue_reqs{priority=\"\"} 5\n\
            sglang_num_queue_reqs{priority=\"1\"} 5\n\
            sglang:token_usage{dp_rank=\"0\"} 0.5\n\
            sglang:token_usage{dp_rank=\"1\"} 0.25\n\
            sglang:gen_throughput NaN\n\
            sglang:num_running_reqs_other 99\n";
        assert_eq!(
            parse_gauges(page),
            [("running", 7.0), ("queued", 5.0), ("token_usage", 0.375)]
        );
    }

    #[test]
    fn lines_of_nvidia_smi_are_parsed() {
        assert_eq!(
            parse_nvidia_smi("0, [N/A], 1\n1, 37, 2\n"),
            [
                ("gpu-0".to_owned(), "gpu_memory", MIB),
                ("gpu-1".to_owned(), "gpu_use", 0.37),
                ("gpu-1".to_owned(), "gpu_memory", 2.0 * MIB)
            ]
        );
        assert_eq!(
            parse_nvidia_smi("Unable to determine the device handle"),
            []
        );
    }
}
