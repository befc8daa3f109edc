//! Connections to upstreams that wait for their next request. A list of our own in the place of Pingora's pool, which has a task
//! and a timer for each: `docs/dev/decisions/0046`.

#![allow(
    clippy::disallowed_methods,
    reason = "deadlines of the runtime's timers, no stamps"
)]

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::FutureExt as _;
use parking_lot::Mutex;
use pingora::protocols::Stream;
use tokio::io::AsyncReadExt;
use tokio::time::Instant;

/// The longest time between two sweeps.
const LOOK: Duration = Duration::from_secs(5);

/// Idle connections.
pub struct Idle {
    /// So many at most.
    most: usize,
    kept: Arc<Mutex<Kept>>,
}

#[derive(Default)]
struct Kept {
    /// The latest last.
    all: VecDeque<Waiting>,
    /// A task closes those whose time is over.
    is_swept: bool,
}

struct Waiting {
    /// Where it goes and how: [`Peer::reuse_hash`](pingora::upstreams::peer::Peer::reuse_hash).
    peer: u64,
    stream: Stream,
    until: Instant,
}

impl Idle {
    /// None yet.
    pub fn new(most: usize) -> Idle {
        let kept = Arc::default();
        Idle { most, kept }
    }

    /// The latest connection of a peer that is still open.
    pub fn take(&self, peer: u64) -> Option<Stream> {
        let all = &mut self.kept.lock().all;
        let now = Instant::now();
        while let Some(latest) = all.iter().rposition(|one| one.peer == peer) {
            let mut latest = all.remove(latest)?;
            if latest.is_usable(now) {
                return Some(latest.stream);
            }
        }
        None
    }

    /// A connection has served a request. It is closed after so long, or when there are too many: then the oldest goes.
    pub fn put(&self, peer: u64, stream: Stream, idle: Duration) {
        if self.most == 0 {
            return;
        }
        let until = Instant::now() + idle;
        let mut kept = self.kept.lock();
        if kept.all.len() >= self.most {
            kept.all.pop_front();
        }
        kept.all.push_back(Waiting {
            peer,
            stream,
            until,
        });
        if !std::mem::replace(&mut kept.is_swept, true) {
            tokio::spawn(sweep(Arc::downgrade(&self.kept), until));
        }
    }
}

impl Waiting {
    /// Its time is not over, its peer has not closed it, and has sent nothing that nobody asked for.
    fn is_usable(&mut self, now: Instant) -> bool {
        let mut byte = [0];
        let read = tokio::task::unconstrained(self.stream.read(&mut byte));
        self.until > now && read.now_or_never().is_none()
    }
}

impl Kept {
    /// Closes what is of no use any more. Gives when to look next.
    fn sweep(&mut self, now: Instant) -> Option<Instant> {
        self.all.retain_mut(|one| one.is_usable(now));
        let next = self.all.front().map(|one| one.until);
        self.is_swept = next.is_some();
        next
    }
}

/// Sweeps until nothing is left.
async fn sweep(kept: Weak<Mutex<Kept>>, first: Instant) {
    let mut next = Some(first);
    while let Some(at) = next {
        // A reload may shorten the time that they are kept for.
        tokio::time::sleep_until(at.min(Instant::now() + LOOK)).await;
        next = kept
            .upgrade()
            .and_then(|kept| kept.lock().sweep(Instant::now()));
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncWriteExt, DuplexStream, duplex};

    use super::*;

    const IDLE: Duration = Duration::from_secs(4);

    /// A connection is let go of. Gives the peer's end.
    fn put(idle: &Idle, peer: u64) -> DuplexStream {
        let (near, far) = duplex(10);
        idle.put(peer, Box::new(near), IDLE);
        far
    }

    async fn is_closed(end: &mut DuplexStream) -> bool {
        end.read(&mut [0]).await.unwrap() == 0
    }

    #[tokio::test(start_paused = true)]
    async fn the_latest_that_is_open_is_taken() {
        let idle = Idle::new(10);
        let mut ends = [(); 4].map(|()| put(&idle, 1));
        let _other = put(&idle, 2);
        // The last has closed, the one before says something.
        ends[3].shutdown().await.unwrap();
        ends[2].write_all(b"x").await.unwrap();
        let mut taken = idle.take(1).unwrap();
        taken.write_all(b"y").await.unwrap();
        let mut byte = [0];
        ends[1].read_exact(&mut byte).await.unwrap();
        assert_eq!(&byte, b"y");
        assert!(idle.take(3).is_none() && idle.take(2).is_some() && idle.take(1).is_some());
        assert!(idle.take(1).is_none());
        assert_eq!(idle.kept.lock().all.len(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn beyond_the_limit_the_oldest_is_closed() {
        let idle = Idle::new(2);
        let mut first = put(&idle, 1);
        tokio::time::sleep(IDLE / 4).await;
        let _rest = [put(&idle, 2), put(&idle, 2)];
        let began = Instant::now();
        assert!(is_closed(&mut first).await);
        assert_eq!(began.elapsed(), Duration::ZERO);
        assert!(idle.take(1).is_none() && idle.take(2).is_some() && idle.take(2).is_some());
    }
}
