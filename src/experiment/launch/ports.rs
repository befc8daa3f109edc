//! Finds free ports of this machine.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::ops::Range;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, bail};

/// The range in which free ports are searched. It excludes the system's ephemeral ports: an outgoing connection could take one while
/// its server is down, even the connection of a client that tries to reach that server.
static FREE: LazyLock<Range<u32>> = LazyLock::new(|| {
    outside(&std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default())
});
/// The range if the system's is unknown or leaves too few ports.
const DEFAULT_RANGE: Range<u32> = 10_000..32_768;
const MIN_PORTS: usize = 1_000;

/// Returns the ports below or above a range such as `32768 60999`, whichever are more.
fn outside(range: &str) -> Range<u32> {
    let mut ends = range.split_whitespace().map(str::parse::<u32>);
    let (Some(Ok(low)), Some(Ok(high))) = (ends.next(), ends.next()) else {
        return DEFAULT_RANGE;
    };
    let sides = [DEFAULT_RANGE.start..low, high + 1..u32::from(u16::MAX) + 1];
    let large = sides.into_iter().filter(|side| side.len() >= MIN_PORTS);
    large.max_by_key(Range::len).unwrap_or(DEFAULT_RANGE)
}

/// Finds a free loopback port outside the `reserved` range, which is kept for servers to be started.
///
/// # Errors
/// There is none.
pub(super) fn free_outside(reserved: &Range<u32>) -> anyhow::Result<SocketAddr> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // So that concurrent processes begin at different ports.
    let offset = std::process::id().wrapping_mul(7919);
    for _ in FREE.clone() {
        let count = offset.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = FREE.start + count % FREE.len() as u32;
        let addr = local(port as u16);
        if !reserved.contains(&port) && TcpListener::bind(addr).is_ok() {
            return Ok(addr);
        }
    }
    let (first, last) = (FREE.start, FREE.end - 1);
    bail!("no port of 127.0.0.1 from {first} to {last} is free")
}

/// Returns the address of server `number`, from 0, if `base` is the port of the first.
///
/// # Errors
/// It is not free.
pub(super) fn server_port(base: u16, number: usize) -> anyhow::Result<SocketAddr> {
    let port = u16::try_from(usize::from(base) + number).context("base_port: is too high")?;
    TcpListener::bind(local(port)).with_context(|| {
        format!(
            "base_port = {base}: port {port} cannot be opened; end what listens there (`ss -ltnp` shows it), or give another \
             base_port, or 0 for free ones"
        )
    })?;
    Ok(local(port))
}

fn local(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_ports_are_outside_the_ephemeral_range() {
        for (range, free) in [
            ("32768\t60999\n", 10_000..32_768),
            ("15000 65535", 10_000..15_000),
            ("10500 50000", 50_001..65_536),
            ("1024 60000", 60_001..65_536),
            // Too few are left.
            ("1024 65535", DEFAULT_RANGE),
            ("", DEFAULT_RANGE),
        ] {
            assert_eq!(outside(range), free, "{range}");
        }
        let port = u32::from(free_outside(&(0..0)).unwrap().port());
        assert!(FREE.contains(&port), "{port}");
    }

    #[test]
    fn reserved_ports_are_not_given_away() {
        let first = u32::from(free_outside(&(0..0)).unwrap().port());
        // The search would go on with the following ports.
        let reserved = first..first + 200;
        for _ in 0..5 {
            let port = u32::from(free_outside(&reserved).unwrap().port());
            assert!(!reserved.contains(&port), "{port}");
        }
    }
}
