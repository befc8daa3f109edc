//! What every demo starts: hops before simulated servers, and a proxy that has them.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use crate::clock::Clock;
use crate::config::proxy::{Config, Worker};
use crate::experiment::launch::ports;
use crate::serve::error::Error;
use crate::serve::lifecycle::Proxy;
use crate::sim::server::Sim;

/// Any free port of this machine alone.
pub(super) const LOOPBACK: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
/// How often free ports are looked for.
const TRIES: u32 = 5;

/// Starts the proxy that `config` describes. A port that was free may be taken by the time a hop listens
/// there: then `config` is asked for others.
pub(super) async fn proxy(
    config: impl Fn() -> anyhow::Result<Config>,
    clock: &Clock,
) -> anyhow::Result<Proxy> {
    let mut tries = 0;
    loop {
        tries += 1;
        match Proxy::start(config()?, clock.clone()).await {
            Err(Error::Listen { .. }) if tries < TRIES => {}
            started => return Ok(started?),
        }
    }
}

/// A hop before each server: `w1`, `w2`, … The front must know them before they listen.
pub(super) fn hops(sims: &[Sim]) -> anyhow::Result<Vec<Worker>> {
    let hops = sims.iter().zip(1..).map(|(sim, number)| {
        Ok(Worker {
            name: format!("w{number}"),
            listen: ports::free()?,
            upstream: sim.addr().into(),
            host: None,
        })
    });
    hops.collect()
}
