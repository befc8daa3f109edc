//! The flags of data sets: where prompts and lengths come from, and whether a trace also says when.

use std::path::{Path, PathBuf};

use clap::ValueEnum;

use crate::traffic::arrival::Arrival;
use crate::traffic::error::Error;
use crate::traffic::workload::shared_prefix::SharedPrefixArgs;
use crate::traffic::workload::sharegpt::SharegptArgs;
use crate::traffic::workload::source::Source;
use crate::traffic::workload::trace::Format;

use crate::units::between;

/// Where prompts come from.
#[derive(Clone, Debug, clap::Args)]
pub struct DataArgs {
    /// Where prompts come from
    #[arg(long, value_enum, value_name = "NAME", default_value = "random")]
    #[arg(help_heading = "What is sent")]
    pub dataset_name: DatasetName,
    /// File of the data set, required for custom, mooncake, azure and burstgpt
    ///
    /// Without it sharegpt is downloaded once, to the user's cache folder. custom is a JSON array or JSON lines of
    /// {"prompt", "completion", "id"} or {"messages"}.
    #[arg(long, value_name = "FILE", required_if_eq_any = [
        ("dataset_name", "custom"), ("dataset_name", "mooncake"), ("dataset_name", "azure"), ("dataset_name", "burstgpt"),
    ])]
    #[arg(help_heading = "What is sent")]
    pub dataset_path: Option<PathBuf>,
    /// When requests are sent [default: poisson, or gamma with --burstiness]
    #[arg(long, value_enum, default_value = "rate", hide_default_value = true)]
    #[arg(help_heading = "When requests are sent")]
    pub arrival: ArrivalSource,
    /// With --arrival trace: so many times as fast [default: 1]
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
    #[value(name = "sharegpt")]
    ShareGpt,
    /// Conversations of random words: each turn is sent with the replies to those before it (--turns, …)
    Conversations,
    /// Groups of prompts of random words that begin alike (--gsp-…)
    GeneratedSharedPrefix,
    /// Mooncake's trace (mooncake_trace.jsonl of github.com/kvcache-ai/Mooncake): lengths, shared blocks and times
    Mooncake,
    /// Azure's LLM inference trace (AzureLLMInferenceTrace_*.csv of github.com/Azure/AzurePublicDataset): lengths and times
    Azure,
    /// BurstGPT's trace (BurstGPT_*.csv of github.com/HPMLL/BurstGPT): lengths and times
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

impl DataArgs {
    pub(in crate::traffic) fn format(&self) -> Option<Format> {
        match self.dataset_name {
            DatasetName::Mooncake => Some(Format::Mooncake),
            DatasetName::Azure | DatasetName::BurstGpt => Some(Format::Csv),
            _ => None,
        }
    }

    /// How fast a trace is run, if it says when requests are sent.
    ///
    /// # Errors
    /// [`Error::Usage`]: flags that do not go together. `arrival` is that of the rate's flags.
    pub(in crate::traffic) fn speed(&self, arrival: &Arrival) -> Result<Option<f64>, Error> {
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

    /// The file of a data set that needs one; clap asks for it.
    pub(in crate::traffic) fn path(&self) -> &Path {
        self.dataset_path.as_deref().unwrap_or(Path::new(""))
    }

    pub(in crate::traffic) fn no_path(&self) -> Result<(), Error> {
        let Some(path) = &self.dataset_path else {
            return Ok(());
        };
        Err(Error::Usage(format!(
            "--dataset-path {}: goes with --dataset-name custom, sharegpt or a trace, not {}",
            path.display(),
            super::name(self.dataset_name)
        )))
    }

    /// What a prompt's length counts.
    pub(in crate::traffic) fn input_unit(&self) -> &'static str {
        match self.dataset_name {
            DatasetName::RandomIds => "tokens",
            _ => "words",
        }
    }

    /// The data set in words, where it is none of random lengths.
    pub(in crate::traffic) fn described(&self, source: Option<&Source>) -> Option<String> {
        let name = super::name(self.dataset_name);
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
            return Some(format!(
                "{name} {path} (SHA-256 {sha256}): read {taken}{times}"
            ));
        }
        (self.dataset_name == DatasetName::GeneratedSharedPrefix)
            .then(|| format!("{name}: {}", self.shared_prefix))
    }
}
