//! The only module that reads the time.
//!
//! Every process is a clock (docs/dev/ARCHITECTURE.md, "The way of a stamp"). Ours is `CLOCK_MONOTONIC`, anchored to the wall clock once,
//! at the first use, so that a step of the wall clock has no effect.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use nix::time::{ClockId, ClockNanosleepFlags, clock_gettime, clock_nanosleep};
use serde::{Deserialize, Serialize};

/// Nanoseconds in a second.
pub const NANOS: i64 = 1_000_000_000;

/// Converts nanoseconds to seconds.
pub fn seconds(nanos: i64) -> f64 {
    nanos as f64 / NANOS as f64
}

/// A timestamp of one clock, in nanoseconds since the Unix epoch by that clock.
///
/// Timestamps of two clocks compare only through an offset ([`crate::offset`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, Serialize)]
#[serde(try_from = "i64")]
pub struct Stamp(i64);

/// Checks a timestamp of another process: one before 1970 or after 2116 is of no clock, and differences to it might overflow.
impl TryFrom<i64> for Stamp {
    type Error = &'static str;

    fn try_from(nanos: i64) -> Result<Stamp, &'static str> {
        let is_stamp = (0..1 << 62).contains(&nanos);
        is_stamp.then(|| Stamp::from_nanos(nanos)).ok_or("no stamp")
    }
}

/// What is before 1970 is 1970.
impl From<Stamp> for SystemTime {
    fn from(at: Stamp) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_nanos(at.nanos().max(0).unsigned_abs())
    }
}

impl Stamp {
    /// The Unix epoch.
    pub const EPOCH: Stamp = Stamp(0);
    /// Later than any other.
    pub const MAX: Stamp = Stamp(i64::MAX);

    /// From nanoseconds since the Unix epoch.
    pub const fn from_nanos(nanos: i64) -> Stamp {
        Stamp(nanos)
    }

    /// From seconds since the Unix epoch, rounded to the nanosecond. `None` unless the value is
    /// finite and within ± 200 years.
    pub fn from_seconds(seconds: f64) -> Option<Stamp> {
        // In two parts: as one number of nanoseconds it would be rounded to 256 of them.
        let (whole, part) = (seconds.floor(), seconds - seconds.floor());
        let part = (part * NANOS as f64).round() as i64;
        (seconds.abs() < 6.0e9).then(|| Stamp::from_nanos(whole as i64 * NANOS + part))
    }

    /// Nanoseconds since the Unix epoch.
    pub const fn nanos(self) -> i64 {
        self.0
    }

    /// Seconds since the Unix epoch, the nearest float: of today the next is 0.24 µs away.
    pub fn seconds(self) -> f64 {
        // Nanoseconds of 104 days and more are not all floats, and would be rounded before the division too.
        match self.0.unsigned_abs() >> f64::MANTISSA_DIGITS {
            0 => seconds(self.0),
            _ => self.0.div_euclid(NANOS) as f64 + seconds(self.0.rem_euclid(NANOS)),
        }
    }

    /// Date and time in UTC.
    pub fn utc(self) -> Timestamp {
        // Every `Stamp` is within the range of `Timestamp`.
        Timestamp::from_nanosecond(i128::from(self.nanos())).unwrap_or_default()
    }

    /// Date and time in UTC as `20261120T144800Z`.
    pub fn compact_utc(self) -> String {
        self.utc().strftime("%Y%m%dT%H%M%SZ").to_string()
    }

    /// Nanoseconds from `earlier` to here, saturating; negative when `earlier` is later.
    pub const fn nanos_since(self, earlier: Stamp) -> i64 {
        self.0.saturating_sub(earlier.0)
    }

    /// Seconds from `earlier` to here; negative when `earlier` is later.
    pub fn since(self, earlier: Stamp) -> f64 {
        seconds(self.nanos_since(earlier))
    }

    /// Adds nanoseconds (either sign), saturating.
    pub const fn plus_nanos(self, nanos: i64) -> Stamp {
        Stamp(self.0.saturating_add(nanos))
    }

    /// Adds seconds (either sign), saturating.
    pub fn plus_seconds(self, seconds: f64) -> Stamp {
        self.plus_nanos((seconds * NANOS as f64).round() as i64)
    }
}

/// A source of timestamps: the machine's, or a test's.
#[derive(Clone, Debug)]
pub enum Clock {
    /// The machine's monotonic clock, `CLOCK_MONOTONIC`, and what to add to it: the distance to the wall clock at the anchor,
    /// nanoseconds.
    System(i64),
    /// A clock that stands still until [`ManualClock`] moves it.
    Manual(Arc<AtomicI64>),
}

/// Sets the [`Clock`] that it was created with.
#[derive(Clone, Debug)]
pub struct ManualClock(Arc<AtomicI64>);

