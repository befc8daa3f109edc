//! The command line of the generator. Flags that SGLang's and vLLM's benchmark clients also have are named as there.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::LazyLock;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use http::{HeaderName, HeaderValue};
use serde_json::{Map, Value};

use crate::clock::Stamp;
use crate::error::Error;
use crate::report::load::Goal;
use crate::request::Endpoint;
use crate::request::csv::Base;
use crate::telemetry::otlp::settings::Protocol;
use crate::units::{at_least, between, share};

use super::arrival::{Arrival, Curve};
use super::client::{Target, TlsArgs, UpstreamKind};

pub mod values;

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
    #[arg(
        long,
        value_name = "KEY",
        allow_hyphen_values = true,
        help_heading = "Where and to whom"
    )]
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
    /// Leave requests of the first seconds out of figures
    #[arg(long, value_name = "SECONDS", default_value = "0",
        value_parser = values::seconds_or_zero, help_heading = "What is written")]
    pub leave_out_first: Duration,
    /// Leave requests of the last seconds out of figures
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

/// Which API a request speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Backend {
    /// SGLang's own `/generate`.
    Sglang,
    /// OpenAI's `/v1/completions`.
    SglangOai,
    /// OpenAI's `/v1/chat/completions`.
    SglangOaiChat,
    /// `/v1/chat/completions` of any server that speaks OpenAI's API: nothing of SGLang's own is sent.
    OpenaiChat,
}

/// Where prompts come from.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "What is sent")]
pub struct DataArgs {
    /// Where prompts come from
    #[arg(long, value_enum, value_name = "NAME", default_value = "random")]
    pub dataset_name: DatasetName,
    /// File of the data set, required for custom, mooncake, azure and burstgpt
    ///
    /// Without it sharegpt is downloaded once, to the user's cache folder. custom is a JSON array or JSON lines of
    /// {"prompt", "completion", "id"} or {"messages"}.
    #[arg(long, value_name = "FILE", required_if_eq_any = [
        ("dataset_name", "custom"), ("dataset_name", "mooncake"), ("dataset_name", "azure"), ("dataset_name", "burstgpt"),
    ])]
    pub dataset_path: Option<PathBuf>,
    /// When requests are sent [default: poisson, or gamma with --burstiness]
    #[arg(long, value_enum, help_heading = "When requests are sent")]
    pub arrival: Option<ArrivalSource>,
    /// With --arrival trace: this many times as fast [default: 1]
    ///
    /// 2 sends the requests of an hour in half of one.
    #[arg(long, value_name = "FACTOR", value_parser = between(1e-6, 1e6))]
    #[arg(help_heading = "When requests are sent")]
    pub trace_speed: Option<f64>,
    /// How ShareGPT is sampled
    #[command(flatten)]
    pub sharegpt: SharegptArgs,
    /// What groups are like
    #[command(flatten)]
    pub shared_prefix: SharedPrefixArgs,
}

/// `--dataset-name`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DatasetName {
    /// Random English words
    Random,
    /// Random token ids: exact token counts without a tokenizer
    RandomIds,
    /// The entries of --dataset-path
    Custom,
    /// A sample of ShareGPT's conversations, first turns (or more, --turns)
    Sharegpt,
    /// Conversations of random words: each turn is sent with the replies to those before it (--turns, …)
    Conversations,
    /// Groups of prompts of random words that begin alike (--gsp-…)
    GeneratedSharedPrefix,
    /// Mooncake's trace (mooncake_trace.jsonl of github.com/kvcache-ai/Mooncake): lengths, shared blocks and times
    Mooncake,
    /// Azure's LLM inference trace (AzureLLMInferenceTrace_*.csv of github.com/Azure/AzurePublicDataset): lengths and times
    Azure,
    /// BurstGPT's trace (BurstGPT_*.csv of github.com/HPMLL/BurstGPT): lengths and times
    Burstgpt,
}

/// `--arrival`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ArrivalSource {
    /// Gaps that are exponential and know nothing of each other, as of many users
    Poisson,
    /// Gaps of a gamma distribution whose shape is --burstiness
    Gamma,
    /// Gaps that are all the same
    Constant,
    /// At the times that a trace has (mooncake, azure, burstgpt)
    Trace,
}

