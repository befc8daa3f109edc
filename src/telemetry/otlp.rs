//! Exports a trace per request to an OpenTelemetry collector (OTLP), from a thread of its own.
//!
//! When a request has ended and its trace is kept, its rows wait in a bounded queue. The thread makes spans of them and
//! exports these in batches. Requests never wait for the collector or fail by it: traces that cannot be exported are dropped
//! and counted, which is logged once.

use std::sync::Arc;
use std::time::Duration;

use opentelemetry::InstrumentationScope;
use opentelemetry_otlp::ExporterBuildError;
use tokio::runtime::Builder;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio_rustls::rustls;
use tokio_util::sync::CancellationToken;

use crate::request::row::Rows;

use super::background_thread::BackgroundThread;
use super::loss::LossLog;
use super::prometheus::{Dropped, Metrics};
use super::queue::{Queue, Queued, Refused};

pub mod attributes;
pub mod collector;
pub mod exporter;
pub mod sampling;
pub mod settings;
pub mod spans;

use collector::Deliveries;
use exporter::Exporter;
use sampling::KeepReason;
use settings::{Otlp, Settings};

/// The handle of the exporting thread. Share it by reference.
#[derive(Debug)]
pub struct Traces {
    queue: Arc<Queue<Trace>>,
    closing: CancellationToken,
    deliveries: Arc<Deliveries>,
    metrics: Metrics,
    keys: Otlp,
    thread: BackgroundThread,
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
    queue: Arc<Queue<Trace>>,
    closing: CancellationToken,
    deliveries: Arc<Deliveries>,
    metrics: Metrics,
    exporter: Exporter,
    delay: Duration,
    scope: InstrumentationScope,
}

/// Why traces cannot be exported.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The library cannot make an exporter.
    #[error("traces cannot be exported: {0}")]
    Exporter(#[from] ExporterBuildError),
    /// TLS cannot be set up.
    #[error("traces cannot be exported over TLS: {0}")]
    Tls(#[from] rustls::Error),
    /// The system provides no thread.
    #[error("cannot start the thread that exports traces: {0}")]
    Thread(#[from] std::io::Error),
}

/// The number of rows for which an export does not wait for more; each makes about ten spans.
const FULL_BATCH_ROWS: usize = 64;
/// The number of rows after which a batch takes no further request: collectors take messages of 4 MiB over gRPC.
const MAX_BATCH_ROWS: usize = 512;
/// How often the thread checks for a full batch, so that it is not woken for each trace.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// How long the last exports of a proxy may take when it ends.
pub const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(3);

impl Traces {
    /// Starts the thread. `instance` identifies this process; `shutdown_timeout` limits the last exports.
    ///
    /// # Errors
    /// See [`Error`]. An unreachable collector is not an error.
    pub fn start(
        settings: &Settings,
        instance: String,
        metrics: Metrics,
        shutdown_timeout: Duration,
    ) -> Result<Traces, Error> {
        let exporter = Exporter::new(settings, instance)?;
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (queue, receiver) = Queue::new(settings.given.queue.get() as usize);
        let queue = Arc::new(queue);
        let closing = CancellationToken::new();
        let deliveries = Arc::new(Deliveries {
            what: "traces",
            target: settings.target(),
            sent: metrics.traces_exported.with(&[]),
            lost: metrics.traces_dropped.clone(),
            pending: 0.into(),
            log: LossLog::default(),
        });
        let sender = Sender {
            receiver,
            queue: queue.clone(),
            closing: closing.clone(),
            deliveries: deliveries.clone(),
            metrics: metrics.clone(),
            exporter,
            delay: settings.given.delay_s.get(),
            scope: InstrumentationScope::builder("queuescope")
                .with_version(env!("CARGO_PKG_VERSION"))
                .build(),
        };
        let run = move || {
            runtime.block_on(sender.run(shutdown_timeout));
            // Does not wait for a name lookup that still runs.
            runtime.shutdown_background();
        };
        let panic_message = "traces: the thread that exports them failed";
        Ok(Traces {
            queue,
            closing,
            deliveries,
            metrics,
            keys: settings.given.clone(),
            thread: BackgroundThread::spawn("traces", panic_message, run)?,
        })
    }

    /// Enqueues the trace of an ended request if it is kept. Never waits.
    pub fn record(&self, rows: &Rows) {
        let id = spans::trace_of(rows);
        let Some(reason) = self.keys.keep_reason(rows, id) else {
            return self.metrics.traces_sampled_out.with(&[]).inc();
        };
        self.deliveries.begin();
        let (rows, weight) = (rows.clone(), rows.len());
        if let Err((_, refused)) = self.queue.push(Trace { rows, id, reason }, weight) {
            let (reason, message) = match refused {
                Refused::Full => (Dropped::QueueFull, "too many wait to be exported"),
                Refused::Closed => (Dropped::Shutdown, "this process ends"),
            };
            return self.deliveries.lost(reason, message, 1);
        }
        let queued = self.queue.weight();
        self.metrics.trace_queue.with(&[]).set(queued as i64);
    }

    /// The same, but first waits for room in the queue, up to `timeout`, unless traces are being lost already. Blocks.
    pub fn record_blocking(&self, rows: &Rows, timeout: Duration) {
        if !self.deliveries.log.is_losing() {
            self.queue.wait_for_room(rows.len(), timeout);
        }
        self.record(rows);
    }

    /// Exports the queued traces, within a time limit, and ends the thread. Blocks.
    pub fn close(&self) {
        self.queue.close();
        self.closing.cancel();
        self.thread.join();
    }
}

impl Drop for Traces {
    fn drop(&mut self) {
        self.close();
    }
}

impl Sender {
    /// Exports until the queue is closed and empty, or for `shutdown_timeout` after the closing.
    async fn run(mut self, shutdown_timeout: Duration) {
        let (closing, deliveries) = (self.closing.clone(), self.deliveries.clone());
        let end = async {
            closing.cancelled().await;
            tokio::time::sleep(shutdown_timeout).await;
        };
        tokio::select! {
            () = self.send() => {}
            () = end => {}
        }
        deliveries.end();
    }

    async fn send(&mut self) {
        while let Some(first) = self.receiver.recv().await {
            let _ = tokio::time::timeout(self.delay, self.full_batch()).await;
            let batch = self.batch(first);
            let traces = batch.len();
            let spans = batch
                .iter()
                .flat_map(|trace| spans::spans(&trace.rows, trace.id, trace.reason, &self.scope));
            match self.exporter.export(spans.collect()).await {
                Ok(()) => self.deliveries.sent(traces),
                Err(error) => self.deliveries.lost(error.reason, &error.message, traces),
            }
        }
    }

    /// Waits until there is a full batch, or no more traces are accepted.
    async fn full_batch(&self) {
        let rows = FULL_BATCH_ROWS.min(self.queue.capacity());
        while self.queue.weight() < rows && !self.closing.is_cancelled() {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Returns a batch that begins with `first`.
    fn batch(&mut self, (first, permit): Queued<Trace>) -> Vec<Trace> {
        drop(permit);
        let mut rows = first.rows.len();
        let mut batch = vec![first];
        while rows < MAX_BATCH_ROWS
            && let Ok((trace, _permit)) = self.receiver.try_recv()
        {
            rows += trace.rows.len();
            batch.push(trace);
        }
        let weight = self.queue.weight();
        self.metrics.trace_queue.with(&[]).set(weight as i64);
        batch
    }
}

#[cfg(test)]
mod tests;
