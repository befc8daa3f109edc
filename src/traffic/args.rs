//! The command line of the generator. Flag names are those of SGLang's and vLLM's benchmark clients where
//! they have the same thing.

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use http::{HeaderName, HeaderValue};
use serde_json::{Map, Value};

use crate::clock::Stamp;
use crate::report::load::Goal;
use crate::table::window::Edge;
use crate::telemetry::csv::TimeBase;

use super::arrival::curve::Curve;
use super::client::{OWN_HEADERS, Target, TlsArgs, UpstreamKind};
use super::shard::Shard;
use super::spans::OtlpArgs;
use super::workload::backend::Backend;
use super::workload::conversation::TalkArgs;

mod data;
pub mod values;

pub use data::{ArrivalSource, DataArgs, DatasetName};
use values::within;

/// Sends Poisson traffic to an LLM server, router or proxy and shows where every request waited.
#[derive(Clone, Debug, clap::Parser)]
// Wrong signs are told by name and range, not as unknown flags.
#[command(allow_negative_numbers = true)]
pub struct Args {
    /// API to speak
    #[arg(long, value_enum, default_value = "sglang")]
    pub backend: Backend,
    /// Where to send [default: http://127.0.0.1:30000, or what --host and --port say]
    #[arg(long, value_name = "URL", value_parser = Target::parse)]
    pub base_url: Option<Target>,
    /// Host to send to
    #[arg(long, default_value = "127.0.0.1")]
    #[arg(help_heading = "Where and to whom")]
    pub host: String,
    /// Port to send to
    #[arg(long, default_value = "30000", value_parser = within(1_u16.., "must be a port from 1 to 65535"))]
    #[arg(help_heading = "Where and to whom")]
    pub port: u16,
    /// What answers there (behind our proxy, if one does): `server`: no router in between
    #[arg(long, value_enum, default_value = "router")]
    pub upstream_kind: UpstreamKind,
    /// Model to name; the OpenAI backends ask /v1/models when it is not given
    #[arg(long)]
    pub model: Option<String>,

