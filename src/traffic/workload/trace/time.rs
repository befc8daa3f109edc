//! How traces write times, as nanoseconds.

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

use crate::clock::NANOS;

/// Of seconds, if they are a time at all.
pub(super) fn nanos_of(seconds: f64) -> Option<i64> {
    // A century: far from what would overflow in a sum.
    let nanos = seconds * NANOS as f64;
    (nanos.abs() < 4e18).then_some(nanos.round() as i64)
}

/// Of a number of seconds.
pub(super) fn of_seconds(text: &str) -> Option<i64> {
    nanos_of(text.parse().ok()?)
}

/// Of a date, since the Unix epoch; one without an offset is taken for UTC.
pub(super) fn of_date(text: &str) -> Option<i64> {
    let time = text.parse::<Timestamp>().ok().or_else(|| {
        let date = text.parse::<DateTime>().ok()?;
        TimeZone::UTC.to_timestamp(date).ok()
    })?;
    i64::try_from(time.as_nanosecond()).ok()
}
