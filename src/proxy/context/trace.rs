//! What traces tell of a request beside its rows.

use http::HeaderMap;

use crate::clock::Stamp;
use crate::proxy::identity::{Trace, new_span_id};
use crate::proxy::shared::Role;
use crate::request::attempt::{CameWith, MAX_FAILED, SpanId};
use crate::request::record::Facts;
use crate::request::trace::Sending;

use super::Context;

impl Context {
    /// Takes on the trace that a request came in, or begins one where it `generates`. Its sampled flag is set as it goes
    /// upstream; a hop leaves that of a trace that came.
    pub fn begin_trace(&mut self, headers: &HeaderMap, generates: bool) {
        let came = Trace::of(headers);
        self.trace_is_new = came.is_none() && generates;
        if came.is_none() && !generates {
            return;
        }
        let decided = came.as_ref().and_then(|trace| trace.decided(headers));
        self.traced.came_sampled = decided;
        let mut trace = came.unwrap_or_default();
        if self.trace_is_new || self.role == Role::Front {
            let telemetry = &self.shared.telemetry;
            trace.sample(telemetry.samples_upstream(decided, trace.number()));
        }
        self.trace = Some(trace);
    }

    /// The `traceparent` to write upstream, `span` being ours. What has no span of ours stays below its client's.
    pub(super) fn trace_parent(&self, span: SpanId) -> Option<String> {
        let trace = self.trace.as_ref()?;
        let is_told = self.watch.is_some() || self.attempt.is_some();
        let parent = if is_told { Some(span) } else { trace.parent };
        parent.map(|parent| trace.with_parent(parent))
    }

    /// The span that it came with, and its trace.
    pub(super) fn came_with(&self) -> Option<CameWith> {
        let trace = self.trace.as_ref()?;
        Some(CameWith {
            trace: trace.number(),
            span: trace.parent?,
        })
    }

    /// Where it belongs in its trace, and what sampling asks for.
    pub(super) fn note_trace(&self, facts: &mut Facts) {
        let Some(trace) = &self.trace else { return };
        facts.trace_id = Some(trace.id.clone());
        facts.parent_span = trace.parent;
        facts.trace.sent_sampled = trace.is_sampled();
        facts.trace.came_sampled = self.traced.came_sampled;
    }

    /// The head is about to be written upstream.
    pub(super) fn note_sending(&mut self, span: SpanId, at: Stamp) {
        // Without a watch there is no row.
        if self.watch.is_some() && self.shared.telemetry.traces() {
            self.traced.sendings.push(Sending {
                span,
                upstream: self.upstream.clone(),
                at,
                broke: None,
                is_connected: true,
            });
        }
    }

    /// No connection to the upstream came about.
    pub fn note_unconnected(&mut self) {
        let sendings = &mut self.traced.sendings;
        let is_told = self.watch.is_some() && self.shared.telemetry.traces();
        if is_told && sendings.len() < MAX_FAILED {
            let before = sendings.last().and_then(|last| last.broke);
            sendings.push(Sending {
                span: new_span_id(),
                upstream: self.upstream.clone(),
                at: before.unwrap_or(self.arrival),
                broke: Some(self.shared.clock.now()),
                is_connected: false,
            });
        }
    }
}
