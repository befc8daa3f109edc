//! A scripted server on raw TCP: it answers with the bytes it is told, when it is told.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;

use super::listening::Listening;
use super::wire;

/// What the server does next in its answer.
#[derive(Clone)]
pub enum Step {
    /// Writes these bytes.
    Send(Vec<u8>),
    /// Does nothing for a while.
    Pause(Duration),
    /// Waits until the test opens the gate.
    Gate(Gate),
    /// Says nothing until the other side closes.
    Silence,
    /// Sends these bytes to one after another until one answers below 500 or is the last, and passes that back; ends it when the
    /// client leaves.
    Relay(Vec<SocketAddr>, Vec<u8>),
    /// Closes in good order.
    Close,
    /// Breaks the connection with a reset.
    Reset,
}

/// Opened once by the test.
#[derive(Clone)]
pub struct Gate(Arc<watch::Sender<bool>>);

/// A request as it arrived.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Number of the connection, from 0.
    pub connection: usize,
    /// The head, as sent.
    pub head: String,
    /// The body, chunk framing taken off; what came of it if the client left.
    pub body: Vec<u8>,
    /// Whether the body came whole.
    pub whole: bool,
}

/// The server. It ends when dropped.
pub struct Upstream {
    pub addr: SocketAddr,
    log: Arc<Log>,
    _listening: Listening,
}

#[derive(Default)]
struct Log {
    seen: Mutex<Vec<Seen>>,
    /// Connections that the other side closed.
    gone: AtomicUsize,
    /// Bytes of requests that have arrived.
    received: AtomicUsize,
    /// `Step::Send`s whose bytes the kernel has taken.
    sent: AtomicUsize,
}

type Script = Arc<dyn Fn(usize, &Seen) -> Vec<Step> + Send + Sync>;

impl Step {
    /// `{}` with its head.
    pub fn ok() -> Step {
        Step::Send(wire::json_response("{}"))
    }
}

impl Gate {
    pub fn new() -> Gate {
        Gate(Arc::new(watch::channel(false).0))
    }

    pub fn open(&self) {
        self.0.send_replace(true);
    }

    pub async fn passed(&self) {
        let _ = self.0.subscribe().wait_for(|open| *open).await;
    }
}

impl Upstream {
    /// A server that answers request number n (from 0) with `script(n, request)`.
    pub async fn start(
        script: impl Fn(usize, &Seen) -> Vec<Step> + Send + Sync + 'static,
    ) -> Upstream {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Upstream::on(listener, script)
    }

    /// The same on a listener that stands already.
    pub fn on(
        listener: TcpListener,
        script: impl Fn(usize, &Seen) -> Vec<Step> + Send + Sync + 'static,
    ) -> Upstream {
        let log = Arc::new(Log::default());
        let script: Script = Arc::new(script);
        let shared = log.clone();
        let listening = Listening::on(listener, move |number, stream| {
            let (script, log) = (script.clone(), shared.clone());
            async move { serve(stream, number, &script, &log).await }
        });
        Upstream {
            addr: listening.addr,
            log,
            _listening: listening,
        }
    }

    /// A server that gives every request the same bytes.
    pub async fn always(answer: impl Into<Vec<u8>>) -> Upstream {
        Upstream::playing(vec![Step::Send(answer.into())]).await
    }

    /// A server that plays these steps to every request.
    pub async fn playing(steps: Vec<Step>) -> Upstream {
        Upstream::start(move |_, _| steps.clone()).await
    }

    /// A server that answers `{}` at once.
    pub async fn ok() -> Upstream {
        Upstream::playing(vec![Step::ok()]).await
    }

    /// The requests so far.
    pub fn seen(&self) -> Vec<Seen> {
        self.log.seen.lock().unwrap().clone()
    }

    /// Bytes of requests that have arrived.
    pub fn received(&self) -> usize {
        self.log.received.load(Ordering::Relaxed)
    }

    /// Waits until sending stands still, and says how many sends went out.
    pub async fn stands_still(&self) -> usize {
        let (mut sent, mut still) = (0, 0);
        while still < 20 {
            tokio::time::sleep(Duration::from_millis(5)).await;
            let now = self.log.sent.load(Ordering::Relaxed);
            still = if now == sent && now > 0 { still + 1 } else { 0 };
            sent = now;
        }
        sent
    }

    /// Connections that the other side has closed.
    pub fn gone(&self) -> usize {
        self.log.gone.load(Ordering::Relaxed)
    }
}

/// An event of a stream.
pub const EVENT: &str =
    "data: {\"text\":\"x\",\"meta_info\":{\"id\":\"e\",\"completion_tokens\":1}}\n\n";
pub const DONE: &str = "data: [DONE]\n\n";

/// The head of a stream and its first event.
pub fn begun() -> Vec<Step> {
    [wire::stream_head(), wire::chunk(EVENT)]
        .map(Step::Send)
        .into()
}

/// What ends a stream.
pub fn done() -> Vec<Step> {
    [DONE, ""].map(|last| Step::Send(wire::chunk(last))).into()
}

/// A server that begins a stream and ends it when the gate opens; others it answers at once.
pub async fn gated(gate: &Gate) -> Upstream {
    let gate = gate.clone();
    Upstream::start(move |_, request| {
        if !request.body.ends_with(b"true}") {
            return vec![Step::ok()];
        }
        [begun(), vec![Step::Gate(gate.clone())], done()].concat()
    })
    .await
}

