//! Idle connections to upstreams. Not Pingora's pool, which has a task and a timer for each: `docs/dev/decisions/0046`.

#![allow(
    clippy::disallowed_methods,
    reason = "deadlines of the runtime's timers, no timestamps"
)]

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::FutureExt as _;
use parking_lot::Mutex;
use tokio::io::AsyncReadExt;
use tokio::time::Instant;

use super::connection::Connection;

/// Idle connections, the most recently used last.
pub struct Idle(Arc<Mutex<VecDeque<IdleConnection>>>);

struct IdleConnection {
    /// The hash of its address and settings: [`Peer::reuse_hash`](pingora::upstreams::peer::Peer::reuse_hash).
    peer: u64,
    connection: Connection,
    until: Instant,
}

/// The most connections.
const CAPACITY: usize = 4096;
/// How often unusable connections are looked for.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

impl Idle {
    /// Creates an empty list, and a task that closes unusable connections.
    pub fn start() -> Idle {
        let all = Arc::default();
        tokio::spawn(sweep(Arc::downgrade(&all)));
        Idle(all)
    }

    /// Takes the most recently used connection of a peer that is still open.
    pub fn take(&self, peer: u64) -> Option<Connection> {
        let mut all = self.0.lock();
        let now = Instant::now();
        while let Some(latest) = all.iter().rposition(|one| one.peer == peer) {
            let mut latest = all.remove(latest)?;
            if latest.is_usable(now) {
                return Some(latest.connection);
            }
        }
        None
    }

    /// Adds a connection, which is closed after `idle`. Beyond the capacity the oldest is closed.
    pub fn put(&self, peer: u64, connection: Connection, idle: Duration) {
        let until = Instant::now() + idle;
        let mut all = self.0.lock();
        if all.len() >= CAPACITY {
            all.pop_front();
        }
        all.push_back(IdleConnection {
            peer,
            connection,
            until,
        });
    }
}

impl IdleConnection {
    /// Whether its time is not over, and its peer has neither closed it nor sent anything.
    fn is_usable(&mut self, now: Instant) -> bool {
        let mut byte = [0];
        let read = tokio::task::unconstrained(self.connection.read(&mut byte));
        self.until > now && read.now_or_never().is_none()
    }
}

/// Closes unusable connections, as long as the list is used.
async fn sweep(all: Weak<Mutex<VecDeque<IdleConnection>>>) {
    while let Some(all) = all.upgrade() {
        let now = Instant::now();
        all.lock().retain_mut(|one| one.is_usable(now));
        drop(all);
        tokio::time::sleep(SWEEP_INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncWriteExt, DuplexStream, duplex};

    use super::*;

    const IDLE: Duration = Duration::from_secs(4);

    /// Adds a connection, and returns the peer's end.
    fn put(idle: &Idle, peer: u64) -> DuplexStream {
        let (near, far) = duplex(10);
        idle.put(peer, Connection::new(Box::new(near)), IDLE);
        far
    }

    async fn is_closed(end: &mut DuplexStream) -> bool {
        end.read(&mut [0]).await.unwrap() == 0
    }

    #[tokio::test(start_paused = true)]
    async fn the_most_recent_open_connection_is_taken() {
        let idle = Idle::start();
        let mut ends = [(); 4].map(|()| put(&idle, 1));
        let _other = put(&idle, 2);
        // The last one has closed, the one before has sent something.
        ends[3].shutdown().await.unwrap();
        ends[2].write_all(b"x").await.unwrap();
        let mut taken = idle.take(1).unwrap();
        taken.write_all(b"y").await.unwrap();
        let mut byte = [0];
        ends[1].read_exact(&mut byte).await.unwrap();
        assert_eq!(&byte, b"y");
        assert!(idle.take(3).is_none() && idle.take(2).is_some() && idle.take(1).is_some());
        assert!(idle.take(1).is_none());
        assert_eq!(idle.0.lock().len(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn beyond_the_limit_the_oldest_is_closed() {
        let idle = Idle::start();
        let mut first = put(&idle, 1);
        tokio::time::sleep(IDLE / 4).await;
        let _rest: Vec<DuplexStream> = (0..CAPACITY).map(|_| put(&idle, 2)).collect();
        let began = Instant::now();
        assert!(is_closed(&mut first).await);
        assert_eq!(began.elapsed(), Duration::ZERO);
        assert!(idle.take(1).is_none());
        assert_eq!(idle.0.lock().len(), CAPACITY);
    }
}
