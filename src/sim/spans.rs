//! The spans that SGLang 0.5.23 with `--enable-trace` tells of a request, in the shapes recorded from it.
//!
//! Two processes of the server tell: the one that takes requests (`Tokenizer`) and the one that schedules
//! them. A span is told when it has ended, so children come before what they are part of. Pure but for the
//! ids of spans, which are random.

use std::sync::Arc;

use opentelemetry::KeyValue;
use opentelemetry::trace::{SpanId, Status, TraceState};
use opentelemetry_sdk::trace::SpanData;

use crate::clock::Stamp;

use super::parameters::Parameters;
use super::sequence::{Ending, Sequence};
use super::served::Named;
use super::span::{Chain, Plan, event, new_id, plan, schedule, system};
use super::wire::Receipt;

/// Which process of the server tells a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Process {
    Tokenizer,
    Scheduler,
}

/// Takes spans as they end.
pub(super) type Send<'a> = &'a mut dyn FnMut(Process, SpanData);

/// What is the same for all spans of a server.
#[derive(Debug)]
pub(super) struct Origin {
    /// 32 hexadecimal digits.
    host: String,
    tokenizer: i64,
    scheduler: i64,
    model: String,
}

/// The spans of one sequence, told one after the other.
#[derive(Debug)]
pub(super) struct Spans {
    origin: Arc<Origin>,
    level: u8,
    chain: Chain,
    /// The span that the request came with; the root is its child.
    remote: Option<SpanId>,
    root: SpanId,
    tokenizer: SpanId,
    scheduler: SpanId,
    decode: SpanId,
    /// The request came with others of its prompt: what is nested differs.
    is_copy: bool,
    received: Stamp,
    dispatched: Stamp,
    /// The end of the token before.
    token: Option<Stamp>,
    decode_count: i64,
    /// When it was taken out of the batch.
    retracted: Vec<Stamp>,
    /// It was taken in again, and is prefilled anew.
    readmitted: Option<Stamp>,
    /// Its data-parallel rank, of several.
    rank: Option<i64>,
}

/// The level from which the parts of stages are told.
const PARTS: u8 = 2;
/// The level from which every token is told.
const TOKENS: u8 = 3;
/// How the real one marks a thread's span that nothing closed.
const UNCLOSED: &str = "have unclosed span, auto closed";

impl Origin {
    pub(super) fn new(model: String) -> Origin {
        let pid = i64::from(std::process::id());
        Origin {
            host: format!("{:032x}", rand::random::<u128>()),
            tokenizer: pid,
            scheduler: pid + 1,
            model,
        }
    }
}

impl Spans {
    /// Spans of a sequence of the request `named`, at a level from 1 to 3; `None` where its `traceparent`
    /// says that it is not sampled. `trace` is for a request that came without one.
    pub(super) fn new(
        origin: &Arc<Origin>,
        level: u8,
        named: &Named,
        trace: u64,
        receipt: &Receipt,
        is_copy: bool,
    ) -> Option<Spans> {
        let parent = named.parent();
        if parent.is_some_and(|parent| !parent.is_sampled) {
            return None;
        }
        let trace = parent.map_or(u128::from(trace), |parent| parent.trace);
        Some(Spans {
            origin: origin.clone(),
            level,
            chain: Chain::new(trace, trace_state(named)),
            remote: parent.map(|parent| SpanId::from_bytes(parent.span.to_be_bytes())),
            root: new_id(),
            tokenizer: new_id(),
            scheduler: new_id(),
            decode: new_id(),
            is_copy,
            received: receipt.received,
            dispatched: receipt.dispatched,
            token: None,
            decode_count: 0,
            retracted: Vec::new(),
            readmitted: None,
            rank: None,
        })
    }

