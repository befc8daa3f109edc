//! The router's way back. A router of our own holds the first event back and writes down what it did when; what the row
//! says lies between its stamps, the server's and the client's, all on the one clock of this process.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use queuescope::clock::{Clock, NANOS, Stamp};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::support::proxy::{Front, Row, assert_outcome, worker};
use crate::support::router::free_port;
use crate::support::upstream::{EVENT, Gate, Step, Upstream, begun, done};
use crate::support::wire::{Client, Reader};

/// For so long the router holds the first event.
const HOLD: Duration = Duration::from_millis(12);

/// When the router had read the first and the last bytes of a body, and was about to pass them on.
#[derive(Clone, Copy, Debug)]
struct Passed {
    first_read: Stamp,
    first_sent: Stamp,
    last_read: Stamp,
    last_sent: Stamp,
}

/// A router for one request: it passes the head of the response on at once, holds what comes next, then passes on
/// what comes when it comes.
fn router(listener: TcpListener, hop: SocketAddr, clock: Clock) -> JoinHandle<Passed> {
    tokio::spawn(async move {
        let (mut here, _) = listener.accept().await.unwrap();
        let mut there = TcpStream::connect(hop).await.unwrap();
        let mut request = Reader::default();
        let mut bytes = vec![0; 65_536];
        while !request.is_whole(0) {
            let read = here.read(&mut bytes).await.unwrap();
            request.feed(&bytes[..read]);
            there.write_all(&bytes[..read]).await.unwrap();
        }
        let mut head = Vec::new();
        let end = loop {
            there.read_buf(&mut head).await.unwrap();
            if let Some(end) = head.windows(4).position(|four| four == b"\r\n\r\n") {
                break end + 4;
            }
        };
        here.write_all(&head[..end]).await.unwrap();
        let mut body = head.split_off(end);
        while body.is_empty() {
            there.read_buf(&mut body).await.unwrap();
        }
        let first_read = clock.now();
        tokio::time::sleep(HOLD).await;
        let first_sent = clock.now();
        here.write_all(&body).await.unwrap();
        let mut passed = Passed {
            first_read,
            first_sent,
            last_read: first_read,
            last_sent: first_sent,
        };
        loop {
            body.clear();
            if there.read_buf(&mut body).await.unwrap() == 0 {
                return passed;
            }
            // The end of the framing is no part of the body.
            let is_end = body == b"0\r\n\r\n";
            let read = clock.now();
            if !is_end {
                (passed.last_read, passed.last_sent) = (read, clock.now());
            }
            here.write_all(&body).await.unwrap();
        }
    })
}

fn nanos(row: &Row, column: &str) -> i64 {
    let seconds: f64 = row[column]
        .parse()
        .unwrap_or_else(|_| panic!("{column}: {row:?}"));
    (seconds * NANOS as f64).round() as i64
}

/// A stamp of a row, which a float tells to less than a microsecond.
fn assert_in_order(row: &Row, what: &str, stamps: &[Stamp]) {
    let in_order = stamps
        .windows(2)
        .all(|two| two[0].nanos_since(two[1]) <= 1_000);
    assert!(in_order, "{what}: {stamps:?}\n{row:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_first_event_that_the_router_holds_back_is_the_routers() {
    let clock = Clock::system();
    let gate = Gate::new();
    let sent = Arc::new(Mutex::new(None));
    let server = Upstream::start({
        let (gate, clock, sent) = (gate.clone(), clock.clone(), sent.clone());
        move |_, _| {
            *sent.lock().unwrap() = Some(clock.now());
            let gate = vec![Step::Gate(gate.clone())];
            [begun(), gate, done(), vec![Step::Close]].concat()
        }
    })
    .await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let router_addr = listener.local_addr().unwrap();
    let hop = free_port();
    let front = Front::with(&[router_addr], |config| {
        config.workers = vec![worker("w0", hop, server.addr)];
    })
    .await;
    let router = router(listener, hop, clock.clone());
    let mut client = front.client().await;
    client
        .post("/generate", "connection: close\r\n", b"{\"stream\":true}")
        .await;
    let begun = client
        .read_until(|reader| reader.body.ends_with(b"\n\n"))
        .await;
    let first_got = clock.now();
    assert_eq!(begun.body, EVENT.as_bytes());
    gate.open();
    client.response().await;
    let last_got = clock.now();
    let row = front.only_row().await;
    let passed = router.await.unwrap();
    let server_sent = sent.lock().unwrap().unwrap();
    assert_outcome(&row, "ok", "");
    assert_eq!(row["inconsistency"], "");

    let time = |column: &str| Stamp::from_nanos(nanos(&row, column));
    let at_hop = time("worker_first_byte_time");
    assert_in_order(&row, "first", &[server_sent, at_hop, passed.first_read]);
    let at_front = at_hop.plus_nanos(nanos(&row, "router_return"));
    assert_in_order(
        &row,
        "first back",
        &[passed.first_sent, at_front, first_got],
    );
    let held = passed.first_sent.nanos_since(passed.first_read);
    assert!(held >= HOLD.as_nanos() as i64);
    assert!(nanos(&row, "router_return") >= held, "{held} {row:?}");

    let last_at_hop = time("worker_last_byte_time");
    assert_in_order(
        &row,
        "last",
        &[passed.first_sent, last_at_hop, passed.last_read],
    );
    let last_at_front = last_at_hop.plus_nanos(nanos(&row, "router_return_last"));
    assert_in_order(
        &row,
        "last back",
        &[passed.last_sent, last_at_front, last_got],
    );

    // The server waited for the client between the two: the hop saw the hold in that, the front did not.
    assert!(nanos(&row, "worker_longest_gap") >= held, "{held} {row:?}");
    let at_the_front = nanos(&row, "worker_longest_gap") + nanos(&row, "router_gap_added");
    let between = last_at_front.nanos_since(at_front);
    assert!((at_the_front - between).abs() <= 2_000, "{between} {row:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hop_elsewhere_keeps_its_moments_for_a_later_join() {
    let server = Upstream::start(|_, _| [begun(), done()].concat()).await;
    let hop = Front::hop(server.addr).await;
    let mut client = Client::connect(hop.hop_addr()).await;
    client.ask("/generate", "", b"{\"stream\":true}").await;
    let row = hop.only_row().await;
    assert_eq!(row["seen_by"], "hop");
    let first = nanos(&row, "worker_first_byte_time");
    assert!(
        first >= nanos(&row, "response_head_time") - 1_000,
        "{row:?}"
    );
    assert!(nanos(&row, "worker_last_byte_time") >= first - 1_000);
    for column in ["router_return", "router_return_last", "router_gap_added"] {
        assert_eq!(row[column], "", "{column}: nobody saw the router's way");
    }
}
