//! The plan of a run: what is sent, when and how. Made from the flags; described for `summary.json`, and as text.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rand_distr::Gamma;
use serde_json::{Value, json};

use crate::clock::{NANOS, Stamp};
use crate::error::Error;
use crate::report::load::Goal;

use super::args::values::value_name;
use super::args::{Args, ArrivalSource, DatasetName};
use super::arrival::{Arrival, Curve, Gaps};
use super::client::{ClientOptions, api_key};
use super::workload::dataset::{Content, Dataset, Lengths};
use super::workload::formats::{Limits, MAX_KEPT, read_custom, read_sharegpt, read_trace};
use super::workload::source;

/// Everything that a run needs.
#[derive(Clone, Debug)]
pub struct RunPlan {
    /// The flags; those left out are filled in where they follow: the duration of a curve, the server's model.
    pub args: Args,
    /// How to send.
    pub client: ClientOptions,
    /// Where prompts come from.
    pub dataset: Arc<Dataset>,
    /// When to send.
    pub arrival: Arrival,
    /// When the requests (or conversations) of all shards begin, in nanoseconds from the start of the run.
    pub offsets: Arc<[i64]>,
    /// The turns of a conversation, at most; 1 without conversations.
    pub max_turns: usize,
    /// The id of request `i` is `PREFIX-i`. Characters of a header value, without blanks.
    pub request_id_prefix: String,
}

/// More requests in one run are taken for a typing error.
const MAX_REQUESTS: usize = 10_000_000;

