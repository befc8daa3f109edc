//! What the server tells of requests outside of its responses: spans, and lines of the request log.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use bytes::BytesMut;
use tokio_util::sync::CancellationToken;

use crate::clock::{Clock, Stamp};

use super::Error;
use super::call::{Asked, Call};
use super::driver::{Update, UpdateKind};
use super::export::{Exports, Settings};
use super::parameters::{Parameters, Shown};
use super::request_log::RequestLog;
use super::sequence::{Ending, Sequence};
use super::served::Named;
use super::spans::{Origin, Process, Spans};
use super::tells::Tells;
use super::wire::{Receipt, Wire};

/// Where it is told.
#[derive(Debug)]
pub(super) struct Outside {
    tracer: Option<Tracer>,
    log: Option<RequestLog>,
}

#[derive(Debug)]
struct Tracer {
    origin: Arc<Origin>,
    exports: Exports,
    level: AtomicU8,
}

/// What is told of one request.
#[derive(Debug)]
pub(super) struct Telling {
    parameters: Parameters,
    /// Those of each sequence.
    spans: Vec<Option<Spans>>,
}

/// The request that something is told of.
pub(super) struct Of<'a> {
    pub wire: &'a Wire,
    pub named: &'a Named,
    pub receipt: &'a Receipt,
}

impl Outside {
    /// Opens what the flags ask for; spans are sent until `stop`.
    ///
    /// # Errors
    /// A folder that cannot be made, an endpoint that is none.
    pub(super) fn start(
        tells: &Tells,
        model: &str,
        clock: &Clock,
        stop: &CancellationToken,
    ) -> Result<Outside, Error> {
        let tracer = tells.enable_trace.then(|| {
            let settings = Settings {
                endpoint: tells.otlp_traces_endpoint.clone(),
                delay: Duration::from_millis(u64::from(tells.trace_delay_ms)),
                loss: tells.trace_loss,
                is_shuffled: tells.trace_shuffle,
            };
            let exports = Exports::start(&settings, clock, stop)
                .map_err(|error| Error::Start(std::io::Error::other(error)))?;
            Ok(Tracer {
                origin: Arc::new(Origin::new(model.to_owned())),
                exports,
                level: AtomicU8::new(tells.trace_level),
            })
        });
        let level = tells.log_requests_level;
        let shown = Shown {
            prompt: !tells.log_requests || level >= 2,
            sampling: !tells.log_requests || level >= 1,
        };
        let folder = tells.export_metrics_to_file_dir.clone();
        let log = folder.filter(|_| tells.export_metrics_to_file).map(|path| {
            RequestLog::create(path.clone(), shown)
                .map_err(|source| Error::MetricsFolder { path, source })
        });
        Ok(Outside {
            tracer: tracer.transpose()?,
            log: log.transpose()?,
        })
    }

    /// Another level of tracing for the requests from now on.
    pub(super) fn set_trace_level(&self, level: u8) {
        if let Some(tracer) = &self.tracer {
            tracer.level.store(level, Ordering::Relaxed);
        }
    }

    /// A request was understood; `None` where nothing is to be told of it.
    pub(super) fn begin(&self, call: &Call, of: &Of<'_>, body: &[u8]) -> Option<Telling> {
        if self.tracer.is_none() && self.log.is_none() {
            return None;
        }
        let parameters = Parameters::read(call.endpoint, call.stream, call.n, body);
        let is_copy = call.n > 1;
        let spans = call.sequences.iter().enumerate().map(|(index, asked)| {
            if index % call.n.max(1) == 0 && is_copy {
                self.fill_cache(asked, &parameters, of);
            }
            let mut spans = self.spans(of, is_copy)?;
            self.send(|send| spans.dispatched(send));
            Some(spans)
        });
        let spans = spans.collect();
        Some(Telling { parameters, spans })
    }

    /// A request was refused after it had been tokenized.
    pub(super) fn refused(&self, of: &Of<'_>, now: Stamp) {
        if let Some(mut spans) = self.spans(of, false) {
            self.send(|send| spans.refused(now, send));
        }
    }

