//! Request ids and trace contexts. That a client's own id passes, `framing` shows; which traces are valid, `proxy::identity`.

use super::*;

const ID: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_has_no_id_or_valid_trace_gets_one_and_a_valid_trace_goes_on_with_a_span_of_the_attempt()
 {
    let parent = format!("traceparent: 00-{ID}-{PARENT}-00\r\n");
    let one = "tracestate: a=1,b=2\r\n";
    let two = "tracestate: a=1\r\nTraceState: b=2\r\nx-request-id:\r\n";
    let began = Some("queuescope=began");
    let (upstream, front) = answering("").await;
    // All that was made, as none is another's.
    let mut made = BTreeSet::from([ID.to_owned(), PARENT.to_owned()]);
    let mut told = BTreeSet::new();
    for (extra, is_kept, state) in [
        (parent.clone() + one, true, Some("a=1,b=2")),
        (String::new(), false, began),
        (two.to_owned(), false, began),
        (parent.repeat(2), false, began),
    ] {
        let response = front.ask("/generate", &extra, b"{}").await;
        let seen = upstream.seen().pop().unwrap();
        assert_eq!(seen.header("tracestate").as_deref(), state, "{extra}");
        let id = response.header("x-request-id").unwrap();
        assert_eq!(seen.header("x-request-id").as_ref(), Some(&id));
        let parent = seen.header("traceparent").unwrap();
        let [version, trace, span, flags] = parent.split('-').collect::<Vec<_>>()[..] else {
            panic!("{parent}")
        };
        let hex = |c: u8| c.is_ascii_hexdigit() && !c.is_ascii_uppercase();
        let parts = [&*id, version, trace, span, flags];
        assert!(parts.iter().all(|part| part.bytes().all(hex)), "{parent}");
        assert_eq!(parts.map(str::len), [32, 2, 32, 16, 2]);
        assert_eq!((version, flags), ("00", "00"), "{extra}");
        assert_eq!(trace == ID, is_kept, "{extra}");
        let new = [&*id, trace, span].into_iter().filter(|part| *part != ID);
        new.for_each(|part| assert!(made.insert(part.to_owned()), "{part} is another's"));
        told.insert((id.clone(), trace.to_owned()));
    }
    let rows = front.rows().await;
    let rows = rows
        .iter()
        .map(|row| (row["req_id"].clone(), row["trace_id"].clone()));
    assert_eq!(rows.collect::<BTreeSet<_>>(), told);
}
