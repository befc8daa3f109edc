//! A run before it begins: what will be sent, when and how.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::NANOS;

mod make;
mod shown;

use super::args::Args;
use super::arrival::{Arrival, Gaps};
use super::client::ClientOptions;
use super::error::Error;
use super::shard::Shard;
use super::workload::dataset::{Dataset, Lengths};
use super::workload::source::Source;

/// Everything a run needs.
#[derive(Clone, Debug)]
pub struct RunPlan {
    /// The flags, with what follows from them: how long a curve is, what a server calls its model.
    pub args: Args,
    /// How to send.
    pub client: ClientOptions,
    /// Where prompts come from.
    pub dataset: Arc<Dataset>,
    /// The file that it is of, if there is one.
    pub source: Option<Source>,
    /// When to send.
    pub arrival: Arrival,
    /// Turns of the longest conversation. 1: there are none.
    pub most_turns: usize,
    /// The request at place `i` is called `PREFIX-i`: header characters without blanks.
    pub request_id_prefix: String,
    /// Fail at once when nothing answers at the target.
    pub check_target: bool,
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

/// Requests of a run that names neither number nor duration (SGLang's benchmark does the same).
pub(super) const DEFAULT_REQUESTS: usize = 1000;

impl Args {
    /// How many requests are asked for; `None` leaves it to the data set.
    ///
    /// # Errors
    /// [`Error::Usage`]: the run would have no end.
    pub(super) fn asked(&self, arrival: &Arrival) -> Result<Option<usize>, Error> {
        match (self.num_prompts, self.duration) {
            (None, Some(_)) if *arrival == Arrival::Infinite => {
                let right = "with --request-rate inf all requests are due at once, so --duration \
                    cannot end them: add --num-prompts or a rate";
                Err(Error::Usage(right.to_owned()))
            }
            (None, None) => Ok(None),
            (count, _) => {
                let most = count.unwrap_or(usize::MAX).min(MOST_REQUESTS + 1);
                Ok(Some(self.within(arrival).take(most).count()))
            }
        }
    }

    /// When requests are due, before the duration ends.
    fn within(&self, arrival: &Arrival) -> impl Iterator<Item = i64> + use<> {
        let end = self.duration.map_or(i64::MAX, nanos);
        let offsets = arrival.offsets(self.seed);
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
        let (all, shard) = (starts.len(), self.args.shard);
        let planned = (0..).zip(starts).map(|(number, offset_nanos)| Planned {
            number,
            offset_nanos,
        });
        let is_own = |one: &Planned| shard.is_none_or(|shard| shard.holds(one.number as usize));
        let own: Vec<Planned> = planned.filter(is_own).collect();
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
        let args = &self.args;
        let count = args.asked(&self.arrival)?.or(self.dataset.count);
        let count = count.unwrap_or(DEFAULT_REQUESTS);
        if count.saturating_mul(self.most_turns) > MOST_REQUESTS {
            return Err(Error::Usage(format!(
                "the run would have more than {MOST_REQUESTS} requests: lower --num-prompts, \
                 --request-rate, --duration or --turns"
            )));
        }
        let mut offsets: Vec<i64> = args.within(&self.arrival).take(count).collect();
        let fewer = args.num_prompts.filter(|asked| offsets.len() < *asked);
        if let (Some(asked), None) = (fewer, args.duration) {
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
            let seconds = args.duration.unwrap_or_default().as_secs_f64();
            return Err(Error::Usage(format!(
                "no request is due within the {seconds} s of --duration: raise it or --request-rate"
            )));
        }
        if args.exact_rate {
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
        number as usize * self.most_turns + turn
    }

    /// All requests of a schedule: place, when it is due in nanoseconds from the start of the run (a later turn of a
    /// conversation: nobody knows before), and what it will be.
    pub fn requests<'a>(
        &'a self,
        schedule: &'a [Planned],
    ) -> impl Iterator<Item = (usize, Option<i64>, Lengths)> + 'a {
        schedule.iter().flat_map(move |planned| {
            let number = planned.number;
            (0..self.turns(number)).map(move |turn| {
                let due = (turn == 0).then_some(planned.offset_nanos);
                let lengths = self.turn_lengths(number, turn);
                (self.place(number, turn), due, lengths)
            })
        })
    }

    /// How many requests a schedule has, all turns counted.
    pub fn count(&self, schedule: &[Planned]) -> usize {
        let turns = schedule.iter().map(|planned| self.turns(planned.number));
        turns.sum()
    }

    /// Requests (or conversations) a second that the schedule of all shards is made for, in the mean where the rate changes; `None`: all at once.
    pub fn offered_rate(&self) -> Option<f64> {
        let duration = self.args.duration.map(nanos);
        let last = || {
            let count = self.args.num_prompts?.checked_sub(1)?;
            self.arrival.offsets(self.args.seed).nth(count)
        };
        self.arrival
            .rate(duration.or_else(last).unwrap_or_default())
    }

    /// The same of this shard.
    pub fn shard_rate(&self) -> Option<f64> {
        let parts = self.args.shard.map_or(1, Shard::count);
        self.offered_rate().map(|rate| rate / parts as f64)
    }

    /// The `x-request-id` of the request at a place, and the `req_id` of its rows.
    pub fn req_id(&self, place: usize) -> String {
        format!("{}-{place}", self.request_id_prefix)
    }
}

#[cfg(test)]
mod tests;
