//! How many clients may be connected.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Counts the connections of a listener.
#[derive(Debug)]
pub struct Door {
    places: Arc<Semaphore>,
    turned_away: Arc<Semaphore>,
}

/// Held as long as the connection lasts.
pub type Place = OwnedSemaphorePermit;

/// Connections beyond the limit that are kept for the moment it takes to read a 503.
const TURNED_AWAY: usize = 64;

impl Door {
    /// A door for `places` connections at once; `None` for any number.
    pub fn new(places: Option<usize>) -> Door {
        let places = places.map_or(Semaphore::MAX_PERMITS, |n| n.min(Semaphore::MAX_PERMITS));
        Door {
            places: Arc::new(Semaphore::new(places)),
            turned_away: Arc::new(Semaphore::new(TURNED_AWAY)),
        }
    }

    /// A place, if there is one.
    pub fn enter(&self) -> Option<Place> {
        self.places.clone().try_acquire_owned().ok()
    }

    /// A place for one who is told that there is none.
    pub fn linger(&self) -> Option<Place> {
        self.turned_away.clone().try_acquire_owned().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_that_is_left_is_free_again() {
        let door = Door::new(Some(2));
        let (first, second) = (door.enter(), door.enter());
        assert!(first.is_some() && second.is_some() && door.enter().is_none());
        drop(first);
        assert!(door.enter().is_some());
        assert!(Door::new(None).enter().is_some());
    }
}
