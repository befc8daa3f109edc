//! What the system says of this process, under the names that Prometheus's own clients give it, and which build
//! it is. The figures are read when they are asked for.

use nix::sys::resource::{Resource, UsageWho, getrlimit, getrusage};
use nix::sys::time::TimeValLike;

use crate::clock::Clock;

use super::table::Families;

/// What stays as it is.
pub(super) fn begin(metrics: &Families) {
    metrics.build.with(&[env!("CARGO_PKG_VERSION")]).set(1);
    let started = Clock::system().now().seconds();
    metrics.process_start.with(&[]).set(started);
}

/// Puts the present figures into the metrics. Two at once would add the same processor time twice.
pub(super) fn show(metrics: &Families) {
    let cpu = metrics.process_cpu.with(&[]);
    if let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) {
        let spent = usage.user_time() + usage.system_time();
        let more = spent.num_microseconds() as f64 / 1e6 - cpu.get();
        cpu.inc_by(more.max(0.0));
    }
    // The one that looks is open too.
    let files = std::fs::read_dir("/proc/self/fd").map(|all| all.count().saturating_sub(1) as f64);
    let most = getrlimit(Resource::RLIMIT_NOFILE).map(|(soft, _)| soft as f64);
    for (metric, value) in [
        (&metrics.process_resident, status("VmRSS:") * 1024.0),
        (&metrics.process_virtual, status("VmSize:") * 1024.0),
        (&metrics.process_open_fds, files.unwrap_or(f64::NAN)),
        (&metrics.process_max_fds, most.unwrap_or(f64::NAN)),
        (&metrics.process_threads, status("Threads:")),
    ] {
        metric.with(&[]).set(value);
    }
}

/// A number of `/proc/self/status`, memory in KiB. Not a number where there is no such file.
fn status(key: &str) -> f64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(key));
    let number = line.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
    number.unwrap_or(f64::NAN)
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
        // Other tests open and close a few meanwhile.
        assert!(more("process_open_fds") > 50.0);
        let resident = "process_resident_memory_bytes";
        assert!(more(resident) > 32e6);
        assert!(now["process_virtual_memory_bytes"] > now[resident]);
        assert!(now["process_max_fds"] >= 100.0 && now["process_threads"] >= 2.0);
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
        show(&metrics);
        let first = cpu();
        // A millisecond or two, whatever the machine's speed: until the system says so.
        while cpu() < first + 0.001 {
            show(&metrics);
        }
        (0..100).for_each(|_| show(&metrics));
        let usage = getrusage(UsageWho::RUSAGE_SELF).unwrap();
        let spent = (usage.user_time() + usage.system_time()).num_microseconds() as f64 / 1e6;
        assert!(cpu() <= spent + 1e-6);
    }
}
