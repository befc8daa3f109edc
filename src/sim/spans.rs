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
use super::export::{Process, Tracer};
use super::sequence::{Ending, QUEUE_FULL, Sequence};
use super::shared::{Exchange, Shared};

/// The spans of one answer.
struct Spans<'a> {
    tracer: &'a Tracer,
    level: u8,
    scope: InstrumentationScope,
    trace: TraceId,
    state: TraceState,
    /// The span that the request came with; the root is its child.
    remote: Option<SpanId>,
    root: SpanId,
    tokenizer: SpanId,
    scheduler: SpanId,
    received: Stamp,
    mode: Mode,
}

/// A stage: its name, the level from which it is told, from, to.
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
    spans.stages(exchange, sequence, finish);
    let is_ranked = exchange.shared.config.dp_size > 1 && sequence.moments.queue_start.is_some();
    let rank = is_ranked.then_some(sequence.rank as i64);
    let mut thread = spans.scheduler_thread(rank, exchange.dispatched, finish);
    match (sequence.tokens.last(), sequence.ending) {
        (Some(last), _) => {
            // A server that prefills is done when the KV cache has come.
            let sent = (spans.mode == Mode::Prefill).then_some(sequence.moments.first_token);
            thread.end_time = system(sent.flatten().unwrap_or(*last));
        }
        // Nobody closes the span of what never ran.
        (None, Some(Ending::Rejected)) => unclosed(&mut thread, QUEUE_FULL),
        (None, _) => unclosed(&mut thread, UNCLOSED),
    }
    // The stages are all behind it as it is retracted: the thread's span gets the event.
    let retracted = sequence.retractions.iter();
    let retracted = retracted.map(|one| Event::new("retract", system(one.at), Vec::new(), 0));
    thread.events.events.extend(retracted);
    spans.send(Process::Scheduler, thread);
    let closes = match spans.level >= PARTS {
        true => exchange.dispatched,
        // What closes the thread's span otherwise is a part.
        false => finish,
    };
    spans.send(Process::Tokenizer, spans.tokenizer_thread(closes));
    spans.send(Process::Tokenizer, spans.root(exchange, sequence, finish));
}

/// Sends the spans of a request that was refused when it had been tokenized: nothing closes them, and their root is
/// lost.
pub(super) fn send_refused(shared: &Shared, headers: &HeaderMap, received: Stamp) {
    let Some(spans) = Spans::new(shared, headers, received) else {
        return;
    };
    let now = shared.clock.now();
    let tokenize = spans.span("tokenize", new_id(), Some(spans.tokenizer), received, now);
    spans.send(Process::Tokenizer, tokenize);
    let mut thread = spans.tokenizer_thread(now);
    unclosed(&mut thread, UNCLOSED);
    spans.send(Process::Tokenizer, thread);
}

