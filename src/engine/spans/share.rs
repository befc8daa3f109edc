//! What one scheduler did for a request, put together from its spans.

use crate::clock::Stamp;
use crate::engine::span::{EngineSpan, Part, Scheduler, Stage};
use crate::request::engine_report::Told;

/// What one scheduler did for a request.
#[derive(Debug, Default)]
pub struct Share {
    /// The end of its span, and what that says.
    scheduler: Option<(Stamp, Scheduler)>,
    /// From when to when, by [`Stage`].
    stages: [Option<(Stamp, Stamp)>; Stage::Sending as usize + 1],
    retractions: u32,
}

impl Share {
    /// Adds its own span, or that of a stage below it.
    pub fn add(&mut self, span: &EngineSpan) {
        self.retractions = self.retractions.saturating_add(span.retractions);
        match span.part {
            Part::Scheduler(says) => self.scheduler = Some((span.end, says)),
            Part::Stage(stage) => {
                // A retracted request goes through them again: the first counts.
                let known = &mut self.stages[stage as usize];
                if known.is_none_or(|(start, _)| span.start < start) {
                    *known = Some((span.start, span.end));
                }
            }
            Part::Root(_) | Part::Router { .. } => {}
        }
    }

    fn stage(&self, stage: Stage) -> Option<(Stamp, Stamp)> {
        self.stages[stage as usize]
    }

    fn ended(&self, stage: Stage) -> Option<Stamp> {
        self.stage(stage).map(|(_, end)| end)
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
        let has = |stage: &Stage| self.stage(*stage).is_some();
        let is_cut_short = says.is_cut_short && has(&Stage::Process);
        let is_run = [Stage::Waiting, Stage::Prefill].iter().all(has);
        let of_decode = [Stage::Bootstrap, Stage::Transferred, Stage::Slot];
        is_lowest && (is_cut_short || is_run || of_decode.iter().all(has))
    }

    /// Puts what it knows into what is told.
    pub fn tell(&self, told: &mut Told) {
        let [waiting, bootstrap] = [Stage::Waiting, Stage::Bootstrap].map(|of| self.stage(of));
        let queued = bootstrap.or(waiting).map(|(start, _)| start);
        told.queue_start = queued.or(self.ended(Stage::Process));
        told.queue_end = self.ended(Stage::Waiting);
        told.prefill_end = self.ended(Stage::Prefill);
        told.kv_reserved = self.ended(Stage::Bootstrap);
        told.kv_arrived = self.ended(Stage::Transferred);
        // A server that prefills too has such a span, between prefill and its first step of decode.
        told.decode_start = bootstrap.and_then(|_| self.ended(Stage::Slot));
        let sending = self.stage(Stage::Sending);
        told.sending_nanos = sending.map(|(start, end)| end.nanos_since(start));
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
        told.num_retractions = Some(self.retractions.into());
        told.dp_rank = says.dp_rank;
        // The later times in the queue are not in the trace.
        let waited = waiting.filter(|_| self.retractions == 0);
        told.queue_nanos = waited.map(|(start, end)| end.nanos_since(start));
    }
}
