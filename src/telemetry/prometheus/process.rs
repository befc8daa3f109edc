//! The figures of this process, under the names of Prometheus's own clients, and its build. They are read at each scrape.

use nix::sys::resource::{Resource, UsageWho, getrlimit, getrusage};
use nix::sys::time::TimeValLike;

use crate::clock::Clock;

use super::table::Families;

/// Sets the metrics that never change.
pub(super) fn set_constants(metrics: &Families) {
    metrics.build.with(&[env!("CARGO_PKG_VERSION")]).set(1);
    let started = Clock::system().now().seconds();
    metrics.process_start.with(&[]).set(started);
}

/// Updates the metrics. Not to be called concurrently: the same processor time would be added twice.
pub(super) fn update(metrics: &Families) {
    let cpu = metrics.process_cpu.with(&[]);
    if let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) {
        let spent = usage.user_time() + usage.system_time();
        let more = spent.num_microseconds() as f64 / 1e6 - cpu.get();
        cpu.inc_by(more.max(0.0));
    }
    // Listing the folder opens one more.
    let files = std::fs::read_dir("/proc/self/fd").map(|all| all.count().saturating_sub(1) as f64);
    let max_files = getrlimit(Resource::RLIMIT_NOFILE).map(|(soft, _)| soft as f64);
    for (gauge, value) in [
        (&metrics.process_resident, resident_bytes()),
        (&metrics.process_open_fds, files.unwrap_or(f64::NAN)),
        (&metrics.process_max_fds, max_files.unwrap_or(f64::NAN)),
    ] {
        gauge.with(&[]).set(value);
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
mod tests {
    use super::*;
    use crate::telemetry::prometheus::Metrics;
    use crate::telemetry::prometheus::tests::shown;
    use std::net::UdpSocket;

    #[test]
    fn the_figures_are_those_of_this_process_and_its_build() {
        let metrics = Metrics::new().unwrap();
        let before = shown(&metrics);
        let sockets = (0..100).map(|_| UdpSocket::bind("127.0.0.1:0").unwrap());
        let held = (Vec::from_iter(sockets), vec![1_u8; 64 << 20]);
        let now = shown(&metrics);
        drop(held);
        let more = |name: &str| now[name] - before[name];
        // Other tests open and close some meanwhile.
        assert!(more("process_open_fds") > 50.0);
        let resident = "process_resident_memory_bytes";
        assert!(more(resident) > 32e6);
        assert!(now["process_max_fds"] >= 100.0);
        let age = Clock::system().now().seconds() - now["process_start_time_seconds"];
        assert!((0.0..600.0).contains(&age), "{age}");
        let version = env!("CARGO_PKG_VERSION");
        let build = format!("queuescope_build_info{{version=\"{version}\"}}");
        assert_eq!(now[&build], 1.0);
    }

    #[test]
    fn processor_time_goes_up_and_is_not_counted_twice() {
        let metrics = Metrics::new().unwrap();
        let cpu = || metrics.process_cpu.with(&[]).get();
        update(&metrics);
        let first = cpu();
        // Works until a millisecond of processor time has been used.
        while cpu() < first + 0.001 {
            update(&metrics);
        }
        (0..100).for_each(|_| update(&metrics));
        let usage = getrusage(UsageWho::RUSAGE_SELF).unwrap();
        let spent = (usage.user_time() + usage.system_time()).num_microseconds() as f64 / 1e6;
        assert!(cpu() <= spent + 1e-6);
    }
}
