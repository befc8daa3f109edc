//! Clients that speak HTTP/2 to the front: the same rows and promises, stream by stream.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use tokio::net::TcpStream;

use crate::support::http2::Http2;
use crate::support::proxy::{Front, answering, assert_cells, assert_outcome, playing};
use crate::support::recordings;
use crate::support::upstream::{EVENT, Gate, Step, Upstream, begun, done, endless};
use crate::support::wire::{Client, headers, stream_head, until, until_async};

use super::tls::{self, secure};

const STREAM: &[u8] = br#"{"text":"a b c","stream":true,"sampling_params":{"max_new_tokens":4}}"#;

fn header(name: &str, value: &str) -> HeaderMap {
    let name = HeaderName::try_from(name).unwrap();
    HeaderMap::from_iter([(name, HeaderValue::try_from(value).unwrap())])
}

fn whole_stream() -> Vec<Step> {
    [begun(), done()].concat()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_is_a_request_like_any_other() {
    let (upstream, front) = playing(whole_stream(), "").await;
    let mut client = Http2::connect(front.addr()).await;
    let asked = header("x-request-id", "mine");
    let call = client.begin("/generate", asked, STREAM, false).await;
    let answer = call.answer().await;
    assert_eq!((answer.status, answer.broken.is_none()), (200, true));
    assert_eq!(answer.body, [EVENT, "data: [DONE]\n\n"].concat().as_bytes());
    assert!(answer.headers.get("transfer-encoding").is_none());
    let seen = &upstream.seen()[0];
    assert!(
        seen.head.starts_with("POST /generate HTTP/1.1\r\n"),
        "{}",
        seen.head
    );
    assert_eq!(seen.header("host").as_deref(), Some("h"));
    assert_eq!(seen.header("x-request-id").as_deref(), Some("mine"));
    assert!(seen.header("traceparent").is_some());
    assert_eq!(seen.body, STREAM);
    client.end().await.unwrap();
    // One that asks nothing is no broken head either; what is no HTTP/2 after all is one.
    Http2::connect(front.addr()).await.end().await.unwrap();
    let mut garbage = front
        .sent("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nno frames, but text")
        .await;
    garbage.read_to_close().await;
    let broken = || front.counter("queuescope_broken_heads_total ");
    until("the broken one", || broken() > 0).await;
    assert_eq!(broken(), 1);
    let row = front.only_row().await;
    assert_outcome(&row, "ok", "");
    for (column, value) in [
        ("req_id", "mine"),
        ("status", "200"),
        ("input_length", "3"),
        ("expected_output_length", "4"),
        ("stream", "True"),
        ("engine_id", "e"),
        ("inconsistency", ""),
    ] {
        assert_eq!(row[column], value, "{column}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_clients_that_can_speak_it_do() {
    let upstream = Upstream::start(|_, _| whole_stream()).await;
    let (certificate, front) = secure(upstream.addr).await;
    let stream = TcpStream::connect(front.addr()).await.unwrap();
    let stream = tls::over(stream, &certificate.der, &["h2", "http/1.1"]).await;
    let stream = stream.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(b"h2".as_slice()));
    let mut client = Http2::over(stream).await;
    let answer = client.post("/generate", STREAM).await.answer().await;
    assert_eq!(answer.status, 200);
    drop(client);
    assert_outcome(&front.only_row().await, "ok", "");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_recording_passes_unchanged() {
    let upstream = Upstream::start(|_, request| {
        let case = request.header("x-case").unwrap();
        let raw = recordings::named(&case).raw.into_iter();
        raw.map(Step::Send).chain([Step::Close]).collect()
    })
    .await;
    let front = Front::start(upstream.addr).await;
    let mut client = Http2::connect(front.addr()).await;
    let mut count = 0;
    for recording in recordings::all().iter().filter(|all| all.method == "POST") {
        let case = &recording.case;
        let asked = header("x-case", case);
        let call = client.begin(&recording.path, asked, &recording.request_body, false);
        let answer = call.await.answer().await;
        assert_eq!(answer.status, recording.status, "{case}");
        assert!(answer.body == recording.body(), "{case}: the body differs");
        for name in ["content-type", "content-length"] {
            let got = answer
                .headers
                .get(name)
                .map(|value| value.to_str().unwrap());
            assert_eq!(got, recording.header(name), "{case}: {name}");
        }
        count += 1;
    }
    assert!(count > 30, "{count}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_streams_reset_lets_one_upstream_go() {
    let gate = Gate::new();
    let opened = gate.clone();
    let upstream = Upstream::start(move |_, request| {
        let mut steps = vec![Step::Send(stream_head())];
        if request.header("x-case").is_some() {
            steps.push(Step::Silence);
        } else {
            steps.push(Step::Gate(opened.clone()));
            steps.extend(whole_stream().into_iter().skip(1));
        }
        steps
    })
    .await;
    let front = Front::start(upstream.addr).await;
    let mut client = Http2::connect(front.addr()).await;
    let stays = client.post("/generate", STREAM).await;
    let leaves = client
        .begin("/generate", header("x-case", "silent"), STREAM, false)
        .await;
    until("both requests", || upstream.seen().len() == 2).await;
    leaves.reset();
    until("the upstream let go", || upstream.gone() == 1).await;
    gate.open();
    let answer = stays.answer().await;
    assert!(answer.broken.is_none() && answer.body.ends_with(b"[DONE]\n\n"));
    drop(client);
    let mut outcomes: Vec<String> = front
        .rows()
        .await
        .into_iter()
        .map(|mut row| row.remove("outcome").unwrap())
        .collect();
    outcomes.sort();
    assert_eq!(outcomes, ["client_abort", "ok"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_breaks_ends_all_its_requests() {
    let (upstream, front) = playing(vec![Step::Silence], "").await;
    let mut client = Http2::connect(front.addr()).await;
    let mut calls = Vec::new();
    for _ in 0..5 {
        calls.push(client.post("/generate", STREAM).await);
    }
    // One is still being sent.
    calls.push(
        client
            .begin("/generate", HeaderMap::new(), b"{", true)
            .await,
    );
    until("all requests", || upstream.seen().len() >= 5).await;
    client.kill();
    until("the upstreams let go", || {
        front.proxy.metrics().in_flight() == 0
    })
    .await;
    let rows = front.rows().await;
    assert_eq!(rows.len(), 6);
    for row in rows {
        assert_outcome(&row, "client_abort", "client");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upstream_that_dies_breaks_its_stream() {
    let upstream = Upstream::start(|turn, _| {
        let then = if turn == 0 { Step::Reset } else { Step::Close };
        [begun(), vec![then]].concat()
    })
    .await;
    let front = Front::start(upstream.addr).await;
    let mut client = Http2::connect(front.addr()).await;
    for _ in 0..2 {
        let answer = client.post("/generate", STREAM).await.answer().await;
        assert!(answer.broken.is_some(), "{answer:?}");
        assert_eq!(answer.body, EVENT.as_bytes());
    }
    drop(client);
    for row in front.rows().await {
        assert_outcome(&row, "upstream_died", "");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_head_without_a_body_ends_the_stream() {
    let not_modified = b"HTTP/1.1 304 Not Modified\r\ncontent-length: 123\r\n\r\n";
    let (_upstream, front) = playing(vec![Step::Send(not_modified.to_vec())], "").await;
    let mut client = Http2::connect(front.addr()).await;
    let answer = client.post("/get_model_info", b"").await.answer().await;
    assert!(answer.broken.is_none(), "{:?}", answer.broken);
    assert_eq!(answer.status, 304);
    assert_eq!(answer.body, b"");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_count_among_the_connections_that_are_taken() {
    let (upstream, front) = playing(vec![Step::Silence], "max_connections = 2").await;
    let mut client = Http2::connect(front.addr()).await;
    // The first stands for the connection.
    let _first = client.post("/generate", STREAM).await;
    let second = client.post("/generate", STREAM).await;
    until("both requests", || upstream.seen().len() == 2).await;
    let refused = client.post("/generate", STREAM).await.head().await;
    let reason = refused.unwrap_err().reason();
    assert_eq!(reason, Some(h2::Reason::REFUSED_STREAM));
    let health = client.post("/health", b"").await.head().await;
    assert!(health.is_err(), "it generates nothing: no row");
    let limit = "queuescope_client_limits_total{limit=\"connections\"} ";
    assert_eq!(front.counter(limit), 2);
    // One that ends makes room.
    second.reset();
    until("it is over", || upstream.gone() == 1).await;
    until_async("another is taken", async || {
        let _another = client.post("/generate", STREAM).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
        upstream.seen().len() > 2
    })
    .await;
    client.kill();
    let rows = front.rows().await;
    let mut refused = rows.iter().filter(|row| row["outcome"] == "rejected");
    let row = refused.next().expect("each generation request has a row");
    assert_outcome(row, "rejected", "as many connections as it takes");
    assert_cells(row, [("status", ""), ("attempts", "0")]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_is_not_read_shows_as_stall_and_presses_back() {
    let (upstream, front) = playing(endless(), "client_stall_timeout_s = 0.2").await;
    let mut client = Http2::connect(front.addr()).await;
    let response = client.post("/generate", STREAM).await.head().await.unwrap();
    assert!(upstream.stands_still().await < 300);
    until("the upstream let go", || {
        front.proxy.metrics().in_flight() == 0
    })
    .await;
    // Another stream of the connection is served meanwhile, and after.
    drop(response);
    let quick = client.post("/health", b"").await;
    drop(quick);
    drop(client);
    let limit = "queuescope_client_limits_total{limit=\"stall\"} ";
    front.counts(limit, 1).await;
    let row = front.only_row().await;
    assert_outcome(&row, "timeout", "the client: held up the response");
    assert!(
        row["client_stall"].parse::<f64>().unwrap() > 0.19,
        "{row:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_hold_for_each_stream() {
    let (_upstream, front) =
        answering("request_body_max_bytes = 1000\nrequest_head_max_bytes = 2000").await;
    let mut client = Http2::connect(front.addr()).await;
    let body = client.post("/generate", &[b' '; 1001]).await.answer().await;
    assert_eq!(body.status, 413);
    let large = header("x-large", &"x".repeat(2000));
    let head = client
        .begin("/generate", large, b"{}", false)
        .await
        .answer()
        .await;
    assert_eq!(head.status, 431);
    let fine = client.post("/generate", b"{}").await.answer().await;
    assert_eq!((fine.status, fine.body.as_slice()), (200, b"{}".as_slice()));
    drop(client);
    let rows = front.rows().await;
    assert_eq!(rows.len(), 2, "{rows:?}");
    assert_outcome(&rows[0], "client_error", "413");
    assert_outcome(&rows[1], "ok", "");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_lets_streams_end_and_closes_the_connection() {
    let gate = Gate::new();
    let opened = gate.clone();
    let upstream = Upstream::start(move |_, _| {
        let gated = [Step::Gate(opened.clone())];
        gated.into_iter().chain(whole_stream()).collect()
    })
    .await;
    let front = Front::start(upstream.addr).await;
    let mut client = Http2::connect(front.addr()).await;
    let idle = Http2::connect(front.addr()).await;
    let call = client.post("/generate", STREAM).await;
    until("the request", || upstream.seen().len() == 1).await;
    let ending = async {
        // The idle connection closes while the other's request goes on.
        idle.end().await.unwrap();
        gate.open();
        let answer = call.answer().await;
        assert!(answer.broken.is_none() && answer.body.ends_with(b"[DONE]\n\n"));
        client.end().await.unwrap();
    };
    let (rows, ()) = tokio::join!(front.rows(), ending);
    assert_eq!(rows.len(), 1);
    assert_outcome(&rows[0], "ok", "");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_begins_like_it_and_is_not_is_http_1() {
    let (upstream, front) = answering("client_head_timeout_s = 1.0").await;
    let mut client = front.client().await;
    for piece in ["P", "R", "OPFIND /x HTTP/1.1\r\nhost: h\r\n\r\n"] {
        client.send(piece).await;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(client.response().await.status(), 200);
    // Part of the preface is part of a head.
    let mut slow = Client::connect(front.addr()).await;
    slow.send("PRI * HT").await;
    assert_eq!(slow.response().await.status(), 408);
    assert_eq!(upstream.seen().len(), 1);
    assert!(headers(&upstream.seen()[0].head).len() > 1);
}
