//! A run before it begins: what will be sent, when and how.

use std::time::Duration;

use crate::clock::NANOS;

use super::arrival::Arrival;
use super::client::ClientOptions;
use super::error::Error;
use super::workload::{Dataset, Workload};

/// Everything a run needs.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How to send.
    pub client: ClientOptions,
    /// What to send.
    pub workload: Workload,
    /// When to send.
    pub arrival: Arrival,
    /// Seed of the schedule.
    pub seed: u64,
    /// How many requests; without it, the duration decides, or else the data set.
    pub num_prompts: Option<usize>,
    /// No request is scheduled at or after this long into the run. Those scheduled are all sent and awaited.
    pub duration: Option<Duration>,
    /// At most this many requests under way at a time; waiting for a slot counts as lag.
    pub max_concurrency: Option<usize>,
    /// Requests sent before the run, one after the other, unrecorded.
    pub warmup_requests: usize,
    /// How long requests under way may go on once the run is stopped.
    pub drain_timeout: Duration,
    /// Request `i` is called `PREFIX-i`: header characters without blanks.
    pub request_id_prefix: String,
    /// Empty the server's prefix cache first.
    pub flush_cache: bool,
    /// Fail at once when nothing answers at the target.
    pub check_target: bool,
}

/// One request of the schedule.
#[derive(Clone, Debug, PartialEq)]
pub struct Planned {
    /// Nanoseconds from the start of the run.
    pub offset_nanos: i64,
    /// Words or token ids of the prompt.
    pub input_length: u64,
    /// Tokens asked for.
    pub output_length: u64,
    /// The data set's own id of it.
    pub data_id: Option<String>,
}

/// More requests than this in one run are taken for a slip.
const MOST_REQUESTS: usize = 10_000_000;
/// Requests of a run that names neither number nor duration (SGLang's benchmark does the same).
const DEFAULT_REQUESTS: usize = 1000;

impl Plan {
    /// Checks what goes together, without laying the schedule out.
    ///
    /// # Errors
    /// [`Error::Usage`] names the setting and what would be right.
    pub fn check(&self) -> Result<(), Error> {
        self.workload
            .check()
            .map_err(|error| Error::Usage(error.to_string()))
    }

    /// The whole schedule.
    ///
    /// # Errors
    /// [`Error::Usage`] when it has no end or too many requests.
    pub fn schedule(&self) -> Result<Vec<Planned>, Error> {
        let count = match (self.num_prompts, self.duration, &self.workload.dataset) {
            (Some(count), _, _) => count,
            (None, Some(_), _) if self.arrival == Arrival::Infinite => {
                let right = "with --request-rate inf all requests are due at once, so --duration \
                    cannot end them: add --num-prompts or a rate";
                return Err(Error::Usage(right.to_owned()));
            }
            (None, Some(_), _) => usize::MAX,
            (None, None, Dataset::Custom(entries)) => entries.len(),
            (None, None, _) => DEFAULT_REQUESTS,
        };
        let end = self.duration.map_or(i64::MAX, |duration| {
            i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
        });
        let offsets = self.arrival.offsets(self.seed);
        let within = offsets.take(count).take_while(|offset| *offset < end);
        let offsets: Vec<i64> = within.take(MOST_REQUESTS + 1).collect();
        if offsets.len() > MOST_REQUESTS {
            return Err(Error::Usage(format!(
                "the run would have more than {MOST_REQUESTS} requests: lower --num-prompts, \
                 --request-rate or --duration"
            )));
        }
        if offsets.is_empty() {
            let seconds = end as f64 / NANOS as f64;
            return Err(Error::Usage(format!(
                "no request is due within the {seconds} s of --duration: raise it or --request-rate"
            )));
        }
        let indexed = (0..).zip(offsets);
        Ok(indexed.map(|(index, at)| self.planned(index, at)).collect())
    }

    /// The `x-request-id` of request `index`, and the `req_id` of its rows.
    pub fn req_id(&self, index: usize) -> String {
        format!("{}-{index}", self.request_id_prefix)
    }

    fn planned(&self, index: u64, offset_nanos: i64) -> Planned {
        let lengths = self.workload.lengths(index);
        Planned {
            offset_nanos,
            input_length: lengths.input,
            output_length: lengths.output,
            data_id: lengths.data_id,
        }
    }
}
