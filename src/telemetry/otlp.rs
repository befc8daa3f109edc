//! Exports a trace per request to an OpenTelemetry collector (OTLP), from a thread of its own.
//!
//! When a request has ended and its trace is kept, its rows wait in a bounded queue. The thread makes spans of them and
//! exports these in batches. Requests never wait for the collector or fail by it: traces that cannot be exported are dropped
//! and counted, which is logged once.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio_util::sync::CancellationToken;

use crate::request::Rows;

use super::prometheus::Metrics;
use super::queue::{BackgroundThread, Deliveries, DeliveryQueue, Queue, Queued};

pub mod exporter;
pub mod settings;
pub mod spans;

use exporter::Exporter;
use settings::{ExportSettings, KeepReason, Otlp};

/// The handle of the exporting thread. Share it by reference.
#[derive(Debug)]
pub struct Traces {
    exports: DeliveryQueue<Trace>,
    closing: CancellationToken,
    metrics: Metrics,
    keys: Otlp,
}

/// A request whose trace is kept.
#[derive(Debug)]
struct Trace {
    rows: Rows,
    id: u128,
    reason: KeepReason,
}

/// The state of the exporting thread.
struct Sender {
    receiver: UnboundedReceiver<Queued<Trace>>,
    /// The number of traces that were taken from the queue and are not yet exported or lost.
    taken: usize,
    deliveries: Arc<Deliveries>,
    metrics: Metrics,
    exporter: Exporter,
    /// The number of rows for which an export does not wait for more.
    full_batch: usize,
    delay: Duration,
}

/// The number of rows for which an export does not wait for more, unless the queue is smaller; each makes about ten spans.
const FULL_BATCH_ROWS: usize = 64;
/// The number of rows after which a batch takes no further request: collectors take messages of 4 MiB over gRPC.
const MAX_BATCH_ROWS: usize = 512;
/// How long the last exports of a proxy may take when it ends.
pub const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(3);

impl Traces {
    /// Starts the thread. `instance` identifies this process; `shutdown_timeout` limits the last exports.
    ///
    /// # Errors
    /// No exporter can be made, as TLS cannot be set up, or the system provides no thread. An unreachable collector is not an
    /// error.
    pub fn start(
        settings: &ExportSettings,
        instance: String,
        metrics: Metrics,
        shutdown_timeout: Duration,
    ) -> io::Result<Traces> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let capacity = settings.given.queue.get() as usize;
        let (queue, receiver) = Queue::new(capacity);
        let closing = CancellationToken::new();
        let (sent, lost) = (metrics.traces_exported.with(&[]), &metrics.traces_dropped);
        let deliveries = Deliveries::new("traces", settings.target(), sent, lost);
        let mut sender = Sender {
            receiver,
            taken: 0,
            deliveries: deliveries.clone(),
            metrics: metrics.clone(),
            exporter: Exporter::new(settings, instance)?,
            full_batch: FULL_BATCH_ROWS.min(capacity),
            delay: settings.given.delay_s.get(),
        };
        let closed = closing.clone();
        let run = move || {
            runtime.block_on(async {
                let end = async {
                    closed.cancelled().await;
                    tokio::time::sleep(shutdown_timeout).await;
                };
                tokio::select! {
                    () = sender.send() => {}
                    () = end => {}
                }
                let left = sender.taken + sender.receiver.len();
                sender.deliveries.end(left);
            });
            // Does not wait for a name lookup that still runs.
            runtime.shutdown_background();
        };
        Ok(Traces {
            exports: DeliveryQueue {
                queue,
                deliveries,
                thread: BackgroundThread::spawn("traces", run)?,
            },
            closing,
            metrics,
            keys: settings.given.clone(),
        })
    }

    /// Enqueues the trace of an ended request if it is kept. Never waits.
    pub fn record(&self, rows: &Rows) {
        let id = spans::trace_of(rows);
        let Some(reason) = self.keys.keep_reason(rows, id) else {
            return self.metrics.traces_sampled_out.with(&[]).inc();
        };
        let (rows, weight) = (rows.clone(), rows.len());
        if self.exports.push(Trace { rows, id, reason }, weight, 1) {
            self.metrics.trace_queue.with(&[]).add(weight as i64);
        }
    }

    /// Returns why the last traces were lost; `None` if none was, or if they only waited when the time was over.
    pub fn last_error(&self) -> Option<String> {
        self.exports.deliveries.last_error()
    }

    /// Exports the queued traces, within a time limit, and ends the thread. Blocks.
    pub fn close(&self) {
        // First, so that what is left when the time is over can be counted.
        self.exports.queue.close();
        self.closing.cancel();
        self.exports.close();
    }
}

impl Drop for Traces {
    fn drop(&mut self) {
        self.close();
    }
}

impl Sender {
    /// Exports until the queue is closed and empty.
    async fn send(&mut self) {
        loop {
            let batch = self.batch().await;
            if batch.is_empty() {
                return;
            }
            let spans = batch
                .iter()
                .flat_map(|trace| spans::spans(&trace.rows, trace.id, trace.reason));
            match self.exporter.export(spans.collect()).await {
                Ok(()) => self.deliveries.sent(batch.len(), false),
                Err(error) => {
                    let (reason, message) = (error.reason, &error.message);
                    self.deliveries.lost(reason, message, batch.len());
                }
            }
            self.taken = 0;
        }
    }

    /// Waits for a full batch, for the delay, or until the queue is closed. Returns what has come by then; nothing at the end.
    async fn batch(&mut self) -> Vec<Trace> {
        let (mut batch, mut rows) = (Vec::new(), 0);
        let mut next = self.receiver.recv().await;
        let wait = tokio::time::sleep(self.delay);
        let mut wait = std::pin::pin!(wait);
        while let Some((trace, _permit)) = next {
            rows += trace.rows.len();
            self.taken += 1;
            batch.push(trace);
            next = match rows {
                MAX_BATCH_ROWS.. => None,
                rows if rows >= self.full_batch => self.receiver.try_recv().ok(),
                _ => tokio::select! {
                    biased;
                    next = self.receiver.recv() => next,
                    () = &mut wait => None,
                },
            };
        }
        self.metrics.trace_queue.with(&[]).sub(rows as i64);
        batch
    }
}

#[cfg(test)]
mod tests;
