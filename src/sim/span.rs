//! How one span is made: what all of a trace have in common, and the links from each to the one before.

use std::time::{Duration, SystemTime};

use opentelemetry::trace::{
    Event, Link, SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState,
};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};

use crate::clock::Stamp;

/// The spans of a trace, one after the other.
#[derive(Debug)]
pub(super) struct Chain {
    scope: InstrumentationScope,
    trace: TraceId,
    state: TraceState,
    last: Option<SpanId>,
}

/// What a span is made with.
pub(super) struct Plan {
    pub(super) name: String,
    pub(super) id: SpanId,
    pub(super) parent: Option<SpanId>,
    pub(super) from: Stamp,
    pub(super) to: Stamp,
}

impl Chain {
    pub(super) fn new(trace: u128, state: TraceState) -> Chain {
        Chain {
            scope: InstrumentationScope::builder("sglang server").build(),
            trace: TraceId::from_bytes(trace.to_be_bytes()),
            state,
            last: None,
        }
    }

    /// A span with a link to the one before it, which the next one links to.
    pub(super) fn linked(&mut self, plan: Plan) -> SpanData {
        let before = self.last.replace(plan.id);
        let mut span = self.span(plan);
        let link = before.map(|before| Link::with_context(self.context(before)));
        span.links.links.extend(link);
        span
    }

    /// A span that is in no chain.
    pub(super) fn span(&self, plan: Plan) -> SpanData {
        SpanData {
            span_context: self.context(plan.id),
            parent_span_id: plan.parent.unwrap_or(SpanId::INVALID),
            parent_span_is_remote: false,
            span_kind: SpanKind::Internal,
            name: plan.name.into(),
            start_time: system(plan.from),
            end_time: system(plan.to.max(plan.from)),
            attributes: Vec::new(),
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status: Status::Unset,
            instrumentation_scope: self.scope.clone(),
        }
    }

    fn context(&self, id: SpanId) -> SpanContext {
        // The real one's exporter leaves the flag of sampling out.
        let flags = TraceFlags::default();
        SpanContext::new(self.trace, id, flags, false, self.state.clone())
    }
}

/// A span below `parent`, with an id of its own.
pub(super) fn plan(name: &str, parent: SpanId, from: Stamp, to: Stamp) -> Plan {
    Plan {
        name: name.to_owned(),
        id: new_id(),
        parent: Some(parent),
        from,
        to,
    }
}

/// A batch was put together. Its size is not known here: told is the smallest.
pub(super) fn schedule(at: Stamp, mode: &'static str) -> Event {
    let batch = format!("{:08x}", rand::random::<u32>());
    let attributes = vec![
        KeyValue::new("bid", batch),
        KeyValue::new("batch_size", 1_i64),
        KeyValue::new("forward_mode", mode),
    ];
    event("schedule", at, attributes)
}

/// Something that happened within a span.
pub(super) fn event(name: &'static str, at: Stamp, attributes: Vec<KeyValue>) -> Event {
    Event::new(name, system(at), attributes, 0)
}

/// A random id.
pub(super) fn new_id() -> SpanId {
    SpanId::from_bytes(rand::random::<u64>().max(1).to_be_bytes())
}

/// A stamp as the exporter takes it.
pub(super) fn system(at: Stamp) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_nanos(at.nanos().max(0).unsigned_abs())
}
