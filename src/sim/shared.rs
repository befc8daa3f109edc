//! What all requests of a simulated server share, and what is known of one of them.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use http::HeaderMap;
use parking_lot::Mutex;

use crate::clock::Stamp;

use super::call::Call;
use super::config::Config;
use super::disaggregation::{Mode, Rooms};
use super::driver::{Driver, EngineClock};
use super::export::Tracer;
use super::metrics::Metrics;
use super::script::Script;
use super::served::Served;

/// What all requests share.
#[derive(Debug)]
pub(super) struct Shared {
    pub config: Config,
    pub addr: SocketAddr,
    /// Where decode servers find a prefill server.
    pub bootstrap_addr: Option<SocketAddr>,
    pub clock: EngineClock,
    /// When the server started.
    pub started: Stamp,
    pub script: Script,
    pub driver: Arc<Driver>,
    pub metrics: Metrics,
    /// The last that have ended, in order of ending.
    pub served: Mutex<VecDeque<Served>>,
    pub tracer: Option<Tracer>,
    /// Where lines of the request log go.
    pub request_log: Option<PathBuf>,
    /// Of a prefill server of a pair: what it and the decode servers know of each other's requests.
    pub rooms: Rooms,
    pub next_id: AtomicU64,
}

/// A generation request with its answers.
#[derive(Debug)]
pub(super) struct Exchange {
    pub shared: Arc<Shared>,
    pub call: Call,
    pub headers: HeaderMap,
    pub received: Stamp,
    /// Tokenized and handed to the scheduler.
    pub dispatched: Stamp,
}

impl Shared {
    /// What this server does of a request.
    pub(super) fn mode(&self) -> Mode {
        self.config.disaggregation.disaggregation_mode
    }

    /// Seconds of Python's `perf_counter`, which counts from some moment before the server's start.
    pub(super) fn perf(&self, at: Stamp) -> f64 {
        1_000.0 + at.since(self.started)
    }
}

impl Exchange {
    /// A header of the request.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// Without a stream a decode server's frontend hears of the tokens at the end only, as recorded.
    pub(super) fn is_told_at_once(&self) -> bool {
        self.shared.mode() == Mode::Decode && !self.call.stream
    }
}
