//! The only module that reads the time.
//!
//! Every process is a clock (docs/dev/ARCHITECTURE.md, "The way of a stamp"). Ours is `CLOCK_MONOTONIC`, anchored to the wall clock once,
//! at the first use, so that a step of the wall clock has no effect.

use std::fmt;
use std::num::NonZeroU64;
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
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, Serialize)]
#[serde(into = "i64", try_from = "i64")]
pub struct Stamp(
    /// With the sign bit flipped: this keeps the order, and leaves 0 for the `None` of an `Option`.
    NonZeroU64,
);

const SIGN: u64 = 1 << 63;

impl fmt::Debug for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Stamp").field(&self.nanos()).finish()
    }
}

impl From<Stamp> for i64 {
    fn from(at: Stamp) -> i64 {
        at.nanos()
    }
}

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
    /// Later than any other.
    pub const MAX: Stamp = Stamp::from_nanos(i64::MAX);

    /// From nanoseconds since the Unix epoch; `i64::MIN` becomes `i64::MIN + 1`.
    pub const fn from_nanos(nanos: i64) -> Stamp {
        match NonZeroU64::new(nanos as u64 ^ SIGN) {
            Some(number) => Stamp(number),
            None => Stamp(NonZeroU64::MIN),
        }
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
        (self.0.get() ^ SIGN) as i64
    }

    /// Seconds since the Unix epoch, at the resolution of a float this large: about 0.24 µs.
    pub fn seconds(self) -> f64 {
        seconds(self.nanos())
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
        self.nanos().saturating_sub(earlier.nanos())
    }

    /// Seconds from `earlier` to here; negative when `earlier` is later.
    pub fn since(self, earlier: Stamp) -> f64 {
        seconds(self.nanos_since(earlier))
    }

    /// Adds nanoseconds (either sign), saturating.
    pub const fn plus_nanos(self, nanos: i64) -> Stamp {
        Stamp::from_nanos(self.nanos().saturating_add(nanos))
    }

    /// Adds seconds (either sign), saturating.
    pub fn plus_seconds(self, seconds: f64) -> Stamp {
        self.plus_nanos((seconds * NANOS as f64).round() as i64)
    }
}

/// A source of timestamps: the machine's, or a test's.
#[derive(Clone, Debug)]
pub enum Clock {
    /// The machine's monotonic clock.
    System(SystemClock),
    /// A clock that stands still until [`ManualClock`] moves it.
    Manual(Arc<AtomicI64>),
}

/// `CLOCK_MONOTONIC` plus the distance to the wall clock at the anchor.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    epoch_minus_monotonic: i64,
}

/// Sets the [`Clock`] that it was created with.
#[derive(Clone, Debug)]
pub struct ManualClock(Arc<AtomicI64>);

impl Clock {
    /// The machine's clock. All system clocks of a process share one anchor, so their timestamps compare.
    pub fn system() -> Clock {
        static ANCHOR: std::sync::OnceLock<SystemClock> = std::sync::OnceLock::new();
        Clock::System(*ANCHOR.get_or_init(SystemClock::anchor))
    }

    /// A clock set to `start`, and its control.
    pub fn manual(start: Stamp) -> (Clock, ManualClock) {
        let now = Arc::new(AtomicI64::new(start.nanos()));
        (Clock::Manual(now.clone()), ManualClock(now))
    }

    /// The same clock, ahead by so many nanoseconds. A manual one stays as it is.
    pub fn ahead_by(mut self, nanos: i64) -> Clock {
        if let Clock::System(clock) = &mut self {
            clock.epoch_minus_monotonic += nanos;
        }
        self
    }

    /// A name that no other process's clock has: timestamps of clocks with the same name compare directly.
    pub fn name(&self) -> String {
        match self {
            Clock::System(clock) => {
                format!("{:x}-{:x}", std::process::id(), clock.epoch_minus_monotonic)
            }
            Clock::Manual(now) => format!("manual-{:x}", Arc::as_ptr(now) as usize),
        }
    }

    /// The current time.
    pub fn now(&self) -> Stamp {
        match self {
            Clock::System(clock) => {
                Stamp::from_nanos(monotonic_nanos() + clock.epoch_minus_monotonic)
            }
            Clock::Manual(now) => Stamp::from_nanos(now.load(Ordering::Acquire)),
        }
    }

    /// Blocks this thread until a time, on an absolute kernel timer (`clock_nanosleep` with `TIMER_ABSTIME`), so that oversleeping does not
    /// add up. Returns at once on a manual clock.
    pub fn sleep_until(&self, until: Stamp) {
        let Clock::System(clock) = self else { return };
        let monotonic = (until.nanos() - clock.epoch_minus_monotonic).max(0);
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

impl SystemClock {
    fn anchor() -> SystemClock {
        // The wall clock is read between two readings of the monotonic clock; the closest pair of a few tries counts.
        let read = || {
            let before = monotonic_nanos();
            let epoch = read_clock(ClockId::CLOCK_REALTIME);
            let after = monotonic_nanos();
            (after - before, epoch - (before + (after - before) / 2))
        };
        let (_, offset) = (0..5).map(|_| read()).min().unwrap_or_else(read);
        SystemClock {
            epoch_minus_monotonic: offset,
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

fn monotonic_nanos() -> i64 {
    read_clock(ClockId::CLOCK_MONOTONIC)
}

fn read_clock(id: ClockId) -> i64 {
    // Both clocks exist on every Linux; if a kernel refuses them, the result is 0 rather than a panic.
    clock_gettime(id).map_or(0, |t| t.tv_sec() * NANOS + t.tv_nsec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_round_trip_within_a_floats_resolution() {
        let stamp = Stamp::from_seconds(1_795_168_579.844_124).unwrap();
        assert!((stamp.seconds() - 1_795_168_579.844_124).abs() < 3e-7);
        assert_eq!(Stamp::from_seconds(f64::NAN), None);
        assert_eq!(Stamp::from_seconds(1e300), None);
    }

    #[test]
    fn stamps_are_in_order_whatever_their_sign_and_none_takes_no_room() {
        let all = [i64::MIN, i64::MIN + 1, -1, 0, 1, i64::MAX].map(Stamp::from_nanos);
        assert!(all.is_sorted());
        assert_eq!(all[2..].iter().map(|at| at.nanos()).max(), Some(i64::MAX));
        assert_eq!(all[3].nanos_since(all[2]), 1);
        assert_eq!(size_of::<Option<Stamp>>(), size_of::<i64>());
    }

    #[test]
    fn sleeping_until_a_moment_ends_after_it() {
        let clock = Clock::system();
        let until = clock.now().plus_nanos(2_000_000);
        clock.sleep_until(until);
        assert!(clock.now() >= until);
    }
}
