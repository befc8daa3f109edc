//! The flags of conversations.

use crate::traffic::error::Error;
use crate::traffic::workload::LengthRange;
use crate::traffic::workload::conversation::{MOST_TURNS, Spread, Talks};

use super::data::DatasetName;
use super::values::{self, within};

/// What conversations are like.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Data sets conversations and sharegpt")]
pub struct TalkArgs {
    /// Turns of a conversation, at most [default: 4 of conversations, 1 of sharegpt]
    #[arg(long, value_name = "N", value_parser = within(1..=MOST_TURNS, "must be a whole number from 1 to 1000"))]
    pub turns: Option<usize>,
    /// Seconds from the end of a reply to the next turn, in the mean
    #[arg(long, value_name = "SECONDS", default_value = "1",
        value_parser = values::seconds_or_none)]
    pub think_time_s: f64,
    /// How think times are spread
    #[arg(long, value_enum, default_value = "exponential")]
    pub think_time: Spread,
    /// Words of a turn after the first, at most (--random-range-ratio holds for it too), of conversations
    #[arg(long, value_name = "N", default_value = "64",
        value_parser = values::length)]
    pub follow_up_len: u64,
}

/// Turns of the data set `conversations` where nothing is said.
const TURNS: usize = 4;

impl TalkArgs {
    /// Turns of each conversation, at most.
    ///
    /// # Errors
    /// [`Error::Usage`]: the data set has none.
    pub(super) fn turns(&self, dataset: DatasetName) -> Result<usize, Error> {
        match (dataset, self.turns) {
            (DatasetName::Conversations, turns) => Ok(turns.unwrap_or(TURNS)),
            (DatasetName::ShareGpt, turns) => Ok(turns.unwrap_or(1)),
            (_, None | Some(1)) => Ok(1),
            (_, Some(turns)) => Err(Error::Usage(format!(
                "--turns {turns}: goes with --dataset-name conversations or sharegpt"
            ))),
        }
    }

    /// What conversations of so many turns are like.
    pub(super) fn talks(&self, turns: usize, ratio: f64) -> Option<Talks> {
        (turns > 1).then(|| Talks {
            turns,
            think_s: self.think_time_s,
            spread: self.think_time,
            follow_up: LengthRange::up_to(self.follow_up_len, ratio),
        })
    }
}
