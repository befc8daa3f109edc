//! Bodies that a server does not take, and what only a loop of our own can get right of them: errors after a passed `100 Continue`,
//! refusals with our own words, what is read ahead.

use super::leaving::{HALF, hasty};
use super::*;

/// A listener whose connections hold little that was not read.
fn small() -> TcpListener {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(65_536).unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    socket.listen(8).unwrap()
}

/// The kernel would take megabytes, and tell of room only when a third of them has gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_takes_a_body_steadily_gets_all() {
    let body = vec![b'x'; 8 << 20];
    let (listener, length) = (small(), body.len());
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let (mut reader, mut buffer) = (Reader::default(), vec![0; 40_000]);
        while reader.body.len() < length {
            let read = stream.read(&mut buffer).await.unwrap();
            assert!(read > 0, "the request is cut off");
            reader.feed(&buffer[..read]);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        stream.write_all(&json_response("{}")).await.unwrap();
    });
    let front = Front::keyed(&[addr], "upstream_write_timeout_s = 1.5").await;
    assert_eq!(front.ask("/generate", "", &body).await.status(), 200);
}

/// The limits on bodies count what the client does not send, not what we do not read of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_is_late_by_its_own_pauses_and_not_as_the_client_reads_nothing() {
    const BYTES: usize = 12 << 20;
    let sleep = async |ms| tokio::time::sleep(Duration::from_millis(ms)).await;
    // How long it pauses before the response.
    let ends = async |pause: u64, outcome: &str| {
        let gate = Gate::new();
        let answer = [stream_head(), chunk(vec![b'x'; BYTES])].concat();
        let server = hasty(&gate, answer, false).await;
        let front = Front::keyed(&[server], "client_body_timeout_s = 1.5").await;
        let mut client = Client::with_buffer(front.addr(), 65_536).await;
        client.send(HALF).await;
        sleep(pause).await;
        gate.open();
        sleep(2_000).await;
        let read = client.read_until(|reader| reader.body.len() >= BYTES).await;
        assert_eq!(read.body.len(), BYTES);
        sleep(200).await;
        client.send([b' '; 500]).await;
        // It is ended by its client, unless it was before.
        sleep(200).await;
        drop(client);
        assert_outcome(&front.only_row().await, outcome, "");
    };
    tokio::join!(ends(0, "client_abort"), ends(1_400, "timeout"));
}

const HEAD: &str = "POST /generate HTTP/1.1\r\nhost: h\r\nexpect: 100-continue\r\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_100_continue_the_body_is_taken_and_every_failure_is_still_answered() {
    let [whole, large] = ["{}", "{            }"].map(|body| [chunk(body), chunk("")].concat());
    let broken = [&chunk("abcde")[..], b"zz\r\n"].concat();
    for (then, body, status, outcome) in [
        (Step::ok(), whole.clone(), 200, "ok"),
        (Step::Close, whole.clone(), 502, "upstream_died"),
        (Step::Silence, whole, 504, "timeout"),
        (Step::Silence, large, 413, "client_error"),
        (Step::Silence, broken, 400, "client_error"),
    ] {
        let limits = "upstream_read_timeout_s = 0.3\nrequest_body_max_bytes = 10";
        let is_open = matches!(then, Step::Silence);
        let (upstream, front) = playing(vec![then], limits).await;
        let head = format!("{HEAD}transfer-encoding: chunked\r\n\r\n");
        let mut client = front.sent(head).await;
        let head = client.read_until(|reader| reader.head.is_some()).await;
        assert_eq!(head.status(), 100);
        client.send(body).await;
        let response = client.response().await;
        assert_eq!(response.status(), status);
        if status == 200 {
            assert_eq!(response.header("connection").unwrap(), "keep-alive");
            assert!(upstream.seen()[0].body == b"{}");
        } else {
            assert_eq!(response.json()["error"]["code"], status);
        }
        let let_go = || upstream.gone() == usize::from(is_open);
        until("the upstream let go", let_go).await;
        let row = front.only_row().await;
        assert_row(&row, &format!("status={status}, outcome={outcome}"));
        assert_eq!(response.header("x-request-id"), Some(row["req_id"].clone()));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_that_were_read_at_once_are_written_at_once_and_before_what_ends_them() {
    let events: Vec<_> = (0..20).map(|at| format!("data: {at}\n\n")).collect();
    let chunks: Vec<u8> = events.iter().flat_map(chunk).collect();
    for (end, is_whole) in [("0\r\n\r\n", true), ("", false), ("nonsense\r\n", false)] {
        let answer = [&stream_head(), &chunks[..], end.as_bytes()].concat();
        let (_upstream, front) = playing(vec![Step::Send(answer), Step::Close], "").await;
        let closes = "connection: close\r\n";
        let mut client = front.asked("/v1/embeddings", closes, b"{}").await;
        let raw = String::from_utf8(client.read_to_close().await).unwrap();
        assert!(raw.contains(&events.concat()), "{raw}");
        assert_eq!(raw.ends_with("\r\n0\r\n\r\n"), is_whole, "{raw}");
    }
}
