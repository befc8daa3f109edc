//! The flags of `queuescope sim`.

use std::path::PathBuf;

use clap::ArgAction::SetFalse;
use clap::{Parser, ValueEnum};

use super::engine::Profile;
use crate::names::names;
use crate::units::{MS, at_least, between, rate, time};

/// A heading of the help.
const RESPONSES: &str = "Responses and clock";

/// A pretend SGLang that queues as the real one does: for tests, demos, and load on clients.
#[derive(Clone, Debug, PartialEq, Parser)]
// Else a negative number is reported as an unknown flag, not by its name and range.
#[command(allow_negative_numbers = true)]
pub struct Config {
    /// Name or address to listen on
    #[arg(long, default_value = "127.0.0.1")]
    pub host: String,
    /// Port to listen on; 0 takes a free one, which is printed
    #[arg(long, default_value_t = 30_000, value_parser = between(0_u16, u16::MAX))]
    pub port: u16,
    /// The model it says it serves
    #[arg(long, default_value = "sim-llama")]
    pub model: String,
    /// The engine's flags.
    #[command(flatten)]
    pub profile: Profile,
    /// Prompt and answer together hold at most this many tokens
    #[arg(long = "context-length", value_name = "N", default_value_t = 32_768)]
    #[arg(value_parser = between(2_u32, 4_000_000), help_heading = None)]
    pub context_len: u32,
    /// Speak as an older SGLang: its meta_info in replies of /generate
    #[arg(long, value_enum, default_value_t, value_name = "VERSION")]
    #[arg(help_heading = RESPONSES)]
    pub dialect: Dialect,
    /// Events carry only what is new, not the text so far
    #[arg(long = "incremental-streaming-output", help_heading = RESPONSES)]
    pub incremental: bool,
    /// As SGLang without --enable-metrics: no timings in meta_info, no /metrics
    #[arg(long = "no-metrics", action = SetFalse, help_heading = RESPONSES)]
    pub metrics: bool,
    /// Answer at once and in full: no queue, no model
    ///
    /// To load clients.
    #[arg(long, help_heading = "How fast it is")]
    pub instant: bool,
    /// Set the engine's clock ahead by this, seconds (to test clock offsets)
    #[arg(long, value_name = "S", default_value_t = 0.0, value_parser = time(1.0, -1e8, 1e8))]
    #[arg(help_heading = RESPONSES)]
    pub clock_skew_s: f64,
    /// Close keep-alive connections that are idle for this long, seconds
    #[arg(long, value_name = "S", default_value_t = 5.0, value_parser = time(1.0, 1e-3, 1e6))]
    #[arg(help_heading = RESPONSES)]
    pub keep_alive_s: f64,
    /// The flags of a server of a pair.
    #[command(flatten)]
    pub disaggregation: Disaggregation,
    /// The flags of traces and the request log.
    #[command(flatten)]
    pub telemetry: Telemetry,
}

/// A generation of SGLang, which differs from others in the fields of `meta_info`. Named after the first of its releases whose source was
/// read. Ordered by release, except for the fork.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Dialect {
    /// No times at all.
    #[value(name = "0.4.0")]
    V040,
    /// `e2e_latency` alone.
    #[value(name = "0.4.6")]
    V046,
    /// The seed's fork (about 0.4.9), whose times in the queue are no epoch but `perf_counter`.
    #[value(name = "seed-fork")]
    SeedFork,
    /// The seed's fork after its correction: all times are epoch seconds.
    #[value(name = "seed-fork-epoch")]
    SeedForkEpoch,
    /// As 0.4.6, with `total_retractions`.
    #[value(name = "0.5.4")]
    V054,
    /// The first with `queue_time`.
    #[value(name = "0.5.5")]
    V055,
    /// Other names for the same.
    #[value(name = "0.5.6")]
    V056,
    /// `prefill_finished_ts` is stamped in the scheduler.
    #[value(name = "0.5.7")]
    V057,
    /// The first with `forward_entry_time`.
    #[value(name = "0.5.10")]
    V0510,
    /// Without the durations beside `queue_time`.
    #[value(name = "0.5.12")]
    V0512,
    /// The first with `first_token_latency`.
    #[value(name = "0.5.21")]
    V0521,
    /// The first with the waits for storage.
    #[value(name = "0.5.22")]
    V0522,
    /// As recorded.
    #[default]
    #[value(name = "0.5.23")]
    V0523,
}

