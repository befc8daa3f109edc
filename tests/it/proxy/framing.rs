//! Heads that could be understood in two ways: refused, or passed on with one meaning.

use crate::support::proxy::{Front, Row, assert_outcome};
use crate::support::upstream::{Step, Upstream};
use crate::support::wire::{Response, chunk, until};

/// Sends raw bytes to a front before `upstream`, and gives the response and the rows.
async fn send(upstream: &Upstream, bytes: &[u8]) -> (Response, Vec<Row>) {
    let front = Front::start(upstream.addr).await;
    let mut client = front.sent(bytes).await;
    let response = client.response().await;
    drop(client);
    (response, front.rows().await)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_id_that_connection_names_goes_up_all_the_same() {
    let upstream = Upstream::ok().await;
    let request = b"POST /generate HTTP/1.1\r\nhost: h\r\nx-request-id: mine\r\nx-other: 1\r\n\
                    connection: x-request-id, x-other\r\ncontent-length: 2\r\n\r\n{}";
    let (_, rows) = send(&upstream, request).await;
    let seen = &upstream.seen()[0];
    assert_eq!(seen.header("x-request-id").as_deref(), Some("mine"));
    assert_eq!(seen.header("x-other"), None);
    assert_eq!(rows[0]["req_id"], "mine");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_length_told_twice_goes_on_once() {
    for lengths in [
        "content-length: 2\r\ncontent-length: 2",
        "content-length: 2, 2",
    ] {
        let answer = format!("HTTP/1.1 200 OK\r\n{lengths}\r\n\r\n{{}}");
        let upstream = Upstream::always(answer).await;
        let request = format!("POST /generate HTTP/1.1\r\nhost: h\r\n{lengths}\r\n\r\n{{}}");
        let (response, rows) = send(&upstream, request.as_bytes()).await;
        // Both give the header's only value.
        assert_eq!(upstream.seen()[0].header("content-length").unwrap(), "2");
        assert_eq!(response.header("content-length").unwrap(), "2");
        assert_eq!(response.body, b"{}");
        assert_eq!(rows.len(), 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn codings_other_than_chunked_are_refused() {
    let upstream = Upstream::ok().await;
    for coding in ["gzip, chunked", "gzip\r\ntransfer-encoding: chunked"] {
        let request = format!(
            "POST /generate HTTP/1.1\r\nhost: h\r\ntransfer-encoding: {coding}\r\n\r\n2\r\n{{}}\r\n0\r\n\r\n"
        );
        let (response, rows) = send(&upstream, request.as_bytes()).await;
        assert_eq!(response.status(), 501, "{coding}");
        assert_outcome(&rows[0], "client_error", "Transfer-Encoding");
    }
    assert!(upstream.seen().is_empty());
    let request = b"POST /generate HTTP/1.1\r\nhost: h\r\ntransfer-encoding: Chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n";
    assert_eq!(send(&upstream, request).await.0.status(), 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_control_byte_in_the_target_is_refused() {
    let upstream = Upstream::ok().await;
    for byte in [0, 1, 0x1b, 0x7f] {
        for path in ["/generate?x=", "/health/"] {
            let target = [path.as_bytes(), &[byte], b"y"].concat();
            let request = [
                b"POST ".as_slice(),
                &target,
                b" HTTP/1.1\r\nhost: h\r\ncontent-length: 2\r\n\r\n{}",
            ];
            let (response, rows) = send(&upstream, &request.concat()).await;
            assert_eq!(response.status(), 400, "{byte} in {path}");
            assert!(rows.is_empty(), "{rows:?}");
        }
    }
    assert!(upstream.seen().is_empty());
    // They are looked for in a line that comes in pieces, and nowhere else.
    let front = Front::start(upstream.addr).await;
    let mut client = front.client().await;
    for piece in [
        "\r\n\r\nPOST /gen",
        "erate HTTP/1.1\r",
        "\nhost:\th\r\ncontent-length: 2\r\n\r\n\0\0",
    ] {
        client.send(piece).await;
        tokio::task::yield_now().await;
    }
    assert_eq!(client.response().await.status(), 200);
    client.send("POST /gen").await;
    until("the first piece", || front.proxy.metrics().in_flight() == 0).await;
    client.send("erate\x01 HTTP/1.1\r\n\r\n").await;
    assert_eq!(client.response().await.status(), 400);
    // One that is pipelined is refused in its turn.
    let pipelined =
        "GET /health HTTP/1.1\r\nhost: h\r\n\r\nGET /x?y=\0 HTTP/1.1\r\nhost: h\r\n\r\n";
    let mut client = front.sent(pipelined).await;
    let raw = String::from_utf8(client.read_to_close().await).unwrap();
    let answers = ["HTTP/1.1 200", "HTTP/1.1 400"].map(|status| raw.contains(status));
    assert_eq!(answers, [true, true], "{raw}");
    // In a query they may be text.
    let (response, _) = send(&upstream, b"GET /x?y=%0a HTTP/1.1\r\nhost: h\r\n\r\n").await;
    assert_eq!(response.status(), 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trailers_are_not_announced_as_they_do_not_pass() {
    let head = b"HTTP/1.1 200 OK\r\ntrailer: x-sum\r\ntransfer-encoding: chunked\r\n\r\n";
    let body = [chunk("data: [DONE]\n\n"), b"0\r\nx-sum: 1\r\n\r\n".to_vec()].concat();
    let steps = vec![Step::Send(head.to_vec()), Step::Send(body)];
    let upstream = Upstream::start(move |_, _| steps.clone()).await;
    let request = b"POST /generate HTTP/1.1\r\nhost: h\r\ncontent-length: 2\r\n\r\n{}";
    let (response, _) = send(&upstream, request).await;
    assert!(response.whole && response.body == b"data: [DONE]\n\n");
    assert_eq!(response.header("trailer"), None);
}
