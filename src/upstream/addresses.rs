//! The addresses that an upstream's name means: one is used until it cannot be connected to, then the next. One at a time, so
//! that what is told of an upstream (its clock, its queue) is told of one server.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};

use parking_lot::Mutex;

use super::address::Address;

/// Looks a name up; may block.
pub type Resolver = fn(&str, u16) -> io::Result<Vec<SocketAddr>>;

/// The addresses of a name, never none: the first is in use, and one that fails becomes the last.
#[derive(Debug)]
pub struct Addresses {
    resolver: Resolver,
    all: Mutex<Vec<SocketAddr>>,
}

/// The system's.
pub fn system(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    (host, port).to_socket_addrs().map(Iterator::collect)
}

impl Addresses {
    /// What `address` means now. Blocks.
    ///
    /// # Errors
    /// Why it means none.
    pub fn look_up(address: &Address, resolver: Resolver) -> Result<Addresses, String> {
        let name = address.name();
        let found = resolver(address.host(), address.port());
        let found = found.map_err(|error| format!("{name}: {error}"))?;
        let Some(first) = found.first() else {
            return Err(format!("{name}: no address found"));
        };
        let alike = found.iter().filter(|at| at.is_ipv4() == first.is_ipv4());
        let alike = alike.count();
        if alike > 1 {
            log::warn!(
                "upstream {name} has {alike} addresses: requests go to one at a time, now {first}; to share them out over all, \
                 give each as an upstream of its own"
            );
        }
        let all = Mutex::new(found);
        Ok(Addresses { resolver, all })
    }

    /// Looks `address` up again. What it still means keeps its order; what is new comes after the one in use. If nothing is found,
    /// all is as before. Blocks.
    pub fn look_up_again(&self, address: &Address) {
        let found = (self.resolver)(address.host(), address.port()).unwrap_or_default();
        if found.is_empty() {
            return;
        }
        let mut all = self.all.lock();
        all.retain(|at| found.contains(at));
        let mut place = all.len().min(1);
        for at in found {
            if !all.contains(&at) {
                all.insert(place, at);
                place += 1;
            }
        }
    }

    /// All of them, in the order in which they are to be tried.
    pub fn in_turn(&self) -> Vec<SocketAddr> {
        self.all.lock().clone()
    }

    /// The one in use.
    pub fn current(&self) -> Option<SocketAddr> {
        self.all.lock().first().copied()
    }

    /// `at` could be connected to, or not: it is the first from now on, or the last.
    pub fn tried(&self, at: SocketAddr, has_connected: bool) {
        let mut all = self.all.lock();
        if let Some(place) = all.iter().position(|known| *known == at) {
            all.remove(place);
            let place = if has_connected { 0 } else { all.len() };
            all.insert(place, at);
        }
    }
}
