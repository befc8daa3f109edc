//! How long a request was with upstreams and how long its client delayed writes: the rest is the proxy's own time.

use crate::clock::Stamp;

/// The times of one request, in nanoseconds.
#[derive(Debug, Default)]
pub struct Timing {
    /// How long writes to the client were pending that are over.
    pub write_wait: i64,
    /// How long of that reading from upstream was paused.
    read_paused: i64,
    /// Since when the current write is pending.
    pub write_pending_since: Option<Stamp>,
    /// Since when reading is paused until that write is over, as much as is kept having been read ahead.
    pub read_paused_since: Option<Stamp>,
    /// When the request was sent to the upstream that has it now.
    upstream_since: Option<Stamp>,
    /// How long upstreams had it (one at a time), or its client or other requests were waited for.
    not_ours: i64,
    /// [`Timing::write_wait_at`] when an upstream last ended.
    write_wait_at_upstream_end: i64,
}

impl Timing {
    /// The pending write is over.
    pub fn write_over(&mut self, at: Stamp) {
        (self.write_wait, self.read_paused) = (self.write_wait_at(at), self.read_paused_at(at));
        (self.write_pending_since, self.read_paused_since) = (None, None);
    }

    /// How long writes were pending until `at`, the current one included.
    pub fn write_wait_at(&self, at: Stamp) -> i64 {
        sum(self.write_wait, self.write_pending_since, at)
    }

    /// How long of that reading from upstream was paused.
    pub fn read_paused_at(&self, at: Stamp) -> i64 {
        sum(self.read_paused, self.read_paused_since, at)
    }

    /// The head is sent upstream.
    pub(super) fn upstream_began(&mut self, at: Stamp) {
        self.upstream_since.get_or_insert(at);
    }

    /// The last of the response was read, or the upstream has failed.
    pub(super) fn upstream_ended(&mut self, at: Stamp) {
        if let Some(since) = self.upstream_since.take() {
            self.exclude(at.nanos_since(since));
            self.write_wait_at_upstream_end = self.write_wait_at(at);
        }
    }

    /// Leaves a wait out of the proxy's own time.
    pub(super) fn exclude(&mut self, nanos: i64) {
        self.not_ours = self.not_ours.saturating_add(nanos);
    }

    /// How long the proxy itself took, from `arrival` to `end`.
    pub(super) fn overhead(&self, arrival: Stamp, end: Stamp) -> i64 {
        let writes = self.write_wait_at(end);
        let writes = writes.saturating_sub(self.write_wait_at_upstream_end);
        end.nanos_since(arrival) - self.not_ours - writes
    }
}

fn sum(past: i64, since: Option<Stamp>, at: Stamp) -> i64 {
    past.saturating_add(since.map_or(0, |since| at.nanos_since(since).max(0)))
}
