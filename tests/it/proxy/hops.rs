//! Worker hops, and the stamps that processes tell each other.

use std::net::SocketAddr;

use queuescope::config::proxy::StampsPolicy;
use queuescope::request::stamps::Stamps;

use crate::support::proxy::{Front, Row, assert_cells, assert_outcome, number, playing, workers};
use crate::support::router::free_port;
use crate::support::upstream::{Step, Upstream, begun, done, refusing};
use crate::support::wire::{Client, headers, json_response};

/// A hop before `server`, a router before the hop, and a front before the router.
struct Chain {
    front: Front,
    router: Upstream,
    _hop: Front,
}

async fn chain(server: SocketAddr) -> Chain {
    let workers = workers(&[server]);
    let hop = Front::with(&[server], |config| config.workers = workers).await;
    let router = Upstream::relay(hop.hop_addr()).await;
    Chain {
        front: Front::start(router.addr).await,
        router,
        _hop: hop,
    }
}

#[track_caller]
fn assert_none_of_ours(head: &str) {
    let names = headers(head).into_iter().map(|(name, _)| name);
    let ours = names.filter(|name| name.starts_with("x-queuescope"));
    assert_eq!(ours.collect::<Vec<_>>(), [""; 0]);
}

/// A client may say a room to a server that does both: its row is neither lost nor a pair's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_room_said_to_a_server_of_its_own_makes_no_leg() {
    let told = "\"id\":\"i\",\"finish_reason\":{\"type\":\"stop\"},\"num_retractions\":0,\"forward_entry_time\":1795168001.0,\
                \"queue_time\":0.25,\"prefill_finished_time\":1795168001.1,\"completion_tokens\":1,\"request_received_ts\":1795168000.5";
    let answer = json_response(&format!("{{\"text\":\"a\",\"meta_info\":{{{told}}}}}"));
    let server = Upstream::always(answer).await;
    let hop = Front::hop(server.addr).await;
    let mut client = Client::connect(hop.hop_addr()).await;
    for _ in 0..2 {
        let body = b"{\"text\":\"x\",\"bootstrap_room\":7}";
        assert_eq!(client.ask("/generate", "", body).await.status(), 200);
    }
    drop(client);
    let rows = hop.rows().await;
    assert_eq!(rows.len(), 2);
    for row in rows {
        assert_eq!(
            (
                row["disaggregated"].as_str(),
                row["pure_queue_time"].as_str()
            ),
            ("", "0.250000000")
        );
    }
}

