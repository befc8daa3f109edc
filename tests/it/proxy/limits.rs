//! Limits: of time, the race between two idle limits, and clients that send too much, too slowly, or take too slowly: none holds things
//! for ever.

use super::leaving::Full;
use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_whose_connection_does_not_come_about_is_a_timeout_too() {
    let (full, answers) = (Full::start().await, Upstream::ok().await);
    let addrs = [full.addr(), answers.addr];
    let front = Front::balancing(&addrs, "round_robin", "upstream_connect_timeout_s = 0.1").await;
    assert_eq!(front.ask("/generate", "", b"{}").await.status(), 200);
    let row = front.only_row().await;
    assert_row(&row, "outcome=ok, attempts=2");
    let failed = format!("{} timeout after 0.", full.addr());
    assert!(row["failed_attempts"].starts_with(&failed), "{row:?}");
}

/// Its span begins with connecting, not with the wait for the turn before it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_does_not_come_about_is_a_504_with_a_span_from_connecting_on() {
    let (full, collector) = (Full::start().await, Collector::start().await);
    let keys = format!(
        "max_concurrent_requests = 1\nupstream_connect_timeout_s = 0.2\n[telemetry.otlp]\nendpoint = \"http://{}\"\nprotocol = \"grpc\"",
        collector.grpc
    );
    let front = Front::keyed(&[full.addr()], &keys).await;
    let mut clients = Vec::new();
    for here in 1..=2 {
        clients.push(front.asked("/generate", "", b"{}").await);
        until("it is here", || front.proxy.metrics().in_flight() == here).await;
    }
    for client in &mut clients {
        assert_eq!(client.response().await.status(), 504);
    }
    for row in front.rows().await {
        assert_outcome(&row, "timeout", "connecting took too long");
        assert_eq!(row["attempts"], "0");
    }
    let mut tries = collector.spans();
    tries.retain(|span| span.kind == CLIENT);
    tries.sort_by_key(|span| span.end);
    assert_eq!(tries.len(), 2);
    assert!(tries[1].start >= tries[0].end, "{tries:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_are_kept_on_both_sides_unless_the_client_says_close() {
    let (upstream, front) = answering("").await;
    for _ in 0..6 {
        let mut client = front.client().await;
        let response = client.ask("/generate", "", b"{}").await;
        assert_eq!(response.header("connection").unwrap(), "keep-alive");
        let closes = "connection: close\r\n";
        let response = client.ask("/generate", closes, b"{}").await;
        assert_eq!(response.header("connection").unwrap(), "close");
        assert!(client.is_closed().await);
    }
    // Those of other clients too.
    let rows = front.rows().await;
    let reused = rows.iter().filter(|row| row["upstream_reused"] == "True");
    assert_eq!((rows.len(), reused.count()), (12, 11));
    assert!(upstream.seen().iter().all(|seen| seen.connection == 0));
}

/// SGLang closes after 5 s of idleness and our default is 4 s: we close first, and what comes at that very moment is
/// sent on a connection that stays. This server never closes, so no request is lost unless we lose it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_upstream_connections_are_closed_by_us_and_cost_no_request() {
    const IDLE: Duration = Duration::from_millis(50);
    let (upstream, front) = answering("upstream_idle_timeout_s = 0.05").await;
    let addr = front.addr();
    // Aimed at the end of the connection that the answer before left behind.
    let asks = |n: u32| async move {
        let mut client = Client::connect(addr).await;
        for _ in 0..4 {
            assert_eq!(client.ask("/generate", "", b"{}").await.status(), 200);
            let later = n * Duration::from_micros(100);
            tokio::time::sleep(IDLE - Duration::from_millis(2) + later).await;
        }
    };
    let clients: tokio::task::JoinSet<()> = (0..60).map(asks).collect();
    clients.join_all().await;
    let connections = || {
        let seen = upstream.seen();
        seen.iter().map(|seen| seen.connection).max().unwrap() + 1
    };
    until("all are closed by us", || upstream.gone() == connections()).await;
    front.all_end(240, "ok", "").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn time_columns_count_from_where_they_are_told() {
    let (_upstream, front) = answering("time_base = \"run\"").await;
    front.ask("/generate", "", b"{}").await;
    let arrival = number(&front.only_row().await, "arrival_time");
    assert!((0.0..1e6).contains(&arrival), "{arrival}");
}

