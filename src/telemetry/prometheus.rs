//! The metrics of a proxy, for Prometheus, with the figures of its process and its upstreams.

mod requests;
mod table;

pub use table::{Families, METRICS};

use std::ops::Deref;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Weak};

use nix::sys::resource::{Resource, UsageWho, getrlimit, getrusage};
use nix::sys::time::TimeValLike;
use parking_lot::Mutex;
use prometheus::{IntCounter, IntGauge, Registry, Result, TextEncoder};

use crate::clock::Clock;
use crate::names::names;
use crate::request::Endpoint;
use crate::stats::waits::Cause;

use super::family::{Family, MAX_LABEL_SETS};

/// The metrics of a proxy. Clones are cheap and share the values.
#[derive(Clone, Debug)]
pub struct Metrics {
    registry: Registry,
    families: Arc<Families>,
    /// The upstreams whose numbers are shown: those that a sender uses.
    upstreams: Arc<Mutex<Vec<Weak<UpstreamFigures>>>>,
    /// The gauges of requests in flight, by [`RequestPhase`].
    in_flight_gauges: [IntGauge; 3],
}

/// The numbers of one upstream, for balancing and for `/metrics`. All senders to it share them.
#[derive(Debug, Default)]
pub struct UpstreamFigures {
    /// `host:port`.
    pub name: String,
    /// Requests that were given to it and have neither ended nor been moved to another upstream.
    pub in_flight: AtomicUsize,
    /// Whether it is left out, since it could not be connected to.
    pub is_out: AtomicBool,
}

/// The only phase of a pair's leg to its prefill server: meanwhile the request waits for, or streams from, the decode server.
const PREFILLING: &str = "prefilling";

/// A request or attempt in flight. Dropping it ends it.
#[derive(Debug)]
pub struct InFlight {
    /// By [`RequestPhase`].
    gauges: [IntGauge; 3],
    phase: RequestPhase,
}

names! {
/// The phase of a request in flight.
pub enum RequestPhase {
    /// It has not been sent upstream.
    Receiving = "receiving",
    /// It was sent, and no token has been received.
    Waiting = "waiting",
    /// A token has been received.
    Streaming = "streaming",
}}

names! {
/// What decided the choice of an upstream by the policy `cache_aware`.
pub enum ChosenBy {
    /// It was sent the beginning of the prompt before.
    Prefix = "prefix",
    /// Too little of the prompt was known: the least loaded.
    Load = "load",
    /// The queues were too uneven: the least loaded.
    Imbalance = "imbalance",
    /// No prompt could be read: the least loaded.
    Unread = "unread",
}}

names! {
/// Why a row or a trace was lost.
pub enum Dropped {
    /// The queue was full.
    QueueFull = "queue_full",
    /// The file could not be written.
    Write = "write",
    /// The collector rejected it.
    Rejected = "rejected",
    /// There was no connection to the collector.
    Unreachable = "unreachable",
    /// The collector did not answer in time.
    Timeout = "timeout",
    /// It was still queued when the process ended, or came later.
    Shutdown = "shutdown",
}}

names! {
/// What became of an engine report.
pub enum JoinOutcome {
    /// It was joined with its row.
    Joined = "joined",
    /// Its row had been recorded without it.
    Late = "late",
    /// It matched no row.
    NoRow = "no_row",
    /// There was no room for it.
    NoRoom = "no_room",
}}

names! {
/// What became of a batch of servers' spans.
pub enum BatchOutcome {
    /// It was accepted.
    Taken = "taken",
    /// It is not an OTLP message of traces.
    Malformed = "malformed",
    /// It exceeds the maximum size.
    TooLarge = "too_large",
    /// There was no room for it.
    NoRoom = "no_room",
}}

names! {
/// Why a span of an accepted batch was left out.
pub enum LeftOut {
    /// Its ids or times are invalid.
    Malformed = "malformed",
    /// It exceeds the maximum size.
    TooLarge = "too_large",
}}

