//! What one scheduler did for a request, put together from its spans.

use crate::clock::Stamp;
use crate::request::told::Told;

use crate::engine::span::{Part, Scheduler};

/// What one scheduler did for a request.
#[derive(Debug)]
pub struct Share {
    pub made: Stamp,
    /// Its span; `None` until it has come.
    pub scheduler: Option<Served>,
    pub processed: Option<Stamp>,
    pub waiting: Option<(Stamp, Stamp)>,
    pub prefill: Option<(Stamp, Stamp)>,
    pub retractions: u32,
}

/// A scheduler's span.
#[derive(Clone, Copy, Debug)]
pub struct Served {
    /// The span of the request.
    pub root: u64,
    pub end: Stamp,
    pub says: Scheduler,
}

impl Share {
    /// Of which nothing is known.
    pub fn new(made: Stamp) -> Share {
        Share {
            made,
            scheduler: None,
            processed: None,
            waiting: None,
            prefill: None,
            retractions: 0,
        }
    }

    /// What it did for a request, as one of the stages below it tells.
    pub fn stage(&mut self, part: &Part, start: Stamp, end: Stamp) {
        // A retracted request goes through them again: the first counts.
        let first = |known: Option<(Stamp, Stamp)>| match known {
            Some(known) if known.0 <= start => Some(known),
            _ => Some((start, end)),
        };
        match part {
            Part::Process => self.processed = Some(end),
            Part::Waiting => self.waiting = first(self.waiting),
            Part::Prefill { retractions } => {
                self.prefill = first(self.prefill);
                self.retractions = self.retractions.saturating_add(*retractions);
            }
            Part::Root(_) | Part::Scheduler(_) | Part::Router { .. } => {}
        }
    }

    /// Tensor- and pipeline-parallel ranks; that of the lowest is the clock of the server.
    pub fn rank(&self) -> (u64, u64) {
        let rank = |rank: Option<u64>| rank.unwrap_or(0);
        let ranks = |served: Served| (rank(served.says.pp_rank), rank(served.says.tp_rank));
        self.scheduler.map_or((u64::MAX, u64::MAX), ranks)
    }

    /// Whether all has come that is needed of this scheduler, and there is no lower one.
    pub fn is_whole(&self) -> bool {
        let Some(Served {
            says: scheduler, ..
        }) = self.scheduler
        else {
            return false;
        };
        let (pp, tp) = self.rank();
        // Each data-parallel rank has tensor-parallel ranks of its own, which may not begin with 0.
        let is_lowest = pp == 0 && (tp == 0 || scheduler.dp_rank.is_some_and(|rank| rank > 0));
        let is_cut_short = scheduler.is_cut_short && self.processed.is_some();
        is_lowest && (is_cut_short || (self.waiting.is_some() && self.prefill.is_some()))
    }

    /// Puts what it knows into what is told.
    pub fn tell(&self, told: &mut Told) {
        told.queue_start = self.waiting.map(|(start, _)| start).or(self.processed);
        told.queue_end = self.waiting.map(|(_, end)| end);
        told.prefill_end = self.prefill.map(|(_, end)| end);
        let Some(served) = self.scheduler else {
            return;
        };
        let scheduler = served.says;
        // An abort ends what is open at the very moment it ends the scheduler's span: prefill was not done.
        if told.prefill_end == Some(served.end) {
            told.prefill_end = None;
        }
        let retractions = scheduler.retractions.saturating_add(self.retractions);
        told.num_retractions = Some(u64::from(retractions));
        told.dp_rank = scheduler.dp_rank;
        // The later times in the queue are not in the trace.
        told.queue_nanos = self
            .waiting
            .filter(|_| retractions == 0)
            .map(|(start, end)| end.nanos_since(start));
    }
}
