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
use crate::stats::waits::{ByCause, Cause, Known, Stay, Waits};

use super::prometheus::Metrics;

/// The requests that ended lately, by worker and data-parallel rank.
#[derive(Debug, Default)]
pub struct WaitLog(Mutex<BTreeMap<(String, Option<u64>), Ended>>);

/// Those of a worker, in the order of their ends.
#[derive(Debug, Default)]
struct Ended {
    /// With when they ended, by this process's clock.
    all: VecDeque<(Stamp, Stay)>,
    /// The waits of so many of the first are counted.
    counted: usize,
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
            for (cause, nanos) in waits
                .iter()
                .filter_map(|wait| Some((wait.cause?, wait.nanos)))
            {
                let by = row.more.prefilled_by.as_ref();
                let by = by.map(|by| &by.worker).or(row.prefill_host.as_ref());
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
            let mut all = self.0.lock();
            let workers = all.len();
            let ended = all.entry((worker.to_owned(), row.dp_rank));
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
            ended.or_default().all.push_back((at, stay));
        }
    }

    /// Counts the waits that can be judged by now.
    pub fn count(&self, now: Stamp, metrics: &Metrics) {
        let due = |(key, of): (&(String, Option<u64>), &mut Ended)| {
            let (stays, due) = of.due(now)?;
            Some((key.0.clone(), stays, due))
        };
        let mut all = self.0.lock();
        let judged: Vec<(String, Vec<Stay>, Range<usize>)> =
            all.iter_mut().filter_map(due).collect();
        all.retain(|_, of| of.all.back().is_some_and(|last| age(last, now) < FORGOTTEN));
        drop(all);
        for (worker, stays, due) in judged {
            let waits = Waits::of(&stays, &Known::default());
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

impl Ended {
    /// All, and those whose turn it is: so long after their end as the longest of all ran.
    fn due(&mut self, now: Stamp) -> Option<(Vec<Stay>, Range<usize>)> {
        let ran = self.all.iter().map(|(_, stay)| stay.ended - stay.started);
        let longest = ran.max().unwrap_or(0).clamp(NANOS, JUDGED);
        let due = self.all.partition_point(|of| age(of, now) >= longest);
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
fn age((at, _): &(Stamp, Stay), now: Stamp) -> i64 {
    now.nanos_since(*at)
}

#[cfg(test)]
mod tests;
