//! Request ids and trace contexts.

use super::*;

const ID: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

async fn ask(front: &Front, extra: &str) -> Response {
    front.ask("/generate", extra, b"{}").await
}

/// Version, trace, span and flags of the one traceparent that the upstream got last.
fn parts(upstream: &Upstream) -> [String; 4] {
    let seen = upstream.seen().pop().unwrap();
    let parent = seen.header("traceparent").unwrap();
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
        // `Connection` may name it: what else it names goes no further.
        (
            &*format!(
                "X-Request-Id: {MINE}\r\nx-other: 1\r\nconnection: x-request-id, x-other\r\n"
            ),
            Some(MINE),
        ),
    ] {
        let (upstream, front) = answering("").await;
        let told = ask(&front, extra).await.header("x-request-id");
        assert_eq!(told.is_none(), own.is_some(), "{extra}");
        let id = told.unwrap_or_else(|| MINE.to_owned());
        assert_eq!(upstream.seen()[0].header("x-request-id"), Some(id.clone()));
        assert_eq!(front.only_row().await["req_id"], id);
        assert_eq!(upstream.seen()[0].header("x-other"), None);
        if own.is_some() {
            let line = format!("\r\nX-Request-Id: {MINE}\r\n");
            assert_says(&upstream.seen()[0].head, &line);
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
}

/// `proxy::identity` says which are valid.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_valid_trace_goes_on_with_a_span_of_the_attempt_and_another_is_replaced() {
    let parent = format!("traceparent: 00-{ID}-{PARENT}-00\r\n");
    let one = "tracestate: a=1,b=2\r\n";
    let two = "tracestate: a=1\r\nTraceState: b=2\r\n";
    let began = Some("queuescope=began");
    let mut spans = std::collections::BTreeSet::from([PARENT.to_owned()]);
    let (upstream, front) = answering("").await;
    let mut traces = Vec::new();
    for (extra, is_kept, state) in [
        (parent.clone() + one, true, Some("a=1,b=2")),
        (String::new(), false, began),
        (two.to_owned(), false, began),
        (parent.repeat(2), false, began),
    ] {
        ask(&front, &extra).await;
        let [version, trace, span, flags] = parts(&upstream);
        assert_eq!((version.as_str(), flags.as_str()), ("00", "00"), "{extra}");
        assert_eq!(trace == ID, is_kept, "{extra}");
        assert!(spans.insert(span), "{extra}");
        let seen = upstream.seen().pop().unwrap();
        assert_eq!(seen.header("tracestate").as_deref(), state, "{extra}");
        traces.push(trace);
    }
    let rows = front.rows().await;
    assert_eq!(rows.len(), traces.len());
    assert!(rows.iter().all(|row| traces.contains(&row["trace_id"])));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn named_headers_label_a_request_in_its_row_and_in_metrics() {
    let (upstream, front) =
        answering("label_headers = [\"X-Tenant\", \"x-team\", \"x-tenant\"]").await;
    let extra = "x-tenant: acme; corp\r\nx-other: no\r\nx-team: \r\n";
    ask(&front, extra).await;
    // The server gets them as they came.
    let seen = upstream.seen().pop().unwrap();
    assert_eq!(seen.header("x-tenant").as_deref(), Some("acme; corp"));
    front.counts("queuescope_label_requests_total", 1).await;
    // The server told no times: there is no wait, rather than one of 0.
    let waits = front.proxy.metrics().label_wait.sets();
    assert!(waits.is_empty());
    assert_eq!(front.only_row().await["labels"], "x-tenant=acme_ corp");
    let (_upstream, front) = answering("").await;
    ask(&front, extra).await;
    assert_eq!(front.only_row().await["labels"], "");
}