names! {
    /// What a server does of a request.
    #[derive(ValueEnum)]
    pub enum Mode {
        /// All of it.
        Null = "null",
        /// Its prefill; the KV cache goes to a server that decodes.
        Prefill = "prefill",
        /// Its decode.
        Decode = "decode",
    }
}

/// The flags of a server of a pair.
#[derive(Clone, Debug, PartialEq, clap::Args)]
#[command(next_help_heading = "Prefill and decode on servers of their own")]
pub struct Disaggregation {
    /// Be the prefill or the decode server of a pair
    #[arg(long, value_enum, default_value = "null", value_name = "MODE")]
    pub disaggregation_mode: Mode,
    /// Port where decode servers find a prefill server; 0 takes a free one, which is printed
    #[arg(long, value_name = "PORT", default_value_t = 8_998, value_parser = between(0_u16, u16::MAX))]
    pub disaggregation_bootstrap_port: u16,
    /// Waiting requests for which a decode server reserves memory, besides the running ones
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = at_least(0_usize))]
    pub disaggregation_decode_extra_slots: usize,
    /// Prompt tokens whose KV cache a prefill server sends in a second, to all decode servers together
    #[arg(long, value_name = "RATE", default_value_t = 190_000.0, value_parser = rate(1e-3, 1e12))]
    pub transfer_tokens_per_s: f64,
    /// Least time of such a transfer, milliseconds
    #[arg(long, value_name = "MS", default_value_t = 1.0, value_parser = time(MS, 0.0, 1e6))]
    pub transfer_ms: f64,
    /// A decode server aborts a request this long after losing its prefill server, seconds
    #[arg(long, value_name = "S", default_value_t = 10.0, value_parser = time(1.0, 0.0, 1e6))]
    pub transfer_lost_s: f64,
}

/// The flags of traces and the request log, as SGLang spells them.
#[derive(Clone, Debug, PartialEq, clap::Args)]
#[command(next_help_heading = "Traces and request log")]
pub struct Telemetry {
    /// Send spans of requests to a collector (OTLP over gRPC), as SGLang does
    #[arg(long)]
    pub enable_trace: bool,
    /// The collector of --enable-trace
    #[arg(long, value_name = "HOST:PORT", default_value = "localhost:4317", value_parser = endpoint)]
    pub otlp_traces_endpoint: String,
    /// Append a JSON line a request to --export-metrics-to-file-dir, as SGLang does
    ///
    /// Without prompts.
    #[arg(long, requires = "export_metrics_to_file_dir")]
    pub export_metrics_to_file: bool,
    /// The folder of those lines, in sglang-request-metrics-YYYYMMDD_HH.log
    #[arg(long, value_name = "DIR")]
    pub export_metrics_to_file_dir: Option<PathBuf>,
}

impl Default for Config {
    fn default() -> Config {
        Config::parse_from(["sim"])
    }
}

impl Dialect {
    /// The version that the server reports.
    pub(super) fn version(self) -> String {
        match (self, self.to_possible_value()) {
            (Dialect::SeedFork | Dialect::SeedForkEpoch, _) | (_, None) => "0.4.9".to_owned(),
            (_, Some(name)) => name.get_name().to_owned(),
        }
    }
}

fn endpoint(text: &str) -> Result<String, &'static str> {
    let parsed = text.parse::<http::uri::Authority>().ok();
    let is_valid = parsed.is_some_and(|parsed| parsed.port_u16().is_some());
    let hint = "must be HOST:PORT of a collector that speaks gRPC, such as localhost:4317";
    is_valid.then(|| text.to_owned()).ok_or(hint)
}
