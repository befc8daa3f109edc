//! One process after another on the same listeners, with clients who must not notice.

use std::os::unix::net::UnixDatagram;
use std::process::Command;

use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use super::*;

/// Processes of one service, one after another; all say their lines where the first does.
pub struct Service {
    folder: Arc<TempDir>,
    pub first: Process,
    /// The one that serves.
    main: Pid,
}

impl Service {
    pub fn start(config: &str) -> Service {
        Service::in_folder(tempfile::tempdir().unwrap(), config)
    }

    fn in_folder(folder: TempDir, config: &str) -> Service {
        let folder = Arc::new(folder);
        std::fs::write(folder.path().join("config.toml"), config).unwrap();
        let path = folder.path().join("config.toml").display().to_string();
        let first = Process::in_folder(folder.clone(), &["--config", &path]);
        let main = Pid::from_raw(first.child.id().cast_signed());
        Service {
            folder,
            first,
            main,
        }
    }

    pub fn write_config(&self, text: &str) {
        let written = self.folder.path().join("new.toml");
        std::fs::write(&written, text).unwrap();
        std::fs::rename(written, self.folder.path().join("config.toml")).unwrap();
    }

    pub fn signal(&self, signal: Signal) {
        kill(self.main, signal).unwrap();
    }

    /// Has the one that serves start its successor; gives its id.
    fn successor(&self) -> Pid {
        self.signal(Signal::SIGUSR2);
        id_in(&self.first.says("SIGUSR2: started "), "as process ")
    }

    /// Has a successor take over; gives the one before it.
    fn restart(&mut self) -> Pid {
        self.signal(Signal::SIGUSR2);
        let next = id_in(&self.first.says(" has taken over"), "process ");
        std::mem::replace(&mut self.main, next)
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = kill(self.main, Signal::SIGKILL);
    }
}

/// A free port.
pub const FREE: &str = "127.0.0.1:0";

/// A config with these upstreams, keys and workers.
pub fn text(upstreams: &[SocketAddr], keys: &str, workers: &[(&str, &str, SocketAddr)]) -> String {
    let worker = |(name, listen, upstream): &(&str, &str, SocketAddr)| {
        format!("[[worker]]\nname = {name:?}\nlisten = {listen:?}\nupstream = \"{upstream}\"\n")
    };
    let workers: String = workers.iter().map(worker).collect();
    let upstreams: Vec<String> = upstreams.iter().map(ToString::to_string).collect();
    format!("[proxy]\nupstream = {upstreams:?}\n{keys}\n{workers}")
}

/// One with a front and a hop before `server`, and these keys.
fn config(server: SocketAddr, keys: &str) -> String {
    text(&[server], keys, &[("w", FREE, server)])
}

/// The id of a process that stands behind `word` in a line.
fn id_in(line: &str, word: &str) -> Pid {
    let (_, id) = line.split_once(word).unwrap();
    let id = id.split(' ').next().unwrap();
    Pid::from_raw(id.parse().unwrap())
}

/// Waits for the end of a process that may be nobody's child here.
async fn ended(process: Pid) {
    let is_there = || {
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat"));
        stat.is_ok_and(|stat| !stat.contains(") Z "))
    };
    until("the process's end", || !is_there()).await;
}

async fn answers(addr: SocketAddr) -> bool {
    let mut client = Client::connect(addr).await;
    client.ask("/generate", "", b"{}").await.status() == 200
}

