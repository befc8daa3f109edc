//! Each way in which a request can end leaves exactly one record, which says who ended it and where it was by then; and the
//! upstream is let go at once.

use super::*;

const STREAM: &[u8] = br#"{"text":"a b c","stream":true,"sampling_params":{"max_new_tokens":4}}"#;

fn streaming(then: Vec<Step>) -> Vec<Step> {
    [begun(), then].concat()
}

#[track_caller]
fn assert_ended(row: &Row, outcome: &str, ended_in: &str, error: &str) {
    assert_outcome(row, outcome, error);
    assert_eq!(row["ended_in"], ended_in, "{row:?}");
    let start = match row["seen_by"].as_str() {
        "hop" => "router_send_time",
        _ => "arrival_time",
    };
    let elapsed = number(row, "elapsed");
    let waited = number(row, "end_time") - number(row, start);
    assert!(elapsed >= 0.0 && (waited - elapsed).abs() < 2e-6, "{row:?}");
    if !row["finish_time"].is_empty() {
        assert!(row["end_time"] >= row["finish_time"], "{row:?}");
    }
}

/// What stands in front of the server (a router, a hop of ours alone, or nothing), what the server does, what the client does then, and how it ended:
/// outcome, place, status and a piece of the error.
const ENDINGS: &str = "\
hop    | silence        | leaves | client_abort  | server        |     | client
router | silence        | leaves | client_abort  | router+server |     | client
server | silence        | resets | client_abort  | server        |     | client
router | begins silence | leaves | client_abort  | decode        | 200 | client
router | begins silence | resets | client_abort  | decode        | 200 | client
server | reset          | reads  | upstream_died | server        | 502 | 127.0.0.1:
server | close          | reads  | upstream_died | server        | 502 | 127.0.0.1:
server | short close    | reads  | upstream_died | server        | 200 |
server | begins reset   | reads  | upstream_died | decode        | 200 | 127.0.0.1:
server | begins close   | reads  | upstream_died | decode        | 200 | 127.0.0.1:
router | silence        | reads  | timeout       | router+server | 504 | silent for too long
router | begins silence | reads  | timeout       | decode        | 200 | silent for too long
server | full           | reads  | rejected      | server        | 503 | 503
server | begins last    | reads  | upstream_died | decode        | 200 | without its end
router | begins ends    | reads  | ok            | done          | 200 |
router | unframed close | reads  | ok            | done          | 200 |";

/// Cells of a stream that came whole through a router.
const WHOLE: &str = "upstream_reused=False, input_length=3, expected_output_length=4, \
    stream=True, host=, router_send_time=, engine_id=e, inconsistency=";

