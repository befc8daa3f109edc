//! Reads the metrics of servers and GPUs once a second during a run, and writes them to `series.csv`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use futures_util::future::try_join_all;
use http::Method;
use tokio::process::Command;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::launch::Access;
use super::timed::TimedRows;
use crate::clock::{Clock, Stamp};
use crate::report::files::{GPU, METRICS, POOL, QUEUED, RUNNING, SERIES, SeriesRow, ServerFile};
use crate::traffic::client::Client;

const SCRAPE_INTERVAL: Duration = Duration::from_secs(1);
/// The longest wait for a page, shorter than the interval.
const PAGE_TIMEOUT: Duration = Duration::from_millis(900);
/// The longest wait for `nvidia-smi`, which takes seconds with many GPUs.
const SMI_TIMEOUT: Duration = Duration::from_secs(10);
/// The arguments of `nvidia-smi`.
const QUERY: &str = "--query-gpu=index,utilization.gpu,memory.used --format=csv,noheader,nounits";

/// Scrapes a run's servers and GPUs.
#[derive(Debug, Default)]
pub struct Scraper {
    targets: Vec<Target>,
    access: Access,
}

/// A source of metrics, and how its scrapes went.
#[derive(Debug, Default)]
struct Target {
    /// The server's name, or `GPUs`.
    name: String,
    /// The URL of a page in Prometheus's text format; or the program `nvidia-smi`.
    place: String,
    /// [`METRICS`] or [`GPU`].
    source: &'static str,
    scrapes: u64,
    failed: u64,
    /// The error of the last failed scrape.
    last_error: String,
}

/// The hint where a server responds, but not with metrics.
const NO_METRICS: &str = "start the server with --enable-metrics";

