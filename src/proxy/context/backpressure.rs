//! How long writes to the client were pending, and how long reading from upstream waited for them.

use crate::clock::Stamp;

/// Of one request.
#[derive(Debug, Default)]
pub struct Backpressure {
    /// Pending writes, nanoseconds.
    pending: i64,
    /// Those in which nothing more was read, nanoseconds.
    blocked: i64,
    /// The present write has been pending since.
    since: Option<Stamp>,
    /// As much has been read ahead as is kept, since then.
    full_since: Option<Stamp>,
}

impl Backpressure {
    /// A write is pending.
    pub fn began(&mut self, at: Stamp) {
        self.since.get_or_insert(at);
    }

    /// No more is read until it is over.
    pub fn full(&mut self, at: Stamp) {
        self.full_since.get_or_insert(at);
    }

    /// Whether a write is pending.
    pub fn is_on(&self) -> bool {
        self.since.is_some()
    }

    /// It is over.
    pub fn over(&mut self, at: Stamp) {
        (self.pending, self.blocked) = (self.pending_at(at), self.blocked_at(at));
        (self.since, self.full_since) = (None, None);
    }

    /// For how many nanoseconds writes have been pending, the present one included.
    pub fn pending_at(&self, at: Stamp) -> i64 {
        sum(self.pending, self.since, at)
    }

    /// For how many of them reading from upstream waited.
    pub fn blocked_at(&self, at: Stamp) -> i64 {
        sum(self.blocked, self.full_since, at)
    }

    /// Nanoseconds of the writes that are over.
    pub fn nanos(&self) -> i64 {
        self.pending
    }
}

fn sum(over: i64, since: Option<Stamp>, at: Stamp) -> i64 {
    over.saturating_add(since.map_or(0, |since| at.nanos_since(since).max(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pending_write_is_counted_from_its_start_to_its_end() {
        let at = Stamp::from_nanos;
        let mut pressure = Backpressure::default();
        assert!(!pressure.is_on());
        pressure.began(at(5));
        pressure.full(at(9));
        assert_eq!(
            (pressure.pending_at(at(12)), pressure.blocked_at(at(12))),
            (7, 3)
        );
        pressure.over(at(15));
        assert_eq!(
            (pressure.pending_at(at(99)), pressure.blocked_at(at(99))),
            (10, 6)
        );
        pressure.began(at(100));
        assert_eq!((pressure.pending_at(at(101)), pressure.nanos()), (11, 10));
    }
}
