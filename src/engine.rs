//! Joins rows with what engines report of their requests outside of the responses: in traces and request logs.
//!
//! When a request has ended, its rows wait here for a limited time. The reports of its server are put into the rows, which
//! then go where all rows go, at the request's deadline at the latest. No request waits.

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::mpsc::UnboundedReceiver;

use crate::clock::{Clock, NANOS, Stamp};
use crate::keys::keys;
use crate::keys::values::{self, Seconds, Whole};
use crate::offset::OffsetTable;
use crate::request::{EngineReport, MissingReason, Outcome, Roles, Row, TimingSource};
use crate::telemetry::Telemetry;
use crate::telemetry::otlp::settings::{ExportSettings, Protocol};
use crate::telemetry::prometheus::{Dropped, JoinOutcome};
use crate::telemetry::queue::{BackgroundThread, Queue, Queued};

use self::forward::Forward;
use self::join::{EndedRequest, JoinTable, is_cancelled};
use self::otlp::EngineSpan;
use self::receiver::{LIMITS, Receiver};
use self::request_log::LogReader;

mod bounded_multimap;
pub mod forward;
pub mod join;
pub mod otlp;
pub mod receiver;
pub mod report_store;
pub mod request_log;

keys! {
/// What servers report of a request outside of its response: times in their queue, also of streamed chat, which carries none
/// (docs/ENGINE.md). Where one of the two sections below is given, a request's rows wait for that after its end, and are then
/// written with what has come. Requests themselves do not wait. Changed keys take effect at a restart.
Keys {
    /// How long rows wait.
    wait_s: Seconds<0> = Seconds::of::<2>(), Restart;
    /// How long they wait where the client has left, which a server may notice seconds later.
    wait_abort_s: Seconds<0> = Seconds::of::<5>(), Restart;
    /// Requests whose rows may wait, a few KB each, and sequences whose spans or log lines came before their request ended.
    /// Beyond it rows are written at once.
    most_waiting: Whole<1, 1_048_576> = Whole::of::<16_384>(), Restart;
} and {
    /// The servers' traces: `[engine.traces]` in the file.
    traces: Traces = "engine.traces", Restart;
    /// The servers' request logs: `[engine.logs]` in the file.
    logs: Logs = "engine.logs", Restart;
}}

keys! {
/// Servers' spans, by OTLP over gRPC or HTTP. Servers are started with --enable-trace --otlp-traces-endpoint IP:PORT.
Traces {
    /// Where servers send their spans, IP:PORT. Whoever reaches it can tell us times of requests: not for the world.
    listen: Option<SocketAddr> as values::listen_address = None, Restart "--engine-traces IP:PORT" like "127.0.0.1:4327";
    /// The collector that gets all of them unchanged: an endpoint as in [telemetry.otlp], or "none". By default that of
    /// [telemetry.otlp], with its headers; a collector that is given here gets no headers.
    forward_to: Option<String> = None, Restart like "http://127.0.0.1:4317";
    /// How they are sent to `forward_to`: "grpc" or "http/protobuf". By default grpc to port 4317, else http/protobuf.
    forward_protocol: Option<Protocol> = None, Restart like "grpc";
    /// Bytes of spans that may wait for `forward_to`; further ones are lost and counted.
    queue_bytes: Whole<65_536, 4_294_967_296> as values::bytes = Whole::of::<33_554_432>(), Restart;
}}

keys! {
/// Servers' request logs, where they are on this disk: sglang-request-metrics-*.log.
Logs {
    /// The folder of servers' request logs, on this disk: that of their --export-metrics-to-file-dir.
    path: Option<PathBuf> = None, Restart "--engine-logs DIR" like "/var/log/sglang";
}}

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

/// Where rows go, and what they need on the way.
#[derive(Clone, Debug)]
pub struct JoinOutput {
    /// Records the rows.
    pub telemetry: Arc<Telemetry>,
    /// The offsets of other clocks.
    pub clocks: Arc<Mutex<OffsetTable>>,
    /// The servers' roles, as their root spans name them.
    pub roles: Arc<Mutex<Roles>>,
}

/// A message to the joining thread.
#[derive(Debug)]
enum Message {
    /// An ended request.
    Ended(EndedRequest),
    /// Received spans.
    Spans(Vec<EngineSpan>),
    /// No further request follows; reports of the last ones may.
    Last,
}

/// The state of the joining thread.
#[derive(Debug)]
struct Joiner {
    /// What comes in.
    inbox: UnboundedReceiver<Queued<Message>>,
    /// Where rows go.
    output: JoinOutput,
    /// This process's clock.
    clock: Clock,
    /// The requests that wait, and reports.
    table: JoinTable,
    /// The servers' request logs, if they are read.
    logs: Option<LogReader>,
    /// After [`Message::Last`]: when the thread ends even if requests still wait.
    end: Option<Stamp>,
}

/// Spans that may wait, beside requests, for the joining thread, which takes all of them every few milliseconds.
const MAX_QUEUED_SPANS: usize = 262_144;
/// The maximum number of messages handled at once.
const MAX_BATCH: usize = 16_384;
/// The pause between two batches: each looks for the reports of all that wait.
const PAUSE: Duration = Duration::from_millis(20);
/// How long the last requests may wait at the end of the process.
const LAST_WAIT_NANOS: i64 = 2 * NANOS;

