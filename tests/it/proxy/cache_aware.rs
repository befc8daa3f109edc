//! The policy `cache_aware`: the beginning of a body is read before its upstream is chosen, and all promises are kept.

use super::*;

/// What is read of a body whose prompt is not known, twice.
const HOLDS: usize = 64 * 1024;
const MOST: usize = 32 * 1024;

/// A front before two servers that answer at once.
struct Two {
    servers: [Upstream; 2],
    front: Front,
}

impl Two {
    async fn start(keys: &str) -> Two {
        let servers = [Upstream::ok().await, Upstream::ok().await];
        let addrs = servers.each_ref().map(|server| server.addr);
        let front = Front::balancing(&addrs, "cache_aware", keys).await;
        Two { servers, front }
    }

    /// Bytes that either has read.
    fn received(&self) -> usize {
        self.servers.iter().map(Upstream::received).sum()
    }

    /// How often a server got this body whole.
    fn got(&self, body: &[u8]) -> usize {
        let seen = self.servers.iter().flat_map(Upstream::seen);
        seen.filter(|seen| seen.whole && seen.body == body).count()
    }

    /// Waits until so many requests are here.
    async fn holds(&self, requests: i64) {
        let metrics = self.front.proxy.metrics();
        until("the requests", || metrics.in_flight() == requests).await;
    }

    fn choices(&self, by: &str) -> u64 {
        let name = format!("queuescope_cache_aware_choices_total{{by=\"{by}\"}} ");
        self.front.counter(&name)
    }
}

