//! Takes in the spans that servers send, by OTLP over gRPC and HTTP on one address, from threads of its own.
//!
//! A message is read when it is whole, and then answered: nothing of it waits for what is done with its spans. Whatever comes,
//! memory is bounded: bodies, what they inflate to, and connections.

use std::io::{self, Read as _};
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Once};
use std::thread::JoinHandle;

use bytes::Bytes;
use flate2::read::MultiGzDecoder;
use tokio::sync::{Semaphore, oneshot};

use crate::telemetry::prometheus::{Batch, Metrics};

use super::forward::{self, Forward};
use super::otlp;
use super::span::EngineSpan;

mod service;

use service::{BROKEN, Refusal, TOO_LARGE};

pub use service::Limits;

/// Who gets the spans of a batch; `false` when it has no room for them. Called on the thread that receives: must not wait.
pub type Sink = Arc<dyn Fn(Vec<EngineSpan>) -> bool + Send + Sync>;

/// Where spans are received, and where they go on to.
#[derive(Debug)]
pub struct Settings {
    /// The socket that listens.
    pub listener: TcpListener,
    /// The user's collector, which gets every message as it came.
    pub forward: Option<forward::Settings>,
    /// What connections may take.
    pub limits: Limits,
}

/// A running receiver. When dropped, which blocks, it forwards for a moment what waits, and ends.
#[derive(Debug)]
pub struct Receiver {
    addr: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Reads messages.
struct Reader {
    sink: Sink,
    forward: Option<Forward>,
    metrics: Metrics,
    /// Bytes of bodies that may be held together.
    room: Semaphore,
    /// Told of something left out.
    said: Once,
}

/// Bytes of a message, as it comes and inflated: what gRPC takes by default. Servers send 64 spans at once, which are some 20 kB; one of
/// nothing but empty spans takes 16 times its length while it is read.
const LONGEST: usize = 4 << 20;
/// Bytes of messages that are held together; one connection may hold half of it.
const MOST_HELD: usize = 64 << 20;
/// How many times as long as it came a message may be when it is inflated, beyond [`SMALL`]: spans, which hold random ids,
/// are some ten times as long. More is no message but a bomb.
const INFLATED: usize = 64;
/// Bytes that any message may be inflated to.
const SMALL: usize = 1 << 20;

impl Receiver {
    /// Takes spans in from now on.
    ///
    /// # Errors
    /// The collector's TLS cannot be set up, or the system gives no thread.
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
            room: Semaphore::new(MOST_HELD),
            said: Once::new(),
        };
        let (stop, stopped) = oneshot::channel();
        let run = move || {
            runtime.block_on(service::serve(listener, reader, settings.limits, stopped));
            // A name that is still being looked up holds nobody up.
            runtime.shutdown_background();
        };
        let thread = std::thread::Builder::new()
            .name("engine-traces".into())
            .spawn(run)?;
        Ok(Receiver {
            addr,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        drop(self.stop.take());
        let thread = self.thread.take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            log::error!("engine traces: the thread that receives them failed");
        }
    }
}

impl Reader {
    /// Reads a message and gives on what it tells.
    fn read(&self, body: Bytes, is_gzip: bool) -> Result<(), Refusal> {
        let plain = if is_gzip { inflated(&body)? } else { body };
        let left_out = &self.metrics.trace_spans_left_out;
        let spans = otlp::spans(plain.clone(), |why| {
            left_out.with(&[why.name()]).inc();
            self.say("a span that is malformed or too large");
        });
        let spans = spans.map_err(|_| BROKEN)?;
        if let Some(forward) = &self.forward {
            forward.push(plain);
        }
        self.count(match spans.is_empty() || (self.sink)(spans) {
            true => Batch::Taken,
            false => Batch::NoRoom,
        });
        Ok(())
    }

    /// Says once that there is something that cannot be taken.
    fn say(&self, what: &str) {
        let metrics = &self.metrics;
        let (batches, spans) = (&metrics.trace_batches, &metrics.trace_spans_left_out);
        self.said.call_once(|| {
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

fn inflated(body: &[u8]) -> Result<Bytes, Refusal> {
    let most = LONGEST.min(SMALL + INFLATED * body.len());
    let mut plain = Vec::new();
    let mut read = MultiGzDecoder::new(body).take(most as u64 + 1);
    read.read_to_end(&mut plain).map_err(|_| BROKEN)?;
    match plain.len() > most {
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
    fn what_is_inflated_is_in_proportion_to_what_came() {
        let inflate = |length: usize| {
            let body = packed(&vec![0; length]);
            assert!(length > INFLATED * body.len());
            inflated(&body).map(|plain| plain.len())
        };
        assert_eq!(inflate(SMALL), Ok(SMALL));
        assert_eq!(inflate(LONGEST), Err(TOO_LARGE));
        assert_eq!(inflated(b"no gzip"), Err(BROKEN));
        // Numbers that begin alike, as ids and times do.
        let numbers: Vec<u8> = (0..500_000_u64)
            .flat_map(|n| (1_795_000_000_000_000_000 + n * n).to_le_bytes())
            .collect();
        assert_eq!(inflated(&packed(&numbers)).unwrap(), numbers);
    }
}