impl Deref for Metrics {
    type Target = Families;

    fn deref(&self) -> &Families {
        &self.families
    }
}

impl Metrics {
    /// Creates metrics at zero, in a registry of their own.
    ///
    /// # Errors
    /// If Prometheus refuses a name, which a test rules out.
    pub fn new() -> Result<Metrics> {
        Metrics::with_label_sets(MAX_LABEL_SETS)
    }

    /// The same with another maximum number of label sets of a metric.
    ///
    /// # Errors
    /// If Prometheus refuses a name, which a test rules out.
    pub fn with_label_sets(max_sets: usize) -> Result<Metrics> {
        let registry = Registry::new();
        let families = Families::new(&registry, max_sets)?;
        families.build.with(&[env!("CARGO_PKG_VERSION")]).set(1);
        let started = Clock::system().now().seconds();
        families.process_start.with(&[]).set(started);
        for endpoint in Endpoint::ALL {
            for reason in requests::reasons() {
                families.timing_missing.with(&[reason, endpoint.path()]);
            }
        }
        Ok(Metrics {
            upstreams: Arc::default(),
            in_flight_gauges: RequestPhase::ALL
                .map(|phase| families.in_flight.with(&[phase.name()])),
            families: Arc::new(families),
            registry,
        })
    }

    /// Adds a wait at a worker for this cause, nanoseconds.
    pub fn add_wait(&self, worker: &str, cause: Cause, nanos: i64) {
        let seconds = self.wait_causes.with(&[worker, cause.name()]);
        seconds.inc_by(requests::seconds(nanos));
    }

    /// Returns all metrics in Prometheus's text format.
    pub fn text(&self) -> String {
        // Held until all is gathered: of two scrapes at once, each would add the same numbers.
        let upstreams = self.upstreams.lock();
        self.update_upstreams(&upstreams);
        self.update_process();
        let families = self.registry.gather();
        drop(upstreams);
        // Writing to a string cannot fail.
        TextEncoder::new()
            .encode_to_string(&families)
            .unwrap_or_default()
    }

    /// Returns the totals as a sentence.
    pub fn totals(&self) -> String {
        let sum = |of: &Family<IntCounter>| of.sets().iter().map(|set| set.1.get()).sum::<u64>();
        format!(
            "served {} requests, passed {} others through, wrote {} rows, lost {}",
            sum(&self.requests),
            sum(&self.passed_through),
            sum(&self.rows_written),
            sum(&self.rows_lost),
        )
    }

    /// Counts a generation request as in flight until the returned value is dropped.
    pub fn begin_request(&self) -> InFlight {
        InFlight::new(self.in_flight_gauges.clone(), RequestPhase::Receiving)
    }

    /// Counts an attempt at `worker` as in flight until the returned value is dropped.
    pub fn begin_attempt(&self, worker: &str) -> InFlight {
        let gauge = |phase: RequestPhase| self.worker_in_flight.with(&[worker, phase.name()]);
        let (waiting, streaming) = (gauge(RequestPhase::Waiting), gauge(RequestPhase::Streaming));
        InFlight::new([waiting.clone(), waiting, streaming], RequestPhase::Waiting)
    }

    /// The same for a leg to the prefill server `worker` of a pair.
    pub fn begin_leg(&self, worker: &str) -> InFlight {
        let gauge = self.worker_in_flight.with(&[worker, PREFILLING]);
        InFlight::new([gauge.clone(), gauge.clone(), gauge], RequestPhase::Waiting)
    }

    /// Creates the series of `worker`, so that it is shown before its first attempt.
    pub fn expect_worker(&self, worker: &str) {
        self.attempts.with(&[worker, "ok"]);
        for phase in [RequestPhase::Waiting, RequestPhase::Streaming] {
            self.worker_in_flight.with(&[worker, phase.name()]);
        }
    }

