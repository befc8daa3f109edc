//! One process after another on the same listeners, with clients who must not notice.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;
use tokio::io::AsyncReadExt;

use crate::support::clients::{Clients, server};
use crate::support::process::{NOTIFY, Process, spawn};
use crate::support::proxy::{all_rows, rows};
use crate::support::upstream::{Gate, Step, Upstream, gated};
use crate::support::wire::{Client, PATIENCE, until};

mod handshake;

/// Processes of one place: the same folder, takeover path and hop.
struct Place {
    folder: Arc<TempDir>,
    args: Vec<String>,
}

impl Place {
    /// A front to `router`, a hop before `server`.
    fn new(router: SocketAddr, server: SocketAddr) -> Place {
        let folder = Arc::new(tempfile::tempdir().unwrap());
        let args = [
            "--takeover".into(),
            folder.path().join("t.sock").display().to_string(),
            "--upstream".into(),
            router.to_string(),
            "--worker".into(),
            format!("w=127.0.0.1:0={server}"),
        ];
        Place {
            folder,
            args: args.into(),
        }
    }

    fn args<'a>(&'a self, extra: &[&'a str]) -> Vec<&'a str> {
        let own = self.args.iter().map(String::as_str);
        own.chain(extra.iter().copied()).collect()
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("t.sock")
    }

    /// The first process.
    fn start(&self) -> Process {
        let first = Process::in_folder(self.folder.clone(), &self.args(&[]));
        first.says("takeover at ");
        first
    }

    /// A process that takes over.
    fn next(&self) -> Process {
        let next = Process::in_folder(self.folder.clone(), &self.args(&[]));
        next.says("took over");
        next
    }

    /// How often each request id stands in the records of all processes.
    fn ids(&self) -> BTreeMap<String, usize> {
        let mut ids = BTreeMap::new();
        for row in all_rows(&self.folder.path().join("records.csv")) {
            *ids.entry(row["req_id"].clone()).or_default() += 1;
        }
        ids
    }
}

/// A router with one worker, whose address it learns later.
async fn router() -> (Upstream, Arc<OnceLock<SocketAddr>>) {
    let worker = Arc::new(OnceLock::<SocketAddr>::new());
    let told = worker.clone();
    let router = Upstream::start(move |_, request| {
        vec![Step::Relay(
            *told.get().unwrap(),
            request.closing(str::to_owned),
        )]
    })
    .await;
    (router, worker)
}

async fn answers(addr: SocketAddr) -> bool {
    let mut client = Client::connect(addr).await;
    client.ask("/generate", "", b"{}").await.status() == 200
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_restarts_under_load_fail_no_request() {
    let server = server().await;
    let (router, worker) = router().await;
    let place = Place::new(router.addr, server.addr);
    let mut process = place.start();
    worker.set(process.hops[0]).unwrap();
    let (front, hop, admin) = (process.front, process.hops[0], process.admin);
    let clients = Clients::start(front, hop, admin);
    let mut old = Vec::new();
    for _ in 0..20 {
        let before = clients.done();
        let next = place.next();
        let there = (next.front, next.hops[0], next.admin);
        assert_eq!(there, (front, hop, admin));
        old.push(std::mem::replace(&mut process, next));
        // Each has load of its own.
        until("requests", || clients.done() > before + 40).await;
    }
    let failures = clients.stop().await;
    assert_eq!(failures, [""; 0]);
    process.signal(Signal::SIGTERM);
    for process in old.iter_mut().chain([&mut process]) {
        assert!(process.exit().await.success());
    }
    // One row for each of the front's requests, whichever process served it; none twice.
    let ids = place.ids();
    let twice: Vec<_> = ids.iter().filter(|(_, count)| **count > 1).collect();
    assert!(twice.is_empty(), "{twice:?}");
    let sent = router.seen();
    let sent: Vec<String> = sent
        .iter()
        .filter_map(|s| s.header("x-request-id"))
        .collect();
    assert!(sent.len() > 200, "{}", sent.len());
    let missing: Vec<&String> = sent.iter().filter(|id| !ids.contains_key(*id)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// A stream that has begun.
async fn stream(front: SocketAddr) -> Client {
    let mut stream = Client::connect(front).await;
    stream.begin_stream().await;
    stream
}

/// Reads a stream to its end.
async fn ends(stream: &mut Client) {
    let mut rest = Vec::new();
    while !rest.ends_with(b"0\r\n\r\n") {
        let read = stream.stream.read_buf(&mut rest).await.unwrap();
        assert!(read > 0, "the stream has its end");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_old_process_keeps_what_is_open_until_it_has_ended() {
    let gate = Gate::new();
    let upstream = gated(&gate).await;
    let place = Place::new(upstream.addr, upstream.addr);
    let mut old = place.start();
    let mut stream = stream(old.front).await;
    let mut idle = Client::connect(old.front).await;
    assert!(idle.ask("/generate", "", b"{}").await.whole);
    let next = place.next();
    old.says("handed over: 1 request ");
    // The idle connection has one more request; then it closes, as its response says.
    let last = idle.ask("/generate", "", b"{}").await;
    assert_eq!((last.status(), last.whole), (200, true));
    assert_eq!(last.header("connection").unwrap(), "close");
    assert!(idle.is_closed().await);
    assert_eq!(next.ready().await, 200, "the new one answers for health");
    // They are the new one's.
    old.signal(Signal::SIGHUP);
    old.signal(Signal::SIGUSR2);
    assert!(old.child.try_wait().unwrap().is_none());
    gate.open();
    ends(&mut stream).await;
    // Its response, begun before, did not say that the connection closes: so it does not.
    let last = stream.ask("/generate", "", b"{}").await;
    assert_eq!(last.header("connection").unwrap(), "close");
    assert!(old.exit().await.success());
    assert!(answers(next.front).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_process_that_fails_leaves_the_old_one_as_it_was() {
    let upstream = server().await;
    let place = Place::new(upstream.addr, upstream.addr);
    let old = place.start();
    let mut kept = Client::connect(old.front).await;
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = format!("v={}={}", taken.local_addr().unwrap(), upstream.addr);
    for wrong in [
        ["--threads", "0"],
        ["--upstream-read-timeout-s", "-1"],
        // It fails after it has the listeners.
        ["--worker", taken.as_str()],
        ["--time-base", "run"],
    ] {
        assert_eq!(kept.ask("/generate", "", b"{}").await.status(), 200);
        let (mut child, lines) = spawn(place.folder.path(), &place.args(&wrong));
        assert!(!child.wait().unwrap().success(), "{wrong:?}");
        let said: Vec<String> = lines.iter().collect();
        assert!(said.iter().any(|line| line.contains("error: ")), "{said:?}");
        let response = kept.ask("/generate", "", b"{}").await;
        assert_eq!(response.header("connection").unwrap(), "keep-alive");
        assert!(answers(old.front).await && answers(old.hops[0]).await);
        assert_eq!(old.ready().await, 200);
    }
    // And a good one still takes over.
    assert_eq!(place.next().front, old.front);
}

/// Reads what the other process says until it holds `piece`.
fn hear(stream: &mut UnixStream, piece: &str) {
    let mut said = Vec::new();
    while !String::from_utf8_lossy(&said).contains(piece) {
        let mut bytes = [0; 512];
        let read = stream.read(&mut bytes).unwrap();
        assert!(read > 0, "{piece}: {}", String::from_utf8_lossy(&said));
        said.extend_from_slice(&bytes[..read]);
    }
}

/// A takeover as far as the offer.
fn begin(place: &Place) -> UnixStream {
    let mut stream = UnixStream::connect(place.socket()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    hear(&mut stream, "offer");
    stream
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_half_done_takeover_holds_up_nothing() {
    let upstream = server().await;
    let place = Place::new(upstream.addr, upstream.addr);
    let mut old = place.start();
    let begin = || begin(&place);
    // It has the sockets, and nothing has changed: neither then nor once it is dead.
    let dies = begin();
    assert!(answers(old.front).await && answers(old.hops[0]).await);
    drop(dies);
    old.says("this process goes on");
    assert!(answers(old.front).await && answers(old.hops[0]).await);
    assert_eq!(old.ready().await, 200);
    let mut nonsense = UnixStream::connect(place.socket()).unwrap();
    nonsense.write_all(b"{\"hello\":99}\n").unwrap();
    old.says("this process goes on");
    // Sockets that it has not read would listen on.
    drop(nonsense);
    let mut stream = begin();
    old.signal(Signal::SIGTERM);
    assert!(old.exit().await.success());
    let mut rest = Vec::new();
    // It is gone, and has acknowledged nothing.
    let _ = stream.read_to_end(&mut rest);
    assert!(!String::from_utf8_lossy(&rest).contains("acknowledged"));
    // The socket that it left behind is in nobody's way.
    assert!(answers(place.start().front).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigterm_after_a_takeover_closes_idle_connections() {
    let upstream = server().await;
    let place = Place::new(upstream.addr, upstream.addr);
    let mut old = place.start();
    let mut idle = Client::connect(old.front).await;
    assert!(idle.ask("/generate", "", b"{}").await.whole);
    let next = place.next();
    old.says("handed over");
    old.signal(Signal::SIGTERM);
    assert!(idle.is_closed().await);
    assert!(old.exit().await.success());
    assert!(answers(next.front).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigterm_serves_connections_that_still_wait_to_be_accepted() {
    let upstream = server().await;
    let mut process = Process::start(upstream.addr, &[]);
    assert_eq!(process.ready().await, 200);
    process.signal(Signal::SIGSTOP);
    let mut clients = Vec::new();
    for _ in 0..20 {
        let mut client = Client::connect(process.front).await;
        client.post("/generate", "", b"{}").await;
        clients.push(client);
    }
    process.signal(Signal::SIGTERM);
    process.signal(Signal::SIGCONT);
    for client in &mut clients {
        let response = client.response().await;
        assert_eq!((response.status(), response.whole), (200, true));
    }
    assert!(process.exit().await.success());
    assert_eq!(rows(&process.records()).len(), 20);
}

/// Kills a process that the test did not start itself.
struct Kill(Pid);

impl Drop for Kill {
    fn drop(&mut self) {
        let _ = kill(self.0, Signal::SIGKILL);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigusr2_starts_a_successor_that_becomes_the_main_process() {
    let upstream = server().await;
    let place = Place::new(upstream.addr, upstream.addr);
    let manager = UnixDatagram::bind(place.folder.path().join(NOTIFY)).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let hears = || {
        let mut buffer = [0; 256];
        let read = manager.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..read].to_vec()).unwrap()
    };
    let mut old = place.start();
    assert_eq!(hears(), format!("MAINPID={}\nREADY=1", old.child.id()));
    old.signal(Signal::SIGUSR2);
    // It writes to the same standard error, and may be read first or last.
    let line = old.says(" has taken over");
    let (_, pid) = line.split_once("process ").unwrap();
    let pid: i32 = pid.split(' ').next().unwrap().parse().unwrap();
    let next = Kill(Pid::from_raw(pid));
    assert!(old.exit().await.success());
    // The old one has told before its end, in case the new one is late.
    let mut said = [hears(), hears()];
    said.sort();
    let [from_old, from_new] = said;
    assert_eq!(from_old, format!("MAINPID={pid}"));
    assert_eq!(from_new, format!("MAINPID={pid}\nREADY=1"));
    assert!(answers(old.front).await, "the successor has its listeners");
    kill(next.0, Signal::SIGTERM).unwrap();
    assert_eq!(hears(), "STOPPING=1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listener_that_the_new_config_lacks_closes_while_the_old_process_drains() {
    let upstream = server().await;
    let place = Place::new(upstream.addr, upstream.addr);
    let worker = format!("v=127.0.0.1:0={}", upstream.addr);
    let args = place.args(&["--worker", &worker]);
    let mut old = Process::in_folder(place.folder.clone(), &args);
    old.says("takeover at ");
    let gone = old.hops[1];
    let mut kept = Client::connect(gone).await;
    assert!(kept.ask("/generate", "", b"{}").await.whole);
    let next = place.next();
    assert_eq!(next.hops, old.hops[..1]);
    let refuses = || std::net::TcpStream::connect(gone).is_err();
    until("the listener closes", refuses).await;
    // Its connection is still there, and has one more request.
    assert_eq!(
        kept.ask("/generate", "", b"{}")
            .await
            .header("connection")
            .unwrap(),
        "close"
    );
    assert!(old.exit().await.success());
}
