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

/// That a client's own id passes, `framing` shows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_without_an_id_gets_one() {
    let (upstream, front) = answering("").await;
    let mut made = BTreeSet::new();
    for extra in ["", "", "x-request-id:\r\n"] {
        let id = ask(&front, extra).await.header("x-request-id").unwrap();
        assert_eq!(id.len(), 32, "{id}");
        assert_eq!(
            upstream.seen().pop().unwrap().header("x-request-id"),
            Some(id.clone())
        );
        assert!(made.insert(id), "it is another's");
    }
    let rows = front.rows().await;
    let ids: BTreeSet<String> = rows.iter().map(|row| row["req_id"].clone()).collect();
    assert_eq!(ids, made);
}

/// `proxy::identity` says which are valid.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_valid_trace_goes_on_with_a_span_of_the_attempt_and_another_is_replaced() {
    let parent = format!("traceparent: 00-{ID}-{PARENT}-00\r\n");
    let one = "tracestate: a=1,b=2\r\n";
    let two = "tracestate: a=1\r\nTraceState: b=2\r\n";
    let began = Some("queuescope=began");
    let mut spans = BTreeSet::from([PARENT.to_owned()]);
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
