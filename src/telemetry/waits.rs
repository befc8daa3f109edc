//! Counts what requests waited for at each worker. The cause of a wait is known only when the requests that ran meanwhile have
//! ended, since only then it is known which of them had the slots.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use parking_lot::Mutex;

use crate::clock::{NANOS, Stamp};
use crate::request::{Row, Wait, without_impossible};
use crate::stats::Interval;
use crate::stats::waits::{ByCause, Cause, ServerFacts, Stay, Waits};

use super::prometheus::Metrics;

/// The waits of the requests that ended recently.
#[derive(Debug, Default)]
pub struct WaitLog(Mutex<Log>);

/// The name of a worker, and a data-parallel rank.
type Worker = (String, Option<u64>);

#[derive(Debug, Default)]
struct Log {
    /// Stays with times reported by the server.
    timed: BTreeMap<Worker, WorkerStays>,
    /// When requests without such times were at a worker, on this process's clock.
    untimed: BTreeMap<String, Vec<Interval>>,
    /// The longest time from a request's end to its record, nanoseconds: rows may wait for spans and logs of servers.
    late: i64,
}

/// The stays at a worker, in the order in which they were recorded.
#[derive(Debug, Default)]
struct WorkerStays {
    /// Each with the time when it was recorded, on this process's clock.
    stays: VecDeque<(Stamp, Stay)>,
    /// The number of stays at the front of the queue whose waits are counted already. Later waits may be due to them.
    counted: usize,
    /// From this process's clock to that of the stays, nanoseconds; `None` if they cannot be related.
    shift: Option<i64>,
}

/// Why a sequence waited in a server's queue.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Judged {
    /// The cause of most of its wait.
    pub cause: Cause,
    /// The most requests that the server ran at once then.
    pub slots: Option<u32>,
    /// The one that held it up longest.
    pub holder: Option<Stay>,
}

/// The maximum number of workers that are distinguished.
const MAX_WORKERS: usize = 256;
/// The maximum number of a worker's stays that are not counted yet.
const MAX_PENDING: usize = 20_000;
/// The maximum number of a worker's counted stays that are kept.
const MAX_COUNTED: usize = 2_000;
/// The maximum delay until a wait is counted, nanoseconds.
pub const MAX_JUDGE_DELAY_NANOS: i64 = 60 * NANOS;
/// How long a worker's stays are kept after the last one.
const MAX_AGE_NANOS: i64 = 600 * NANOS;

impl WaitLog {
    /// Adds all rows, without impossible values, of a request that ended at `ended`, at the time `now`, on this process's clock.
    pub fn record(&self, rows: &[Row], ended: Stamp, now: Stamp, metrics: &Metrics) {
        for row in rows {
            let worker = row.worker_or_host().unwrap_or_default();
            if row.is_first_of_request() {
                for (cause, nanos) in Wait::before_server(row).all() {
                    metrics.add_wait(worker, cause, nanos);
                }
            }
            // Waits with a known cause are counted at once, the one in the server queue when others have ended.
            let waits = Wait::all(row);
            let mut log = self.0.lock();
            log.late = log.late.max(now.nanos_since(ended));
            if let Some(untimed) = Wait::untimed(&waits, row) {
                log.add_untimed(worker, untimed, ended);
            }
            let prefill = row.internal.prefill_worker.as_ref();
            let prefill = prefill.or(row.prefill_host.as_ref());
            for wait in waits {
                let Some(cause) = wait.cause else {
                    log.add_timed((worker.to_owned(), row.dp_rank), wait, now, metrics);
                    continue;
                };
                let by = match (cause, prefill) {
                    (Cause::PrefillQueue, Some(prefill)) => prefill,
                    _ => worker,
                };
                metrics.add_wait(by, cause, wait.nanos);
            }
        }
    }

    /// Judges the wait of a sequence by all that were at its worker; `None` if they are not known, or if it did not wait. While requests
    /// may still run that ran then, nothing is concluded from their absence.
    pub fn judge(&self, row: &Row) -> Option<Judged> {
        let (worker, stay) = wait(row)?;
        let (stays, at, known) = {
            let log = self.0.lock();
            let of = log.timed.get(&(worker.to_owned(), row.dp_rank))?;
            let at = of.stays.iter().rposition(|(_, other)| *other == stay)?;
            let mut known = of.facts(worker, &log.untimed);
            known.is_incomplete = at >= of.counted;
            (of.all(), at, known)
        };
        let waits = Waits::of(&stays, &known);
        let cause = waits.causes(&stay).main()?;
        let holders = waits.holders(at, cause.has_holders().into());
        Some(Judged {
            cause,
            slots: waits.limits.slots,
            holder: holders.first().map(|of| stays[of.0]),
        })
    }

