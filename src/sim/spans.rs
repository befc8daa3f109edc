//! The spans that SGLang 0.5.23 with `--enable-trace` tells of a request, in the shapes recorded from it: made when
//! an answer has ended, from its moments.
//!
//! Two processes of the server tell: the one that takes requests (`Tokenizer`) and the one that schedules
//! them. Children come before what they are part of, as the real one tells a span when it has ended.

use std::time::{Duration, SystemTime};

use http::HeaderMap;
use opentelemetry::propagation::TextMapPropagator as _;
use opentelemetry::trace::{
    Event, Link, SpanContext, SpanId, SpanKind, Status, TraceContextExt as _, TraceFlags, TraceId,
    TraceState,
};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_http::HeaderExtractor;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};

use crate::clock::Stamp;

use super::disaggregation::Mode;
use super::engine::EventKind;
use super::export::Process::{self, Scheduler, Tokenizer};
use super::export::Tracer;
use super::sequence::{QUEUE_FULL, Sequence};
use super::shared::{Exchange, Shared};

/// The spans of one answer.
struct Spans<'a> {
    tracer: &'a Tracer,
    mode: Mode,
    trace: TraceId,
    state: TraceState,
    /// The span that the request came with; the root is its child.
    remote: Option<SpanId>,
    root: SpanId,
    /// The span of each [`Process`].
    threads: [SpanId; 2],
    received: Stamp,
}