    /// It was tokenized and handed to the scheduler.
    pub(super) fn dispatched(&mut self, send: Send<'_>) {
        let (from, to) = (self.received, self.dispatched);
        // Most of the time until the hand-over is tokenizing.
        let tokenized = from.plus_nanos(to.nanos_since(from) / 10 * 9);
        let tokenize = plan("tokenize", self.tokenizer, from, tokenized);
        let tokenize_id = tokenize.id;
        let span = self.chain.linked(tokenize);
        if self.is_copy {
            // The copies share one tokenizing, which ends with the hand-over of each.
            let mut span = span;
            span.end_time = system(to);
            if self.level >= PARTS {
                let dispatch = plan("api_server_dispatch", tokenize_id, tokenized, to);
                send(Process::Tokenizer, self.chain.span(dispatch));
            }
            send(Process::Tokenizer, span);
        } else {
            send(Process::Tokenizer, span);
            if self.level >= PARTS {
                let dispatch = plan("api_server_dispatch", self.tokenizer, tokenized, to);
                let span = self.chain.linked(dispatch);
                send(Process::Tokenizer, span);
            }
        }
        if self.level >= PARTS {
            send(Process::Tokenizer, self.tokenizer_thread(to, false));
        }
    }

    /// It entered the waiting queue for the first time.
    pub(super) fn queued(&mut self, rank: Option<u32>, at: Stamp, send: Send<'_>) {
        self.rank = rank.map(i64::from);
        if self.level >= PARTS {
            let plan = plan("request_process", self.scheduler, self.dispatched, at);
            let span = self.chain.linked(plan);
            send(Process::Scheduler, span);
        }
    }

    /// It left the waiting queue for the first time.
    pub(super) fn admitted(&mut self, from: Stamp, at: Stamp, send: Send<'_>) {
        let plan = plan("prefill_waiting", self.scheduler, from, at);
        let span = self.chain.linked(plan);
        send(Process::Scheduler, span);
    }

    /// Its prefill ended, with the first token or, for what makes none, without.
    pub(super) fn prefilled(&mut self, from: Stamp, at: Stamp, goes_on: bool, send: Send<'_>) {
        let plan = plan("prefill_forward", self.scheduler, from, at);
        let mut span = self.chain.linked(plan);
        if self.level >= TOKENS {
            let events = &mut span.events.events;
            events.push(schedule(from, "prefill"));
            if goes_on {
                // The real one schedules the next batch before this one has ended.
                events.push(schedule(at.plus_nanos(-1).max(from), "decode"));
            }
        }
        self.token = Some(at);
        send(Process::Scheduler, span);
    }

    /// A further token was made, in a decode step or by the prefill after a retraction.
    pub(super) fn decoded(&mut self, at: Stamp, is_last: bool, send: Send<'_>) {
        let from = self.token.replace(at).unwrap_or(at);
        if let Some(from) = self.readmitted.take() {
            let span = plan("prefill_forward", self.decode, from, at);
            send(Process::Scheduler, self.chain.span(span));
            return;
        }
        if self.level < TOKENS {
            return;
        }
        let mut span = self.chain.span(plan("decode_loop", self.decode, from, at));
        span.attributes = vec![KeyValue::new("decode_ct", self.decode_count)];
        self.decode_count += 1;
        if !is_last {
            span.events.events.push(schedule(from, "decode"));
        }
        send(Process::Scheduler, span);
    }

    /// It was taken out of the batch, to wait again.
    pub(super) fn retracted(&mut self, at: Stamp) {
        self.retracted.push(at);
    }

    /// It left the waiting queue again.
    pub(super) fn readmitted(&mut self, at: Stamp) {
        self.readmitted = Some(at);
    }

    /// It ended, or its client left, at `finish`.
    pub(super) fn ended(
        &mut self,
        sequence: &Sequence,
        parameters: &Parameters,
        finish: Stamp,
        send: Send<'_>,
    ) {
        self.scheduler_ended(sequence, finish, send);
        if self.level < PARTS {
            // What closes the thread's span otherwise is a part.
            send(Process::Tokenizer, self.tokenizer_thread(finish, false));
        }
        let mut root = self.root(&sequence.rid, finish);
        if sequence.made > 0 {
            self.usage(&mut root.attributes, sequence, parameters);
        }
        self.latencies(&mut root.attributes, sequence.moments.first_token, finish);
        send(Process::Tokenizer, root);
    }

