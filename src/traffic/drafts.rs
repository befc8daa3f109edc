//! Request bodies, made ahead of their time.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;

use super::plan::Planned;
use super::workload::Workload;

/// Drafts are made ahead of their time up to this many bytes, so that a request's making delays no sending.
const AHEAD_BYTES: usize = 64 << 20;

/// Request bodies, made ahead of their time.
pub(super) struct Drafts {
    ahead: VecDeque<Bytes>,
    bytes: usize,
    next: usize,
    schedule: Arc<Vec<Planned>>,
}

impl Drafts {
    /// None yet.
    pub(super) fn new(schedule: Arc<Vec<Planned>>) -> Drafts {
        Drafts {
            ahead: VecDeque::new(),
            bytes: 0,
            next: 0,
            schedule,
        }
    }

    /// Makes drafts while there is room and `time` allows.
    pub(super) fn make(&mut self, workload: &Workload, time: impl Fn() -> bool) {
        while let Some(planned) = self.schedule.get(self.next)
            && self.bytes < AHEAD_BYTES
            && time()
        {
            let draft = workload.request(planned.number);
            self.next += 1;
            self.bytes += draft.len();
            self.ahead.push_back(draft);
        }
    }

    /// The next one, if it is made.
    pub(super) fn take(&mut self) -> Option<Bytes> {
        let draft = self.ahead.pop_front();
        match &draft {
            Some(draft) => self.bytes -= draft.len(),
            None => self.next += 1,
        }
        draft
    }
}
