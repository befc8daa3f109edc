//! Traces: one a request, to an OpenTelemetry collector (OTLP), from a thread of its own.
//!
//! A request's rows wait in a bounded queue when it has ended and its trace is kept. The thread makes spans of them and
//! exports them in batches. Whatever the collector does, no request waits for it and none fails: what cannot be
//! exported is dropped, counted, and said once in the log.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use opentelemetry::InstrumentationScope;
use opentelemetry_sdk::trace::SpanData;
use parking_lot::{Condvar, Mutex, MutexGuard};
use tokio::runtime::Runtime;
use tokio::sync::Notify;

use crate::request::row::Rows;

use super::loss::LossLog;
use super::prometheus::{Dropped, Metrics};

pub mod attributes;
pub mod exporter;
pub mod sampling;
pub mod settings;
pub mod spans;

use exporter::{Exporter, Trouble};
use sampling::{Kept, Sampling, Slowest};
use settings::Settings;

/// The way of traces to a collector. Share it by reference.
#[derive(Debug)]
pub struct Traces {
    queue: Arc<Queue>,
    sampling: Sampling,
    recent: Slowest,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// The requests whose traces wait.
#[derive(Debug)]
struct Queue {
    waiting: Mutex<Line>,
    /// Rows that may wait.
    most: usize,
    /// There is enough for a batch, or all shall go now.
    ready: Notify,
    /// There is room again.
    room: Condvar,
    is_closing: AtomicBool,
    closing: Notify,
    /// It is said in the log that traces are lost.
    is_full: AtomicBool,
    metrics: Metrics,
}

#[derive(Debug, Default)]
struct Line {
    all: VecDeque<Waiting>,
    /// Of all of them.
    rows: usize,
}

#[derive(Debug)]
struct Waiting {
    rows: Rows,
    trace: u128,
    kept: Kept,
}

/// The thread's own.
struct Sender {
    queue: Arc<Queue>,
    exporter: Exporter,
    target: String,
    delay: Duration,
    last: Duration,
    scope: InstrumentationScope,
    /// Traces lost since an export last went well.
    losses: LossLog,
}

/// Why traces cannot be exported.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No way to the collector could be made.
    #[error(transparent)]
    Exporter(#[from] exporter::Error),
    /// The system gives no thread.
    #[error("cannot start the thread that exports traces: {0}")]
    Thread(#[from] std::io::Error),
}

/// Rows that are worth an export; each makes about ten spans.
const BATCH: usize = 64;
/// Rows that are exported together at most: a collector takes messages of 4 MiB by gRPC.
const MOST_AT_ONCE: usize = 512;
/// How long the last exports of a server may take.
pub const LAST: Duration = Duration::from_secs(3);

/// A runtime that is never waited for: a name that is still being looked up holds nobody up.
#[derive(Debug)]
struct Unwaited(Option<Runtime>);

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
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let handle = runtime.handle().clone();
        let runtime = Unwaited(Some(runtime));
        let exporter = {
            let _inside = handle.enter();
            Exporter::new(settings, instance)?
        };
        let queue = Arc::new(Queue {
            waiting: Mutex::default(),
            most: settings.queue,
            ready: Notify::new(),
            room: Condvar::new(),
            is_closing: AtomicBool::new(false),
            closing: Notify::new(),
            is_full: AtomicBool::new(false),
            metrics,
        });
        let mut sender = Sender {
            queue: queue.clone(),
            exporter,
            target: settings.target(),
            delay: settings.delay,
            last,
            scope: InstrumentationScope::builder("queuescope")
                .with_version(env!("CARGO_PKG_VERSION"))
                .build(),
            losses: LossLog::default(),
        };
        let run = move || {
            if let Some(runtime) = &runtime.0 {
                runtime.block_on(sender.run());
            }
        };
        let thread = std::thread::Builder::new()
            .name("traces".into())
            .spawn(run)?;
        Ok(Traces {
            queue,
            sampling: settings.sampling,
            recent: Slowest::default(),
            thread: Mutex::new(Some(thread)),
        })
    }

    /// A request has ended: its trace goes out if it is kept. Never waits.
    pub fn record(&self, rows: &Rows) {
        if let Some(waiting) = self.kept(rows) {
            self.queue.push(waiting);
        }
    }

    /// The same for whoever has time: waits for room in the queue, for at most `patience`.
    pub fn record_in_time(&self, rows: &Rows, patience: Duration) {
        if let Some(waiting) = self.kept(rows) {
            self.queue.push_in_time(waiting, patience);
        }
    }

    fn kept(&self, rows: &Rows) -> Option<Waiting> {
        let trace = spans::trace_of(rows);
        let Some(kept) = self.sampling.keeps(rows, trace, &self.recent) else {
            self.queue.metrics.traces_sampled_out.with(&[]).inc();
            return None;
        };
        Some(Waiting {
            rows: rows.clone(),
            trace,
            kept,
        })
    }

