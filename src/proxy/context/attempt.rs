//! Attempts: a hop's at its server, which may be one of a prefill/decode pair, and how the request is sent upstream.

use parking_lot::MutexGuard;
use serde_json::Value;

use crate::clock::Stamp;
use crate::proxy::shared::Role;
use crate::request::{
    Attempt, FailedAttempt, MAX_FAILED, Moment, Outcome, ParentSpan, Sending, ServerRole, SpanId,
};
use crate::telemetry::prometheus::RequestPhase;
use crate::upstream::Address;

use super::Context;

/// How much of a `/server_info` is read, in bytes; a real server's has about 20,000.
const MAX_INFO_BYTES: usize = 1 << 20;

impl Context {
    /// At a hop: begins its attempt, and joins it to a request of the front by span or by the request id `id`.
    pub(super) fn join_attempt(&mut self, id: Option<&str>) {
        let Some(worker) = self.role.worker() else {
            return;
        };
        let (span, worker) = (SpanId::random(), worker.to_owned());
        let host = self.own_host().unwrap_or_default();
        self.so_far.span = Some(span);
        if self.shared.engine.is_some() {
            self.shared.roles.lock().expect_role(span, &worker);
        }
        let metrics = &self.shared.metrics;
        self.attempt_in_flight = Some(match self.shared.role(&worker) {
            Some(Some(ServerRole::Prefill)) => metrics.begin_leg(&worker),
            _ => metrics.begin_attempt(&worker),
        });
        let mut attempt = Attempt::new(span, worker, host, self.arrival);
        let parent = self
            .trace
            .and_then(|trace| trace.parent.zip(Some(trace.id)));
        attempt.parent = parent.map(|(span, trace)| ParentSpan { trace, span });
        let (attempt, request) = self.shared.joins.join(attempt, id);
        (self.attempt, self.request) = (Some(attempt), request);
    }

    /// Locks what is known of the hop's attempt.
    pub(super) fn attempt_data(&self) -> Option<MutexGuard<'_, Attempt>> {
        self.attempt.as_ref().map(|attempt| attempt.lock())
    }

    /// An upstream was chosen; `name` is its host and port.
    pub fn set_upstream(&mut self, name: &str, address: &Address) {
        self.upstream = name.to_owned();
        self.so_far.failed.extend(self.unconnected.take());
        let config = self.shared.config.load();
        let mut hops = config.workers.iter();
        self.is_at_server = self.is_before_servers() && !hops.any(|hop| address.is_at(hop.listen));
        if let Some(mut attempt) = self.attempt_data() {
            attempt.host = self.own_host().unwrap_or_default();
        }
    }

    /// There is a connection to the upstream; `is_reused` if it served a request before.
    pub fn connected(&mut self, is_reused: bool) {
        let label = if is_reused { "true" } else { "false" };
        let connections = &self.shared.metrics.connections;
        connections.with(&[&self.upstream, label]).inc();
        if let Some(observer) = &mut self.observer {
            observer.row_mut().upstream_reused = Some(is_reused);
        }
    }

    /// The upstream cannot be connected to, at any of its addresses, as tried since `began`. That is an attempt, of which no hop knows.
    pub fn upstream_unreachable(&mut self, began: Stamp, outcome: Outcome) {
        let now = self.shared.clock.now();
        self.trace_sending(SpanId::random(), began, Some(now));
        if self.is_before_servers() {
            self.unconnected = Some(FailedAttempt {
                host: self.upstream.clone(),
                outcome: Some(outcome),
                status: None,
                nanos: Some(now.nanos_since(began)),
            });
        }
    }

    /// The head is about to be sent upstream. Returns the `traceparent` to send, if any.
    pub fn begin_sending(&mut self) -> Option<String> {
        let now = self.shared.clock.now();
        self.so_far.forwarded = Some(now);
        self.timing.upstream_began(now);
        if let Some(in_flight) = &mut self.in_flight {
            in_flight.enter(RequestPhase::Waiting);
        }
        if self.is_at_server && self.observer.is_some() {
            self.attempt_in_flight = Some(self.shared.metrics.begin_attempt(&self.upstream));
        }
        if let Some(mut attempt) = self.attempt_data() {
            attempt.forwarded = Some(now);
        }
        let span = *self.so_far.span.get_or_insert_with(SpanId::random);
        self.trace_sending(span, now, None);
        if let Some(observer) = &mut self.observer {
            let row = observer.row_mut();
            row.span_id = Some(span);
            let moment = match self.role {
                Role::Front => Moment::Forwarded,
                Role::Hop(_) => Moment::WorkerForwarded,
            };
            row.timeline.set(moment, now);
        }
        let trace = self.trace.as_ref()?;
        // A request without a span of ours stays below its client's.
        let has_span = self.observer.is_some() || self.attempt.is_some();
        let parent = if has_span { Some(span) } else { trace.parent };
        parent.map(|parent| trace.with_parent(parent))
    }

    /// Notes a sending that began at `at`, for exported traces; with the time at which its connecting failed.
    fn trace_sending(&mut self, span: SpanId, at: Stamp, failed: Option<Stamp>) {
        let observer = self.observer.as_mut();
        let Some(observer) = observer.filter(|_| self.shared.telemetry.traces.is_some()) else {
            return;
        };
        let sendings = &mut observer.row_mut().internal.trace.sendings;
        if failed.is_none() || sendings.len() < MAX_FAILED {
            sendings.push(Sending {
                span,
                upstream: self.upstream.clone(),
                at,
                failed,
            });
        }
    }

    /// The request's body named a room, so that this is one of two legs; `None` if all of it was read and named none.
    pub(super) fn room_read(&mut self, room: Option<u64>) {
        let Some(attempt) = &self.attempt else { return };
        let mut data = attempt.lock();
        if data.room.is_some() {
            return;
        }
        let role = self.shared.role(&data.worker);
        data.room = room.filter(|_| role != Some(None));
        data.role = role.flatten();
        let (room, prefills) = (data.room, !data.may_answer());
        drop(data);
        if let Some(room) = room {
            let now = self.shared.clock.now();
            self.shared.joins.add_room(attempt, room, now);
        }
        if self.is_leg && !prefills {
            self.observer = None;
        }
    }

    /// Whether the rest of the request's body may name a room.
    pub fn may_have_room(&self) -> bool {
        let may = |worker: &str| self.observer.is_some() && self.shared.role(worker) != Some(None);
        self.attempt_data()
            .is_some_and(|attempt| attempt.room.is_none() && may(&attempt.worker))
    }

    /// At a hop: reads the response if `path` asks the server what it is.
    pub fn expect_server_info(&mut self, path: &str) {
        let asks = matches!(path, "/server_info" | "/get_server_info");
        self.server_info = (asks && self.role != Role::Front).then(Vec::new);
    }

    pub(super) fn read_server_info(&mut self, bytes: &[u8], is_end: bool) {
        let (Some(info), Some(worker)) = (&mut self.server_info, self.role.worker()) else {
            return;
        };
        let room = MAX_INFO_BYTES - info.len();
        info.extend_from_slice(&bytes[..bytes.len().min(room)]);
        if is_end
            && let Ok(info) = serde_json::from_slice::<Value>(info)
            && let Some(mode) = info["disaggregation_mode"].as_str()
        {
            // `None` if it is no server of a pair.
            let role = ServerRole::named(mode);
            self.shared.roles.lock().learn(worker, role);
        }
    }
}
