//! Takes in the spans that servers send, by OTLP over gRPC and HTTP on one address, from a thread of its own.
//!
//! A message is acknowledged as soon as it is whole, and read after that: a server never waits for what is done with its
//! spans. Whatever comes, memory is bounded: bodies, what they inflate to, connections, and all that waits to be read.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use crate::telemetry::prometheus::engine_traces::{Batch, EngineTraceMetrics};

use super::forward::{self, Forward};
use super::otlp::{self, Malformed};
use super::span::EngineSpan;

mod intake;
mod service;

use intake::{Intake, Message, Unread};

pub use service::Limits;

/// Who gets the spans of a batch; `false` when it has no room for them. Called on the receiver's thread: must not wait.
pub type Sink = Arc<dyn Fn(Vec<EngineSpan>) -> bool + Send + Sync>;

/// Where spans are received, and where they go on to.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The address to listen on.
    pub listen: SocketAddr,
    /// The user's collector, which gets every message as it came.
    pub forward: Option<forward::Settings>,
    /// What connections may take.
    pub limits: Limits,
}

/// A running receiver. It ends when dropped.
#[derive(Debug)]
pub struct Receiver {
    addr: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Reads the messages that were acknowledged.
struct Reader {
    messages: mpsc::UnboundedReceiver<Message>,
    sink: Sink,
    forward: Option<Forward>,
    metrics: EngineTraceMetrics,
    /// It was said that a sender sends what cannot be read.
    is_told: bool,
}

/// How long what has come may take to be read at the end.
const LAST: Duration = Duration::from_secs(1);

impl Receiver {
    /// Listens from now on.
    ///
    /// # Errors
    /// The address cannot be listened on, the collector's TLS cannot be set up, or the system gives no thread.
    pub fn start(
        settings: Settings,
        sink: Sink,
        metrics: EngineTraceMetrics,
    ) -> io::Result<Receiver> {
        let listener = TcpListener::bind(settings.listen)?;
        Receiver::run(listener, settings.forward, settings.limits, sink, metrics)
    }

    /// The same on a socket that listens already, with the default limits.
    ///
    /// # Errors
    /// As those of [`Receiver::start`], but for the address.
    pub fn start_on(
        listener: TcpListener,
        forward: Option<forward::Settings>,
        sink: Sink,
        metrics: EngineTraceMetrics,
    ) -> io::Result<Receiver> {
        Receiver::run(listener, forward, Limits::default(), sink, metrics)
    }

    fn run(
        listener: TcpListener,
        forward: Option<forward::Settings>,
        limits: Limits,
        sink: Sink,
        metrics: EngineTraceMetrics,
    ) -> io::Result<Receiver> {
        listener.set_nonblocking(true)?;
        let addr = listener.local_addr()?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        // What forwards is spawned here, not where the caller is.
        let (listener, forward) = {
            let _inside = runtime.enter();
            let listener = tokio::net::TcpListener::from_std(listener)?;
            let forward = forward.map(|to| Forward::new(to, metrics.clone()));
            (listener, forward.transpose()?)
        };
        let (intake, messages) = Intake::new(metrics.clone());
        let mut reader = Reader {
            messages,
            sink,
            forward,
            metrics,
            is_told: false,
        };
        let (stop, stopped) = oneshot::channel();
        let run = move || {
            runtime.block_on(async {
                tokio::select! {
                    () = service::serve(listener, intake, limits, stopped) => {}
                    // It goes on as long as connections do.
                    () = reader.run() => {}
                }
                // Nothing more is acknowledged; all that was is read.
                drop(tokio::time::timeout(LAST, reader.run()).await);
                reader.finish().await;
            });
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

    /// Reads what was acknowledged, forwards for a moment what waits, and ends. Blocks.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        drop(self.stop.take());
        let thread = self.thread.take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            log::error!("engine traces: the thread that receives them failed");
        }
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.end();
    }
}

impl Reader {
    async fn run(&mut self) {
        while let Some(message) = self.messages.recv().await {
            self.read(message);
            // Connections are served between messages.
            tokio::task::yield_now().await;
        }
    }

    /// What is left at the end.
    async fn finish(&mut self) {
        while let Ok(message) = self.messages.try_recv() {
            self.read(message);
        }
        if let Some(forward) = self.forward.take() {
            forward.finish().await;
        }
    }

    fn read(&mut self, message: Message) {
        let mut spans = Vec::new();
        let read = message.plain().and_then(|plain| {
            otlp::spans(&plain, &mut spans).map_err(|Malformed| Unread::Malformed)?;
            Ok(plain)
        });
        let outcome = match read {
            Ok(plain) => {
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
        self.metrics.batch(outcome);
        if matches!(outcome, Batch::Malformed | Batch::TooLarge) && !self.is_told {
            self.is_told = true;
            log::warn!(
                "engine traces: a batch of spans is {}; such are left out and counted",
                outcome.name().replace('_', " ")
            );
        }
    }
}
