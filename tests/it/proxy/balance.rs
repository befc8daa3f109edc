//! Several upstreams: who gets a request, who is left out, and what is sent again.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use queuescope::clock::Clock;
use queuescope::sim::config::Config as SimConfig;
use queuescope::sim::server::Sim;
use tokio::net::TcpSocket;
use tokio::task::JoinSet;

use crate::support::assert_says;
use crate::support::process::Process;
use crate::support::proxy::{Front, Row, assert_outcome};
use crate::support::upstream::{Gate, Step, Upstream, refusing};
use crate::support::wire::{Client, chunk, stream_head, until};

async fn front(upstream: &[SocketAddr], policy: &str, keys: &str) -> Front {
    let keys = format!("policy = \"{policy}\"\nupstream_kind = \"server\"\n{keys}");
    Front::keyed(upstream, &keys).await
}

/// The value of an upstream's metric.
fn metric(front: &Front, name: &str, upstream: SocketAddr) -> u64 {
    front.counter(&format!(
        "queuescope_upstream_{name}{{upstream=\"{upstream}\"}} "
    ))
}

/// A server that answers when the gate is open.
async fn gated(gate: &Gate) -> Upstream {
    let gate = gate.clone();
    Upstream::start(move |_, _| vec![Step::Gate(gate.clone()), Step::ok()]).await
}

/// A client with a request under way.
async fn asking(front: &Front) -> Client {
    front.asked("/generate", "", b"{}").await
}

fn sim(port: u16) -> Sim {
    let config = SimConfig {
        port,
        ..SimConfig::default()
    };
    Sim::start(config, Clock::system()).unwrap()
}

/// The ids of the requests that a server's own log has.
fn ids(sim: &Sim) -> BTreeSet<String> {
    let served = sim.served().into_iter();
    served.filter_map(|served| served.x_request_id).collect()
}

