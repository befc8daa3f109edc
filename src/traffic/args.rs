//! The command line of the generator. Flag names are those of SGLang's and vLLM's benchmark clients where
//! they have the same thing.

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use http::{HeaderName, HeaderValue};
use serde_json::{Map, Value, json};

use crate::clock::Stamp;
use crate::report::load::Goal;
use crate::table::window::Edge;
use crate::telemetry::csv::TimeBase;

use super::arrival::curve::Curve;
use super::arrival::{Arrival, Gaps};
use super::client::{ClientOptions, OWN_HEADERS, Target, TlsArgs, UpstreamKind, api_key};
use super::download::{self, SHAREGPT};
use super::error::Error;
use super::plan::{Amount, Planned, RunPlan};
use super::spans::OtlpArgs;
use super::workload::{Backend, BodyOptions, LengthRange, Workload};

mod data;
mod part;
mod talk;
pub mod values;

pub use data::{ArrivalSource, DataArgs, DatasetName};
pub use part::PartArgs;
pub use talk::TalkArgs;
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
    /// Part of a load, and where it is stored
    #[command(flatten)]
    pub part: PartArgs,
    /// Ids of random-ids are below this
    #[arg(long, value_name = "N", default_value = "32000",
        value_parser = within(2_u32.., "must be a whole number of token ids, 2 or more"))]
    #[arg(help_heading = "What is sent")]
    pub vocab_size: u32,

    /// Folder of the servers' request logs on this disk (their --export-metrics-to-file-dir): rows of chat and completions,
    /// which carry no times, then have the server's queue
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
        value_parser = values::drain)]
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

impl Args {
    /// What to run.
    ///
    /// # Errors
    /// [`Error::Usage`]: values that do not go together, a data set that cannot be read.
    pub fn plan(&self) -> Result<RunPlan, Error> {
        let arrival = self.arrival()?;
        let amount = self.amount();
        let turns = self.talk.turns(self.data.dataset_name)?;
        let data = self
            .data
            .data(arrival, self.seed, self.vocab_size, &amount, turns)?;
        let ratio = self.random_range_ratio;
        let workload = Workload {
            backend: self.backend(data.backend)?,
            talks: self.talk.talks(turns, ratio),
            dataset: data.dataset,
            input: LengthRange::up_to(self.random_input_len, ratio),
            output: LengthRange::up_to(self.random_output_len, ratio),
            seed: self.seed,
            options: BodyOptions {
                stream: !self.disable_stream,
                ignore_eos: !self.disable_ignore_eos,
                model: self.model.clone(),
                extra: self.extra_request_body.clone().unwrap_or_default(),
            },
        };
        let plan = RunPlan {
            client: self.client()?,
            workload,
            source: data.source,
            arrival: data.arrival,
            seed: self.seed,
            amount,
            shard: self.part.shard,
            exact_rate: self.part.exact_rate,
            start_at: self.part.start_at,
            max_concurrency: self.max_concurrency,
            warmup_requests: self.warmup_requests,
            drain_timeout: self.drain_timeout_s,
            request_id_prefix: self.id_prefix(),
            flush_cache: self.flush_cache,
            check_target: true,
        };
        plan.workload.check()?;
        Ok(plan)
    }

    /// The same, with a file for a data set that is published and was not given.
    ///
    /// # Errors
    /// [`Error::Download`]; [`Error::Usage`] where there is no folder to keep it in.
    pub(super) async fn with_downloads(&self) -> Result<Args, Error> {
        let mut args = self.clone();
        // What makes no sense is told at once, not after a download.
        self.data.speed(&self.arrival()?)?;
        if self.data.dataset_name == DatasetName::ShareGpt && self.data.dataset_path.is_none() {
            self.amount().asked(&self.arrival()?, self.seed)?;
            let cache = download::cache().ok_or_else(|| {
                let right = "--dataset-name sharegpt: there is no folder to keep it in: set HOME or \
                    XDG_CACHE_HOME, or name the file with --dataset-path FILE";
                Error::Usage(right.to_owned())
            })?;
            // The variable of Hugging Face's own client.
            let mirror = std::env::var("HF_ENDPOINT").ok();
            let mirror = mirror.as_deref().filter(|mirror| !mirror.is_empty());
            let brought = SHAREGPT.cached(&cache, mirror, self.connect_timeout_s);
            args.data.dataset_path = Some(brought.await?);
        }
        Ok(args)
    }

