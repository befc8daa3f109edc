//! The command line of the generator. Flags that SGLang's and vLLM's benchmark clients also have are named as there.

use std::path::PathBuf;
use std::time::Duration;

use http::{HeaderName, HeaderValue};
use serde_json::{Map, Value};

use crate::clock::Stamp;
use crate::report::load::Goal;
use crate::request::csv::Base;
use crate::units::{at_least, between, share};

use super::arrival::Curve;
use super::client::{Target, TlsArgs, UpstreamKind};
use super::shard::Shard;
use super::spans::OtlpArgs;
use super::workload::backend::Backend;
use super::workload::conversation::ConversationArgs;

mod data;
pub mod values;

pub use data::{ArrivalSource, DataArgs, DatasetName};
pub use values::value_name;

/// Sends Poisson traffic to an LLM server, router or proxy and shows where every request waited.
#[derive(Clone, Debug, clap::Parser)]
// A negative value is reported with the flag's range, not as an unknown flag.
#[command(allow_negative_numbers = true)]
pub struct Args {
    /// API to speak
    #[arg(long, value_enum, default_value = "sglang")]
    pub backend: Backend,
    /// Where to send
    #[arg(short = 'u', long, value_name = "URL", value_parser = Target::parse)]
    #[arg(default_value = "http://127.0.0.1:30000")]
    pub base_url: Target,
    /// What answers there, or behind our proxy if one does
    #[arg(long, value_enum, value_name = "KIND", default_value = "router")]
    #[arg(help_heading = "Where and to whom")]
    pub upstream_kind: UpstreamKind,
    /// Model to name [default: the first of /v1/models, for OpenAI's APIs]
    #[arg(long)]
    pub model: Option<String>,

