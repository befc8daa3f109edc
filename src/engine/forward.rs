//! Sends the messages of servers' spans on to the user's collector, byte for byte.
//!
//! They wait in a queue that is bounded by bytes. Nothing is sent twice: a collector would count the spans double, and one
//! that is away for long costs them anyway. What is lost is counted, and said once in the log. While a collector cannot be
//! reached it is tried again ever more seldom.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Mutex;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::telemetry::loss::LossLog;
use crate::telemetry::otlp::collector::{Collector, Deliveries};
use crate::telemetry::otlp::settings;
use crate::telemetry::prometheus::{Dropped, Metrics};
use crate::telemetry::queue::{Queue, Waiting};

/// Where messages go.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The collector. Of these settings, its URL, protocol, headers, certificates and the limit on an export count.
    pub to: settings::Settings,
    /// Bytes of messages that may wait.
    pub queue_bytes: usize,
}

/// The way to a collector. Made and used within a Tokio runtime.
#[derive(Debug)]
pub struct Forward {
    queue: Queue<Bytes>,
    sending: JoinSet<()>,
    closing: CancellationToken,
    deliveries: Arc<Deliveries>,
}

/// Sends one message after the other.
#[derive(Clone)]
struct Sender {
    messages: Arc<Mutex<UnboundedReceiver<Waiting<Bytes>>>>,
    collector: Collector,
    closing: CancellationToken,
    deliveries: Arc<Deliveries>,
}

/// Messages on their way at once.
const AT_ONCE: usize = 8;
/// How long the last ones may take.
const LAST: Duration = Duration::from_secs(1);
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

impl Forward {
    /// A way to a collector; the first connection is made for the first message.
    ///
    /// # Errors
    /// TLS cannot be set up.
    pub fn new(settings: &Settings, metrics: &Metrics) -> io::Result<Forward> {
        let (queue, messages) = Queue::new(settings.queue_bytes);
        let deliveries = Deliveries {
            what: "engine traces",
            target: settings.to.target(),
            sent: metrics.trace_forwards.with(&["sent"]),
            lost: metrics.trace_forwards.clone(),
            open: 0.into(),
            log: LossLog::default(),
        };
        let sender = Sender {
            messages: Arc::new(Mutex::new(messages)),
            collector: Collector::new(&settings.to).map_err(io::Error::other)?,
            closing: CancellationToken::new(),
            deliveries: Arc::new(deliveries),
        };
        let senders = std::iter::repeat_n(sender.clone(), AT_ONCE);
        Ok(Forward {
            queue,
            sending: senders.map(Sender::run).collect(),
            closing: sender.closing,
            deliveries: sender.deliveries,
        })
    }

    /// A message to be sent. Never waits.
    pub fn push(&self, message: Bytes) {
        let bytes = message.len();
        self.deliveries.begin();
        if self.queue.push(message, bytes).is_err() {
            let words = "too much waits for it";
            self.deliveries.lost(Dropped::QueueFull, words, 1);
        }
    }

    /// Sends what waits, within a limit.
    pub async fn finish(mut self) {
        self.queue.close();
        self.closing.cancel();
        let all = async { while self.sending.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(LAST, all).await;
        self.deliveries.end();
    }
}

impl Sender {
    async fn run(self) {
        let mut pause = FIRST_PAUSE;
        while let Some((message, _room)) = self.next().await {
            let Err(trouble) = self.collector.send(message).await else {
                self.deliveries.sent(1);
                pause = FIRST_PAUSE;
                continue;
            };
            self.deliveries.lost(trouble.why, &trouble.words, 1);
            if trouble.why == Dropped::Unreachable {
                // At the end it is tried at once.
                drop(tokio::time::timeout(pause, self.closing.cancelled()).await);
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }

    async fn next(&self) -> Option<Waiting<Bytes>> {
        self.messages.lock().await.recv().await
    }
}
