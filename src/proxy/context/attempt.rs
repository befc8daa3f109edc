//! Attempts: a hop's at its server, and how the request is sent upstream.

use parking_lot::MutexGuard;

use crate::clock::Stamp;
use crate::proxy::identity::new_span_id;
use crate::proxy::shared::{Role, ServerRole};
use crate::request::attempt::{Attempt, FailedAttempt, MAX_FAILED, ParentSpan, SpanId};
use crate::request::internal::Sending;
use crate::request::observer::End;
use crate::request::timeline::Moment;
use crate::telemetry::prometheus::RequestPhase;

use super::{Context, outcome_of};

impl Context {
    /// At a hop: begins its attempt, and joins it to a request of the front by span or by the request id `id`.
    pub(super) fn join_attempt(&mut self, id: Option<&str>) {
        let Role::Hop(worker) = &self.role else {
            return;
        };
        let (span, worker) = (new_span_id(), worker.to_string());
        let host = self.own_host().unwrap_or_default();
        self.span = Some(span);
        if self.shared.engine.is_some() {
            self.shared.roles.lock().expect_role(span, &worker);
        }
        let metrics = &self.shared.metrics;
        self.attempt_in_flight = Some(match self.shared.role(&worker) {
            Some(ServerRole::Prefill) => metrics.begin_leg(&worker),
            _ => metrics.begin_attempt(&worker),
        });
        let mut attempt = Attempt::new(span, worker, host, self.arrival);
        attempt.parent = self.trace.as_ref().and_then(|trace| {
            let (trace, span) = (trace.id, trace.parent?);
            Some(ParentSpan { trace, span })
        });
        self.attempt = Some(self.shared.joins.join(attempt, id));
    }

    /// Locks what is known of the hop's attempt.
    pub(super) fn attempt_data(&self) -> Option<MutexGuard<'_, Attempt>> {
        self.attempt.as_ref().map(|attempt| attempt.data.lock())
    }

    /// The upstream `host:port` was chosen.
    pub fn set_upstream(&mut self, upstream: &str) {
        upstream.clone_into(&mut self.upstream);
        if let Some(mut attempt) = self.attempt_data() {
            attempt.host = self.own_host().unwrap_or_default();
        }
    }

    /// There is a connection to the upstream; `is_reused` if it served a request before.
    pub fn connected(&mut self, is_reused: bool) {
        let label = if is_reused { "true" } else { "false" };
        let connections = &self.shared.metrics.connections;
        connections.with(&[&self.upstream, label]).inc();
        if let Some(recording) = &mut self.recording {
            recording.observer.row_mut().upstream_reused = Some(is_reused);
        }
    }

    /// The upstream cannot be connected to, at any of its addresses, as tried since `began`. That is an attempt, of which no hop knows.
    pub fn upstream_unreachable(&mut self, began: Stamp, end: End) {
        if self.is_before_servers() {
            self.unconnected.push(FailedAttempt {
                host: self.tried(),
                outcome: Some(outcome_of(end, None)),
                status: None,
                nanos: Some(self.shared.clock.now().nanos_since(began)),
            });
        }
    }

    /// The head is about to be sent upstream. Returns the `traceparent` to send, if any.
    pub fn begin_sending(&mut self) -> Option<String> {
        let now = self.shared.clock.now();
        self.forwarded = Some(now);
        self.times_sent += 1;
        self.timing.upstream_began(now);
        if let Some(in_flight) = &mut self.in_flight {
            in_flight.enter(RequestPhase::Waiting);
        }
        if self.is_sent_to_server() && self.recording.is_some() {
            self.attempt_in_flight = Some(self.shared.metrics.begin_attempt(&self.upstream));
        }
        if let Some(mut attempt) = self.attempt_data() {
            attempt.forwarded = Some(now);
        }
        let span = match (&self.role, self.span) {
            (Role::Hop(_), Some(span)) => span,
            _ => new_span_id(),
        };
        self.span = Some(span);
        if let Some(request) = &self.request {
            self.shared.joins.add_span(request, span);
        }
        self.trace_sending(span, now, None);
        if let Some(recording) = &mut self.recording {
            recording.observer.row_mut().span_id = Some(span);
            let moment = match self.role {
                Role::Front => Moment::Forwarded,
                Role::Hop(_) => Moment::WorkerForwarded,
            };
            recording.observer.timeline_mut().set(moment, now);
        }
        let trace = self.trace.as_ref()?;
        // A request without a span of ours stays below its client's.
        let has_span = self.recording.is_some() || self.attempt.is_some();
        let parent = if has_span { Some(span) } else { trace.parent };
        parent.map(|parent| trace.with_parent(parent))
    }

    /// An address of the upstream could not be connected to, as tried since `began`.
    pub fn connect_failed(&mut self, began: Stamp) {
        let now = self.shared.clock.now();
        self.trace_sending(new_span_id(), began, Some(now));
    }

    /// Notes a sending that began at `at`, for exported traces; with the time at which its connecting failed.
    fn trace_sending(&mut self, span: SpanId, at: Stamp, failed: Option<Stamp>) {
        let recording = self.recording.as_mut();
        let Some(recording) = recording.filter(|_| self.shared.telemetry.traces()) else {
            return;
        };
        let sendings = &mut recording.observer.row_mut().internal.trace.sendings;
        if failed.is_some() && sendings.len() >= MAX_FAILED {
            return;
        }
        sendings.push(Sending {
            span,
            upstream: self.upstream.clone(),
            at,
            failed,
        });
    }
}