/// A stream of far more than any kernel buffers, and no end of it.
pub fn endless() -> Vec<Step> {
    let mut steps = vec![Step::Send(wire::stream_head())];
    steps.extend((0..400).map(|_| Step::Send(wire::chunk("x".repeat(60_000)))));
    steps.push(Step::Silence);
    steps
}

/// An address that is taken and refuses, until its socket listens.
pub fn refusing_yet() -> (TcpSocket, SocketAddr) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let addr = socket.local_addr().unwrap();
    (socket, addr)
}

/// An address where nobody listens, nor will while the tests run: the port stays taken.
pub async fn refusing() -> SocketAddr {
    let (socket, addr) = refusing_yet();
    std::mem::forget(socket);
    addr
}

async fn serve(mut stream: TcpStream, number: usize, script: &Script, log: &Log) {
    let mut reader = wire::Reader::default();
    loop {
        reader = reader.next(false);
        let Some(request) = read_request(&mut reader, &mut stream, number, log).await else {
            log.gone.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let turn = {
            let mut seen = log.seen.lock().unwrap();
            seen.push(request.clone());
            seen.len() - 1
        };
        if !request.whole {
            log.gone.fetch_add(1, Ordering::Relaxed);
            return;
        }
        for step in script(turn, &request) {
            if !play(step, &mut stream, log).await {
                return;
            }
        }
    }
}

/// Whether the connection goes on.
async fn play(step: Step, stream: &mut TcpStream, log: &Log) -> bool {
    match step {
        Step::Send(bytes) => {
            let is_sent = stream.write_all(&bytes).await.is_ok();
            log.sent.fetch_add(1, Ordering::Relaxed);
            is_sent
        }
        Step::Pause(time) => {
            tokio::time::sleep(time).await;
            true
        }
        Step::Gate(gate) => {
            gate.passed().await;
            true
        }
        Step::Silence => {
            let mut rest = Vec::new();
            let _ = stream.read_to_end(&mut rest).await;
            log.gone.fetch_add(1, Ordering::Relaxed);
            false
        }
        Step::Relay(targets, bytes) => {
            relay(&targets, &bytes, stream).await;
            false
        }
        Step::Close => false,
        Step::Reset => {
            // Closing with this option discards what is unsent and sends a reset.
            let _ = socket2::SockRef::from(&*stream).set_linger(Some(Duration::ZERO));
            false
        }
    }
}

async fn read_request(
    reader: &mut wire::Reader,
    stream: &mut TcpStream,
    connection: usize,
    log: &Log,
) -> Option<Seen> {
    let mut buffer = vec![0; 65536];
    let mut is_expected = false;
    while !reader.is_whole(0) {
        let head = reader.head.as_deref().filter(|_| !is_expected);
        if head.is_some_and(|head| head.contains("100-continue")) {
            is_expected = true;
            let goes_on = b"HTTP/1.1 100 Continue\r\n\r\n";
            stream.write_all(goes_on).await.ok()?;
        }
        let read = stream.read(&mut buffer).await.unwrap_or(0);
        if read == 0 {
            break;
        }
        log.received.fetch_add(read, Ordering::Relaxed);
        reader.feed(&buffer[..read]);
    }
    Some(Seen {
        connection,
        head: reader.head.clone()?,
        body: reader.body.clone(),
        whole: reader.is_whole(0),
    })
}

impl Seen {
    /// The request with `edit` made to its head, on a connection of its own.
    pub fn closing(&self, edit: impl Fn(&str) -> String) -> Vec<u8> {
        let head = edit(&self.head).replace("\r\n\r\n", "\r\nconnection: close\r\n\r\n");
        [head.as_bytes(), &self.body].concat()
    }

    /// A header's value; there must be at most one.
    pub fn header(&self, name: &str) -> Option<String> {
        wire::only_header(&self.head, name)
    }
}

impl Upstream {
    /// A router: it passes each request on to `target` over a connection of its own, and the response back.
    pub async fn relay(target: SocketAddr) -> Upstream {
        Upstream::retrying(vec![target], str::to_owned).await
    }

    /// One that retries: each request goes to one worker after another until one answers below 500 or is the last. `edit` is what
    /// it does to the head.
    pub async fn retrying(
        workers: Vec<SocketAddr>,
        edit: impl Fn(&str) -> String + Send + Sync + 'static,
    ) -> Upstream {
        Upstream::start(move |_, request| {
            vec![Step::Relay(workers.clone(), request.closing(&edit))]
        })
        .await
    }
}

async fn relay(targets: &[SocketAddr], bytes: &[u8], stream: &mut TcpStream) {
    for target in targets {
        let Ok(mut there) = TcpStream::connect(target).await else {
            continue;
        };
        let (mut here, mut back) = stream.split();
        let pass = async {
            there.write_all(bytes).await.ok()?;
            let mut head = Vec::new();
            while !head.windows(4).any(|end| end == b"\r\n\r\n") {
                if there.read_buf(&mut head).await.ok()? == 0 {
                    return None;
                }
            }
            let is_last = target == targets.last()?;
            if !is_last && !matches!(head[9], b'2' | b'4') {
                return None;
            }
            back.write_all(&head).await.ok()?;
            tokio::io::copy(&mut there, &mut back).await.ok()
        };
        let mut more = [0; 1];
        tokio::select! {
            passed = pass => if passed.is_some() { return },
            _ = here.read(&mut more) => return,
        }
    }
    let none = b"HTTP/1.1 500 None\r\ncontent-length: 0\r\n\r\n";
    let _ = stream.write_all(none).await;
}
