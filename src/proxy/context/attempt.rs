//! What is sent upstream for a request, and a hop's attempt at its server.

use parking_lot::MutexGuard;

use crate::clock::Stamp;
use crate::proxy::identity::new_span_id;
use crate::proxy::shared::{Role, ServerRole};
use crate::request::attempt::{Attempt, CameWith, MAX_FAILED, SpanId};
use crate::request::timeline::Moment;
use crate::request::trace::Sending;
use crate::telemetry::prometheus::Progress;

use super::Context;

impl Context {
    /// At a hop: one of a request of ours or of another's, with the id that this has.
    pub(super) fn begin_attempt(&mut self, id: Option<&str>) {
        let Role::Hop(worker) = &self.role else {
            return;
        };
        let (span, worker) = (new_span_id(), worker.to_string());
        let host = self.own_host().unwrap_or_default();
        self.span = Some(span);
        if self.shared.engine.is_some() {
            self.shared.roles.lock().ask(span, &worker);
        }
        let metrics = &self.shared.metrics;
        self.at_worker = Some(match self.shared.role(&worker) {
            Some(ServerRole::Prefill) => metrics.leg_began(&worker),
            _ => metrics.attempt_began(&worker),
        });
        let mut attempt = Attempt::new(span, worker, host, self.arrival);
        attempt.came_with = self.trace.as_ref().and_then(|trace| {
            let (trace, span) = (trace.id, trace.parent?);
            Some(CameWith { trace, span })
        });
        self.attempt = Some(self.shared.joins.arrived(attempt, id));
    }

    /// It is to be sent to this upstream, `host:port`.
    pub fn chose(&mut self, upstream: &str) {
        upstream.clone_into(&mut self.upstream);
        if let Some(mut told) = self.told() {
            told.host = self.own_host().unwrap_or_default();
        }
    }

    /// The head is about to be written upstream. Gives the `traceparent` to write, if there is to be one.
    pub fn attempt_began(&mut self) -> Option<String> {
        let now = self.shared.clock.now();
        self.forwarded = Some(now);
        self.sendings += 1;
        self.time.sent(now);
        if let Some(under_way) = &mut self.under_way {
            under_way.enter(Progress::Waiting);
        }
        if self.sends_to_server() && self.watch.is_some() {
            // The one before is over.
            self.at_worker = None;
            self.at_worker = Some(self.shared.metrics.attempt_began(&self.upstream));
        }
        if let Some(mut told) = self.told() {
            told.forwarded = Some(now);
        }
        let span = match (&self.role, self.span) {
            (Role::Hop(_), Some(span)) => span,
            _ => new_span_id(),
        };
        self.span = Some(span);
        if let Some(joined) = &self.joined {
            self.shared.joins.sent(joined, span);
        }
        self.note_sending(span, now, None);
        if let Some(watch) = &mut self.watch {
            watch.observer.row_mut().span_id = Some(span);
            let moment = match self.role {
                Role::Front => Moment::Forwarded,
                Role::Hop(_) => Moment::WorkerForwarded,
            };
            watch.observer.timeline_mut().set(moment, now);
        }
        let trace = self.trace.as_ref()?;
        // What has no span of ours stays below its client's.
        let is_told = self.watch.is_some() || self.attempt.is_some();
        let parent = if is_told { Some(span) } else { trace.parent };
        parent.map(|parent| trace.with_parent(parent))
    }

    /// What is told of the hop's attempt.
    pub(super) fn told(&self) -> Option<MutexGuard<'_, Attempt>> {
        self.attempt.as_ref().map(|attempt| attempt.told.lock())
    }

    /// The upstream cannot be connected to, at any of its addresses. That is an attempt, if no hop reports it.
    pub fn upstream_unreachable(&mut self) {
        self.unconnected += u32::from(self.sends_to_server());
    }

    /// No connection to the upstream came about.
    pub fn note_unconnected(&mut self) {
        let now = self.shared.clock.now();
        self.note_sending(new_span_id(), self.arrival, Some(now));
    }

    /// A sending from `at`, for traces: those alone tell of it. One that no connection came about for began when the one
    /// before was over, and has `failed`.
    fn note_sending(&mut self, span: SpanId, at: Stamp, failed: Option<Stamp>) {
        // Without a watch there is no row.
        let watch = self.watch.as_mut();
        let Some(watch) = watch.filter(|_| self.shared.telemetry.traces()) else {
            return;
        };
        let sendings = &mut watch.observer.row_mut().more.trace.sendings;
        if failed.is_some() && sendings.len() >= MAX_FAILED {
            return;
        }
        let before = sendings.last().and_then(|last| last.broke);
        sendings.push(Sending {
            span,
            upstream: self.upstream.clone(),
            at: before.filter(|_| failed.is_some()).unwrap_or(at),
            broke: failed,
            is_connected: failed.is_none(),
        });
    }

    /// An upstream connection stands; `reused` when it has served before.
    pub fn connected(&mut self, reused: bool) {
        let label = if reused { "true" } else { "false" };
        let connections = &self.shared.metrics.connections;
        connections.with(&[&self.upstream, label]).inc();
        if let Some(watch) = &mut self.watch {
            watch.observer.row_mut().upstream_reused = Some(reused);
        }
    }
}
