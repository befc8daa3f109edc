//! What processors this process had and took, from what the kernel counts.

use std::fs;
use std::path::{Path, PathBuf};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;

use crate::clock::{NANOS, Stamp};
use crate::report::verdict::Cpu;

/// Counters at one moment; what a machine does not tell is `None`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Reading {
    at: Stamp,
    /// Processor time of this process, seconds.
    used: Option<f64>,
    /// How long its cgroup, or one above, held it back, seconds.
    throttled: Option<f64>,
    /// How long some process of the machine waited for a processor, seconds.
    pressure: Option<f64>,
    /// Ticks that another virtual machine had, and all.
    stolen: Option<(u64, u64)>,
    /// How long the event loop's threads were at work, seconds, and how many they are.
    busy: (f64, usize),
}

impl Reading {
    /// Of this moment, inside a runtime.
    pub(super) fn take(at: Stamp) -> Reading {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let runtime = tokio::runtime::Handle::current().metrics();
        let threads = runtime.num_workers();
        let busy = (0..threads).map(|thread| runtime.worker_total_busy_duration(thread));
        let seconds = |time: TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
        let used = getrusage(UsageWho::RUSAGE_SELF).ok();
        Reading {
            at,
            used: used.map(|used| seconds(used.user_time()) + seconds(used.system_time())),
            throttled: throttled(&read("/proc/self/cgroup")),
            pressure: pressure(&read("/proc/pressure/cpu")),
            stolen: stolen(&read("/proc/stat")),
            busy: (busy.map(|busy| busy.as_secs_f64()).sum(), threads),
        }
    }

    /// What went on since `before`.
    pub(super) fn since(&self, before: &Reading) -> Cpu {
        let seconds = self.at.since(before.at).max(1.0 / NANOS as f64);
        let share = |now: Option<f64>, then: Option<f64>| Some((now? - then?) / seconds);
        let most_one = |share: Option<f64>| share.map(|share: f64| share.clamp(0.0, 1.0));
        let stolen = self.stolen.zip(before.stolen).and_then(|(now, then)| {
            let all = now.1.checked_sub(then.1).filter(|all| *all > 0)?;
            Some(now.0.saturating_sub(then.0) as f64 / all as f64)
        });
        let (busy, threads) = self.busy;
        let cores = std::thread::available_parallelism().ok();
        Cpu {
            cores_used: share(self.used, before.used),
            cores: cores.map(|cores| cores.get() as f64),
            loop_busy: most_one(Some(
                (busy - before.busy.0) / seconds / threads.max(1) as f64,
            )),
            throttled: most_one(share(self.throttled, before.throttled)),
            pressure: most_one(share(self.pressure, before.pressure)),
            stolen,
        }
    }
}

/// The longest that a cgroup of this process was held back: its own, or one above. `cgroups` is `/proc/self/cgroup`.
fn throttled(cgroups: &str) -> Option<f64> {
    let folders = cgroups.lines().filter_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        let mount = match controllers {
            "" => "/sys/fs/cgroup",
            _ if controllers.split(',').any(|name| name == "cpu") => "/sys/fs/cgroup/cpu",
            _ => return None,
        };
        Some((
            PathBuf::from(mount),
            path.trim_start_matches('/').to_owned(),
        ))
    });
    let times = folders.flat_map(|(mount, path)| {
        let own = mount.join(path);
        let up: Vec<PathBuf> = own
            .ancestors()
            .take_while(|folder| folder.starts_with(&mount))
            .map(Path::to_owned)
            .collect();
        up.into_iter()
            .filter_map(|folder| held_back(&fs::read_to_string(folder.join("cpu.stat")).ok()?))
    });
    times.reduce(f64::max)
}

/// Of a `cpu.stat`: microseconds in version 2, nanoseconds in version 1.
fn held_back(stat: &str) -> Option<f64> {
    stat.lines().find_map(|line| {
        let (key, value) = line.split_once(' ')?;
        let value: f64 = value.trim().parse().ok()?;
        match key {
            "throttled_usec" => Some(value / 1e6),
            "throttled_time" => Some(value / 1e9),
            _ => None,
        }
    })
}

/// Of `/proc/pressure/cpu`: `some … total=MICROSECONDS`.
fn pressure(text: &str) -> Option<f64> {
    let line = text.lines().find(|line| line.starts_with("some"))?;
    let (_, total) = line.split_once("total=")?;
    total.trim().parse().ok().map(|micros: f64| micros / 1e6)
}

/// Of `/proc/stat`: the eighth number of the first line, and the sum of the first eight (the others are in them).
fn stolen(text: &str) -> Option<(u64, u64)> {
    let line = text.lines().find(|line| line.starts_with("cpu "))?;
    let numbers: Vec<u64> = line
        .split_whitespace()
        .skip(1)
        .take(8)
        .map_while(|number| number.parse().ok())
        .collect();
    Some((*numbers.get(7)?, numbers.iter().sum()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_read_as_kernels_write_them() {
        let pressed =
            "some avg10=3.96 avg60=7.78 avg300=6.60 total=2500000\nfull avg10=0.00 total=7\n";
        assert_eq!(pressure(pressed), Some(2.5));
        assert_eq!(pressure(""), None);
        let stat = "cpu  10 1 20 60 5 1 2 1 9 9\ncpu0 1 1 1 1 1 1 1 1 1 1\n";
        assert_eq!(stolen(stat), Some((1, 100)));
        assert_eq!(stolen("cpu  10 1\n"), None);
        let two = "usage_usec 9\nnr_throttled 3\nthrottled_usec 1500000\n";
        assert_eq!(held_back(two), Some(1.5));
        assert_eq!(
            held_back("nr_periods 3\nthrottled_time 2000000000\n"),
            Some(2.0)
        );
        assert_eq!(held_back("usage_usec 9\n"), None);
    }

    #[test]
    fn shares_are_of_the_time_between_two_readings() {
        let before = Reading {
            at: Stamp::from_nanos(0),
            used: Some(1.0),
            throttled: None,
            pressure: Some(3.0),
            stolen: Some((5, 100)),
            busy: (1.0, 2),
        };
        let after = Reading {
            at: Stamp::from_nanos(10 * NANOS),
            used: Some(16.0),
            throttled: Some(1.0),
            pressure: Some(8.0),
            stolen: Some((15, 200)),
            busy: (17.0, 2),
        };
        let cpu = after.since(&before);
        assert_eq!(cpu.cores_used, Some(1.5));
        assert_eq!((cpu.throttled, cpu.pressure), (None, Some(0.5)));
        assert_eq!((cpu.stolen, cpu.loop_busy), (Some(0.1), Some(0.8)));
    }

    #[tokio::test]
    async fn this_process_took_some_processor_time() {
        let reading = Reading::take(Stamp::from_nanos(0));
        assert!(reading.used.is_some_and(|used| used > 0.0), "{reading:?}");
        assert!(reading.stolen.is_some(), "{reading:?}");
    }
}