/// What a process says of a reload of this config.
pub fn reloaded(service: &Service, config: &str) -> String {
    service.write_config(config);
    service.signal(Signal::SIGHUP);
    service.first.says("reload")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_reloads_and_restarts_under_load_fail_no_request() {
    let servers = [server().await, server().await];
    let hop = free_port();
    let routers = [Upstream::relay(hop).await, Upstream::relay(hop).await];
    // Upstreams, their policy, servers and workers come and go.
    let config = |turn: usize| {
        let mut upstreams = routers.each_ref().map(|router| router.addr);
        upstreams.rotate_left(turn % 2);
        let policy = ["round_robin", "random", "shortest_queue", "power_of_two"][turn % 4];
        let keys = format!(
            "policy = \"{policy}\"\nclient_idle_timeout_s = {}",
            60 + turn
        );
        let server = servers[turn % 2].addr;
        let workers = [("w", &*hop.to_string(), server), ("v", FREE, server)];
        text(&upstreams[..1 + turn % 2], &keys, &workers[..2 - turn % 2])
    };
    let mut service = Service::start(&config(0));
    let clients = Clients::start(service.first.front, hop, service.first.admin);
    // Each has load of its own.
    let load = async || {
        let before = clients.done();
        until("requests", || clients.done() > before + 30).await;
    };
    let mut old = Vec::new();
    for turn in 1..=20 {
        assert_says(&reloaded(&service, &config(turn)), "reloaded: ");
        let applied = "queuescope_reloads_total{result=\"applied\"}";
        assert_eq!(service.first.metric(applied).await, 1);
        load().await;
        old.push(service.restart());
        load().await;
    }
    let failures = clients.stop().await;
    assert_eq!(failures, [""; 0]);
    service.signal(Signal::SIGTERM);
    assert!(service.first.exit().await.success());
    for process in old.into_iter().chain([service.main]) {
        ended(process).await;
    }
    // One row for each of the front's requests, whichever process served it; none twice.
    let rows = all_rows(&service.first.records());
    let mut ids = BTreeSet::new();
    for row in &rows {
        assert!(ids.insert(row["req_id"].as_str()), "twice: {row:?}");
    }
    assert!(servers.iter().all(|server| server.seen().len() > 20));
    let sent: Vec<Seen> = routers.iter().flat_map(Upstream::seen).collect();
    assert!(sent.len() > 200, "{}", sent.len());
    let sent = sent.iter().filter_map(|s| s.header("x-request-id"));
    let missing: Vec<String> = sent.filter(|id| !ids.contains(&**id)).collect();
    assert_eq!(missing, [""; 0]);
}

/// A stream that has begun.
pub async fn stream(front: SocketAddr) -> Client {
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
    let server = gated(&gate).await;
    let addr = server.addr;
    let both = text(&[addr], "", &[("w", FREE, addr), ("v", FREE, addr)]);
    let mut service = Service::start(&both);
    let front = service.first.front;
    let [stays, gone] = service.first.hops[..] else {
        panic!("two hops")
    };
    let mut stream = stream(front).await;
    let mut idle = [Client::connect(front).await, Client::connect(gone).await];
    for idle in &mut idle {
        assert!(idle.ask("/generate", "", b"{}").await.whole);
    }
    service.write_config(&config(addr, ""));
    let old = service.restart();
    service.first.says("handed over: 1 generation request ");
    let refuses = || std::net::TcpStream::connect(gone).is_err();
    until("the listener that is no more asked for closes", refuses).await;
    assert!(answers(stays).await);
    // An idle connection has one more request; then it closes, as its response says.
    for idle in &mut idle {
        let last = idle.ask("/generate", "", b"{}").await;
        assert_eq!((last.status(), last.whole), (200, true));
        assert_eq!(last.header("connection").unwrap(), "close");
        assert!(idle.is_closed().await);
    }
    assert_eq!(service.first.ready().await, 200, "the new one's answer");
    // They are the new one's.
    kill(old, Signal::SIGHUP).unwrap();
    kill(old, Signal::SIGUSR2).unwrap();
    assert!(service.first.child.try_wait().unwrap().is_none());
    gate.open();
    ends(&mut stream).await;
    // Its response, begun before, did not say that the connection closes: so it does not.
    let last = stream.ask("/generate", "", b"{}").await;
    assert_eq!(last.header("connection").unwrap(), "close");
    assert!(service.first.exit().await.success());
    assert!(answers(front).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_process_that_fails_leaves_the_old_one_as_it_was() {
    let server = server().await;
    let addr = server.addr;
    let mut service = Service::start(&config(addr, ""));
    let first = &service.first;
    let mut kept = Client::connect(first.front).await;
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let everywhere = format!("0.0.0.0:{}", first.hops[0].port());
    let clash = "is another process";
    let workers = |workers: &[_]| text(&[addr], "", workers);
    for (wrong, why) in [
        (config(addr, "threads = 0"), "threads = 0"),
        // Its rows would count from its own start.
        (config(addr, "time_base = \"run\""), "time_base"),
        // These fail after they have the listeners.
        (workers(&[("w", FREE, addr), ("v", &taken, addr)]), clash),
        (workers(&[("w", &everywhere, addr)]), clash),
    ] {
        assert_eq!(kept.ask("/generate", "", b"{}").await.status(), 200);
        service.write_config(&wrong);
        service.signal(Signal::SIGUSR2);
        assert_says(&first.says("error: "), why);
        first.says("the successor ended: exit status: ");
        let response = kept.ask("/generate", "", b"{}").await;
        assert_eq!(response.header("connection").unwrap(), "keep-alive");
        assert!(answers(first.front).await && answers(first.hops[0]).await);
        assert_eq!(first.ready().await, 200);
    }
    // And a good one still takes over.
    service.write_config(&config(addr, ""));
    service.restart();
    assert!(answers(service.first.front).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_successor_that_hangs_holds_up_nothing() {
    let upstream = server().await;
    let mut service = Service::start(&config(upstream.addr, ""));
    let pipe = service.folder.path().join("config.toml");
    let hangs = async || {
        std::fs::remove_file(&pipe).unwrap();
        mkfifo(&pipe, Mode::S_IRWXU).unwrap();
        let successor = service.successor();
        // It opens once somebody reads, who then waits for what is never written.
        let mut written = None;
        let flags = OFlag::O_WRONLY | OFlag::O_NONBLOCK;
        let opens = || {
            written = open(&pipe, flags, Mode::empty()).ok();
            written.is_some()
        };
        until("the successor reads its config", opens).await;
        service.write_config(&config(upstream.addr, ""));
        (successor, written)
    };
    let first = &service.first;
    let (hung, _pipe) = hangs().await;
    assert!(answers(first.front).await && answers(first.hops[0]).await);
    service.signal(Signal::SIGUSR2);
    first.says(&format!("process {hung} is starting already"));
    // A reload is for the one that serves; the other may have read the file before.
    service.signal(Signal::SIGHUP);
    first.says("the successor is ended; start it again");
    first.says("reloaded: every key is as before");
    ended(hung).await;
    let refused = "queuescope_reloads_total{result=\"refused\"}";
    assert_eq!(first.metric(refused).await, 0);
    // One that is killed is in nobody's way.
    let (killed, _pipe) = hangs().await;
    kill(killed, Signal::SIGKILL).unwrap();
    first.says("the successor ended: signal: 9");
    // The end of the service is its end, too.
    let (hung, _pipe) = hangs().await;
    service.signal(Signal::SIGTERM);
    assert!(service.first.exit().await.success());
    ended(hung).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_may_outlast_drain_timeout_s_after_a_takeover_but_nothing_does_after_sigterm() {
    let gate = Gate::new();
    let server = gated(&gate).await;
    let mut service = Service::start(&config(server.addr, "drain_timeout_s = 0"));
    let front = service.first.front;
    let _streams = [stream(front).await, stream(front).await];
    let mut idle = Client::connect(front).await;
    assert!(idle.ask("/generate", "", b"{}").await.whole);
    // A listener is taken over by its address, whatever its name.
    let hop = service.first.hops[0];
    let other = ("other", &*hop.to_string(), server.addr);
    service.write_config(&text(&[server.addr], "drain_timeout_s = 0", &[other]));
    let old = service.restart();
    assert!(answers(hop).await);
    service.first.says("handed over: 2 generation requests");
    // Far longer than no time at all.
    for _ in 0..50 {
        assert!(answers(front).await);
    }
    // They hold no address: once the new process has gone, any other may have it.
    service.signal(Signal::SIGKILL);
    ended(service.main).await;
    let is_free = || std::net::TcpListener::bind(front).is_ok();
    until("a free address", is_free).await;
    let third = Process::start(server.addr, &["--listen", &front.to_string()]);
    assert!(answers(third.front).await);
    kill(old, Signal::SIGTERM).unwrap();
    service.first.says("draining: 2 generation requests");
    assert!(idle.is_closed().await);
    service.first.says("still open after drain_timeout_s");
    assert!(service.first.exit().await.success());
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_successor_becomes_the_main_process() {
    let upstream = server().await;
    let folder = tempfile::tempdir().unwrap();
    let manager = UnixDatagram::bind(folder.path().join(NOTIFY)).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let hears = || {
        let mut buffer = [0; 256];
        let read = manager.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..read].to_vec()).unwrap()
    };
    let mut service = Service::in_folder(folder, &config(upstream.addr, ""));
    let old = service.main;
    assert_eq!(hears(), format!("MAINPID={old}\nREADY=1"));
    service.restart();
    assert!(service.first.exit().await.success());
    // The old one has told before its end, in case the new one is late.
    let mut said = [hears(), hears()];
    said.sort();
    let [from_old, from_new] = said;
    let next = service.main;
    assert_eq!(from_old, format!("MAINPID={next}"));
    assert_eq!(from_new, format!("MAINPID={next}\nREADY=1"));
    assert!(answers(service.first.front).await, "it has the listeners");
    service.signal(Signal::SIGTERM);
    assert_eq!(hears(), "STOPPING=1");
}

/// As releases are often laid out: a link leads to the present one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_in_the_programs_path_is_followed_anew() {
    let upstream = server().await;
    let folder = Arc::new(tempfile::tempdir().unwrap());
    let link = folder.path().join("current");
    let place = std::path::Path::new(PROGRAM).parent().unwrap();
    std::os::unix::fs::symlink(place, &link).unwrap();
    let upstream = upstream.addr.to_string();
    let command = Command::new(link.join("queuescope"));
    let first = Process::by(command, folder.clone(), &["--upstream", &upstream]);
    std::fs::remove_file(&link).unwrap();
    let next = folder.path().join("next");
    std::fs::create_dir(&next).unwrap();
    std::fs::write(next.join("queuescope"), "#!/bin/sh\nexit 7\n").unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(next.join("queuescope"), mode).unwrap();
    std::os::unix::fs::symlink(&next, &link).unwrap();
    first.signal(Signal::SIGUSR2);
    first.says("the successor ended: exit status: 7");
    assert!(answers(first.front).await);
}
