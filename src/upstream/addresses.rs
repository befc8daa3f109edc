//! The addresses that an upstream's name means: one is used until it cannot be connected to, then the next. One at a time, so
//! that what is told of an upstream (its clock, its queue) is told of one server.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};

use parking_lot::Mutex;

use super::address::Address;

/// Looks a name up; may block.
pub type Resolver = fn(&str, u16) -> io::Result<Vec<SocketAddr>>;

/// The addresses of a name, never none; of each, whether it failed since it was last connected to.
#[derive(Debug)]
pub struct Addresses {
    resolver: Resolver,
    all: Mutex<Vec<(SocketAddr, bool)>>,
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
        let all = Mutex::new(found.into_iter().map(|at| (at, false)).collect());
        Ok(Addresses { resolver, all })
    }

    /// Looks `address` up again. What it still means keeps its place; if nothing is found, all is as before. Blocks.
    pub fn look_up_again(&self, address: &Address) {
        let found = (self.resolver)(address.host(), address.port()).unwrap_or_default();
        if found.is_empty() {
            return;
        }
        let mut all = self.all.lock();
        all.retain(|(at, _)| found.contains(at));
        for at in found {
            if !all.iter().any(|(known, _)| *known == at) {
                all.push((at, false));
            }
        }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.all.lock().len()
    }

    /// All of them, in the order in which they are to be tried: those that have not failed first.
    pub fn in_turn(&self) -> Vec<SocketAddr> {
        let mut all = self.all.lock().clone();
        all.sort_by_key(|(_, has_failed)| *has_failed);
        all.into_iter().map(|(at, _)| at).collect()
    }

    /// The one for a request that has tried so many. What fails a request counts as failed, so the next it tries is another.
    pub fn next(&self, tried: usize) -> Option<SocketAddr> {
        let all = self.all.lock();
        let good = all.iter().find(|(_, has_failed)| !has_failed);
        let next = good.or_else(|| all.get(tried % all.len().max(1)));
        next.map(|(at, _)| *at)
    }

    /// `at` could be connected to, or not.
    pub fn tried(&self, at: SocketAddr, has_connected: bool) {
        let mut all = self.all.lock();
        let known = all.iter_mut().filter(|(known, _)| *known == at);
        known.for_each(|(_, has_failed)| *has_failed = !has_connected);
    }
}
