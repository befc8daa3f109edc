//! The ways from a client to a server that the benches compare, each started as processes of its own.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use tempfile::TempDir;

use crate::bare;

/// What stands between client and server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Direct,
    /// Pingora with nothing in it but the address of its upstream; so many processes in a row.
    Bare(usize),
    /// nginx as it would be set up for streams, in one process of one thread.
    Nginx,
    /// HAProxy, likewise.
    Haproxy,
    /// The routers of SGLang, with one worker.
    SglangRouter,
    Smg,
    /// Our front alone, records on.
    Front,
    /// Our front and a hop in one process, records on.
    OneProcess,
    /// Our front and a hop, a process each, records on in both.
    TwoProcesses,
}

/// A way, running. Its processes are killed when it is dropped.
pub struct Chain {
    pub way: Way,
    pub entry: SocketAddr,
    pub processes: Vec<Process>,
    _folder: TempDir,
}

pub struct Process(pub Child);

/// Where our process says that it listens.
const FRONT: &str = "front on http://";
const HOP: &str = "worker w0 on http://";

impl Way {
    pub const ALL: [Way; 10] = [
        Way::Direct,
        Way::Bare(1),
        Way::Bare(2),
        Way::Nginx,
        Way::Haproxy,
        Way::SglangRouter,
        Way::Smg,
        Way::Front,
        Way::OneProcess,
        Way::TwoProcesses,
    ];

    pub fn name(self) -> String {
        match self {
            Way::Direct => "no proxy".into(),
            Way::Bare(1) => "bare Pingora".into(),
            Way::Bare(layers) => format!("bare Pingora x {layers}"),
            Way::Nginx => "nginx".into(),
            Way::Haproxy => "haproxy".into(),
            Way::SglangRouter => "sglang-router".into(),
            Way::Smg => "smg".into(),
            Way::Front => "front".into(),
            Way::OneProcess => "front+hop, 1 process".into(),
            Way::TwoProcesses => "front+hop, 2 processes".into(),
        }
    }
}

impl Way {
    /// The command of another's proxy: named by the environment, of `.tools` (`scripts/router.sh`), or in the `PATH`.
    fn command(self) -> Option<String> {
        let (variable, command) = match self {
            Way::Nginx => ("NGINX", "nginx"),
            Way::Haproxy => ("HAPROXY", "haproxy"),
            Way::SglangRouter => ("SGLANG_ROUTER", ".tools/sglang-router-0.3.2/bin/smg"),
            Way::Smg => ("SMG", ".tools/smg-1.13.0/bin/smg"),
            _ => return None,
        };
        Some(std::env::var(variable).unwrap_or_else(|_| command.into()))
    }

    /// Whether it can be started here; if not, says so.
    fn can_start(self) -> bool {
        let Some(command) = self.command() else {
            return true;
        };
        let starts = Command::new(&command).arg("-v").output().is_ok();
        if !starts {
            println!("{} is not installed ({command}): skipped", self.name());
        }
        starts
    }
}

impl Chain {
    /// Starts all that can be started here before `server`, with `threads` that move bytes in each process.
    pub fn start_all(server: SocketAddr, threads: usize) -> Vec<Chain> {
        let ways = Way::ALL.into_iter().filter(|way| way.can_start());
        ways.map(|way| Chain::start(way, server, threads)).collect()
    }

    fn start(way: Way, server: SocketAddr, threads: usize) -> Chain {
        let folder = tempfile::tempdir().unwrap();
        let mut processes = Vec::new();
        let mut ours = |records: &str, args: &[&str], says: &str| {
            let (process, address) = queuescope(&folder.path().join(records), threads, args, says);
            processes.push(process);
            address
        };
        let url = format!("http://{server}");
        let entry = match way {
            Way::Direct => server,
            Way::Front => {
                let args = ["--upstream", &url, "--upstream-kind", "server"];
                ours("front.csv", &args, FRONT)
            }
            Way::OneProcess => {
                let hop = free_port();
                let (worker, hop) = (format!("w0={hop}={url}"), format!("http://{hop}"));
                ours(
                    "front.csv",
                    &["--upstream", &hop, "--worker", &worker],
                    FRONT,
                )
            }
            Way::TwoProcesses => {
                let worker = format!("w0=127.0.0.1:0={url}");
                let hop = ours("hop.csv", &["--worker", &worker], HOP);
                let hop = format!("http://{hop}");
                ours("front.csv", &["--upstream", &hop], FRONT)
            }
            Way::Bare(layers) => (0..layers).fold(server, |upstream, _| {
                let (process, address) = bare::start(upstream, threads);
                processes.push(process);
                address
            }),
            Way::Nginx | Way::Haproxy | Way::SglangRouter | Way::Smg => {
                let command = way.command().unwrap();
                let (process, address) = match way {
                    Way::Nginx => nginx(&command, folder.path(), server),
                    Way::Haproxy => haproxy(&command, folder.path(), server),
                    _ => router(&command, server),
                };
                processes.push(process);
                address
            }
        };
        Chain {
            way,
            entry,
            processes,
            _folder: folder,
        }
    }

