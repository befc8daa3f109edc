//! The state that all requests of a simulated server share, a generation request with its sequences, and the server's own record of it.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use http::HeaderMap;
use parking_lot::Mutex;

use crate::clock::{Clock, Stamp};

use super::canned_text::CannedText;
use super::config::Config;
use super::disaggregation::{Mode, Rooms};
use super::driver::Driver;
use super::metrics::Metrics;
use super::request_body::GenerationRequest;
use super::sequence::Moments;
use super::tracer::Tracer;

/// The state that all requests share.
#[derive(Debug)]
pub(super) struct Shared {
    pub config: Config,
    pub addr: SocketAddr,
    /// The address of a prefill server's bootstrap port.
    pub bootstrap_addr: Option<SocketAddr>,
    /// The engine's clock.
    pub clock: Clock,
    /// When the server started.
    pub started: Stamp,
    pub canned_text: CannedText,
    pub driver: Arc<Driver>,
    pub metrics: Metrics,
    /// The requests that have ended, in order of ending.
    pub served: Mutex<VecDeque<Served>>,
    pub tracer: Option<Tracer>,
    /// The folder of the request log.
    pub request_log: Option<PathBuf>,
    /// Used by a prefill server of a pair.
    pub rooms: Rooms,
    pub next_id: AtomicU64,
}

/// A generation request that was not refused, with its sequences and timestamps.
#[derive(Debug)]
pub(super) struct Accepted {
    pub shared: Arc<Shared>,
    pub request: GenerationRequest,
    pub headers: HeaderMap,
    pub received: Stamp,
    /// When it was tokenized and handed to the scheduler.
    pub dispatched: Stamp,
}

/// The server's own record of one generation request that reached the engine, with which tests compare a proxy's rows.
///
/// Stamps are on the engine's clock (with its skew).
#[derive(Clone, Debug)]
pub struct Served {
    /// Its `x-request-id` header, of the client or router.
    pub x_request_id: Option<String>,
    /// Its `traceparent` header.
    pub traceparent: Option<String>,
    /// When the request had been read.
    pub received: Stamp,
    /// The moments of its first sequence.
    pub moments: Moments,
    /// How it ended.
    pub outcome: Outcome,
}

/// How a request ended, as the server saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The whole response was handed to the socket.
    Finished,
    /// The client left, or `/abort_request` was called.
    Aborted,
    /// The queue was full.
    Rejected,
}

/// The most entries of [`Shared::served`]; the oldest are dropped.
pub(super) const MAX_SERVED: usize = 100_000;

impl Shared {
    /// Which part of a request this server does.
    pub(super) fn mode(&self) -> Mode {
        self.config.disaggregation.disaggregation_mode
    }
}

impl Accepted {
    /// A header of the request.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// Whether the scheduler reports all tokens at the end: as recorded from decode servers, for responses that are no stream.
    pub(super) fn is_reported_at_end(&self) -> bool {
        self.shared.mode() == Mode::Decode && !self.request.stream
    }
}
