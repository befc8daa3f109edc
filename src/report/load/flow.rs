//! Rates, and how many requests were in flight, queued and running over time.

use crate::clock::NANOS;
use crate::stats::{Concurrency, Interval, Window as Span};

use super::cells::{Cells, Request};
use super::latency::seconds;
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

impl OverTime {
    /// What the series are called.
    pub const NAMES: [&str; 4] = ["concurrency", "queued", "running", "unknown"];

    /// The series by these names.
    pub fn series(&self) -> [Option<&Concurrency>; 4] {
        let queued = self.queued.as_ref().map(|place| &place.known);
        let running = self.running.as_ref().map(|place| &place.known);
        [
            Some(&self.in_flight),
            queued,
            running,
            Some(&self.unknown.0),
        ]
    }
}

/// How many sequences were at one place in the server.
#[derive(Clone, Debug)]
pub struct InServer {
    /// Those of which it is known when they were there.
    pub known: Concurrency,
    /// Requests that were sent and are not in it, such as those that failed there: nobody told when they were there.
    pub unknown: u64,
}

/// A request that was sent, and what of it is not known.
#[derive(Clone, Copy, Debug)]
struct Unknown {
    in_flight: Interval,
    is_queued: bool,
    is_running: bool,
}

/// Whose flow it is: the requests that the figures are of, and all, of which those are some.
#[derive(Clone, Copy, Debug)]
struct Those<'a> {
    cells: Cells<'a>,
    all: &'a [Request],
}

impl Flow {
    /// Of requests in the order of arrival. Those outside of the time that the figures are of are counted while they are
    /// there, and are in no other figure.
    pub(super) fn of(cells: Cells<'_>, all: &[Request], run: &RunFacts) -> Flow {
        let those = Those { cells, all };
        let inside = || all.iter().filter(|request| request.is_inside);
        let firsts =
            |column: &'static str| inside().filter_map(move |of| cells.whole(column, of.row));
        Flow {
            is_scheduled: firsts("scheduled_time").next().is_some(),
            schedule_rate: rate(firsts("scheduled_time")),
            achieved_rate: rate(inside().filter_map(|of| cells.begun(of.row))),
            peak_output_tokens: those.peak_output_tokens(),
            over_time: those.over_time(run),
        }
    }
}

/// Gaps a second between the first and the last of some moments.
fn rate(moments: impl Iterator<Item = i64>) -> Option<f64> {
    let (mut ends, mut gaps) = (None, -1);
    for at in moments {
        let (first, last) = ends.unwrap_or((at, at));
        ends = Some((at.min(first), at.max(last)));
        gaps += 1;
    }
    let (first, last) = ends.filter(|(first, last)| gaps > 0 && first < last)?;
    Some(f64::from(gaps) / seconds(last - first))
}