    /// Fails if one of its processes has ended.
    pub fn must_run(&mut self) {
        for Process(child) in &mut self.processes {
            let ended = child.try_wait().unwrap();
            assert!(ended.is_none(), "{}: {ended:?}", self.way.name());
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// An address that was free a moment ago.
pub fn free_port() -> SocketAddr {
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    socket.local_addr().unwrap()
}

/// Starts a process that is to listen there, and waits until it does.
pub fn listening(command: &mut Command, address: SocketAddr) -> (Process, SocketAddr) {
    let child = command.stdout(Stdio::null()).spawn();
    let mut process = Process(child.unwrap_or_else(|error| panic!("{command:?}: {error}")));
    for _ in 0..6000 {
        if TcpStream::connect(address).is_ok() {
            return (process, address);
        }
        let ended = process.0.try_wait().unwrap();
        assert!(ended.is_none(), "{command:?}: {ended:?}");
        sleep(Duration::from_millis(10));
    }
    panic!("{command:?} does not listen on {address}");
}

/// Our proxy, and the address that it gives after `says`.
pub fn queuescope(
    records: &Path,
    threads: usize,
    args: &[&str],
    says: &str,
) -> (Process, SocketAddr) {
    // Elsewhere than where it was built.
    let here =
        std::env::var("QUEUESCOPE").unwrap_or_else(|_| env!("CARGO_BIN_EXE_queuescope").into());
    let mut child = Command::new(here)
        .args(["proxy", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"])
        .args(["--threads", &threads.to_string()])
        .arg("--records")
        .arg(records)
        .args(args)
        .env_remove("RUST_LOG")
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the proxy starts");
    let mut said = BufReader::new(child.stderr.take().unwrap());
    let process = Process(child);
    let mut line = String::new();
    let address = loop {
        line.clear();
        let read = said.read_line(&mut line).unwrap();
        assert!(read > 0, "the proxy ended before it said `{says}`");
        if let Some((_, rest)) = line.split_once(says) {
            break rest.split_whitespace().next().unwrap().parse().unwrap();
        }
    };
    // What it says later must not meet a closed pipe, nor fill it.
    std::thread::spawn(move || std::io::copy(&mut said, &mut std::io::sink()));
    (process, address)
}

/// Without a master: its processor time is that of the child we know, and so is its end.
fn nginx(command: &str, folder: &Path, server: SocketAddr) -> (Process, SocketAddr) {
    let listen = free_port();
    let place = folder.display();
    let config = format!(
        "daemon off; master_process off; pid {place}/pid; error_log {place}/errors;
         events {{ worker_connections 4096; }}
         http {{
           access_log off;
           client_body_temp_path {place}/a; proxy_temp_path {place}/b; fastcgi_temp_path {place}/c;
           uwsgi_temp_path {place}/d; scgi_temp_path {place}/e;
           upstream up {{ server {server}; keepalive 128; }}
           server {{
             listen {listen}; keepalive_requests 100000000;
             location / {{
               proxy_pass http://up; proxy_http_version 1.1; proxy_set_header Connection \"\";
               proxy_buffering off;
             }}
           }}
         }}"
    );
    let path = folder.join("nginx.conf");
    fs::write(&path, config).unwrap();
    let mut nginx = Command::new(command);
    nginx.arg("-e").arg(folder.join("errors"));
    listening(nginx.arg("-c").arg(path), listen)
}

/// In one process of one thread, which is no worker of a master.
fn haproxy(command: &str, folder: &Path, server: SocketAddr) -> (Process, SocketAddr) {
    let listen = free_port();
    let config = format!(
        "global
           nbthread 1
         defaults
           mode http
           option http-no-delay
           timeout connect 5s
           timeout client 60s
           timeout server 60s
           http-reuse always
         frontend front
           bind {listen}
           default_backend servers
         backend servers
           server one {server}
"
    );
    let path = folder.join("haproxy.cfg");
    fs::write(&path, config).unwrap();
    let mut haproxy = Command::new(command);
    haproxy.args(["-db", "-f"]).arg(path).stderr(Stdio::null());
    listening(&mut haproxy, listen)
}

/// It sends requests once it has found its worker healthy.
fn router(command: &str, server: SocketAddr) -> (Process, SocketAddr) {
    let listen = free_port();
    let metrics = free_port().port().to_string();
    let (port, url) = (listen.port().to_string(), format!("http://{server}"));
    let mut router = Command::new(command);
    router.args(["launch", "--host", "127.0.0.1", "--port", &port]);
    router.args(["--worker-urls", &url, "--prometheus-port", &metrics]);
    router.args(["--log-level", "error"]).stderr(Stdio::null());
    let process = listening(&mut router, listen);
    for _ in 0..600 {
        if is_ready(listen) {
            break;
        }
        sleep(Duration::from_millis(100));
    }
    assert!(is_ready(listen), "{command} is not ready after a minute");
    process
}

fn is_ready(address: SocketAddr) -> bool {
    let ask = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(1)))?;
        stream.write_all(b"GET /workers HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")?;
        std::io::read_to_string(stream)
    };
    ask().is_ok_and(|workers| workers.contains("\"is_healthy\":true"))
}
