//! Joins rows with what engines report of their requests outside of the responses: in traces and request logs.
//!
//! When a request has ended, its rows wait here for a limited time. The reports of its server are put into the rows, which
//! then go where all rows go. No request waits.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::clock::Clock;
use crate::request::outcome::Outcome;
use crate::request::row::Row;
use crate::request::sequence::{MissingReason, TimingSource};
use crate::telemetry::background_thread::BackgroundThread;
use crate::telemetry::otlp::settings;
use crate::telemetry::prometheus::{Join, Metrics};
use crate::telemetry::queue::{Queue, Refused};

use self::join::{EndedRequest, is_cancelled};
use self::joiner::{JoinOutput, Joiner, Message};
use self::keys::Keys;
use self::receiver::Receiver;
use self::request_log::Tail;
use self::span::EngineSpan;

pub mod bounded_multimap;
pub mod forward;
pub mod join;
pub mod join_table;
pub mod joiner;
pub mod keys;
pub mod otlp;
pub mod receiver;
pub mod report_store;
pub mod request_log;
pub mod span;

/// The join of rows with engine reports. Share it by reference.
#[derive(Debug)]
pub struct Engine {
    has_traces: bool,
    has_logs: bool,
    wait: Duration,
    wait_abort: Duration,
    clock: Clock,
    requests: Queue<Message>,
    reports: Arc<Queue<Message>>,
    output: JoinOutput,
    receiver: Mutex<Option<Receiver>>,
    tail: Mutex<Option<Tail>>,
    thread: BackgroundThread,
}

/// Spans and log lines that may wait for the joining thread, which takes all of them every few milliseconds.
const REPORT_QUEUE_CAPACITY: usize = 262_144;

/// Creates the join counters of each source that is on, so that they are shown from the start.
fn create_counters(metrics: &Metrics, has_traces: bool, has_logs: bool) {
    for (is_on, source) in [
        (has_traces, TimingSource::Trace),
        (has_logs, TimingSource::Log),
    ] {
        for outcome in Join::ALL.into_iter().filter(|_| is_on) {
            metrics.engine_joins.with(&[source.name(), outcome.name()]);
        }
    }
}

impl Engine {
    /// Starts to receive spans at `socket`, to read logs, and to join. `forward`: the collector that gets all spans too.
    ///
    /// # Errors
    /// See [`Receiver::start`]; or the system provides no thread.
    pub fn start(
        keys: &Keys,
        socket: Option<TcpListener>,
        forward: Option<settings::Settings>,
        output: JoinOutput,
        clock: Clock,
        metrics: &Metrics,
    ) -> std::io::Result<Engine> {
        let (has_traces, has_logs) = (socket.is_some(), keys.logs.path.is_some());
        create_counters(&output.metrics, has_traces, has_logs);
        let source = match has_traces {
            true => TimingSource::Trace,
            false => TimingSource::Log,
        };
        let capacity = keys.most_waiting.get() as usize;
        let (requests, inbox) = Queue::new(capacity);
        let reports = Arc::new(requests.sibling(REPORT_QUEUE_CAPACITY));
        let joiner = Joiner::new(inbox, output.clone(), clock.clone(), capacity, source);
        // Returns whether there was room. After the end of the joining thread none is needed.
        let push = |source: TimingSource| {
            let (reports, joins) = (reports.clone(), output.metrics.engine_joins.clone());
            move |message, count| {
                let pushed = reports.push(message, count);
                let is_full = pushed.is_err_and(|(_, reason)| reason == Refused::Full);
                if is_full {
                    joins.with(&[source.name(), Join::NoRoom.name()]).inc();
                }
                !is_full
            }
        };
        let receiver = socket.map(|listener| {
            let push = push(TimingSource::Trace);
            let sink = move |spans: Vec<EngineSpan>| {
                let count = spans.len();
                push(Message::Spans(spans), count)
            };
            let settings = receiver::Settings {
                listener,
                forward: forward.map(|to| forward::Settings {
                    to,
                    queue_bytes: keys.traces.queue_bytes.get() as usize,
                }),
                limits: receiver::Limits::default(),
            };
            Receiver::start(settings, Arc::new(sink), metrics.clone())
        });
        let receiver = receiver.transpose()?;
        let tail = keys.logs.path.clone().map(|folder| {
            let push = push(TimingSource::Log);
            Tail::start(folder, move |report| {
                push(Message::LogLine(Box::new(report)), 1);
            })
        });
        let tail = tail.transpose()?;
        let panic_message = "engine: the thread that joins rows failed";
        let run = move || joiner.run();
        Ok(Engine {
            has_traces,
            has_logs,
            wait: keys.wait_s.get(),
            wait_abort: keys.wait_abort_s.get(),
            clock,
            requests,
            reports,
            output,
            receiver: Mutex::new(receiver),
            tail: Mutex::new(tail),
            thread: BackgroundThread::spawn("engine-join", panic_message, run)?,
        })
    }

    /// Records the rows of an ended request, at once or when they are joined. Never waits.
    pub fn record(&self, rows: Vec<Row>) {
        let expected_source = match self.expected_source(&rows) {
            Ok(source) => source,
            Err(Some(reason)) => return self.output.record_without_report(rows, reason),
            Err(None) => return self.output.telemetry.record(rows),
        };
        let wait = match rows.first().is_some_and(is_cancelled) {
            true => self.wait_abort,
            false => self.wait,
        };
        let wait = i64::try_from(wait.as_nanos()).unwrap_or(i64::MAX);
        let at = self.clock.now();
        let ended = Message::Ended(
            EndedRequest {
                rows,
                expected_source,
                at,
            },
            at.plus_nanos(wait),
        );
        if let Err((Message::Ended(ended, _), reason)) = self.requests.push(ended, 1) {
            match reason {
                Refused::Full => {
                    let reason = MissingReason::NoRoom;
                    self.output.record_without_report(ended.rows, reason);
                }
                // No report was expected any more.
                Refused::Closed => self.output.telemetry.record(ended.rows),
            }
        }
    }

    /// Returns the source that will report a request.
    ///
    /// # Errors
    /// Why none will; `None` if no report is missed.
    fn expected_source(&self, rows: &[Row]) -> Result<TimingSource, Option<MissingReason>> {
        let Some(first) = rows.first() else {
            return Err(None);
        };
        // Our own timeouts end requests that run, with a status of ours.
        let is_timeout = first.outcome() == Outcome::Timeout;
        let is_refused = !is_timeout && first.status.is_some_and(|status| status >= 400);
        if first.timeline.last_send().is_none() || is_refused {
            // It never ran.
            return Err(None);
        }
        if self.has_traces && first.internal.trace.sent_sampled {
            return Ok(TimingSource::Trace);
        }
        // SGLang logs no request whose client, which is us, has disconnected.
        if self.has_logs && !is_cancelled(first) {
            return Ok(TimingSource::Log);
        }
        Err(self.has_traces.then_some(MissingReason::Unsampled))
    }

    /// Stops receiving spans: another process takes over.
    pub fn stop_listening(&self) {
        drop(self.receiver.lock().take());
    }

    /// Records the waiting requests, within a time limit, and ends the threads. Blocks.
    pub fn close(&self) {
        // A message without weight is never refused for lack of room.
        let _ = self.requests.push(Message::Last, 0);
        self.requests.close();
        self.thread.join();
        self.reports.close();
        self.stop_listening();
        drop(self.tail.lock().take());
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.close();
    }
}
