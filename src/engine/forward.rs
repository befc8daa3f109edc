//! Forwards the messages with servers' spans to the user's collector, byte for byte.
//!
//! The queue is bounded by bytes. No message is sent twice: the collector might store its spans twice, and a retry would not
//! help if the collector is down for long. Lost messages are counted, and logged once.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::telemetry::otlp::exporter::Collector;
use crate::telemetry::otlp::settings::ExportSettings;
use crate::telemetry::prometheus::{Dropped, Metrics};
use crate::telemetry::queue::Deliveries;

/// Forwards messages to a collector, within a Tokio runtime. The tasks that send them share it.
#[derive(Debug)]
pub struct Forward {
    collector: Collector,
    /// A permit for each byte that may wait.
    room: Arc<Semaphore>,
    capacity: u32,
    /// Limits the messages being sent.
    slots: Semaphore,
    closing: CancellationToken,
    deliveries: Arc<Deliveries>,
}

/// The maximum number of messages being sent at once.
const MAX_CONCURRENT: usize = 8;
/// How long the last messages may take at the end.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);
/// The size by which a small message counts: its task takes as much, bytes.
const MIN_WEIGHT: usize = 2048;
/// How long a slot is blocked after a failure to connect.
const RETRY_DELAY: Duration = Duration::from_secs(1);

impl Forward {
    /// Creates a forwarder, for which so many bytes may wait. It connects for the first message.
    ///
    /// # Errors
    /// TLS cannot be set up.
    pub fn new(
        settings: &ExportSettings,
        queue_bytes: u64,
        metrics: &Metrics,
    ) -> io::Result<Forward> {
        let lost = &metrics.trace_forwards;
        let sent = lost.with(&["sent"]);
        let capacity = u32::try_from(queue_bytes).unwrap_or(u32::MAX);
        Ok(Forward {
            collector: Collector::new(settings)?,
            room: Arc::new(Semaphore::new(capacity as usize)),
            capacity,
            slots: Semaphore::new(MAX_CONCURRENT),
            closing: CancellationToken::new(),
            deliveries: Deliveries::new("engine traces", settings.target(), sent, lost),
        })
    }

    /// Enqueues a message; one that is longer than the whole queue may wait alone. Never waits.
    pub fn push(self: &Arc<Forward>, message: Bytes) {
        let weight = u32::try_from(message.len().max(MIN_WEIGHT)).unwrap_or(u32::MAX);
        let room = self.room.clone();
        let Ok(permit) = room.try_acquire_many_owned(weight.min(self.capacity)) else {
            let message = "too much waits for it";
            return self.deliveries.lost(Dropped::QueueFull, message, 1);
        };
        let forward = self.clone();
        tokio::spawn(async move {
            forward.send(message).await;
            drop(permit);
        });
    }

    /// Sends the waiting messages, within a time limit.
    pub async fn finish(self: &Arc<Forward>) {
        self.closing.cancel();
        let all = self.room.acquire_many(self.capacity);
        drop(tokio::time::timeout(SHUTDOWN_TIMEOUT, all).await);
        // Each message that waits or is being sent has a task, which holds a reference; the caller holds one more.
        self.deliveries.end(Arc::strong_count(self) - 1);
    }

    async fn send(&self, message: Bytes) {
        let _slot = self.slots.acquire().await;
        let sent = self.collector.send(message).await;
        let Err(error) = sent else {
            return self.deliveries.sent(1, false);
        };
        self.deliveries.lost(error.reason, &error.message, 1);
        if error.reason == Dropped::Unreachable {
            // At the end there is no delay.
            drop(tokio::time::timeout(RETRY_DELAY, self.closing.cancelled()).await);
        }
    }
}