    /// Counts the waits whose causes are known by `now`.
    pub fn count(&self, now: Stamp, metrics: &Metrics) {
        let mut log = self.0.lock();
        let Log {
            timed,
            untimed,
            late,
        } = &mut *log;
        let due = |((worker, _), of): (&Worker, &mut WorkerStays)| {
            let (stays, due) = of.due(now, *late)?;
            Some((worker.clone(), stays, due, of.facts(worker, untimed)))
        };
        let due: Vec<_> = timed.iter_mut().filter_map(due).collect();
        // One row that was late long ago delays no more.
        *late -= *late / 64;
        let is_young = |at: Stamp| now.nanos_since(at) < MAX_AGE_NANOS;
        timed.retain(|_, of| of.stays.back().is_some_and(|last| is_young(last.0)));
        untimed.retain(|_, all| {
            all.retain(|at| is_young(Stamp::from_nanos(at.end)));
            !all.is_empty()
        });
        drop(log);
        for (worker, stays, due, known) in due {
            let waits = Waits::of(&stays, &known);
            let mut causes = ByCause::default();
            for stay in stays.get(due).unwrap_or_default() {
                causes.add_all(&waits.causes(stay));
            }
            for (cause, nanos) in causes.all() {
                metrics.add_wait(&worker, cause, nanos);
            }
        }
    }
}

/// The name of the worker at which a row's sequence was, and its wait in the queue there.
fn wait(row: &Row) -> Option<(&str, Stay)> {
    let sound = without_impossible(std::slice::from_ref(row));
    let wait = Wait::in_server_queue(sound.first()?)?;
    Some((row.worker_or_host()?, wait.stay?))
}

impl Log {
    /// Adds a wait in the queue of a worker, at the time `now`.
    fn add_timed(&mut self, of: Worker, wait: Wait, now: Stamp, metrics: &Metrics) {
        let worker = of.0.as_str();
        let is_known = self.timed.contains_key(&of);
        let has_room = !worker.is_empty() && (is_known || self.timed.len() < MAX_WORKERS);
        let Some(stay) = wait.stay.filter(|_| has_room) else {
            return metrics.add_wait(worker, Cause::Unknown, wait.nanos);
        };
        if !is_known {
            // Without a series at 0, Prometheus would not see the first count as an increase.
            let all = Cause::ALL.into_iter().take(Cause::AT_ONE_SERVER);
            all.for_each(|cause| metrics.add_wait(worker, cause, 0));
        }
        let of_worker = self.timed.entry(of).or_default();
        of_worker.shift = wait.shift.or(of_worker.shift);
        of_worker.stays.push_back((now, stay));
    }

    /// Adds a request at a worker that reported no times of it. The request ended at `at`.
    fn add_untimed(&mut self, worker: &str, mut untimed: Interval, at: Stamp) {
        // Limits background work of the server, whose end is unknown.
        untimed.end = untimed.end.min(at.nanos() + MAX_AGE_NANOS);
        if untimed.start >= untimed.end {
            return;
        }
        let has_room = self.untimed.contains_key(worker) || self.untimed.len() < MAX_WORKERS;
        let worker = if has_room { worker } else { "" };
        let all = self.untimed.entry(worker.to_owned()).or_default();
        all.push(untimed);
        if all.len() > MAX_COUNTED {
            *all = Interval::union(std::mem::take(all));
            // Joins the first ones, as if a request had been there in between.
            let excess = all.len().saturating_sub(MAX_COUNTED / 2);
            all[excess].start = all[0].start;
            all.drain(..excess);
        }
    }
}

impl WorkerStays {
    /// What is known of the worker besides.
    fn facts(&self, worker: &str, untimed: &BTreeMap<String, Vec<Interval>>) -> ServerFacts {
        // Requests at an unknown worker may have been here.
        let here = [worker, ""].into_iter().filter_map(|at| untimed.get(at));
        let on_its_clock = |at: &Interval| {
            let shift = self.shift;
            shift.map_or(Interval::ALWAYS, |shift| at.shifted(shift))
        };
        let here = here.flatten().map(on_its_clock);
        ServerFacts {
            untimed: Interval::union(here.collect()),
            ..ServerFacts::default()
        }
    }

    fn all(&self) -> Vec<Stay> {
        self.stays.iter().map(|(_, stay)| *stay).collect()
    }

    /// Returns all stays and the range of those to be counted now: after their record, the longest run time of all has passed, so
    /// that all that ran meanwhile have ended, and the longest time `late` until those are recorded.
    fn due(&mut self, now: Stamp, late: i64) -> Option<(Vec<Stay>, Range<usize>)> {
        let ran = self.stays.iter().map(|(_, stay)| stay.ended - stay.started);
        let longest = ran.max().unwrap_or(0).saturating_add(late);
        let longest = longest.clamp(NANOS, MAX_JUDGE_DELAY_NANOS);
        let due = self
            .stays
            .partition_point(|of| now.nanos_since(of.0) >= longest);
        let due = due.max(self.stays.len().saturating_sub(MAX_PENDING));
        let new = self.counted..due;
        if new.is_empty() {
            return None;
        }
        let old = self.counted.saturating_sub(MAX_COUNTED);
        self.stays.drain(..old);
        self.counted = due - old;
        Some((self.all(), new.start - old..new.end - old))
    }
}

impl Judged {
    /// Whether this row's sequence is the one that held the other up longest.
    pub fn is_holder(&self, row: &Row) -> bool {
        self.holder.is_some() && wait(row).map(|(_, stay)| stay) == self.holder
    }
}

#[cfg(test)]
mod tests;
