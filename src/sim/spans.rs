//! The spans of a request, as recorded from SGLang 0.5.23 with `--enable-trace`, without one a token. They are made from a
//! sequence's timestamps when it has ended, and exported to a collector.
//!
//! Two processes of the server report spans, each with a bounded queue of its own: `Tokenizer`, which receives requests, and
//! `Scheduler`. Children are sent before their parent, as SGLang sends a span when it has ended.

use std::time::Duration;

use Process::{Scheduler, Tokenizer};
use opentelemetry::propagation::TextMapPropagator as _;
use opentelemetry::trace::{
    Event, Link, SpanContext, SpanId, SpanKind, Status, TraceContextExt as _, TraceFlags, TraceId,
};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_http::HeaderExtractor;
use opentelemetry_otlp::{ExporterBuildError, SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, SpanData, SpanEvents, SpanExporter as _, SpanLinks,
    SpanProcessor as _,
};

use crate::clock::Stamp;

use super::Accepted;
use super::config::{Mode, Telemetry};
use super::engine::EventKind;
use super::sequence::{QUEUE_FULL, Sequence};

/// The process of the server that reports a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Process {
    Tokenizer,
    Scheduler,
}

/// The values that all spans of a server share, and the queues of both processes.
#[derive(Debug)]
pub(super) struct Tracer {
    /// 32 hexadecimal digits.
    host: String,
    /// The tokenizer's process id; the scheduler's is the next number.
    pid: i64,
    /// By [`Process`].
    queues: [BatchSpanProcessor; 2],
}

/// The context of the spans of one sequence.
struct Spans<'a> {
    tracer: &'a Tracer,
    accepted: &'a Accepted,
    sequence: &'a Sequence,
    /// When it ended.
    finish: Stamp,
    mode: Mode,
    /// That of the request's `traceparent`, the parent of the root; invalid if there is none.
    remote: SpanContext,
    trace: TraceId,
    root: SpanId,
    /// The span of each [`Process`], by its number.
    threads: [SpanId; 2],
}

