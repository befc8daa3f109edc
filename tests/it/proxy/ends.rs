//! Each way in which a request can end leaves exactly one record, and the upstream is let go at once.

use std::time::Duration;

use tokio::io::AsyncReadExt;

use crate::support::proxy::{Front, Row, assert_outcome};
use crate::support::upstream::{EVENT, Gate, Step, Upstream, begun, done, refusing};
use crate::support::wire::{Client, Response, chunk, json_response, post, until};

const STREAM: &[u8] = br#"{"text":"a b c","stream":true,"sampling_params":{"max_new_tokens":4}}"#;

/// A server that plays these steps to every request.
async fn playing(steps: Vec<Step>) -> Upstream {
    Upstream::start(move |_, _| steps.clone()).await
}

fn streaming(then: Vec<Step>) -> Vec<Step> {
    [begun(), then].concat()
}

/// Sends one streamed request, reads the response to its end, and gives the only row.
async fn one(steps: Vec<Step>) -> (Response, Row) {
    let upstream = playing(steps).await;
    let front = Front::start(upstream.addr).await;
    let mut client = front.client().await;
    let response = client.ask("/generate", "", STREAM).await;
    (response, front.only_row().await)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_whole_stream_is_ok() {
    let (response, row) = one(streaming(done())).await;
    assert!(response.whole);
    assert_outcome(&row, "ok", "");
    for (column, value) in [
        ("status", "200"),
        ("attempts", "1"),
        ("upstream_reused", "False"),
        ("input_length", "3"),
        ("expected_output_length", "4"),
        ("stream", "True"),
        ("host", ""),
        ("router_send_time", ""),
        ("engine_id", "e"),
    ] {
        assert_eq!(row[column], value, "{column}");
    }
    let time = |column: &str| row[column].parse::<f64>().unwrap();
    assert!(time("arrival_time") > 1.7e9);
    assert!(time("first_token_time") <= time("finish_time"));
    assert_eq!(row["inconsistency"], "");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_during_its_upload() {
    let upstream = playing(vec![Step::Silence]).await;
    let front = Front::start(upstream.addr).await;
    let mut client = front.client().await;
    let all = post("/generate", "", &[b' '; 300_000]);
    client.send(&all[..200_000]).await;
    until("a part of the body", || upstream.received() > 100_000).await;
    drop(client);
    until("the upstream let go", || upstream.gone() == 1).await;
    assert!(!upstream.seen()[0].whole && !upstream.seen()[0].body.is_empty());
    let row = front.only_row().await;
    assert_outcome(&row, "client_abort", "client");
    assert_eq!(row["ended_in"], "to proxy");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_while_it_reads_nothing() {
    let mut steps = streaming(Vec::new());
    steps.extend((0..300).map(|_| Step::Send(chunk("x".repeat(60_000)))));
    steps.push(Step::Silence);
    let upstream = playing(steps).await;
    let front = Front::start(upstream.addr).await;
    let mut client = Client::with_small_buffer(front.addr()).await;
    client.post("/generate", "", STREAM).await;
    assert!(upstream.stands_still().await < 300);
    client.reset();
    let row = front.only_row().await;
    assert_outcome(&row, "client_abort", "client");
    drop(upstream);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_after_the_last_event_has_all_it_wanted() {
    let steps = streaming(vec![Step::Send(chunk("data: [DONE]\n\n")), Step::Silence]);
    let upstream = playing(steps).await;
    let front = Front::start(upstream.addr).await;
    let mut client = front.client().await;
    client.post("/generate", "", STREAM).await;
    client
        .read_until(|reader| reader.body.ends_with(b"[DONE]\n\n"))
        .await;
    drop(client);
    assert_outcome(&front.only_row().await, "ok", "");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_connection_is_a_502() {
    let front = Front::start(refusing().await).await;
    let mut client = front.client().await;
    let response = client
        .ask("/v1/chat/completions", "x-request-id: mine\r\n", b"{}")
        .await;
    assert_eq!(response.status(), 502);
    assert_eq!(response.header("content-type").unwrap(), "application/json");
    assert_eq!(response.header("x-request-id").unwrap(), "mine");
    let error = &response.json()["error"];
    assert_eq!(error["code"], 502);
    assert_eq!(error["type"], "bad_gateway");
    assert_eq!(error["param"], serde_json::Value::Null);
    assert!(error["message"].as_str().unwrap().contains("refused"));
    let row = front.only_row().await;
    assert_outcome(&row, "proxy_error", "connection refused");
    let columns = ["req_id", "status", "attempts", "finish_time", "ended_in"];
    let cells = columns.map(|column| row[column].as_str());
    assert_eq!(cells, ["mine", "502", "0", "", "proxy"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upstream_that_breaks_off_before_its_answer_is_a_502() {
    for last in [
        Step::Reset,
        Step::Close,
        Step::Send(b"SSH-2.0-nonsense\r\n\r\n".to_vec()),
    ] {
        let (response, row) = one(vec![last, Step::Close]).await;
        assert_eq!(response.status(), 502);
        assert_eq!(response.json()["error"]["type"], "bad_gateway");
        assert!(response.header("x-request-id").is_some());
        assert_outcome(&row, "upstream_died", "127.0.0.1:");
        assert_eq!(
            (row["status"].as_str(), row["attempts"].as_str()),
            ("502", "1")
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upstream_that_dies_within_its_stream_cuts_the_clients() {
    for last in [Step::Close, Step::Reset] {
        let (response, row) = one(streaming(vec![
            // A reset takes what has not been read yet with it.
            Step::Pause(Duration::from_millis(300)),
            last,
        ]))
        .await;
        assert_eq!(response.status(), 200);
        assert_eq!(response.body, EVENT.as_bytes());
        assert!(!response.whole, "the client must see that it was cut");
        assert_outcome(&row, "upstream_died", "127.0.0.1:");
        assert_ne!(row["first_token_time"], "");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_shorter_than_its_length_is_cut() {
    let answer =
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 90\r\n\r\n{";
    let (response, row) = one(vec![Step::Send(answer.to_vec()), Step::Close]).await;
    assert!(!response.whole);
    assert_outcome(&row, "upstream_died", "");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn to_a_client_that_knows_no_chunks_a_cut_body_ends_by_a_reset() {
    for (last, is_whole) in [(Some(chunk("")), true), (None, false)] {
        let mut steps = streaming(vec![Step::Send(chunk("data: [DONE]\n\n"))]);
        steps.push(last.map_or(Step::Close, Step::Send));
        let upstream = playing(steps).await;
        let front = Front::start(upstream.addr).await;
        let mut client = front.client().await;
        let length = STREAM.len();
        let head = format!("POST /generate HTTP/1.0\r\ncontent-length: {length}\r\n\r\n");
        client.send([head.as_bytes(), STREAM].concat()).await;
        let mut all = Vec::new();
        let end = client.stream.read_to_end(&mut all).await;
        assert_eq!(end.is_ok(), is_whole, "{end:?}");
        let all = String::from_utf8(all).unwrap();
        let (head, body) = all.split_once("\r\n\r\n").unwrap();
        assert!(!head.contains("ransfer-"), "{head}");
        assert_eq!(body, [EVENT, "data: [DONE]\n\n"].concat());
        let row = front.only_row().await;
        assert_outcome(&row, if is_whole { "ok" } else { "upstream_died" }, "");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_needs_its_own_end_however_the_message_ends() {
    let (response, row) = one(streaming(vec![Step::Send(chunk(""))])).await;
    assert!(response.whole);
    assert_outcome(&row, "upstream_died", "without its end");
    // A body that ends with its connection is whole.
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";
    let answer = [head, EVENT, "data: [DONE]\n\n"].concat();
    let (response, row) = one(vec![Step::Send(answer.into_bytes()), Step::Close]).await;
    assert!(response.whole && response.body.ends_with(b"[DONE]\n\n"));
    assert_outcome(&row, "ok", "");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_off_leaves_a_record_for_each_request_in_flight() {
    let never = Gate::new();
    let upstream = playing(streaming(vec![Step::Gate(never.clone())])).await;
    let front = Front::start(upstream.addr).await;
    let mut clients = Vec::new();
    for _ in 0..5 {
        let mut client = front.client().await;
        client.post("/generate", "", STREAM).await;
        client.read_until(|reader| !reader.body.is_empty()).await;
        clients.push(client);
    }
    front.proxy.abort().await;
    for client in &mut clients {
        assert!(client.is_closed().await);
    }
    let rows = front.rows().await;
    assert_eq!(rows.len(), 5);
    for row in &rows {
        assert_outcome(row, "proxy_error", "shut down");
        assert_ne!(row["first_token_time"], "");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broken_heads_are_refused_and_only_counted() {
    let upstream = Upstream::always(json_response("{}")).await;
    let front = Front::start(upstream.addr).await;
    let broken: [&[u8]; 4] = [
        b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nNO\r\n\r\n",
        b"POST /generate HTTP/1.1\r\nhost: h\r\ncontent-length: x\r\n\r\n",
        b"POST /generate HTTP/1.1\r\nno colon here\r\n\r\n",
    ];
    for head in broken {
        let mut client = front.client().await;
        client.send(head).await;
        let response = client.response().await;
        assert_eq!(response.status(), 400, "{}", String::from_utf8_lossy(head));
    }
    // Left in the middle of a head.
    let mut client = front.client().await;
    client.send("POST /generate HT").await;
    drop(client);
    // Nothing said: not broken.
    drop(front.client().await);
    let mut client = front.client().await;
    client.ask("/generate", "", b"{}").await;
    drop(client);
    let counted = || front.counter("queuescope_broken_heads_total ");
    until("all five", || counted() == 5).await;
    assert_eq!(upstream.seen().len(), 1);
    assert_eq!(front.rows().await.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_with_broken_framing_is_refused() {
    let upstream = playing(vec![Step::Silence]).await;
    let front = Front::start(upstream.addr).await;
    let mut client = front.client().await;
    let head = "POST /generate HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n";
    client.send(format!("{head}5\r\nabcde\r\nzz\r\n")).await;
    assert_eq!(client.response().await.status(), 400);
    until("the upstream let go", || upstream.gone() == 1).await;
    let row = front.only_row().await;
    assert_outcome(&row, "client_error", "400");
    assert_eq!(row["status"], "400");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_status_without_a_body_is_not_cut_short() {
    let answer = "HTTP/1.1 204 No Content\r\ncontent-type: application/json\r\n\r\n";
    let upstream = Upstream::always(answer).await;
    let front = Front::start(upstream.addr).await;
    let mut client = front.client().await;
    client
        .post("/generate", "connection: close\r\n", b"{}")
        .await;
    assert!(client.read_to_close().await.starts_with(b"HTTP/1.1 204"));
    assert_outcome(&front.only_row().await, "ok", "");
}
