//! What a process has used, from `/proc`.

use std::fs;

use crate::chain::Chain;

/// Processor time of all threads of all processes of a chain so far, seconds.
///
/// From `schedstat`, which counts nanoseconds where `stat` has ticks of 10 ms. A thread that has ended is gone
/// from the sum; the threads that move bytes do not end.
pub fn cpu_seconds(chain: &Chain) -> f64 {
    let nanos: f64 = each(chain, |pid| {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        let ran = tasks.filter_map(|task| {
            let text = fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?;
            text.split(' ').next()?.parse::<f64>().ok()
        });
        ran.sum()
    });
    nanos / 1e9
}

/// Resident memory of all processes of a chain, MB.
pub fn resident_mb(chain: &Chain) -> f64 {
    each(chain, |pid| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let (_, rest) = status.split_once("VmRSS:").unwrap();
        let kb: f64 = rest.split_whitespace().next().unwrap().parse().unwrap();
        kb * 1024.0 / 1e6
    })
}

fn each(chain: &Chain, figure: impl Fn(u32) -> f64) -> f64 {
    chain
        .processes
        .iter()
        .map(|process| figure(process.0.id()))
        .sum()
}
