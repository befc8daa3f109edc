//! How many clients may be connected.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Counts the connections of a listener.
#[derive(Debug)]
pub struct ConnectionLimit {
    served: Arc<Semaphore>,
    refused: Arc<Semaphore>,
}

/// Connections beyond the limit that are kept for the moment it takes to read a 503.
const REFUSED: usize = 64;

impl ConnectionLimit {
    /// For this many connections at once; `None` for any number.
    pub fn new(most: Option<usize>) -> ConnectionLimit {
        let most = most.map_or(Semaphore::MAX_PERMITS, |n| n.min(Semaphore::MAX_PERMITS));
        ConnectionLimit {
            served: Arc::new(Semaphore::new(most)),
            refused: Arc::new(Semaphore::new(REFUSED)),
        }
    }

    /// Held by a connection that is served; `None` at the limit.
    pub fn serve(&self) -> Option<OwnedSemaphorePermit> {
        self.served.clone().try_acquire_owned().ok()
    }

    /// Held by a connection beyond the limit while it reads its 503.
    pub fn refuse(&self) -> Option<OwnedSemaphorePermit> {
        self.refused.clone().try_acquire_owned().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_that_ends_makes_room() {
        let limit = ConnectionLimit::new(Some(2));
        let (first, second) = (limit.serve(), limit.serve());
        assert!(first.is_some() && second.is_some() && limit.serve().is_none());
        drop(first);
        assert!(limit.serve().is_some());
        assert!(ConnectionLimit::new(None).serve().is_some());
    }
}