    /// Requests a second, or 300/min; `inf` sends all at once
    #[arg(short, long, value_name = "RATE", default_value = "inf",
        value_parser = values::rate, conflicts_with = "rate_curve")]
    pub request_rate: f64,
    /// Shape of gamma-distributed gaps: 1 is Poisson, less is burstier
    #[arg(long, value_name = "SHAPE", default_value = "1",
        value_parser = between(1e-3, 1e6))]
    #[arg(help_heading = "When requests are sent")]
    pub burstiness: f64,
    /// Rate that changes over time, SECONDS:RATE points: 0:5,60:50,180:5
    ///
    /// Linear between points, a step at two points of one time; the last rate goes on. A run's --duration is by default its
    /// end.
    #[arg(long, value_name = "POINTS", help_heading = "When requests are sent")]
    pub rate_curve: Option<Curve>,
    /// Requests to send [default: 1000, or by --duration or data set]
    #[arg(short, long, value_name = "N", value_parser = at_least(1_usize))]
    pub num_prompts: Option<usize>,
    /// Schedule requests for this long; all are sent and awaited
    #[arg(long, value_name = "SECONDS", value_parser = values::seconds)]
    pub duration: Option<Duration>,
    /// At most this many requests at once; the others wait
    ///
    /// The column schedule_lag tells how long.
    #[arg(long, value_name = "N", value_parser = at_least(1_usize))]
    pub max_concurrency: Option<usize>,
    /// Seed of schedule, lengths and contents
    #[arg(long, default_value = "1", value_parser = at_least(0_u64))]
    #[arg(help_heading = "When requests are sent")]
    pub seed: u64,
    /// Unrecorded requests to send first, one after the other
    #[arg(long, value_name = "N", default_value = "0",
        value_parser = at_least(0_usize))]
    #[arg(help_heading = "When requests are sent")]
    pub warmup_requests: usize,

    /// Length of a prompt, at most: words (random-ids: tokens)
    #[arg(long, value_name = "N", default_value = "1024",
        value_parser = values::length)]
    pub random_input_len: u64,
    /// Tokens to ask for, at most
    ///
    /// Of a custom data set: where an entry has no completion.
    #[arg(long, value_name = "N", default_value = "1024",
        value_parser = values::length)]
    pub random_output_len: u64,
    /// Lengths are uniform from this share of it up
    ///
    /// 0 is any from 1, as in SGLang's bench_serving, whose default is 0.
    #[arg(long, value_name = "R", default_value = "1",
        value_parser = share(0.0, 1.0))]
    pub random_range_ratio: f64,
    /// Exit with 4 when a larger share failed: 0.05, 5%
    ///
    /// By default half; in a search, and with faults on purpose, any number may fail, but not all.
    #[arg(long, value_name = "SHARE", value_parser = share(0.0, 1.0))]
    pub max_failed: Option<f64>,
    /// Folder for requests.csv, summary.json and schedule.csv [default: a new one, results/traffic/DATE-TIME; the link
    /// latest leads to it]
    ///
    /// It must not hold a run already, unless --force is given.
    #[arg(short, long, value_name = "DIR")]
    pub output_dir: Option<PathBuf>,
    /// Replace the run that --output-dir holds
    #[arg(long, requires = "output_dir")]
    pub force: bool,
    /// Print summary.json; the text goes to standard error
    #[arg(long)]
    pub json: bool,
    // clap gives the heading of a flattened group to the arguments after it too, unless they name one.
    /// Where prompts come from
    #[command(flatten)]
    pub data: DataArgs,
    /// What conversations are like
    #[command(flatten)]
    pub conversation: ConversationArgs,
    /// Send each N-th request only, from the I-th on (from 0)
    ///
    /// N generators with the same flags then send one load.
    #[arg(long, value_name = "I/N", help_heading = "When requests are sent")]
    pub shard: Option<Shard>,
    /// Begin then, such as 2026-11-22T10:00:00Z, or Unix seconds
    ///
    /// So shards begin together.
    #[arg(long, value_name = "TIME", value_parser = values::timestamp)]
    #[arg(help_heading = "When requests are sent")]
    pub start_at: Option<Stamp>,
    /// Not a flag; set for a trial of a search. The random gaps are scaled so that their mean is exactly that of the rate.
    #[arg(skip)]
    pub exact_rate: bool,
    /// Ids of random-ids are below this
    #[arg(long, value_name = "N", default_value = "32000",
        value_parser = at_least(2_u32))]
    #[arg(help_heading = "What is sent")]
    pub vocab_size: u32,

    /// Folder of the servers' request logs on this disk: times of chat
    ///
    /// It is the servers' --export-metrics-to-file-dir. Rows of chat and completions, which carry no times, then have the
    /// server queue.
    #[arg(long, value_name = "DIR", help_heading = "What is written")]
    pub engine_logs: Option<PathBuf>,
    /// Fields to merge into every body, a JSON object; null takes one out
    #[arg(long, value_name = "JSON", value_parser = values::object, help_heading = "What is sent")]
    pub extra_request_body: Option<Map<String, Value>>,
    /// Header of every request, or a file that holds it; repeatable
    #[arg(long, value_name = "NAME:VALUE|@FILE", value_parser = values::header, allow_hyphen_values = true)]
    #[arg(help_heading = "Where and to whom")]
    pub header: Vec<(HeaderName, HeaderValue)>,
    /// Sent as a bearer token [default: the variable OPENAI_API_KEY]
    #[arg(long, value_name = "KEY", help_heading = "Where and to whom")]
    pub api_key: Option<String>,
    /// How an https:// server is verified
    #[command(flatten)]
    pub tls: TlsArgs,
    /// Ask for whole responses instead of streams
    #[arg(long, help_heading = "What is sent")]
    pub disable_stream: bool,
    /// Let the engine stop at an end-of-sequence token (openai-chat always does)
    #[arg(long, help_heading = "What is sent")]
    pub disable_ignore_eos: bool,
    /// Open a connection a request
    #[arg(long, help_heading = "Connections and limits")]
    pub disable_connection_reuse: bool,
    /// Empty the server's prefix cache first
    #[arg(long, help_heading = "Connections and limits")]
    pub flush_cache: bool,
    /// Give a request up after this many seconds
    #[arg(long, value_name = "SECONDS", default_value = "600",
        value_parser = values::seconds, help_heading = "Connections and limits")]
    pub request_timeout_s: Duration,
    /// After Ctrl-C, give requests under way this many seconds
    #[arg(long, value_name = "SECONDS", default_value = "5",
        value_parser = values::seconds_or_zero, help_heading = "Connections and limits")]
    pub drain_timeout_s: Duration,

    /// Count requests that keep limits: ttft:500 tpot:50 (ms)
    #[arg(long, value_name = "GOAL", num_args = 1.., help_heading = "What is written")]
    pub goodput: Vec<Goal>,
    /// Leave requests sent in the first seconds out of the figures
    #[arg(long, value_name = "SECONDS", default_value = "0",
        value_parser = values::seconds_or_zero, help_heading = "What is written")]
    pub leave_out_first: Duration,
    /// Leave requests sent in the last seconds out of the figures
    #[arg(long, value_name = "SECONDS", default_value = "0",
        value_parser = values::seconds_or_zero, help_heading = "What is written")]
    pub leave_out_last: Duration,
    /// What times in requests.csv count from
    #[arg(long, value_enum, value_name = "BASE", default_value = "run")]
    #[arg(help_heading = "What is written")]
    pub time_base: Base,
    /// Where spans go
    #[command(flatten)]
    pub otlp: OtlpArgs,
    /// Start of the requests' ids [default: qs- and random digits]
    #[arg(long, value_name = "TEXT", value_parser = values::id_prefix)]
    #[arg(help_heading = "What is written")]
    pub request_id_prefix: Option<String>,
}
