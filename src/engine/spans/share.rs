//! What one scheduler did for a request, put together from its spans.

use crate::clock::Stamp;
use crate::engine::span::{Part, Scheduler};
use crate::request::told::Told;

/// What one scheduler did for a request.
#[derive(Debug, Default)]
pub struct Share {
    /// The end of its span, and what that says.
    pub scheduler: Option<(Stamp, Scheduler)>,
    processed: Option<Stamp>,
    waiting: Option<(Stamp, Stamp)>,
    prefill: Option<(Stamp, Stamp)>,
    bootstrap: Option<(Stamp, Stamp)>,
    transferred: Option<(Stamp, Stamp)>,
    slot: Option<(Stamp, Stamp)>,
    sending: Option<(Stamp, Stamp)>,
    retractions: u32,
}

impl Share {
    /// One of the stages below it.
    pub fn stage(&mut self, part: &Part, start: Stamp, end: Stamp) {
        // A retracted request goes through them again: the first counts.
        let first = |known: Option<(Stamp, Stamp)>| {
            known
                .filter(|known| known.0 <= start)
                .or(Some((start, end)))
        };
        match part {
            Part::Process => self.processed = Some(end),
            Part::Waiting => self.waiting = first(self.waiting),
            Part::Prefill { retractions } => {
                self.prefill = first(self.prefill);
                self.retractions = self.retractions.saturating_add(*retractions);
            }
            Part::Bootstrap => self.bootstrap = first(self.bootstrap),
            Part::Transferred => self.transferred = first(self.transferred),
            Part::Slot => self.slot = first(self.slot),
            Part::Sending => self.sending = first(self.sending),
            Part::Root(_) | Part::Scheduler(_) | Part::Router { .. } => {}
        }
    }

    /// Tensor- and pipeline-parallel ranks; that of the lowest is the clock of the server.
    pub fn rank(&self) -> (u64, u64) {
        let ranks =
            |(_, says): (Stamp, Scheduler)| (says.pp_rank.unwrap_or(0), says.tp_rank.unwrap_or(0));
        self.scheduler.map_or((u64::MAX, u64::MAX), ranks)
    }

    /// Whether all has come that is needed of this scheduler, and there is no lower one.
    pub fn is_whole(&self) -> bool {
        let Some((_, says)) = self.scheduler else {
            return false;
        };
        let (pp, tp) = self.rank();
        // Each data-parallel rank has tensor-parallel ranks of its own, which may not begin with 0.
        let is_lowest = pp == 0 && (tp == 0 || says.dp_rank.is_some_and(|rank| rank > 0));
        let is_cut_short = says.is_cut_short && self.processed.is_some();
        let is_run = self.waiting.is_some() && self.prefill.is_some();
        let of_decode = [self.bootstrap, self.transferred, self.slot];
        is_lowest && (is_cut_short || is_run || of_decode.iter().all(Option::is_some))
    }

    /// Puts what it knows into what is told.
    pub fn tell(&self, told: &mut Told) {
        let queued = self.bootstrap.or(self.waiting);
        told.queue_start = queued.map(|(start, _)| start).or(self.processed);
        told.queue_end = self.waiting.map(|(_, end)| end);
        told.prefill_end = self.prefill.map(|(_, end)| end);
        let ended = |stage: Option<(Stamp, Stamp)>| stage.map(|(_, end)| end);
        told.kv_reserved = ended(self.bootstrap);
        told.kv_arrived = ended(self.transferred);
        // A server that prefills too has such a span, between prefill and its first step of decode.
        told.decode_start = ended(self.slot.filter(|_| self.bootstrap.is_some()));
        told.sending_nanos = self.sending.map(|(start, end)| end.nanos_since(start));
        let Some((end, says)) = self.scheduler else {
            return;
        };
        // An abort ends what is open at the very moment it ends the scheduler's span: prefill was not done.
        for moment in [
            &mut told.prefill_end,
            &mut told.kv_reserved,
            &mut told.kv_arrived,
            &mut told.decode_start,
        ] {
            *moment = moment.filter(|at| *at != end);
        }
        let retractions = says.retractions.saturating_add(self.retractions);
        told.num_retractions = Some(u64::from(retractions));
        told.dp_rank = says.dp_rank;
        // The later times in the queue are not in the trace.
        let waited = self.waiting.filter(|_| retractions == 0);
        told.queue_nanos = waited.map(|(start, end)| end.nanos_since(start));
    }
}
