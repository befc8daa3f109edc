//! The flags of `queuescope proxy`. Each overrides the key of the same name in the config file.

use std::path::PathBuf;

use clap::Args as ClapArgs;
use serde::Serialize;
use toml::Table;

/// Stands before a router or servers and records where each request waits.
#[derive(Clone, Debug, Default, ClapArgs, Serialize)]
// Wrong signs are told by name and range, not as unknown flags.
#[command(allow_negative_numbers = true)]
pub struct Args {
    /// Config file; see config.toml in the repository for every key and default
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    pub config: Option<PathBuf>,
    // The others are read as the file's keys are, so that all that is wrong is told at once: clap would stop at the first.
    /// Where clients connect [default: 127.0.0.1:8800]
    #[arg(long, value_name = "IP:PORT")]
    listen: Option<String>,
    /// The router or a server; repeat for several. NEEDED, here or in --config, unless there are only hops
    #[arg(long, value_name = "URL")]
    upstream: Vec<String>,
    /// Which upstream gets the next request: `round_robin`, `random`, `shortest_queue`, `power_of_two` or `cache_aware`
    /// [default: round_robin]
    #[arg(long, value_name = "POLICY")]
    #[arg(help_heading = "Upstreams")]
    policy: Option<String>,
    /// With `cache_aware`: a request goes to the upstream that has had more than this share of its prompt [default: 0.3]
    #[arg(long, value_name = "SHARE")]
    #[arg(help_heading = "Upstreams")]
    cache_threshold: Option<String>,
    /// With `cache_aware`: queues are uneven when the longest is ahead of the shortest by more requests than this, and by
    /// --balance-rel-threshold; the least loaded is then taken [default: 64]
    #[arg(long, value_name = "N")]
    #[arg(help_heading = "Upstreams")]
    balance_abs_threshold: Option<String>,
    /// With `cache_aware`: how many times as long as the shortest it must be, too [default: 1.5]
    #[arg(long, value_name = "RATIO")]
    #[arg(help_heading = "Upstreams")]
    balance_rel_threshold: Option<String>,
    /// PEM file with who may sign the certificates of https upstreams; without it the system's roots
    #[arg(long, value_name = "FILE")]
    #[arg(help_heading = "Upstreams")]
    upstream_ca: Option<String>,
    /// What the upstreams are: `router` or `server` [default: router]
    #[arg(long, value_name = "KIND")]
    upstream_kind: Option<String>,
    /// A hop between the router and a server; repeat for several. Replaces those of the file. Without hops the
    /// router's own queue is not seen
    #[arg(long, value_name = "NAME=LISTEN=UPSTREAM")]
    worker: Vec<String>,
    /// File with the secret by which a front knows its hops in other processes: give both the same
    #[arg(long, value_name = "FILE")]
    hop_secret_file: Option<String>,
    /// CSV file that gets the records; without it requests are only counted
    #[arg(long, value_name = "FILE")]
    records: Option<String>,
    /// OpenTelemetry collector that gets a trace a request, as in http://127.0.0.1:4317 (gRPC); with another port
    /// http/protobuf, unless --otlp-protocol says grpc. The OTEL_* variables do, too
    #[arg(long, value_name = "URL")]
    otlp_endpoint: Option<String>,
    /// How traces travel: `grpc` or `http/protobuf`
    #[arg(long, value_name = "PROTOCOL")]
    #[arg(help_heading = "Running it")]
    otlp_protocol: Option<String>,
    /// Where servers started with --enable-trace --otlp-traces-endpoint IP:PORT send their spans, which tell the server's
    /// queue of streamed chat, too (docs/ENGINE.md)
    #[arg(long, value_name = "IP:PORT")]
    engine_traces: Option<String>,
    /// Folder where servers on this disk, started with --export-metrics-to-file, write their request logs: tells the same
    #[arg(long, value_name = "DIR")]
    engine_logs: Option<String>,
    /// What time columns count from: `epoch` or `run` [default: epoch]
    #[arg(long, value_name = "BASE")]
    #[arg(help_heading = "Running it")]
    time_base: Option<String>,
    /// Where /healthz, /readyz, /metrics and /faults are served [default: 127.0.0.1:8801]
    #[arg(long, value_name = "IP:PORT")]
    admin: Option<String>,
    /// Unix socket by which a new process takes all listeners over from the running one, without downtime
    #[arg(long, value_name = "PATH")]
    #[arg(help_heading = "Running it")]
    takeover: Option<String>,
    /// Which clients that ask get stamps: `loopback`, `token` or `never` [default: loopback]
    #[arg(long, value_name = "POLICY")]
    #[arg(help_heading = "Running it")]
    stamps: Option<String>,
    /// How long open requests may go on after SIGTERM [default: 60]
    #[arg(long, value_name = "SECONDS")]
    #[arg(help_heading = "Running it")]
    drain_timeout_s: Option<String>,
    /// Limit on the silence of an upstream, before its response and within it [default: 1800]
    #[arg(long, value_name = "SECONDS")]
    #[arg(help_heading = "Upstreams")]
    upstream_read_timeout_s: Option<String>,
    /// After how much idleness an upstream connection is closed [default: 4]
    #[arg(long, value_name = "SECONDS")]
    #[arg(help_heading = "Upstreams")]
    upstream_idle_timeout_s: Option<String>,
    /// Take faults to inject at the hops, at /faults of the admin listener
    #[arg(long)]
    #[arg(help_heading = "Running it")]
    fault_injection: bool,
    /// Threads that move bytes [default: 2]
    #[arg(long, value_name = "N")]
    #[arg(help_heading = "Running it")]
    threads: Option<String>,
}

impl Args {
    /// The flags that were given, by their keys, as they were written.
    pub(super) fn given(&self) -> Table {
        // Texts and lists of texts can all be written as TOML.
        let mut all = Table::try_from(self).unwrap_or_default();
        all.retain(|_, value| {
            value.as_bool() != Some(false) && value.as_array().is_none_or(|all| !all.is_empty())
        });
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[derive(clap::Parser)]
    struct CommandLine {
        #[command(flatten)]
        _args: Args,
    }

    #[test]
    fn the_help_names_the_true_defaults() {
        let defaults = include_str!("../../config.toml").parse::<Table>().unwrap();
        let defaults = defaults["proxy"].as_table().unwrap();
        let mut compared = 0;
        for flag in CommandLine::command().get_arguments() {
            let help = flag.get_help().unwrap().to_string();
            let Some((_, said)) = help.split_once("[default: ") else {
                continue;
            };
            let default = &defaults[flag.get_id().as_str()];
            let default = match default {
                toml::Value::String(text) => text.clone(),
                toml::Value::Float(number) => number.to_string(),
                other => other.to_string(),
            };
            assert_eq!(said, format!("{default}]"), "{flag}");
            compared += 1;
        }
        assert_eq!(compared, 13);
    }
}