impl Clock {
    /// The machine's clock. All system clocks of a process share one anchor, so their timestamps compare.
    pub fn system() -> Clock {
        static ANCHOR: std::sync::OnceLock<i64> = std::sync::OnceLock::new();
        Clock::System(*ANCHOR.get_or_init(anchor))
    }

    /// A clock set to `start`, and its control.
    pub fn manual(start: Stamp) -> (Clock, ManualClock) {
        let now = Arc::new(AtomicI64::new(start.nanos()));
        (Clock::Manual(now.clone()), ManualClock(now))
    }

    /// The same clock, ahead by so many nanoseconds. A manual one stays as it is.
    pub fn ahead_by(mut self, nanos: i64) -> Clock {
        if let Clock::System(epoch_minus_monotonic) = &mut self {
            *epoch_minus_monotonic += nanos;
        }
        self
    }

    /// A name that no other process's clock has: timestamps of clocks with the same name compare directly.
    pub fn name(&self) -> String {
        match self {
            Clock::System(anchor) => format!("{:x}-{anchor:x}", std::process::id()),
            Clock::Manual(now) => format!("manual-{:x}", Arc::as_ptr(now) as usize),
        }
    }

    /// The current time.
    pub fn now(&self) -> Stamp {
        match self {
            Clock::System(anchor) => {
                Stamp::from_nanos(read_clock(ClockId::CLOCK_MONOTONIC) + anchor)
            }
            Clock::Manual(now) => Stamp::from_nanos(now.load(Ordering::Acquire)),
        }
    }

    /// Blocks this thread until a time, on an absolute kernel timer (`clock_nanosleep` with `TIMER_ABSTIME`), so that oversleeping does not
    /// add up. Returns at once on a manual clock.
    pub fn sleep_until(&self, until: Stamp) {
        let Clock::System(anchor) = self else { return };
        let monotonic = (until.nanos() - anchor).max(0);
        let target = Duration::from_nanos(monotonic.unsigned_abs()).into();
        let flags = ClockNanosleepFlags::TIMER_ABSTIME;
        while clock_nanosleep(ClockId::CLOCK_MONOTONIC, flags, &target) == Err(nix::Error::EINTR) {}
    }

    /// Waits until a time, without blocking the thread; may end late, but never early.
    pub async fn wait_until(&self, until: Stamp) {
        while let Ok(nanos @ 1..) = u64::try_from(until.nanos_since(self.now())) {
            tokio::time::sleep(Duration::from_nanos(nanos)).await;
        }
    }
}

impl ManualClock {
    /// Moves the clock to `to`, also backwards.
    pub fn set(&self, to: Stamp) {
        self.0.store(to.nanos(), Ordering::Release);
    }

    /// Moves the clock forward by `by`.
    pub fn advance(&self, by: Duration) {
        let nanos = i64::try_from(by.as_nanos()).unwrap_or(i64::MAX);
        self.0.fetch_add(nanos, Ordering::AcqRel);
    }
}

/// Returns the wall clock minus the monotonic one.
fn anchor() -> i64 {
    // The wall clock is read between two readings of the monotonic clock; the closest pair of a few tries counts.
    let read = || {
        let before = read_clock(ClockId::CLOCK_MONOTONIC);
        let epoch = read_clock(ClockId::CLOCK_REALTIME);
        let after = read_clock(ClockId::CLOCK_MONOTONIC);
        (after - before, epoch - (before + (after - before) / 2))
    };
    (0..5).map(|_| read()).min().unwrap_or_else(read).1
}

fn read_clock(id: ClockId) -> i64 {
    // Both clocks exist on every Linux; if a kernel refuses them, the result is 0 rather than a panic.
    clock_gettime(id).map_or(0, |t| t.tv_sec() * NANOS + t.tv_nsec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_the_nearest_float() {
        // Of the epoch, of a run, and of before it: two parts of small ones would be rounded twice.
        for start in [1_795_168_579, 0, -5] {
            for nanos in (0..2_000).map(|n| start * NANOS + n * 4_999_993) {
                let seconds = Stamp::from_nanos(nanos).seconds();
                assert_eq!(Ok(seconds), format!("{nanos}e-9").parse());
                let again = Stamp::from_seconds(seconds).unwrap();
                assert!((again.nanos() - nanos).abs() <= 120, "{nanos}");
            }
        }
        assert_eq!(Stamp::from_seconds(f64::NAN), None);
        assert_eq!(Stamp::from_seconds(1e300), None);
    }

    #[test]
    fn sleeping_until_a_moment_ends_after_it() {
        let clock = Clock::system();
        let until = clock.now().plus_nanos(2_000_000);
        clock.sleep_until(until);
        assert!(clock.now() >= until);
    }
}
