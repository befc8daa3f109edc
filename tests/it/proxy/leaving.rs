//! Clients that leave where nothing of theirs is being read or written, or after they sent more than their request before it is answered:
//! they are still seen to leave, and what they sent has its turn.

use socket2::{Domain, Socket, Type};
use tokio::io::{AsyncRead, AsyncWrite};

use super::tls::{connect, secure};
use super::*;

/// A listener whose queue is full: it answers no further connection.
pub struct Full {
    socket: Socket,
    _queue: Vec<TcpStream>,
}

impl Full {
    pub async fn start() -> Full {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        let any: std::net::SocketAddr = "127.0.0.1:0".parse().unwrap();
        socket.bind(&any.into()).unwrap();
        socket.listen(0).unwrap();
        let addr = socket.local_addr().unwrap().as_socket().unwrap();
        let mut queue = Vec::new();
        for _ in 0..4 {
            let limit = std::time::Duration::from_millis(100);
            let connected = tokio::time::timeout(limit, TcpStream::connect(addr)).await;
            queue.extend(connected.map(Result::unwrap));
        }
        assert!(queue.len() < 4, "the queue is full");
        Full {
            socket,
            _queue: queue,
        }
    }

    pub fn addr(&self) -> std::net::SocketAddr {
        self.socket.local_addr().unwrap().as_socket().unwrap()
    }
}

fn in_flight(front: &Front) -> i64 {
    front.proxy.metrics().in_flight()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_while_we_connect_is_let_go() {
    let full = Full::start().await;
    let front = Front::keyed(&[full.addr()], "upstream_connect_timeout_s = 1000.0").await;
    let plain = front.asked("/generate", "", b"{}").await;
    let mut http2 = Http2::connect(front.addr()).await;
    let stream = http2.post("/generate", b"{}").await;
    until("both are here", || in_flight(&front) == 2).await;
    drop(plain);
    until("one has left", || in_flight(&front) == 1).await;
    stream.reset();
    until("both have", || in_flight(&front) == 0).await;
    front.counts("queuescope_upstream_in_flight", 0).await;
    for row in front.rows().await {
        assert_outcome(&row, "client_abort", "the client went away");
        assert_eq!(row["attempts"], "0");
    }
}

const REFUSAL: &[u8] = b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\n{}";

/// A server that answers each request once it has its head and may, and reads nothing more; the connection stays open, or it closes.
pub async fn hasty(may: &Gate, answer: impl Into<Vec<u8>>, closes: bool) -> std::net::SocketAddr {
    let (may, answer) = (may.clone(), answer.into());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let mut kept = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut read = Vec::new();
            while !read.windows(4).any(|end| end == b"\r\n\r\n") {
                stream.read_buf(&mut read).await.unwrap();
            }
            may.passed().await;
            stream.write_all(&answer).await.unwrap();
            if !closes {
                kept.push(stream);
            }
        }
    });
    addr
}

pub const HALF: &str = "POST /generate HTTP/1.1\r\nhost: h\r\ncontent-length: 1000000\r\n\r\n{";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_whole_answer_ends_its_request_though_the_client_may_send_on() {
    let gate = Gate::new();
    gate.open();
    let server = hasty(&gate, REFUSAL, false).await;
    let keys = "max_concurrent_requests = 1\nclient_read_timeout_s = 1000";
    let front = Front::keyed(&[server], keys).await;
    let mut leaves = front.sent(HALF).await;
    assert_eq!(leaves.response().await.status(), 413);
    drop(leaves);
    let mut stops = front.sent(HALF).await;
    assert_eq!(stops.response().await.status(), 413);
    until("both have ended", || in_flight(&front) == 0).await;
    // Its turn is over too.
    assert_eq!(front.ask("/generate", "", b"{}").await.status(), 413);
    // What is left of the body is waited for, but not for long.
    assert!(stops.is_closed().await);
    front.all_end(3, "client_error", "413").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_is_used_again_is_no_longer_held_by_who_used_it_before() {
    // What is left of it is more than the sockets between proxy and client hold.
    const LENGTH: usize = 12_000_000;
    let large = json_response(&"x".repeat(LENGTH));
    let server = Upstream::start(move |turn, _| match turn {
        0 => vec![Step::Send(large.clone())],
        _ => vec![Step::Silence],
    })
    .await;
    let front = Front::start(server.addr).await;
    let mut reads = Client::with_buffer(front.addr(), 65_536).await;
    reads.post("/generate", "", b"{}").await;
    let (mut taken, mut others) = (vec![0; LENGTH - 5_000_000], Vec::new());
    // It takes more, by less than the proxy reads ahead, until the connection is free.
    while others.is_empty() || server.seen().last().unwrap().connection != 0 {
        reads.stream.read_exact(&mut taken).await.unwrap();
        taken.truncate(40_000);
        others.push(front.asked("/generate", "", b"{}").await);
        until("it came", || server.seen().len() > others.len()).await;
    }
    drop(others.pop());
    until("the server learns of it", || server.gone() == 1).await;
    drop((others, reads));
}

/// However long a write to the server may take.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_answer_of_a_server_that_reads_no_more_is_passed_on_and_one_that_gives_none_is_a_504() {
    for (closes, limit, answers) in [
        (true, 1000.0, true),
        (false, 1000.0, true),
        (false, 0.1, false),
    ] {
        let gate = Gate::new();
        let server = hasty(&gate, REFUSAL, closes).await;
        let front = Front::keyed(&[server], &format!("upstream_write_timeout_s = {limit:?}")).await;
        let mut client = front.client().await;
        let body = post("/generate", "", &vec![b'x'; 64 << 20]);
        let sent = client.send_until_still(&body).await;
        if answers {
            // What sockets may hold on two hops, and no more: the proxy itself keeps a piece.
            assert!(sent < 48 << 20, "{sent} bytes, though nobody read them");
            gate.open();
        }
        let response = client.response().await;
        drop(client);
        let (status, outcome, error) = match answers {
            true => (413, "client_error", "413"),
            false => (504, "timeout", "took no bytes for too long"),
        };
        assert_eq!(response.status(), status);
        assert_outcome(&front.only_row().await, outcome, error);
    }
}