/// A stage: its name, its end, and the end to report if it did not finish (`None`: then it is not reported).
type Stage = (&'static str, Option<Stamp>, Option<Stamp>);

/// SGLang's `reason` on a thread's span that was never closed.
const UNCLOSED: &str = "have unclosed span, auto closed";

/// Spans queued in a process. More are lost, as in SGLang, whose queue holds 2,048; here enough that none is lost while the
/// collector keeps up.
const MAX_QUEUED_SPANS: usize = 32_768;
/// Spans in a batch, as SGLang sets it.
const MAX_BATCH_SPANS: usize = 64;
/// The longest that a span waits for a full batch, as SGLang sets it.
const BATCH_INTERVAL: Duration = Duration::from_millis(500);

/// Sends the spans of a sequence that ended, or whose client left, at `finish`.
pub(super) fn send(accepted: &Accepted, sequence: &Sequence, finish: Stamp) {
    let Some(spans) = Spans::new(accepted, sequence, finish) else {
        return;
    };
    spans.send_stages();
    let mut thread = spans.thread(Scheduler, accepted.dispatched, finish);
    match sequence.tokens.last() {
        Some(last) => {
            // A prefill server has finished when the KV cache has been sent.
            let sent = (spans.mode == Mode::Prefill).then_some(sequence.moments.first_token);
            thread.end_time = sent.flatten().unwrap_or(*last).into();
        }
        // The span of a request that never ran is not closed.
        None => {
            let is_rejected = sequence.ending == Some(EventKind::Rejected);
            let reason = if is_rejected { QUEUE_FULL } else { UNCLOSED };
            thread.status = Status::error("");
            thread.attributes.push(KeyValue::new("reason", reason));
        }
    }
    // At a retraction all stages have ended, so the event belongs to the thread's span.
    let retracted = sequence.retractions.iter();
    let retracted = retracted.map(|one| Event::new("retract", one.at.into(), Vec::new(), 0));
    thread.events.events.extend(retracted);
    spans.tracer.send(Scheduler, thread);
    let thread = spans.thread(Tokenizer, accepted.received, accepted.dispatched);
    spans.tracer.send(Tokenizer, thread);
    spans.tracer.send(Tokenizer, spans.root());
}

impl<'a> Spans<'a> {
    /// Returns `None` if the request has no spans.
    fn new(accepted: &'a Accepted, sequence: &'a Sequence, finish: Stamp) -> Option<Spans<'a>> {
        let tracer = accepted.shared.tracer.as_ref()?;
        let headers = HeaderExtractor(&accepted.headers);
        let remote = TraceContextPropagator::new().extract(&headers);
        let remote = remote.span().span_context().clone();
        let trace = match remote.is_valid() {
            true if !remote.is_sampled() => return None,
            true => remote.trace_id(),
            // One of SGLang's own has 64 bits.
            false => TraceId::from(u128::from(rand::random::<u64>().max(1))),
        };
        Some(Spans {
            tracer,
            accepted,
            sequence,
            finish,
            mode: accepted.shared.mode(),
            remote,
            trace,
            root: SpanId::from_bytes(rand::random()),
            threads: rand::random::<[_; 2]>().map(SpanId::from_bytes),
        })
    }

    /// Sends the stages, the children of the threads. Each begins where the one before ended.
    fn send_stages(&self) {
        let (mut from, mut before) = (self.accepted.received, None);
        for (nth, (name, to, unfinished_to)) in self.stages().into_iter().enumerate() {
            let Some(end) = to.or(unfinished_to) else {
                break;
            };
            let process = if nth < 2 { Tokenizer } else { Scheduler };
            let id = SpanId::from_bytes(rand::random());
            let parent = self.threads[process as usize];
            let mut span = self.span(name, id, parent, from, end);
            // Each is linked to the one before.
            let link = before.replace(id).map(|id| self.context(id));
            span.links.links.extend(link.map(Link::with_context));
            if name == "decode_forward" {
                self.send_later_prefills(id);
            }
            self.tracer.send(process, span);
            if to.is_none() {
                break;
            }
            from = end;
        }
    }

    /// The stages: two of the tokenizer, then the scheduler's, by the server's mode.
    fn stages(&self) -> Vec<Stage> {
        let (received, dispatched) = (self.accepted.received, self.accepted.dispatched);
        // Nine tenths of the time until the scheduler gets the request are tokenizing.
        let tokenized = received.plus_nanos(dispatched.nanos_since(received) / 10 * 9);
        let (sequence, moments, end) = (self.sequence, self.sequence.moments, Some(self.finish));
        let (queued, admitted) = (moments.queue_start, moments.queue_end);
        let prefilled = sequence.prefill_end();
        let decoded = sequence.tokens.last().copied();
        let prepared = moments.bootstrap_start.or(queued);
        let mut stages = vec![
            ("tokenize", Some(tokenized), None),
            ("api_server_dispatch", Some(dispatched), None),
        ];
        let decoded_here = decoded.filter(|_| sequence.generated() > 1);
        let of_scheduler: &[Stage] = match self.mode {
            Mode::Null => &[
                ("request_process", queued, None),
                ("prefill_waiting", admitted, None),
                ("prefill_forward", prefilled, end),
                ("decode_forward", decoded_here, None),
            ],
            Mode::Prefill => &[
                ("prefill_prepare", prepared, None),
                ("prefill_bootstrap", queued, end),
                ("prefill_waiting", admitted, None),
                ("prefill_forward", prefilled, end),
                ("prefill_transfer_kv_cache", moments.first_token, None),
            ],
            Mode::Decode => &[
                ("decode_prepare", prepared, None),
                ("decode_bootstrap", moments.reserved, end),
                ("decode_transferred", queued, end),
                ("decode_waiting", admitted, None),
                ("decode_forward", decoded, None),
            ],
        };
        stages.extend(of_scheduler);
        stages
    }

    /// Sends a span for each prefill after a retraction.
    fn send_later_prefills(&self, decode: SpanId) {
        for one in &self.sequence.retractions {
            let token = self.sequence.tokens.get(one.generated);
            if let Some((from, to)) = one.readmitted.zip(token.copied()) {
                let id = SpanId::from_bytes(rand::random());
                let span = self.span("prefill_forward", id, decode, from, to);
                self.tracer.send(Scheduler, span);
            }
        }
    }

    /// Makes the span of a process.
    fn thread(&self, process: Process, from: Stamp, to: Stamp) -> SpanData {
        let labels = match self.mode {
            Mode::Null => ["Tokenizer", "Scheduler"],
            Mode::Prefill => ["PrefillTokenizer", "Prefill Scheduler"],
            Mode::Decode => ["DecodeTokenizer", "Decode Scheduler"],
        };
        let (label, id) = (labels[process as usize], self.threads[process as usize]);
        let ranks = ["", " [TP 0]  [PP 0] "][process as usize];
        let (host, pid) = (&self.tracer.host, self.tracer.pid + process as i64);
        let name = format!("{label}{ranks}(host:{} | pid:{pid})", &host[..8]);
        let mut span = self.span(&name, id, self.root, from, to);
        if process == Scheduler {
            // It receives the root's context from the other process.
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

    fn root(&self) -> SpanData {
        let (sequence, received) = (self.sequence, self.accepted.received);
        // SGLang takes the part before a `_` for the id of one of its processes, and drops it.
        let rid = sequence.rid.rsplit('_').next().unwrap_or(&sequence.rid);
        let name: String = rid.chars().take(8).collect();
        let mode = match self.mode {
            Mode::Null => "",
            mode => mode.name(),
        };
        let name = format!("{mode} Req {name}");
        let parent = self.remote.span_id();
        let mut span = self.span(&name, self.root, parent, received, self.finish);
        span.parent_span_is_remote = self.remote.is_valid();
        span.attributes = vec![
            KeyValue::new("rid", rid.to_owned()),
            KeyValue::new("module", "sglang::request"),
        ];
        if let Some(bootstrap) = &sequence.bootstrap {
            let room = KeyValue::new("bootstrap_room", format!("{:#x}", bootstrap.room));
            span.attributes.push(room);
        }
        if sequence.generated() > 0 {
            let usage = [
                ("completion_tokens", sequence.generated()),
                ("prompt_tokens", sequence.prompt_tokens()),
                ("cached_tokens", sequence.cached),
            ];
            span.attributes.extend(usage.map(|(name, count)| {
                KeyValue::new(format!("gen_ai.usage.{name}"), i64::from(count))
            }));
            let id = KeyValue::new("gen_ai.request.id", sequence.rid.to_string());
            span.attributes.push(id);
        }
        if let Some(first) = sequence.moments.first_token {
            let name = "gen_ai.latency.time_to_first_token";
            let seconds = first.seconds() - received.seconds();
            span.attributes.push(KeyValue::new(name, seconds));
        }
        span
    }

    fn span(&self, name: &str, id: SpanId, parent: SpanId, from: Stamp, to: Stamp) -> SpanData {
        SpanData {
            span_context: self.context(id),
            parent_span_id: parent,
            parent_span_is_remote: false,
            span_kind: SpanKind::Internal,
            name: name.to_owned().into(),
            start_time: from.into(),
            end_time: to.max(from).into(),
            attributes: Vec::new(),
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status: Status::Unset,
            instrumentation_scope: InstrumentationScope::builder("sglang server").build(),
        }
    }

    fn context(&self, id: SpanId) -> SpanContext {
        // SGLang's exporter omits the sampled flag.
        let flags = TraceFlags::default();
        let state = self.remote.trace_state().clone();
        SpanContext::new(self.trace, id, flags, false, state)
    }
}

impl Tracer {
    /// Starts the exports of both processes, on the current Tokio runtime.
    ///
    /// # Errors
    /// If the endpoint is invalid.
    pub(super) fn start(settings: &Telemetry) -> Result<Tracer, ExporterBuildError> {
        let process = || -> Result<_, ExporterBuildError> {
            let mut exporter = SpanExporter::builder()
                .with_tonic()
                .with_endpoint(format!("http://{}", settings.otlp_traces_endpoint))
                .build()?;
            exporter.set_resource(&Resource::builder().with_service_name("sglang").build());
            let batches = BatchConfigBuilder::default()
                .with_max_queue_size(MAX_QUEUED_SPANS)
                .with_max_export_batch_size(MAX_BATCH_SPANS)
                .with_scheduled_delay(BATCH_INTERVAL);
            let processor = BatchSpanProcessor::builder(exporter);
            Ok(processor.with_batch_config(batches.build()).build())
        };
        Ok(Tracer {
            host: format!("{:032x}", rand::random::<u128>()),
            pid: i64::from(std::process::id()),
            queues: [process()?, process()?],
        })
    }

    /// Queues a span of a process; never blocks. A batch that cannot be sent is lost.
    fn send(&self, process: Process, span: SpanData) {
        self.queues[process as usize].on_end(span);
    }
}
