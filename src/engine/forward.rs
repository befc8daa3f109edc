//! Sends the messages of servers' spans on to the user's collector, byte for byte.
//!
//! What waits is bounded by bytes. Nothing is sent twice: a collector would count the spans double, and one that is away for long
//! costs them anyway. What is lost is counted, and said once in the log.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::telemetry::loss::LossLog;
use crate::telemetry::otlp::collector::{Collector, Deliveries};
use crate::telemetry::otlp::settings;
use crate::telemetry::prometheus::{Dropped, Metrics};

/// Where messages go.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The collector. Of these settings, its URL, protocol, headers, certificates and the limit on an export count.
    pub to: settings::Settings,
    /// Bytes of messages that may wait.
    pub queue_bytes: usize,
}

/// The way to a collector. Used within a Tokio runtime.
#[derive(Debug)]
pub struct Forward {
    way: Way,
    /// Bytes that may wait.
    room: Arc<Semaphore>,
    most: u32,
}

/// What all messages share.
#[derive(Clone, Debug)]
struct Way {
    collector: Collector,
    /// Whose turn it is.
    turn: Arc<Semaphore>,
    closing: CancellationToken,
    deliveries: Arc<Deliveries>,
}

/// Messages on their way at once.
const AT_ONCE: usize = 8;
/// How long the last ones may take.
const LAST: Duration = Duration::from_secs(1);
/// Bytes that a message takes while it waits, at least: its task and what it is sent by.
const LEAST: usize = 2048;
/// What cannot be reached is tried again by the next message that waits after this time.
const PAUSE: Duration = Duration::from_secs(1);

impl Forward {
    /// A way to a collector; the first connection is made for the first message.
    ///
    /// # Errors
    /// TLS cannot be set up.
    pub fn new(settings: &Settings, metrics: &Metrics) -> io::Result<Forward> {
        let deliveries = Deliveries {
            what: "engine traces",
            target: settings.to.target(),
            sent: metrics.trace_forwards.with(&["sent"]),
            lost: metrics.trace_forwards.clone(),
            open: 0.into(),
            log: LossLog::default(),
        };
        let most = u32::try_from(settings.queue_bytes).unwrap_or(u32::MAX);
        Ok(Forward {
            way: Way {
                collector: Collector::new(&settings.to).map_err(io::Error::other)?,
                turn: Arc::new(Semaphore::new(AT_ONCE)),
                closing: CancellationToken::new(),
                deliveries: Arc::new(deliveries),
            },
            room: Arc::new(Semaphore::new(most as usize)),
            most,
        })
    }

    /// A message is to be sent; what is longer than all that may wait does so alone. Never waits.
    pub fn push(&self, message: Bytes) {
        self.way.deliveries.begin();
        let takes = u32::try_from(message.len().max(LEAST)).unwrap_or(u32::MAX);
        let room = self.room.clone();
        let Ok(held) = room.try_acquire_many_owned(takes.min(self.most)) else {
            let words = "too much waits for it";
            return self.way.deliveries.lost(Dropped::QueueFull, words, 1);
        };
        let way = self.way.clone();
        tokio::spawn(async move {
            way.send(message).await;
            drop(held);
        });
    }

    /// Sends what waits, within a limit.
    pub async fn finish(self) {
        self.way.closing.cancel();
        let all = self.room.acquire_many(self.most);
        drop(tokio::time::timeout(LAST, all).await);
        self.way.deliveries.end();
    }
}

impl Way {
    async fn send(self, message: Bytes) {
        let _turn = self.turn.acquire().await;
        let Err(trouble) = self.collector.send(message).await else {
            return self.deliveries.sent(1);
        };
        self.deliveries.lost(trouble.why, &trouble.words, 1);
        if trouble.why == Dropped::Unreachable {
            // At the end it is tried at once.
            drop(tokio::time::timeout(PAUSE, self.closing.cancelled()).await);
        }
    }
}