const HEAD: &str = "POST /generate HTTP/1.1\r\nhost: h\r\n";

/// Sends byte after byte, as long as the other side takes them and has not answered.
async fn trickle(client: &mut Client, bytes: &[u8]) {
    for byte in bytes {
        let is_sent = client.stream.write_all(&[*byte]).await.is_ok();
        let mut first = [0];
        let answer = client.stream.peek(&mut first);
        let answer = tokio::time::timeout(Duration::from_millis(10), answer);
        if answer.await.is_ok() || !is_sent {
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_trickled_head_is_a_408_and_no_request() {
    let (upstream, front) = answering("client_head_timeout_s = 0.1").await;
    // On a new connection, and on one that has served.
    for has_served in [false, true] {
        let mut client = front.client().await;
        if has_served {
            assert_eq!(client.ask("/generate", "", b"{}").await.status(), 200);
        }
        let endless = format!("{HEAD}x: {}", "y".repeat(2000));
        trickle(&mut client, endless.as_bytes()).await;
        let response = client.response().await;
        assert_eq!(response.status(), 408);
        assert_eq!(response.json()["error"]["type"], "request_timeout");
        assert_eq!(response.header("connection").unwrap(), "close");
        assert!(client.is_closed().await);
    }
    // Silence within a head.
    let mut client = front.sent(HEAD).await;
    assert_eq!(client.response().await.status(), 408);
    front.counts("queuescope_broken_heads_total ", 3).await;
    assert_eq!(upstream.seen().len(), 1);
    assert_eq!(front.rows().await.len(), 1);
}

/// A key, and what the client is told: of a body that is large, that trickles, that stops.
const BODIES: &str = "\
request_body_max_bytes = 100000 | 413 | client_error | 413 the request body
client_body_timeout_s = 0.1 | 408 | timeout | the client: sent its body too slowly
client_read_timeout_s = 0.1 | 408 | timeout | the client";

/// What a server that says nothing gets of bodies that do not come as they must, and what their clients are told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_turns_out_too_large_or_comes_too_slowly_is_refused() {
    let chunks = format!("{HEAD}transfer-encoding: chunked\r\n\r\n").into_bytes();
    let large = [chunks, chunk(" ".repeat(40_000)).repeat(3)].concat();
    let begun = format!("{HEAD}content-length: 5000\r\n\r\n").into_bytes();
    let stops = [&begun[..], &[b' '; 4999]].concat();
    for ([keys, status, outcome, error], sent) in table(BODIES).zip([large, begun, stops]) {
        let trickles = keys.starts_with("client_body");
        let (upstream, front) = playing(vec![Step::Silence], keys).await;
        let mut client = front.sent(sent).await;
        if trickles {
            trickle(&mut client, &[b' '; 4000]).await;
        }
        let told = client.response().await.status().to_string();
        assert_eq!(told, status, "{keys}");
        until("the upstream let go", || upstream.gone() == 1).await;
        assert!(upstream.seen()[0].body.len() <= 100_000);
        let row = front.only_row().await;
        assert_outcome(&row, outcome, error);
        assert_cells(&row, [("status", status)]);
    }
}

/// Little by little, or nothing: of an endless stream, and of a body that the kernel alone would take.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_takes_too_little_is_given_up() {
    let megabyte = json_response(&format!("{{\"text\":\"{}\"}}", "x".repeat(1_000_000)));
    let megabyte = vec![Step::Send(megabyte)];
    for (steps, reads, is_hop) in [
        (endless(), true, false),
        (megabyte.clone(), false, false),
        (megabyte, false, true),
    ] {
        let upstream = Upstream::playing(steps).await;
        let front = Front::with(&[upstream.addr], |config| {
            config.upstream.truncate(usize::from(!is_hop));
            config.workers = workers(&[upstream.addr]);
            config.limits.client_stall_timeout_s = setting(0.2);
        })
        .await;
        let mut client = Client::with_small_buffer(front.addr()).await;
        client.post("/generate", "", b"{\"stream\":true}").await;
        if reads {
            let response = client.read_slowly(2000, |_| true).await;
            assert!(!response.whole && !response.head.is_empty());
        }
        let row = front.only_row().await;
        assert_outcome(&row, "timeout", "the client: held up the response");
        assert_row(&row, "status=200");
        assert!(number(&row, "client_stall") > 0.1, "{row:?}");
    }
}

/// Pingora's own limits on writes are far off, and do not hold for heads and last chunks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_asks_and_takes_nothing_is_given_up() {
    let large = "x".repeat(3_000_000);
    for body in ["{}", &large] {
        let steps = vec![Step::Send(json_response(body))];
        let (_upstream, front) = playing(steps, "client_stall_timeout_s = 0.1").await;
        let mut client = Client::with_small_buffer(front.addr()).await;
        let ask = post("/generate", "x-padding: y\r\n", b"{}").repeat(50);
        // Request upon request, until it is given up.
        let asking = async { while client.stream.write_all(&ask).await.is_ok() {} };
        tokio::time::timeout(PATIENCE, asking).await.unwrap();
        let rows = front.rows().await;
        // Also where the answer was read whole by then.
        let is_given_up = |row: &&Row| row["outcome"] == "timeout";
        let given_up = rows.iter().filter(is_given_up).count();
        assert_eq!(given_up, 1, "of {} rows", rows.len());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_is_slow_by_itself_goes_on() {
    let pause = Step::Pause(Duration::from_millis(100));
    let events = vec![[pause, Step::Send(chunk("data: {}\n\n"))]; 10].concat();
    let steps = [vec![Step::Send(stream_head())], events, done()].concat();
    let limits = ["stall", "body", "head"].map(|of| format!("client_{of}_timeout_s = 0.5"));
    let (_upstream, front) = playing(steps, &limits.join("\n")).await;
    let mut client = front.client().await;
    // It stays open for the next request.
    for _ in 0..2 {
        let asked = client.ask("/generate", "", b"{\"stream\":true}");
        assert!(asked.await.whole);
    }
    front.all_end(2, "ok", "").await;
}

/// The kernel would take megabytes, and tell of room only when a third of them has gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_reads_on_steadily_gets_all() {
    let body = format!("{{\"text\":\"{}\"}}", "x".repeat(6_000_000));
    let steps = vec![Step::Send(json_response(&body))];
    let (_upstream, front) = playing(steps, "").await;
    // Not so small that the window closes between two reads, which costs the sender's timer a pause.
    let mut client = Client::with_buffer(front.addr(), 65_536).await;
    client.post("/generate", "", b"{}").await;
    // At most 1 MB/s: a third of the 4 MB that the kernel takes is more than 1 s' worth.
    let mut buffer = vec![0; 20_000];
    let mut taken = 0;
    while taken <= body.len() {
        let read = client.stream.read(&mut buffer).await.unwrap_or(0);
        assert!(read > 0, "{taken} bytes");
        taken += read;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let row = front.only_row().await;
    assert_outcome(&row, "ok", "");
    assert!(number(&row, "client_stall") > 1.0, "{row:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_whole_head_that_is_or_says_too_much_is_a_request_that_is_refused_at_once() {
    let keys = "request_head_max_bytes = 1000\nrequest_body_max_bytes = 1000";
    let large = format!("x: {}\r\ncontent-length: 2\r\n", "y".repeat(1000));
    let long = "expect: 100-continue\r\ncontent-length: 1001\r\n";
    for (fields, status) in [(&*large, "431"), (long, "413")] {
        let (upstream, front) = answering(keys).await;
        let mut client = front.client().await;
        let most = client.ask("/generate", "", &[b' '; 1000]).await;
        assert_eq!(most.status(), 200);
        client.send(format!("{HEAD}{fields}\r\n")).await;
        let response = client.response().await;
        assert_eq!(response.status().to_string(), status);
        let error = &response.json()["error"];
        assert_eq!(error["type"], "invalid_request_error");
        assert_eq!(error["code"].to_string(), status);
        assert_eq!(upstream.seen().len(), 1);
        let rows = front.rows().await;
        assert_outcome(&rows[1], "client_error", status);
        assert_row(&rows[1], &format!("status={status}, attempts=0"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_beyond_the_limit_are_turned_away() {
    let (_upstream, front) = answering("max_connections = 2").await;
    let mut inside = [front.client().await, front.client().await];
    for client in &mut inside {
        assert_eq!(client.ask("/generate", "", b"{}").await.status(), 200);
    }
    let mut outside = front.client().await;
    let response = outside.response().await;
    assert_eq!(response.status(), 503);
    assert_eq!(response.json()["error"]["type"], "overloaded");
    assert_eq!(response.header("retry-after").unwrap(), "1");
    assert!(outside.is_closed().await);
    front
        .counts("queuescope_connections_refused_total ", 1)
        .await;
    // Those inside go on, and who leaves makes room.
    let [mut stays, leaves] = inside;
    drop(leaves);
    assert_eq!(stays.ask("/generate", "", b"{}").await.status(), 200);
    let has_room = async || front.ask("/generate", "", b"{}").await.status() == 200;
    until_async("room", has_room).await;
    assert!(front.rows().await.iter().all(|row| row["outcome"] == "ok"));
}

/// A process of hops only faces whoever sends to it: there the limits are the hops'.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hops_alone_hold_their_clients_to_the_limits() {
    for has_front in [false, true] {
        let upstream = Upstream::ok().await;
        let addr = upstream.addr;
        let front = Front::with(&[addr], |config| {
            config.upstream.truncate(usize::from(has_front));
            config.workers = workers(&[addr]);
            config.limits.request_head_max_bytes = setting(1000);
            config.limits.request_body_max_bytes = setting(1000);
            config.limits.max_connections = setting(2);
        })
        .await;
        let hop = front.hop_addr();
        let ask = async |extra: &str, body: &[u8]| {
            let mut client = Client::connect(hop).await;
            client.ask("/generate", extra, body).await.status()
        };
        let or = |limited| if has_front { 200 } else { limited };
        let large = format!("x: {}\r\n", "y".repeat(1000));
        assert_eq!(ask(&large, b"{}").await, or(431));
        assert_eq!(ask("", &[b' '; 1001]).await, or(413));
        let mut client = Client::connect(hop).await;
        let chunked = post_chunked("/generate", &[b' '; 1001], 1001);
        client.send(chunked).await;
        assert_eq!(client.response().await.status(), or(413));
        drop(client);
        // A head that never ends.
        let mut client = Client::connect(hop).await;
        client
            .send(format!("{HEAD}x: {}", "y".repeat(1 << 20)))
            .await;
        assert_eq!(client.response().await.status(), 431);
        drop(client);
        // More than may stay.
        let mut inside = Vec::new();
        for _ in 0..5 {
            inside.push(Client::connect(hop).await);
        }
        if has_front {
            assert_eq!(ask("", b"{}").await, 200);
            continue;
        }
        // Whichever they are that have no place.
        let all = inside.iter_mut().map(|client| Box::pin(client.response()));
        let (response, ..) = futures_util::future::select_all(all).await;
        assert_eq!(response.status(), 503);
        drop(inside);
        front.all_end(3, "client_error", "4").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_that_came_before_an_upstream_died_reaches_a_client_that_reads_late() {
    const PIECE: usize = 100_000;
    // From what the system keeps for the client, over what is read ahead, to what waits at the upstream.
    let upstream = Upstream::start(|pieces, _| {
        let body = vec![Step::Send(chunk("Z".repeat(PIECE))); pieces];
        [vec![Step::Send(stream_head())], body, vec![Step::Close]].concat()
    })
    .await;
    let front = Front::start(upstream.addr).await;
    for pieces in 0..70 {
        let mut client = front.client().await;
        client.post("/generate", "", b"{\"stream\":true}").await;
        tokio::time::sleep(Duration::from_millis(10)).await;
        let read = client.read_to_close().await;
        let read = read.iter().filter(|byte| **byte == b'Z').count();
        assert_eq!(read, pieces * PIECE, "{pieces} pieces");
    }
    front.all_end(70, "upstream_died", "").await;
}
