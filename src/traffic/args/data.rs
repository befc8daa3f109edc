//! The flags of data sets: where prompts and lengths come from, and whether a trace also says when.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::ValueEnum;
use serde_json::{Value, json};

use crate::traffic::arrival::Arrival;
use crate::traffic::download::SHAREGPT;
use crate::traffic::error::Error;
use crate::traffic::plan::{Amount, nanos};
use crate::traffic::workload::dataset::{Content, Dataset};
use crate::traffic::workload::jsonl::Named;
use crate::traffic::workload::shared_prefix::SharedPrefixArgs;
use crate::traffic::workload::sharegpt::{self, Sampling, SharegptArgs};
use crate::traffic::workload::source::{self, Hashed, Source};
use crate::traffic::workload::stored::Stored;
use crate::traffic::workload::trace::{self, Format, Limits, Trace};
use crate::traffic::workload::{Backend, custom};

use super::values::within;

/// Where prompts come from.
#[derive(Clone, Debug, clap::Args)]
pub struct DataArgs {
    /// Where prompts come from
    #[arg(long, value_enum, default_value = "random")]
    #[arg(help_heading = "What is sent")]
    pub dataset_name: DatasetName,
    /// File of the data set, NEEDED for custom, mooncake, azure and burstgpt; without it sharegpt is downloaded once, to
    /// the user's cache folder. custom is a JSON array or JSON lines of {"prompt", "completion", "id"} or {"messages"}
    #[arg(long, value_name = "FILE")]
    #[arg(help_heading = "What is sent")]
    pub dataset_path: Option<PathBuf>,
    /// Send what --save-workload wrote, exactly so: the data set and its times are in the file
    #[arg(long, value_name = "FILE")]
    #[arg(help_heading = "What is sent")]
    pub workload: Option<PathBuf>,
    /// When requests are sent [default: poisson, or gamma with --burstiness]
    #[arg(long, value_enum, default_value = "rate", hide_default_value = true)]
    #[arg(help_heading = "When requests are sent")]
    pub arrival: ArrivalSource,
    /// With --arrival trace, so many times as fast as it was: 2 sends the requests of an hour in half of one [default: 1]
    #[arg(long, value_name = "FACTOR", value_parser = within(1e-6..=1e6, "must be a number from 0.000001 to 1000000; 2 is twice as fast"))]
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
    #[value(name = "sharegpt")]
    ShareGpt,
    /// Conversations of random words: each turn is sent with the replies to those before it (--turns, …)
    Conversations,
    /// Groups of prompts of random words that begin alike (--gsp-…)
    GeneratedSharedPrefix,
    /// Mooncake's trace (JSON lines): lengths, shared blocks and times
    Mooncake,
    /// Azure's LLM inference trace (CSV, 2023 or 2024): lengths and times
    Azure,
    /// BurstGPT's trace (CSV): lengths and times
    #[value(name = "burstgpt")]
    BurstGpt,
}

/// `--arrival`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ArrivalSource {
    /// As --burstiness says: poisson or gamma
    #[value(hide = true)]
    Rate,
    /// Gaps that are exponential and know nothing of each other, as of many users
    Poisson,
    /// Gaps of a gamma distribution whose shape is --burstiness
    Gamma,
    /// Gaps that are all the same
    Constant,
    /// At the times that a trace has (mooncake, azure, burstgpt)
    Trace,
}

/// What was made of the flags.
pub(in crate::traffic) struct Data {
    pub(in crate::traffic) dataset: Arc<Dataset>,
    pub(in crate::traffic) source: Option<Source>,
    pub(in crate::traffic) arrival: Arrival,
    /// What the bodies are for, where they are stored.
    pub(in crate::traffic) backend: Option<Backend>,
}

