//! The addresses of an upstream's name. One is used until it cannot be connected to, then the next: what is known of an upstream
//! (its clock, its queue) is then known of one server.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};

use parking_lot::Mutex;

use super::address::Address;

/// Looks up host and port; may block.
pub type Resolver = fn(&str, u16) -> io::Result<Vec<SocketAddr>>;

/// The addresses of a name, at least one. The first is in use; one that fails becomes the last.
#[derive(Debug)]
pub struct Addresses {
    resolver: Resolver,
    all: Mutex<Vec<SocketAddr>>,
}

/// The system's resolver.
pub fn system_resolver(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    (host, port).to_socket_addrs().map(Iterator::collect)
}

impl Addresses {
    /// Looks `address` up. Blocks.
    ///
    /// # Errors
    /// There is none, and why.
    pub fn look_up(address: &Address, resolver: Resolver) -> Result<Addresses, String> {
        let name = address.name();
        let found = resolver(address.host(), address.port());
        let found = found.map_err(|error| format!("{name}: {error}"))?;
        let Some(first) = found.first() else {
            return Err(format!("{name}: no address found"));
        };
        let same_family = found.iter().filter(|at| at.is_ipv4() == first.is_ipv4());
        let count = same_family.count();
        if count > 1 {
            log::warn!(
                "upstream {name} has {count} addresses: requests go to one at a time, now {first}; to share them out over all, \
                 give each as an upstream of its own"
            );
        }
        let all = Mutex::new(found);
        Ok(Addresses { resolver, all })
    }

    /// Looks `address` up again. New addresses come first, as none of the known ones took a connection; those keep their order. If
    /// none is found, nothing changes. Blocks.
    pub fn look_up_again(&self, address: &Address) {
        let mut found = (self.resolver)(address.host(), address.port()).unwrap_or_default();
        if found.is_empty() {
            return;
        }
        let mut all = self.all.lock();
        all.retain(|at| found.contains(at));
        found.retain(|at| !all.contains(at));
        all.splice(0..0, found);
    }

    /// Returns all, in the order in which they are to be tried.
    pub fn in_order(&self) -> Vec<SocketAddr> {
        self.all.lock().clone()
    }

    /// Moves `at` to the front if it could be connected to, else to the end.
    pub fn tried(&self, at: SocketAddr, is_connected: bool) {
        let mut all = self.all.lock();
        if let Some(place) = all.iter().position(|known| *known == at) {
            all.remove(place);
            let place = if is_connected { 0 } else { all.len() };
            all.insert(place, at);
        }
    }
}