/// What conversations are like.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Data sets conversations and sharegpt")]
pub struct ConversationArgs {
    /// Turns, at most [default: 4 of conversations, 1 of sharegpt]
    #[arg(long, value_name = "N", value_parser = between(1, MAX_TURNS))]
    pub turns: Option<usize>,
    /// Mean time from the end of a reply to the next turn, exponentially distributed
    #[arg(long, value_name = "SECONDS", default_value = "1",
        value_parser = values::seconds_or_zero)]
    pub think_time_s: Duration,
    /// Words of a later turn, at most
    ///
    /// --random-range-ratio holds for it too.
    #[arg(long, value_name = "N", default_value = "64",
        value_parser = values::length)]
    pub follow_up_len: u64,
}

/// How ShareGPT is sampled.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Data set sharegpt")]
pub struct SharegptArgs {
    /// Tokens to ask for [default: those of the answer, four bytes each]
    #[arg(long, value_name = "N", value_parser = values::length)]
    pub sharegpt_output_len: Option<u64>,
    /// Leave out conversations of more tokens (of four bytes each)
    ///
    /// Prompt and answer together.
    #[arg(long, value_name = "N", value_parser = values::length)]
    pub sharegpt_context_len: Option<u64>,
}

/// The groups of prompts with a shared prefix.
#[derive(Clone, Debug, PartialEq, clap::Args)]
#[command(next_help_heading = "Data set generated-shared-prefix")]
pub struct SharedPrefixArgs {
    /// Groups of prompts that begin alike
    #[arg(long, value_name = "N", default_value = "64",
        value_parser = at_least(1_u32))]
    pub gsp_num_groups: u32,
    /// Prompts of each group
    #[arg(long, value_name = "N", default_value = "16",
        value_parser = at_least(1_u32))]
    pub gsp_prompts_per_group: u32,
    /// Words that the prompts of a group share
    #[arg(long, value_name = "N", default_value = "2048",
        value_parser = values::length)]
    pub gsp_system_prompt_len: u64,
    /// Words of each prompt's own, behind them
    #[arg(long, value_name = "N", default_value = "128",
        value_parser = values::length)]
    pub gsp_question_len: u64,
    /// Tokens to ask for
    #[arg(long, value_name = "N", default_value = "256",
        value_parser = values::length)]
    pub gsp_output_len: u64,
}

/// Where the generator's own spans go.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "What is written")]
pub struct OtlpArgs {
    /// OpenTelemetry collector that gets a span a request
    ///
    /// As in http://127.0.0.1:4317 (gRPC); with another port http/protobuf. The OTEL_* variables do, too.
    #[arg(long, value_name = "URL")]
    pub otlp_endpoint: Option<String>,
    /// How spans travel: grpc or http/protobuf [default: by the port]
    #[arg(long, value_name = "PROTOCOL")]
    pub otlp_protocol: Option<Protocol>,
}

/// One of `count` generators that share a schedule; it sends every `count`-th request (or conversation).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    /// Its number, from 0.
    pub index: usize,
    /// The number of shards.
    pub count: usize,
}

/// More turns are taken for a typing error.
const MAX_TURNS: usize = 1000;

/// The default of `--turns` for the data set `conversations`.
const DEFAULT_TURNS: usize = 4;

impl Backend {
    /// The endpoint that requests are sent to.
    pub const fn endpoint(self) -> Endpoint {
        match self {
            Backend::Sglang => Endpoint::Generate,
            Backend::SglangOai => Endpoint::Completions,
            Backend::SglangOaiChat | Backend::OpenaiChat => Endpoint::Chat,
        }
    }
}

/// The flags without any that is given.
static DEFAULTS: LazyLock<Args> = LazyLock::new(|| Args::parse_from(["traffic"]));

