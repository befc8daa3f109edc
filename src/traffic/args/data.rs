//! The data sets: their names and flags, what goes with each; when requests are sent.

use std::path::PathBuf;

use clap::ValueEnum;

use crate::error::Error;
use crate::traffic::arrival::Arrival;
use crate::traffic::workload::shared_prefix::SharedPrefixArgs;
use crate::traffic::workload::sharegpt::SharegptArgs;
use crate::units::between;

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

/// The default of `--turns` for the data set `conversations`.
const DEFAULT_TURNS: usize = 4;

impl DataArgs {
    /// Returns the speed of a trace whose times are used; `None` for any other arrival. `arrival` is the process that the flags of
    /// rate and burstiness describe.
    ///
    /// # Errors
    /// [`Error::usage`]: flags that do not go together.
    pub(in crate::traffic) fn speed(&self, arrival: &Arrival) -> Result<Option<f64>, Error> {
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
    pub(in crate::traffic) fn turns(&self, given: Option<usize>) -> Result<usize, Error> {
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
