//! Rows that have gone out of late, to tell what comes late or again from what is of a later request with the same id.

use std::collections::{HashMap, VecDeque};

use crate::clock::{NANOS, Stamp};
use crate::request::sequence::TimingSource;
use crate::request::told::Told;

use super::whose::is_random;

/// Engine ids of rows that have gone out of late. Bounded.
#[derive(Debug, Default)]
pub(super) struct Gone {
    rids: HashMap<String, Left>,
    order: VecDeque<String>,
}

/// What went out under an id.
#[derive(Debug, Default)]
struct Left {
    names: VecDeque<Name>,
    /// Rows whose line of the log may still come.
    lines: usize,
    /// The last of them was told of.
    was_told: bool,
    at: Option<Stamp>,
}

/// What a row's spans are called.
#[derive(Clone, Copy, Debug)]
pub(super) struct Name {
    /// Their trace.
    pub trace: Option<u128>,
    /// The span above them, where that is known.
    pub parent: Option<u64>,
    /// The row was told of.
    pub was_told: bool,
    /// A line of the log may still come.
    pub has_line: bool,
}

/// Ids that are remembered, and rows of each.
const GONE: usize = 4096;
const ROWS: usize = 4;
/// A line of the log comes within so much after its row went out, or is another's.
const LINE: i64 = 5 * NANOS;

impl Gone {
    /// A row went out.
    pub fn add(&mut self, rid: &str, name: Name, now: Stamp) {
        if !self.rids.contains_key(rid) {
            self.order.push_back(rid.to_owned());
        }
        let left = self.rids.entry(rid.to_owned()).or_default();
        if left.names.len() >= ROWS {
            left.names.pop_front();
        }
        left.names.push_back(name);
        left.lines = (left.lines + usize::from(name.has_line)).min(ROWS);
        left.was_told = name.was_told;
        left.at = Some(now);
        if self.order.len() > GONE
            && let Some(oldest) = self.order.pop_front()
        {
            self.rids.remove(&oldest);
        }
    }

    /// Whether a row of that id has gone out.
    pub fn has(&self, rid: &str) -> bool {
        self.rids.contains_key(rid)
    }

    /// Whether the row that this is of has gone out, and then whether that was told of.
    pub fn was_told(&mut self, told: &Told, now: Stamp) -> Option<bool> {
        let rid = told.rid.as_deref()?;
        let left = self.rids.get_mut(rid)?;
        if told.source == TimingSource::Log {
            let is_near = left.at.is_some_and(|at| now.nanos_since(at) <= LINE);
            let is_one = left.lines > 0 && is_near;
            left.lines = left.lines.saturating_sub(1);
            return is_one.then_some(left.was_told);
        }
        let mut names = left.names.iter();
        let is_of = |name: &&Name| {
            name.trace == told.trace && (name.parent.is_none() || name.parent == told.parent)
        };
        let known = names.find(is_of).map(|name| name.was_told);
        // A router began a trace of its own.
        let is_late = || (!left.was_told && is_random(rid)).then_some(false);
        known.or_else(is_late)
    }
}
