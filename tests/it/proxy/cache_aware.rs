//! The policy `cache_aware`: the beginning of a body is read before its upstream is chosen, and all promises are kept.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use http::HeaderMap;

use crate::support::http2::Http2;
use crate::support::proxy::{Front, Row, assert_cells, assert_outcome};
use crate::support::upstream::{Step, Upstream, refusing};
use crate::support::wire::{Client, Response, post, post_chunked, until};

/// Pingora's buffer for resending, and what is read of a body whose prompt is not known.
const HOLDS: usize = 64 * 1024;
const MOST: usize = 32 * 1024;

async fn front(upstream: &[SocketAddr], policy: &str, keys: &str) -> Front {
    let keys = format!("policy = \"{policy}\"\nupstream_kind = \"server\"\n{keys}");
    Front::keyed(upstream, &keys).await
}

/// Two servers that answer at once.
async fn servers() -> [Upstream; 2] {
    let server = || Upstream::ok();
    [server().await, server().await]
}

async fn two(servers: &[Upstream; 2]) -> Front {
    let addrs = servers.each_ref().map(|server| server.addr);
    front(&addrs, "cache_aware", "").await
}

/// Bytes that either has read.
fn received(servers: &[Upstream; 2]) -> usize {
    servers.iter().map(Upstream::received).sum()
}

fn choices(front: &Front, by: &str) -> u64 {
    front.counter(&format!(
        "queuescope_cache_aware_choices_total{{by=\"{by}\"}} "
    ))
}

/// A body of so many bytes that asks for the rest of itself: `lead` and one long string.
fn body(lead: &str, length: usize) -> Vec<u8> {
    let mut body = format!("{{{lead}\"text\":\"").into_bytes();
    let more = length.saturating_sub(body.len() + 2);
    body.extend((0..more).map(|at| b'a' + (at * 7 % 26 + at / 9973) as u8 % 26));
    body.extend_from_slice(b"\"}");
    body
}

