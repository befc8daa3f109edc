//! Joins rows with what engines report of their requests outside of the responses: in traces and request logs.
//!
//! When a request has ended, its rows wait here for a limited time. The reports of its server are put into the rows, which
//! then go where all rows go. No request waits.

use std::net::TcpListener;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::clock::{Clock, Stamp};
use crate::request::{MissingReason, Outcome, Row, TimingSource};
use crate::telemetry::otlp::settings::Settings;
use crate::telemetry::prometheus::Join;
use crate::telemetry::sink::{BackgroundThread, Queue, Refused};

use self::forward::Forward;
use self::join::{EndedRequest, is_cancelled};
use self::join_table::JoinTable;
use self::joiner::{JoinOutput, Joiner, Message};
use self::keys::Keys;
use self::otlp::EngineSpan;
use self::receiver::{LIMITS, Receiver};
use self::request_log::LogFolder;

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

/// The join of rows with engine reports. Share it by reference.
#[derive(Debug)]
pub struct Engine {
    keys: Keys,
    clock: Clock,
    queue: Arc<Queue<Message>>,
    output: JoinOutput,
    receiver: Mutex<Option<Receiver>>,
    thread: BackgroundThread,
}

/// Spans that may wait, beside requests, for the joining thread, which takes all of them every few milliseconds.
const MAX_QUEUED_SPANS: usize = 262_144;

impl Engine {
    /// Starts to receive spans at `socket`, to read logs, and to join. `forward`: the collector that gets all spans too.
    ///
    /// # Errors
    /// See [`Receiver::start`]; or the system provides no thread.
    pub fn start(
        keys: &Keys,
        socket: Option<TcpListener>,
        forward: Option<Settings>,
        output: JoinOutput,
        clock: Clock,
    ) -> std::io::Result<Engine> {
        let capacity = keys.most_waiting.get() as usize;
        let (queue, inbox) = Queue::new(capacity + MAX_QUEUED_SPANS);
        let queue = Arc::new(queue);
        // Finds the ends of the logs now: the thread may begin later.
        let logs = keys.logs.path.clone().map(LogFolder::from_now);
        let joins = output.metrics.engine_joins.clone();
        // Shown from the start.
        let of_traces = socket.is_some().then_some(TimingSource::Trace);
        let of_logs = logs.is_some().then_some(TimingSource::Log);
        for source in of_traces.into_iter().chain(of_logs) {
            for outcome in Join::ALL {
                joins.with(&[source.name(), outcome.name()]);
            }
        }
        let joiner = Joiner {
            inbox,
            output: output.clone(),
            clock: clock.clone(),
            table: JoinTable::new(capacity),
            logs,
            next_read: Stamp::EPOCH,
            end: None,
        };
        let metrics = &output.metrics;
        let receiver = socket.map(|socket| {
            let queue_bytes = keys.traces.queue_bytes.get();
            let forward = forward.map(|to| Forward::new(&to, queue_bytes, metrics));
            // Returns whether there was room. After the end of the joining thread none is needed.
            let queue = queue.clone();
            let sink = move |spans: Vec<EngineSpan>| {
                let count = spans.len();
                let pushed = queue.push(Message::Spans(spans), count);
                let is_full = pushed.is_err_and(|(_, reason)| reason == Refused::Full);
                if is_full {
                    joins
                        .with(&[TimingSource::Trace.name(), Join::NoRoom.name()])
                        .inc();
                }
                !is_full
            };
            let (forward, limits) = (forward.transpose()?, LIMITS);
            Receiver::start(socket, forward, limits, Box::new(sink), metrics.clone())
        });
        let receiver = receiver.transpose()?;
        Ok(Engine {
            keys: keys.clone(),
            clock,
            queue,
            output,
            receiver: Mutex::new(receiver),
            thread: BackgroundThread::spawn("engine-join", move || joiner.run())?,
        })
    }

    /// Records the rows of an ended request, at once or when they are joined. Never waits.
    pub fn record(&self, rows: Vec<Row>) {
        let Some(first) = rows.first() else { return };
        // Our own timeouts end requests that run, with a status of ours.
        let is_timeout = first.outcome() == Outcome::Timeout;
        let is_refused = !is_timeout && first.status.is_some_and(|status| status >= 400);
        let has_run = first.timeline.last_send().is_some() && !is_refused;
        let has_traces = self.keys.traces.listen.is_some();
        // SGLang logs no request whose client, which is us, has disconnected.
        let is_logged = self.keys.logs.path.is_some() && !is_cancelled(first);
        let expected_source = match first.internal.trace.sent_sampled {
            _ if !has_run => return self.output.telemetry.record(rows),
            true if has_traces => TimingSource::Trace,
            _ if is_logged => TimingSource::Log,
            _ if has_traces => {
                let reason = MissingReason::Unsampled;
                return self.output.record_without_report(rows, reason);
            }
            _ => return self.output.telemetry.record(rows),
        };
        let wait = match is_cancelled(first) {
            true => self.keys.wait_abort_s,
            false => self.keys.wait_s,
        };
        let at = self.clock.now();
        let ended = Message::Ended(EndedRequest {
            rows,
            expected_source,
            at,
            deadline: at.plus_seconds(wait.get().as_secs_f64()),
        });
        match self.queue.push(ended, 1) {
            Err((Message::Ended(ended), Refused::Full)) => {
                let reason = MissingReason::NoRoom;
                self.output.record_without_report(ended.rows, reason);
            }
            // No report is expected any more.
            Err((Message::Ended(ended), Refused::Closed)) => {
                self.output.telemetry.record(ended.rows);
            }
            _ => {}
        }
    }

    /// Stops receiving spans: another process takes over.
    pub fn stop_listening(&self) {
        drop(self.receiver.lock().take());
    }

    /// Records the waiting requests, within a time limit, and ends the threads. Blocks.
    pub fn close(&self) {
        // A message without weight is never refused for lack of room.
        let _ = self.queue.push(Message::Last, 0);
        self.thread.join();
        self.stop_listening();
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.close();
    }
}
