//! What traces tell of a request beside its rows.

use crate::clock::Stamp;
use crate::proxy::identity::Trace;
use crate::request::attempt::{CameWith, SpanId};
use crate::request::outcome::Outcome;
use crate::request::record::{Facts, Record};
use crate::request::trace::Sending;

use super::Context;

impl Context {
    /// The front takes on the client's trace, or begins one. Its sampled flag is set as it goes upstream.
    pub fn begin_trace(&mut self, came: Option<Trace>) {
        self.traced.came_sampled = came.as_ref().map(Trace::is_sampled);
        let mut trace = came.unwrap_or_default();
        let telemetry = &self.shared.telemetry;
        trace.sample(telemetry.samples_upstream(self.traced.came_sampled, trace.number()));
        self.trace = Some(trace);
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
        facts.trace.came_sampled = match self.is_at_hop() {
            true => Some(trace.is_sampled()),
            false => self.traced.came_sampled,
        };
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
            });
        }
    }

    /// Says in the log that a request failed, with its trace: what a client did is news for whoever asks for it.
    pub(super) fn log_failure(rows: &[Record]) {
        let Some(first) = rows.first().filter(|row| !row.is_ok()) else {
            return;
        };
        let facts = &first.facts;
        let level = match facts.outcome {
            Outcome::ServerError
            | Outcome::UpstreamDied
            | Outcome::Timeout
            | Outcome::ProxyError => log::Level::Info,
            _ => log::Level::Debug,
        };
        if log::log_enabled!(level) {
            let (path, outcome, id) = (facts.endpoint.path(), facts.outcome.name(), &facts.req_id);
            let trace = facts.trace_id.as_deref().unwrap_or("none");
            let error = &facts.error;
            log::log!(
                level,
                "{path} failed: {outcome}: {error}; request {id:?}; trace_id={trace}"
            );
        }
    }

    /// The connection to the upstream broke.
    pub(super) fn note_broken(&mut self, now: Stamp) {
        if let Some(sending) = self.traced.sendings.last_mut() {
            sending.broke = Some(now);
        }
    }
}
