//! What the engine tells of its requests outside of their responses, joined to their rows.
//!
//! A request that has ended waits here for a bounded time, beside all others: what its server's spans or log lines tell is put
//! into its rows, which then go where all rows go. Nothing of it holds up a request.

use std::net::TcpListener;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;

use crate::clock::Clock;
use crate::request::outcome::Outcome;
use crate::request::row::Row;
use crate::request::sequence::{TimingSource, Untold};
use crate::telemetry::otlp::settings;
use crate::telemetry::prometheus::{Join, Metrics};
use crate::telemetry::queue::{Queue, Refused};

use self::join::{Ended, we_left};
use self::joiner::{Joiner, Message, Outlet};
use self::keys::Keys;
use self::receiver::Receiver;
use self::request_log::Tail;
use self::span::EngineSpan;

pub mod fifo;
pub mod forward;
pub mod join;
pub mod joiner;
pub mod keys;
pub mod otlp;
pub mod receiver;
pub mod request_log;
pub mod span;
pub mod spans;
pub mod table;

/// The join of rows with what engines tell. Share it by reference.
#[derive(Debug)]
pub struct Engine {
    traces: bool,
    logs: bool,
    wait: Duration,
    wait_abort: Duration,
    clock: Clock,
    ended: Queue<Message>,
    told: Arc<Queue<Message>>,
    outlet: Outlet,
    receiver: Mutex<Option<Receiver>>,
    tail: Mutex<Option<Tail>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Spans, and lines, that may lie before the thread that joins: it takes all of them every few milliseconds.
const MOST_TOLD: usize = 262_144;

/// Counters of what is joined are there from the start, for each source that is on.
fn show_joins(metrics: &Metrics, traces: bool, logs: bool) {
    for (is_on, source) in [(traces, TimingSource::Trace), (logs, TimingSource::Log)] {
        for outcome in Join::ALL.into_iter().filter(|_| is_on) {
            metrics.engine_joins.with(&[source.name(), outcome.name()]);
        }
    }
}

impl Engine {
    /// Listens and joins from now on: to servers' spans at a socket, and to their logs. `forward`: who gets all of the spans.
    ///
    /// # Errors
    /// See [`Receiver::start`]; or the system gives no thread.
    pub fn start(
        keys: &Keys,
        socket: Option<TcpListener>,
        forward: Option<settings::Settings>,
        outlet: Outlet,
        clock: Clock,
        metrics: &Metrics,
    ) -> std::io::Result<Engine> {
        let (traces, logs) = (socket.is_some(), keys.logs.path.is_some());
        show_joins(&outlet.metrics, traces, logs);
        let source = match traces {
            true => TimingSource::Trace,
            false => TimingSource::Log,
        };
        let most = keys.most_waiting.get() as usize;
        let (ended, inbox) = Queue::new(most);
        let told = Arc::new(ended.beside(MOST_TOLD));
        let joiner = Joiner::new(inbox, outlet.clone(), clock.clone(), most, source);
        // Whether there is room; after the end nobody wants it.
        let give = |source: TimingSource| {
            let (told, joins) = (told.clone(), outlet.metrics.engine_joins.clone());
            move |message, many| {
                let given = told.push(message, many);
                let is_full = given.is_err_and(|(_, why)| why == Refused::Full);
                if is_full {
                    joins.with(&[source.name(), Join::NoRoom.name()]).inc();
                }
                !is_full
            }
        };
        let receiver = socket.map(|socket| {
            let give = give(TimingSource::Trace);
            let sink = move |spans: Vec<EngineSpan>| {
                let many = spans.len();
                give(Message::Spans(spans), many)
            };
            let settings = receiver::Settings {
                listener: socket,
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
            let give = give(TimingSource::Log);
            Tail::start(folder, move |told| {
                give(Message::Line(Box::new(told)), 1);
            })
        });
        let tail = tail.transpose()?;
        let thread = std::thread::Builder::new()
            .name("engine-join".into())
            .spawn(move || joiner.run())?;
        Ok(Engine {
            traces,
            logs,
            wait: keys.wait_s.get(),
            wait_abort: keys.wait_abort_s.get(),
            clock,
            ended,
            told,
            outlet,
            receiver: Mutex::new(receiver),
            tail: Mutex::new(tail),
            thread: Mutex::new(Some(thread)),
        })
    }

    /// A request has ended: its rows go out, now or when they were joined. Never waits.
    pub fn record(&self, rows: Vec<Row>) {
        let wanted = match self.wanted(&rows) {
            Ok(wanted) => wanted,
            Err(Some(why)) => return self.outlet.untold(rows, why),
            Err(None) => return self.outlet.telemetry.record(rows),
        };
        let wait = match is_left(&rows) {
            true => self.wait_abort,
            false => self.wait,
        };
        let wait = i64::try_from(wait.as_nanos()).unwrap_or(i64::MAX);
        let at = self.clock.now();
        let ended = Message::Ended(Ended { rows, wanted, at }, at.plus_nanos(wait));
        if let Err((Message::Ended(ended, _), why)) = self.ended.push(ended, 1) {
            match why {
                Refused::Full => self.outlet.untold(ended.rows, Untold::NoRoom),
                // Nothing was asked.
                Refused::Closed => self.outlet.telemetry.record(ended.rows),
            }
        }
    }

    /// Who is to tell of a request, or why nobody is.
    fn wanted(&self, rows: &[Row]) -> Result<TimingSource, Option<Untold>> {
        let Some(first) = rows.first() else {
            return Err(None);
        };
        // A time limit of ours ends what runs, with a status of ours.
        let is_timeout = first.outcome() == Outcome::Timeout;
        let is_refused = !is_timeout && first.status.is_some_and(|status| status >= 400);
        if first.timeline.last_send().is_none() || is_refused {
            // It never ran.
            return Err(None);
        }
        if self.traces && first.more.trace.sent_sampled {
            return Ok(TimingSource::Trace);
        }
        // SGLang logs no request whose client has left: that is us.
        if self.logs && !is_left(rows) {
            return Ok(TimingSource::Log);
        }
        // With the log alone: it was left, and nothing is missed.
        Err(self.traces.then_some(Untold::Unsampled))
    }

    /// Takes in no more spans: they are another process's.
    pub fn stop_listening(&self) {
        drop(self.receiver.lock().take());
    }

    /// Lets the requests that wait go out, within a time limit, and ends its threads. Blocks.
    pub fn close(&self) {
        // What weighs nothing finds room.
        let _ = self.ended.push(Message::Last, 0);
        self.ended.close();
        let thread = self.thread.lock().take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            log::error!("engine: the thread that joins rows failed");
        }
        self.told.close();
        self.stop_listening();
        drop(self.tail.lock().take());
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.close();
    }
}

fn is_left(rows: &[Row]) -> bool {
    rows.first().is_some_and(we_left)
}
