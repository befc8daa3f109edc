//! Rates, and how many requests were in flight, queued and running over time.

use crate::clock::{NANOS, Stamp};
use crate::request::record::Record;
use crate::request::timeline::{Moment, Timeline};
use crate::stats::{Concurrency, Interval, Window};

use super::{Rows, RunFacts};

/// How requests came and went.
#[derive(Clone, Debug)]
pub struct Flow {
    /// Rate of the schedule itself, requests a second.
    pub schedule_rate: Option<f64>,
    /// Rate at which requests were really sent (by a proxy: arrived).
    pub achieved_rate: Option<f64>,
    /// Most tokens a second, in the seconds of the run counted from its first send.
    pub peak_output_tokens: Option<f64>,
    /// What went on when; `None` of a run that took no time.
    pub over_time: Option<OverTime>,
}

/// Series over the run.
#[derive(Clone, Debug)]
pub struct OverTime {
    /// Length of a bucket, seconds.
    pub bucket_s: f64,
    /// Requests from their send to their end.
    pub in_flight: Concurrency,
    /// Sequences in the scheduler's waiting queue; `None` where no engine's moments are on our clock.
    pub queued: Option<Concurrency>,
    /// Sequences from their first batch to the engine's end.
    pub running: Option<Concurrency>,
}

impl Flow {
    pub fn of(requests: &[Rows<'_>], run: &RunFacts) -> Flow {
        let firsts = || requests.iter().filter_map(|rows| rows.first());
        let scheduled = firsts().filter_map(|row| row.timeline.raw(Moment::Scheduled));
        Flow {
            schedule_rate: rate(scheduled.collect()),
            achieved_rate: rate(firsts().filter_map(|row| begun(&row.timeline)).collect()),
            peak_output_tokens: peak_output_tokens(requests),
            over_time: OverTime::of(requests, run),
        }
    }
}

impl OverTime {
    fn of(requests: &[Rows<'_>], run: &RunFacts) -> Option<OverTime> {
        let window = Window::new(Interval {
            start: run.started.nanos(),
            end: run.ended.nanos(),
        })?;
        let in_flight = requests.iter().filter_map(|rows| in_flight(rows));
        let rows = || requests.iter().copied().flatten();
        let known = |intervals: Vec<Interval>| {
            (!intervals.is_empty()).then(|| Concurrency::of(intervals, &window))
        };
        Some(OverTime {
            bucket_s: window.bucket as f64 / NANOS as f64,
            in_flight: Concurrency::of(in_flight, &window),
            queued: known(rows().filter_map(queued).collect()),
            running: known(rows().filter_map(running).collect()),
        })
    }
}

/// When a request began: sent by the generator, or arrived at the proxy.
fn begun(timeline: &Timeline) -> Option<Stamp> {
    let sent = timeline.raw(Moment::Sent);
    sent.or_else(|| timeline.on_own_clock(Moment::Arrival))
}

/// Gaps a second between the first and the last of some moments.
fn rate(moments: Vec<Stamp>) -> Option<f64> {
    let (first, last) = (moments.iter().min()?, moments.iter().max()?);
    let gaps = moments.len().checked_sub(1).filter(|gaps| *gaps > 0)?;
    let seconds = last.since(*first);
    (seconds > 0.0).then(|| gaps as f64 / seconds)
}

/// Up to its end, whoever ended it.
fn in_flight(rows: Rows<'_>) -> Option<Interval> {
    let start = begun(&rows.first()?.timeline)?;
    let ends = rows
        .iter()
        .filter_map(|row| row.timeline.on_own_clock(Moment::End));
    Some(interval(start, ends.max()?))
}

fn queued(row: &Record) -> Option<Interval> {
    let at = |moment| row.timeline.on_own_clock(moment);
    Some(interval(at(Moment::QueueStart)?, at(Moment::QueueEnd)?))
}

fn running(row: &Record) -> Option<Interval> {
    let at = |moment| row.timeline.on_own_clock(moment);
    let end = at(Moment::ServerFinish).or_else(|| at(Moment::Finish));
    Some(interval(at(Moment::QueueEnd)?, end?))
}

/// A run of more seconds than this (four months) has no peak.
const LONGEST: f64 = 1e7;

/// Most tokens in one second, counted from the first send as bench_serving does. It knows when each token
/// came; here a row's tokens are spread evenly from its first to its last.
fn peak_output_tokens(requests: &[Rows<'_>]) -> Option<f64> {
    let ok = || requests.iter().copied().flatten().filter(|row| row.is_ok());
    let start = ok().filter_map(|row| begun(&row.timeline)).min()?;
    let mut seconds: Vec<f64> = Vec::new();
    for row in ok() {
        let after_start = |moment| Some(row.timeline.on_own_clock(moment)?.since(start).max(0.0));
        let ends = after_start(Moment::FirstToken).zip(after_start(Moment::LastToken));
        let ends = ends.filter(|(from, to)| from <= to && *to < LONGEST);
        if let Some(((from, to), tokens)) = ends.zip(row.output_tokens()) {
            spread_tokens(&mut seconds, from, to, tokens as f64);
        }
    }
    seconds.into_iter().reduce(f64::max)
}

/// Adds the first token to the second it came in, and the others evenly from there to the last.
fn spread_tokens(seconds: &mut Vec<f64>, from: f64, to: f64, tokens: f64) {
    let (first, last) = (from as usize, to as usize);
    if seconds.len() <= last {
        seconds.resize(last + 1, 0.0);
    }
    let others = (tokens - 1.0).max(0.0);
    for (second, held) in seconds.iter_mut().enumerate().take(last + 1).skip(first) {
        let start = second as f64;
        let share = if to > from {
            (to.min(start + 1.0) - from.max(start)) / (to - from)
        } else {
            1.0
        };
        *held += others * share + if second == first { 1.0 } else { 0.0 };
    }
}

fn interval(start: Stamp, end: Stamp) -> Interval {
    Interval {
        start: start.nanos(),
        end: end.nanos(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_spread_over_the_seconds_they_came_in() {
        let mut seconds = Vec::new();
        spread_tokens(&mut seconds, 0.5, 2.5, 9.0);
        assert_eq!(seconds, [3.0, 4.0, 2.0]);
        spread_tokens(&mut seconds, 1.0, 1.0, 5.0);
        assert_eq!(seconds, [3.0, 9.0, 2.0]);
    }
}
