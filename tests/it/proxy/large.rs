//! Requests of many megabytes, as multimodal ones are.

use ring::digest::{Context, SHA256};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

use crate::support::proxy::Front;
use crate::support::wire::json_response;

const IMAGE: usize = 64 << 20;
/// What sockets may hold on two hops, and no more: the proxy itself keeps nothing.
const HELD: usize = 48 << 20;

/// The parts of a chat's body before and after its image of [`IMAGE`] bytes.
const BEFORE: &str = r#"{"messages":[{"role":"user","content":[{"type":"text","text":"what is this"},
    {"type":"image_url","image_url":{"url":"data:image/png;base64,"#;
const AFTER: &str = r#""}}]}],"model":"seer","stream":false,"max_tokens":7}"#;

/// Bytes of base64, none like those a MiB before.
fn piece(index: usize) -> Vec<u8> {
    let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let letter = |at: usize| alphabet[(at * 31 + index * 17 + at / 64) % 64];
    (0..1 << 20).map(letter).collect()
}

/// Reads nothing until it may, then digests the body as it comes, and answers.
async fn digest(mut stream: TcpStream, length: usize, may: oneshot::Receiver<()>) -> Vec<u8> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    may.await.unwrap();
    let (mut digest, mut left) = (Context::new(&SHA256), length);
    let mut buffer = vec![0; 1 << 16];
    while left > 0 {
        let read = stream.read(&mut buffer[..left.min(1 << 16)]).await.unwrap();
        assert!(read > 0, "{left} bytes are missing");
        digest.update(&buffer[..read]);
        left -= read;
    }
    let answer = r#"{"id":"i","choices":[{"index":0,"message":{"content":"a cat"}}]}"#;
    stream.write_all(&json_response(answer)).await.unwrap();
    digest.finish().as_ref().to_vec()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_image_of_64_mib_passes_as_it_comes_and_what_surrounds_it_is_read() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let front = Front::start(listener.local_addr().unwrap()).await;
    let length = BEFORE.len() + IMAGE + AFTER.len();
    let (let_read, may) = oneshot::channel();
    let upstream = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        digest(stream, length, may).await
    });

    let mut body = BEFORE.as_bytes().to_vec();
    (0..IMAGE >> 20).for_each(|index| body.extend(piece(index)));
    body.extend_from_slice(AFTER.as_bytes());
    let mut client = front.client().await;
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: h\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\n\r\n"
    );
    client.send(head.as_bytes()).await;
    let sent = client.send_until_still(&body).await;
    assert!(sent < HELD, "{sent} bytes went out though nobody read them");
    let_read.send(()).unwrap();
    client.send(&body[sent..]).await;
    assert_eq!(client.response().await.status(), 200);

    let expected = ring::digest::digest(&SHA256, &body);
    assert_eq!(upstream.await.unwrap(), expected.as_ref());
    let row = front.only_row().await;
    let cell = |name: &str| row[name].clone();
    assert_eq!(cell("outcome"), "ok", "{row:?}");
    assert_eq!(
        (cell("model").as_str(), cell("stream").as_str()),
        ("seer", "False")
    );
    assert_eq!(
        (
            cell("input_length").as_str(),
            cell("expected_output_length").as_str()
        ),
        ("3", "7")
    );
    assert_eq!(cell("has_generated_text"), "True");
}