impl<'a> Spans<'a> {
    /// `None` where nothing is to be told of a request with these headers.
    fn new(shared: &'a Shared, headers: &HeaderMap, received: Stamp) -> Option<Spans<'a>> {
        let tracer = shared.tracer.as_ref()?;
        let level = tracer.level;
        let remote = TraceContextPropagator::new().extract(&HeaderExtractor(headers));
        let remote = remote.span().span_context().clone();
        let parent = Some(&remote).filter(|parent| parent.is_valid());
        if level == 0 || parent.is_some_and(|parent| !parent.is_sampled()) {
            return None;
        }
        // 64 bits, where the server makes it up.
        let own = || TraceId::from(u128::from(rand::random::<u64>().max(1)));
        Some(Spans {
            tracer,
            level,
            scope: InstrumentationScope::builder("sglang server").build(),
            trace: parent.map_or_else(own, SpanContext::trace_id),
            state: remote.trace_state().clone(),
            remote: parent.map(SpanContext::span_id),
            root: new_id(),
            tokenizer: new_id(),
            scheduler: new_id(),
            received,
            mode: shared.mode(),
        })
    }

    fn send(&self, process: Process, span: SpanData) {
        self.tracer.send(process, span);
    }

    /// What is below the threads.
    fn stages(&self, exchange: &Exchange, sequence: &Sequence, finish: Stamp) {
        let (received, dispatched) = (self.received, exchange.dispatched);
        // Most of the time until the hand-over is tokenizing.
        let tokenized = Some(received.plus_nanos(dispatched.nanos_since(received) / 10 * 9));
        let (received, dispatched) = (Some(received), Some(dispatched));
        let made = sequence.prefill_end();
        let tokenizer: [Stage; 2] = [
            ("tokenize", 1, received, tokenized),
            ("api_server_dispatch", PARTS, tokenized, dispatched),
        ];
        let scheduler = self.scheduler_stages(exchange, sequence, finish);
        let stages = tokenizer.into_iter().chain(scheduler);
        let mut before: Option<SpanId> = None;
        for (place, (name, level, from, to)) in stages.enumerate() {
            let (Some(from), Some(to), true) = (from, to, level <= self.level) else {
                continue;
            };
            let (process, thread) = match place {
                0 | 1 => (Process::Tokenizer, self.tokenizer),
                _ => (Process::Scheduler, self.scheduler),
            };
            let id = new_id();
            let mut span = self.span(name, id, Some(thread), from, to);
            // Each is linked to the one before.
            let link = before.replace(id).map(|id| self.context(id));
            span.links.links.extend(link.map(Link::with_context));
            if name == "decode_forward" {
                if let (Mode::Decode, Some(made)) = (self.mode, made) {
                    let span = self.span("fake_output", new_id(), Some(id), from, made);
                    self.send(Process::Scheduler, span);
                }
                self.tokens(sequence, id);
            }
            self.send(process, span);
        }
    }

    /// The scheduler's stages, by what the server does of a request.
    fn scheduler_stages(
        &self,
        exchange: &Exchange,
        sequence: &Sequence,
        finish: Stamp,
    ) -> Vec<Stage> {
        let moments = sequence.moments;
        let (dispatched, end) = (Some(exchange.dispatched), Some(finish));
        let (queued, admitted) = (moments.queue_start, moments.queue_end);
        let made = sequence.prefill_end();
        let decoded = sequence.tokens.last().copied();
        let prepared = moments.bootstrap_start.or(queued);
        match self.mode {
            Mode::Null => vec![
                ("request_process", PARTS, dispatched, queued),
                ("prefill_waiting", 1, queued, admitted),
                ("prefill_forward", 1, admitted, made.or(end)),
                (
                    "decode_forward",
                    1,
                    made,
                    decoded.filter(|_| sequence.made() > 1),
                ),
            ],
            Mode::Prefill => vec![
                ("prefill_prepare", 1, dispatched, prepared),
                ("prefill_bootstrap", 1, prepared, queued.or(end)),
                ("prefill_waiting", 1, queued, admitted),
                ("prefill_forward", 1, admitted, made.or(end)),
                ("prefill_transfer_kv_cache", 1, made, moments.first_token),
            ],
            Mode::Decode => {
                let arrived = queued.filter(|_| moments.reserved.is_some());
                vec![
                    ("decode_prepare", 1, dispatched, prepared),
                    ("decode_bootstrap", 1, prepared, moments.reserved.or(end)),
                    ("decode_transferred", 1, moments.reserved, arrived.or(end)),
                    ("decode_waiting", 1, arrived, admitted),
                    ("decode_forward", 1, admitted, decoded),
                ]
            }
        }
    }

    /// A span for each token but the first, and for each prefill after a retraction.
    fn tokens(&self, sequence: &Sequence, decode: SpanId) {
        let mut count = 0_i64;
        for (place, pair) in sequence.tokens.windows(2).enumerate() {
            let (from, to, made) = (pair[0], pair[1], place + 1);
            let mut again = sequence.retractions.iter().rev();
            let again = again.find(|one| one.made == made);
            if let Some(from) = again.and_then(|one| one.readmitted) {
                let span = self.span("prefill_forward", new_id(), Some(decode), from, to);
                self.send(Process::Scheduler, span);
            } else if self.level >= TOKENS {
                let mut span = self.span("decode_loop", new_id(), Some(decode), from, to);
                span.attributes = vec![KeyValue::new("decode_ct", count)];
                count += 1;
                self.send(Process::Scheduler, span);
            }
        }
    }

    /// Of both threads.
    fn labels(&self) -> [&'static str; 2] {
        match self.mode {
            Mode::Null => ["Tokenizer", "Scheduler"],
            Mode::Prefill => ["PrefillTokenizer", "Prefill Scheduler"],
            Mode::Decode => ["DecodeTokenizer", "Decode Scheduler"],
        }
    }

    fn tokenizer_thread(&self, to: Stamp) -> SpanData {
        let pid = self.tracer.pid;
        let [label, _] = self.labels();
        self.thread(label, "", (self.tokenizer, pid), self.received, to)
    }

    fn scheduler_thread(&self, rank: Option<i64>, from: Stamp, to: Stamp) -> SpanData {
        let pid = self.tracer.pid + 1 + rank.unwrap_or(0);
        let of = rank.map_or(String::new(), |rank| format!(" [DP {rank}] "));
        let of = format!(" [TP 0]  [PP 0] {of}");
        let [_, label] = self.labels();
        let mut span = self.thread(label, &of, (self.scheduler, pid), from, to);
        // It got the root's context from the other process.
        span.parent_span_is_remote = true;
        let ranks = [
            ("tp_rank", Some(0)),
            ("pp_rank", Some(0)),
            ("dp_rank", rank),
        ];
        let ranks = ranks.into_iter();
        let ranks = ranks.filter_map(|(name, rank)| Some(KeyValue::new(name, rank?)));
        span.attributes.splice(0..0, ranks);
        span
    }

    fn thread(
        &self,
        label: &'static str,
        of: &str,
        (id, pid): (SpanId, i64),
        from: Stamp,
        to: Stamp,
    ) -> SpanData {
        let host = &self.tracer.host;
        let name = format!("{label}{of}(host:{} | pid:{pid})", &host[..8]);
        let mut span = self.span(&name, id, Some(self.root), from, to);
        span.attributes = vec![
            KeyValue::new("host_id", host.clone()),
            KeyValue::new("pid", pid),
            KeyValue::new("thread_label", label),
        ];
        span
    }

    fn root(&self, exchange: &Exchange, sequence: &Sequence, to: Stamp) -> SpanData {
        // The real server takes what stands before a `_` for an id of one of its processes.
        let cut = sequence.rid.rsplit('_').next().unwrap_or(&sequence.rid);
        let name: String = cut.chars().take(8).collect();
        let of = match self.mode {
            Mode::Null => "",
            of_a_pair => of_a_pair.name(),
        };
        let name = format!("{of} Req {name}");
        let parent = self.remote;
        let mut span = self.span(&name, self.root, parent, self.received, to);
        span.parent_span_is_remote = parent.is_some();
        span.attributes = vec![
            KeyValue::new("rid", cut.to_owned()),
            KeyValue::new("module", "sglang::request"),
        ];
        let room = sequence
            .bootstrap
            .as_ref()
            .map(|meet| format!("{:#x}", meet.room));
        let room = room.map(|room| KeyValue::new("bootstrap_room", room));
        span.attributes.extend(room);
        if sequence.made() > 0 {
            usage(&mut span.attributes, exchange, sequence);
        }
        let (received, sent) = (Some(self.received), Some(exchange.dispatched));
        let (first, to) = (sequence.moments.first_token, Some(to));
        // Seconds, in the order in which the real one writes them.
        let latencies = [
            ("time_to_first_token", received, first),
            ("e2e", received, to),
            ("time_in_model_decode", first, to),
            ("time_in_model_inference", sent, to),
            ("time_in_model_prefill", sent, first),
        ];
        let latencies = latencies.into_iter().filter_map(|(name, from, to)| {
            let seconds = to?.seconds() - from?.seconds();
            Some(KeyValue::new(format!("gen_ai.latency.{name}"), seconds))
        });
        span.attributes.extend(latencies);
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
            instrumentation_scope: self.scope.clone(),
        }
    }

    fn context(&self, id: SpanId) -> SpanContext {
        // The real one's exporter leaves the flag of sampling out.
        let flags = TraceFlags::default();
        SpanContext::new(self.trace, id, flags, false, self.state.clone())
    }
}

fn usage(to: &mut Vec<KeyValue>, exchange: &Exchange, sequence: &Sequence) {
    for (name, count) in [
        ("completion_tokens", sequence.made()),
        ("prompt_tokens", sequence.prompt_tokens()),
        ("cached_tokens", sequence.cached),
    ] {
        let name = format!("gen_ai.usage.{name}");
        to.push(KeyValue::new(name, i64::from(count)));
    }
    to.push(KeyValue::new("gen_ai.request.id", sequence.rid.to_string()));
    let reason = match sequence.ending {
        Some(Ending::Length) => "[\"length\"]",
        _ => "[\"abort\"]",
    };
    let model = exchange.shared.config.model.clone();
    to.push(KeyValue::new("gen_ai.response.model", model));
    to.push(KeyValue::new("gen_ai.response.finish_reasons", reason));
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