const UNFRAMED: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";
const SHORT: &[u8] =
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 90\r\n\r\n{";

/// What a server does by a word.
fn steps(word: &str) -> Vec<Step> {
    let send = |bytes: &[u8]| vec![Step::Send(bytes.to_vec())];
    match word {
        // A reset takes what has not been read yet with it.
        "begins" => streaming(vec![Step::Pause(Duration::from_millis(300))]),
        "ends" => done(),
        "last" => vec![Step::Send(chunk(""))],
        "unframed" => [
            send(UNFRAMED),
            send(EVENT.as_bytes()),
            send(DONE.as_bytes()),
        ]
        .concat(),
        "silence" => vec![Step::Silence],
        "reset" => vec![Step::Reset],
        "close" => vec![Step::Close],
        "full" => send(b"HTTP/1.1 503 Full\r\ncontent-length: 2\r\n\r\n{}"),
        "short" => send(SHORT),
        other => panic!("{other}"),
    }
}

/// What the response to a request that was read to its end must be like.
fn assert_response(response: &Response, does: &str, outcome: &str, status: &str) {
    assert_eq!(response.status().to_string(), status);
    let is_ours = match status {
        "502" => "bad_gateway",
        "504" => "gateway_timeout",
        _ => "",
    };
    if !is_ours.is_empty() {
        let error = &response.json()["error"];
        assert_eq!(error["type"], is_ours);
        assert_eq!(error["code"].to_string(), status);
        assert!(response.header("x-request-id").is_some());
        return;
    }
    // The client must see what was cut.
    let is_cut = matches!(outcome, "upstream_died" | "timeout") && does != "begins last";
    assert_eq!(response.whole, !is_cut, "{does}");
    if does.starts_with("begins") && outcome != "ok" {
        assert_eq!(response.body, EVENT.as_bytes());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_ends_it_is_told_where_it_was() {
    for [kind, does, then, outcome, ended_in, status, error] in table(ENDINGS) {
        let streams = does.starts_with("begins");
        let upstream = Upstream::playing(does.split(' ').flat_map(steps).collect()).await;
        let silence = if then == "reads" { 1 } else { 1800 };
        let keys = format!("upstream_kind = \"{kind}\"\nupstream_read_timeout_s = {silence}");
        let front = match kind {
            "hop" => Front::hop(upstream.addr).await,
            _ => Front::keyed(&[upstream.addr], &keys).await,
        };
        let mut client = front.asked("/generate", "", STREAM).await;
        if then == "reads" {
            assert_response(&client.response().await, does, outcome, status);
        } else {
            until("the request", || upstream.seen().len() == 1).await;
            if streams {
                client.read_until(|reader| !reader.body.is_empty()).await;
            }
            match then {
                "resets" => client.reset(),
                _ => drop(client),
            }
        }
        if outcome == "client_abort" || outcome == "timeout" {
            until("the upstream let go", || upstream.gone() == 1).await;
        }
        // Whatever ended it, its upstream's queue is shorter by one.
        front.counts("queuescope_upstream_in_flight", 0).await;
        let row = front.only_row().await;
        assert_ended(&row, outcome, ended_in, error);
        assert_row(&row, &format!("attempts=1, status={status}"));
        if kind != "router" {
            assert_eq!(row["host"], upstream.addr.to_string(), "answered or not");
        }
        let has_token = ended_in == "decode" || outcome == "ok";
        assert_eq!(!row["first_token_time"].is_empty(), has_token);
        match outcome {
            "rejected" => assert_eq!(row["end_time"], row["finish_time"]),
            "client_abort" if !streams => assert_row(&row, "finish_time=, total_latency="),
            "ok" => assert_whole(&row),
            _ => {}
        }
    }
}

/// Fails unless it is the row of a stream that came whole through a router.
fn assert_whole(row: &Row) {
    assert_eq!(row["end_time"], row["finish_time"]);
    assert_eq!(row["elapsed"], row["total_latency"]);
    assert!(number(row, "arrival_time") > 1.7e9);
    assert!(number(row, "first_token_time") <= number(row, "finish_time"));
    assert_row(row, WHOLE);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_during_its_upload() {
    let (upstream, front) = playing(vec![Step::Silence], "").await;
    let mut client = front.client().await;
    let all = post("/generate", "", &[b' '; 300_000]);
    client.send(&all[..200_000]).await;
    until("a part of the body", || upstream.received() > 100_000).await;
    drop(client);
    until("the upstream let go", || upstream.gone() == 1).await;
    assert!(!upstream.seen()[0].whole && !upstream.seen()[0].body.is_empty());
    let row = front.only_row().await;
    assert_ended(&row, "client_abort", "to proxy", "client");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_while_it_reads_nothing() {
    let (upstream, front) = playing(endless(), "").await;
    let mut client = Client::with_small_buffer(front.addr()).await;
    client.post("/generate", "", STREAM).await;
    assert!(upstream.stands_still().await < 300);
    client.reset();
    assert_outcome(&front.only_row().await, "client_abort", "client");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_connection_is_a_502() {
    let front = Front::start(refusing().await).await;
    let id = "x-request-id: mine\r\n";
    let response = front.ask("/v1/chat/completions", id, b"{}").await;
    assert_eq!(response.status(), 502);
    assert_eq!(response.header("content-type").unwrap(), "application/json");
    assert_says(&response.head, id);
    let error = &response.json()["error"];
    assert_eq!(error["param"], serde_json::Value::Null);
    assert_says(error["message"].as_str().unwrap(), "refused");
    front.counts("queuescope_upstream_in_flight", 0).await;
    let row = front.only_row().await;
    assert_ended(&row, "proxy_error", "proxy", "connection refused");
    assert_row(&row, "req_id=mine, status=502, attempts=0, finish_time=");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn to_a_client_that_knows_no_chunks_a_cut_body_ends_by_a_reset() {
    for (last, is_whole) in [(Some(chunk("")), true), (None, false)] {
        let mut steps = streaming(vec![Step::Send(chunk(DONE))]);
        steps.push(last.map_or(Step::Close, Step::Send));
        let (_upstream, front) = playing(steps, "").await;
        let length = STREAM.len();
        let head = format!("POST /generate HTTP/1.0\r\ncontent-length: {length}\r\n\r\n");
        let mut client = front.sent([head.as_bytes(), STREAM].concat()).await;
        let mut all = Vec::new();
        let end = client.stream.read_to_end(&mut all).await;
        assert_eq!(end.is_ok(), is_whole, "{end:?}");
        let all = String::from_utf8(all).unwrap();
        let (head, body) = all.split_once("\r\n\r\n").unwrap();
        assert!(!head.contains("ransfer-"), "{head}");
        assert_eq!(body, [EVENT, DONE].concat());
        let row = front.only_row().await;
        assert_outcome(&row, if is_whole { "ok" } else { "upstream_died" }, "");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broken_heads_are_refused_and_only_counted() {
    let (upstream, front) = answering("").await;
    let broken: [&[u8]; 4] = [
        b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nNO\r\n\r\n",
        b"POST /generate HTTP/1.1\r\nhost: h\r\ncontent-length: x\r\n\r\n",
        b"POST /generate HTTP/1.1\r\nno colon here\r\n\r\n",
    ];
    for head in broken {
        let response = front.sent(head).await.response().await;
        assert_eq!(response.status(), 400, "{}", head.escape_ascii());
        assert_eq!(response.json()["error"]["code"], 400);
    }
    // Left in the middle of a head.
    drop(front.sent("POST /generate HT").await);
    // Nothing said: not broken.
    drop(front.client().await);
    front.ask("/generate", "", b"{}").await;
    front.counts("queuescope_broken_heads_total ", 5).await;
    assert_eq!(upstream.seen().len(), 1);
    assert_eq!(front.rows().await.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_status_without_a_body_is_not_cut_short() {
    let answer = "HTTP/1.1 204 No Content\r\ncontent-type: application/json\r\n\r\n";
    let (_upstream, front) = playing(vec![Step::Send(answer.into())], "").await;
    let closing = "connection: close\r\n";
    let mut client = front.asked("/generate", closing, b"{}").await;
    assert!(client.read_to_close().await.starts_with(b"HTTP/1.1 204"));
    assert_outcome(&front.only_row().await, "ok", "");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_we_refuse_is_over_with_our_answer() {
    let (_silent, front) = playing(vec![Step::Silence], "request_body_max_bytes = 10").await;
    // Its body never comes: for a while it is waited for, so that the answer is not lost.
    let head = "POST /generate HTTP/1.1\r\nhost: h\r\ncontent-length: 11\r\n\r\n";
    let mut client = front.sent(head).await;
    client.read_until(|reader| reader.is_whole(0)).await;
    let read = Clock::system().now().nanos();
    assert!(client.is_closed().await);
    let closed = Clock::system().now().nanos();
    let row = front.only_row().await;
    assert_ended(&row, "client_error", "proxy", "413");
    assert!(nanos(&row, "end_time") <= read, "{row:?}");
    // That wait, of a second, is no time of ours.
    let ours = nanos(&row, "arrival_time") + nanos(&row, "overhead");
    assert!(closed - ours > 900_000_000, "{row:?}");
}
