//! Finds free ports of this machine.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::Context;

/// The range in which free ports are searched. It is below the default of `base_port`, and Linux's ephemeral ports: an outgoing connection
/// could take one of those while its server is down, even the connection of a client that tries to reach that server.
const FREE: Range<u32> = 10_000..30_000;

/// Finds a free loopback port outside the `reserved` range, which is kept for servers to be started.
///
/// # Errors
/// There is none.
pub(super) fn free(reserved: &Range<u32>) -> anyhow::Result<SocketAddr> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // So that concurrent processes begin at different ports.
    let offset = std::process::id().wrapping_mul(7919);
    let is_free = |addr: &SocketAddr| {
        !reserved.contains(&addr.port().into()) && TcpListener::bind(addr).is_ok()
    };
    let mut all = FREE.map(|_| {
        let count = offset.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        local((FREE.start + count % FREE.len() as u32) as u16)
    });
    let (first, last) = (FREE.start, FREE.end - 1);
    let problem = || format!("no port of 127.0.0.1 from {first} to {last} is free");
    all.find(is_free).with_context(problem)
}

/// Returns the address of server `number`, from 0, if `base` is the port of the first.
///
/// # Errors
/// It is not free.
pub(super) fn server_port(base: u16, number: usize) -> anyhow::Result<SocketAddr> {
    let port = base.saturating_add(number as u16);
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
    fn reserved_ports_are_not_given_away() {
        let first = u32::from(free(&(0..0)).unwrap().port());
        // The search would go on with the following ports.
        let reserved = first..first + 200;
        for _ in 0..5 {
            let port = u32::from(free(&reserved).unwrap().port());
            assert!(!reserved.contains(&port), "{port}");
        }
    }
}