/// Its server is down, and what is left of the body is read for a room alone: that refuses nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_no_server_takes_comes_to_no_limit() {
    let workers = workers(&[refusing().await]);
    let hop = Front::with(&[], |config| {
        config.workers = workers;
        config.limits.request_body_max_bytes = 10.try_into().unwrap();
    })
    .await;
    let mut client = Client::connect(hop.hop_addr()).await;
    let head = "POST /generate HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n";
    let body = "x".repeat(20);
    client
        .send(format!("{head}14\r\n{body}\r\n0\r\n\r\n"))
        .await;
    assert_eq!(client.response().await.status(), 502);
    assert_eq!(hop.counter("queuescope_client_limits_total"), 0);
    drop(client);
    assert_outcome(&hop.only_row().await, "proxy_error", "refused");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hop_passes_what_a_router_asks_at_registration() {
    let server = Upstream::start(|_, request| {
        let body = request.head.lines().next().unwrap().to_owned();
        vec![Step::Send(json_response(&body))]
    })
    .await;
    let hop = Front::hop(server.addr).await;
    let addr = hop.hop_addr();
    let mut client = Client::connect(addr).await;
    for path in ["/health", "/server_info", "/model_info"] {
        client
            .send(format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n"))
            .await;
        let response = client.response().await;
        assert_eq!(response.body, format!("GET {path} HTTP/1.1").as_bytes());
        let stamps = response.header("x-queuescope-hop");
        assert_eq!(
            stamps, None,
            "{path}: the router sends no id to sign them for"
        );
    }
    // gRPC detection must be told no, so that the router falls back to HTTP/1.1.
    let mut client = Client::connect(addr).await;
    client
        .send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")
        .await;
    let refused = client.response().await;
    assert!(refused.head.starts_with("HTTP/1.1 400"), "{}", refused.head);
    let seen = server.seen();
    assert_eq!(seen.len(), 3);
    for request in &seen {
        assert_eq!(request.header("x-request-id"), None, "a hop makes no ids");
        assert_eq!(request.header("traceparent"), None);
    }
    assert!(hop.rows().await.is_empty(), "a hop records nothing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_on_this_machine_gets_stamps_when_it_asks() {
    let server = Upstream::ok().await;
    let chain = chain(server.addr).await;
    let (front, router) = (chain.front, chain.router);
    let response = front
        .ask("/generate", "x-queuescope-stamps: 1\r\n", b"{}")
        .await;
    let stamps = Stamps::parse(&response.header("x-queuescope-stamps").unwrap()).unwrap();
    assert_eq!(router.seen()[0].header("x-queuescope-stamps"), None);
    assert_eq!(stamps.attempts, Some(1));
    assert_eq!(
        stamps.host.as_deref(),
        Some(server.addr.to_string().as_str())
    );
    let hop = stamps.hop.unwrap();
    assert_eq!(hop.clock, stamps.clock, "one process");
    let order = [
        stamps.arrival,
        stamps.forwarded,
        hop.arrival,
        hop.forwarded,
        hop.now,
        stamps.now,
    ];
    assert!(
        order.iter().all(Option::is_some) && order.is_sorted(),
        "{order:?}"
    );
    let row = front.only_row().await;
    let arrival = queuescope::clock::Stamp::from_seconds(row["arrival_time"].parse().unwrap());
    assert!(arrival.unwrap().nanos_since(stamps.arrival.unwrap()).abs() < 1_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_front_says_whether_it_joins_what_servers_tell_later() {
    let server = Upstream::ok().await;
    for listen in [None, Some(free_port())] {
        let front = Front::with(&[server.addr], |config| {
            config.engine.traces.listen = listen;
        })
        .await;
        let answer = front.ask("/generate", "x-queuescope-stamps: 1\r\n", b"{}");
        let stamps = answer.await.header("x-queuescope-stamps").unwrap();
        let stamps = Stamps::parse(&stamps).unwrap();
        assert_eq!(stamps.joins_engine, listen.is_some());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stamps_are_for_those_who_may_have_them() {
    let server = Upstream::ok().await;
    let cases = [
        (StampsPolicy::Loopback, "", false),
        (StampsPolicy::Loopback, "x-queuescope-stamps: 0\r\n", false),
        (StampsPolicy::Loopback, "x-queuescope-stamps: 1\r\n", true),
        (StampsPolicy::Never, "x-queuescope-stamps: 1\r\n", false),
        (StampsPolicy::Token, "x-queuescope-stamps: 1\r\n", false),
        (
            StampsPolicy::Token,
            "x-queuescope-stamps: 1\r\nx-queuescope-token: a token\r\n",
            false,
        ),
        (
            StampsPolicy::Token,
            "x-queuescope-stamps: 1\r\nx-queuescope-token: a token of 18 char\r\n",
            true,
        ),
    ];
    for (policy, asks, given) in cases {
        let front = Front::with(&[server.addr], |config| {
            config.stamps = policy;
            config.stamps_token = Some("a token of 18 char".into());
        })
        .await;
        let response = front.ask("/generate", asks, b"{}").await;
        assert_eq!(
            response.header("x-queuescope-stamps").is_some(),
            given,
            "{policy:?} {asks}"
        );
        let seen = server.seen();
        assert_none_of_ours(&seen.last().unwrap().head);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn smg_names_the_worker() {
    let answer = b"HTTP/1.1 200 OK\r\nx-smg-routed-worker-id: http://10.0.0.7:30000/\r\n\
        content-type: application/json\r\ncontent-length: 2\r\n\r\n{}";
    let (_router, front) = playing(vec![Step::Send(answer.to_vec())], "").await;
    let response = front.ask("/generate", "", b"{}").await;
    assert!(
        response.header("x-smg-routed-worker-id").is_some(),
        "it passes"
    );
    let row = front.only_row().await;
    assert_eq!(row["host"], "10.0.0.7:30000");
    assert_eq!(row["router_send_time"], "", "nobody saw the router send");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hop_that_answers_itself_tells_what_it_stamped() {
    let server = Upstream::start(|_, _| vec![Step::Send(b"no HTTP\r\n\r\n".to_vec())]).await;
    let chain = chain(server.addr).await;
    let mut client = chain.front.client().await;
    let response = client.ask("/generate", "", b"{}").await;
    assert_eq!(response.status(), 502);
    // Whoever stands before the front hears how the hop judged.
    let told = response.header("x-queuescope-outcome");
    assert_eq!(told.as_deref(), Some("upstream_died"));
    let row = chain.front.only_row().await;
    assert_outcome(&row, "upstream_died", "502");
    assert_eq!(row["host"], server.addr.to_string());
    assert!(!row["router_send_time"].is_empty(), "{row:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_fronts_stamps_are_not_passed_on() {
    let answer = b"HTTP/1.1 200 OK\r\nx-queuescope-stamps: clock=theirs;now=1\r\n\
        X-Queuescope-Stamps: clock=theirs;now=2\r\ncontent-length: 2\r\n\r\n{}";
    let (_server, front) = playing(vec![Step::Send(answer.to_vec())], "").await;
    let mut client = front.client().await;
    for path in ["/generate", "/model_info"] {
        let response = client.ask(path, "", b"{}").await;
        assert_eq!(response.header("x-queuescope-stamps"), None, "{path}");
        let response = client.ask(path, "x-queuescope-stamps: 1\r\n", b"{}").await;
        let stamps = Stamps::parse(&response.header("x-queuescope-stamps").unwrap()).unwrap();
        assert_ne!(stamps.clock, "theirs");
        assert!(stamps.arrival.is_some(), "{path}: {stamps:?}");
    }
}

/// What somebody could say in a hop's name.
const FORGED: &str = r#"["evil",1795000000000000000,null,null,null,"evil:1",77,false,false,"w9"]"#;

fn answer_with(value: &str) -> Vec<u8> {
    format!(
        "HTTP/1.1 200 OK\r\nx-queuescope-hop: {value}\r\ncontent-type: application/json\r\n\
         content-length: 2\r\n\r\n{{}}"
    )
    .into_bytes()
}

/// Fails unless the row is as if no hop had been there.
fn assert_no_hop(row: &Row) {
    let none = "host worker router_send_time worker_forwarded_time hop_clock_offset failed_attempts inconsistency";
    none.split(' ')
        .for_each(|column| assert_cells(row, [(column, "")]));
    assert_eq!(row["attempts"], "1");
    assert_outcome(row, "ok", "");
}

/// What a hop with this secret signs for a request with this id.
async fn signed(server: SocketAddr, secret: Option<&str>, id: &str) -> String {
    let hop = Front::with(&[server], |config| {
        config.workers = workers(&[server]);
        config.hop_secret = secret.map(Into::into);
    })
    .await;
    let mut client = Client::connect(hop.hop_addr()).await;
    let id = format!("x-request-id: {id}\r\n");
    let response = client.ask("/generate", &id, b"{}").await;
    response.header("x-queuescope-hop").unwrap()
}

/// The secrets of hop and front, the request that the hop speaks of, what becomes of its word on the way, and whether it is believed.
type Word = (
    Option<&'static str>,
    Option<&'static str>,
    &'static str,
    fn(String) -> String,
    bool,
);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_what_a_hop_of_ours_said_of_this_request_is_believed() {
    const OURS: Option<&str> = Some("the secret of the front");
    const THEIRS: Option<&str> = Some("some other long secret");
    let cases: [Word; 14] = [
        (None, None, "mine", |value| value, true),
        (OURS, OURS, "mine", |value| value, true),
        (THEIRS, OURS, "mine", |value| value, false),
        (None, OURS, "mine", |value| value, false),
        (THEIRS, None, "mine", |value| value, false),
        (None, None, "another", |value| value, false),
        (
            None,
            None,
            "mine",
            |value| value.replacen("0", "1", 1),
            false,
        ),
        (
            None,
            None,
            "mine",
            |value| value[..value.len() - 2].to_owned(),
            false,
        ),
        (None, None, "mine", |value| value + "00", false),
        (
            None,
            None,
            "mine",
            |value| value.replace("mac=", "mac=é"),
            false,
        ),
        (
            None,
            None,
            "mine",
            |value| value[..value.len() - 64].to_owned(),
            false,
        ),
        (
            None,
            None,
            "mine",
            |_| format!("{FORGED};mac={}", "0".repeat(64)),
            false,
        ),
        (
            None,
            None,
            "mine",
            |_| r#"["evil",-9223372036854775808]"#.to_owned(),
            false,
        ),
        (None, None, "mine", |_| String::new(), false),
    ];
    let server = Upstream::ok().await;
    for (number, (of_hop, of_front, said_of, changed, is_believed)) in (0..).zip(cases) {
        let value = changed(signed(server.addr, of_hop, said_of).await);
        // Beside a forged one, which must not hide it.
        let both = format!("{FORGED}\r\nx-queuescope-hop: {value}");
        let router = Upstream::always(answer_with(&both)).await;
        let front = Front::with(&[router.addr], |config| {
            config.hop_secret = of_front.map(Into::into);
        })
        .await;
        let asks = "x-request-id: mine\r\nx-queuescope-stamps: 1\r\n";
        let response = front.ask("/generate", asks, b"{}").await;
        assert_eq!(response.header("x-queuescope-hop"), None, "{number}");
        let stamps = response.header("x-queuescope-stamps").unwrap();
        let has_hop = !stamps.ends_with("null]");
        assert_eq!(
            (has_hop, stamps.contains("evil")),
            (is_believed, false),
            "{number}: {stamps}"
        );
        let refused = u64::from(!is_believed);
        front
            .counts("queuescope_hop_stamps_refused_total ", refused)
            .await;
        let row = front.only_row().await;
        match is_believed {
            true => assert_eq!(row["host"], server.addr.to_string(), "{number}"),
            false => assert_no_hop(&row),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_stamps_pass_on_interim_heads() {
    let mut answer = format!(
        "HTTP/1.1 103 Early Hints\r\nx-queuescope-hop: {FORGED}\r\nlink: </a>\r\n\
         x-queuescope-stamps: clock=theirs;now=1\r\n\r\n"
    )
    .into_bytes();
    answer.extend(json_response("{}"));
    let router = Upstream::always(answer).await;
    let front = Front::start(router.addr).await;
    let mut client = front.asked("/generate", "", b"{}").await;
    let hints = client.read_until(|reader| reader.head.is_some()).await;
    assert_eq!(hints.status(), 103);
    assert_eq!(
        hints.header("link").as_deref(),
        Some("</a>"),
        "the rest passes"
    );
    assert_none_of_ours(&hints.head);
    let row = front.only_row().await;
    assert_no_hop(&row);
    assert_eq!(row["status"], "200");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hop_elsewhere_keeps_its_moments_for_a_later_join() {
    let server = Upstream::playing([begun(), done()].concat()).await;
    let hop = Front::hop(server.addr).await;
    let mut client = Client::connect(hop.hop_addr()).await;
    client.ask("/generate", "", b"{\"stream\":true}").await;
    let row = hop.only_row().await;
    let moments = [
        "response_head_time",
        "worker_first_byte_time",
        "worker_last_byte_time",
    ];
    assert!(
        moments.map(|moment| number(&row, moment)).is_sorted(),
        "{row:?}"
    );
    let untold = [
        ("router_return", ""),
        ("router_return_last", ""),
        ("router_gap_added", ""),
    ];
    assert_cells(&row, untold);
    assert_eq!(row["seen_by"], "hop");
}