impl Those<'_> {
    fn over_time(&self, run: &RunFacts) -> Option<OverTime> {
        let window = Span::new(Interval {
            start: run.started.nanos(),
            end: run.ended.nanos(),
        })?;
        let of = |intervals: Vec<Interval>| Concurrency::of(intervals, &window);
        let rows = || self.all.iter().flat_map(Request::rows);
        // What was over before the window began, or came after it, is missing in no figure.
        let whole = window.whole;
        let is_here =
            |of: &Unknown| of.in_flight.start <= whole.end && of.in_flight.end >= whole.start;
        let unknown = self.all.iter().filter_map(|request| self.unknown(request));
        let unknown: Vec<Unknown> = unknown.filter(is_here).collect();
        let in_server = |intervals: Vec<Interval>, lacks: fn(&&Unknown) -> bool| {
            let unknown = unknown.iter().filter(lacks).count() as u64;
            (!intervals.is_empty()).then(|| InServer {
                known: of(intervals),
                unknown,
            })
        };
        let in_flight = unknown.iter().map(|of| of.in_flight).collect();
        Some(OverTime {
            bucket_s: window.bucket as f64 / NANOS as f64,
            in_flight: of(self
                .all
                .iter()
                .filter_map(|of| self.in_flight(of))
                .collect()),
            queued: in_server(rows().filter_map(|row| self.queued(row)).collect(), |of| {
                of.is_queued
            }),
            running: in_server(rows().filter_map(|row| self.running(row)).collect(), |of| {
                of.is_running
            }),
            unknown: (of(in_flight), unknown.len() as u64),
        })
    }

    /// Up to its end, whoever ended it.
    fn in_flight(&self, request: &Request) -> Option<Interval> {
        let start = self.cells.begun(request.row)?;
        let ends = request
            .rows()
            .filter_map(|row| self.cells.whole("end_time", row));
        ends.max().map(|end| Interval { start, end })
    }

    /// `None` of a request that was never sent, or of which all is known.
    fn unknown(&self, request: &Request) -> Option<Unknown> {
        let start = self.cells.begun(request.row)?;
        let unknown = Unknown {
            in_flight: self
                .in_flight(request)
                .unwrap_or(Interval { start, end: start }),
            is_queued: request.rows().any(|row| self.queued(row).is_none()),
            is_running: request.rows().any(|row| self.running(row).is_none()),
        };
        (unknown.is_queued || unknown.is_running).then_some(unknown)
    }

    fn queued(&self, row: usize) -> Option<Interval> {
        Some(Interval {
            start: self.cells.of_engine("queue_time_start", row)?,
            end: self.cells.of_engine("queue_time_end", row)?,
        })
    }

    fn running(&self, row: usize) -> Option<Interval> {
        Some(Interval {
            start: self.cells.of_engine("queue_time_end", row)?,
            end: self
                .cells
                .of_engine("server_finish_time", row)
                .or_else(|| self.cells.whole("finish_time", row))?,
        })
    }

    /// Most tokens in one second, counted from the first send as bench_serving does. It knows when each token
    /// came; here a row's tokens are spread evenly from its first to its last.
    fn peak_output_tokens(&self) -> Option<f64> {
        let ok = || self.all.iter().filter(|of| of.is_ok && of.is_inside);
        let start = ok().filter_map(|of| self.cells.begun(of.row)).min()?;
        let mut all: Vec<f64> = Vec::new();
        for (from, to, tokens) in ok()
            .flat_map(Request::rows)
            .filter_map(|row| self.tokens(row))
        {
            let [from, to] = [from, to].map(|at| seconds(at - start).max(0.0));
            if from <= to && to < LONGEST {
                spread_tokens(&mut all, from, to, tokens as f64);
            }
        }
        all.into_iter().reduce(f64::max)
    }

    /// When a row's tokens came: its first, its last, and how many there were.
    fn tokens(&self, row: usize) -> Option<(i64, i64, i64)> {
        let first = self.cells.whole("first_token_time", row)?;
        let tokens = self.cells.whole("actual_output_tokens", row)?;
        // Rows of before there was a column for it tell it by their mean.
        let last = self.cells.whole("last_token_time", row).or_else(|| {
            let tpot = self.cells.whole("tpot", row).unwrap_or(0);
            Some(first.saturating_add(tpot.saturating_mul(tokens - 1)))
        });
        Some((first, last?, tokens))
    }
}

/// A run of more seconds than this (four months) has no peak.
const LONGEST: f64 = 1e7;

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::load::Summary;
    use crate::report::load::tests::{AFTER_SENDING, run, table};
    use crate::report::sample::Sample;
    use crate::report::window::Window;

    #[test]
    fn who_was_gone_before_the_window_is_not_unknown_in_it() {
        let silent = |start| Sample::starting(start).without(&AFTER_SENDING).record();
        let window = Window {
            from_s: 1.0,
            to_s: 2.0,
            left_out_first: 2,
            ..Window::default()
        };
        // The first is over at 500 ms, the second at 1300.
        let table = table(&[silent(0), silent(800), Sample::starting(1200).record()]);
        let summary = Summary::of_table(&table, &run(), Some(window));
        let over_time = summary.all.flow.over_time.unwrap();
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
