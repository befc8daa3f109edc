//! What requests waited for at each worker, as a metric. A wait is judged once those that ran meanwhile have ended, as far as
//! can be told: only then it is known who had the slots.

use std::collections::VecDeque;
use std::collections::btree_map::{BTreeMap, Entry};
use std::ops::Range;

use parking_lot::Mutex;

use crate::clock::{NANOS, Stamp};
use crate::request::columns::COLUMNS;
use crate::request::row::Row;
use crate::request::wait::Wait;
use crate::stats::Interval;
use crate::stats::waits::{ByCause, Cause, Known, Stay, Waits};

use super::prometheus::Metrics;

/// The requests that ended lately.
#[derive(Debug, Default)]
pub struct WaitLog(Mutex<Log>);

#[derive(Debug, Default)]
struct Log {
    /// Those whose servers told when they waited and ran, by worker and data-parallel rank.
    timed: BTreeMap<(String, Option<u64>), Ended>,
    /// When others were there, by worker and this process's clock.
    untimed: BTreeMap<String, Vec<Interval>>,
}

/// Those of a worker, in the order of their ends.
#[derive(Debug, Default)]
struct Ended {
    /// With when they ended, by this process's clock.
    all: VecDeque<(Stamp, Stay)>,
    /// The waits of so many of the first are counted.
    counted: usize,
    /// From this process's clock to that of the stays, nanoseconds; `None` where they cannot be compared.
    shift: Option<i64>,
}

/// Workers that are told apart.
const WORKERS: usize = 256;
/// Requests of a worker that wait to be judged, at most; and those that stay for the others' sake.
const MOST: usize = 20_000;
const KEPT: usize = 2_000;
/// After so long at most a wait is judged, and what a worker had is forgotten; nanoseconds.
pub const JUDGED: i64 = 60 * NANOS;
const FORGOTTEN: i64 = 600 * NANOS;

impl WaitLog {
    /// A request has ended, at `at` by this process's clock: all its rows.
    pub fn record(&self, rows: &[Row], at: Stamp, metrics: &Metrics) {
        for row in rows {
            let cell = |column| (COLUMNS[column as usize].get)(row);
            let worker = row.worker.as_ref().or(row.host.as_ref());
            let worker = worker.map_or("", String::as_str);
            if row.is_first_of_request() {
                let on_the_way = Wait::on_the_way(&cell);
                on_the_way
                    .all()
                    .for_each(|(cause, nanos)| metrics.waited(worker, cause, nanos));
            }
            let mut waits = Wait::all(&cell);
            if let Some(untimed) = Wait::untimed(&waits, &cell) {
                self.0.lock().add_untimed(worker, untimed, at);
            }
            for (cause, nanos) in waits
                .iter()
                .filter_map(|wait| Some((wait.cause?, wait.nanos)))
            {
                let by = row.more.prefill_worker.as_ref();
                let by = by.or(row.prefill_host.as_ref());
                let at = match cause {
                    Cause::PrefillQueue => by.map_or(worker, String::as_str),
                    _ => worker,
                };
                metrics.waited(at, cause, nanos);
            }
            waits.retain(|wait| wait.cause.is_none());
            let Some(wait) = waits.pop() else {
                continue;
            };
            let timed = &mut self.0.lock().timed;
            let workers = timed.len();
            let ended = timed.entry((worker.to_owned(), row.dp_rank));
            let is_new = matches!(ended, Entry::Vacant(_));
            let has_room = !worker.is_empty() && (!is_new || workers < WORKERS);
            let Some(stay) = wait.stay.filter(|_| has_room) else {
                metrics.waited(worker, Cause::Unknown, wait.nanos);
                continue;
            };
            if is_new {
                // What has not happened is 0, so that its first time is seen as an increase.
                let all = Cause::ALL.into_iter().take(Cause::AT_ONE_SERVER);
                all.for_each(|cause| metrics.waited(worker, cause, 0));
            }
            let ended = ended.or_default();
            ended.shift = wait.shift.or(ended.shift);
            ended.all.push_back((at, stay));
        }
    }

    /// Counts the waits that can be judged by now.
    pub fn count(&self, now: Stamp, metrics: &Metrics) {
        let mut log = self.0.lock();
        let Log { timed, untimed } = &mut *log;
        let due = |((worker, _), of): (&(String, Option<u64>), &mut Ended)| {
            let (stays, due) = of.due(now)?;
            // Where that is not known, one may have been here.
            let here = [worker, ""].into_iter().filter_map(|at| untimed.get(at));
            let on_its_clock =
                |at: &Interval| of.shift.map_or(Interval::ALWAYS, |shift| at.shifted(shift));
            let here = here.flatten().map(on_its_clock);
            let known = Known {
                untimed: Interval::union(here.collect()),
                ..Known::default()
            };
            Some((worker.clone(), stays, due, known))
        };
        let judged: Vec<(String, Vec<Stay>, Range<usize>, Known)> =
            timed.iter_mut().filter_map(due).collect();
        timed.retain(|_, of| {
            of.all
                .back()
                .is_some_and(|last| age(last.0, now) < FORGOTTEN)
        });
        untimed.retain(|_, all| {
            all.retain(|at| age(Stamp::from_nanos(at.end), now) < FORGOTTEN);
            !all.is_empty()
        });
        drop(log);
        for (worker, stays, due, known) in judged {
            let waits = Waits::of(&stays, &known);
            let mut causes = ByCause::default();
            for stay in stays.get(due).unwrap_or_default() {
                causes.add_all(&waits.causes(stay));
            }
            for (cause, nanos) in causes.all() {
                metrics.waited(&worker, cause, nanos);
            }
        }
    }
}

impl Log {
    /// One was at a worker that told nothing of it, and ended at `at`.
    fn add_untimed(&mut self, worker: &str, mut untimed: Interval, at: Stamp) {
        let has_room = self.untimed.contains_key(worker) || self.untimed.len() < WORKERS;
        let worker = if has_room { worker } else { "" };
        let all = self.untimed.entry(worker.to_owned()).or_default();
        // What a server does in the background is forgotten with the rest.
        untimed.end = untimed.end.min(at.nanos() + FORGOTTEN);
        while let Some(last) = all.pop_if(|last| last.end >= untimed.start) {
            untimed.start = untimed.start.min(last.start);
            untimed.end = untimed.end.max(last.end);
        }
        all.push(untimed);
        if all.len() > KEPT {
            // The time between the first two is as if one had been there.
            let first = all.remove(0);
            all[0].start = first.start;
        }
    }
}

impl Ended {
    /// All, and those whose turn it is: so long after their end as the longest of all ran.
    fn due(&mut self, now: Stamp) -> Option<(Vec<Stay>, Range<usize>)> {
        let ran = self.all.iter().map(|(_, stay)| stay.ended - stay.started);
        let longest = ran.max().unwrap_or(0).clamp(NANOS, JUDGED);
        let due = self.all.partition_point(|of| age(of.0, now) >= longest);
        let due = due.max(self.all.len().saturating_sub(MOST));
        let new = self.counted..due;
        if new.is_empty() {
            return None;
        }
        let old = self.counted.saturating_sub(KEPT);
        self.all.drain(..old);
        self.counted = due - old;
        let stays = self.all.iter().map(|(_, stay)| *stay).collect();
        Some((stays, new.start - old..new.end - old))
    }
}

/// How long ago one ended, nanoseconds.
fn age(at: Stamp, now: Stamp) -> i64 {
    now.nanos_since(at)
}

#[cfg(test)]
mod tests;