impl Keys {
    /// Whether any source of engine reports is on.
    pub fn is_on(&self) -> bool {
        self.traces.listen.is_some() || self.logs.path.is_some()
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
        forward: Option<ExportSettings>,
        output: JoinOutput,
        clock: Clock,
    ) -> std::io::Result<Engine> {
        let capacity = keys.most_waiting.get() as usize;
        let (queue, inbox) = Queue::new(capacity + MAX_QUEUED_SPANS);
        let queue = Arc::new(queue);
        // Finds the ends of the logs now: the thread may begin later.
        let logs = keys.logs.path.clone().map(LogReader::from_now);
        // Shown from the start.
        let of_traces = socket.is_some().then_some(TimingSource::Trace);
        let of_logs = logs.is_some().then_some(TimingSource::Log);
        for source in of_traces.into_iter().chain(of_logs) {
            for outcome in JoinOutcome::ALL {
                output.count(source, outcome, 0);
            }
        }
        let joiner = Joiner {
            inbox,
            output: output.clone(),
            clock: clock.clone(),
            table: JoinTable::new(capacity),
            logs,
            end: None,
        };
        let metrics = &output.telemetry.metrics;
        let receiver = socket.map(|socket| {
            let queue_bytes = keys.traces.queue_bytes.get();
            let forward = forward.map(|to| Forward::new(&to, queue_bytes, metrics));
            let (queue, output) = (queue.clone(), output.clone());
            // Returns whether there was room. After the end of the joining thread none is needed.
            let sink = move |spans: Vec<EngineSpan>| {
                let count = spans.len();
                let pushed = queue.push(Message::Spans(spans), count);
                let is_full = pushed.is_err_and(|(_, reason)| reason == Dropped::QueueFull);
                if is_full {
                    output.count(TimingSource::Trace, JoinOutcome::NoRoom, 1);
                }
                !is_full
            };
            let (forward, sink) = (forward.transpose()?, Box::new(sink));
            Receiver::start(socket, forward, LIMITS, sink, metrics.clone())
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
            Err((Message::Ended(ended), Dropped::QueueFull)) => {
                let reason = MissingReason::NoRoom;
                self.output.record_without_report(ended.rows, reason);
            }
            // No report is expected any more.
            Err((Message::Ended(ended), Dropped::Shutdown)) => {
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

impl Joiner {
    /// Joins until the last request has been recorded.
    fn run(mut self) {
        while self
            .end
            .is_none_or(|end| self.table.waiting() > 0 && self.clock.now() < end)
        {
            self.receive();
            let now = self.clock.now();
            if let Some(logs) = &mut self.logs {
                let lines = logs.poll(PAUSE);
                self.add_log_lines(lines, now);
            }
            self.record_ready(now);
            for source in self.table.forget(now) {
                self.output.count(source, JoinOutcome::NoRow, 1);
            }
            std::thread::sleep(PAUSE);
        }
        // Whatever is refused from here on is recorded without a report.
        self.inbox.close();
        while let Ok((message, _)) = self.inbox.try_recv() {
            self.handle(message, self.clock.now());
        }
        if let Some(logs) = self.logs.take() {
            let clock = self.clock.clone();
            for lines in logs.last_readings(&clock) {
                self.add_log_lines(lines, clock.now());
            }
        }
        self.record_ready(Stamp::MAX);
    }

    /// Handles the messages that have arrived. Blocks until there is one if no request waits and no logs are read.
    fn receive(&mut self) {
        let is_idle = self.table.waiting() == 0 && self.logs.is_none();
        for index in 0..MAX_BATCH {
            let next = match index == 0 && is_idle {
                true => self.inbox.blocking_recv(),
                false => self.inbox.try_recv().ok(),
            };
            let Some((message, _room)) = next else { break };
            self.handle(message, self.clock.now());
        }
    }

    fn handle(&mut self, message: Message, now: Stamp) {
        match message {
            Message::Ended(ended) => {
                if let Err(ended) = self.table.add_request(ended) {
                    let reason = MissingReason::NoRoom;
                    self.output.record_without_report(ended.rows, reason);
                }
            }
            Message::Last => self.end = Some(now.plus_nanos(LAST_WAIT_NANOS)),
            Message::Spans(spans) => {
                // Those of a request that two servers serve.
                let root = |span: &EngineSpan| Some((span.parent, span.root()?.role?));
                for (above, role) in spans.iter().filter_map(root) {
                    self.output.roles.lock().resolve_role(above, role);
                }
                let late = spans.into_iter().map(|span| self.table.add_span(span, now));
                let late = late.filter(|is_late| *is_late).count();
                self.output
                    .count(TimingSource::Trace, JoinOutcome::Late, late);
            }
        }
    }

    fn add_log_lines(&mut self, lines: Vec<EngineReport>, now: Stamp) {
        let lines = lines.into_iter();
        let late = lines.map(|line| self.table.add_log_line(line, now));
        let late = late.filter(|is_late| *is_late).count();
        self.output
            .count(TimingSource::Log, JoinOutcome::Late, late);
    }

    fn record_ready(&mut self, now: Stamp) {
        let ready = self.table.take_ready(now);
        // Who sees a row finds it no longer counted here.
        let waiting = self.output.telemetry.metrics.engine_waiting.with(&[]);
        waiting.set(self.table.waiting() as i64);
        for joined in ready {
            for of in &joined.matches {
                self.output
                    .count(of.candidate.report.source, JoinOutcome::Joined, 1);
            }
            let rows = joined.into_rows(&mut self.output.clocks.lock());
            self.output.telemetry.record(rows);
        }
    }
}

impl JoinOutput {
    fn count(&self, source: TimingSource, outcome: JoinOutcome, count: usize) {
        let joins = &self.telemetry.metrics.engine_joins;
        let joins = joins.with(&[source.name(), outcome.name()]);
        joins.inc_by(count as u64);
    }

    /// Records a request that has no engine report.
    fn record_without_report(&self, mut rows: Vec<Row>, reason: MissingReason) {
        for row in &mut rows {
            row.internal.missing_reason = Some(reason);
        }
        self.telemetry.record(rows);
    }
}