/// Sends `requests` from eight clients, each on one connection until that closes; `at` is called with the
/// number of each before it is sent.
async fn crowd(front: SocketAddr, requests: usize, at: impl Fn(usize) + Clone + Send + 'static) {
    let sent = Arc::new(AtomicUsize::new(0));
    let mut clients = JoinSet::new();
    for _ in 0..8 {
        let (sent, at) = (sent.clone(), at.clone());
        clients.spawn(async move {
            let mut client = Client::connect(front).await;
            loop {
                let number = sent.fetch_add(1, Ordering::Relaxed);
                if number >= requests {
                    return;
                }
                at(number);
                let body = br#"{"text":"one two","sampling_params":{"max_new_tokens":4}}"#;
                let response = client.ask("/generate", "", body).await;
                if !response.whole || response.header("connection").as_deref() == Some("close") {
                    client = Client::connect(front).await;
                }
            }
        });
    }
    while let Some(done) = clients.join_next().await {
        done.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn turns_are_even_and_hosts_are_those_of_the_servers_logs() {
    let sims = [sim(0), sim(0), sim(0)];
    let addrs: Vec<SocketAddr> = sims.iter().map(Sim::addr).collect();
    let front = front(&addrs, "round_robin", "").await;
    crowd(front.addr(), 300, |_| {}).await;
    let rows = front.rows().await;
    assert_eq!(rows.len(), 300);
    for sim in &sims {
        let served = ids(sim);
        assert_eq!(served.len(), 100);
        let host = sim.addr().to_string();
        let is_its = |row: &&Row| row["host"] == host && !row["router_send_time"].is_empty();
        let rows = rows.iter().filter(is_its);
        let named: BTreeSet<String> = rows.map(|row| row["req_id"].clone()).collect();
        assert_eq!(named, served);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_shortest_queue_gets_the_next_request() {
    for policy in ["shortest_queue", "power_of_two"] {
        let gates = [Gate::new(), Gate::new()];
        let servers = [gated(&gates[0]).await, gated(&gates[1]).await];
        let addrs = servers.each_ref().map(|server| server.addr);
        let front = front(&addrs, policy, "").await;
        let mut clients = Vec::new();
        for _ in 0..10 {
            clients.push(asking(&front).await);
        }
        let seen = |n: usize| servers[n].seen().len();
        until("all ten", || seen(0) + seen(1) == 10).await;
        assert_eq!((seen(0), seen(1)), (5, 5), "{policy}");
        assert!(
            addrs
                .iter()
                .all(|addr| metric(&front, "in_flight", *addr) == 5)
        );
        // The first server gives back its five: the next four are all its.
        gates[0].open();
        until("the answers", || metric(&front, "in_flight", addrs[0]) == 0).await;
        for _ in 0..4 {
            let mut client = asking(&front).await;
            assert_eq!(client.response().await.status(), 200);
        }
        assert_eq!((seen(0), seen(1)), (9, 5));
        gates[1].open();
        for client in &mut clients {
            assert_eq!(client.response().await.status(), 200);
        }
        until("none left", || metric(&front, "in_flight", addrs[1]) == 0).await;
        assert_eq!(front.rows().await.len(), 14);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn beyond_the_limit_requests_wait_in_the_front_in_order() {
    let gate = Gate::new();
    let held = gate.clone();
    let server = Upstream::start(move |_, seen| match seen.header("x-do").as_deref() {
        Some("wait") => vec![Step::Gate(held.clone()), Step::ok()],
        _ => vec![Step::ok()],
    })
    .await;
    let front = front(&[server.addr], "round_robin", "max_concurrent_requests = 1").await;
    let in_flight = |count: i64| front.proxy.metrics().in_flight() == count;
    let mut clients = Vec::new();
    for (id, count) in ["a", "b", "c", "d", "e"].into_iter().zip(1..) {
        let header = format!("x-do: wait\r\nx-request-id: {id}\r\n");
        clients.push(front.asked("/generate", &header, b"{}").await);
        until("it came", || in_flight(count)).await;
    }
    until("one is sent on", || server.seen().len() == 1).await;
    // What generates nothing waits for nobody; a client that leaves is not waited for.
    assert_eq!(front.ask("/tokenize", "", b"{}").await.status(), 200);
    drop(clients.remove(2));
    until("it left", || in_flight(4)).await;
    // Those that are held back are in the router queue as the metrics count it.
    let waiting = "queuescope_in_flight{phase=\"waiting\"}";
    front.counts(waiting, 4).await;
    // The wait is no time of the proxy's own.
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    assert_eq!(server.seen().len(), 2);
    gate.open();
    for client in &mut clients {
        assert_eq!(client.response().await.status(), 200);
    }
    let seen = server.seen();
    let waited = seen.iter().filter(|seen| seen.header("x-do").is_some());
    let ids: Vec<String> = waited
        .filter_map(|seen| seen.header("x-request-id"))
        .collect();
    assert_eq!(ids, ["a", "b", "d", "e"]);
    let rows = front.rows().await;
    let row = |id: &str| rows.iter().find(|row| row["req_id"] == id).unwrap();
    assert_outcome(row("c"), "client_abort", "");
    assert_eq!(row("c")["router_send_time"], "");
    let seconds = |id: &str, column: &str| row(id)[column].parse::<f64>().unwrap();
    for id in ["b", "d", "e"] {
        let waited = seconds(id, "queue_time_in_router");
        assert!(
            waited > 0.2 && seconds(id, "overhead") < waited,
            "{:?}",
            row(id)
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_for_too_long_in_the_front_is_refused() {
    let gate = Gate::new();
    let server = gated(&gate).await;
    let front = front(
        &[server.addr],
        "round_robin",
        "max_concurrent_requests = 1\nqueue_timeout_s = 0.05",
    )
    .await;
    let mut first = asking(&front).await;
    until("it is sent on", || server.seen().len() == 1).await;
    let mut second = front
        .asked("/generate", "x-request-id: second\r\n", b"{}")
        .await;
    let refused = second.response().await;
    assert_eq!(refused.status(), 503);
    assert_eq!(refused.header("retry-after").unwrap(), "1");
    gate.open();
    assert_eq!(first.response().await.status(), 200);
    assert_eq!(server.seen().len(), 1);
    let rows = front.rows().await;
    let row = rows.iter().find(|row| row["req_id"] == "second").unwrap();
    assert_outcome(row, "rejected", "503 the request waited for too long");
    assert_eq!(row["router_send_time"], "");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_ends_a_request_it_is_in_flight_no_more() {
    let never = Gate::new();
    let server = {
        let never = never.clone();
        Upstream::start(move |_, seen| match seen.header("x-do").as_deref() {
            Some("wait") => vec![Step::Gate(never.clone())],
            Some("reset") => vec![Step::Reset],
            Some("cut") => vec![Step::Send(stream_head()), Step::Reset],
            _ => vec![Step::ok()],
        })
        .await
    };
    let refusing = refusing().await;
    let addrs = [server.addr, refusing];
    let front = front(&addrs, "round_robin", "").await;
    for what in ["reset", "cut", "answer"] {
        let mut client = front.client().await;
        let header = format!("x-do: {what}\r\n");
        // A path that is not recorded counts too.
        client.ask("/generate", &header, b"{}").await;
        front.ask("/tokenize", &header, b"{}").await;
    }
    let leaving = front.asked("/generate", "x-do: wait\r\n", b"{}").await;
    until("it waits", || metric(&front, "in_flight", server.addr) == 1).await;
    drop(leaving);
    for addr in addrs {
        until("nothing in flight", || {
            metric(&front, "in_flight", addr) == 0
        })
        .await;
    }
    assert_eq!(front.rows().await.len(), 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_refuses_is_left_out_and_comes_back() {
    let healthy = Upstream::ok().await;
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let away = socket.local_addr().unwrap();
    let front = front(
        &[away, healthy.addr],
        "round_robin",
        "upstream_out_s = 0.05",
    )
    .await;
    let ask = async |times: usize| {
        let mut client = front.client().await;
        for _ in 0..times {
            let body = [b' '; 100_000];
            assert_eq!(client.ask("/generate", "", &body).await.status(), 200);
        }
    };
    ask(40).await;
    assert_eq!(healthy.seen().len(), 40);
    assert!(healthy.seen().iter().all(|seen| seen.body.len() == 100_000));
    assert_eq!(
        metric(&front, "connect_failures_total", away),
        1,
        "one for all 40"
    );
    assert_eq!(metric(&front, "healthy", away), 0);
    assert_eq!(metric(&front, "healthy", healthy.addr), 1);
    let answer = |_: usize, _: &_| vec![Step::ok()];
    let back = Upstream::on(socket.listen(64).unwrap(), answer);
    until("the probe", || metric(&front, "healthy", away) == 1).await;
    ask(40).await;
    assert_eq!((back.seen().len(), healthy.seen().len()), (20, 60));
    assert_eq!(metric(&front, "connect_failures_total", away), 1);
    let rows = front.rows().await;
    assert!(
        rows.iter()
            .all(|row| row["outcome"] == "ok" && row["attempts"] == "1")
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_all_are_out_they_are_tried_all_the_same() {
    let sockets = [(); 2].map(|()| TcpSocket::new_v4().unwrap());
    let addrs = sockets.each_ref().map(|socket| {
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        socket.local_addr().unwrap()
    });
    let front = front(&addrs, "shortest_queue", "upstream_out_s = 3600.0").await;
    for failures in 1..=3 {
        let mut client = asking(&front).await;
        assert_eq!(client.response().await.status(), 502);
        for addr in addrs {
            assert_eq!(metric(&front, "connect_failures_total", addr), failures);
            assert_eq!(metric(&front, "healthy", addr), 0);
        }
    }
    // The first request that one takes brings it back, an hour before the probe.
    let [first, _second] = sockets;
    let answer = |_: usize, _: &_| vec![Step::ok()];
    let _back = Upstream::on(first.listen(64).unwrap(), answer);
    let mut client = asking(&front).await;
    assert_eq!(client.response().await.status(), 200);
    assert_eq!(metric(&front, "healthy", addrs[0]), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_goes_away_costs_only_what_it_had() {
    // Holds the port while nobody listens there.
    let hold = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    hold.set_reuse_address(true).unwrap();
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    hold.bind(&any.into()).unwrap();
    let going = hold.local_addr().unwrap().as_socket().unwrap();
    let staying = sim(0);
    let gone = Arc::new(sim(going.port()));
    let front = front(
        &[staying.addr(), going],
        "shortest_queue",
        "upstream_out_s = 0.02",
    )
    .await;
    let leaving = gone.clone();
    let addr = front.addr();
    crowd(addr, 200, move |n| {
        if n == 100 {
            leaving.shutdown();
        }
    })
    .await;
    assert_eq!(metric(&front, "healthy", going), 0);
    let back = sim(going.port());
    until("it is back", || metric(&front, "healthy", going) == 1).await;
    crowd(addr, 100, |_| {}).await;
    let rows = front.rows().await;
    assert_eq!(rows.len(), 300);
    let served = [
        (staying.addr(), ids(&staying)),
        (going, &ids(&gone) | &ids(&back)),
    ];
    let served: BTreeMap<String, BTreeSet<String>> = served
        .into_iter()
        .map(|(addr, ids)| (addr.to_string(), ids))
        .collect();
    let is_ok = |row: &&Row| row["outcome"] == "ok";
    for row in rows.iter().filter(is_ok) {
        assert!(served[&row["host"]].contains(&row["req_id"]), "{row:?}");
    }
    // No more than one for each of the eight connections that it had.
    let failed: Vec<&Row> = rows.iter().filter(|row| !is_ok(row)).collect();
    assert!(failed.len() <= 8, "{} failed", failed.len());
    for row in failed {
        assert_outcome(row, "upstream_died", &going.to_string());
    }
    assert!(
        ids(&back).len() >= 10,
        "{} after its return",
        ids(&back).len()
    );
}

/// One request to a server that does these, and then to one that answers: status, what the second saw, the row.
async fn resent(steps: Vec<Step>, body: &[u8], keys: &str) -> (u16, Vec<Vec<u8>>, Row) {
    let breaking = Upstream::start(move |_, _| steps.clone()).await;
    let healthy = Upstream::ok().await;
    let front = front(&[breaking.addr, healthy.addr], "round_robin", keys).await;
    let response = front.ask("/generate", "", body).await;
    let seen = healthy.seen().into_iter().map(|seen| seen.body).collect();
    let row = front.only_row().await;
    if response.status() == 200 && response.whole {
        assert_eq!(row["host"], healthy.addr.to_string());
    }
    (response.status(), seen, row)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_request_is_sent_again_only_where_that_is_asked_for() {
    for steps in [vec![Step::Reset], vec![Step::Close]] {
        let (status, seen, row) = resent(steps.clone(), b"{}", "").await;
        assert_eq!((status, seen.len()), (502, 0));
        assert_outcome(&row, "upstream_died", "");
        let body = vec![b' '; 60_000];
        let asked = "resend_broken = true";
        let (status, seen, row) = resent(steps.clone(), &body, asked).await;
        assert_eq!((status, seen), (200, vec![body]));
        assert_outcome(&row, "ok", "");
        assert_eq!(row["attempts"], "2");
        // More than Pingora keeps.
        let (status, seen, row) = resent(steps, &[b' '; 70_000], asked).await;
        assert_eq!((status, seen.len()), (502, 0));
        assert_outcome(&row, "upstream_died", "");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_sent_again_after_the_first_byte_of_an_answer() {
    let begun = [stream_head(), chunk("data: {}\n\n")].concat();
    let went_on = b"HTTP/1.1 100 Continue\r\n\r\n".to_vec();
    for first in [begun, stream_head(), went_on] {
        let steps = vec![Step::Send(first), Step::Close];
        let (_, seen, row) = resent(steps, b"{}", "resend_broken = true").await;
        assert!(seen.is_empty());
        assert_outcome(&row, "upstream_died", "");
        assert_eq!(row["attempts"], "1");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_get_over_a_connection_that_was_closing_is_sent_again_and_a_post_is_not() {
    for (method, status, attempts) in [("GET", 200, 3), ("POST", 502, 2)] {
        let server = Upstream::start(|n, _| match n {
            1 => vec![Step::Close],
            _ => vec![Step::ok()],
        })
        .await;
        let front = Front::start(server.addr).await;
        let mut client = front.client().await;
        let request = format!("{method} /health HTTP/1.1\r\nhost: h\r\ncontent-length: 0\r\n\r\n");
        client.send(&request).await;
        assert_eq!(client.response().await.status(), 200);
        client.send(&request).await;
        assert_eq!(client.response().await.status(), status, "{method}");
        assert_eq!(server.seen().len(), attempts, "{method}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_says_who_is_left_out_and_who_is_back() {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let away = socket.local_addr().unwrap();
    let folder = Arc::new(tempfile::tempdir().unwrap());
    let file = folder.path().join("c.toml");
    let config = format!("[proxy]\nupstream = [\"{away}\"]\nupstream_out_s = 0.05\n");
    std::fs::write(&file, config).unwrap();
    let process = Process::in_folder(folder, &["--config", file.to_str().unwrap()]);
    let mut client = Client::connect(process.front).await;
    assert_eq!(client.ask("/generate", "", b"{}").await.status(), 502);
    let said = process.says("left out");
    assert_says(&said, &format!("upstream {away}"));
    assert_says(&said, "WARN");
    let _listens = socket.listen(64).unwrap();
    let said = process.says("is back");
    assert_says(&said, &format!("upstream {away}"));
    assert_says(&said, "INFO");
}