    /// The settings as they stand in summary.json: what was asked for, without the key.
    pub fn config(&self, plan: &RunPlan) -> Value {
        let rate = plan.offered_rate();
        let rate = rate.map_or_else(|| json!("inf"), |rate| json!(rate));
        let talks = plan.workload.talks;
        let headers: Vec<&str> = self.header.iter().map(|(name, _)| name.as_str()).collect();
        let body = self.extra_request_body.as_ref();
        let body = body.map(crate::secret::shown_members);
        let mut config = json!({
            "backend": plan.workload.backend.name(),
            "base_url": plan.client.target.to_string(),
            "upstream_kind": name(self.upstream_kind),
            "model": plan.workload.options.model,
            "request_rate": rate,
            "arrival": plan.arrival.name(),
            "rate_curve": self.rate_curve.as_ref().map(Curve::to_string),
            "burstiness": self.burstiness,
            "num_prompts": self.num_prompts,
            "exact_rate": self.part.exact_rate,
            "duration_s": plan.amount.duration.map(|duration| duration.as_secs_f64()),
            "max_concurrency": self.max_concurrency,
            "seed": self.seed,
            "request_id_prefix": plan.request_id_prefix,
            "warmup_requests": self.warmup_requests,
            "shard": plan.shard.map(|shard| shard.to_string()),
            "start_at": plan.start_at.map(Stamp::seconds),
            "turns": plan.workload.most_turns(),
            "think_time_s": talks.map(|talks| talks.think_s),
            "think_time": talks.map(|talks| name(talks.spread)),
            "follow_up_len": talks.map(|_| self.talk.follow_up_len),
            "random_input_len": self.random_input_len,
            "random_input_unit": self.data.input_unit(),
            "random_output_len": self.random_output_len,
            "random_range_ratio": self.random_range_ratio,
            "vocab_size": self.vocab_size,
            "extra_request_body": body,
            "headers": headers,
            "ca": self.tls.ca,
            "insecure": self.tls.insecure,
            "stream": !self.disable_stream,
            "ignore_eos": !self.disable_ignore_eos,
            "connection_reuse": !self.disable_connection_reuse,
            "flush_cache": self.flush_cache,
            "max_failed": self.max_failed,
            "leave_out_first": self.leave_out_first.to_string(),
            "leave_out_last": self.leave_out_last.to_string(),
            "request_timeout_s": self.request_timeout_s.as_secs_f64(),
            "connect_timeout_s": self.connect_timeout_s.as_secs_f64(),
        });
        let data = self.data.config(plan.source.as_ref());
        if let (Value::Object(all), Value::Object(data)) = (&mut config, data) {
            all.extend(data);
        }
        config
    }

    /// At the rate that was asked for.
    fn arrival(&self) -> Result<Arrival, Error> {
        let wrong = |text: &str| Err(Error::Usage(text.to_owned()));
        let gaps = match self.data.arrival {
            ArrivalSource::Rate | ArrivalSource::Gamma => Gaps::of_burstiness(self.burstiness),
            _ if self.burstiness != 1.0 => {
                return wrong("--burstiness: goes with --arrival gamma");
            }
            ArrivalSource::Constant => Gaps::Even,
            ArrivalSource::Poisson | ArrivalSource::Trace => Gaps::Exponential,
        };
        match &self.rate_curve {
            None => Ok(Arrival::new(self.request_rate, gaps)),
            Some(_) if self.data.arrival == ArrivalSource::Trace => wrong(
                "--rate-curve: the trace says when requests are sent; leave out the curve or --arrival trace",
            ),
            Some(_) if self.request_rate.is_finite() => {
                wrong("--rate-curve: says the rate itself; leave out --request-rate")
            }
            Some(curve) => Ok(Arrival::Process {
                gaps,
                rate: curve.clone(),
            }),
        }
    }