    /// Returns the number of generation requests in flight.
    pub fn in_flight(&self) -> i64 {
        self.in_flight_gauges.iter().map(IntGauge::get).sum()
    }

    /// Returns the number of generation requests in flight, by phase.
    pub fn in_flight_by_phase(&self) -> [(&'static str, i64); 3] {
        RequestPhase::ALL.map(|phase| (phase.name(), self.in_flight_gauges[phase as usize].get()))
    }

    /// Returns the number of attempts in flight, with worker and phase.
    pub fn in_flight_by_worker(&self) -> impl Iterator<Item = (String, String, i64)> {
        let sets = self.worker_in_flight.sets().into_iter();
        sets.filter_map(|(values, gauge)| {
            let [worker, phase] = values.try_into().ok()?;
            Some((worker, phase, gauge.get()))
        })
    }

    /// Shows an upstream: its gauges until no sender uses it any more, its counter for good.
    pub fn show_upstream(&self, upstream: &Arc<UpstreamFigures>) {
        let mut all = self.upstreams.lock();
        all.retain(|known| known.strong_count() > 0);
        all.push(Arc::downgrade(upstream));
        self.upstream_connect_failures.with(&[&upstream.name]);
    }

    /// Copies the upstreams' current numbers into the metrics. Those of the same name are added up.
    fn update_upstreams(&self, all: &[Weak<UpstreamFigures>]) {
        let mut present: Vec<_> = all.iter().filter_map(Weak::upgrade).collect();
        // One that is left out counts, of several of the same name.
        present.sort_by_key(|upstream| upstream.is_out.load(Relaxed));
        self.upstream_in_flight.clear();
        self.upstream_healthy.clear();
        for upstream in present {
            let label = [upstream.name.as_str()];
            let in_flight = upstream.in_flight.load(Relaxed);
            self.upstream_in_flight.with(&label).add(in_flight as i64);
            let is_healthy = !upstream.is_out.load(Relaxed);
            self.upstream_healthy.with(&label).set(is_healthy.into());
        }
    }

    /// Reads the figures of this process, which have the names of Prometheus's own clients. Only under the lock of [`Metrics::text`]: between
    /// the two steps that set the processor time, another scrape would show 0.
    fn update_process(&self) {
        if let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) {
            let spent = usage.user_time() + usage.system_time();
            let cpu = self.process_cpu.with(&[]);
            cpu.reset();
            cpu.inc_by(spent.num_microseconds() as f64 / 1e6);
        }
        // Listing the folder opens one more.
        let files =
            std::fs::read_dir("/proc/self/fd").map(|all| all.count().saturating_sub(1) as f64);
        let max_files = getrlimit(Resource::RLIMIT_NOFILE).map(|(soft, _)| soft as f64);
        for (gauge, value) in [
            (&self.process_resident, resident_bytes()),
            (&self.process_open_fds, files.unwrap_or(f64::NAN)),
            (&self.process_max_fds, max_files.unwrap_or(f64::NAN)),
        ] {
            gauge.with(&[]).set(value);
        }
    }
}

impl InFlight {
    fn new(gauges: [IntGauge; 3], phase: RequestPhase) -> InFlight {
        gauges[phase as usize].inc();
        InFlight { gauges, phase }
    }

    /// Moves it to another phase.
    pub fn enter(&mut self, phase: RequestPhase) {
        if phase != self.phase {
            // In this order a reader may count it twice, but never misses it.
            self.gauges[phase as usize].inc();
            self.gauges[self.phase as usize].dec();
            self.phase = phase;
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.gauges[self.phase as usize].dec();
    }
}

/// Returns the memory that the process holds; NaN if that is unknown.
fn resident_bytes() -> f64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
    kib.map_or(f64::NAN, |kib: f64| kib * 1024.0)
}

#[cfg(test)]
pub(crate) mod tests;
