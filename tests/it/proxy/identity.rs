//! Request ids and trace contexts.

use crate::support::assert_says;
use crate::support::proxy::{Front, answering, assert_outcome, playing};
use crate::support::upstream::{Step, Upstream, refusing};
use crate::support::wire::{Response, json_response, until};

const ID: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

async fn ask(front: &Front, extra: &str) -> Response {
    front.ask("/generate", extra, b"{}").await
}

/// Version, trace, span and flags of the one traceparent that the upstream got last.
fn parts(upstream: &Upstream) -> [String; 4] {
    let parent = upstream
        .seen()
        .pop()
        .unwrap()
        .header("traceparent")
        .unwrap();
    let parts: Vec<String> = parent.split('-').map(String::from).collect();
    let hex = |c: u8| c.is_ascii_hexdigit() && !c.is_ascii_uppercase();
    assert!(parts.iter().all(|part| part.bytes().all(hex)), "{parent}");
    assert_eq!([2, 32, 16, 2], [0, 1, 2, 3].map(|n| parts[n].len()));
    parts.try_into().unwrap()
}

/// What is sent, what the upstream gets, what the client is told, and what its row says.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_without_an_id_gets_one_and_its_own_is_never_altered() {
    const MINE: &str = "Mine, with odd/characters=";
    let mut made = std::collections::BTreeSet::new();
    for (extra, own) in [
        ("", None),
        ("", None),
        ("x-request-id:\r\n", None),
        (&*format!("X-Request-Id: {MINE}\r\n"), Some(MINE)),
    ] {
        let (upstream, front) = answering("").await;
        let told = ask(&front, extra).await.header("x-request-id");
        assert_eq!(told.is_none(), own.is_some(), "{extra}");
        let id = told.unwrap_or_else(|| MINE.to_owned());
        assert_eq!(upstream.seen()[0].header("x-request-id"), Some(id.clone()));
        assert_eq!(front.only_row().await["req_id"], id);
        if own.is_some() {
            assert_says(&upstream.seen()[0].head, &format!("\r\n{extra}"));
        } else {
            assert_eq!(id.len(), 32, "{id}");
            assert!(made.insert(id), "it is another's");
        }
    }
    // The upstream's own is left.
    let answer = b"HTTP/1.1 200 OK\r\nx-request-id: theirs\r\ncontent-length: 2\r\n\r\n{}";
    let (_upstream, front) = playing(vec![Step::Send(answer.to_vec())], "").await;
    let told = ask(&front, "").await.header("x-request-id");
    assert_eq!(told.as_deref(), Some("theirs"));
    // Our own answers have one too.
    let front = Front::start(refusing().await).await;
    let response = ask(&front, "x-request-id: \r\n").await;
    assert_eq!(response.status(), 502);
    let id = response.header("x-request-id").unwrap();
    assert_eq!(front.only_row().await["req_id"], id);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_valid_trace_goes_on_with_a_span_of_the_attempt_and_another_is_replaced() {
    let zero = "0".repeat(32);
    let parent = |id: &str, flags: &str| format!("traceparent: 00-{id}-{PARENT}-{flags}\r\n");
    let (began, two) = (
        Some("queuescope=began"),
        "tracestate: a=1\r\nTraceState: b=2\r\n",
    );
    let mut spans = std::collections::BTreeSet::from([PARENT.to_owned()]);
    let broken = [
        format!("00-{ID}-{PARENT}"),
        format!("00-{ID}-{PARENT}-01-more"),
        format!("ff-{ID}-{PARENT}-01"),
        format!("00-{ID}-{}-01", "0".repeat(16)),
        format!("00-{}-{PARENT}-01", ID.to_uppercase()),
        format!("00-{}-{PARENT}-01", &ID[1..]),
        "nonsense".to_owned(),
    ];
    let broken = broken.map(|parent| (format!("traceparent: {parent}\r\n{two}"), false, began));
    // What a later version appends is its to know.
    let later = format!("traceparent: cc-{ID}-{PARENT}-00-what-comes\r\n");
    let cases = [
        (later, true, None),
        (
            parent(ID, "00") + "tracestate: a=1,b=2\r\n",
            true,
            Some("a=1,b=2"),
        ),
        (parent(ID, "00") + "tracestate: a=1\r\n", true, Some("a=1")),
        (String::new(), false, began),
        (two.to_owned(), false, began),
        (parent(&zero, "01"), false, began),
        (parent(ID, "01") + &parent(ID, "01"), false, began),
    ];
    for (extra, is_kept, state) in cases.into_iter().chain(broken) {
        let (upstream, front) = answering("").await;
        ask(&front, &extra).await;
        let [version, trace, span, flags] = parts(&upstream);
        assert_eq!((version.as_str(), flags.as_str()), ("00", "00"), "{extra}");
        assert_eq!((trace == ID, trace == zero), (is_kept, false), "{extra}");
        assert!(spans.insert(span), "{extra}");
        let seen = upstream.seen().pop().unwrap();
        assert_eq!(seen.header("tracestate").as_deref(), state, "{extra}");
        assert_eq!(front.only_row().await["trace_id"], trace);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn put_generates_as_post_does() {
    let (upstream, front) = playing(vec![Step::Send(json_response("{\"text\":\"x\"}"))], "").await;
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn named_headers_label_a_request_in_its_row_and_in_metrics() {
    let (upstream, front) = answering("label_headers = [\"X-Tenant\", \"x-team\"]").await;
    let extra = "x-tenant: acme; corp\r\nx-other: no\r\nx-team: \r\n";
    ask(&front, extra).await;
    // The server gets them as they came.
    let seen = upstream.seen().pop().unwrap();
    assert_eq!(seen.header("x-tenant").as_deref(), Some("acme; corp"));
    let counted = || front.counter("queuescope_label_requests_total") == 1;
    until("the count", counted).await;
    // The server told no times: there is no wait, rather than one of 0.
    let text = front.proxy.metrics().text();
    assert!(
        !text.contains("queuescope_label_wait_seconds_total{"),
        "{text}"
    );
    assert_eq!(front.only_row().await["labels"], "x-tenant=acme_ corp");
    let (_upstream, front) = answering("").await;
    ask(&front, extra).await;
    assert_eq!(front.only_row().await["labels"], "");
}
