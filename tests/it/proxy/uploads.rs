//! Bodies that a server takes slowly or not at all, while it answers.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinHandle;

use crate::support::proxy::{Front, assert_outcome};
use crate::support::upstream::{DONE, EVENT, Gate};
use crate::support::wire::{Client, PATIENCE, Reader, chunk, post, post_chunked, stream_head};

use super::leaving::hasty;

/// A listener whose connections hold little that was not read.
fn small() -> TcpListener {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(65_536).unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    socket.listen(8).unwrap()
}

async fn read_until(
    stream: &mut TcpStream,
    reader: &mut Reader,
    is_enough: impl Fn(&Reader) -> bool,
) {
    let mut buffer = vec![0; 65_536];
    while !is_enough(reader) {
        let read = stream.read(&mut buffer).await.unwrap();
        assert!(read > 0, "the request is cut off");
        reader.feed(&buffer[..read]);
    }
}

/// A server that begins its answer once it has a request's head and may, and reads the body when it may. Returns that body.
fn early(answers: &Gate, reads: &Gate) -> (SocketAddr, JoinHandle<Vec<u8>>) {
    let (listener, answers, reads) = (small(), answers.clone(), reads.clone());
    let addr = listener.local_addr().unwrap();
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut reader = Reader::default();
        read_until(&mut stream, &mut reader, |reader| reader.head.is_some()).await;
        answers.passed().await;
        let begun = [stream_head(), chunk(EVENT)].concat();
        stream.write_all(&begun).await.unwrap();
        reads.passed().await;
        read_until(&mut stream, &mut reader, |reader| reader.is_whole(0)).await;
        let done = [chunk(DONE), chunk("")].concat();
        stream.write_all(&done).await.unwrap();
        reader.body
    });
    (addr, server)
}

/// Each byte is what it was, however often a write to the server waited.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_server_says_is_passed_on_while_it_takes_nothing_and_it_gets_the_whole_body_then() {
    let body: Vec<u8> = (0..32 << 20).map(|at| (at % 251) as u8).collect();
    for is_chunked in [false, true] {
        let (answers, reads) = (Gate::new(), Gate::new());
        let (addr, server) = early(&answers, &reads);
        let front = Front::start(addr).await;
        let all = match is_chunked {
            true => post_chunked("/generate", &body, 50_000),
            false => post("/generate", "", &body),
        };
        let mut client = front.client().await;
        let sent = client.send_until_still(&all).await;
        assert!(sent < all.len(), "all was taken");
        answers.open();
        let begun = client.read_until(|reader| !reader.body.is_empty()).await;
        assert_eq!(begun.body, EVENT.as_bytes());
        reads.open();
        client.send(&all[sent..]).await;
        let taken = tokio::time::timeout(PATIENCE, server).await;
        assert!(taken.unwrap().unwrap() == body, "the body is another");
        let row = front.only_row().await;
        assert_outcome(&row, "ok", "");
        drop(client);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_takes_nothing_for_too_long_is_a_504() {
    let (addr, _server) = {
        let listener = small();
        let addr = listener.local_addr().unwrap();
        let accepts = async move { listener.accept().await.unwrap() };
        (addr, tokio::spawn(accepts))
    };
    let keys = "upstream_write_timeout_s = 0.3\nupstream_read_timeout_s = 1.0";
    let front = Front::keyed(&[addr], keys).await;
    let mut client = front.client().await;
    let all = post("/generate", "", &vec![b'x'; 32 << 20]);
    client.send_until_still(&all).await;
    assert_eq!(client.response().await.status(), 504);
    assert_outcome(&front.only_row().await, "timeout", "for too long");
}

/// A client may be silent while its server takes nothing, but not after that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_is_silent_once_its_server_takes_more_is_given_up() {
    let (answers, reads) = (Gate::new(), Gate::new());
    let (addr, _server) = early(&answers, &reads);
    let keys = "client_read_timeout_s = 0.3\nupstream_write_timeout_s = 3600.0";
    let front = Front::keyed(&[addr], keys).await;
    let mut client = front.client().await;
    client
        .send_until_still(&post("/generate", "", &vec![b'x'; 32 << 20]))
        .await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    answers.open();
    client.read_until(|reader| !reader.body.is_empty()).await;
    reads.open();
    assert_outcome(&front.only_row().await, "timeout", "the client: silent");
}

/// The limits on bodies count what the client does not send, not what we do not read of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_is_not_late_that_is_not_read_as_the_client_reads_nothing() {
    const BYTES: usize = 12 << 20;
    let gate = Gate::new();
    gate.open();
    let answer = [stream_head(), chunk(vec![b'x'; BYTES])].concat();
    let (server, _) = hasty(&gate, answer).await;
    let front = Front::keyed(&[server], "client_body_timeout_s = 2.0").await;
    let mut client = Client::with_buffer(front.addr(), 65_536).await;
    client
        .send("POST /generate HTTP/1.1\r\nhost: h\r\ncontent-length: 1000\r\n\r\n{")
        .await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let read = client.read_until(|reader| reader.body.len() >= BYTES).await;
    assert_eq!(read.body.len(), BYTES);
    client.send([b' '; 500]).await;
    // It is ended by its client, and not before.
    tokio::time::sleep(Duration::from_millis(300)).await;
    drop(client);
    assert_outcome(&front.only_row().await, "client_abort", "");
}

/// The rest of a body whose answer is there may still meet a limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_that_the_rest_of_an_answered_body_meets_is_counted() {
    let gate = Gate::new();
    gate.open();
    let answer = b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\n{}";
    let (server, _) = hasty(&gate, answer.to_vec()).await;
    let front = Front::keyed(&[server], "request_body_max_bytes = 1000").await;
    let head = "POST /generate HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n";
    let mut client = front.sent(head).await;
    assert_eq!(client.response().await.status(), 413);
    client.send(chunk([b' '; 1001])).await;
    let limit = "queuescope_client_limits_total{limit=\"body_bytes\"}";
    front.counts(limit, 1).await;
    assert_outcome(&front.only_row().await, "client_error", "413");
}
