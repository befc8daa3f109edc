//! Looks at the generator itself while a run goes on: how late its event loop wakes, and what processors it takes.

use std::sync::Arc;
use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use crate::clock::{Clock, NANOS, Stamp};
use crate::stats::Histogram;

use super::dispatch::until;
use super::lag::{delay, later};
use super::live::Live;
use super::verdict::{Cpu, Evidence};

/// A task that sleeps this long, again and again: a hundred wake-ups a second cost nothing that could be measured.
const TICK: Duration = Duration::from_millis(10);
const TICK_NANOS: i64 = 10_000_000;

/// Looks on until it is ended, or dropped.
#[derive(Debug)]
pub(super) struct Watch {
    clock: Clock,
    ticking: JoinHandle<()>,
    seen: Arc<Mutex<Seen>>,
}

/// What it has seen since the run began: that the generator is idle before is no part of it.
#[derive(Debug, Default)]
struct Seen {
    late: Histogram,
    /// The processors when the run began; `None`: it has not.
    began: Option<Reading>,
}

/// Counters of processors at one moment.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Reading {
    at: Stamp,
    /// Processor time of this process, seconds.
    used: Option<f64>,
    /// How long the event loop's threads were at work, seconds, and how many they are.
    busy: (f64, usize),
}

/// What it saw.
#[derive(Clone, Debug, Default)]
pub(super) struct Watched {
    /// How late the event loop was, by time: a tick each 10 ms, also where none could be.
    late: Histogram,
    cpu: Cpu,
}

impl Watch {
    /// Looks on, in the runtime of the caller, from the moment on that the run of `live` begins.
    pub(super) fn start(clock: Clock, live: Arc<Live>) -> Watch {
        let seen = Arc::<Mutex<Seen>>::default();
        let ticking = tokio::spawn(tick(clock.clone(), live, seen.clone()));
        Watch {
            ticking,
            seen,
            clock,
        }
    }

    pub(super) fn end(self) -> Watched {
        let seen = self.seen.lock();
        let cpu = seen.began.as_ref();
        let cpu = cpu.map(|began| Reading::take(self.clock.now()).since(began));
        Watched {
            late: seen.late.clone(),
            cpu: cpu.unwrap_or_default(),
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.ticking.abort();
    }
}

async fn tick(clock: Clock, live: Arc<Live>, seen: Arc<Mutex<Seen>>) {
    // It is told before it comes.
    let began = live.began().await;
    until(&clock, began).await;
    seen.lock().began = Some(Reading::take(clock.now()));
    loop {
        let due = clock.now().plus_nanos(TICK_NANOS);
        tokio::time::sleep(TICK).await;
        record(&mut seen.lock().late, clock.now().nanos_since(due));
    }
}

/// Notes a wake-up. While it was late others were due, of which the last was hardly late: without them a loop that
/// stands still for a second would be one tick of many.
fn record(late: &mut Histogram, mut nanos: i64) {
    late.record(nanos.max(0), 1);
    while nanos > TICK_NANOS {
        nanos -= TICK_NANOS;
        late.record(nanos, 1);
    }
}

impl Reading {
    /// Of this moment, inside a runtime.
    fn take(at: Stamp) -> Reading {
        let runtime = Handle::current().metrics();
        let threads = runtime.num_workers();
        let busy = (0..threads).map(|thread| runtime.worker_total_busy_duration(thread));
        let seconds = |time: TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
        let used = getrusage(UsageWho::RUSAGE_SELF).ok();
        Reading {
            at,
            used: used.map(|used| seconds(used.user_time()) + seconds(used.system_time())),
            busy: (busy.map(|busy| busy.as_secs_f64()).sum(), threads),
        }
    }

    /// What went on since `before`.
    fn since(&self, before: &Reading) -> Cpu {
        let seconds = self.at.since(before.at).max(1.0 / NANOS as f64);
        let used = self.used.zip(before.used);
        let (busy, threads) = self.busy;
        let share = (busy - before.busy.0) / seconds / threads.max(1) as f64;
        let cores = std::thread::available_parallelism().ok();
        Cpu {
            cores_used: used.map(|(now, then)| (now - then) / seconds),
            cores: cores.map(|cores| cores.get() as f64),
            loop_busy: Some(share.clamp(0.0, 1.0)),
        }
    }
}

impl Watched {
    /// Notes it in the evidence of a run.
    pub(super) fn tell(&self, evidence: &mut Evidence) {
        let share = |count: u64| count as f64 / self.late.count().max(1) as f64;
        evidence.event_loop = delay(&self.late);
        [evidence.loop_late, evidence.loop_very_late] =
            later(&self.late, evidence.loop_bounds).map(share);
        evidence.cpu = self.cpu;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::verdict::Grade;
    use crate::traffic::verdict::judge;

    #[test]
    fn a_loop_that_stands_still_is_late_for_as_long() {
        let mut watched = Watched::default();
        // Nine seconds in time, one in which it stood still.
        (0..900).for_each(|_| record(&mut watched.late, 100_000));
        record(&mut watched.late, 990_000_000);
        let mut evidence = Evidence::default();
        watched.tell(&mut evidence);
        // Of a thousand ticks: those more than 10 ms late, and more than 50 ms.
        let near = |share: f64, wanted: f64| (share - wanted).abs() < 0.0025;
        assert!(near(evidence.loop_late, 0.098), "{evidence:?}");
        assert!(near(evidence.loop_very_late, 0.094), "{evidence:?}");
        let delay = evidence.event_loop.unwrap();
        assert_eq!(delay.max, 0.99);
        assert!(delay.p50 < 0.001 && delay.p99 > 0.8, "{delay:?}");
    }

    /// Of a run all of whose requests are due at once and that takes half a minute.
    #[test]
    fn a_long_run_does_not_excuse_a_loop_that_stands_still() {
        let mut watched = Watched::default();
        for _ in 0..40 {
            (0..20).for_each(|_| record(&mut watched.late, 100_000));
            record(&mut watched.late, 590_000_000);
        }
        let mut evidence = Evidence::beside(Some(1.0), Some(30.0));
        watched.tell(&mut evidence);
        let verdict = judge(&evidence);
        assert_eq!(verdict.grade, Grade::Invalid, "{evidence:?}");
        let said = "woke more than 0.10 s late";
        assert!(verdict.reasons[0].contains(said), "{verdict:?}");
    }

    #[test]
    fn shares_are_of_the_time_between_two_readings() {
        let reading = |seconds: i64, used, busy| Reading {
            at: Stamp::from_nanos(seconds * NANOS),
            used: Some(used),
            busy: (busy, 2),
        };
        let cpu = reading(10, 16.0, 17.0).since(&reading(0, 1.0, 1.0));
        assert_eq!((cpu.cores_used, cpu.loop_busy), (Some(1.5), Some(0.8)));
    }

    #[tokio::test]
    async fn it_ticks_while_it_looks_on() {
        let (clock, live) = (Clock::system(), Arc::<Live>::default());
        let watch = Watch::start(clock.clone(), live.clone());
        let seen = watch.seen.clone();
        let started = clock.now().plus_nanos(5 * TICK_NANOS);
        live.began.set(started).unwrap();
        while seen.lock().late.count() < 3 {
            tokio::task::yield_now().await;
            let is_early = clock.now() < started;
            let has_begun = is_early && seen.lock().began.is_some();
            assert!(!has_begun, "what is before the run is no part of it");
        }
        let mut evidence = Evidence::default();
        watch.end().tell(&mut evidence);
        assert!(evidence.event_loop.is_some() && evidence.cpu.cores_used > Some(0.0));
    }
}
