//! Receives the spans that servers send by OTLP, over gRPC and HTTP on one address, in a thread of its own.
//!
//! A message is decoded and answered as soon as it is complete, before its spans are joined. Memory is bounded: connections,
//! bodies and their inflated size.

use std::io::{self, Read as _};
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Once};

use bytes::Bytes;
use flate2::read::MultiGzDecoder;
use tokio::sync::{Semaphore, oneshot};

use crate::telemetry::background_thread::BackgroundThread;
use crate::telemetry::prometheus::{Batch, Metrics};

use super::forward::{self, Forward};
use super::otlp;
use super::span::EngineSpan;

mod service;

use service::{MALFORMED, Refusal, TOO_LARGE};

pub use service::Limits;

/// Takes the spans of a batch, or returns `false` if it has no room. Called on the receiving thread, so it must not wait.
pub type Sink = Arc<dyn Fn(Vec<EngineSpan>) -> bool + Send + Sync>;

/// Where spans are received, and where they are forwarded to.
#[derive(Debug)]
pub struct Settings {
    /// The listening socket.
    pub listener: TcpListener,
    /// The user's collector, which gets every message unchanged.
    pub forward: Option<forward::Settings>,
    /// Limits on connections.
    pub limits: Limits,
}

/// A running receiver. Dropping it forwards the waiting messages, within a time limit, and ends it. Blocks.
#[derive(Debug)]
pub struct Receiver {
    addr: SocketAddr,
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
/// The maximum inflated size of a message beyond [`SMALL_BYTES`], relative to its compressed size. Spans, which hold random ids,
/// inflate about tenfold; more than this is a decompression bomb.
const MAX_INFLATION: usize = 64;
/// The size that any message may be inflated to.
const SMALL_BYTES: usize = 1 << 20;

impl Receiver {
    /// Starts to receive.
    ///
    /// # Errors
    /// The collector's TLS cannot be set up, or the system provides no thread.
    pub fn start(settings: Settings, sink: Sink, metrics: Metrics) -> io::Result<Receiver> {
        settings.listener.set_nonblocking(true)?;
        let addr = settings.listener.local_addr()?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let (listener, forward) = {
            let _inside = runtime.enter();
            let listener = tokio::net::TcpListener::from_std(settings.listener)?;
            let forward = settings.forward.map(|to| Forward::new(&to, &metrics));
            (listener, forward.transpose()?)
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
            runtime.block_on(service::serve(listener, reader, settings.limits, stopped));
            // Does not wait for a name lookup that still runs.
            runtime.shutdown_background();
        };
        let panic_message = "engine traces: the thread that receives them failed";
        Ok(Receiver {
            addr,
            _stop: stop,
            _thread: BackgroundThread::spawn("engine-traces", panic_message, run)?,
        })
    }

    /// Returns the address it listens on.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }
}

impl Reader {
    /// Decodes a message and passes its spans on.
    fn read(&self, body: Bytes, is_gzip: bool) -> Result<(), Refusal> {
        let plain = if is_gzip { inflated(&body)? } else { body };
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
        let metrics = &self.metrics;
        let (batches, spans) = (&metrics.trace_batches, &metrics.trace_spans_left_out);
        self.left_out_logged.call_once(|| {
            log::warn!(
                "engine traces: {what} was left out. Logged once; {} and {} count",
                batches.name(),
                spans.name()
            );
        });
    }

    fn count(&self, outcome: Batch) {
        self.metrics.trace_batches.with(&[outcome.name()]).inc();
    }
}

/// Inflates a gzip body, within the limits.
fn inflated(body: &[u8]) -> Result<Bytes, Refusal> {
    let max_len = MAX_MESSAGE_BYTES.min(SMALL_BYTES + MAX_INFLATION * body.len());
    let mut plain = Vec::new();
    let mut read = MultiGzDecoder::new(body).take(max_len as u64 + 1);
    read.read_to_end(&mut plain).map_err(|_| MALFORMED)?;
    match plain.len() > max_len {
        true => Err(TOO_LARGE),
        false => Ok(plain.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn packed(bytes: &[u8]) -> Vec<u8> {
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        packed.write_all(bytes).unwrap();
        packed.finish().unwrap()
    }

    #[test]
    fn the_inflated_size_is_limited_in_proportion_to_the_body() {
        let inflate = |length: usize| {
            let body = packed(&vec![0; length]);
            assert!(length > MAX_INFLATION * body.len());
            inflated(&body).map(|plain| plain.len())
        };
        assert_eq!(inflate(SMALL_BYTES), Ok(SMALL_BYTES));
        assert_eq!(inflate(MAX_MESSAGE_BYTES), Err(TOO_LARGE));
        assert_eq!(inflated(b"no gzip"), Err(MALFORMED));
        // Numbers with a common beginning, as ids and times have.
        let numbers: Vec<u8> = (0..500_000_u64)
            .flat_map(|n| (1_795_000_000_000_000_000 + n * n).to_le_bytes())
            .collect();
        assert_eq!(inflated(&packed(&numbers)).unwrap(), numbers);
    }
}
