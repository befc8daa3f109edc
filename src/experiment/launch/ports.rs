//! Ports of this machine.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::ops::Range;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, bail};

/// Where free ports are looked for: not among those that the system gives to outgoing connections, one of which could be taken while
/// its server is down, even by whoever tries to connect to it.
static FREE: LazyLock<Range<u32>> = LazyLock::new(|| {
    outside(&std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default())
});
/// The same where the system has another way to say it, or leaves next to none.
const USUAL: Range<u32> = 10_000..32_768;
/// So many must be left.
const FEWEST: usize = 1_000;

/// The ports below a range, as `32768 60999`, or above it: whichever are more.
fn outside(range: &str) -> Range<u32> {
    let mut ends = range.split_whitespace().map(str::parse::<u32>);
    let (Some(Ok(low)), Some(Ok(high))) = (ends.next(), ends.next()) else {
        return USUAL;
    };
    let sides = [USUAL.start..low, high + 1..u32::from(u16::MAX) + 1];
    let larger = sides.into_iter().max_by_key(Range::len).unwrap_or(USUAL);
    if larger.len() < FEWEST { USUAL } else { larger }
}

/// A port of the loopback that nobody listens on, and none of those that are meant for servers to come.
///
/// # Errors
/// There is none.
pub(super) fn free_beside(meant: &Range<u32>) -> anyhow::Result<SocketAddr> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Several processes begin at different places.
    let offset = std::process::id().wrapping_mul(7919);
    for _ in FREE.clone() {
        let count = offset.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = FREE.start + count % FREE.len() as u32;
        let addr = local(port as u16);
        if !meant.contains(&port) && TcpListener::bind(addr).is_ok() {
            return Ok(addr);
        }
    }
    bail!(
        "no port of 127.0.0.1 from {} to {} is free",
        FREE.start,
        FREE.end - 1
    )
}

/// The port of server `number`, from 0, where `base` is that of the first.
///
/// # Errors
/// It is not free.
pub(super) fn given(base: u16, number: usize) -> anyhow::Result<SocketAddr> {
    let port = u16::try_from(usize::from(base) + number).context("base_port: is too high")?;
    TcpListener::bind(local(port)).with_context(|| {
        format!(
            "base_port = {base}: port {port} cannot be had; end what listens there (`ss -ltnp` shows it), or give another \
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
    fn free_ports_are_none_of_those_that_connections_get() {
        for (range, free) in [
            ("32768\t60999\n", 10_000..32_768),
            ("15000 65535", 10_000..15_000),
            ("10500 50000", 50_001..65_536),
            ("1024 60000", 60_001..65_536),
            // Next to none is left.
            ("1024 65535", USUAL),
            ("", USUAL),
        ] {
            assert_eq!(outside(range), free, "{range}");
        }
        let port = u32::from(free_beside(&(0..0)).unwrap().port());
        assert!(FREE.contains(&port), "{port}");
    }

    #[test]
    fn ports_meant_for_servers_are_left_to_them() {
        let first = u32::from(free_beside(&(0..0)).unwrap().port());
        // Whatever comes next lies right behind it.
        let meant = first..first + 200;
        for _ in 0..5 {
            let port = u32::from(free_beside(&meant).unwrap().port());
            assert!(!meant.contains(&port), "{port}");
        }
    }
}
