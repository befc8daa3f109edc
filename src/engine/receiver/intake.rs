//! What has been received and is not read yet, bounded by bytes.

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use flate2::read::MultiGzDecoder;
use tokio::sync::mpsc;

use crate::telemetry::prometheus::engine_traces::{Batch, EngineTraceMetrics};

/// Where messages are put. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Intake {
    held: Arc<AtomicUsize>,
    messages: mpsc::UnboundedSender<Message>,
    metrics: EngineTraceMetrics,
}

/// A message as it came.
#[derive(Debug)]
pub struct Message {
    /// Protobuf, maybe compressed.
    pub body: Bytes,
    /// By gzip.
    pub is_gzip: bool,
    /// What it takes of the bytes that may be held.
    pub held: Held,
}

/// A share of the bytes that all messages together may hold; given back when dropped.
#[derive(Debug)]
pub struct Held {
    bytes: usize,
    all: Arc<AtomicUsize>,
}

/// Why a message tells nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unread {
    /// It is none.
    Malformed,
    /// It is longer than [`LONGEST`].
    TooLarge,
}

/// Bytes of a message, as it comes and inflated. Servers send 64 spans at once, which are some 20 kB.
pub const LONGEST: usize = 16 << 20;
/// Bytes of messages that are held together.
const MOST_HELD: usize = 64 << 20;

impl Intake {
    /// An intake, and where its messages come out.
    pub fn new(metrics: EngineTraceMetrics) -> (Intake, mpsc::UnboundedReceiver<Message>) {
        let (messages, out) = mpsc::unbounded_channel();
        let held = Arc::default();
        let intake = Intake {
            held,
            messages,
            metrics,
        };
        (intake, out)
    }

    /// A share to let grow.
    pub fn hold(&self) -> Held {
        Held {
            bytes: 0,
            all: self.held.clone(),
        }
    }

    /// A whole message has come.
    pub fn put(&self, message: Message) {
        // Without a reader the process is about to end.
        drop(self.messages.send(message));
    }

    /// A connection was turned away.
    pub fn refused(&self) {
        self.metrics.refused();
    }

    /// A batch was turned away.
    pub fn turned_away(&self, why: Batch) {
        self.metrics.batch(why);
    }
}

impl Held {
    /// Takes so many more; `false` where that is too many.
    pub fn grow(&mut self, bytes: usize) -> bool {
        let all = self.all.fetch_add(bytes, Ordering::Relaxed);
        self.bytes += bytes;
        all + bytes <= MOST_HELD
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Message {
    /// The protobuf.
    ///
    /// # Errors
    /// See [`Unread`].
    pub fn plain(self) -> Result<Bytes, Unread> {
        let Message {
            body,
            is_gzip,
            held: _until_here,
        } = self;
        if !is_gzip {
            return Ok(body);
        }
        let mut plain = Vec::new();
        MultiGzDecoder::new(&body[..])
            .take(LONGEST as u64 + 1)
            .read_to_end(&mut plain)
            .map_err(|_| Unread::Malformed)?;
        match plain.len() > LONGEST {
            true => Err(Unread::TooLarge),
            false => Ok(plain.into()),
        }
    }
}
