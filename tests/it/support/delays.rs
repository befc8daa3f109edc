//! Parts that hold things up for a known time and write down what they did: a router and a network.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use queuescope::clock::{Clock, Stamp};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use super::listening::Listening;

/// Holds each request for a while, and its response: a network before what is told later.
pub struct Router {
    pub addr: SocketAddr,
    network: Network,
}

/// What the router did with a request.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    /// It had read the request's head.
    pub read: Stamp,
    /// It was about to send it on.
    pub sent: Stamp,
    /// It had read the first event of the response, and was about to pass that on.
    pub back: Option<(Stamp, Stamp)>,
}

/// Passes bytes on late, in each direction by a delay of its own, without slowing them down.
pub struct Network {
    pub addr: SocketAddr,
    server: Arc<OnceLock<SocketAddr>>,
    /// To the server, and from it.
    ways: Arc<[Way; 2]>,
    _listening: Listening,
}

/// A direction, and what has passed.
#[derive(Default)]
struct Way {
    delay: Delay,
    pieces: Mutex<Vec<Piece>>,
}

/// Bytes that came together.
#[derive(Clone, Debug)]
pub struct Piece {
    /// They had been read.
    pub read: Stamp,
    /// They were about to be written.
    pub sent: Stamp,
    pub bytes: Vec<u8>,
}

/// It can be changed while bytes flow.
type Delay = Mutex<Duration>;

impl Router {
    pub async fn start(clock: Clock) -> Router {
        let network = Network::before(OnceLock::new(), clock).await;
        let addr = network.addr;
        Router { addr, network }
    }

    /// Where it sends requests: the hop, which may be started later than the router.
    pub fn sends_to(&self, target: SocketAddr) {
        self.network.server.set(target).unwrap();
    }

    /// For so long it holds a request, and its response.
    pub fn holds(&self, delay: Duration, back: Duration) {
        self.network.delays([delay, back]);
    }

    /// What it did with the last request.
    pub fn last(&self) -> Held {
        let [asked, answered] = self.network.ways.each_ref().map(Way::passed);
        let is_head = |piece: &&Piece| piece.bytes.starts_with(b"POST ");
        let head = asked.iter().rfind(is_head).unwrap();
        let is_event = |piece: &&Piece| {
            let mut words = piece.bytes.windows(6);
            piece.read > head.read && words.any(|word| word == b"data: ")
        };
        let event = answered.iter().find(is_event);
        Held {
            read: head.read,
            sent: head.sent,
            back: event.map(|event| (event.read, event.sent)),
        }
    }

    /// Pieces of responses that it was about to pass on.
    pub fn passed_back(&self) -> usize {
        self.network.ways[1].passed().len()
    }
}

impl Network {
    /// A network before `server`.
    pub async fn start(server: SocketAddr, clock: Clock) -> Network {
        Network::before(server.into(), clock).await
    }

    async fn before(server: OnceLock<SocketAddr>, clock: Clock) -> Network {
        let (server, ways) = (Arc::new(server), Arc::<[Way; 2]>::default());
        let own = (server.clone(), ways.clone());
        let listening = Listening::start(move |_, near| {
            let ((server, ways), clock) = (own.clone(), clock.clone());
            async move {
                let far = TcpStream::connect(server.get().unwrap()).await.unwrap();
                far.set_nodelay(true).unwrap();
                let (near_read, near_write) = near.into_split();
                let (far_read, far_write) = far.into_split();
                let [there, back] = &*ways;
                let there = there.pump(&clock, near_read, far_write);
                tokio::join!(there, back.pump(&clock, far_read, near_write));
            }
        });
        let listening = listening.await;
        Network {
            addr: listening.addr,
            server,
            ways,
            _listening: listening,
        }
    }

    pub fn delays(&self, delays: [Duration; 2]) {
        for (way, delay) in self.ways.iter().zip(delays) {
            *way.delay.lock().unwrap() = delay;
        }
    }

    /// What went to the server, and what came from it, since this was asked last.
    pub fn passed(&self) -> [Vec<Piece>; 2] {
        let passed = |way: &Way| std::mem::take(&mut *way.pieces.lock().unwrap());
        self.ways.each_ref().map(passed)
    }
}

impl Way {
    fn passed(&self) -> Vec<Piece> {
        self.pieces.lock().unwrap().clone()
    }

    async fn pump(
        &self,
        clock: &Clock,
        mut from: impl AsyncRead + Unpin,
        mut to: impl AsyncWrite + Unpin,
    ) {
        // As many as are read while the first is held, but not without end: who reads slowly is waited for.
        let (queue, mut late) = mpsc::channel::<(Stamp, Duration, Vec<u8>)>(64);
        let read = async {
            let mut buffer = vec![0; 16_384];
            while let Ok(read) = from.read(&mut buffer).await {
                let bytes = buffer[..read].to_vec();
                let piece = (clock.now(), *self.delay.lock().unwrap(), bytes);
                if read == 0 || queue.send(piece).await.is_err() {
                    break;
                }
            }
            drop(queue);
        };
        let write = async {
            while let Some((read, delay, bytes)) = late.recv().await {
                let passed = clock.now().nanos_since(read).max(0).unsigned_abs();
                tokio::time::sleep(delay.saturating_sub(Duration::from_nanos(passed))).await;
                let sent = clock.now();
                let written = bytes.clone();
                // Before it is written: who has read it finds it here.
                let piece = Piece { read, sent, bytes };
                self.pieces.lock().unwrap().push(piece);
                if to.write_all(&written).await.is_err() {
                    break;
                }
            }
            let _ = to.shutdown().await;
        };
        tokio::join!(read, write);
    }
}