/// A value: of which server or GPU, the metric's name, and its value.
type Reading = (String, &'static str, f64);

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

impl Scraper {
    /// Makes a scraper of servers and, if `smi` is the path of `nvidia-smi`, GPUs.
    pub fn new(servers: &[ServerFile], access: Access, smi: Option<PathBuf>) -> Scraper {
        let page = |server: &ServerFile| Target {
            name: server.name.clone(),
            place: format!("{}/metrics", server.url),
            source: METRICS,
            ..Target::default()
        };
        let gpus = smi.map(|program| Target {
            name: "GPUs".to_owned(),
            place: program.display().to_string(),
            source: GPU,
            ..Target::default()
        });
        Scraper {
            targets: servers.iter().map(page).chain(gpus).collect(),
            access,
        }
    }

    /// Scrapes once a second until it is dropped, and writes the values to [`SERIES`] in `dir`. The time of a row is when the response was
    /// there, in seconds since `began`.
    ///
    /// # Errors
    /// The file cannot be written.
    pub async fn run(&mut self, dir: &Path, began: Stamp, clock: &Clock) -> anyhow::Result<()> {
        if self.targets.is_empty() {
            return std::future::pending().await;
        }
        let rows = TimedRows::new(&dir.join(SERIES), began, clock)?;
        let targets = self.targets.iter_mut();
        let targets = targets.map(|target| target.run(&self.access, &rows));
        try_join_all(targets).await.map(drop).context(SERIES)
    }

    /// Returns notes on failed scrapes: of which target, how many, and why.
    pub fn notes(self) -> Vec<String> {
        let mut notes: Vec<String> = self.targets.iter().filter_map(Target::note).collect();
        notes.sort();
        notes
    }
}

impl Target {
    /// Scrapes every second until it is dropped. A failed scrape leaves a gap.
    async fn run(&mut self, access: &Access, rows: &TimedRows) -> csv::Result<()> {
        let mut ticks = interval(SCRAPE_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let limit = match self.source {
            GPU => SMI_TIMEOUT,
            _ => PAGE_TIMEOUT,
        };
        // Kept, so that the host's name is not resolved each second.
        let mut client = None;
        loop {
            ticks.tick().await;
            let readings = timeout(limit, self.scrape(access, &mut client)).await;
            let late = |_| Err(format!("no answer within {} ms", limit.as_millis()));
            let time = rows.seconds(rows.clock.now());
            self.scrapes += 1;
            match readings.unwrap_or_else(late) {
                Ok(readings) => {
                    let row = |(server, metric, value): Reading| SeriesRow {
                        time,
                        source: self.source.to_owned(),
                        server,
                        metric: metric.to_owned(),
                        value,
                    };
                    rows.write(readings.into_iter().map(row))?;
                }
                Err(error) => {
                    self.failed += 1;
                    self.last_error = error;
                }
            }
        }
    }

    /// Returns a note on failed scrapes, if any.
    fn note(&self) -> Option<String> {
        let (scrapes, failed) = (self.scrapes, self.failed);
        let (name, place, last) = (&self.name, &self.place, &self.last_error);
        (failed > 0).then(|| {
            format!(
                "{name}: {failed} of {scrapes} scrapes of {place} failed, which leaves gaps (the last: {last})"
            )
        })
    }

    /// Scrapes once. There is at least one value.
    ///
    /// # Errors
    /// Why there is none.
    async fn scrape(
        &self,
        access: &Access,
        client: &mut Option<Client>,
    ) -> Result<Vec<Reading>, String> {
        let readings: Vec<Reading> = if self.source == GPU {
            let mut smi = Command::new(&self.place);
            let smi = smi
                .args(QUERY.split(' '))
                .stdin(Stdio::null())
                .kill_on_drop(true);
            let output = smi.output().await.map_err(|error| error.to_string())?;
            if !output.status.success() {
                return Err(output.status.to_string());
            }
            parse_nvidia_smi(&String::from_utf8_lossy(&output.stdout))
        } else {
            let client = match client {
                Some(client) => client,
                None => client.insert(access.client(&self.place).await?),
            };
            let (status, page) = client.fetch(Method::GET, "", Bytes::new()).await?;
            match status {
                200 => {}
                404 => return Err(format!("status {status}; {NO_METRICS}")),
                _ => return Err(format!("status {status}")),
            }
            let gauges = parse_gauges(&String::from_utf8_lossy(&page)).into_iter();
            let reading = |(metric, value)| (self.name.clone(), metric, value);
            gauges.map(reading).collect()
        };
        match readings.is_empty() {
            true if self.source == GPU => Err(format!("it reports none of {QUERY}")),
            true => Err(format!("no such value; {NO_METRICS}")),
            false => Ok(readings),
        }
    }
}

/// Parses the gauges of a page. Ranks of tensor and pipeline parallelism report the same value: the highest counts. Samples of single
/// priorities are skipped, as there is also their total.
fn parse_gauges(page: &str) -> Vec<(&'static str, f64)> {
    let mut found: BTreeMap<usize, BTreeMap<&str, f64>> = BTreeMap::new();
    for (name, labels, value) in samples(page) {
        // Some exporters replace the colon.
        let name = name.replacen("sglang_", "sglang:", 1);
        let gauge = GAUGES.iter().position(|(known, ..)| *known == name);
        if let Some(gauge) = gauge.filter(|_| label(labels, "priority").is_empty()) {
            let ranks = found.entry(gauge).or_default();
            let rank = ranks.entry(label(labels, "dp_rank")).or_insert(value);
            *rank = rank.max(value);
        }
    }
    let combined = |(gauge, ranks): (usize, BTreeMap<&str, f64>)| {
        let (_, metric, is_mean) = GAUGES[gauge];
        let count = if is_mean { ranks.len() as f64 } else { 1.0 };
        (metric, ranks.values().sum::<f64>() / count)
    };
    found.into_iter().map(combined).collect()
}

/// Parses lines of `nvidia-smi` such as `0, 37, 1024` (index, percent, mebibytes) into a share and bytes of `gpu-0`. `[N/A]` is skipped.
fn parse_nvidia_smi(output: &str) -> Vec<Reading> {
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

/// Parses the samples of a page: the name of each, its labels as text, and its value. Other lines, and values that are not finite, are
/// skipped.
fn samples<'a>(page: &'a str) -> impl Iterator<Item = (&'a str, &'a str, f64)> {
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
        let page = include_str!("../../tests/data/sglang-0.5.23/info_metrics.body");
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
