//! The plan of a run: what is sent, when and how.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::NANOS;

mod describe;
mod from_args;

use super::args::Args;
use super::arrival::{Arrival, Gaps};
use super::client::ClientOptions;
use super::error::Error;
use super::shard::Shard;
use super::workload::dataset::{Dataset, Lengths};

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
    /// The turns of a conversation, at most; 1 without conversations.
    pub max_turns: usize,
    /// The id of request `i` is `PREFIX-i`. Characters of a header value, without blanks.
    pub request_id_prefix: String,
    /// Whether to fail before the run if the target cannot be reached.
    pub check_target: bool,
}

/// One request of the schedule, or the first turn of a conversation.
#[derive(Clone, Debug, PartialEq)]
pub struct Planned {
    /// Its index in the schedule of all shards.
    pub number: u64,
    /// Nanoseconds from the start of the run.
    pub offset_nanos: i64,
}

/// More requests in one run are taken for a typing error.
const MAX_REQUESTS: usize = 10_000_000;

/// Converts a duration to nanoseconds; saturates.
pub(super) fn nanos(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

/// The number of requests where neither number nor duration is given, as in SGLang's benchmark.
pub(super) const DEFAULT_REQUESTS: usize = 1000;

impl Args {
    /// Returns how many requests the flags ask for; `None` leaves it to the data set.
    ///
    /// # Errors
    /// [`Error::Usage`]: the run would have no end.
    pub(super) fn requested_count(&self, arrival: &Arrival) -> Result<Option<usize>, Error> {
        match (self.num_prompts, self.duration) {
            (None, Some(_)) if *arrival == Arrival::AtOnce => {
                let message = "with --request-rate inf all requests are due at once, so --duration \
                    cannot end them: add --num-prompts or a rate";
                Err(Error::Usage(message.to_owned()))
            }
            (None, None) => Ok(None),
            (count, _) => {
                let limit = count.unwrap_or(usize::MAX).min(MAX_REQUESTS + 1);
                Ok(Some(self.offsets(arrival).take(limit).count()))
            }
        }
    }

    /// The offsets of the requests that are due before the duration ends, in nanoseconds.
    fn offsets(&self, arrival: &Arrival) -> impl Iterator<Item = i64> + use<> {
        let end = self.duration.map_or(i64::MAX, nanos);
        let offsets = arrival.offsets(self.seed);
        offsets.take_while(move |offset| *offset < end)
    }
}

impl RunPlan {
    /// Computes the schedule of this shard.
    ///
    /// # Errors
    /// [`Error::Usage`] if it has no end, too many requests, fewer than asked for, or none.
    pub fn schedule(&self) -> Result<Vec<Planned>, Error> {
        let offsets = self.all_offsets()?;
        let (count, shard) = (offsets.len(), self.args.shard);
        let planned = (0..).zip(offsets).map(|(number, offset_nanos)| Planned {
            number,
            offset_nanos,
        });
        let is_own = |one: &Planned| shard.is_none_or(|shard| shard.holds(one.number as usize));
        let own: Vec<Planned> = planned.filter(is_own).collect();
        match shard {
            Some(shard) if own.is_empty() => Err(Error::Usage(format!(
                "--shard {shard}: has none of the {count} requests; use fewer shards"
            ))),
            _ => Ok(own),
        }
    }

    /// Computes when the requests (or conversations) of all shards begin, in nanoseconds from the start of the run.
    ///
    /// # Errors
    /// As [`RunPlan::schedule`].
    pub(super) fn all_offsets(&self) -> Result<Vec<i64>, Error> {
        let args = &self.args;
        let count = args.requested_count(&self.arrival)?.or(self.dataset.count);
        let count = count.unwrap_or(DEFAULT_REQUESTS);
        if count.saturating_mul(self.max_turns) > MAX_REQUESTS {
            return Err(Error::Usage(format!(
                "the run would have more than {MAX_REQUESTS} requests: lower --num-prompts, \
                 --request-rate, --duration or --turns"
            )));
        }
        let mut offsets: Vec<i64> = args.offsets(&self.arrival).take(count).collect();
        let wanted = args.num_prompts.filter(|_| args.duration.is_none());
        if offsets.len() < wanted.unwrap_or(1) {
            return Err(Error::Usage(format!(
                "the schedule has {} requests: lower --num-prompts, or raise --duration, --request-rate or --rate-curve",
                offsets.len()
            )));
        }
        if args.exact_rate {
            self.scale_to_rate(&mut offsets);
        }
        Ok(offsets)
    }

    /// Scales the gaps of a process of constant rate so that their mean is exactly that rate's. A Poisson process becomes one with a
    /// given number of requests in the same time.
    fn scale_to_rate(&self, offsets: &mut [i64]) {
        if let Arrival::Process { gaps, rate } = &self.arrival
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

    /// Returns the index, among all requests of all shards, of a turn (from 0) of a request or conversation. The same index is the
    /// same request in every run of a workload.
    pub fn request_index(&self, number: u64, turn: usize) -> usize {
        number as usize * self.max_turns + turn
    }

    /// Returns all requests of a schedule: index, offset in nanoseconds (`None` for a later turn of a conversation, which depends on
    /// the replies before it), and lengths.
    pub fn requests<'a>(
        &'a self,
        schedule: &'a [Planned],
    ) -> impl Iterator<Item = (usize, Option<i64>, Lengths)> + 'a {
        schedule.iter().flat_map(move |planned| {
            let number = planned.number;
            (0..self.turns(number)).map(move |turn| {
                let due = (turn == 0).then_some(planned.offset_nanos);
                let lengths = self.turn_lengths(number, turn);
                (self.request_index(number, turn), due, lengths)
            })
        })
    }

    /// The number of requests of a schedule, counting every turn.
    pub fn count(&self, schedule: &[Planned]) -> usize {
        let turns = schedule.iter().map(|planned| self.turns(planned.number));
        turns.sum()
    }

    /// The rate of the schedule of all shards, in requests (or conversations) per second; the mean where it changes. `None`: all at
    /// once.
    pub fn offered_rate(&self) -> Option<f64> {
        let duration = self.args.duration.map(nanos);
        let last = || {
            let count = self.args.num_prompts?.checked_sub(1)?;
            self.arrival.offsets(self.args.seed).nth(count)
        };
        self.arrival
            .rate(duration.or_else(last).unwrap_or_default())
    }

    /// The rate of this shard's schedule.
    pub fn shard_rate(&self) -> Option<f64> {
        let parts = self.args.shard.map_or(1, Shard::count);
        self.offered_rate().map(|rate| rate / parts as f64)
    }

    /// The `x-request-id` of a request, and the `req_id` of its rows.
    pub fn req_id(&self, index: usize) -> String {
        format!("{}-{index}", self.request_id_prefix)
    }
}

#[cfg(test)]
mod tests;