impl DataArgs {
    /// Reads or makes the data set for a run of `amount`. `arrival` is that of the rate's flags.
    ///
    /// # Errors
    /// [`Error::Usage`]: flags that do not go together, a file that cannot be read.
    pub(super) fn data(
        &self,
        arrival: Arrival,
        seed: u64,
        vocab_size: u32,
        amount: &Amount,
        turns: usize,
    ) -> Result<Data, Error> {
        if let Some(path) = &self.workload {
            return self.stored(path, &arrival);
        }
        let speed = self.speed(&arrival)?;
        let made = match self.dataset_name {
            DatasetName::Random | DatasetName::Conversations => {
                Some(Dataset::endless(Content::words()))
            }
            DatasetName::RandomIds => Some(Dataset::endless(Content::Ids(vocab_size))),
            DatasetName::GeneratedSharedPrefix => Some(self.shared_prefix.dataset(seed)?),
            _ => None,
        };
        if let Some(dataset) = made {
            self.no_path()?;
            return Ok(Data {
                dataset: Arc::new(dataset),
                source: None,
                arrival,
                backend: None,
            });
        }
        let mut times = None;
        let read = |file: &mut Hashed, named: Named<'_>| match self.format() {
            Some(format) => {
                let end = speed.zip(amount.duration);
                let limits = Limits {
                    count: amount.num_prompts,
                    // A cast saturates.
                    end: end.map(|(speed, duration)| (nanos(duration) as f64 * speed) as i64),
                };
                let (trace, taken) = Trace::read(format, file, named, limits)?;
                times = speed.map(|speed| trace.offsets(speed).collect());
                Ok((trace.dataset, taken))
            }
            None if self.dataset_name == DatasetName::Custom => custom::read(file, named),
            None => {
                let sampling = Sampling {
                    lengths: &self.sharegpt,
                    count: amount.asked(&arrival, seed)?.unwrap_or(Amount::DEFAULT),
                    seed,
                    turns,
                };
                sharegpt::sample(file, named, &sampling)
            }
        };
        let (dataset, source) = source::open("--dataset-path", self.path()?, read)?;
        Ok(Data {
            dataset: Arc::new(dataset),
            source: Some(source),
            arrival: times.map_or(arrival, Arrival::At),
            backend: None,
        })
    }

    /// A stored workload, which says when too.
    fn stored(&self, path: &Path, arrival: &Arrival) -> Result<Data, Error> {
        let is_default = *arrival == Arrival::Infinite
            && self.arrival == ArrivalSource::Rate
            && self.dataset_path.is_none()
            && self.dataset_name == DatasetName::Random
            && self.trace_speed.is_none();
        if !is_default {
            let right = "--workload: says itself what is sent and when: leave out --request-rate, --rate-curve, \
                --arrival, --trace-speed, --dataset-name and --dataset-path";
            return Err(Error::Usage(right.to_owned()));
        }
        let read = |file: &mut _, named: Named<'_>| Stored::read(file, named);
        let (stored, source) = source::open("--workload", path, read)?;
        let name = &stored.header.backend;
        let backend = Backend::from_str(name, false).map_err(|_| {
            let path = path.display();
            Error::Usage(format!(
                "--workload {path}, line 1: `backend`: is {name}; must be sglang, sglang-oai or sglang-oai-chat"
            ))
        })?;
        let times = stored.requests.iter().map(|request| request.offset_ns);
        Ok(Data {
            arrival: Arrival::At(times.collect()),
            dataset: Arc::new(stored.into()),
            source: Some(source),
            backend: Some(backend),
        })
    }

    fn format(&self) -> Option<Format> {
        match self.dataset_name {
            DatasetName::Mooncake => Some(trace::MOONCAKE),
            DatasetName::Azure => Some(trace::AZURE),
            DatasetName::BurstGpt => Some(trace::BURST_GPT),
            _ => None,
        }
    }

    /// How fast a trace is run, if it says when requests are sent.
    ///
    /// # Errors
    /// [`Error::Usage`]: flags that do not go together. `arrival` is that of the rate's flags.
    pub(super) fn speed(&self, arrival: &Arrival) -> Result<Option<f64>, Error> {
        let wrong = |text: &str| Err(Error::Usage(text.to_owned()));
        match (self.arrival, self.format()) {
            (ArrivalSource::Trace, None) => {
                wrong("--arrival trace: goes with --dataset-name mooncake, azure or burstgpt")
            }
            (ArrivalSource::Trace, Some(_)) if *arrival != Arrival::Infinite => wrong(
                "--request-rate: the trace says when requests are sent; leave out the rate or --arrival trace \
                 (--trace-speed makes it faster or slower)",
            ),
            (ArrivalSource::Trace, Some(_)) => Ok(Some(self.trace_speed.unwrap_or(1.0))),
            _ if self.trace_speed.is_some() => wrong("--trace-speed: goes with --arrival trace"),
            _ => Ok(None),
        }
    }

    fn path(&self) -> Result<&Path, Error> {
        let name = super::name(self.dataset_name);
        let published = match self.dataset_name {
            DatasetName::Mooncake => " (mooncake_trace.jsonl of github.com/kvcache-ai/Mooncake)",
            DatasetName::Azure => {
                " (AzureLLMInferenceTrace_*.csv of github.com/Azure/AzurePublicDataset)"
            }
            DatasetName::BurstGpt => " (BurstGPT_*.csv of github.com/HPMLL/BurstGPT)",
            _ => "",
        };
        self.dataset_path.as_deref().ok_or_else(|| {
            let right = format!("--dataset-name {name}: needs --dataset-path FILE{published}");
            Error::Usage(right)
        })
    }

    fn no_path(&self) -> Result<(), Error> {
        let Some(path) = &self.dataset_path else {
            return Ok(());
        };
        Err(Error::Usage(format!(
            "--dataset-path {}: goes with --dataset-name custom, sharegpt or a trace, not {}",
            path.display(),
            super::name(self.dataset_name)
        )))
    }

    /// The settings as they stand in summary.json.
    pub(super) fn config(&self, source: Option<&Source>) -> Value {
        let is_shared = self.dataset_name == DatasetName::GeneratedSharedPrefix;
        let shared = Some(&self.shared_prefix).filter(|_| is_shared);
        let arrival_is_trace = self.arrival == ArrivalSource::Trace;
        json!({
            "dataset_name": self.name(),
            "dataset_path": source.map(|source| &source.path),
            "dataset_sha256": source.map(|source| &source.sha256),
            "dataset_taken": source.map(|source| &source.taken),
            "trace_speed": arrival_is_trace.then(|| self.trace_speed.unwrap_or(1.0)),
            "sharegpt_output_len": self.sharegpt.sharegpt_output_len,
            "sharegpt_context_len": self.sharegpt.sharegpt_context_len,
            "gsp_num_groups": shared.map(|args| args.gsp_num_groups),
            "gsp_prompts_per_group": shared.map(|args| args.gsp_prompts_per_group),
            "gsp_system_prompt_len": shared.map(|args| args.gsp_system_prompt_len),
            "gsp_question_len": shared.map(|args| args.gsp_question_len),
            "gsp_output_len": shared.map(|args| args.gsp_output_len),
        })
    }

    fn name(&self) -> String {
        match self.workload {
            Some(_) => "stored workload".to_owned(),
            None => super::name(self.dataset_name),
        }
    }

    /// What a prompt's length counts.
    pub(super) fn input_unit(&self) -> &'static str {
        match self.dataset_name {
            DatasetName::RandomIds => "tokens",
            _ => "words",
        }
    }

    /// The data set in words, where it is none of random lengths.
    pub(super) fn described(&self, source: Option<&Source>) -> Option<String> {
        let name = self.name();
        if let Some(Source {
            path,
            sha256,
            taken,
        }) = source
        {
            let path = path.display();
            let times = match (self.arrival, self.trace_speed.unwrap_or(1.0)) {
                (ArrivalSource::Trace, 1.0) => "; sent at its times".to_owned(),
                (ArrivalSource::Trace, speed) => format!("; sent at its times, {speed} × as fast"),
                _ => String::new(),
            };
            let published = match self.dataset_name {
                DatasetName::ShareGpt if *sha256 == SHAREGPT.sha256 => ", as published",
                DatasetName::ShareGpt => ", not that of the published file",
                _ => "",
            };
            return Some(format!(
                "{name} {path} (SHA-256 {sha256}{published}): read {taken}{times}"
            ));
        }
        (self.dataset_name == DatasetName::GeneratedSharedPrefix)
            .then(|| format!("{name}: {}", self.shared_prefix))
    }
}