/// A body of so many bytes that asks for the rest of itself: `lead` and one long string.
fn body(lead: &str, length: usize) -> Vec<u8> {
    let mut body = format!("{{{lead}\"text\":\"").into_bytes();
    let more = length.saturating_sub(body.len() + 2);
    body.extend((0..more).map(|at| b'a' + (at * 7 % 26 + at / 9973) as u8 % 26));
    body.extend_from_slice(b"\"}");
    body
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies_pass_unchanged_whatever_their_size_and_framing() {
    let two = Two::start("").await;
    let sizes = [16 * 1024, MOST, HOLDS].map(|size| [size - 1, size, size + 1]);
    let sizes = [sizes.as_flattened(), &[40, 300_000]].concat();
    // Its prompt is known early, or never: `Text` is none.
    let lead = r#""x":[[1,2],"y"],"rid":"r","#;
    let bodies = sizes.iter().flat_map(|size| {
        let mut unknown = body(lead, *size);
        unknown[lead.len() + 2] = b'T';
        [body("", *size), unknown]
    });
    let bodies: Vec<_> = bodies.chain([Vec::new()]).collect();
    let mut http2 = Http2::connect(two.front.addr()).await;
    for body in &bodies {
        // All at once, and with its end apart.
        let whole = http2.post("/generate", body).await;
        assert_eq!(whole.answer().await.status, 200);
        let (begin, rest) = body.split_at(body.len().min(30));
        let mut call = http2
            .begin("/generate", HeaderMap::new(), begin, true)
            .await;
        call.body.send_data(rest.to_vec().into(), false).unwrap();
        let trailers = HeaderMap::from_iter([(http::header::ETAG, "1".parse().unwrap())]);
        call.body.send_trailers(trailers).unwrap();
        assert_eq!(call.answer().await.status, 200);
        assert_eq!(two.got(body), 2, "HTTP/2: {} bytes", body.len());
        let mut client = two.front.client().await;
        let ways = [
            post("/generate", "", body),
            post_chunked("/generate", body, usize::MAX),
            post_chunked("/generate", body, 1000),
            post_chunked("/generate", body, 20_000),
        ];
        for (count, bytes) in (3..).zip(ways) {
            // A read may hold a part of what was sent.
            for piece in bytes.chunks(7_001) {
                client.send(piece).await;
                tokio::task::yield_now().await;
            }
            assert_eq!(client.response().await.status(), 200);
            let way = format!("way {count} of {} bytes", body.len());
            assert_eq!(two.got(body), count, "{way}");
        }
    }
    let rows = two.front.rows().await;
    assert_eq!(rows.len(), bodies.len() * 6);
    for row in rows {
        assert_row(&row, "outcome=ok, inconsistency=");
        let in_router = number(&row, "queue_time_in_router");
        assert!(number(&row, "prompt_wait") <= in_router + 1e-6, "{row:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_pass_behind_one_that_is_read_ahead_and_with_long_heads() {
    let two = Two::start("").await;
    let bodies = [body("", 900), body("\"a\":1,", 900), body("", 40_000)];
    let [first, second, last] = &bodies;
    let long = format!("connection: close\r\nx-long: {}\r\n", "l".repeat(40_000));
    let all = [
        post("/generate", "", first),
        // The prompt's key comes in pieces, too.
        post_chunked("/generate", second, 4),
        post("/generate", &long, last),
    ];
    let answers = two.front.sent(all.concat()).await.read_to_close().await;
    let answers = String::from_utf8(answers).unwrap();
    assert_eq!(answers.matches("HTTP/1.1 200 OK").count(), 3, "{answers}");
    assert_eq!(bodies.each_ref().map(|body| two.got(body)), [1, 1, 1]);
    assert_eq!(two.choices("unread"), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_goes_on_as_soon_as_nothing_more_of_it_is_needed() {
    let two = Two::start("").await;
    let addrs = two.servers.each_ref().map(|server| server.addr);
    let no_prompt = format!("\"x\":\"{}\",", "y".repeat(90_000));
    // The policy, of how many upstreams, with a header and this before the prompt; and how much of the body is enough.
    for (policy, upstreams, header, lead, enough) in [
        // The prompt's first 16 KiB, or 32 KiB of what holds none.
        ("cache_aware", 2, "", "", 17_000),
        ("cache_aware", 2, "", &*no_prompt, MOST + 20),
        // Who expects 100 Continue is not waited for, nor where there is nothing to choose by it.
        ("cache_aware", 2, "expect: 100-continue\r\n", "", 0),
        ("cache_aware", 1, "", "", 0),
        ("shortest_queue", 2, "", "", 0),
    ] {
        let front = Front::balancing(&addrs[..upstreams], policy, "").await;
        let before = two.received();
        let body = body(lead, 120_000);
        let all = post("/generate", header, &body);
        let (now, later) = all.split_at(all.len() - body.len() + enough);
        let mut client = front.sent(now).await;
        let is_sent = || two.received() > before + enough;
        until("what was read to be sent", is_sent).await;
        if !header.is_empty() {
            let interim = client.read_until(|reader| reader.head.is_some()).await;
            assert_eq!(interim.status(), 100);
        }
        client.send(later).await;
        assert_eq!(client.response().await.status(), 200, "{policy}");
        assert!(two.got(&body) > 0, "{policy}");
        if enough == 0 {
            assert_eq!(front.only_row().await["prompt_wait"], "");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_is_slow_to_ask_is_told_apart() {
    let two = Two::start("").await;
    let body = body("", 2_000);
    let all = post("/generate", "", &body);
    let mut client = two.front.sent(&all[..500]).await;
    two.holds(1).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(two.received(), 0, "nobody has it yet");
    client.send(&all[500..]).await;
    assert_eq!(client.response().await.status(), 200);
    assert_eq!(two.got(&body), 1);
    let row = two.front.only_row().await;
    let seconds = |column| number(&row, column);
    assert!(seconds("prompt_wait") > 0.1, "{row:?}");
    assert!(seconds("queue_time_in_router") >= seconds("prompt_wait"));
    let read = seconds("request_end_time");
    assert!(read - seconds("arrival_time") > 0.1, "{row:?}");
    assert!(read <= seconds("forwarded_time"), "{row:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_before_it_has_asked_leaves_one_row_and_nothing_else() {
    let two = Two::start("").await;
    let all = post("/generate", "", &body("", 2_000));
    for resets in [false, true] {
        let client = two.front.sent(&all[..600]).await;
        two.holds(1).await;
        match resets {
            true => client.reset(),
            false => drop(client),
        }
        two.holds(0).await;
    }
    let mut http2 = Http2::connect(two.front.addr()).await;
    let part = b"{\"text\":\"";
    let call = http2.begin("/generate", HeaderMap::new(), part, true).await;
    two.holds(1).await;
    drop(call);
    two.holds(0).await;
    assert_eq!(two.received(), 0);
    for row in two.front.rows().await {
        assert_row(
            &row,
            "outcome=client_abort, attempts=0, ended_in=proxy, host=",
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_upstream_gets_all_of_it_when_one_refuses() {
    let mut body = body("", 20_000);
    let healthy = Upstream::ok().await;
    let both = [refusing().await, healthy.addr];
    let front = Front::balancing(&both, "cache_aware", "").await;
    // Until the other one has been chosen first.
    let choices = || front.counter("queuescope_cache_aware_choices_total") as usize;
    for own in 0..60 {
        body[10] = b'A' + own;
        let response = front.ask("/generate", "", &body).await;
        assert_eq!(response.status(), 200);
        assert!(healthy.seen().last().unwrap().body == body);
        if choices() > healthy.seen().len() {
            break;
        }
    }
    assert!(choices() > healthy.seen().len(), "it was never chosen");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prompts_that_begin_alike_go_to_one_server() {
    let two = Two::start("").await;
    for turn in 0..20 {
        for group in 0..6 {
            let words = "words ".repeat(80);
            let text = format!("system prompt {group} {words}, question {turn}");
            let body = serde_json::json!({"messages": [{"role": "system", "content": text}]});
            let id = format!("x-request-id: {group}\r\n");
            let body = body.to_string();
            let response = two.front.ask("/v1/chat/completions", &id, body.as_bytes());
            assert_eq!(response.await.status(), 200);
            // The next one's choice counts those that have not ended.
            two.holds(0).await;
        }
    }
    // A path that is not recorded says no prompt.
    two.front.ask("/v1/embeddings", "", b"{}").await;
    let choices = ["prefix", "load", "unread"].map(|by| two.choices(by));
    assert_eq!(choices, [114, 6, 1]);
    let rows = two.front.rows().await;
    let homes = rows.iter().map(|row| (&row["req_id"], &row["host"]));
    let homes: BTreeSet<_> = homes.collect();
    assert_eq!(homes.len(), 6, "{homes:?}");
    let first = two.servers[0].addr.to_string();
    let of_first = homes.iter().filter(|(_, host)| **host == first);
    assert_eq!(of_first.count(), 3, "{homes:?}");
}
