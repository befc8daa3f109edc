//! A changed config taken on at SIGHUP, with clients who must not notice.

use std::fmt::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::Signal;
use queuescope::config::proxy::Config;
use queuescope::config::proxy::StampsPolicy;
use tempfile::TempDir;

use super::tls::{self, Certificate};
use crate::support::admin::get;
use crate::support::assert_says;
use crate::support::clients::{Clients, server};
use crate::support::process::Process;
use crate::support::proxy::{Front, config, worker};
use crate::support::upstream::{Step, Upstream};
use crate::support::wire::{Client, json_response, until};

/// A config file that can be changed.
struct File {
    folder: Arc<TempDir>,
}

impl File {
    fn new() -> File {
        let folder = Arc::new(tempfile::tempdir().unwrap());
        File { folder }
    }

    fn write(&self, proxy: &str, workers: &[(&str, &str, SocketAddr)]) {
        let mut text = format!("[proxy]\n{proxy}\n");
        for (name, listen, upstream) in workers {
            let section = format!(
                "[[worker]]\nname = {name:?}\nlisten = {listen:?}\nupstream = \"{upstream}\"\n"
            );
            text.write_str(&section).unwrap();
        }
        std::fs::write(self.folder.path().join("c.toml"), text).unwrap();
    }

    fn start(&self) -> Process {
        let path = self.folder.path().join("c.toml");
        Process::in_folder(self.folder.clone(), &["--config", path.to_str().unwrap()])
    }
}

fn reloaded(process: &Process) -> String {
    process.signal(Signal::SIGHUP);
    process.says("reload")
}

fn upstream(all: &[SocketAddr]) -> String {
    let all: Vec<String> = all.iter().map(|addr| format!("\"{addr}\"")).collect();
    format!("upstream = [{}]", all.join(", "))
}

