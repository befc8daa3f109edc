//! Receives the spans that servers send by OTLP, over gRPC and HTTP on one address, in a thread of its own.
//!
//! A message is decoded and answered as soon as it is complete, before its spans are joined. Memory is bounded: connections,
//! bodies and their inflated size.

use std::io::{self, Read as _};
use std::net::TcpListener;
use std::sync::Once;

use bytes::Bytes;
use flate2::read::MultiGzDecoder;
use tokio::sync::{Semaphore, oneshot};

use crate::telemetry::prometheus::{Batch, Metrics};
use crate::telemetry::sink::BackgroundThread;

use super::forward::Forward;
use super::otlp;
use super::otlp::EngineSpan;

mod service;

use service::{MALFORMED, Refusal, TOO_LARGE};

pub use service::{LIMITS, Limits};

/// Takes the spans of a batch, or returns `false` if it has no room. Called on the receiving thread, so it must not wait.
pub type Sink = Box<dyn Fn(Vec<EngineSpan>) -> bool + Send + Sync>;

/// A running receiver. Dropping it forwards the waiting messages, within a time limit, and ends it. Blocks.
#[derive(Debug)]
pub struct Receiver {
    /// Stops the thread when dropped, so it stands before the thread.
    _stop: oneshot::Sender<()>,
    _thread: BackgroundThread,
}

/// Reads messages and passes their spans on.
struct Reader {
    sink: Sink,
    forward: Option<Forward>,
    metrics: Metrics,
    /// A permit for each byte of body that may be held.
    room: Semaphore,
    left_out_logged: Once,
}

/// The maximum size of a message, compressed and inflated: gRPC's default. Servers send 64 spans at once, about 20 kB. A message
/// of nothing but empty spans takes 16 times its length while it is read.
const MAX_MESSAGE_BYTES: usize = 4 << 20;
/// The maximum size of all messages held at once; one connection may hold half of it.
const MAX_HELD_BYTES: usize = 64 << 20;

impl Receiver {
    /// Starts to receive on a listening socket. `forward`: the user's collector, which gets every message unchanged.
    ///
    /// # Errors
    /// The system provides no thread, or the socket cannot be used.
    pub fn start(
        listener: TcpListener,
        forward: Option<Forward>,
        limits: Limits,
        sink: Sink,
        metrics: Metrics,
    ) -> io::Result<Receiver> {
        listener.set_nonblocking(true)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let listener = {
            let _inside = runtime.enter();
            tokio::net::TcpListener::from_std(listener)?
        };
        let reader = Reader {
            sink,
            forward,
            metrics,
            room: Semaphore::new(MAX_HELD_BYTES),
            left_out_logged: Once::new(),
        };
        let (stop, stopped) = oneshot::channel();
        let run = move || {
            runtime.block_on(service::serve(listener, reader, limits, stopped));
            // Does not wait for a name lookup that still runs.
            runtime.shutdown_background();
        };
        Ok(Receiver {
            _stop: stop,
            _thread: BackgroundThread::spawn("engine-traces", run)?,
        })
    }
}

impl Reader {
    /// Decodes a message and passes its spans on.
    fn read(&self, message: Bytes) -> Result<(), Refusal> {
        let plain = inflated(message)?;
        let left_out = &self.metrics.trace_spans_left_out;
        let spans = otlp::spans(plain.clone(), |reason| {
            left_out.with(&[reason.name()]).inc();
            self.log_left_out("a span that is malformed or too large");
        });
        let spans = spans.map_err(|_| MALFORMED)?;
        if let Some(forward) = &self.forward {
            forward.push(plain);
        }
        self.count(match spans.is_empty() || (self.sink)(spans) {
            true => Batch::Taken,
            false => Batch::NoRoom,
        });
        Ok(())
    }

    /// Logs, once in the process's life, that something was left out.
    fn log_left_out(&self, what: &str) {
        self.left_out_logged.call_once(|| {
            log::warn!("engine traces: {what} was left out. Logged once; metrics count");
        });
    }

    fn count(&self, outcome: Batch) {
        self.metrics.trace_batches.with(&[outcome.name()]).inc();
    }
}

/// Inflates a message if it is packed by gzip, within its maximum size. A protobuf message of traces does not begin so.
fn inflated(message: Bytes) -> Result<Bytes, Refusal> {
    if !message.starts_with(&[0x1f, 0x8b]) {
        return Ok(message);
    }
    let mut plain = Vec::new();
    let mut read = MultiGzDecoder::new(&*message).take(MAX_MESSAGE_BYTES as u64 + 1);
    read.read_to_end(&mut plain).map_err(|_| MALFORMED)?;
    match plain.len() > MAX_MESSAGE_BYTES {
        true => Err(TOO_LARGE),
        false => Ok(plain.into()),
    }
}
