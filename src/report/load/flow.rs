//! Rates, and how many requests were in flight, queued and running over time.

use crate::clock::{NANOS, Stamp};
use crate::report::window::begun;
use crate::request::row::Row;
use crate::request::timeline::Moment;
use crate::stats::{Concurrency, Interval, Window as Span};

use super::rows::Rows;
use super::run::RunFacts;

/// How requests came and went.
#[derive(Clone, Debug)]
pub struct Flow {
    /// Whether there was a schedule: a proxy's rows have none.
    pub is_scheduled: bool,
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
    pub queued: Option<InServer>,
    /// Sequences from their first batch to the engine's end.
    pub running: Option<InServer>,
    /// Requests in flight of which nobody told whether they were queued or running, and how many those are.
    pub unknown: (Concurrency, u64),
}

/// How many sequences were at one place in the server.
#[derive(Clone, Debug)]
pub struct InServer {
    /// Those of which it is known when they were there.
    pub known: Concurrency,
    /// Requests that were sent and are not in it, such as those that failed there: nobody told when they were there.
    pub unknown: u64,
}

/// When what happened, of some of a run's requests: what [`Flow`] is made of.
#[derive(Clone, Debug, Default)]
pub struct Times {
    scheduled: Spread,
    begun: Spread,
    in_flight: Vec<Interval>,
    queued: Vec<Interval>,
    running: Vec<Interval>,
    /// Requests that were sent and of which it is not known when they were queued, or running.
    unknown: Vec<Unknown>,
    /// When a request that went well began, first.
    first_ok: Option<Stamp>,
    /// Of rows that went well: their first token, their last, and how many there were.
    tokens: Vec<(Stamp, Stamp, u64)>,
}

/// A request that was sent, and what of it is not known.
#[derive(Clone, Copy, Debug)]
struct Unknown {
    in_flight: Interval,
    is_queued: bool,
    is_running: bool,
}

/// The first and last of some moments, and how many there are.
#[derive(Clone, Copy, Debug, Default)]
struct Spread {
    ends: Option<(Stamp, Stamp)>,
    count: u64,
}

