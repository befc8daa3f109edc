//! Traces: one a request, to an OpenTelemetry collector (OTLP), from a thread of its own.
//!
//! A request's rows wait in a bounded queue when it has ended and its trace is kept. The thread makes spans of them and
//! exports them in batches. Whatever the collector does, no request waits for it and none fails: what cannot be
//! exported is dropped, counted, and said once in the log.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use opentelemetry::InstrumentationScope;
use opentelemetry_otlp::ExporterBuildError;
use parking_lot::Mutex;
use tokio::runtime::Builder;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio_rustls::rustls;
use tokio_util::sync::CancellationToken;

use crate::request::row::Rows;

use super::loss::LossLog;
use super::prometheus::{Dropped, Metrics};
use super::queue::{Queue, Refused, Waiting};

pub mod attributes;
pub mod collector;
pub mod exporter;
pub mod sampling;
pub mod settings;
pub mod spans;

use collector::Deliveries;
use exporter::Exporter;
use sampling::Kept;
use settings::{Otlp, Settings};

/// The way of traces to a collector. Share it by reference.
#[derive(Debug)]
pub struct Traces {
    queue: Arc<Queue<Trace>>,
    closing: CancellationToken,
    deliveries: Arc<Deliveries>,
    metrics: Metrics,
    given: Otlp,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// A request whose trace is kept.
#[derive(Debug)]
struct Trace {
    rows: Rows,
    id: u128,
    kept: Kept,
}

/// The thread's own.
struct Sender {
    /// What waits, and how much that is.
    waiting: UnboundedReceiver<Waiting<Trace>>,
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
    /// The library refused the way to the collector.
    #[error("traces cannot be exported: {0}")]
    Exporter(#[from] ExporterBuildError),
    /// TLS cannot be set up.
    #[error("traces cannot be exported over TLS: {0}")]
    Tls(#[from] rustls::Error),
    /// The system gives no thread.
    #[error("cannot start the thread that exports traces: {0}")]
    Thread(#[from] std::io::Error),
}

/// Rows that are worth an export; each makes about ten spans.
const BATCH: usize = 64;
/// Rows with which a batch is full, the last request's not counted: a collector takes messages of 4 MiB by gRPC.
const MOST_AT_ONCE: usize = 512;
/// How often it is looked whether there is enough for a batch: nobody is woken for each trace.
const LOOK: Duration = Duration::from_millis(20);
/// How long the last exports of a server may take.
pub const LAST: Duration = Duration::from_secs(3);

impl Traces {
    /// Starts the thread. `instance` tells this process from others; `last` is how long the last exports may take.
    ///
    /// # Errors
    /// See [`Error`]. A collector that is not there is no error.
    pub fn start(
        settings: &Settings,
        instance: String,
        metrics: Metrics,
        last: Duration,
    ) -> Result<Traces, Error> {
        let exporter = Exporter::new(settings, instance)?;
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (queue, waiting) = Queue::new(settings.given.queue.get() as usize);
        let queue = Arc::new(queue);
        let closing = CancellationToken::new();
        let deliveries = Arc::new(Deliveries {
            what: "traces",
            target: settings.target(),
            sent: metrics.traces_exported.with(&[]),
            lost: metrics.traces_dropped.clone(),
            open: 0.into(),
            log: LossLog::default(),
        });
        let sender = Sender {
            waiting,
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
            runtime.block_on(sender.run(last));
            // A name that is still being looked up holds nobody up.
            runtime.shutdown_background();
        };
        let thread = std::thread::Builder::new()
            .name("traces".into())
            .spawn(run)?;
        Ok(Traces {
            queue,
            closing,
            deliveries,
            metrics,
            given: settings.given.clone(),
            thread: Mutex::new(Some(thread)),
        })
    }

    /// A request has ended: its trace goes out if it is kept. Never waits.
    pub fn record(&self, rows: &Rows) {
        let id = spans::trace_of(rows);
        let Some(kept) = self.given.keeps(rows, id) else {
            return self.metrics.traces_sampled_out.with(&[]).inc();
        };
        self.deliveries.begin();
        let (rows, many) = (rows.clone(), rows.len());
        if let Err((_, why)) = self.queue.push(Trace { rows, id, kept }, many) {
            let (why, words) = match why {
                Refused::Full => (Dropped::QueueFull, "too many wait to be exported"),
                Refused::Closed => (Dropped::Shutdown, "this process ends"),
            };
            return self.deliveries.lost(why, words, 1);
        }
        let waiting = self.queue.weight();
        self.metrics.trace_queue.with(&[]).set(waiting as i64);
    }

    /// The same for whoever has time: waits for room in the queue, for at most `patience`, unless traces are being lost
    /// already. Blocks.
    pub fn record_in_time(&self, rows: &Rows, patience: Duration) {
        if !self.deliveries.log.is_losing() {
            self.queue.wait_for_room(rows.len(), patience);
        }
        self.record(rows);
    }

    /// Exports what waits, within a time limit, and ends the thread. Blocks.
    pub fn close(&self) {
        self.queue.close();
        self.closing.cancel();
        let thread = self.thread.lock().take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            log::error!("traces: the thread that exports them failed");
        }
    }
}

impl Drop for Traces {
    fn drop(&mut self) {
        self.close();
    }
}

impl Sender {
    /// Exports until the queue is closed, and for at most `last` from then on.
    async fn run(mut self, last: Duration) {
        let (closing, deliveries) = (self.closing.clone(), self.deliveries.clone());
        let end = async {
            closing.cancelled().await;
            tokio::time::sleep(last).await;
        };
        tokio::select! {
            () = self.send() => {}
            () = end => {}
        }
        deliveries.end();
    }

    async fn send(&mut self) {
        while let Some(first) = self.waiting.recv().await {
            // Others may go with it, while there is time.
            let _ = tokio::time::timeout(self.delay, self.enough()).await;
            let batch = self.batch(first);
            let traces = batch.len();
            let spans = batch.iter().flat_map(|trace| {
                let Trace { rows, id, kept } = trace;
                spans::spans(rows, *id, *kept, &self.scope)
            });
            match self.exporter.export(spans.collect()).await {
                Ok(()) => self.deliveries.sent(traces),
                Err(trouble) => self.deliveries.lost(trouble.why, &trouble.words, traces),
            }
        }
    }

    /// Until there is enough for a batch, or no more will come.
    async fn enough(&self) {
        let rows = BATCH.min(self.queue.most());
        while self.queue.weight() < rows && !self.closing.is_cancelled() {
            tokio::time::sleep(LOOK).await;
        }
    }

    /// What goes with the first.
    fn batch(&mut self, (first, room): Waiting<Trace>) -> Vec<Trace> {
        drop(room);
        let mut rows = first.rows.len();
        let mut batch = vec![first];
        while rows < MOST_AT_ONCE
            && let Ok((trace, _room)) = self.waiting.try_recv()
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