    fn scheduler_ended(&mut self, sequence: &Sequence, finish: Stamp, send: Send<'_>) {
        let moments = &sequence.moments;
        let Some(token) = self.token else {
            // Nobody closes the span of what never ran.
            let mut thread = self.scheduler_thread(finish);
            thread.status = Status::error("");
            let reason = match sequence.ending {
                Some(Ending::Rejected) => super::wire::QUEUE_FULL,
                _ => UNCLOSED,
            };
            thread.attributes.push(KeyValue::new("reason", reason));
            if let (Some(from), None) = (moments.queue_end, moments.prefill_end) {
                let plan = plan("prefill_forward", self.scheduler, from, finish);
                let span = self.chain.linked(plan);
                send(Process::Scheduler, span);
            }
            send(Process::Scheduler, thread);
            return;
        };
        if let (2.., Some(from)) = (sequence.made, moments.prefill_end) {
            let mut plan = plan("decode_forward", self.scheduler, from, token);
            plan.id = self.decode;
            let span = self.chain.linked(plan);
            send(Process::Scheduler, span);
        }
        let mut thread = self.scheduler_thread(token);
        // The stages are all behind it as it is retracted: the thread's span gets the event.
        let retracted = self.retracted.iter();
        let retracted = retracted.map(|at| event("retract", *at, Vec::new()));
        thread.events.events.extend(retracted);
        send(Process::Scheduler, thread);
    }

    /// The request was refused when it had been tokenized: nothing closes its spans, and its root is lost.
    pub(super) fn refused(&mut self, at: Stamp, send: Send<'_>) {
        let plan = plan("tokenize", self.tokenizer, self.received, at);
        send(Process::Tokenizer, self.chain.span(plan));
        send(Process::Tokenizer, self.tokenizer_thread(at, true));
    }

    /// The first of the three requests of its own that the real server makes where a prompt gets several
    /// answers: it fills the prefix cache. Nobody asks for its answer.
    pub(super) fn cache_filler(&mut self, rid: &str, send: Send<'_>) {
        let at = self.dispatched;
        self.dispatched(send);
        self.queued(None, at, send);
        self.admitted(at, at, send);
        self.prefilled(at, at, false, send);
        send(Process::Scheduler, self.scheduler_thread(at));
        let mut root = self.root(rid, at);
        self.latencies(&mut root.attributes, None, at);
        send(Process::Tokenizer, root);
    }

    /// The second: the answer to the first under an id of its own, of no tokens.
    pub(super) fn empty_answer(
        &mut self,
        sequence: &Sequence,
        parameters: &Parameters,
        send: Send<'_>,
    ) {
        let at = self.dispatched;
        let plan = plan("tokenize", self.tokenizer, self.received, at);
        send(Process::Tokenizer, self.chain.span(plan));
        send(Process::Tokenizer, self.tokenizer_thread(at, false));
        let mut root = self.root(&sequence.rid, at);
        self.usage(&mut root.attributes, sequence, parameters);
        let e2e = at.since(self.received);
        root.attributes.extend([
            KeyValue::new("gen_ai.latency.time_to_first_token", e2e),
            KeyValue::new("gen_ai.latency.e2e", e2e),
            KeyValue::new("gen_ai.latency.time_in_model_decode", 0.0),
        ]);
        send(Process::Tokenizer, root);
    }

    fn tokenizer_thread(&self, to: Stamp, is_unclosed: bool) -> SpanData {
        let origin = &self.origin;
        let name = format!(
            "Tokenizer(host:{} | pid:{})",
            &origin.host[..8],
            origin.tokenizer
        );
        let mut span = self.chain.span(Plan {
            name,
            id: self.tokenizer,
            parent: Some(self.root),
            from: self.received,
            to,
        });
        span.attributes = vec![
            KeyValue::new("host_id", origin.host.clone()),
            KeyValue::new("pid", origin.tokenizer),
            KeyValue::new("thread_label", "Tokenizer"),
        ];
        if is_unclosed {
            span.status = Status::error("");
            span.attributes.push(KeyValue::new("reason", UNCLOSED));
        }
        span
    }

