//! The addresses of a proxy against one another.

use std::net::SocketAddr;

use crate::config::proxy::Config;
use crate::config_error::ConfigError;
use crate::telemetry::otlp::settings::Settings;
use crate::upstream::Address;

/// What is wrong with them.
pub(super) fn check(config: &Config) -> Vec<ConfigError> {
    // A process of hops only has no front.
    let front = (!config.upstream.is_empty()).then_some(config.listen);
    loops(config, front).chain(clashes(config, front)).collect()
}

/// A request that comes back to where it was would go round for ever, and the admin listener takes none.
fn loops(config: &Config, front: Option<SocketAddr>) -> impl Iterator<Item = ConfigError> {
    let upstream = config.upstream.iter();
    let upstream = upstream.map(|to| ("upstream".to_owned(), to, false));
    let servers = config.workers.iter();
    let servers = servers.map(|worker| (worker.key("upstream"), &worker.upstream, true));
    let loops = move |(key, to, is_server): (String, &Address, bool)| {
        let is_at = |listener: SocketAddr| to.is_at(listener);
        // The front may send to our own hops, in a router's place.
        let mut hops = config.workers.iter().map(|worker| worker.listen);
        let comes_back = front.is_some_and(is_at) || (is_server && hops.any(is_at));
        let what = match is_at(config.admin) {
            true => "admin listener",
            false if comes_back => "listener",
            false => return None,
        };
        let problem = format!("is this proxy's own {what}; give the router's or server's address");
        Some(ConfigError::text(&key, to.name(), problem))
    };
    upstream.chain(servers).filter_map(loops)
}

/// Spans that come back to where they came in would go round for ever.
pub(super) fn forward_loop(config: &Config, forward: Option<&Settings>) -> Option<ConfigError> {
    let listen = config.engine.traces.listen?;
    let uri: http::Uri = forward?.endpoint.parse().ok()?;
    let to = Address::parse(uri.authority()?.as_str()).ok()?;
    let problem = "is this proxy's own listener for servers' spans; give the collector's address, or \"none\"";
    let wrong = || ConfigError::text("engine.traces: forward_to", to.name(), problem);
    to.is_at(listen).then(wrong)
}

/// Only one listener can have an address.
fn clashes(config: &Config, front: Option<SocketAddr>) -> impl Iterator<Item = ConfigError> {
    let front = front.map(|front| ("listen".to_owned(), front)).into_iter();
    let admin = std::iter::once(("admin".to_owned(), config.admin));
    let workers = config.workers.iter();
    let workers = workers.map(|worker| (worker.key("listen"), worker.listen));
    let traces = config.engine.traces.listen.into_iter();
    let traces = traces.map(|listen| ("engine.traces: listen".to_owned(), listen));
    let all = front.chain(admin).chain(workers).chain(traces);
    let mut earlier: Vec<(String, SocketAddr)> = Vec::new();
    all.filter_map(move |(key, address)| {
        let other = earlier.iter().find(|(_, other)| overlap(*other, address));
        let problem = |(other, _): &(String, _)| {
            let problem = format!("`{other}` has this address too; give each its own");
            ConfigError::text(&key, address, problem)
        };
        let clash = other.map(problem);
        earlier.push((key, address));
        clash
    })
}

/// Whether two listeners cannot both be bound: one that listens everywhere has the port on every address, and
/// `[::]` on those of IPv4 too.
fn overlap(a: SocketAddr, b: SocketAddr) -> bool {
    let (one, two) = (a.ip().to_canonical(), b.ip().to_canonical());
    let covers = |a: std::net::IpAddr, b: std::net::IpAddr| {
        a.is_unspecified() && (a.is_ipv6() || b.is_ipv4() || b.is_unspecified())
    };
    a.port() != 0 && a.port() == b.port() && (one == two || covers(one, two) || covers(two, one))
}