const PIPELINED: &[u8] = b"GET /health HTTP/1.1\r\nhost: h\r\n\r\n";

/// What a client sends beyond its request: nothing, little, and more than is kept, which the proxy's kernel holds.
fn extras() -> Vec<Vec<u8>> {
    vec![
        Vec::new(),
        b"\n".to_vec(),
        b"\r\n".to_vec(),
        PIPELINED.to_vec(),
        post("/generate", "", &vec![b'x'; 100_000]),
    ]
}

/// A request of this client, and more bytes once it has reached the upstream.
async fn asks<S>(client: &mut Client<S>, upstream: &Upstream, streams: bool, extra: &[u8])
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let before = upstream.seen().len();
    client.post("/generate", "", b"{\"stream\":true}").await;
    until("the request", || upstream.seen().len() > before).await;
    if streams {
        let head = client.read_until(|reader| reader.head.is_some()).await;
        assert_eq!(head.status(), 200);
    }
    client.send(extra).await;
}

/// A server that says nothing, or only a head.
async fn silent(streams: bool) -> Upstream {
    let head = streams.then(|| Step::Send(stream_head()));
    Upstream::playing(head.into_iter().chain([Step::Silence]).collect()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_sent_more_is_seen_to_leave() {
    for (streams, is_hop) in [(false, false), (true, false), (true, true)] {
        let upstream = silent(streams).await;
        let front = match is_hop {
            true => Front::hop(upstream.addr).await,
            // Those that have left make room.
            false => Front::keyed(&[upstream.addr], "max_connections = 2").await,
        };
        for extra in extras() {
            for resets in [false, true] {
                let gone = upstream.gone();
                let mut client = front.client().await;
                asks(&mut client, &upstream, streams, &extra).await;
                if resets {
                    client.reset();
                } else {
                    drop(client);
                }
                until("the upstream let go", || upstream.gone() > gone).await;
            }
        }
        front.all_end(10, "client_abort", "client").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_under_tls_that_leaves_is_seen_too() {
    let upstream = silent(true).await;
    let (certificate, front) = secure(upstream.addr).await;
    for (turn, extra) in extras().into_iter().enumerate() {
        let mut client = connect(front.addr(), &certificate.der).await;
        asks(&mut client, &upstream, true, &extra).await;
        drop(client);
        until("the upstream let go", || upstream.gone() > turn).await;
    }
    // One that ends its side of TLS, and keeps the connection.
    let mut client = connect(front.addr(), &certificate.der).await;
    asks(&mut client, &upstream, true, b"").await;
    let (socket, tls) = client.stream.get_mut();
    tls.send_close_notify();
    let mut alert = Vec::new();
    tls.write_tls(&mut alert).unwrap();
    socket.write_all(&alert).await.unwrap();
    until("the upstream let go", || upstream.gone() == 6).await;
    front.all_end(6, "client_abort", "client").await;
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

pub const ASK_UPGRADE: &str =
    "GET /ws HTTP/1.1\r\nhost: h\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n";
pub const SWITCH: &str =
    "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n";

/// A server that takes nothing while it says more than sockets hold, and a client that sends on and reads.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upgraded_connection_goes_both_ways_at_once() {
    const ROUNDS: usize = 2;
    let (asked, said) = (vec![b'a'; 4 << 20], vec![b's'; 32 << 20]);
    let (length, answer) = (asked.len(), said.clone());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let front = Front::start(listener.local_addr().unwrap()).await;
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            stream.read_buf(&mut head).await.unwrap();
        }
        stream.write_all(SWITCH.as_bytes()).await.unwrap();
        for _ in 0..ROUNDS {
            let mut taken = vec![0; length];
            stream.read_exact(&mut taken).await.unwrap();
            stream.write_all(&answer).await.unwrap();
        }
        std::future::pending::<()>().await;
    });
    let mut client = front.sent(ASK_UPGRADE).await;
    client.read_until(|reader| reader.head.is_some()).await;
    let (mut reads, mut writes) = client.stream.split();
    // More than is taken.
    let all = asked.repeat(ROUNDS + 1);
    let mut heard = vec![0; said.len() * ROUNDS];
    tokio::select! {
        read = tokio::time::timeout(PATIENCE, reads.read_exact(&mut heard)) => {
            read.unwrap().unwrap();
        }
        Err(error) = writes.write_all(&all) => panic!("{error}"),
    }
    assert!(heard == said.repeat(ROUNDS));
}

/// An upgraded connection through a front with this limit on writes to a server, and the server's end of it.
async fn upgraded(write_limit: f64) -> (Front, Client, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let keys = format!("upstream_write_timeout_s = {write_limit:?}");
    let front = Front::keyed(&[listener.local_addr().unwrap()], &keys).await;
    let mut client = front.sent(ASK_UPGRADE).await;
    let (mut server, _) = listener.accept().await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        server.read_buf(&mut head).await.unwrap();
    }
    server.write_all(SWITCH.as_bytes()).await.unwrap();
    client.read_until(|reader| reader.head.is_some()).await;
    (front, client, server)
}