    fn scheduler_thread(&self, to: Stamp) -> SpanData {
        let origin = &self.origin;
        let rank = self.rank;
        let pid = origin.scheduler + rank.unwrap_or(0);
        let name = format!(
            "Scheduler [TP 0]  [PP 0] {}(host:{} | pid:{pid})",
            rank.map_or(String::new(), |rank| format!(" [DP {rank}] ")),
            &origin.host[..8],
        );
        let mut span = self.chain.span(Plan {
            name,
            id: self.scheduler,
            parent: Some(self.root),
            from: self.dispatched,
            to,
        });
        // It got the root's context from the other process.
        span.parent_span_is_remote = true;
        span.attributes = vec![
            KeyValue::new("tp_rank", 0_i64),
            KeyValue::new("pp_rank", 0_i64),
        ];
        span.attributes
            .extend(rank.map(|rank| KeyValue::new("dp_rank", rank)));
        span.attributes.extend([
            KeyValue::new("host_id", origin.host.clone()),
            KeyValue::new("pid", pid),
            KeyValue::new("thread_label", "Scheduler"),
        ]);
        span
    }

    /// The root of the request `rid`, of which the real server takes what stands before a `_` for an id of
    /// one of its processes.
    fn root(&self, rid: &str, to: Stamp) -> SpanData {
        let cut = rid.rsplit('_').next().unwrap_or(rid);
        let name: String = cut.chars().take(8).collect();
        let mut span = self.chain.span(Plan {
            name: format!(" Req {name}"),
            id: self.root,
            parent: self.remote,
            from: self.received,
            to,
        });
        span.parent_span_is_remote = self.remote.is_some();
        span.attributes = vec![
            KeyValue::new("rid", cut.to_owned()),
            KeyValue::new("module", "sglang::request"),
        ];
        span
    }

    fn usage(&self, to: &mut Vec<KeyValue>, sequence: &Sequence, parameters: &Parameters) {
        to.extend([
            KeyValue::new("gen_ai.usage.completion_tokens", i64::from(sequence.made)),
            KeyValue::new(
                "gen_ai.usage.prompt_tokens",
                i64::from(sequence.prompt_tokens),
            ),
            KeyValue::new("gen_ai.usage.cached_tokens", i64::from(sequence.cached)),
            KeyValue::new("gen_ai.request.id", sequence.rid.to_string()),
        ]);
        parameters.attributes(to);
        let reason = match sequence.ending {
            Some(Ending::Length) => "[\"length\"]",
            _ => "[\"abort\"]",
        };
        to.extend([
            KeyValue::new("gen_ai.response.model", self.origin.model.clone()),
            KeyValue::new("gen_ai.response.finish_reasons", reason),
        ]);
    }

    /// Seconds, in the order in which the real one writes them.
    fn latencies(&self, to: &mut Vec<KeyValue>, first_token: Option<Stamp>, finish: Stamp) {
        let between = |from: Stamp, to: Stamp| to.seconds() - from.seconds();
        let mut put = |name: &'static str, seconds: Option<f64>| {
            to.extend(seconds.map(|seconds| KeyValue::new(name, seconds)));
        };
        let first = first_token;
        put(
            "gen_ai.latency.time_to_first_token",
            first.map(|first| between(self.received, first)),
        );
        put("gen_ai.latency.e2e", Some(between(self.received, finish)));
        put(
            "gen_ai.latency.time_in_model_decode",
            first.map(|first| between(first, finish)),
        );
        put(
            "gen_ai.latency.time_in_model_inference",
            Some(between(self.dispatched, finish)),
        );
        put(
            "gen_ai.latency.time_in_model_prefill",
            first.map(|first| between(self.dispatched, first)),
        );
    }
}

/// What every span of a trace repeats.
fn trace_state(named: &Named) -> TraceState {
    let text = named
        .tracestate
        .as_deref()
        .filter(|_| named.parent().is_some());
    text.and_then(|text| text.parse().ok()).unwrap_or_default()
}
