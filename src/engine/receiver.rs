//! Takes in the spans that servers send, by OTLP over gRPC and HTTP on one address, from threads of its own.
//!
//! A message is acknowledged as soon as it is whole, and read after that, by another thread and in turns: a server never
//! waits for what is done with its spans, or with others'. Whatever comes, memory is bounded: bodies, what they inflate to, connections, and all that waits to be read.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use tokio::sync::oneshot;

use crate::telemetry::prometheus::{Batch, Metrics};

use super::forward::{self, Forward};
use super::otlp;
use super::span::EngineSpan;

mod intake;
mod service;

use intake::{Message, Unread};

pub use service::Limits;

/// Who gets the spans of a batch; `false` when it has no room for them. Called on the thread that reads: must not wait.
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

/// A running receiver. When dropped, which blocks, it reads what was acknowledged, forwards for a moment what waits, and ends.
#[derive(Debug)]
pub struct Receiver {
    addr: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Reads the messages that were acknowledged.
struct Reader {
    sink: Sink,
    forward: Option<Forward>,
    metrics: Metrics,
    /// It was said that a sender sends what cannot be read.
    is_told: AtomicBool,
}

impl Receiver {
    /// Takes spans in from now on.
    ///
    /// # Errors
    /// The collector's TLS cannot be set up, or the system gives no thread.
    pub fn start(settings: Settings, sink: Sink, metrics: Metrics) -> io::Result<Receiver> {
        let Settings {
            listener,
            forward,
            limits,
        } = settings;
        listener.set_nonblocking(true)?;
        let addr = listener.local_addr()?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        // What forwards is spawned here, not where the caller is.
        let (listener, forward) = {
            let _inside = runtime.enter();
            let listener = tokio::net::TcpListener::from_std(listener)?;
            let forward = forward.map(|to| Forward::new(&to, &metrics));
            (listener, forward.transpose()?)
        };
        let reader = Reader::new(sink, forward, metrics);
        let (stop, stopped) = oneshot::channel();
        let run = move || {
            runtime.block_on(service::serve(listener, reader, limits, stopped));
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
    fn new(sink: Sink, forward: Option<Forward>, metrics: Metrics) -> Reader {
        Reader {
            sink,
            forward,
            metrics,
            is_told: AtomicBool::new(false),
        }
    }

    fn read(&self, message: Message) {
        let read = message.plain().and_then(|plain| {
            let mut left_out = Vec::new();
            let spans = otlp::spans(plain.clone(), |why| left_out.push(why));
            let spans = spans.map_err(|_| Unread::Malformed)?;
            Ok((plain, spans, left_out))
        });
        let outcome = match read {
            Ok((plain, spans, left_out)) => {
                for why in left_out {
                    let counted = &self.metrics.trace_spans_left_out;
                    counted.with(&[why.name()]).inc();
                }
                if let Some(forward) = &self.forward {
                    forward.push(plain);
                }
                match spans.is_empty() || (self.sink)(spans) {
                    true => Batch::Taken,
                    false => Batch::NoRoom,
                }
            }
            Err(Unread::Malformed) => Batch::Malformed,
            Err(Unread::TooLarge) => Batch::TooLarge,
        };
        self.count(outcome);
        let is_bad = matches!(outcome, Batch::Malformed | Batch::TooLarge);
        if is_bad && !self.is_told.swap(true, Ordering::Relaxed) {
            log::warn!(
                "engine traces: a batch of spans is {}; such are left out and counted",
                outcome.name().replace('_', " ")
            );
        }
    }

    fn count(&self, outcome: Batch) {
        self.metrics.trace_batches.with(&[outcome.name()]).inc();
    }
}
