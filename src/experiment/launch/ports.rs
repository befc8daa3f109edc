//! Ports of this machine.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, bail};

/// Where free ports are looked for from; to where the system begins to take ports for outgoing connections. One of those
/// could be taken while its server is down, even by whoever tries to connect to it.
const FIRST: u32 = 10_000;
/// Where that is on most systems.
const USUAL_END: u32 = 32_768;

/// A port of the loopback that nobody listens on, and none of those that are meant for servers to come.
///
/// # Errors
/// There is none.
pub(super) fn free_beside(meant: &Range<u32>) -> anyhow::Result<SocketAddr> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let ports = range(
        std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range")
            .ok()
            .as_deref(),
    );
    // Several processes begin at different places.
    let offset = std::process::id().wrapping_mul(7919);
    for _ in 0..ports.len() {
        let count = offset.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = ports.start + count % ports.len() as u32;
        let addr = local(port as u16);
        if !meant.contains(&port) && TcpListener::bind(addr).is_ok() {
            return Ok(addr);
        }
    }
    bail!(
        "no port of 127.0.0.1 from {} to {} is free",
        ports.start,
        ports.end - 1
    )
}

/// The ports to look through.
fn range(system: Option<&str>) -> Range<u32> {
    let first = system.and_then(|text| text.split_whitespace().next()?.parse().ok());
    let end: u32 = first.unwrap_or(USUAL_END);
    match end > FIRST {
        true => FIRST..end,
        false => FIRST..USUAL_END,
    }
}

/// `count` ports from `base` on, all of them free.
///
/// # Errors
/// Names those that are not.
pub(super) fn from(base: u16, count: usize) -> anyhow::Result<Vec<SocketAddr>> {
    let ports = (0..count).map(|i| u16::try_from(usize::from(base) + i));
    let ports: Vec<u16> = ports
        .collect::<Result<_, _>>()
        .context("base_port: is too high")?;
    let mut taken = Vec::new();
    for port in &ports {
        if let Err(error) = TcpListener::bind(local(*port)) {
            taken.push(format!("{port} ({error})"));
        }
    }
    if taken.is_empty() {
        return Ok(ports.into_iter().map(local).collect());
    }
    bail!(
        "base_port = {base}: ports that cannot be had: {}; end what listens there (`ss -ltnp` shows it), or give \
         another base_port, or 0 for free ones",
        taken.join(", ")
    )
}

fn local(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_ports_are_below_those_of_outgoing_connections() {
        assert_eq!(range(Some("20000\t60999\n")), 10_000..20_000);
        assert_eq!(range(Some("1024 65535")), 10_000..32_768);
        assert_eq!(range(None), 10_000..32_768);
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

    #[test]
    fn a_taken_port_is_named() {
        let taken = TcpListener::bind(free_beside(&(0..0)).unwrap()).unwrap();
        let port = taken.local_addr().unwrap().port();
        let error = from(port, 1).unwrap_err().to_string();
        assert!(
            error.contains(&format!("{port} (Address already in use")),
            "{error}"
        );
        drop(taken);
        assert_eq!(from(port, 1).unwrap()[0].port(), port);
    }
}
