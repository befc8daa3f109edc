//! What the system says of this process, under the names that Prometheus's own clients give it, and which build
//! it is. The figures are read when they are asked for.

use nix::sys::resource::{Resource, UsageWho, getrlimit, getrusage};
use nix::sys::time::TimeValLike;
use parking_lot::Mutex;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Counter, IntGauge, PullingGauge, Registry, Result};

use crate::clock::Clock;

use super::family::{Family, LABEL_SETS};
use super::metric::{Kind, Metric};

const BUILD: Metric = Metric {
    labels: &["version"],
    ..gauge(
        "queuescope_build_info",
        "Always 1; the label is the version.",
    )
};
const CPU: Metric = Metric {
    kind: Kind::Counter,
    ..gauge(
        "process_cpu_seconds_total",
        "Processor time of this process, user and system, seconds.",
    )
};
const START: Metric = gauge(
    "process_start_time_seconds",
    "When this process started, seconds since 1970.",
);
const RESIDENT: Metric = gauge("process_resident_memory_bytes", "Memory that it holds.");
const VIRTUAL: Metric = gauge("process_virtual_memory_bytes", "Addresses that it has.");
const OPEN: Metric = gauge(
    "process_open_fds",
    "Open files, sockets included: two a request under way.",
);
const MOST: Metric = gauge("process_max_fds", "How many it may have open.");
const THREADS: Metric = gauge("process_threads", "Its threads.");

/// Every metric of the process; `docs/METRICS.md` walks this table.
pub const METRICS: &[Metric] = &[BUILD, START, CPU, RESIDENT, VIRTUAL, OPEN, MOST, THREADS];

const fn gauge(name: &'static str, help: &'static str) -> Metric {
    Metric {
        name,
        kind: Kind::Gauge,
        help,
        labels: &[],
    }
}

/// Shows them all in `registry`.
///
/// # Errors
/// When Prometheus refuses a name, which a test rules out.
pub(super) fn register(registry: &Registry) -> Result<()> {
    let build = Family::<IntGauge>::new(registry, BUILD, LABEL_SETS)?;
    build.with(&[env!("CARGO_PKG_VERSION")]).set(1);
    registry.register(Box::new(CpuTime::new()?))?;
    let started = Clock::system().now().seconds();
    let gauge = |of: Metric, read: Box<dyn Fn() -> f64 + Send + Sync>| {
        registry.register(Box::new(PullingGauge::new(of.name, of.help, read)?))
    };
    gauge(START, Box::new(move || started))?;
    gauge(RESIDENT, Box::new(|| status("VmRSS:") * 1024.0))?;
    gauge(VIRTUAL, Box::new(|| status("VmSize:") * 1024.0))?;
    gauge(OPEN, Box::new(open_files))?;
    gauge(MOST, Box::new(most_files))?;
    gauge(THREADS, Box::new(|| status("Threads:")))
}

/// A number of `/proc/self/status`, memory in KiB. Not a number where there is no such file.
fn status(key: &str) -> f64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(key));
    let number = line.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
    number.unwrap_or(f64::NAN)
}

fn open_files() -> f64 {
    // The one that looks is open too.
    std::fs::read_dir("/proc/self/fd").map_or(f64::NAN, |all| all.count().saturating_sub(1) as f64)
}

fn most_files() -> f64 {
    getrlimit(Resource::RLIMIT_NOFILE).map_or(f64::NAN, |(soft, _)| soft as f64)
}

/// A counter that the system counts.
#[derive(Debug)]
struct CpuTime {
    counter: Counter,
    /// Two readers at once must not add the same time twice.
    reading: Mutex<()>,
}

impl CpuTime {
    fn new() -> Result<CpuTime> {
        Ok(CpuTime {
            counter: Counter::new(CPU.name, CPU.help)?,
            reading: Mutex::default(),
        })
    }
}

impl Collector for CpuTime {
    fn desc(&self) -> Vec<&Desc> {
        self.counter.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let _reading = self.reading.lock();
        if let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) {
            let spent = usage.user_time() + usage.system_time();
            let more = spent.num_microseconds() as f64 / 1e6 - self.counter.get();
            self.counter.inc_by(more.max(0.0));
        }
        self.counter.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::prometheus::Metrics;
    use std::net::UdpSocket;

    /// The value of a metric without labels.
    fn value(metrics: &Metrics, name: &str) -> f64 {
        let text = metrics.text();
        let found = text
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        found.unwrap().parse().unwrap()
    }

    #[test]
    fn the_figures_are_those_of_this_process() {
        let metrics = Metrics::new().unwrap();
        let open = value(&metrics, OPEN.name);
        let sockets: Vec<UdpSocket> = (0..100)
            .map(|_| UdpSocket::bind("127.0.0.1:0").unwrap())
            .collect();
        // Other tests open and close a few meanwhile.
        assert!(value(&metrics, OPEN.name) > open + 50.0);
        drop(sockets);
        assert!(value(&metrics, MOST.name) >= 100.0);
        assert!(value(&metrics, THREADS.name) >= 2.0);
        let resident = value(&metrics, RESIDENT.name);
        let memory = vec![1_u8; 64 << 20];
        assert!(value(&metrics, RESIDENT.name) > resident + 32e6);
        assert!(value(&metrics, VIRTUAL.name) > value(&metrics, RESIDENT.name));
        drop(memory);
        let age = Clock::system().now().seconds() - value(&metrics, START.name);
        assert!((0.0..600.0).contains(&age), "{age}");
    }

    #[test]
    fn processor_time_goes_up_and_is_not_counted_twice() {
        let cpu = CpuTime::new().unwrap();
        cpu.collect();
        let first = cpu.counter.get();
        // A millisecond or two, whatever the machine's speed: until the system says so.
        while cpu.counter.get() < first + 0.001 {
            cpu.collect();
        }
        for _ in 0..100 {
            cpu.collect();
        }
        let usage = getrusage(UsageWho::RUSAGE_SELF).unwrap();
        let spent = (usage.user_time() + usage.system_time()).num_microseconds() as f64 / 1e6;
        assert!(cpu.counter.get() <= spent + 1e-6);
    }

    #[test]
    fn the_build_is_told() {
        let text = Metrics::new().unwrap().text();
        let version = env!("CARGO_PKG_VERSION");
        let line = format!("queuescope_build_info{{version=\"{version}\"}} 1");
        assert!(text.lines().any(|l| l == line), "{text}");
    }
}