    fn amount(&self) -> Amount {
        let curve = self.rate_curve.as_ref();
        let end = curve.filter(|_| self.num_prompts.is_none());
        Amount {
            num_prompts: self.num_prompts,
            duration: self
                .duration
                .or(end.map(|curve| Duration::from_secs_f64(curve.end()))),
        }
    }

    fn client(&self) -> Result<ClientOptions, Error> {
        let target = match &self.base_url {
            Some(target) => target.clone(),
            None => Target::parse(&format!("http://{}:{}", self.host, self.port))
                .map_err(|why| Error::Usage(format!("--host {}: {why}", self.host)))?,
        };
        Ok(ClientOptions {
            tls: self.tls.tls(&target).map_err(Error::Usage)?,
            target,
            upstream: self.upstream_kind,
            api_key: api_key(self.api_key.as_deref()).map_err(Error::Usage)?,
            headers: self.header.clone(),
            reuse: !self.disable_connection_reuse,
            connect_timeout: self.connect_timeout_s,
            request_timeout: self.request_timeout_s,
            sampled: 1.0,
        })
    }

    fn id_prefix(&self) -> String {
        let prefix = self.request_id_prefix.clone();
        prefix.unwrap_or_else(|| self.part.id_prefix(self.seed))
    }

    /// The API to speak, where bodies are `stored` for one.
    fn backend(&self, stored: Option<Backend>) -> Result<Backend, Error> {
        let Some(stored) = stored else {
            return Ok(self.backend);
        };
        let changes_bodies =
            self.extra_request_body.is_some() || self.disable_stream || self.disable_ignore_eos;
        if changes_bodies || (self.backend != Backend::Sglang && self.backend != stored) {
            let name = stored.name();
            return Err(Error::Usage(format!(
                "--workload: its bodies are for --backend {name} and sent as stored: leave out another --backend, \
                 --extra-request-body, --disable-stream and --disable-ignore-eos"
            )));
        }
        Ok(stored)
    }

    /// What is about to be sent, for the start of a run.
    pub(super) fn announcement(&self, plan: &RunPlan, schedule: &[Planned]) -> String {
        let workload = &plan.workload;
        let what = self.described(plan).unwrap_or_else(|| {
            let unit = self.data.input_unit();
            let Workload { input, output, .. } = workload;
            format!("prompts of {input} {unit}, outputs of {output} tokens")
        });
        let place = |planned: Option<&Planned>, turn| {
            let number = planned.map_or(0, |planned| planned.number);
            plan.req_id(plan.place(number, turn))
        };
        let last_turn = plan.workload.most_turns() - 1;
        let (first, last) = (
            place(schedule.first(), 0),
            place(schedule.last(), last_turn),
        );
        let (count, turns) = (plan.count(schedule), schedule.len());
        let of = match last_turn {
            0 => String::new(),
            _ => format!(" of {turns} conversations"),
        };
        let shard = plan
            .shard
            .map_or_else(String::new, |shard| format!(" (shard {shard})"));
        let start = plan.start_at;
        let start = start.map_or_else(String::new, |at| format!(", from {} on", at.utc()));
        format!("{count} requests{of}{shard}{start}, {what}; ids {first} to {last}")
    }

    /// The data set in words, where it is none of random lengths.
    pub(super) fn described(&self, plan: &RunPlan) -> Option<String> {
        self.data.described(plan.source.as_ref())
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
fn name(value: impl ValueEnum) -> String {
    let possible = value.to_possible_value();
    possible.map_or_else(String::new, |value| value.get_name().to_owned())
}