/// A stage: its name, the level from which it is told, when it ended, and where it did not: when it was cut, if that
/// is told.
type Stage = (&'static str, u8, Option<Stamp>, Option<Stamp>);

/// The level from which the parts of stages are told.
const PARTS: u8 = 2;
/// The level from which every token is told.
const TOKENS: u8 = 3;
/// How the real one marks a thread's span that nothing closed.
const UNCLOSED: &str = "have unclosed span, auto closed";

/// Sends the spans of an answer that ended, or whose client left, at `finish`.
pub(super) fn send(exchange: &Exchange, sequence: &Sequence, finish: Stamp) {
    let Some(spans) = Spans::new(&exchange.shared, &exchange.headers, exchange.received) else {
        return;
    };
    spans.send_stages(exchange, sequence, finish);
    let mut thread = spans.thread(Scheduler, exchange.dispatched, finish);
    match (sequence.tokens.last(), sequence.ending) {
        (Some(last), _) => {
            // A server that prefills is done when the KV cache has come.
            let sent = (spans.mode == Mode::Prefill).then_some(sequence.moments.first_token);
            thread.end_time = system(sent.flatten().unwrap_or(*last));
        }
        // Nobody closes the span of what never ran.
        (None, Some(EventKind::Rejected)) => unclosed(&mut thread, QUEUE_FULL),
        (None, _) => unclosed(&mut thread, UNCLOSED),
    }
    // The stages are all behind it as it is retracted: the thread's span gets the event.
    let retracted = sequence.retractions.iter();
    let retracted = retracted.map(|one| Event::new("retract", system(one.at), Vec::new(), 0));
    thread.events.events.extend(retracted);
    spans.tracer.send(Scheduler, thread);
    let closes = match spans.tracer.level >= PARTS {
        true => exchange.dispatched,
        // What closes the thread's span otherwise is a part.
        false => finish,
    };
    let thread = spans.thread(Tokenizer, exchange.received, closes);
    spans.tracer.send(Tokenizer, thread);
    let root = spans.root(sequence, finish);
    spans.tracer.send(Tokenizer, root);
}

impl<'a> Spans<'a> {
    /// `None` where nothing is to be told of a request with these headers.
    fn new(shared: &'a Shared, headers: &HeaderMap, received: Stamp) -> Option<Spans<'a>> {
        let tracer = shared.tracer.as_ref()?;
        let remote = TraceContextPropagator::new().extract(&HeaderExtractor(headers));
        let remote = remote.span().span_context().clone();
        let parent = Some(&remote).filter(|parent| parent.is_valid());
        if tracer.level == 0 || parent.is_some_and(|parent| !parent.is_sampled()) {
            return None;
        }
        // 64 bits, where the server makes it up.
        let own = || TraceId::from(u128::from(rand::random::<u64>().max(1)));
        Some(Spans {
            tracer,
            mode: shared.mode(),
            trace: parent.map_or_else(own, SpanContext::trace_id),
            state: remote.trace_state().clone(),
            remote: parent.map(SpanContext::span_id),
            root: new_id(),
            threads: [new_id(), new_id()],
            received,
        })
    }

    /// What is below the threads: stages, of which one begins where the one before ends.
    fn send_stages(&self, exchange: &Exchange, sequence: &Sequence, finish: Stamp) {
        let (received, dispatched) = (self.received, exchange.dispatched);
        // Most of the time until the hand-over is tokenizing.
        let tokenized = received.plus_nanos(dispatched.nanos_since(received) / 10 * 9);
        let tokenizer: [Stage; 2] = [
            ("tokenize", 1, Some(tokenized), None),
            ("api_server_dispatch", PARTS, Some(dispatched), None),
        ];
        let tokenizer = tokenizer.map(|stage| (Tokenizer, stage)).into_iter();
        let scheduler = self.scheduler_stages(sequence, Some(finish)).into_iter();
        let stages = tokenizer.chain(scheduler.map(|stage| (Scheduler, stage)));
        let (mut from, mut before) = (received, None);
        for (process, (name, level, to, cut)) in stages {
            let Some(end) = to.or(cut) else { break };
            if level <= self.tracer.level {
                let id = new_id();
                let above = self.threads[process as usize];
                let mut span = self.span(name, id, Some(above), from, end);
                // Each is linked to the one before.
                let link = before.replace(id).map(|id| self.context(id));
                span.links.links.extend(link.map(Link::with_context));
                if name == "decode_forward" {
                    self.send_tokens(sequence, id);
                }
                self.tracer.send(process, span);
            }
            if to.is_none() {
                break;
            }
            from = end;
        }
    }

    /// The scheduler's stages, by what the server does of a request that ended at `end`.
    fn scheduler_stages(&self, sequence: &Sequence, end: Option<Stamp>) -> Vec<Stage> {
        let moments = sequence.moments;
        let (queued, admitted) = (moments.queue_start, moments.queue_end);
        let made = sequence.prefill_end();
        let decoded = sequence.tokens.last().copied();
        let prepared = moments.bootstrap_start.or(queued);
        match self.mode {
            Mode::Null => vec![
                ("request_process", PARTS, queued, None),
                ("prefill_waiting", 1, admitted, None),
                ("prefill_forward", 1, made, end),
                (
                    "decode_forward",
                    1,
                    decoded.filter(|_| sequence.made() > 1),
                    None,
                ),
            ],
            Mode::Prefill => vec![
                ("prefill_prepare", 1, prepared, None),
                ("prefill_bootstrap", 1, queued, end),
                ("prefill_waiting", 1, admitted, None),
                ("prefill_forward", 1, made, end),
                ("prefill_transfer_kv_cache", 1, moments.first_token, None),
            ],
            Mode::Decode => vec![
                ("decode_prepare", 1, prepared, None),
                ("decode_bootstrap", 1, moments.reserved, end),
                ("decode_transferred", 1, queued, end),
                ("decode_waiting", 1, admitted, None),
                ("decode_forward", 1, decoded, None),
            ],
        }
    }

    /// A span for each token but the first, and for each prefill after a retraction.
    fn send_tokens(&self, sequence: &Sequence, decode: SpanId) {
        let mut count = 0_i64;
        for (place, pair) in sequence.tokens.windows(2).enumerate() {
            let (from, to, made) = (pair[0], pair[1], place + 1);
            let mut again = sequence.retractions.iter().rev();
            let again = again.find(|one| one.made == made);
            if let Some(from) = again.and_then(|one| one.readmitted) {
                let span = self.span("prefill_forward", new_id(), Some(decode), from, to);
                self.tracer.send(Scheduler, span);
            } else if self.tracer.level >= TOKENS {
                let mut span = self.span("decode_loop", new_id(), Some(decode), from, to);
                span.attributes = vec![KeyValue::new("decode_ct", count)];
                count += 1;
                self.tracer.send(Scheduler, span);
            }
        }
    }

    /// The span of a process.
    fn thread(&self, process: Process, from: Stamp, to: Stamp) -> SpanData {
        let labels = match self.mode {
            Mode::Null => ["Tokenizer", "Scheduler"],
            Mode::Prefill => ["PrefillTokenizer", "Prefill Scheduler"],
            Mode::Decode => ["DecodeTokenizer", "Decode Scheduler"],
        };
        let (label, id) = (labels[process as usize], self.threads[process as usize]);
        let (pid, of) = match process {
            Tokenizer => (0, ""),
            Scheduler => (1, " [TP 0]  [PP 0] "),
        };
        let (host, pid) = (&self.tracer.host, self.tracer.pid + pid);
        let name = format!("{label}{of}(host:{} | pid:{pid})", &host[..8]);
        let mut span = self.span(&name, id, Some(self.root), from, to);
        if process == Scheduler {
            // It got the root's context from the other process.
            span.parent_span_is_remote = true;
            span.attributes = ["tp_rank", "pp_rank"]
                .map(|name| KeyValue::new(name, 0_i64))
                .into();
        }
        span.attributes.extend([
            KeyValue::new("host_id", host.clone()),
            KeyValue::new("pid", pid),
            KeyValue::new("thread_label", label),
        ]);
        span
    }

    fn root(&self, sequence: &Sequence, to: Stamp) -> SpanData {
        // The real server takes what stands before a `_` for an id of one of its processes.
        let cut = sequence.rid.rsplit('_').next().unwrap_or(&sequence.rid);
        let name: String = cut.chars().take(8).collect();
        let of = match self.mode {
            Mode::Null => "",
            of_a_pair => of_a_pair.name(),
        };
        let name = format!("{of} Req {name}");
        let mut span = self.span(&name, self.root, self.remote, self.received, to);
        span.parent_span_is_remote = self.remote.is_some();
        span.attributes = vec![
            KeyValue::new("rid", cut.to_owned()),
            KeyValue::new("module", "sglang::request"),
        ];
        if let Some(meet) = &sequence.bootstrap {
            let room = KeyValue::new("bootstrap_room", format!("{:#x}", meet.room));
            span.attributes.push(room);
        }
        if sequence.made() > 0 {
            usage(&mut span.attributes, sequence);
        }
        if let Some(first) = sequence.moments.first_token {
            let name = "gen_ai.latency.time_to_first_token";
            let seconds = first.seconds() - self.received.seconds();
            span.attributes.push(KeyValue::new(name, seconds));
        }
        span
    }

    fn span(
        &self,
        name: &str,
        id: SpanId,
        parent: Option<SpanId>,
        from: Stamp,
        to: Stamp,
    ) -> SpanData {
        SpanData {
            span_context: self.context(id),
            parent_span_id: parent.unwrap_or(SpanId::INVALID),
            parent_span_is_remote: false,
            span_kind: SpanKind::Internal,
            name: name.to_owned().into(),
            start_time: system(from),
            end_time: system(to.max(from)),
            attributes: Vec::new(),
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status: Status::Unset,
            instrumentation_scope: InstrumentationScope::builder("sglang server").build(),
        }
    }

    fn context(&self, id: SpanId) -> SpanContext {
        // The real one's exporter leaves the flag of sampling out.
        let flags = TraceFlags::default();
        SpanContext::new(self.trace, id, flags, false, self.state.clone())
    }
}

fn usage(to: &mut Vec<KeyValue>, sequence: &Sequence) {
    for (name, count) in [
        ("completion_tokens", sequence.made()),
        ("prompt_tokens", sequence.prompt_tokens()),
        ("cached_tokens", sequence.cached),
    ] {
        let name = format!("gen_ai.usage.{name}");
        to.push(KeyValue::new(name, i64::from(count)));
    }
    to.push(KeyValue::new("gen_ai.request.id", sequence.rid.to_string()));
}

fn unclosed(span: &mut SpanData, reason: &'static str) {
    span.status = Status::error("");
    span.attributes.push(KeyValue::new("reason", reason));
}

fn new_id() -> SpanId {
    SpanId::from_bytes(rand::random::<u64>().max(1).to_be_bytes())
}

/// A stamp as the exporter takes it.
fn system(at: Stamp) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_nanos(at.nanos().max(0).unsigned_abs())
}
