//! The addresses of a proxy against one another. What could not be parsed is left out, so that one fault does not
//! hide another.

use std::net::SocketAddr;

use crate::config_error::ConfigError;
use crate::upstream::Address;

/// A worker, as far as it could be parsed.
#[derive(Debug)]
pub(super) struct Hop {
    pub(super) name: String,
    pub(super) listen: Option<SocketAddr>,
    pub(super) upstream: Option<Address>,
}

/// Who listens where, and who sends where.
#[derive(Debug)]
pub(super) struct Addresses<'a> {
    pub(super) front: Option<SocketAddr>,
    pub(super) admin: Option<SocketAddr>,
    pub(super) upstream: &'a [Address],
    pub(super) workers: &'a [Hop],
}

impl Hop {
    /// The hop, if all of it could be parsed.
    pub(super) fn whole(self) -> Option<(String, SocketAddr, Address)> {
        Some((self.name, self.listen?, self.upstream?))
    }
}

impl Addresses<'_> {
    /// All that is wrong.
    pub(super) fn check(&self) -> Vec<ConfigError> {
        let mut found = self.loops();
        found.extend(self.clashes());
        found
    }

    /// Every listener, with its key.
    fn listeners(&self) -> Vec<(String, SocketAddr)> {
        let front = self.front.map(|front| ("listen".to_owned(), front));
        let admin = self.admin.map(|admin| ("admin".to_owned(), admin));
        let hops = self.workers.iter().filter_map(|hop| {
            Some((
                format!("worker {}: listen", hop.name.escape_debug()),
                hop.listen?,
            ))
        });
        front.into_iter().chain(admin).chain(hops).collect()
    }

    /// A request that comes back to where it was would go round for ever, and the admin listener takes none.
    fn loops(&self) -> Vec<ConfigError> {
        let upstream = self
            .upstream
            .iter()
            .map(|to| ("upstream".to_owned(), to, false));
        let servers = self.workers.iter().filter_map(|hop| {
            let key = format!("worker {}: upstream", hop.name.escape_debug());
            Some((key, hop.upstream.as_ref()?, true))
        });
        let hops = || self.workers.iter().filter_map(|hop| hop.listen);
        let wrong = |(key, to, is_server): (String, &Address, bool)| {
            let is_at = |listener: SocketAddr| to.is_at(listener);
            // The front may send to our own hops, in a router's place.
            let comes_back = self.front.is_some_and(is_at) || (is_server && hops().any(is_at));
            let what = match self.admin.is_some_and(is_at) {
                true => "admin listener",
                false if comes_back => "listener",
                false => return None,
            };
            let wrong =
                format!("is this proxy's own {what}; give the router's or server's address");
            Some(ConfigError::new(&key, format!("\"{}\"", to.name()), wrong))
        };
        upstream.chain(servers).filter_map(wrong).collect()
    }

    /// Only one listener can have an address.
    fn clashes(&self) -> Vec<ConfigError> {
        let all = self.listeners();
        let clash = |(at, (key, address)): (usize, &(String, SocketAddr))| {
            let mut earlier = all.iter().take(at);
            let (other, _) = earlier.find(|(_, other)| overlap(*other, *address))?;
            let wrong = format!("`{other}` has this address too; give each its own");
            Some(ConfigError::new(key, format!("\"{address}\""), wrong))
        };
        all.iter().enumerate().filter_map(clash).collect()
    }
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
