//! Heads that could be understood in two ways: refused, or passed on with one meaning.

use super::*;

/// Sends a POST with these further header lines to a front before `upstream`, and gives the response and the row.
async fn post(upstream: &Upstream, lines: &str, body: &str) -> (Response, Row) {
    let front = Front::start(upstream.addr).await;
    let head = format!("POST /generate HTTP/1.1\r\nhost: h\r\n{lines}\r\n\r\n");
    let response = front.sent(head + body).await.response().await;
    (response, front.only_row().await)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_id_that_connection_names_goes_up_all_the_same() {
    let upstream = Upstream::ok().await;
    let lines = "x-request-id: mine\r\nx-other: 1\r\nconnection: x-request-id, x-other\r\ncontent-length: 2";
    let (_, row) = post(&upstream, lines, "{}").await;
    let seen = &upstream.seen()[0];
    assert_eq!(seen.header("x-request-id").as_deref(), Some("mine"));
    assert_eq!(seen.header("x-other"), None);
    assert_eq!(row["req_id"], "mine");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_length_told_twice_goes_on_once_and_trailers_that_do_not_pass_are_not_announced() {
    let (twice, joined) = (
        "content-length: 2\r\ncontent-length: 2",
        "content-length: 2, 2",
    );
    let trailed = "trailer: x-sum\r\ntransfer-encoding: chunked";
    for (asks, lines, body, length) in [
        (twice, twice, "{}", Some("2")),
        (joined, joined, "{}", Some("2")),
        (twice, trailed, "2\r\n{}\r\n0\r\nx-sum: 1\r\n\r\n", None),
    ] {
        let upstream = Upstream::always(format!("HTTP/1.1 200 OK\r\n{lines}\r\n\r\n{body}")).await;
        let (response, _) = post(&upstream, asks, "{}").await;
        // Both give the header's only value.
        assert_eq!(upstream.seen()[0].header("content-length").unwrap(), "2");
        assert_eq!(response.header("content-length").as_deref(), length);
        assert_eq!(response.header("trailer"), None);
        assert!(response.whole && response.body == b"{}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_control_byte_in_the_target_is_refused() {
    let (upstream, front) = answering("").await;
    let raw = ["\0", "\x01", "\x1b", "\x7f"];
    let escaped = ["%00", "%0a", "%1B", "%7F"];
    let in_query = raw.map(|byte| format!("/generate?x={byte}y"));
    let in_path = raw.iter().chain(&escaped);
    let in_path = in_path.map(|byte| format!("/health/{byte}y"));
    let escaped_nul = "/x?y=%00".to_owned();
    for target in in_query.into_iter().chain(in_path).chain([escaped_nul]) {
        let head = format!("POST {target} HTTP/1.1\r\nhost: h\r\ncontent-length: 2\r\n\r\n");
        let response = front.sent(head + "{}").await.response().await;
        assert_eq!(response.status(), 400, "{target:?}");
    }
    assert!(upstream.seen().is_empty());
    // They are looked for in a line that comes in pieces, and nowhere else.
    let mut client = front.client().await;
    let rest = "\nhost:\th\r\ncontent-length: 2\r\n\r\n\0\0";
    for piece in ["\r\n\r\nPOST /hea", "lth HTTP/1.1\r", rest] {
        client.send(piece).await;
        tokio::task::yield_now().await;
    }
    assert_eq!(client.response().await.status(), 200);
    client.send("POST /gen").await;
    until("the first piece", || front.proxy.metrics().in_flight() == 0).await;
    client.send("erate\x01 HTTP/1.1\r\n\r\n").await;
    assert_eq!(client.response().await.status(), 400);
    // One that is pipelined is refused in its turn; in a query another escaped one may be text.
    let pipelined =
        "GET /x?y=%0a HTTP/1.1\r\nhost: h\r\n\r\nGET /x?y=\0 HTTP/1.1\r\nhost: h\r\n\r\n";
    let mut client = front.sent(pipelined).await;
    let raw = String::from_utf8(client.read_to_close().await).unwrap();
    let answers = ["HTTP/1.1 200", "HTTP/1.1 400"].map(|status| raw.contains(status));
    assert_eq!(answers, [true, true], "{raw}");
    assert!(front.rows().await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_is_not_valid_http_is_told_so() {
    let large = format!("HTTP/1.1 200 OK\r\nx: {}", "y".repeat(2_000_000));
    let two_lengths = "HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n{}";
    let in_its_body = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nnonsense\r\n";
    for answer in ["SSH-2.0-nonsense\r\n\r\n", two_lengths, &large, in_its_body] {
        let upstream = Upstream::always(answer).await;
        let (response, row) = post(&upstream, "content-length: 2", "{}").await;
        if answer != in_its_body {
            assert_eq!(response.status(), 502);
            let message = response.json()["error"]["message"].to_string();
            assert_says(&message, "not valid HTTP");
        }
        assert_outcome(&row, "upstream_died", "not valid HTTP");
    }
}

/// RFC 9110, section 15.2.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_of_http_1_0_gets_no_1xx() {
    let answer =
        "HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";
    let upstream = Upstream::always(answer).await;
    let front = Front::start(upstream.addr).await;
    for (version, interim) in [("1.0", 0), ("1.1", 1)] {
        let head = format!("GET /x HTTP/{version}\r\nhost: h\r\nconnection: close\r\n\r\n");
        let raw = front.sent(head).await.read_to_close().await;
        let raw = String::from_utf8(raw).unwrap();
        assert_eq!(raw.matches(" 103 ").count(), interim, "{raw}");
        assert!(raw.ends_with("\r\n\r\n{}"), "{raw}");
    }
}

/// RFC 9112, section 6.3: such a body ends with its connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_whose_last_coding_is_not_chunked_ends_with_the_connection() {
    for coding in ["gzip", "identity", "chunked, gzip"] {
        let answer = format!("HTTP/1.1 200 OK\r\ntransfer-encoding: {coding}\r\n\r\nabc");
        let answer = vec![Step::Send(answer.into()), Step::Close];
        let (_upstream, front) = playing(answer, "").await;
        let mut client = front.asked("/x", "", b"{}").await;
        let raw = String::from_utf8(client.read_to_close().await).unwrap();
        assert_says(&raw.to_ascii_lowercase(), "\r\nconnection: close");
        assert!(raw.ends_with("\r\n\r\nabc"), "{raw}");
    }
}

/// What a client begins with, and the status that it gets.
const HEADS: [(&str, u16); 7] = [
    (
        "CONNECT example.com:443 HTTP/1.1\r\nhost: example.com:443",
        405,
    ),
    ("GET /x HTTP/1.1", 400),
    ("GET /x HTTP/1.0\r\nconnection: close", 200),
    ("GET http://h/x HTTP/1.1\r\nconnection: close", 200),
    (
        "POST /generate HTTP/1.1\r\nhost: h\r\ntransfer-encoding: gzip, chunked",
        501,
    ),
    (
        "POST /generate HTTP/1.1\r\nhost: h\r\ntransfer-encoding: gzip\r\ntransfer-encoding: chunked",
        501,
    ),
    (
        "POST /x HTTP/1.1\r\nhost: h\r\nconnection: close\r\ntransfer-encoding: Chunked",
        200,
    ),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_host_tunnels_and_other_codings_than_chunked_are_refused_in_our_words() {
    let (upstream, front) = answering("").await;
    for (head, status) in HEADS {
        let body = if head.contains("encoding") {
            "2\r\n{}\r\n0\r\n\r\n"
        } else {
            ""
        };
        let mut client = front.sent(format!("{head}\r\n\r\n{body}")).await;
        let response = client.response().await;
        assert_eq!(response.status(), status, "{head}");
        if status != 200 {
            assert_eq!(response.json()["error"]["type"], "invalid_request_error");
        }
        assert!(client.is_closed().await);
    }
    assert_eq!(front.counter("queuescope_broken_heads_total "), 0);
    assert_eq!(upstream.seen().len(), 3);
    front
        .all_end(2, "client_error", "501 the only Transfer-Encoding")
        .await;
}
