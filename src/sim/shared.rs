//! What all requests of a simulated server share.

use std::net::SocketAddr;
use std::sync::atomic::AtomicU64;

use super::call::Defaults;
use super::config::Config;
use super::driver::{Driver, EngineClock};
use super::failures::Fates;
use super::metrics::Metrics;
use super::outside::Outside;
use super::served::ServedLog;
use super::wire::Wire;

/// What all requests share.
#[derive(Debug)]
pub(super) struct Shared {
    pub config: Config,
    pub addr: SocketAddr,
    pub clock: EngineClock,
    pub wire: Wire,
    pub defaults: Defaults,
    pub driver: Driver,
    pub metrics: Metrics,
    pub served: ServedLog,
    pub outside: Outside,
    pub fates: Fates,
    pub next_id: AtomicU64,
}
