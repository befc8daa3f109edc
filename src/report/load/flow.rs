//! Rates, and how many requests were in flight, queued and running over time.

use crate::clock::NANOS;
use crate::request::columns::ColumnId;
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
    /// Sequences in the server queue; `None` where no engine's moments are on our clock.
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

impl Flow {
    /// Of requests in the order of arrival. Those outside of the time that the figures are of are counted while they are
    /// there, and are in no other figure.
    pub(super) fn of(cells: Cells<'_>, all: &[Request], run: &RunFacts) -> Flow {
        let inside = || all.iter().filter(|request| request.is_inside);
        let scheduled =
            || inside().filter_map(|of| cells.whole(ColumnId::scheduled_time, of.row()));
        Flow {
            is_scheduled: scheduled().next().is_some(),
            schedule_rate: rate(scheduled()),
            achieved_rate: rate(inside().filter_map(|of| cells.begun(of.row()))),
            peak_output_tokens: peak_output_tokens(cells, inside().filter(|of| of.is_ok)),
            over_time: OverTime::of(cells, all, run),
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

impl OverTime {
    fn of(cells: Cells<'_>, all: &[Request], run: &RunFacts) -> Option<OverTime> {
        let [start, end] = [run.started, run.ended].map(|at| at.nanos());
        let window = Span::new(Interval { start, end })?;
        let (mut in_flight, mut unknown) = (Vec::new(), Vec::new());
        // Queued, and running: when, and how many requests were sent of which that is not known.
        let mut in_server = [(Vec::new(), 0), (Vec::new(), 0)];
        for request in all {
            let mut is_known = [true; 2];
            for row in request.rows() {
                let of_row = [queued(cells, row), running(cells, row)];
                for (((all, _), is_known), of_row) in
                    in_server.iter_mut().zip(&mut is_known).zip(of_row)
                {
                    *is_known &= of_row.is_some();
                    all.extend(of_row);
                }
            }
            let Some(sent) = cells.begun(request.row()) else {
                continue;
            };
            // Up to its end, whoever ended it.
            let ends = request
                .rows()
                .filter_map(|row| cells.whole(ColumnId::end_time, row));
            let whole = ends.max().map(|end| Interval { start: sent, end });
            in_flight.extend(whole);
            let whole = whole.unwrap_or(Interval {
                start: sent,
                end: sent,
            });
            // What was over before the window began, or came after it, is missing in no figure.
            let is_here = whole.start <= end && whole.end >= start;
            if is_here && is_known != [true; 2] {
                unknown.push(whole);
                for ((_, count), is_known) in in_server.iter_mut().zip(is_known) {
                    *count += u64::from(!is_known);
                }
            }
        }
        let of = |intervals: Vec<Interval>| Concurrency::of(intervals, &window);
        let [queued, running] = in_server.map(|(known, unknown)| {
            (!known.is_empty()).then(|| InServer {
                known: of(known),
                unknown,
            })
        });
        let count = unknown.len() as u64;
        Some(OverTime {
            bucket_s: window.bucket as f64 / NANOS as f64,
            in_flight: of(in_flight),
            queued,
            running,
            unknown: (of(unknown), count),
        })
    }
}

fn queued(cells: Cells<'_>, row: usize) -> Option<Interval> {
    Some(Interval {
        start: cells.of_engine(ColumnId::queue_time_start, row)?,
        end: started(cells, row)?,
    })
}

/// When it left its queue; of a pair that for a slot of decode's batch.
fn started(cells: Cells<'_>, row: usize) -> Option<i64> {
    let of_pair = || cells.of_engine(ColumnId::decode_start_time, row);
    let of_one = cells.of_engine(ColumnId::queue_time_end, row);
    of_one.or_else(of_pair)
}

fn running(cells: Cells<'_>, row: usize) -> Option<Interval> {
    Some(Interval {
        start: started(cells, row)?,
        end: cells
            .of_engine(ColumnId::server_finish_time, row)
            .or_else(|| cells.whole(ColumnId::finish_time, row))?,
    })
}

/// Most tokens in one second, counted from the first send as bench_serving does. It knows when each token
/// came; here a row's tokens are spread evenly from its first to its last.
fn peak_output_tokens<'r>(
    cells: Cells<'_>,
    ok: impl Iterator<Item = &'r Request> + Clone,
) -> Option<f64> {
    let start = ok.clone().filter_map(|of| cells.begun(of.row())).min()?;
    let mut all: Vec<f64> = Vec::new();
    let tokens = ok
        .flat_map(Request::rows)
        .filter_map(|row| tokens(cells, row));
    for (from, to, tokens) in tokens {
        let [from, to] = [from, to].map(|at| seconds(at - start).max(0.0));
        if from <= to && to < LONGEST {
            spread_tokens(&mut all, from, to, tokens as f64);
        }
    }
    all.into_iter().reduce(f64::max)
}

/// When a row's tokens came: its first, its last, and how many there were.
fn tokens(cells: Cells<'_>, row: usize) -> Option<(i64, i64, i64)> {
    let first = cells.whole(ColumnId::first_token_time, row)?;
    let tokens = cells.whole(ColumnId::actual_output_tokens, row)?;
    // Rows of before there was a column for it tell it by their mean.
    let last = cells.whole(ColumnId::last_token_time, row).or_else(|| {
        let tpot = cells.whole(ColumnId::tpot, row).unwrap_or(0);
        Some(first.saturating_add(tpot.saturating_mul(tokens - 1)))
    });
    Some((first, last?, tokens))
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
    use crate::table::window::Window;

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
