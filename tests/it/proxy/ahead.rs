//! Clients that send more than their request before it is answered: they are still seen to leave, and what they sent
//! has its turn.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::proxy::{Front, assert_outcome};
use crate::support::upstream::{Step, Upstream};
use crate::support::wire::{Client, json_response, post, post_chunked, stream_head, until};

use super::tls::{connect, secure};

const PIPELINED: &[u8] = b"GET /health HTTP/1.1\r\nhost: h\r\n\r\n";

/// What a client sends beyond its request: little, and more than is kept, which the proxy's kernel holds.
fn extras() -> Vec<Vec<u8>> {
    vec![
        b"\n".to_vec(),
        b"\r\n".to_vec(),
        PIPELINED.to_vec(),
        post("/generate", "", &vec![b'x'; 100_000]),
    ]
}

/// A request, more bytes once it has reached the upstream, then the client's leaving: the upstream is let go.
async fn leaves(addr: SocketAddr, upstream: &Upstream, streams: bool, extra: &[u8], resets: bool) {
    let before = (upstream.seen().len(), upstream.gone());
    let mut client = Client::connect(addr).await;
    client.post("/generate", "", b"{\"stream\":true}").await;
    until("the request", || upstream.seen().len() > before.0).await;
    if streams {
        let head = client.read_until(|reader| reader.head.is_some()).await;
        assert_eq!(head.status(), 200);
    }
    client.send(extra).await;
    if resets {
        client.reset();
    } else {
        drop(client);
    }
    until("the upstream let go", || upstream.gone() > before.1).await;
}

/// A server that says nothing, or only a head.
async fn silent(streams: bool) -> Upstream {
    let head = streams.then(|| Step::Send(stream_head()));
    Upstream::playing(head.into_iter().chain([Step::Silence]).collect()).await
}

async fn assert_all_left(front: Front, requests: usize) {
    let rows = front.rows().await;
    assert_eq!(rows.len(), requests);
    for row in rows {
        assert_outcome(&row, "client_abort", "client");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_sent_more_is_seen_to_leave() {
    for (streams, is_hop) in [(false, false), (true, false), (true, true)] {
        let upstream = silent(streams).await;
        let addr = upstream.addr;
        let front = Front::with(&[addr], |config| {
            config.limits.max_connections = 2.try_into().unwrap();
            if is_hop {
                config.upstream.clear();
                config.workers = vec![format!("w=127.0.0.1:0={addr}").parse().unwrap()];
            }
        })
        .await;
        let addr = if is_hop {
            front.hop_addr()
        } else {
            front.addr()
        };
        for extra in extras() {
            for resets in [false, true] {
                leaves(addr, &upstream, streams, &extra, resets).await;
            }
        }
        assert_all_left(front, 8).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_than_is_kept_is_not_read_at_once_and_a_reset_is_seen() {
    let upstream = silent(true).await;
    let front = Front::start(upstream.addr).await;
    let mut client = front.asked("/generate", "", b"{}").await;
    until("the request", || upstream.seen().len() == 1).await;
    let more = vec![b'x'; 64 << 20];
    assert!(
        client.send_until_still(&more).await < more.len(),
        "all is read"
    );
    client.reset();
    until("the upstream let go", || upstream.gone() == 1).await;
    assert_outcome(&front.only_row().await, "client_abort", "client");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upgraded_connection_goes_both_ways() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    // What goes that way is no body: its limits are not held.
    let addr = listener.local_addr().unwrap();
    let front = Front::keyed(&[addr], "request_body_max_bytes = 8").await;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(upgrade_and_echo(stream));
        }
    });
    // Pingora itself loses about one in five of those whose client speaks at once.
    for _ in 0..20 {
        if echoes(&front).await.is_ok() {
            return;
        }
    }
    panic!("nothing came back");
}

async fn upgrade_and_echo(mut stream: tokio::net::TcpStream) -> std::io::Result<u64> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_buf(&mut head).await?;
    }
    let switch =
        "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n";
    stream.write_all(switch.as_bytes()).await?;
    let (mut reads, mut writes) = stream.split();
    tokio::io::copy(&mut reads, &mut writes).await
}

async fn echoes(front: &Front) -> std::io::Result<()> {
    let mut client = front.client().await;
    let ask = "GET /ws HTTP/1.1\r\nhost: h\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n";
    client.send(ask).await;
    let head = client.read_until(|reader| reader.head.is_some()).await;
    assert_eq!(head.status(), 101);
    for word in ["ping1", "ping2"] {
        client.stream.write_all(word.as_bytes()).await?;
        let mut echo = [0; 5];
        let echoed = client.stream.read_exact(&mut echo);
        // Without the mend nothing ever comes.
        tokio::time::timeout(std::time::Duration::from_secs(1), echoed).await??;
        assert_eq!(&echo, word.as_bytes());
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_under_tls_that_leaves_with_bytes_ahead_is_seen_too() {
    let upstream = silent(true).await;
    let (certificate, front) = secure(upstream.addr).await;
    for (turn, extra) in extras().into_iter().enumerate() {
        let mut client = connect(front.addr(), &certificate.der).await;
        client.post("/generate", "", b"{}").await;
        client.read_until(|reader| reader.head.is_some()).await;
        client.send(&extra).await;
        drop(client);
        until("the upstream let go", || upstream.gone() > turn).await;
    }
    assert_all_left(front, extras().len()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_sent_ahead_have_their_turn() {
    let bodies = [3, 70_000, 3_000_000, 5].map(|length| vec![b'x'; length]);
    let upstream = Upstream::start(|turn, request| {
        let length = request.body.len();
        vec![Step::Send(json_response(&format!("[{turn},{length}]")))]
    })
    .await;
    let front = Front::start(upstream.addr).await;
    let mut client = front.client().await;
    let [first, second, third, last] = &bodies;
    let all = [
        post("/generate", "", first),
        post("/generate", "", second),
        post_chunked("/generate", third, 77_777),
        post("/generate", "", last),
    ];
    let all = all.concat();
    let (mut reads, mut writes) = client.stream.split();
    let answers = async {
        let mut all = Vec::new();
        while !all.ends_with(b"[3,5]") {
            assert!(reads.read_buf(&mut all).await.unwrap() > 0);
        }
        String::from_utf8(all).unwrap()
    };
    let (sent, answers) = tokio::join!(writes.write_all(&all), answers);
    sent.unwrap();
    let order = ["[0,3]", "[1,70000]", "[2,3000000]", "[3,5]"].map(|answer| answers.find(answer));
    assert!(order.is_sorted() && order[0].is_some(), "{answers}");
    for row in front.rows().await {
        assert_outcome(&row, "ok", "");
    }
}
