//! One scheduler's work on a request, assembled from its spans.

use crate::clock::Stamp;
use crate::engine::otlp::{EngineSpan, Scheduler, SpanKind, Stage};
use crate::request::EngineReport;

/// One scheduler's work on a request.
#[derive(Debug)]
pub struct SchedulerWork {
    /// When the last of its spans arrived, on our clock.
    pub arrived: Stamp,
    /// The end of the scheduler's span, and its attributes.
    scheduler: (Stamp, Scheduler),
    /// Start and end, by [`Stage`].
    stages: [Option<(Stamp, Stamp)>; Stage::KvSend as usize + 1],
    retractions: u32,
}

impl SchedulerWork {
    /// Starts with the scheduler's own span.
    pub fn new(arrived: Stamp, span: &EngineSpan, scheduler: Scheduler) -> SchedulerWork {
        SchedulerWork {
            arrived,
            scheduler: (span.end, scheduler),
            stages: Default::default(),
            retractions: span.retractions,
        }
    }

    /// Adds a span below the scheduler's.
    pub fn add(&mut self, arrived: Stamp, span: &EngineSpan) {
        self.arrived = self.arrived.max(arrived);
        self.retractions = self.retractions.saturating_add(span.retractions);
        if let SpanKind::Stage(stage) = span.kind {
            // A retracted request passes the stages again: the first time counts.
            let known = &mut self.stages[stage as usize];
            if known.is_none_or(|(start, _)| span.start < start) {
                *known = Some((span.start, span.end));
            }
        }
    }

    fn stage(&self, stage: Stage) -> Option<(Stamp, Stamp)> {
        self.stages[stage as usize]
    }

    fn end_of(&self, stage: Stage) -> Option<Stamp> {
        self.stage(stage).map(|(_, end)| end)
    }

    /// Returns the pipeline- and tensor-parallel ranks. The lowest scheduler's clock is the server's.
    pub fn rank(&self) -> (u64, u64) {
        let (_, scheduler) = self.scheduler;
        (
            scheduler.pp_rank.unwrap_or(0),
            scheduler.tp_rank.unwrap_or(0),
        )
    }

    /// Whether all stages have arrived that are needed, and no scheduler has a lower rank.
    pub fn is_complete(&self) -> bool {
        let (_, scheduler) = self.scheduler;
        let (pp, tp) = self.rank();
        // Each data-parallel rank has tensor-parallel ranks of its own, which may not begin with 0.
        let is_lowest = pp == 0 && (tp == 0 || scheduler.dp_rank.is_some_and(|rank| rank > 0));
        let has = |stage: &Stage| self.stage(*stage).is_some();
        let is_aborted = scheduler.is_aborted && has(&Stage::Process);
        let has_run = [Stage::Waiting, Stage::Prefill].iter().all(has);
        let of_decode = [Stage::Bootstrap, Stage::KvTransfer, Stage::DecodeWaiting];
        is_lowest && (is_aborted || has_run || of_decode.iter().all(has))
    }

    /// Puts the scheduler's times and attributes into the request's report.
    pub fn put(&self, report: &mut EngineReport) {
        let [waiting, bootstrap] = [Stage::Waiting, Stage::Bootstrap].map(|of| self.stage(of));
        let queued = bootstrap.or(waiting).map(|(start, _)| start);
        report.queue_start = queued.or(self.end_of(Stage::Process));
        report.queue_end = self.end_of(Stage::Waiting);
        report.prefill_end = self.end_of(Stage::Prefill);
        report.kv_reserved = self.end_of(Stage::Bootstrap);
        report.kv_arrived = self.end_of(Stage::KvTransfer);
        // A server that also prefills has this span too, between prefill and its first decode step.
        report.decode_start = bootstrap.and_then(|_| self.end_of(Stage::DecodeWaiting));
        let sending = self.stage(Stage::KvSend);
        report.sending_nanos = sending.map(|(start, end)| end.nanos_since(start));
        let (end, scheduler) = self.scheduler;
        // An abort ends the open stages together with the scheduler's span: they were not completed.
        for moment in [
            &mut report.prefill_end,
            &mut report.kv_reserved,
            &mut report.kv_arrived,
            &mut report.decode_start,
        ] {
            *moment = moment.filter(|at| *at != end);
        }
        report.num_retractions = Some(self.retractions.into());
        report.dp_rank = scheduler.dp_rank;
        // The trace does not hold the queue times after a retraction.
        let waited = waiting.filter(|_| self.retractions == 0);
        report.queue_nanos = waited.map(|(start, end)| end.nanos_since(start));
    }
}