/// The address in what a reload says.
fn address_in(line: &str) -> SocketAddr {
    let (_, rest) = line.split_once("http://").unwrap();
    rest.split([';', ' ']).next().unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_reloads_under_load_fail_no_request() {
    let (one, two) = (server().await, server().await);
    let file = File::new();
    const FREE: &str = "127.0.0.1:0";
    file.write(&upstream(&[one.addr]), &[("w", FREE, one.addr)]);
    let mut process = file.start();
    let (front, hop, admin) = (process.front, process.hops[0], process.admin);
    let clients = Clients::start(front, hop, admin);
    for turn in 0..20 {
        let before = clients.done();
        let (a, b) = if turn % 2 == 0 {
            (&two, &one)
        } else {
            (&one, &two)
        };
        let both = [a.addr, b.addr];
        let policy = ["round_robin", "random", "shortest_queue", "power_of_two"][turn % 4];
        let keys = format!(
            "{}\npolicy = \"{policy}\"\nclient_idle_timeout_s = {}",
            upstream(&both[..1 + turn % 2]),
            60 + turn
        );
        let all = [("w", FREE, a.addr), ("v", FREE, b.addr)];
        // The second worker comes and goes.
        file.write(&keys, &all[..2 - turn % 2]);
        let said = reloaded(&process);
        assert!(said.contains("reloaded: "), "{said}");
        until("requests", || clients.done() > before + 20).await;
    }
    assert_eq!(clients.stop().await, [""; 0]);
    let applied = process
        .metric("queuescope_reloads_total{result=\"applied\"}")
        .await;
    assert_eq!(applied, 20);
    assert!(one.seen().len() > 20 && two.seen().len() > 20);
    process.signal(Signal::SIGTERM);
    assert!(process.exit().await.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_come_move_and_go() {
    let one = Upstream::always(json_response("{\"is\":1}")).await;
    let two = Upstream::always(json_response("{\"is\":2}")).await;
    let is = async |client: &mut Client| {
        let response = client.ask("/generate", "", b"{}").await;
        let closes = response.header("connection").unwrap() == "close";
        (response.json()["is"].as_i64().unwrap(), closes)
    };
    let file = File::new();
    let keys = upstream(&[one.addr]);
    file.write(&keys, &[]);
    let process = file.start();
    // The router's port must be known beforehand, so it is no free one now.
    file.write(&keys, &[("w", "127.0.0.1:0", one.addr)]);
    let said = reloaded(&process);
    let hop = address_in(&said);
    // Before its first request.
    let mut admin = Client::connect(process.admin).await;
    admin.send("GET /metrics HTTP/1.1\r\nhost: h\r\n\r\n").await;
    let told = String::from_utf8(admin.response().await.body).unwrap();
    let none = told.lines().find(|line| {
        line.starts_with("queuescope_attempts_total{") && line.contains("worker=\"w\"")
    });
    assert!(none.is_some_and(|line| line.ends_with("} 0")), "{none:?}");
    let mut kept = Client::connect(hop).await;
    assert_eq!(is(&mut kept).await, (1, false));
    // Another server behind the same hop: a connection that is kept goes there with its next request.
    file.write(&keys, &[("w", "127.0.0.1:0", two.addr)]);
    assert!(reloaded(&process).contains("reloaded: changed workers; worker w to"));
    assert_eq!(is(&mut kept).await, (2, false));
    // Gone: no new connections, and those that are kept close with their next response.
    file.write(&keys, &[]);
    assert!(reloaded(&process).contains("reloaded: changed workers; worker w gone"));
    until("the listener closes", || {
        std::net::TcpStream::connect(hop).is_err()
    })
    .await;
    assert_eq!(is(&mut kept).await, (2, true));
    assert!(kept.is_closed().await);
    assert_eq!(process.ready().await, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renamed_worker_keeps_its_socket() {
    let server = Upstream::ok().await;
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = free.local_addr().unwrap().to_string();
    drop(free);
    let file = File::new();
    file.write(&upstream(&[server.addr]), &[("old", &listen, server.addr)]);
    let process = file.start();
    file.write(&upstream(&[server.addr]), &[("new", &listen, server.addr)]);
    let said = reloaded(&process);
    assert_says(&said, "worker new on");
    assert_says(&said, "worker old gone");
    let addr: SocketAddr = listen.parse().unwrap();
    let mut client = Client::connect(addr).await;
    assert_eq!(client.ask("/generate", "", b"{}").await.status(), 200);
    let everywhere = format!("0.0.0.0:{}", addr.port());
    file.write(
        &upstream(&[server.addr]),
        &[("new", &everywhere, server.addr)],
    );
    assert_says(&reloaded(&process), "only by a stop and a start");
    // Nor can another worker have it, also where the system chose the port.
    let (new, free) = (
        ("new", &*listen, server.addr),
        ("free", "127.0.0.1:0", server.addr),
    );
    file.write(&upstream(&[server.addr]), &[new, free]);
    let taken = address_in(&reloaded(&process)).to_string();
    let third = ("third", &*taken, server.addr);
    file.write(&upstream(&[server.addr]), &[new, free, third]);
    let said = reloaded(&process);
    assert_says(&said, &format!("worker third: listen = \"{taken}\": "));
    assert_says(
        &said,
        &format!("`worker free: listen` of this proxy has {taken}; give each its own"),
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_that_is_refused_changes_nothing() {
    let one = Upstream::always(json_response("{\"is\":1}")).await;
    let two = Upstream::always(json_response("{\"is\":2}")).await;
    let file = File::new();
    let good = upstream(&[one.addr]);
    file.write(&good, &[]);
    let process = file.start();
    let other = upstream(&[two.addr]);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let free = ("w", "127.0.0.1:0", two.addr);
    let threads = format!("{other}\nthreads = 3\nrecord_queue = 7");
    let limit = format!("{other}\nupstream_read_timeout_s = -1");
    let unknown = format!("{other}\nupstraem_kind = 1");
    for (keys, worker, why) in [
        (
            &other,
            ("v", "nowhere", two.addr),
            "line 9: listen = \"nowhere\": not an address",
        ),
        (
            &other,
            ("v", taken.as_str(), two.addr),
            "is another process there?",
        ),
        (&threads, free, "threads, record_queue: needs a restart"),
        (&limit, free, "upstream_read_timeout_s = -1: must be"),
        (&unknown, free, "did you mean `upstream_kind`?"),
        // A front does not go.
        (&String::new(), free, "upstream: needs a restart"),
    ] {
        file.write(keys, &[free, worker][usize::from(worker == free)..]);
        let said = reloaded(&process);
        assert!(said.contains("refused") && said.contains(why), "{said}");
        let mut client = Client::connect(process.front).await;
        assert_eq!(
            client.ask("/generate", "", b"{}").await.json()["is"],
            1,
            "{why}"
        );
    }
    // A line a fault, each time that it is asked.
    file.write(&format!("{other}\nthreads = 0\nname = \"w0\""), &[]);
    for _ in 0..6 {
        process.signal(Signal::SIGHUP);
        for told in [
            "threads = 0: must be from 1 to 1024",
            "name: belongs under `[[worker]]`",
        ] {
            assert_says(&process.says("reload refused, nothing has changed: "), told);
        }
    }
    let refused = process
        .metric("queuescope_reloads_total{result=\"refused\"}")
        .await;
    assert_eq!(refused, 6 + 6);
    assert!(two.seen().is_empty());
    // The flags of the command line stand over the file, then as now: it listens where it did.
    file.write(&format!("{other}\nlisten = \"127.0.0.1:1\""), &[]);
    assert!(reloaded(&process).contains("reloaded: changed upstream; listen to"));
}

#[tokio::test]
async fn a_front_does_not_come_by_a_reload() {
    let server = Upstream::ok().await;
    let mut with_front = Config::default();
    let hops = Front::with(&[], |config| {
        config.workers = vec![worker("w", "127.0.0.1:0", server.addr)];
        with_front = config.clone();
    })
    .await;
    with_front.upstream = config(&[server.addr]).upstream;
    let refused = hops.proxy.reload(with_front).await.unwrap_err().concat();
    assert_says(&refused, "upstream: needs a restart");
}

#[tokio::test]
async fn limits_are_those_of_the_last_reload() {
    let upstream = Upstream::start(|_, request| {
        if request.body.ends_with(b"1}") {
            return vec![Step::Silence];
        }
        vec![Step::Send(json_response("{}"))]
    })
    .await;
    let front = Front::start(upstream.addr).await;
    let mut client = front.client().await;
    let mut new = Config {
        records: Some(front.records()),
        ..config(&[upstream.addr])
    };
    new.rules.upstream_read_timeout_s = 1.0.try_into().unwrap();
    let said = front.proxy.reload(new.clone()).await.unwrap();
    assert_eq!(said, "changed upstream_read_timeout_s");
    let said = front.proxy.reload(new.clone()).await.unwrap();
    assert_eq!(said, "every key is as before");
    assert_eq!(
        client.ask("/generate", "", b"{\"x\":1}").await.status(),
        504
    );
    // The limit on draining too: the request that is stuck does not hold up the end for a minute.
    new.rules.upstream_read_timeout_s = 3600.0.try_into().unwrap();
    new.drain_timeout_s = 0.05.try_into().unwrap();
    front.proxy.reload(new).await.unwrap();
    let _client = front.asked("/generate", "", b"{\"x\":1}").await;
    until("the request", || front.proxy.metrics().in_flight() == 1).await;
    let drained = tokio::time::timeout(Duration::from_secs(20), front.proxy.drain()).await;
    assert!(drained.is_ok());
}

/// Status, and whether there were stamps, of a request of 50 bytes to a front under TLS.
async fn asked(front: &Front, trusts: &tls::Der, token: &str) -> (u16, bool) {
    let mut client = tls::connect(front.addr(), trusts).await;
    let extra =
        format!("x-queuescope-stamps: 1\r\nx-queuescope-token: the {token} token of mine\r\n");
    let response = client.ask("/generate", &extra, &[b' '; 50]).await;
    let has_stamps = response.header("x-queuescope-stamps").is_some();
    (response.status(), has_stamps)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_takes_all_on_or_nothing_of_what_one_file_changes() {
    let one = Upstream::ok().await;
    let certificate = Certificate::new();
    let mut old = config(&[one.addr]);
    let front = Front::with(&[one.addr], |config| {
        certificate.put(config);
        config.fault_injection = true;
        config.stamps = StampsPolicy::Token;
        config.stamps_token = Some("the old token of mine".into());
        config.workers = vec![worker("w", "127.0.0.1:0", one.addr)];
        old = config.clone();
    })
    .await;
    let admin = front.proxy.address("admin").unwrap();
    let faults = async || get(admin, "/faults").await.text();
    let ok = |has_stamps| (200, has_stamps);
    let before = &certificate.der;
    assert_eq!(asked(&front, before, "old").await, ok(true));
    let holds = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = holds.local_addr().unwrap();
    let mut new = Config {
        stamps: StampsPolicy::Loopback,
        stamps_token: Some("the new token of mine".into()),
        workers: vec![
            worker("v", "127.0.0.1:0", one.addr),
            worker("u", taken, one.addr),
        ],
        ..old.clone()
    };
    new.limits.request_body_max_bytes = 49.try_into().unwrap();
    let after = &tls::write(certificate.folder.path());
    let refused = front.proxy.reload(new.clone()).await.unwrap_err();
    assert!(refused[0].contains("worker u: listen"), "{refused:?}");
    assert!(tls::try_connect(front.addr(), after).await.is_err());
    assert_eq!(asked(&front, before, "old").await, ok(true));
    assert_eq!(asked(&front, before, "new").await, ok(false));
    assert_eq!(faults().await, "{\"workers\":{\"w\":null}}\n");
    // The same without the one thing that was wrong.
    new.workers.pop();
    front.proxy.reload(new.clone()).await.unwrap();
    assert!(tls::try_connect(front.addr(), before).await.is_err());
    assert_eq!(asked(&front, after, "").await, (413, true));
    assert_eq!(faults().await, "{\"workers\":{\"v\":null}}\n");
    let said = front.proxy.reload(new.clone()).await.unwrap();
    assert_eq!(said, "certificate read again");
    // A token alone.
    new.stamps = StampsPolicy::Token;
    new.limits.request_body_max_bytes = 50.try_into().unwrap();
    front.proxy.reload(new.clone()).await.unwrap();
    assert_eq!(asked(&front, after, "new").await, ok(true));
    new.stamps_token = Some("the newer token of mine".into());
    front.proxy.reload(new.clone()).await.unwrap();
    assert_eq!(asked(&front, after, "new").await, ok(false));
    assert_eq!(asked(&front, after, "newer").await, ok(true));
    // A key of another certificate.
    new.limits.request_body_max_bytes = 49.try_into().unwrap();
    std::fs::write(
        certificate.key(),
        rcgen::KeyPair::generate().unwrap().serialize_pem(),
    )
    .unwrap();
    let wrong = front.proxy.reload(new).await.unwrap_err().concat();
    assert_says(&wrong, "the key is not that of the certificate");
    assert_eq!(asked(&front, after, "newer").await, ok(true));
}
