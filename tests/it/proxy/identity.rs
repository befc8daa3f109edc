//! Request ids and trace contexts.

use crate::support::proxy::{Front, assert_outcome};
use crate::support::upstream::{Upstream, refusing};
use crate::support::wire::{Response, json_response};

const ID: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

async fn ask(front: &Front, extra: &str) -> Response {
    let mut client = front.client().await;
    client.ask("/generate", extra, b"{}").await
}

/// A column of all rows, in the order of their ends, which need not be that of the answers.
async fn column(front: Front, name: &str) -> Vec<String> {
    front
        .rows()
        .await
        .iter()
        .map(|row| row[name].clone())
        .collect()
}

fn sorted(mut all: Vec<String>) -> Vec<String> {
    all.sort();
    all
}

/// Version, trace, span and flags of the one traceparent that the upstream got.
fn parts(upstream: &Upstream, turn: usize) -> [String; 4] {
    let parent = upstream.seen()[turn].header("traceparent").unwrap();
    let parts: Vec<String> = parent.split('-').map(String::from).collect();
    let hex = |part: &String| {
        part.bytes()
            .all(|c| c.is_ascii_hexdigit() && !c.is_ascii_uppercase())
    };
    assert!(parts.iter().all(hex), "{parent}");
    assert_eq!([2, 32, 16, 2], [0, 1, 2, 3].map(|n| parts[n].len()));
    parts.try_into().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_without_an_id_gets_one() {
    let upstream = Upstream::always(json_response("{}")).await;
    let front = Front::start(upstream.addr).await;
    let (first, second) = (ask(&front, "").await, ask(&front, "").await);
    let ids = [first, second].map(|response| response.header("x-request-id").unwrap());
    assert_ne!(ids[0], ids[1]);
    for (turn, id) in ids.iter().enumerate() {
        let seen = upstream.seen()[turn].header("x-request-id");
        assert_eq!(seen.as_ref(), Some(id));
    }
    assert_eq!(sorted(column(front, "req_id").await), sorted(ids.to_vec()));
    // The upstream's own is left.
    let answer = "HTTP/1.1 200 OK\r\nx-request-id: theirs\r\ncontent-length: 2\r\n\r\n{}";
    let upstream = Upstream::always(answer).await;
    let front = Front::start(upstream.addr).await;
    assert_eq!(
        ask(&front, "").await.header("x-request-id").unwrap(),
        "theirs"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clients_id_is_never_altered_nor_echoed_by_us() {
    let upstream = Upstream::always(json_response("{}")).await;
    let front = Front::start(upstream.addr).await;
    let response = ask(&front, "X-Request-Id: Mine, with odd/characters=\r\n").await;
    assert_eq!(response.header("x-request-id"), None);
    let head = &upstream.seen()[0].head;
    assert!(
        head.contains("\r\nX-Request-Id: Mine, with odd/characters=\r\n"),
        "{head}"
    );
    let row = front.only_row().await;
    assert_eq!(row["req_id"], "Mine, with odd/characters=");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_valid_trace_goes_on_with_a_span_of_the_attempt() {
    let upstream = Upstream::always(json_response("{}")).await;
    let front = Front::start(upstream.addr).await;
    let header = format!("traceparent: 00-{ID}-{PARENT}-00\r\ntracestate: a=1,b=2\r\n");
    ask(&front, &header).await;
    ask(&front, &header).await;
    let (first, second) = (parts(&upstream, 0), parts(&upstream, 1));
    assert_eq!([&first[0], &first[1], &first[3]], ["00", ID, "00"]);
    assert_ne!(first[2], PARENT);
    assert_ne!(first[2], second[2]);
    assert_eq!(upstream.seen()[0].header("tracestate").unwrap(), "a=1,b=2");
    assert!(front.rows().await.iter().all(|row| row["trace_id"] == ID));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_absent_or_invalid_trace_is_replaced() {
    let upstream = Upstream::always(json_response("{}")).await;
    let front = Front::start(upstream.addr).await;
    let zero = "0".repeat(32);
    let invalid = [
        String::new(),
        "traceparent: nonsense\r\n".into(),
        format!("traceparent: 00-{zero}-{PARENT}-01\r\n"),
        format!("traceparent: 00-{ID}-{PARENT}-01\r\ntraceparent: 00-{ID}-{PARENT}-01\r\n"),
    ];
    for (turn, header) in invalid.iter().enumerate() {
        ask(&front, header).await;
        let [version, trace, _, flags] = parts(&upstream, turn);
        assert_eq!((version.as_str(), flags.as_str()), ("00", "00"));
        assert!(trace != ID && trace != zero);
    }
    let sent = (0..invalid.len()).map(|turn| parts(&upstream, turn)[1].clone());
    assert_eq!(
        sorted(column(front, "trace_id").await),
        sorted(sent.collect())
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_trace_has_no_others_state() {
    let upstream = Upstream::always(json_response("{}")).await;
    let front = Front::start(upstream.addr).await;
    let state = "tracestate: a=1\r\nTraceState: b=2\r\n";
    let kept = format!("traceparent: 00-{ID}-{PARENT}-01\r\ntracestate: a=1\r\n");
    for (header, expected) in [
        (state.to_owned(), Some("queuescope=began")),
        (
            format!("traceparent: nonsense\r\n{state}"),
            Some("queuescope=began"),
        ),
        (kept, Some("a=1")),
    ] {
        ask(&front, &header).await;
        let seen = upstream.seen().pop().unwrap();
        assert_eq!(seen.header("tracestate").as_deref(), expected, "{header}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_empty_id_is_none() {
    let upstream = Upstream::always(json_response("{}")).await;
    let front = Front::start(upstream.addr).await;
    let response = ask(&front, "x-request-id:\r\n").await;
    let id = response.header("x-request-id").unwrap();
    assert_eq!(id.len(), 32, "{id}");
    let seen = &upstream.seen()[0];
    assert_eq!(seen.header("x-request-id"), Some(id.clone()));
    assert_eq!(front.only_row().await["req_id"], id);

    // Our own answers too.
    let front = Front::start(refusing().await).await;
    let response = ask(&front, "x-request-id: \r\n").await;
    assert_eq!(response.status(), 502);
    let id = response.header("x-request-id").unwrap();
    assert_eq!(front.only_row().await["req_id"], id);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn put_generates_as_post_does() {
    let upstream = Upstream::always(json_response("{\"text\":\"x\"}")).await;
    let front = Front::start(upstream.addr).await;
    let mut client = front.client().await;
    let put =
        "PUT /generate HTTP/1.1\r\nhost: h\r\nx-request-id: put\r\ncontent-length: 14\r\n\r\n";
    client.send(put).await;
    client.send("{\"text\":\"a b\"}").await;
    assert_eq!(client.response().await.status(), 200);
    let head = &upstream.seen()[0].head;
    assert!(head.starts_with("PUT /generate "), "{head}");
    let row = front.only_row().await;
    assert_outcome(&row, "ok", "");
    assert_eq!((&*row["req_id"], &*row["input_length"]), ("put", "2"));
}
