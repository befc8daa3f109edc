//! The upstreams of a listener: their addresses, their turns, and how Pingora connects to them.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use pingora::upstreams::peer::HttpPeer;

use super::config::Limits;

/// `host:port` of an upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    host: String,
    port: u16,
}

/// The upstreams of one listener.
#[derive(Debug)]
pub struct Upstreams {
    all: Vec<Upstream>,
    turn: AtomicUsize,
    limits: Limits,
}

/// One upstream.
#[derive(Debug)]
pub struct Upstream {
    name: String,
    address: Address,
    resolved: Mutex<SocketAddr>,
    stale: AtomicBool,
}

impl Address {
    /// From `host:port` or `http://host:port` (a `/` may follow).
    ///
    /// # Errors
    /// What is wrong and what would be right.
    pub fn parse(text: &str) -> Result<Address, String> {
        if text.starts_with("https://") {
            return Err("https is not supported yet; give http://HOST:PORT".into());
        }
        let rest = text.strip_prefix("http://").unwrap_or(text);
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let right = "as in http://127.0.0.1:30000";
        if rest.contains(['/', '@', '?', '#', ' ']) {
            return Err(format!("only a host and a port can be given, {right}"));
        }
        let (host, port) = rest
            .rsplit_once(':')
            .ok_or_else(|| format!("the port is missing; give HOST:PORT, {right}"))?;
        let port = port.parse().ok().filter(|port| *port != 0);
        let port =
            port.ok_or_else(|| format!("the port must be a number from 1 to 65535, {right}"))?;
        let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
        if host.is_empty() || (bare.is_none() && host.contains(':')) {
            return Err(format!("the host is missing or no host; {right}"));
        }
        Ok(Address {
            host: bare.unwrap_or(host).into(),
            port,
        })
    }

    /// `host:port`.
    pub fn name(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    /// Whether what is sent there comes to `listener`, as far as that shows without a look-up.
    pub fn is_at(&self, listener: SocketAddr) -> bool {
        let host = match self.host.as_str() {
            "localhost" => Some(Ipv4Addr::LOCALHOST.into()),
            host => host.parse::<IpAddr>().ok(),
        };
        // One that listens everywhere is at home on this machine's other addresses too; which those are, is
        // the system's to know.
        let everywhere = listener.ip().is_unspecified();
        let is_here = host.is_some_and(|host| {
            let at_home = host.is_loopback() || host.is_unspecified();
            host == listener.ip() || (everywhere && at_home)
        });
        is_here && self.port == listener.port()
    }
}

impl Upstreams {
    /// Resolves the addresses.
    ///
    /// # Errors
    /// The name that does not resolve, and why.
    pub fn resolve(addresses: &[Address], limits: Limits) -> Result<Upstreams, String> {
        let all = addresses.iter().map(Upstream::resolve);
        Ok(Upstreams {
            all: all.collect::<Result<_, _>>()?,
            turn: AtomicUsize::new(0),
            limits,
        })
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.all.len()
    }

    /// Whose turn it is: a number for [`Upstreams::nth`], to count on from after a failed connection.
    pub fn take_turn(&self) -> usize {
        self.turn.fetch_add(1, Ordering::Relaxed)
    }

    /// The upstream of this turn.
    pub fn nth(&self, turn: usize) -> Option<&Upstream> {
        self.all.get(turn.checked_rem(self.all.len())?)
    }

    /// How Pingora connects to `upstream`, with our limits.
    pub async fn peer(&self, upstream: &Upstream) -> HttpPeer {
        let mut peer = HttpPeer::new(upstream.current().await, false, String::new());
        let options = &mut peer.options;
        options.connection_timeout = Some(self.limits.upstream_connect);
        options.total_connection_timeout = Some(self.limits.upstream_connect);
        options.read_timeout = Some(self.limits.upstream_read);
        options.write_timeout = Some(self.limits.upstream_write);
        options.idle_timeout = Some(self.limits.upstream_idle);
        peer
    }
}

impl Upstream {
    fn resolve(address: &Address) -> Result<Upstream, String> {
        let found = (address.host.as_str(), address.port).to_socket_addrs();
        let resolved = found
            .map_err(|error| error.to_string())
            .and_then(|mut all| all.next().ok_or_else(|| "no address found".into()))
            .map_err(|error| format!("{}: {error}", address.name()))?;
        Ok(Upstream {
            name: address.name(),
            address: address.clone(),
            resolved: Mutex::new(resolved),
            stale: AtomicBool::new(false),
        })
    }

    /// `host:port` as configured.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A connection failed: a name may mean another machine by now.
    pub fn connection_failed(&self) {
        self.stale.store(true, Ordering::Relaxed);
    }

    async fn current(&self) -> SocketAddr {
        let is_name = self.address.host.parse::<std::net::IpAddr>().is_err();
        if is_name && self.stale.swap(false, Ordering::Relaxed) {
            let name = (self.address.host.as_str(), self.address.port);
            if let Ok(mut found) = tokio::net::lookup_host(name).await
                && let Some(address) = found.next()
            {
                *self.lock() = address;
            }
        }
        *self.lock()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, SocketAddr> {
        self.resolved.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_host_and_port() {
        let name = |text| Address::parse(text).map(|address| address.name());
        assert_eq!(name("127.0.0.1:30000").unwrap(), "127.0.0.1:30000");
        assert_eq!(name("http://router:80/").unwrap(), "router:80");
        assert_eq!(name("http://[::1]:80").unwrap(), "[::1]:80");
        for wrong in [
            "",
            "router",
            "router:",
            ":80",
            "router:0",
            "router:70000",
            "http://a:1/v1",
            "::1:80",
            "ftp://a:1",
            "https://a:1",
        ] {
            assert!(Address::parse(wrong).is_err(), "{wrong}");
        }
    }
}
