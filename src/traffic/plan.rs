//! A run before it begins: what will be sent, when and how.

use std::time::Duration;

use crate::clock::{NANOS, Stamp};

use super::arrival::{Arrival, Gaps};
use super::client::ClientOptions;
use super::error::Error;
use super::shard::Shard;
use super::workload::Workload;
use super::workload::dataset::Lengths;
use super::workload::source::Source;

/// Everything a run needs.
#[derive(Clone, Debug)]
pub struct RunPlan {
    /// How to send.
    pub client: ClientOptions,
    /// What to send.
    pub workload: Workload,
    /// The file that it is of, if there is one.
    pub source: Option<Source>,
    /// When to send.
    pub arrival: Arrival,
    /// Gaps are scaled so that their mean is exactly that of the rate, whatever was drawn.
    pub exact_rate: bool,
    /// Seed of the schedule.
    pub seed: u64,
    /// How much to send; conversations count once.
    pub amount: Amount,
    /// The part of the schedule that is sent; `None`: all of it.
    pub shard: Option<Shard>,
    /// When the run begins; `None`: as soon as it can.
    pub start_at: Option<Stamp>,
    /// At most this many requests under way at a time.
    pub max_concurrency: Option<usize>,
    /// Requests sent before the run, one after the other, unrecorded.
    pub warmup_requests: usize,
    /// How long requests under way may go on once the run is stopped.
    pub drain_timeout: Duration,
    /// The request at place `i` is called `PREFIX-i`: header characters without blanks.
    pub request_id_prefix: String,
    /// Empty the server's prefix cache first.
    pub flush_cache: bool,
    /// Fail at once when nothing answers at the target.
    pub check_target: bool,
}

/// How much a run sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// How many requests; without it, the duration decides, or else the data set.
    pub num_prompts: Option<usize>,
    /// No request is scheduled at or after this long into the run. Those scheduled are all sent and awaited.
    pub duration: Option<Duration>,
}

/// One request of the schedule, or the first turn of a conversation.
#[derive(Clone, Debug, PartialEq)]
pub struct Planned {
    /// Which it is in the schedule of all shards, from 0.
    pub number: u64,
    /// Nanoseconds from the start of the run.
    pub offset_nanos: i64,
}

/// More requests than this in one run are taken for a slip.
const MOST_REQUESTS: usize = 10_000_000;

