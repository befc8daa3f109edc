//! How long a request was with upstreams, and how long its client held up writes: what remains is the proxy's own time.

use crate::clock::Stamp;

/// Of one request; all in nanoseconds.
#[derive(Debug, Default)]
pub struct Timing {
    /// Writes that were pending.
    pending: i64,
    /// Those in which nothing more was read.
    blocked: i64,
    /// The present write has been pending since.
    since: Option<Stamp>,
    /// As much has been read ahead as is kept, since then.
    full_since: Option<Stamp>,
    /// It was sent to an upstream, and neither the last byte of an answer was read nor has the sending failed.
    away_since: Option<Stamp>,
    /// How long it was so, or was not here yet and waited for. One sending begins after the one before is over.
    away: i64,
    /// How long writes had been pending when it was last back.
    pending_when_back: i64,
}

impl Timing {
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

    /// How long writes have been pending, the present one included.
    pub fn pending_at(&self, at: Stamp) -> i64 {
        sum(self.pending, self.since, at)
    }

    /// How long of that reading from upstream waited.
    pub fn blocked_at(&self, at: Stamp) -> i64 {
        sum(self.blocked, self.full_since, at)
    }

    /// How long the writes were pending that are over.
    pub fn pending(&self) -> i64 {
        self.pending
    }

    /// The head is sent.
    pub(super) fn sent(&mut self, at: Stamp) {
        self.away_since.get_or_insert(at);
    }

    /// That sending is over.
    pub(super) fn back(&mut self, at: Stamp) {
        if let Some(since) = self.away_since.take() {
            self.away = self.away.saturating_add(at.nanos_since(since));
            self.pending_when_back = self.pending_at(at);
        }
    }

    /// The client was waited for, before a sending.
    pub(super) fn waited(&mut self, nanos: i64) {
        self.away = self.away.saturating_add(nanos);
    }

    /// From `arrival` to `end`: the time in which no upstream had it and the client held up nothing.
    pub(super) fn own(&self, arrival: Stamp, end: Stamp) -> i64 {
        let pending = self.pending_at(end).saturating_sub(self.pending_when_back);
        end.nanos_since(arrival) - self.away - pending
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
        let mut time = Timing::default();
        assert!(!time.is_on());
        time.began(at(5));
        time.full(at(9));
        assert_eq!((time.pending_at(at(12)), time.blocked_at(at(12))), (7, 3));
        time.over(at(15));
        assert_eq!((time.pending_at(at(99)), time.blocked_at(at(99))), (10, 6));
        time.began(at(100));
        assert_eq!((time.pending_at(at(101)), time.pending()), (11, 10));
    }
}