impl Args {
    /// What is wrong with flags that are not at their defaults, but have no effect with the data set.
    pub fn idle_flags(&self) -> Vec<String> {
        use DatasetName::{Conversations, GeneratedSharedPrefix, RandomIds, Sharegpt};
        let (talk, default_talk) = (&self.conversation, &DEFAULTS.conversation);
        let (data, default_data) = (&self.data, &DEFAULTS.data);
        let has_think_time = talk.think_time_s != default_talk.think_time_s;
        let has_follow_up = talk.follow_up_len != default_talk.follow_up_len;
        let has_groups = data.shared_prefix != default_data.shared_prefix;
        let has_vocabulary = self.vocab_size != DEFAULTS.vocab_size;
        let has_output = data.sharegpt.sharegpt_output_len.is_some();
        let has_context = data.sharegpt.sharegpt_context_len.is_some();
        let flags: [(_, _, &[DatasetName]); 6] = [
            ("think-time-s", has_think_time, &[Conversations, Sharegpt]),
            ("follow-up-len", has_follow_up, &[Conversations]),
            ("sharegpt-output-len", has_output, &[Sharegpt]),
            ("sharegpt-context-len", has_context, &[Sharegpt]),
            ("gsp-…", has_groups, &[GeneratedSharedPrefix]),
            ("vocab-size", has_vocabulary, &[RandomIds]),
        ];
        let is_idle = |sets: &[DatasetName]| !sets.contains(&data.dataset_name);
        let idle = flags
            .iter()
            .filter(|(_, given, sets)| *given && is_idle(sets));
        let told = idle.map(|(flag, _, sets)| {
            let names: Vec<String> = sets.iter().map(|set| values::value_name(*set)).collect();
            format!("--{flag}: goes with --dataset-name {}", names.join(" or "))
        });
        told.collect()
    }
}

impl DataArgs {
    /// Returns the speed of a trace whose times are used; `None` for any other arrival. `arrival` is the process that the flags of
    /// rate and burstiness describe.
    ///
    /// # Errors
    /// [`Error::usage`]: flags that do not go together.
    pub(super) fn speed(&self, arrival: &Arrival) -> Result<Option<f64>, Error> {
        let usage = |message: &str| Err(Error::usage(message));
        use DatasetName::{Azure, Burstgpt, Mooncake};
        let is_trace = matches!(self.dataset_name, Mooncake | Azure | Burstgpt);
        match (self.arrival, is_trace) {
            (Some(ArrivalSource::Trace), true) if *arrival == Arrival::AtOnce => {
                Ok(Some(self.trace_speed.unwrap_or(1.0)))
            }
            (Some(ArrivalSource::Trace), _) => usage(
                "--arrival trace: goes with --dataset-name mooncake, azure or burstgpt, which say when requests are sent, and \
                 without --request-rate and --rate-curve (--trace-speed makes it faster or slower)",
            ),
            _ if self.trace_speed.is_some() => usage("--trace-speed: goes with --arrival trace"),
            _ => Ok(None),
        }
    }

    /// Returns the turns of each conversation, at most; `given` is `--turns`.
    ///
    /// # Errors
    /// [`Error::usage`]: the data set has no conversations.
    pub(super) fn turns(&self, given: Option<usize>) -> Result<usize, Error> {
        match (self.dataset_name, given) {
            (DatasetName::Conversations, turns) => Ok(turns.unwrap_or(DEFAULT_TURNS)),
            (DatasetName::Sharegpt, turns) => Ok(turns.unwrap_or(1)),
            (_, None | Some(1)) => Ok(1),
            (_, Some(turns)) => Err(Error::usage(format!(
                "--turns {turns}: goes with --dataset-name conversations or sharegpt"
            ))),
        }
    }
}

impl FromStr for Shard {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Shard, &'static str> {
        let parts = text.split_once('/');
        let parts = parts.and_then(|(i, n)| Some((i.parse().ok()?, n.parse().ok()?)));
        let shard = parts.filter(|(index, count)| index < count);
        shard
            .map(|(index, count)| Shard { index, count })
            .ok_or("must be I/N, I from 0 to N - 1, such as 0/4")
    }
}

impl fmt::Display for Shard {
    /// In the form that is parsed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.index, self.count)
    }
}
