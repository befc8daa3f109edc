//! Clients that leave where nothing of theirs is being read or written.

use socket2::{Domain, Socket, Type};

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
async fn who_leaves_or_stops_with_a_whole_answer_keeps_its_outcome() {
    let gate = Gate::new();
    gate.open();
    for leaves in [true, false] {
        let server = hasty(&gate, REFUSAL, false).await;
        let front = Front::keyed(&[server], "client_read_timeout_s = 0.3").await;
        let mut client = front.sent(HALF).await;
        assert_eq!(client.response().await.status(), 413);
        if !leaves {
            // It sends no more, and is given up.
            assert!(client.is_closed().await);
        }
        drop(client);
        assert_outcome(&front.only_row().await, "client_error", "413");
    }
}

/// Nothing is read of a server while a body is being written to it, as in Pingora itself: its answer is there once it has closed, or
/// writing to it is given up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_answer_of_a_server_that_reads_no_more_is_passed_on() {
    for (closes, limit) in [(true, 1000), (false, 5)] {
        let gate = Gate::new();
        let server = hasty(&gate, REFUSAL, closes).await;
        let front = Front::keyed(&[server], &format!("upstream_write_timeout_s = {limit}")).await;
        let mut client = front.client().await;
        let body = post("/generate", "", &vec![b'x'; 64 << 20]);
        let sent = client.send_until_still(&body).await;
        // What sockets may hold on two hops, and no more: the proxy itself keeps nothing.
        assert!(sent < 48 << 20, "{sent} bytes, though nobody read them");
        // Before writing is given up.
        gate.open();
        assert_eq!(client.response().await.status(), 413);
        drop(client);
        assert_outcome(&front.only_row().await, "client_error", "413");
    }
}