/// Converts a duration to nanoseconds; saturates.
fn nanos(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

/// The run starts this long after it is prepared, so that its first bodies are built and its first requests are not late already.
const START_DELAY_NANOS: i64 = 100_000_000;
/// The number of requests where neither number nor duration is given, as in SGLang's benchmark.
const DEFAULT_REQUESTS: usize = 1000;

impl Args {
    /// Makes the plan.
    ///
    /// # Errors
    /// [`Error::usage`]: values that do not go together, a data set that cannot be read, a schedule that has no end, too many requests,
    /// fewer than asked for, or none.
    pub fn plan(&self) -> Result<RunPlan, Error> {
        let mut args = self.clone();
        let end = self.rate_curve.as_ref().map(Curve::end);
        let end = end.filter(|_| self.num_prompts.is_none());
        args.duration = self.duration.or(end.map(Duration::from_secs_f64));
        Goal::each_once(&args.goodput).map_err(Error::usage)?;
        let arrival = args.arrival()?;
        let max_turns = args.data.turns(args.conversation.turns)?;
        let mut dataset = args.dataset(&arrival, max_turns)?;
        let arrival = dataset.times.take().map_or(arrival, Arrival::At);
        let offsets = args.offsets(&arrival, max_turns, dataset.count)?;
        let plan = RunPlan {
            client: self.client()?,
            max_turns,
            arrival,
            offsets: offsets.into(),
            dataset: Arc::new(dataset),
            request_id_prefix: self.id_prefix(),
            args,
        };
        plan.check()?;
        match self.shard {
            Some(shard) if plan.schedule().next().is_none() => Err(Error::usage(format!(
                "--shard {shard}: has none of the {} requests; use fewer shards",
                plan.offsets.len()
            ))),
            _ => Ok(plan),
        }
    }

    /// The arrival process that the flags of rate and burstiness describe.
    fn arrival(&self) -> Result<Arrival, Error> {
        let gaps = match self.data.arrival {
            Some(ArrivalSource::Constant) if self.burstiness == 1.0 => Gaps::Constant,
            _ if self.burstiness == 1.0 => Gaps::Exponential,
            None | Some(ArrivalSource::Gamma) => {
                let gamma = Gamma::new(self.burstiness, 1.0 / self.burstiness);
                let wrong = |error| Error::usage(format!("--burstiness: {error}"));
                Gaps::Gamma(gamma.map_err(wrong)?)
            }
            _ => return Err(Error::usage("--burstiness: goes with --arrival gamma")),
        };
        match &self.rate_curve {
            None => Ok(Arrival::new(self.request_rate, gaps)),
            Some(curve) => Ok(Arrival::Process {
                gaps,
                rate: curve.clone(),
            }),
        }
    }

    fn client(&self) -> Result<ClientOptions, Error> {
        let key = api_key(self.api_key.as_deref()).map_err(Error::usage)?;
        Ok(ClientOptions {
            tls: self.tls.tls(&self.base_url).map_err(Error::usage)?,
            target: self.base_url.clone(),
            upstream: self.upstream_kind,
            headers: key.into_iter().chain(self.header.clone()).collect(),
            reuse: !self.disable_connection_reuse,
            request_timeout: self.request_timeout_s,
        })
    }

    /// The prefix of the requests' ids. By default it is random, as ids of two runs must differ even if their seeds do not; but all
    /// shards of a run must have the same.
    fn id_prefix(&self) -> String {
        match (&self.request_id_prefix, self.shard, self.start_at) {
            (Some(prefix), ..) => prefix.clone(),
            (None, None, _) => format!("qs-{:08x}", rand::random::<u32>()),
            (None, Some(_), Some(at)) => format!("qs-{}-{}", self.seed, at.compact_utc()),
            (None, Some(_), None) => format!("qs-{}", self.seed),
        }
    }

    /// Reads or generates the data set, with conversations of at most `turns`. `arrival` is the process that the flags describe.
    fn dataset(&self, arrival: &Arrival, turns: usize) -> Result<Dataset, Error> {
        use DatasetName::*;
        let (data, seed) = (&self.data, self.seed);
        let speed = data.speed(arrival)?;
        // A cast saturates.
        let end = |(speed, duration)| (nanos(duration) as f64 * speed) as i64;
        let limits = Limits {
            count: self.num_prompts.unwrap_or(usize::MAX),
            end: speed.zip(self.duration).map_or(i64::MAX, end),
            kept: MAX_KEPT,
            speed,
        };
        // Clap has checked that those which need a file have one.
        let path = data.dataset_path.as_deref();
        let file = path.unwrap_or(Path::new(""));
        let generated = match data.dataset_name {
            Custom => return source::read(file, |file| read_custom(file)),
            Sharegpt => {
                let count = self.offsets(arrival, turns, None)?.len();
                let lengths = &data.sharegpt;
                return source::read(file, |file| {
                    read_sharegpt(file, lengths, count, turns, seed)
                });
            }
            Mooncake | Azure | Burstgpt => {
                let is_csv = data.dataset_name != Mooncake;
                return source::read(file, |file| read_trace(file, is_csv, limits));
            }
            Random | Conversations => Dataset::endless(Content::words()),
            RandomIds => Dataset::endless(Content::Ids(self.vocab_size)),
            GeneratedSharedPrefix => data.shared_prefix.dataset(seed)?,
        };
        match path {
            Some(_) => Err(Error::usage(format!(
                "--dataset-path {}: goes with --dataset-name custom, sharegpt or a trace, not {}",
                file.display(),
                value_name(data.dataset_name)
            ))),
            None => Ok(generated),
        }
    }

    /// Computes when the requests (or conversations) of all shards begin, in nanoseconds from the start of the run: as many as the flags
    /// say, or as the data set has.
    fn offsets(
        &self,
        arrival: &Arrival,
        max_turns: usize,
        in_dataset: Option<usize>,
    ) -> Result<Vec<i64>, Error> {
        let (duration, count) = (self.duration.map(nanos), self.num_prompts);
        if *arrival == Arrival::AtOnce && duration.is_some() && count.is_none() {
            let message = "with --request-rate inf all requests are due at once, so --duration \
                cannot end them: add --num-prompts or a rate";
            return Err(Error::usage(message));
        }
        let most = match duration {
            Some(_) => MAX_REQUESTS + 1,
            None => in_dataset.unwrap_or(DEFAULT_REQUESTS),
        };
        let end = duration.unwrap_or(i64::MAX);
        let offsets = arrival.offsets(self.seed).take_while(|at| *at < end);
        let offsets = offsets.take(count.unwrap_or(most).min(MAX_REQUESTS + 1));
        let mut offsets: Vec<i64> = offsets.collect();
        if offsets.len().saturating_mul(max_turns) > MAX_REQUESTS {
            return Err(Error::usage(format!(
                "the run would have more than {MAX_REQUESTS} requests: lower --num-prompts, \
                 --request-rate, --duration or --turns"
            )));
        }
        let wanted = count.filter(|_| duration.is_none());
        if offsets.len() < wanted.unwrap_or(1) {
            let (count, lower) = match offsets.len() {
                0 => (0, ""),
                count => (count, "lower --num-prompts, or "),
            };
            let more = match arrival {
                Arrival::At(_) => "give a longer trace",
                _ => "raise --duration, --request-rate or --rate-curve",
            };
            return Err(Error::usage(format!(
                "the schedule has {count} requests: {lower}{more}"
            )));
        }
        if self.exact_rate {
            scale_to_rate(&mut offsets, arrival);
        }
        Ok(offsets)
    }
}

/// Scales the gaps of a process of constant rate so that their mean is exactly that rate's. A Poisson process becomes one with a given
/// number of requests in the same time.
fn scale_to_rate(offsets: &mut [i64], arrival: &Arrival) {
    if let Arrival::Process { gaps, rate } = arrival
        && *gaps != Gaps::Constant
        && let (Some(rate), [first, .., last]) = (rate.mean(0.0), &*offsets)
        && first < last
    {
        let wanted = (offsets.len() - 1) as f64 / rate * NANOS as f64;
        let factor = wanted / (last - first) as f64;
        for offset in offsets {
            *offset = (*offset as f64 * factor).round() as i64;
        }
    }
}

impl RunPlan {
    /// When the run starts if everything is ready `now`.
    ///
    /// # Errors
    /// `--start-at` has passed.
    pub(super) fn start(&self, now: Stamp) -> Result<Stamp, Error> {
        let Some(at) = self.args.start_at else {
            return Ok(now.plus_nanos(START_DELAY_NANOS));
        };
        let late = now.since(at);
        match late < 0.0 {
            true => Ok(at),
            false => Err(Error::usage(format!(
                "--start-at {}: that was {late:.3} s before everything was ready; name a later moment",
                at.utc()
            ))),
        }
    }

    /// The requests (or conversations) of this shard: each with its number in the schedule of all shards, and when it begins, in
    /// nanoseconds from the start of the run.
    pub fn schedule(&self) -> impl Iterator<Item = (u64, i64)> {
        let all = (0..).zip(self.offsets.iter().copied());
        let (first, step) = self
            .args
            .shard
            .map_or((0, 1), |shard| (shard.index, shard.count));
        all.skip(first).step_by(step)
    }

    /// Returns the index, among all requests of all shards, of a turn (from 0) of a request or conversation. The same index is the
    /// same request in every run of a workload.
    pub fn request_index(&self, number: u64, turn: usize) -> usize {
        number as usize * self.max_turns + turn
    }

    /// Returns all requests of this shard: index, offset in nanoseconds (`None` for a later turn of a conversation, which depends on
    /// the replies before it), and lengths.
    pub fn requests(&self) -> impl Iterator<Item = (usize, Option<i64>, Lengths)> {
        self.schedule().flat_map(move |(number, offset)| {
            (0..self.turns(number)).map(move |turn| {
                let due = (turn == 0).then_some(offset);
                let lengths = self.lengths(number, turn);
                (self.request_index(number, turn), due, lengths)
            })
        })
    }

    /// The number of requests of this shard, counting every turn.
    pub fn count(&self) -> usize {
        self.schedule().map(|(number, _)| self.turns(number)).sum()
    }

    /// The rate of the schedule of all shards, in requests (or conversations) per second; the mean where it changes. `None`: all at
    /// once.
    pub fn offered_rate(&self) -> Option<f64> {
        let end = self.args.duration.map(nanos);
        let end = end.or(self.offsets.last().copied());
        self.arrival.rate(end.unwrap_or_default())
    }

    /// The rate of this shard's schedule.
    pub fn shard_rate(&self) -> Option<f64> {
        let parts = self.args.shard.map_or(1, |shard| shard.count);
        self.offered_rate().map(|rate| rate / parts as f64)
    }

    /// The `x-request-id` of a request, and the `req_id` of its rows.
    pub fn req_id(&self, index: usize) -> String {
        format!("{}-{index}", self.request_id_prefix)
    }

    /// The settings as in `summary.json`, without the API key.
    pub(super) fn config(&self) -> Value {
        let args = &self.args;
        let rate = self.offered_rate();
        let rate = rate.map_or_else(|| json!("inf"), |rate| json!(rate));
        let conversation = Some(&args.conversation).filter(|_| self.max_turns > 1);
        let headers: Vec<&str> = args.header.iter().map(|(name, _)| name.as_str()).collect();
        let body = args.extra_request_body.as_ref();
        let body = body.map(crate::secret::masked_members);
        let data = &args.data;
        let is_shared = data.dataset_name == DatasetName::GeneratedSharedPrefix;
        let shared = Some(&data.shared_prefix).filter(|_| is_shared);
        let unit = match data.dataset_name {
            DatasetName::RandomIds => "tokens",
            _ => "words",
        };
        let has_times = data.arrival == Some(ArrivalSource::Trace);
        json!({
            "backend": value_name(args.backend),
            "base_url": self.client.target.to_string(),
            "upstream_kind": value_name(args.upstream_kind),
            "model": args.model,
            "request_rate": rate,
            "arrival": self.arrival.name(),
            "rate_curve": args.rate_curve.as_ref().map(Curve::to_string),
            "burstiness": args.burstiness,
            "num_prompts": args.num_prompts,
            "exact_rate": args.exact_rate,
            "duration_s": args.duration.map(|duration| duration.as_secs_f64()),
            "max_concurrency": args.max_concurrency,
            "seed": args.seed,
            "request_id_prefix": self.request_id_prefix,
            "warmup_requests": args.warmup_requests,
            "shard": args.shard.map(|shard| shard.to_string()),
            "start_at": args.start_at.map(Stamp::seconds),
            "turns": self.max_turns,
            "think_time_s": conversation.map(|args| args.think_time_s.as_secs_f64()),
            "follow_up_len": conversation.map(|args| args.follow_up_len),
            "random_input_len": args.random_input_len,
            "random_input_unit": unit,
            "random_output_len": args.random_output_len,
            "random_range_ratio": args.random_range_ratio,
            "vocab_size": args.vocab_size,
            "extra_request_body": body,
            "headers": headers,
            "ca": args.tls.ca,
            "insecure": args.tls.insecure,
            "stream": !args.disable_stream,
            "ignore_eos": !args.disable_ignore_eos,
            "connection_reuse": !args.disable_connection_reuse,
            "flush_cache": args.flush_cache,
            "max_failed": args.max_failed,
            "leave_out_first": args.leave_out_first.as_secs_f64().to_string(),
            "leave_out_last": args.leave_out_last.as_secs_f64().to_string(),
            "request_timeout_s": args.request_timeout_s.as_secs_f64(),
            "dataset_name": value_name(data.dataset_name),
            "dataset_path": data.dataset_path,
            "dataset_sha256": self.dataset.sha256,
            "trace_speed": has_times.then(|| data.trace_speed.unwrap_or(1.0)),
            "sharegpt_output_len": data.sharegpt.sharegpt_output_len,
            "sharegpt_context_len": data.sharegpt.sharegpt_context_len,
            "gsp_num_groups": shared.map(|args| args.gsp_num_groups),
            "gsp_prompts_per_group": shared.map(|args| args.gsp_prompts_per_group),
            "gsp_system_prompt_len": shared.map(|args| args.gsp_system_prompt_len),
            "gsp_question_len": shared.map(|args| args.gsp_question_len),
            "gsp_output_len": shared.map(|args| args.gsp_output_len),
        })
    }

    /// The line that is printed at the start of a run.
    pub(super) fn announcement(&self) -> String {
        let first = self.schedule().next().map_or(0, |(number, _)| number);
        let first = self.req_id(self.request_index(first, 0));
        format!("{} requests, ids from {first} on", self.count())
    }
}

#[cfg(test)]
mod tests;