impl Times {
    pub fn of(requests: &[Rows<'_>]) -> Times {
        let firsts = || requests.iter().filter_map(|rows| rows.first());
        let rows = || requests.iter().copied().flatten();
        let ok = || rows().filter(|row| row.is_ok());
        Times {
            scheduled: Spread::of(firsts().filter_map(|row| row.timeline.raw(Moment::Scheduled))),
            begun: Spread::of(firsts().filter_map(|row| begun(&row.timeline))),
            in_flight: requests.iter().filter_map(|rows| in_flight(rows)).collect(),
            queued: rows().filter_map(queued).collect(),
            running: rows().filter_map(running).collect(),
            unknown: requests.iter().filter_map(|rows| unknown(rows)).collect(),
            first_ok: ok().filter_map(|row| begun(&row.timeline)).min(),
            tokens: ok().filter_map(tokens).collect(),
        }
    }

    /// Of requests that only the counts over time hold: they were there, and are in no other figure.
    pub fn presence(requests: &[Rows<'_>]) -> Times {
        Times {
            scheduled: Spread::default(),
            begun: Spread::default(),
            first_ok: None,
            tokens: Vec::new(),
            ..Times::of(requests)
        }
    }

    /// Adds those of other requests.
    pub fn add(&mut self, mut more: Times) {
        self.scheduled.add(more.scheduled);
        self.begun.add(more.begun);
        self.in_flight.append(&mut more.in_flight);
        self.queued.append(&mut more.queued);
        self.running.append(&mut more.running);
        self.unknown.append(&mut more.unknown);
        let firsts = [self.first_ok, more.first_ok];
        self.first_ok = firsts.into_iter().flatten().min();
        self.tokens.append(&mut more.tokens);
    }
}

impl Spread {
    fn of(moments: impl Iterator<Item = Stamp>) -> Spread {
        let mut spread = Spread::default();
        for at in moments {
            spread.add(Spread {
                ends: Some((at, at)),
                count: 1,
            });
        }
        spread
    }

    fn add(&mut self, more: Spread) {
        self.count += more.count;
        let both = self.ends.zip(more.ends);
        let around = both.map(|((a, b), (c, d))| (a.min(c), b.max(d)));
        self.ends = around.or(self.ends).or(more.ends);
    }

    /// Gaps a second between the first and the last.
    fn rate(&self) -> Option<f64> {
        let (first, last) = self.ends?;
        let gaps = self.count.checked_sub(1).filter(|gaps| *gaps > 0)?;
        let seconds = last.since(first);
        (seconds > 0.0).then(|| gaps as f64 / seconds)
    }
}

impl Flow {
    pub(super) fn of(times: &Times, run: &RunFacts) -> Flow {
        Flow {
            is_scheduled: times.scheduled.count > 0,
            schedule_rate: times.scheduled.rate(),
            achieved_rate: times.begun.rate(),
            peak_output_tokens: peak_output_tokens(times),
            over_time: OverTime::of(times, run),
        }
    }
}

impl OverTime {
    fn of(times: &Times, run: &RunFacts) -> Option<OverTime> {
        let window = Span::new(Interval {
            start: run.started.nanos(),
            end: run.ended.nanos(),
        })?;
        let of = |intervals: &[Interval]| Concurrency::of(intervals.iter().copied(), &window);
        // What was over before the window began, or came after it, is missing in no figure.
        let whole = window.whole;
        let is_here =
            |of: &&Unknown| of.in_flight.start <= whole.end && of.in_flight.end >= whole.start;
        let unknown: Vec<Unknown> = times.unknown.iter().filter(is_here).copied().collect();
        let in_server = |intervals: &[Interval], lacks: fn(&&Unknown) -> bool| {
            let known = (!intervals.is_empty()).then(|| of(intervals))?;
            let unknown = unknown.iter().filter(lacks).count() as u64;
            Some(InServer { known, unknown })
        };
        let in_flight: Vec<Interval> = unknown.iter().map(|of| of.in_flight).collect();
        Some(OverTime {
            bucket_s: window.bucket as f64 / NANOS as f64,
            in_flight: of(&times.in_flight),
            queued: in_server(&times.queued, |of| of.is_queued),
            running: in_server(&times.running, |of| of.is_running),
            unknown: (of(&in_flight), unknown.len() as u64),
        })
    }
}

/// Up to its end, whoever ended it.
fn in_flight(rows: Rows<'_>) -> Option<Interval> {
    let start = begun(&rows.first()?.timeline)?;
    let ends = rows
        .iter()
        .filter_map(|row| row.timeline.on_own_clock(Moment::End));
    Some(interval(start, ends.max()?))
}

/// `None` of a request that was never sent, or of which all is known.
fn unknown(rows: Rows<'_>) -> Option<Unknown> {
    let start = begun(&rows.first()?.timeline)?;
    let unknown = Unknown {
        in_flight: in_flight(rows).unwrap_or(interval(start, start)),
        is_queued: rows.iter().any(|row| queued(row).is_none()),
        is_running: rows.iter().any(|row| running(row).is_none()),
    };
    (unknown.is_queued || unknown.is_running).then_some(unknown)
}

fn queued(row: &Row) -> Option<Interval> {
    let at = |moment| row.timeline.on_own_clock(moment);
    Some(interval(at(Moment::QueueStart)?, at(Moment::QueueEnd)?))
}

fn running(row: &Row) -> Option<Interval> {
    let at = |moment| row.timeline.on_own_clock(moment);
    let end = at(Moment::ServerFinish).or_else(|| at(Moment::Finish));
    Some(interval(at(Moment::QueueEnd)?, end?))
}

/// A run of more seconds than this (four months) has no peak.
const LONGEST: f64 = 1e7;

/// Most tokens in one second, counted from the first send as bench_serving does. It knows when each token
/// came; here a row's tokens are spread evenly from its first to its last.
fn peak_output_tokens(times: &Times) -> Option<f64> {
    let start = times.first_ok?;
    let mut seconds: Vec<f64> = Vec::new();
    for (from, to, tokens) in &times.tokens {
        let after_start = |at: &Stamp| at.since(start).max(0.0);
        let (from, to) = (after_start(from), after_start(to));
        if from <= to && to < LONGEST {
            spread_tokens(&mut seconds, from, to, *tokens as f64);
        }
    }
    seconds.into_iter().reduce(f64::max)
}

/// When a row's tokens came.
fn tokens(row: &Row) -> Option<(Stamp, Stamp, u64)> {
    let at = |moment| row.timeline.on_own_clock(moment);
    Some((
        at(Moment::FirstToken)?,
        at(Moment::LastToken)?,
        row.actual_output_tokens?,
    ))
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
    use crate::report::load::tests::{AFTER_SENDING, run};
    use crate::report::load::{Gathering, UsualErrors};
    use crate::report::sample::{Sample, at};
    use crate::report::window::Window;

    #[test]
    fn who_was_gone_before_the_window_is_not_unknown_in_it() {
        let silent = |start| Sample::starting(start).without(&AFTER_SENDING).row();
        let window = Window {
            from_s: 1.0,
            to_s: 2.0,
            left_out_first: 2,
            ..Window::default()
        };
        let gathering = Gathering::new(UsualErrors::default().median(), Vec::new());
        let mut gathering = gathering.within(window, at(0));
        // The first is over at 500 ms, the second at 1300.
        gathering.add(&[silent(0), silent(800), Sample::starting(1200).row()]);
        let over_time = gathering.summary(&run()).all.flow.over_time.unwrap();
        assert_eq!(over_time.queued.unwrap().unknown, 1);
        assert_eq!(over_time.unknown.1, 1);
        assert!((over_time.unknown.0.mean - 0.3).abs() < 1e-9);
    }

    #[test]
    fn tokens_are_spread_over_the_seconds_they_came_in() {
        let mut seconds = Vec::new();
        spread_tokens(&mut seconds, 0.5, 2.5, 9.0);
        assert_eq!(seconds, [3.0, 4.0, 2.0]);
        spread_tokens(&mut seconds, 1.0, 1.0, 5.0);
        assert_eq!(seconds, [3.0, 9.0, 2.0]);
    }
}
