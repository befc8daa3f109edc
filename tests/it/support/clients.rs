//! Clients that go on and on until they are told to stop, and take no failure: nothing is sent twice.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::upstream::{EVENT, Step, Upstream, done};
use super::wire::{Client, chunk, post, stream_head};

/// What a client does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Requests one after another on a connection, for as long as it is kept.
    Kept,
    /// A connection for each request.
    New,
    /// Streams on a kept connection.
    Stream,
    /// Health checks on a kept connection.
    Health,
}

/// The clients.
pub struct Clients {
    running: JoinSet<Vec<String>>,
    stop: Arc<AtomicBool>,
    done: Arc<AtomicUsize>,
}

/// Events of a stream.
const EVENTS: usize = 4;

/// A server that answers at once, or streams for a while.
pub async fn server() -> Upstream {
    Upstream::start(|_, request| {
        if !request.body.ends_with(b"true}") {
            return vec![Step::ok()];
        }
        let event = Step::Send(chunk(EVENT));
        let event = [event, Step::Pause(Duration::from_millis(15))];
        let events = vec![event; EVENTS].concat();
        [vec![Step::Send(stream_head())], events, done()].concat()
    })
    .await
}

impl Clients {
    /// Starts some of each way: through the front, as a router would to the hop, and to the admin listener.
    pub fn start(front: SocketAddr, hop: SocketAddr, admin: SocketAddr) -> Clients {
        let three = |addr| [Way::Kept, Way::New, Way::Stream].map(|way| (addr, way));
        let all = [front, front, hop].into_iter().flat_map(three);
        let all = all.chain([(admin, Way::Health)]);
        let stop = Arc::new(AtomicBool::new(false));
        let done = Arc::new(AtomicUsize::new(0));
        let mut running = JoinSet::new();
        for (number, (addr, way)) in all.enumerate() {
            let (stop, done) = (stop.clone(), done.clone());
            running.spawn(async move { go(number, addr, way, &stop, &done).await });
        }
        Clients {
            running,
            stop,
            done,
        }
    }

    /// Requests that have ended well.
    pub fn done(&self) -> usize {
        self.done.load(Ordering::Relaxed)
    }

    /// Lets the last requests end and gives every failure.
    pub async fn stop(mut self) -> Vec<String> {
        self.stop.store(true, Ordering::Relaxed);
        let mut failures = Vec::new();
        while let Some(theirs) = self.running.join_next().await {
            failures.extend(theirs.unwrap());
        }
        failures
    }
}

async fn go(
    number: usize,
    addr: SocketAddr,
    way: Way,
    stop: &AtomicBool,
    done: &AtomicUsize,
) -> Vec<String> {
    let mut kept: Option<Client> = None;
    let mut failures = Vec::new();
    for turn in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let (id, is_reused) = (format!("c{number}-{turn}"), kept.is_some());
        match exchange(&mut kept, addr, &id, way).await {
            Ok(()) => _ = done.fetch_add(1, Ordering::Relaxed),
            Err(why) => failures.push(format!("{way:?} {id}, reused {is_reused}: {why}")),
        }
        // Of different lengths, so that the end of the old process meets every state of a connection.
        let pause = 1 + (number * 7 + turn * 13) as u64 % 12;
        tokio::time::sleep(Duration::from_millis(pause)).await;
    }
    failures
}

/// One request, on the connection that was kept if there is one. Keeps it if it can take another.
async fn exchange(
    kept: &mut Option<Client>,
    addr: SocketAddr,
    id: &str,
    way: Way,
) -> Result<(), String> {
    let mut client = match kept.take() {
        Some(client) => client,
        None => match TcpStream::connect(addr).await {
            Ok(stream) => Client::from_stream(stream),
            Err(error) => return Err(format!("connect: {error}")),
        },
    };
    let bytes = match way {
        Way::Health => b"GET /healthz HTTP/1.1\r\nhost: h\r\n\r\n".to_vec(),
        _ => {
            let body = format!("{{\"stream\":{}}}", way == Way::Stream);
            let id = format!("x-request-id: {id}\r\n");
            post("/generate", &id, body.as_bytes())
        }
    };
    let sent = client.stream.write_all(&bytes).await;
    sent.map_err(|error| format!("send: {error}"))?;
    let response = client.response().await;
    let events = response.text().matches("data: ").count();
    let is_right = response.whole && response.head.starts_with("HTTP/1.1 200");
    if !is_right || (way == Way::Stream && events != EVENTS + 1) {
        return Err(format!("{response:?}"));
    }
    let is_kept = response.header("connection").as_deref() != Some("close");
    *kept = Some(client).filter(|_| is_kept && way != Way::New);
    Ok(())
}