/// Nanoseconds, as many as there can be.
pub(super) fn nanos(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

impl Amount {
    /// Requests of a run that names neither number nor duration (SGLang's benchmark does the same).
    pub const DEFAULT: usize = 1000;

    /// How many requests that makes; `None` leaves it to the data set.
    ///
    /// # Errors
    /// [`Error::Usage`]: the run would have no end.
    pub fn asked(&self, arrival: &Arrival, seed: u64) -> Result<Option<usize>, Error> {
        match (self.num_prompts, self.duration) {
            (None, Some(_)) if *arrival == Arrival::Infinite => {
                let right = "with --request-rate inf all requests are due at once, so --duration \
                    cannot end them: add --num-prompts or a rate";
                Err(Error::Usage(right.to_owned()))
            }
            (None, None) => Ok(None),
            (count, _) => {
                let within = self.within(arrival, seed);
                let most = count.unwrap_or(usize::MAX).min(MOST_REQUESTS + 1);
                Ok(Some(within.take(most).count()))
            }
        }
    }

    /// When requests are due, before the duration ends.
    fn within(&self, arrival: &Arrival, seed: u64) -> impl Iterator<Item = i64> + use<> {
        let end = self.duration.map_or(i64::MAX, nanos);
        let offsets = arrival.offsets(seed);
        offsets.take_while(move |offset| *offset < end)
    }
}

impl RunPlan {
    /// The schedule of this shard.
    ///
    /// # Errors
    /// [`Error::Usage`] when it has no end, too many requests, or not those asked for.
    pub fn schedule(&self) -> Result<Vec<Planned>, Error> {
        let starts = self.starts()?;
        let (all, shard) = (starts.len(), self.shard);
        let own = (0..)
            .zip(starts)
            .filter(|(number, _)| shard.is_none_or(|shard| shard.holds(*number)));
        let own: Vec<Planned> = own
            .map(|(number, offset_nanos)| Planned {
                number: number as u64,
                offset_nanos,
            })
            .collect();
        match shard {
            Some(shard) if own.is_empty() => Err(Error::Usage(format!(
                "--shard {shard}: has none of the {all} requests; use fewer shards"
            ))),
            _ => Ok(own),
        }
    }

    /// When the requests, or conversations, of all shards begin: nanoseconds from the start of the run.
    ///
    /// # Errors
    /// As [`RunPlan::schedule`].
    pub(super) fn starts(&self) -> Result<Vec<i64>, Error> {
        let (amount, dataset) = (self.amount, &self.workload.dataset);
        let count = match amount.asked(&self.arrival, self.seed)? {
            Some(count) => count,
            None => dataset.count.unwrap_or(Amount::DEFAULT),
        };
        if count.saturating_mul(self.workload.most_turns()) > MOST_REQUESTS {
            return Err(Error::Usage(format!(
                "the run would have more than {MOST_REQUESTS} requests: lower --num-prompts, \
                 --request-rate, --duration or --turns"
            )));
        }
        let mut offsets: Vec<i64> = amount
            .within(&self.arrival, self.seed)
            .take(count)
            .collect();
        let fewer = amount.num_prompts.filter(|asked| offsets.len() < *asked);
        if let (Some(asked), None) = (fewer, amount.duration) {
            let held = offsets.len();
            let what = match self.arrival {
                Arrival::At(_) => "the file has times",
                _ => "--rate-curve falls to 0 and has time",
            };
            return Err(Error::Usage(format!(
                "--num-prompts {asked}: {what} for {held} requests only"
            )));
        }
        if offsets.is_empty() {
            let seconds = amount.duration.unwrap_or_default().as_secs_f64();
            return Err(Error::Usage(format!(
                "no request is due within the {seconds} s of --duration: raise it or --request-rate"
            )));
        }
        if self.exact_rate {
            self.scale(&mut offsets);
        }
        Ok(offsets)
    }

    /// Scales the gaps of a process of one rate so that their mean is that rate's. Of a Poisson process what remains is one
    /// whose count in that time is known.
    fn scale(&self, offsets: &mut [i64]) {
        let (Arrival::Process { gaps, rate }, [first, .., last]) = (&self.arrival, &*offsets)
        else {
            return;
        };
        let drawn = (last - first) as f64;
        if let Some(rate) = rate.mean(0.0)
            && drawn > 0.0
            && *gaps != Gaps::Even
        {
            let asked = (offsets.len() - 1) as f64 / rate * NANOS as f64;
            for offset in offsets {
                *offset = (*offset as f64 * (asked / drawn)).round() as i64;
            }
        }
    }

    /// Where a turn (from 0) of a request or conversation stands among all requests of all shards: its place. In two
    /// runs of one workload the same place is the same request.
    pub fn place(&self, number: u64, turn: usize) -> usize {
        number as usize * self.workload.most_turns() + turn
    }

    /// Which request or conversation is at this place, and which turn of it.
    pub fn at_place(&self, place: usize) -> (u64, usize) {
        let turns = self.workload.most_turns();
        ((place / turns) as u64, place % turns)
    }

    /// All requests of a schedule: place, when it is due in nanoseconds from the start of the run (a later turn of a
    /// conversation: nobody knows before), and what it will be.
    pub fn requests<'a>(
        &'a self,
        schedule: &'a [Planned],
    ) -> impl Iterator<Item = (usize, Option<i64>, Lengths)> + 'a {
        schedule.iter().flat_map(move |planned| {
            let number = planned.number;
            (0..self.workload.turns(number)).map(move |turn| {
                let due = (turn == 0).then_some(planned.offset_nanos);
                let lengths = self.workload.turn_lengths(number, turn);
                (self.place(number, turn), due, lengths)
            })
        })
    }

    /// How many requests a schedule has, all turns counted.
    pub fn count(&self, schedule: &[Planned]) -> usize {
        let turns = schedule
            .iter()
            .map(|planned| self.workload.turns(planned.number));
        turns.sum()
    }

    /// Requests (or conversations) a second that the schedule of all shards is made for, in the mean where the rate changes; `None`: all at once.
    pub fn offered_rate(&self) -> Option<f64> {
        let duration = self.amount.duration.map(nanos);
        let last = || {
            let count = self.amount.num_prompts?.checked_sub(1)?;
            self.arrival.offsets(self.seed).nth(count)
        };
        self.arrival
            .rate(duration.or_else(last).unwrap_or_default())
    }

    /// The same of this shard.
    pub fn shard_rate(&self) -> Option<f64> {
        let parts = self.shard.map_or(1, Shard::count);
        self.offered_rate().map(|rate| rate / parts as f64)
    }

    /// The `x-request-id` of the request at a place, and the `req_id` of its rows.
    pub fn req_id(&self, place: usize) -> String {
        format!("{}-{place}", self.request_id_prefix)
    }
}

#[cfg(test)]
mod tests;