/// The piece that is being sent; none is read after it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_piece_of_a_body_is_sent_to_its_end_while_the_client_reads_nothing() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let front = Front::start(listener.local_addr().unwrap()).await;
    let mut client = front.client().await;
    let body = post_chunked("/generate", &vec![b'a'; 64 << 20], 77_777);
    let sent = client.send_until_still(&body).await;
    assert!(sent < body.len(), "the server reads nothing yet");
    let (server, _) = listener.accept().await.unwrap();
    let (mut reads, mut writes) = server.into_split();
    let large = json_response(&"s".repeat(64 << 20));
    tokio::spawn(async move { writes.write_all(&large).await });
    // It passes on no more of this.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let (mut reader, mut buffer) = (Reader::default(), vec![0; 40_000]);
    let whole = async {
        loop {
            let wait = Duration::from_millis(200);
            match tokio::time::timeout(wait, reads.read(&mut buffer)).await {
                Ok(read) => reader.feed(&buffer[..read.unwrap()]),
                Err(_) if reader.is_between_chunks() => break,
                Err(_) => {}
            }
        }
    };
    tokio::time::timeout(PATIENCE, whole).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upgraded_connection_ends_when_its_server_takes_nothing_for_too_long() {
    let (_front, mut client, _server) = upgraded(0.1).await;
    client.send_until_still(&vec![b'a'; 64 << 20]).await;
    assert!(client.is_closed().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upgraded_connection_goes_both_ways() {
    const REPEATS: usize = 150_000;
    // After the switch it says what it was told, many times.
    let upstream = Upstream::start(|turn, said| match turn {
        0 => vec![Step::Send(SWITCH.into())],
        _ => vec![Step::Send(said.body.repeat(REPEATS))],
    })
    .await;
    // What goes that way is no body: its limits are not held, nor one on all stalls together.
    let keys =
        "request_body_max_bytes = 8\nclient_read_timeout_s = 0.1\nclient_stall_timeout_s = 1.2";
    let front = Front::keyed(&[upstream.addr], keys).await;
    let mut client = Client::with_buffer(front.addr(), 65_536).await;
    client.send(ASK_UPGRADE).await;
    let head = client.read_until(|reader| reader.head.is_some()).await;
    assert_eq!(head.status(), 101);
    for word in ["ping 1", "ping 2", "ping 3", "ping 4", "ping 5", "ping 6"] {
        let word = word.as_bytes();
        client.post("/of/the/tunnel", "", word).await;
        // It may be silent for long, and read nothing.
        tokio::time::sleep(Duration::from_millis(250)).await;
        let mut echo = vec![0; word.len() * REPEATS];
        let echoed = tokio::time::timeout(PATIENCE, client.stream.read_exact(&mut echo));
        echoed.await.unwrap().unwrap();
        assert!(echo == word.repeat(REPEATS));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_sent_ahead_have_their_turn() {
    let upstream = Upstream::start(|turn, request| {
        let length = request.body.len();
        vec![Step::Send(json_response(&format!("[{turn},{length}]")))]
    })
    .await;
    let front = Front::start(upstream.addr).await;
    let mut client = front.client().await;
    let body = |length: usize| vec![b'x'; length];
    let all = [
        post("/generate", "", &body(3)),
        post("/generate", "", &body(70_000)),
        post_chunked("/generate", &body(3_000_000), 77_777),
        post("/generate", "connection: close\r\n", &body(5)),
    ];
    client.send(all.concat()).await;
    let answers = String::from_utf8(client.read_to_close().await).unwrap();
    let order = ["[0,3]", "[1,70000]", "[2,3000000]", "[3,5]"].map(|answer| answers.find(answer));
    assert!(order.is_sorted() && order[0].is_some(), "{answers}");
    front.all_end(4, "ok", "").await;
}