    /// Exports what waits, within a time limit, and ends the thread. Blocks.
    pub fn close(&self) {
        self.queue.is_closing.store(true, Ordering::Release);
        self.queue.ready.notify_one();
        self.queue.closing.notify_one();
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

impl Queue {
    /// One with more rows than may wait goes alone.
    fn has_room(&self, line: &Line, waiting: &Waiting) -> bool {
        line.rows == 0 || line.rows + waiting.rows.len() <= self.most
    }

    fn push(&self, waiting: Waiting) {
        self.push_into(self.waiting.lock(), waiting);
    }

    /// Waits for room first, unless traces are being lost already.
    fn push_in_time(&self, waiting: Waiting, patience: Duration) {
        let mut line = self.waiting.lock();
        let is_full = |line: &mut Line| !self.has_room(line, &waiting);
        if is_full(&mut line) && !self.is_full.load(Ordering::Relaxed) {
            self.ready.notify_one();
            self.room.wait_while_for(&mut line, is_full, patience);
        }
        self.push_into(line, waiting);
    }

    fn push_into(&self, mut line: MutexGuard<'_, Line>, waiting: Waiting) {
        if self.is_closing.load(Ordering::Acquire) {
            drop(line);
            self.metrics.traces_dropped(Dropped::Shutdown, 1);
            return;
        }
        if !self.has_room(&line, &waiting) {
            drop(line);
            self.metrics.traces_dropped(Dropped::QueueFull, 1);
            if !self.is_full.swap(true, Ordering::Relaxed) {
                log::warn!("traces: too many wait to be exported; traces are lost and counted");
            }
            return;
        }
        let before = line.rows;
        line.rows += waiting.rows.len();
        line.all.push_back(waiting);
        let (length, rows) = (line.all.len(), line.rows);
        drop(line);
        self.metrics.trace_queue.with(&[]).set(length as i64);
        // Those that come alone go with the next look: nobody is woken for each of them.
        let worth = BATCH.min(self.most);
        if before < worth && rows >= worth {
            self.ready.notify_one();
        }
    }

    /// A batch, one request at least where any waits.
    fn take(&self) -> Vec<Waiting> {
        let mut line = self.waiting.lock();
        let (mut taken, mut rows) = (Vec::new(), 0);
        while let Some(next) = line.all.front() {
            rows += next.rows.len();
            if !taken.is_empty() && rows > MOST_AT_ONCE {
                break;
            }
            line.rows -= next.rows.len();
            taken.extend(line.all.pop_front());
        }
        self.metrics
            .trace_queue
            .with(&[])
            .set(line.all.len() as i64);
        drop(line);
        self.room.notify_all();
        taken
    }
}

impl Drop for Unwaited {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

impl Sender {
    /// Exports until the queue is closed, and for a while from then on.
    async fn run(&mut self) {
        let queue = self.queue.clone();
        let limit = self.last;
        let last = async {
            queue.closing.notified().await;
            tokio::time::sleep(limit).await;
        };
        tokio::select! {
            () = self.send() => {}
            () = last => {}
        }
        let left: usize =
            std::iter::from_fn(|| Some(queue.take().len()).filter(|many| *many > 0)).sum();
        if left > 0 {
            queue.metrics.traces_dropped(Dropped::Shutdown, left);
            log::warn!("traces: {left} still waited at the end and are lost");
        }
    }

    async fn send(&mut self) {
        loop {
            let is_closing = self.queue.is_closing.load(Ordering::Acquire);
            let batch = self.queue.take();
            if batch.is_empty() {
                if is_closing {
                    return;
                }
                let ready = self.queue.ready.notified();
                // Time is up or there is a batch: either way it is looked.
                let _ = tokio::time::timeout(self.delay, ready).await;
                continue;
            }
            let open = Open {
                queue: &self.queue,
                traces: batch.len(),
            };
            let mut spans: Vec<SpanData> = Vec::new();
            for waiting in &batch {
                spans::spans(
                    &waiting.rows,
                    waiting.trace,
                    waiting.kept,
                    &self.scope,
                    &mut spans,
                );
            }
            drop(batch);
            let sent = self.exporter.export(spans).await;
            let traces = open.done();
            self.tell(sent, traces);
        }
    }

    fn tell(&mut self, sent: Result<(), Trouble>, traces: usize) {
        let (metrics, target) = (&self.queue.metrics, &self.target);
        match sent {
            Ok(()) => {
                metrics.traces_exported.with(&[]).inc_by(traces as u64);
                self.queue.is_full.store(false, Ordering::Relaxed);
                if let Some(lost) = self.losses.recovered() {
                    log::warn!("traces: {target} takes them again; {lost} were lost");
                }
            }
            Err(Trouble { why, words }) => {
                metrics.traces_dropped(why, traces);
                if self.losses.lost(traces) {
                    log::warn!("traces: {target}: {words}; traces are lost and counted");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;

/// A batch on its way: lost if the process ends meanwhile.
struct Open<'a> {
    queue: &'a Queue,
    traces: usize,
}

impl Open<'_> {
    fn done(mut self) -> usize {
        std::mem::take(&mut self.traces)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        if self.traces > 0 {
            self.queue
                .metrics
                .traces_dropped(Dropped::Shutdown, self.traces);
        }
    }
}