    /// What the real server does of its own for a prompt with several answers.
    fn fill_cache(&self, asked: &Asked, parameters: &Parameters, of: &Of<'_>) {
        let at = of.receipt.dispatched;
        if let Some(mut spans) = self.spans(of, false) {
            self.send(|send| spans.cache_filler(&new_rid(), send));
        }
        let asked = Asked {
            rid: new_rid(),
            prompt: asked.prompt.clone(),
            prompt_tokens: asked.prompt_tokens,
            output_tokens: 0,
        };
        let mut answer = Sequence::new(0, 0, asked);
        let admitted = UpdateKind::Admitted { cached: 0 };
        for kind in [UpdateKind::Queued { rank: 0 }, admitted] {
            answer.apply(&Update::new(0, at, at, kind));
        }
        let moments = &mut answer.moments;
        (moments.prefill_end, moments.first_token, moments.finish) = (Some(at), Some(at), Some(at));
        answer.ending = Some(Ending::Length);
        if let Some(mut spans) = self.spans(of, false) {
            self.send(|send| spans.empty_answer(&answer, parameters, send));
        }
        self.log(&mut answer, parameters, of, at);
        if let Some(mut spans) = self.spans(of, false) {
            self.send(|send| spans.refused(at, send));
        }
    }

    fn spans(&self, of: &Of<'_>, is_copy: bool) -> Option<Spans> {
        let tracer = self.tracer.as_ref()?;
        let level = tracer.level.load(Ordering::Relaxed);
        let trace = rand::random::<u64>().max(1);
        (level > 0)
            .then(|| Spans::new(&tracer.origin, level, of.named, trace, of.receipt, is_copy))
            .flatten()
    }

    fn send(&self, tell: impl FnOnce(super::spans::Send<'_>)) {
        if let Some(tracer) = &self.tracer {
            tell(&mut |process: Process, span| tracer.exports.send(process, span));
        }
    }

    fn log(&self, sequence: &mut Sequence, parameters: &Parameters, of: &Of<'_>, now: Stamp) {
        let Some(log) = &self.log else { return };
        let received = of.wire.perf(of.receipt.received);
        let parameters = parameters.told(sequence, of.named, received, log.shown);
        // The event that tells the client the same is still to be sent.
        let sent = sequence.moments.first_sent;
        let mut out = BytesMut::new();
        of.wire.meta_info(&mut out, of.receipt, sequence, now);
        sequence.moments.first_sent = sent;
        log.append(&parameters, &String::from_utf8_lossy(&out), now);
    }
}

impl Telling {
    /// The engine told something, which `sequence` has taken in. `now` is given while somebody listens.
    pub(super) fn update(
        &mut self,
        outside: &Outside,
        of: &Of<'_>,
        sequence: &mut Sequence,
        update: &Update,
        now: Option<Stamp>,
    ) {
        let moments = &sequence.moments;
        if let Some(Some(spans)) = self.spans.get_mut(sequence.index) {
            outside.send(|send| match update.kind {
                UpdateKind::Queued { rank } => {
                    let rank = Some(rank).filter(|_| of.wire.ranks > 1);
                    spans.queued(rank, update.at, send);
                }
                UpdateKind::Admitted { .. } if sequence.made > 0 || sequence.retractions > 0 => {
                    spans.readmitted(update.at);
                }
                UpdateKind::Admitted { .. } => {
                    let from = moments.queue_start.unwrap_or(update.at);
                    spans.admitted(from, update.at, send);
                }
                UpdateKind::Retracted => spans.retracted(update.at),
                UpdateKind::Token { last } if sequence.made == 1 => {
                    let from = moments.queue_end.unwrap_or(update.at);
                    spans.prefilled(from, update.at, !last, send);
                }
                UpdateKind::Token { last } => spans.decoded(update.at, last, send),
                UpdateKind::Rejected | UpdateKind::Aborted(_) => {}
            });
        }
        if sequence.ending.is_none() {
            return;
        }
        self.ended(outside, sequence, update.told);
        if let Some(now) = now {
            outside.log(sequence, &self.parameters, of, now);
        }
    }

    /// A sequence ended, or its client left, at `finish`.
    pub(super) fn ended(&mut self, outside: &Outside, sequence: &Sequence, finish: Stamp) {
        let spans = self.spans.get_mut(sequence.index);
        if let Some(mut spans) = spans.and_then(Option::take) {
            let parameters = &self.parameters;
            outside.send(|send| spans.ended(sequence, parameters, finish, send));
        }
    }
}

/// A request id of the server's own: 32 hexadecimal digits.
fn new_rid() -> String {
    format!("{:032x}", rand::random::<u128>())
}
