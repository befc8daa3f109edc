//! Parts that hold things up for a known time and write down what they did: a router and a network.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use queuescope::clock::{Clock, Stamp};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use super::listening::Listening;
use super::wire::Client;

/// Holds each request for a while, then sends it on over a connection of its own.
pub struct Router {
    pub addr: SocketAddr,
    shared: Arc<RouterShared>,
    _listening: Listening,
}

struct RouterShared {
    clock: Clock,
    hold: Delays,
    target: OnceLock<SocketAddr>,
    held: Mutex<Vec<Held>>,
    passed_back: AtomicUsize,
}

/// What the router did with a request.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    /// It had read the request.
    pub read: Stamp,
    /// It was about to send it on.
    pub sent: Stamp,
    /// It had read the first event of the response, and was about to pass that on.
    pub back: Option<(Stamp, Stamp)>,
}

/// Passes bytes on late, in each direction by a delay of its own, without slowing them down.
pub struct Network {
    pub addr: SocketAddr,
    shared: Arc<NetworkShared>,
    _listening: Listening,
}

struct NetworkShared {
    clock: Clock,
    delays: Delays,
    pieces: Mutex<[Vec<Piece>; 2]>,
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

/// Of the way there and the way back. They can be changed while bytes flow.
type Delays = Mutex<[Duration; 2]>;

const THERE: usize = 0;
const BACK: usize = 1;

impl Router {
    pub async fn start(clock: Clock) -> Router {
        let shared = Arc::new(RouterShared {
            clock,
            hold: Delays::default(),
            target: OnceLock::new(),
            held: Mutex::default(),
            passed_back: AtomicUsize::new(0),
        });
        let own = shared.clone();
        let listening = Listening::start(move |_, stream| {
            let shared = own.clone();
            async move { shared.serve(Client::from_stream(stream)).await }
        });
        let listening = listening.await;
        Router {
            addr: listening.addr,
            shared,
            _listening: listening,
        }
    }

    /// Where it sends requests: the hop, which may be started later than the router.
    pub fn sends_to(&self, target: SocketAddr) {
        self.shared.target.set(target).unwrap();
    }

    /// For so long it holds a request, and the first event of its response.
    pub fn holds(&self, delay: Duration, back: Duration) {
        *self.shared.hold.lock().unwrap() = [delay, back];
    }

    /// What it did with the last request.
    pub fn last(&self) -> Held {
        *self.shared.held.lock().unwrap().last().unwrap()
    }

    /// Bytes of responses that the next one towards the client has taken.
    pub fn passed_back(&self) -> usize {
        self.shared.passed_back.load(Ordering::Relaxed)
    }
}

impl RouterShared {
    /// One request; the response ends with its connection.
    async fn serve(&self, mut client: Client) {
        let asked = client.read_until(|reader| reader.is_whole(0)).await;
        if asked.head.is_empty() {
            return;
        }
        let read = self.clock.now();
        sleep_for(&self.hold, THERE).await;
        let head = asked.head;
        let head = head.replace("\r\n\r\n", "\r\nconnection: close\r\n\r\n");
        let mut server = Client::connect(*self.target.get().unwrap()).await;
        let sent = self.clock.now();
        let place = {
            let mut held = self.held.lock().unwrap();
            let back = None;
            held.push(Held { read, sent, back });
            held.len() - 1
        };
        server.send([head.as_bytes(), &asked.body].concat()).await;
        let mut buffer = vec![0; 65536];
        while let Ok(read @ 1..) = server.stream.read(&mut buffer).await {
            let is_begun = self.held.lock().unwrap()[place].back.is_some();
            if !is_begun && buffer[..read].windows(6).any(|six| six == b"data: ") {
                let read = self.clock.now();
                sleep_for(&self.hold, BACK).await;
                self.held.lock().unwrap()[place].back = Some((read, self.clock.now()));
            }
            if client.stream.write_all(&buffer[..read]).await.is_err() {
                return;
            }
            self.passed_back.fetch_add(read, Ordering::Relaxed);
        }
    }
}

async fn sleep_for(delays: &Delays, way: usize) {
    let delay = delays.lock().unwrap()[way];
    tokio::time::sleep(delay).await;
}

impl Network {
    /// A network before `server`.
    pub async fn start(server: SocketAddr, clock: Clock) -> Network {
        let shared = Arc::new(NetworkShared {
            clock,
            delays: Delays::default(),
            pieces: Mutex::default(),
        });
        let own = shared.clone();
        let listening = Listening::start(move |_, near| {
            let own = own.clone();
            async move {
                let far = TcpStream::connect(server).await.unwrap();
                far.set_nodelay(true).unwrap();
                let (near_read, near_write) = near.into_split();
                let (far_read, far_write) = far.into_split();
                tokio::join!(
                    own.pump(near_read, far_write, THERE),
                    own.pump(far_read, near_write, BACK),
                );
            }
        });
        let listening = listening.await;
        Network {
            addr: listening.addr,
            shared,
            _listening: listening,
        }
    }

    pub fn delays(&self, there: Duration, back: Duration) {
        *self.shared.delays.lock().unwrap() = [there, back];
    }

    /// Forgets what passed so far.
    pub fn forget(&self) {
        *self.shared.pieces.lock().unwrap() = Default::default();
    }

    /// What went to the server.
    pub fn there(&self) -> Vec<Piece> {
        self.shared.pieces.lock().unwrap()[THERE].clone()
    }

    /// What came from it.
    pub fn back(&self) -> Vec<Piece> {
        self.shared.pieces.lock().unwrap()[BACK].clone()
    }
}

impl NetworkShared {
    async fn pump(
        &self,
        mut from: impl AsyncRead + Unpin,
        mut to: impl AsyncWrite + Unpin,
        way: usize,
    ) {
        // As many as are read while the first is held, but not without end: who reads slowly is waited for.
        let (queue, mut late) = mpsc::channel::<(Stamp, Duration, Vec<u8>)>(64);
        let read = async {
            let mut buffer = vec![0; 16_384];
            while let Ok(read) = from.read(&mut buffer).await {
                let bytes = buffer[..read].to_vec();
                let piece = (self.clock.now(), self.delays.lock().unwrap()[way], bytes);
                if read == 0 || queue.send(piece).await.is_err() {
                    break;
                }
            }
            drop(queue);
        };
        let write = async {
            while let Some((read, delay, bytes)) = late.recv().await {
                let passed = self.clock.now().nanos_since(read).max(0).unsigned_abs();
                tokio::time::sleep(delay.saturating_sub(Duration::from_nanos(passed))).await;
                let sent = self.clock.now();
                // Before it is written: who has read it finds it here.
                let piece = Piece {
                    read,
                    sent,
                    bytes: bytes.clone(),
                };
                self.pieces.lock().unwrap()[way].push(piece);
                if to.write_all(&bytes).await.is_err() {
                    break;
                }
            }
            let _ = to.shutdown().await;
        };
        tokio::join!(read, write);
    }
}
