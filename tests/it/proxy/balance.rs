//! Several upstreams: who gets a request, who is left out, and what is sent again.

use super::*;

/// The value of an upstream's metric.
fn figure(front: &Front, name: &str, upstream: SocketAddr) -> u64 {
    front.counter(&format!(
        "queuescope_upstream_{name}{{upstream=\"{upstream}\"}} "
    ))
}

/// A server that answers at once, on this socket.
fn listens(socket: TcpSocket) -> Upstream {
    Upstream::on(socket.listen(64).unwrap(), |_, _| vec![Step::ok()])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_shortest_queue_gets_the_next_request() {
    for policy in ["shortest_queue", "power_of_two"] {
        let gates = [Gate::new(), Gate::new()];
        let servers = [gated(&gates[0]).await, gated(&gates[1]).await];
        let addrs = servers.each_ref().map(|server| server.addr);
        let front = Front::balancing(&addrs, policy, "").await;
        let mut clients = Vec::new();
        for _ in 0..10 {
            let body = b"{\"stream\":true}";
            clients.push(front.asked("/generate", "", body).await);
        }
        let seen = || servers.each_ref().map(|server| server.seen().len());
        until("all ten", || seen().iter().sum::<usize>() == 10).await;
        assert_eq!(seen(), [5, 5], "{policy}");
        assert_eq!(addrs.map(|addr| figure(&front, "in_flight", addr)), [5, 5]);
        // The first server gives back its five: the next four are all its.
        gates[0].open();
        until("the answers", || figure(&front, "in_flight", addrs[0]) == 0).await;
        for _ in 0..4 {
            assert_eq!(front.ask("/generate", "", b"{}").await.status(), 200);
        }
        assert_eq!(seen(), [9, 5], "{policy}");
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
    let front =
        Front::balancing(&[server.addr], "round_robin", "max_concurrent_requests = 1").await;
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
    let mut http2 = Http2::connect(front.addr()).await;
    let stream = http2.post("/generate", b"{}").await;
    until("it came", || in_flight(6)).await;
    stream.reset();
    drop(clients.remove(2));
    until("both left", || in_flight(4)).await;
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
    let mut seen = server.seen();
    seen.retain(|seen| seen.header("x-do").is_some());
    let ids = seen.iter().map(|seen| seen.header("x-request-id").unwrap());
    assert_eq!(ids.collect::<Vec<_>>(), ["a", "b", "d", "e"]);
    let rows = front.rows().await;
    let row = |id: &str| rows.iter().find(|row| row["req_id"] == id).unwrap();
    assert_row(row("c"), "outcome=client_abort, router_send_time=");
    for row in ["b", "d", "e"].map(row) {
        let waited = number(row, "queue_time_in_router");
        assert!(waited > 0.2 && number(row, "overhead") < waited, "{row:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_for_too_long_in_the_front_is_refused() {
    let server = Upstream::playing(vec![Step::Silence]).await;
    let keys = "max_concurrent_requests = 1\nqueue_timeout_s = 0.05";
    let front = Front::balancing(&[server.addr], "round_robin", keys).await;
    let _first = front.asked("/generate", "", b"{}").await;
    until("it is sent on", || server.seen().len() == 1).await;
    let refused = front.ask("/generate", "", b"{}").await;
    assert_eq!(refused.status(), 503);
    assert_eq!(refused.header("retry-after").unwrap(), "1");
    let row = front.first_row().await;
    assert_outcome(&row, "rejected", "503 the request waited for too long");
    assert_cells(&row, [("router_send_time", "")]);
    assert_eq!(server.seen().len(), 1);
}

/// However long they waited in the front's queue: that is no silence of a server, nor a slow body of a client.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_queued_has_all_the_time_of_a_server_and_of_a_body() {
    let case = async |limit: &str, length: usize| {
        let server = Upstream::start(|turn, _| {
            let event = [
                Step::Send(chunk(EVENT)),
                Step::Pause(Duration::from_millis(100)),
            ];
            match turn {
                0 => [
                    vec![Step::Send(stream_head())],
                    vec![event; 8].concat(),
                    done(),
                ]
                .concat(),
                _ => vec![Step::ok()],
            }
        });
        let server = server.await;
        let keys = format!("max_concurrent_requests = 1\n{limit} = 0.5");
        let front = Front::keyed(&[server.addr], &keys).await;
        let mut first = front.asked("/generate", "", b"{\"stream\":true}").await;
        until("it is sent on", || server.seen().len() == 1).await;
        let response = front.ask("/generate", "", &vec![b' '; length]).await;
        assert_eq!(response.status(), 200, "{limit}: {response:?}");
        assert!(first.response().await.whole);
        front.all_end(2, "ok", "").await;
    };
    tokio::join!(
        case("upstream_read_timeout_s", 2),
        case("client_body_timeout_s", 600_000)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_all_refuse_each_is_tried_again_and_the_client_gets_a_502() {
    let (sockets, addrs): (Vec<_>, Vec<_>) = [(); 2].map(|()| refusing_yet()).into_iter().unzip();
    let front = Front::balancing(&addrs, "round_robin", "upstream_out_s = 3600.0").await;
    for failures in 1..=3 {
        let id = format!("x-request-id: {failures}\r\n");
        let response = front.ask("/v1/chat/completions", &id, b"{}").await;
        assert_eq!(response.status(), 502);
        assert_eq!(response.header("content-type").unwrap(), "application/json");
        assert_says(&response.head, &id);
        let error = &response.json()["error"];
        assert_eq!(error["param"], Value::Null);
        assert_says(error["message"].as_str().unwrap(), "refused");
        for addr in &addrs {
            assert_eq!(figure(&front, "connect_failures_total", *addr), failures);
            assert_eq!(figure(&front, "healthy", *addr), 0);
        }
    }
    front.counts("queuescope_upstream_in_flight", 0).await;
    // The first request that one takes brings it back, an hour before the probe.
    let _back = sockets.into_iter().map(listens).next();
    assert_eq!(front.ask("/generate", "", b"{}").await.status(), 200);
    assert_eq!(figure(&front, "healthy", addrs[0]), 1);
    let rows = front.rows().await;
    for row in &rows[..3] {
        assert_outcome(row, "proxy_error", "connection refused");
        let cells = "status=502, ended_in=network, forwarded_time=, finish_time=, attempts=2";
        assert_row(row, cells);
        // The request's own is its last.
        let [one, other] = [addrs[0], addrs[1]].map(|addr| addr.to_string());
        let before = if row["host"] == one { other } else { one };
        let failed = format!("{before} proxy_error after 0.");
        assert!(row["failed_attempts"].starts_with(&failed), "{row:?}");
        assert_eq!(row["failed_attempts"].matches("proxy_error").count(), 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_goes_away_costs_only_what_it_had_and_comes_back() {
    let socket = |addr: SocketAddr| {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_reuseaddr(true).unwrap();
        socket.bind(addr).unwrap();
        socket
    };
    // Holds the port while nobody listens there.
    let hold = socket("127.0.0.1:0".parse().unwrap());
    let addr = hold.local_addr().unwrap();
    let serve = |_: usize, seen: &Seen| match seen.body.ends_with(b"true}") {
        true => [begun(), vec![Step::Silence]].concat(),
        false => vec![Step::ok()],
    };
    let going = Upstream::on(socket(addr).listen(64).unwrap(), serve);
    let staying = Upstream::ok().await;
    let both = [addr, staying.addr];
    let front = Front::balancing(&both, "round_robin", "upstream_out_s = 0.02").await;
    let ask = async |times: usize| {
        let mut client = front.client().await;
        for _ in 0..times {
            let body = [b' '; 100_000];
            assert_eq!(client.ask("/generate", "", &body).await.status(), 200);
        }
    };
    let mut streams = [front.client().await, front.client().await];
    for stream in &mut streams {
        stream.begin_stream().await;
        ask(1).await;
    }
    // One that waits for its next request is no loss.
    ask(4).await;
    assert_eq!(going.seen().len(), 4);
    drop(going);
    for stream in &mut streams {
        assert!(!stream.read_to_close().await.ends_with(b"\r\n0\r\n\r\n"));
    }
    // Also the connection that waits: one that closes only now could be taken yet.
    let port = format!(" 0100007F:{:04X} ", addr.port());
    let is_open = |line: &str| line.contains(&port) && line.contains(" 01 ");
    let sockets = || std::fs::read_to_string("/proc/net/tcp").unwrap();
    until("all to be closed", || !sockets().lines().any(is_open)).await;
    ask(10).await;
    let failures = || figure(&front, "connect_failures_total", addr);
    assert_eq!(failures(), 1, "one for all ten");
    assert_eq!(both.map(|addr| figure(&front, "healthy", addr)), [0, 1]);
    let back = Upstream::on(socket(addr).listen(64).unwrap(), serve);
    until("the probe", || figure(&front, "healthy", addr) == 1).await;
    ask(10).await;
    assert_eq!((back.seen().len(), failures()), (5, 1));
    let rows = front.rows().await;
    let (ok, failed): (Vec<&Row>, Vec<_>) = rows.iter().partition(|row| row["outcome"] == "ok");
    assert_eq!((ok.len(), failed.len()), (26, 2));
    for row in failed {
        assert_outcome(row, "upstream_died", &addr.to_string());
    }
    // One server refused it, the other answered.
    let (twice, once): (Vec<&Row>, Vec<_>) = ok.iter().partition(|row| row["attempts"] == "2");
    assert_eq!(twice.len(), 1);
    let refused = format!("{addr} proxy_error after 0.");
    assert_says(&twice[0]["failed_attempts"], &refused);
    once.iter()
        .for_each(|row| assert_row(row, "attempts=1, failed_attempts="));
    for server in [&back, &staying] {
        let whole = server
            .seen()
            .into_iter()
            .filter(|seen| seen.body.len() == 100_000);
        for id in whole.map(|seen| seen.header("x-request-id").unwrap()) {
            let row = rows.iter().find(|row| row["req_id"] == id).unwrap();
            assert_eq!(row["host"], server.addr.to_string());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_get_gets_past_all_connections_that_were_closing_and_what_may_have_run_is_not_sent_again()
{
    let gate = Gate::new();
    let first = gate.clone();
    // Three at once, so that three connections are kept; each of these closes at its next request, as the last does then.
    let server = Upstream::start(move |n, _: &_| match n {
        0..3 => vec![Step::Gate(first.clone()), Step::ok()],
        6 | 8 => vec![Step::ok()],
        9 => vec![
            Step::Send(b"HTTP/1.1 103 Early Hints\r\n\r\n".to_vec()),
            Step::Close,
        ],
        _ => vec![Step::Close],
    });
    let server = server.await;
    let front = Front::start(server.addr).await;
    let get = "GET /health HTTP/1.1\r\nhost: h\r\ncontent-length: 0\r\n\r\n";
    let clients = [(); 3].map(|()| front.sent(get));
    let mut clients = futures_util::future::join_all(clients).await;
    until("all are there", || server.seen().len() == 3).await;
    gate.open();
    for client in &mut clients {
        assert_eq!(client.response().await.status(), 200);
    }
    let asks = ["PUT /generate", "GET /health", "POST /health"];
    let told = [(502, 4), (200, 7), (502, 8)];
    for ((client, asks), (status, seen)) in clients.iter_mut().zip(asks).zip(told) {
        client.send(get.replace("GET /health", asks)).await;
        assert_eq!(client.response().await.status(), status, "{asks}");
        assert_eq!(server.seen().len(), seen, "{asks}");
    }
    // One that got an early hint has arrived.
    let get = get.replace("host: h", "host: h\r\nconnection: close");
    for (status, seen) in [("HTTP/1.1 200 ", 9), ("HTTP/1.1 502 ", 10)] {
        let read = front.sent(&get).await.read_to_close().await;
        assert_says(&String::from_utf8_lossy(&read), status);
        assert_eq!(server.seen().len(), seen, "{status}");
    }
    assert_row(&front.only_row().await, "status=502, attempts=1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_says_who_is_left_out_and_who_is_back() {
    let (socket, away) = refusing_yet();
    let process = Process::start(away, &["--upstream-out-s", "0.05"]);
    let mut client = Client::connect(process.front).await;
    assert_eq!(client.ask("/generate", "", b"{}").await.status(), 502);
    let says = |level: &str, words: &str| {
        let said = process.says(words);
        assert_says(&said, &format!("upstream {away}"));
        assert_says(&said, level);
    };
    says("WARN", "left out");
    let _listens = socket.listen(64).unwrap();
    says("INFO", "is back");
}
