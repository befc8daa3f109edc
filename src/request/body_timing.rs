//! When the body of a response passed one observer. Front and hop see the same body byte by byte, as a router passes bytes on
//! unchanged: the same first byte, the same last.

use crate::clock::Stamp;

/// First byte, last byte and longest gap of one body, as far as it has arrived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BodyTiming {
    /// Its first bytes; of a stream, those of the first event.
    pub first: Option<Stamp>,
    /// Its last bytes so far.
    pub last: Option<Stamp>,
    /// The longest time between two pieces, less the time in which writes were held up; nanoseconds.
    pub longest_gap_nanos: Option<i64>,
    stall_nanos: i64,
}

impl BodyTiming {
    /// Records that bytes passed at `at`, when writes had been held up for `stall_nanos` in all. Returns whether they were the
    /// first.
    pub fn piece(&mut self, at: Stamp, stall_nanos: i64) -> bool {
        let stalled = stall_nanos.saturating_sub(self.stall_nanos);
        self.stall_nanos = stall_nanos;
        if let Some(last) = self.last.replace(at) {
            let gap = at.nanos_since(last).saturating_sub(stalled).max(0);
            self.longest_gap_nanos = self.longest_gap_nanos.max(Some(gap));
        }
        let is_first = self.first.is_none();
        self.first.get_or_insert(at);
        is_first
    }

    /// Returns what is known before the body's end: only its first bytes are final.
    pub fn so_far(&self) -> BodyTiming {
        BodyTiming {
            first: self.first,
            ..BodyTiming::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_between_pieces_and_without_stalls() {
        let mut timing = BodyTiming::default();
        let at = |nanos: i64| Stamp::from_nanos(1_000 + nanos);
        assert!(timing.piece(at(0), 5));
        assert_eq!(timing.longest_gap_nanos, None);
        for (nanos, stall) in [(10, 5), (50, 35), (65, 35)] {
            assert!(!timing.piece(at(nanos), stall));
        }
        assert_eq!((timing.first, timing.last), (Some(at(0)), Some(at(65))));
        assert_eq!(timing.longest_gap_nanos, Some(15));
        let so_far = timing.so_far();
        assert_eq!((so_far.first, so_far.last), (Some(at(0)), None));
    }
}