fn assert_passed(servers: &[Upstream; 2], response: &Response, body: &[u8], case: &str) {
    assert_eq!(response.status(), 200, "{case}");
    let last = servers.iter().filter_map(|server| server.seen().pop());
    let same = last.filter(|seen| seen.whole && seen.body == body).count();
    assert!(same > 0, "{case}: no server got these {} bytes", body.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies_pass_unchanged_whatever_their_size_and_framing() {
    let servers = servers().await;
    let front = two(&servers).await;
    let around = |size: usize| [size - 1, size, size + 1];
    let sizes = [
        around(16 * 1024),
        around(MOST),
        around(HOLDS),
        [0, 40, 300_000],
    ];
    // Known early, not before the bound, and never.
    let leads = ["", r#""x":[[1,2],"y"],"rid":"r","#];
    for size in sizes.as_flattened() {
        for (at, lead) in leads.into_iter().enumerate() {
            let mut body = body(lead, *size);
            if at == 1 {
                body[lead.len() + 2] = b'T';
            }
            if *size == 0 {
                body.clear();
            }
            let mut client = front.client().await;
            for (way, bytes) in [
                ("length", post("/generate", "", &body)),
                ("one chunk", post_chunked("/generate", &body, usize::MAX)),
                ("chunks", post_chunked("/generate", &body, 1000)),
                ("large chunks", post_chunked("/generate", &body, 20_000)),
            ] {
                let case = format!("{size} bytes, {way}, lead {at}");
                // A read may hold a part of what was sent.
                for piece in bytes.chunks(7_001) {
                    client.send(piece).await;
                    tokio::task::yield_now().await;
                }
                assert_passed(&servers, &client.response().await, &body, &case);
            }
        }
    }
    let rows = front.rows().await;
    assert_eq!(
        rows.len(),
        12 * 2 * 4,
        "one connection carries all of a body's ways"
    );
    for row in rows {
        assert_outcome(&row, "ok", "");
        assert_eq!(row["inconsistency"], "");
        let at = |column: &str| row[column].parse::<f64>().unwrap();
        assert!(
            at("prompt_wait") <= at("queue_time_in_router") + 1e-6,
            "{row:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_pass_behind_one_that_is_read_ahead_and_with_long_heads() {
    let servers = servers().await;
    let front = two(&servers).await;
    let bodies = [body("", 900), body("\"a\":1,", 900), body("", 40_000)];
    let [first, second, last] = bodies.each_ref();
    let long = format!("connection: close\r\nx-long: {}\r\n", "l".repeat(40_000));
    let all = [
        post("/generate", "", first),
        post_chunked("/generate", second, 100),
        post("/generate", &long, last),
    ];
    let answers = front.sent(all.concat()).await.read_to_close().await;
    let answers = String::from_utf8(answers).unwrap();
    assert_eq!(answers.matches("HTTP/1.1 200 OK").count(), 3, "{answers}");
    let seen: Vec<_> = servers.iter().flat_map(Upstream::seen).collect();
    for body in &bodies {
        assert!(seen.iter().any(|seen| seen.body == *body));
    }
    assert_eq!(
        (choices(&front, "unread"), front.rows().await.len()),
        (0, 3)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http2_bodies_pass_unchanged() {
    let servers = servers().await;
    let front = two(&servers).await;
    let mut client = Http2::connect(front.addr()).await;
    let sizes = [40, MOST + 1, 300_000];
    for size in sizes {
        let body = body("", size);
        // All at once, and with its end apart.
        let whole = client.post("/generate", &body).await;
        assert_eq!(whole.answer().await.status, 200);
        let mut call = client
            .begin("/generate", HeaderMap::new(), &body[..30], true)
            .await;
        call.body
            .send_data(body[30..].to_vec().into(), false)
            .unwrap();
        let trailers = HeaderMap::from_iter([(http::header::ETAG, "1".parse().unwrap())]);
        call.body.send_trailers(trailers).unwrap();
        assert_eq!(call.answer().await.status, 200);
        let same = servers.iter().flat_map(Upstream::seen);
        assert_eq!(same.filter(|seen| seen.body == body).count(), 2, "{size}");
    }
    // No body at all.
    let call = client.post("/generate", b"").await;
    assert_eq!(call.answer().await.status, 200);
    // Nor all of its prompt.
    let left = client
        .begin("/generate", HeaderMap::new(), b"{\"text\":\"", true)
        .await;
    until("the request", || front.proxy.metrics().in_flight() == 1).await;
    drop(left);
    let rows = front.rows().await;
    let gone = rows.iter().filter(|row| row["outcome"] == "client_abort");
    assert_eq!((rows.len(), gone.count()), (2 * sizes.len() + 2, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_goes_on_as_soon_as_its_prompt_is_known() {
    let servers = servers().await;
    let front = two(&servers).await;
    // The prompt's first 16 KiB, or 32 KiB of what holds none.
    for (lead, sent) in [
        ("", 17_000),
        (&*format!("\"x\":\"{}\",", "y".repeat(90_000)), MOST + 20),
    ] {
        let before = received(&servers);
        let body = body(lead, 120_000);
        let all = post("/generate", "", &body);
        let (now, later) = all.split_at(all.len() - body.len() + sent);
        let mut client = front.sent(now).await;
        let is_sent = || received(&servers) >= before + sent;
        until("what was read to be sent", is_sent).await;
        client.send(later).await;
        assert_passed(&servers, &client.response().await, &body, "in two parts");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_is_slow_to_ask_is_told_apart() {
    let servers = servers().await;
    let front = two(&servers).await;
    let body = body("", 2_000);
    let all = post("/generate", "", &body);
    let mut client = front.sent(&all[..500]).await;
    until("the request", || front.proxy.metrics().in_flight() == 1).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(received(&servers), 0, "nobody has it yet");
    client.send(&all[500..]).await;
    assert_passed(&servers, &client.response().await, &body, "slow");
    let row = front.only_row().await;
    let seconds = |column: &str| row[column].parse::<f64>().unwrap();
    assert!(seconds("prompt_wait") > 0.1, "{row:?}");
    assert!(
        seconds("queue_time_in_router") >= seconds("prompt_wait"),
        "{row:?}"
    );
    let read = seconds("request_end_time") - seconds("arrival_time");
    assert!(read > 0.1, "{row:?}");
    assert!(
        seconds("request_end_time") <= seconds("forwarded_time"),
        "{row:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_before_it_has_asked_leaves_one_row_and_nothing_else() {
    let servers = servers().await;
    let front = two(&servers).await;
    let all = post("/generate", "", &body("", 2_000));
    for resets in [false, true] {
        let client = front.sent(&all[..600]).await;
        until("the request", || front.proxy.metrics().in_flight() == 1).await;
        if resets {
            client.reset();
        } else {
            drop(client);
        }
        until("its end", || front.proxy.metrics().in_flight() == 0).await;
    }
    assert_eq!(received(&servers), 0);
    for row in front.rows().await {
        assert_outcome(&row, "client_abort", "");
        assert_cells(
            &row,
            [("attempts", "0"), ("ended_in", "proxy"), ("host", "")],
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_on_bodies_hold_while_the_prompt_is_read() {
    let servers = servers().await;
    let addrs = servers.each_ref().map(|server| server.addr);
    let limits =
        "request_body_max_bytes = 1000\nclient_read_timeout_s = 0.1\nclient_body_timeout_s = 0.3";
    let front = front(&addrs, "cache_aware", limits).await;
    let mut large = front
        .sent(post_chunked("/generate", &body("", 1_200), 600))
        .await;
    assert_eq!(large.response().await.status(), 413);
    let mut silent = front
        .sent(&post("/generate", "", &body("", 500))[..300])
        .await;
    assert_eq!(silent.response().await.status(), 408);
    let mut slow = front.client().await;
    let all = post("/generate", "", &body("", 500));
    for piece in all.chunks(20) {
        // It is answered, and its connection closed, before all has gone out.
        let sent = tokio::io::AsyncWriteExt::write_all(&mut slow.stream, piece);
        if sent.await.is_err() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
    assert_eq!(slow.response().await.status(), 408);
    assert_eq!(received(&servers), 0);
    let rows = front.rows().await;
    let mut outcomes: Vec<&str> = rows.iter().map(|row| &*row["outcome"]).collect();
    outcomes.sort_unstable();
    assert_eq!(outcomes, ["client_error", "timeout", "timeout"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_expects_100_continue_is_not_waited_for() {
    let servers = servers().await;
    let front = two(&servers).await;
    let body = body("", 5_000);
    let all = post("/generate", "expect: 100-continue\r\n", &body);
    let (head, rest) = all.split_at(all.len() - body.len());
    let mut client = front.sent(head).await;
    // Of the server: it has got the head.
    let interim = client.read_until(|reader| reader.head.is_some()).await;
    assert_eq!(interim.status(), 100);
    client.send(rest).await;
    assert_passed(&servers, &client.response().await, &body, "100-continue");
    assert_eq!(choices(&front, "unread"), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_upstream_gets_all_of_it_when_one_refuses_or_breaks() {
    let healthy = Upstream::ok().await;
    let breaking = Upstream::start(|_, _| vec![Step::Reset]).await;
    let body = body("", 20_000);
    for (other, breaks) in [(refusing().await, false), (breaking.addr, true)] {
        let both = [other, healthy.addr];
        let front = front(&both, "cache_aware", "resend_broken = true").await;
        let before = healthy.seen().len();
        // Until the other one has been chosen first.
        let tried = || {
            front.counter("queuescope_cache_aware_choices_total") as usize
                > healthy.seen().len() - before
        };
        for own in 0..60 {
            let mut body = body.clone();
            body[10] = b'A' + own;
            let response = front.client().await.ask("/generate", "", &body).await;
            assert_eq!(response.status(), 200, "{breaks}");
            assert!(healthy.seen().last().unwrap().body == body, "{breaks}");
            if tried() {
                break;
            }
        }
        assert!(tried(), "{breaks}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prompts_that_begin_alike_go_to_one_server() {
    let servers = servers().await;
    let front = two(&servers).await;
    for turn in 0..20 {
        for group in 0..6 {
            let words = "words ".repeat(80);
            let text = format!("system prompt {group} {words}, question {turn}");
            let body = serde_json::json!({"messages": [{"role": "system", "content": text}]});
            let (body, id) = (
                body.to_string(),
                format!("x-request-id: {group}-{turn}\r\n"),
            );
            let response = front.ask("/v1/chat/completions", &id, body.as_bytes());
            assert_eq!(response.await.status(), 200);
        }
    }
    // A path that is not recorded says no prompt.
    front.client().await.ask("/v1/embeddings", "", b"{}").await;
    assert_eq!(
        ["prefix", "load", "unread"].map(|by| choices(&front, by)),
        [114, 6, 1]
    );
    let rows = front.rows().await;
    let home = |row: &Row| {
        let group: String = row["req_id"].split('-').next().unwrap().into();
        (group, row["host"].clone())
    };
    let homes: BTreeSet<_> = rows.iter().map(home).collect();
    assert_eq!(homes.len(), 6, "{homes:?}");
    for server in &servers {
        let name = server.addr.to_string();
        let its = homes.iter().filter(|(_, host)| *host == name);
        assert_eq!(its.count(), 3, "{homes:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_policies_do_not_wait_for_the_prompt() {
    let servers = servers().await;
    for (policy, upstreams) in [("shortest_queue", 2), ("cache_aware", 1)] {
        let addrs = servers.each_ref().map(|server| server.addr);
        let front = front(&addrs[..upstreams], policy, "").await;
        let before = received(&servers);
        let all = post("/generate", "", &body("", 900));
        let mut client: Client = front.client().await;
        client.send(&all[..200]).await;
        until("the head to be sent on", || received(&servers) > before).await;
        client.send(&all[200..]).await;
        assert_eq!(client.response().await.status(), 200);
        assert_eq!(front.only_row().await["prompt_wait"], "");
    }
}