    /// Requests a second; `inf` sends all at once
    #[arg(long, value_name = "RATE", default_value = "inf",
        value_parser = values::rate)]
    pub request_rate: f64,
    /// Shape of gamma-distributed gaps: 1 is Poisson, less is burstier, more is more even
    #[arg(long, value_name = "SHAPE", default_value = "1",
        value_parser = values::positive(f64::MAX, "must be a positive number; 1 is Poisson"))]
    #[arg(help_heading = "When requests are sent")]
    pub burstiness: f64,
    /// Requests a second that change over time, SECONDS:RATE points such as 0:5,60:50,180:5: linear between points,
    /// a step at two points of one time; the last rate goes on [a run's --duration is by default its end]
    #[arg(long, value_name = "POINTS")]
    #[arg(help_heading = "When requests are sent")]
    pub rate_curve: Option<Curve>,
    /// Requests to send [default: 1000, or what --duration holds, or the data set's entries]
    #[arg(long, value_name = "N", value_parser = values::at_least_one)]
    pub num_prompts: Option<usize>,
    /// Schedule requests for this many seconds; all of them are sent and awaited
    #[arg(long, value_name = "SECONDS", value_parser = values::seconds)]
    pub duration: Option<Duration>,
    /// At most so many requests under way; others wait for a slot (the column schedule_lag tells how long)
    #[arg(long, value_name = "N", value_parser = values::at_least_one)]
    pub max_concurrency: Option<usize>,
    /// Seed of schedule, lengths and contents
    #[arg(long, default_value = "1", value_parser = within(0_u64.., "must be a whole number from 0 to 18446744073709551615"))]
    #[arg(help_heading = "When requests are sent")]
    pub seed: u64,
    /// Unrecorded requests to send first, one after the other
    #[arg(long, value_name = "N", default_value = "0",
        value_parser = within(0_usize.., "must be a whole number, 0 or more"))]
    #[arg(help_heading = "When requests are sent")]
    pub warmup_requests: usize,

    /// Length of a prompt, at most: words for --dataset-name random, tokens for random-ids
    #[arg(long, value_name = "N", default_value = "1024",
        value_parser = values::length)]
    pub random_input_len: u64,
    /// Tokens to ask for, at most (custom: where an entry has no completion)
    #[arg(long, value_name = "N", default_value = "1024",
        value_parser = values::length)]
    pub random_output_len: u64,
    /// Lengths are uniform from this share of the length to the length: 1 is always the same, 0 any from 1
    /// (as in SGLang's bench_serving, whose default is 0)
    #[arg(long, value_name = "R", default_value = "1",
        value_parser = within(0.0..=1.0, "must be a number from 0 (any length from 1) to 1 (always the same)"))]
    pub random_range_ratio: f64,
    /// Exit with 4 when more than this share of the requests failed, 0.05 or 5% [default: half; of an
    /// experiment's runs any number may, but not all]
    #[arg(long, value_name = "SHARE", value_parser = values::share)]
    pub max_failed: Option<f64>,
    /// Folder for requests.csv, summary.json and schedule.csv, which must not hold a run already
    /// [default: a new one, results/traffic/DATE-TIME; the link results/traffic/latest leads to it]
    #[arg(long, value_name = "DIR")]
    pub output_dir: Option<PathBuf>,
    /// Replace the run that --output-dir holds
    #[arg(long, requires = "output_dir")]
    pub force: bool,
    // What stands behind a group that is flattened has its heading, unless it names one.
    /// Where prompts come from
    #[command(flatten)]
    pub data: DataArgs,
    /// What conversations are like
    #[command(flatten)]
    pub talk: TalkArgs,
    /// Send every N-th request only, from the I-th on (from 0): N generators with the same flags send one load
    #[arg(long, value_name = "I/N")]
    #[arg(help_heading = "When requests are sent")]
    pub shard: Option<Shard>,
    /// Begin then, Unix seconds or a time such as 2026-11-22T10:00:00Z, so that shards begin together
    #[arg(long, value_name = "TIME", value_parser = values::moment)]
    #[arg(help_heading = "When requests are sent")]
    pub start_at: Option<Stamp>,
    /// No flag: a trial of a search sets it. The drawn gaps are scaled so that their mean is that of the rate.
    #[arg(skip)]
    pub exact_rate: bool,
    /// Write what is sent and when to a new file, for --workload
    #[arg(long, value_name = "FILE")]
    #[arg(help_heading = "What is written")]
    pub save_workload: Option<PathBuf>,
    /// Ids of random-ids are below this
    #[arg(long, value_name = "N", default_value = "32000",
        value_parser = within(2_u32.., "must be a whole number of token ids, 2 or more"))]
    #[arg(help_heading = "What is sent")]
    pub vocab_size: u32,

    /// Folder of the servers' request logs on this disk (their --export-metrics-to-file-dir): rows of chat and completions,
    /// which carry no times, then have the server queue
    #[arg(long, value_name = "DIR", help_heading = "What is written")]
    pub engine_logs: Option<PathBuf>,
    /// Fields to merge into every body, a JSON object
    #[arg(long, value_name = "JSON", value_parser = values::object)]
    #[arg(help_heading = "What is sent")]
    pub extra_request_body: Option<Map<String, Value>>,
    /// Header to send with every request, `name:value`, or `@FILE`, a file that holds such a line; may be given again
    #[arg(long, value_name = "NAME:VALUE|@FILE", value_parser = header, allow_hyphen_values = true)]
    #[arg(help_heading = "Where and to whom")]
    pub header: Vec<(HeaderName, HeaderValue)>,
    /// Sent as a bearer token [default: the variable OPENAI_API_KEY]
    #[arg(long, value_name = "KEY")]
    #[arg(help_heading = "Where and to whom")]
    pub api_key: Option<String>,
    /// How an https:// server is verified
    #[command(flatten)]
    pub tls: TlsArgs,
    /// Ask for whole responses instead of streams
    #[arg(long)]
    #[arg(help_heading = "What is sent")]
    pub disable_stream: bool,
    /// Let the engine stop at an end-of-sequence token
    #[arg(long)]
    #[arg(help_heading = "What is sent")]
    pub disable_ignore_eos: bool,
    /// Open a connection a request
    #[arg(long)]
    #[arg(help_heading = "Connections and limits")]
    pub disable_connection_reuse: bool,
    /// Empty the server's prefix cache first
    #[arg(long)]
    #[arg(help_heading = "Connections and limits")]
    pub flush_cache: bool,
    /// Give a request up after this many seconds
    #[arg(long, value_name = "SECONDS", default_value = "600",
        value_parser = values::seconds)]
    #[arg(help_heading = "Connections and limits")]
    pub request_timeout_s: Duration,
    /// Give connecting up after this many seconds
    #[arg(long, value_name = "SECONDS", default_value = "10",
        value_parser = values::seconds)]
    #[arg(help_heading = "Connections and limits")]
    pub connect_timeout_s: Duration,
    /// After Ctrl-C, give requests under way this many seconds
    #[arg(long, value_name = "SECONDS", default_value = "5",
        value_parser = values::seconds_or_none)]
    #[arg(help_heading = "Connections and limits")]
    pub drain_timeout_s: Duration,

    /// Count requests that keep these limits, NAME:MILLISECONDS such as ttft:500 tpot:50
    #[arg(long, value_name = "GOAL", num_args = 1..)]
    #[arg(help_heading = "What is written")]
    pub goodput: Vec<Goal>,
    /// Leave the first seconds out of the figures, by arrival; `auto`: until TTFT has settled (MSER-5, a third at most)
    #[arg(long, value_name = "SECONDS|auto", default_value_t)]
    #[arg(help_heading = "What is written")]
    pub leave_out_first: Edge,
    /// Leave those of the last seconds of arrivals out; `auto`: those that came within a median latency of the last
    #[arg(long, value_name = "SECONDS|auto", default_value_t)]
    #[arg(help_heading = "What is written")]
    pub leave_out_last: Edge,
    /// What times in requests.csv count from
    #[arg(long, value_enum, default_value = "run")]
    #[arg(help_heading = "What is written")]
    pub time_base: TimeOrigin,
    /// Where spans go
    #[command(flatten)]
    pub otlp: OtlpArgs,
    /// Start of the requests' ids [default: qs- and eight random hex digits, others each run]
    #[arg(long, value_name = "TEXT", value_parser = values::id_prefix)]
    #[arg(help_heading = "What is written")]
    pub request_id_prefix: Option<String>,
}

/// `--time-base`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TimeOrigin {
    /// The start of the run
    Run,
    /// The Unix epoch
    Epoch,
}

impl TimeOrigin {
    /// The moment, of a run that began at `started`.
    pub(super) fn of(self, started: Stamp) -> TimeBase {
        match self {
            TimeOrigin::Run => TimeBase::Since(started),
            TimeOrigin::Epoch => TimeBase::Epoch,
        }
    }
}

/// A header of the user's; those that the client sets itself are not his to set.
fn header(text: &str) -> Result<(HeaderName, HeaderValue), String> {
    let header = values::header(text)?;
    if OWN_HEADERS.contains(&header.0.as_str()) {
        return Err(format!("{} is set by queuescope itself", header.0));
    }
    Ok(header)
}

/// A value's name on the command line.
pub(super) fn name(value: impl ValueEnum) -> String {
    let possible = value.to_possible_value();
    possible.map_or_else(String::new, |value| value.get_name().to_owned())
}
