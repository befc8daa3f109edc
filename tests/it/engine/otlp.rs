//! The walk through a message: what it finds, and what it makes of anything else.

use bytes::Bytes;
use proptest::prelude::*;
use queuescope::engine::otlp::{self, EngineSpan, SpanKind};
use queuescope::telemetry::prometheus::LeftOut;

use crate::support::spans;

/// `None`: the message is broken.
fn read(message: &[u8]) -> Option<Vec<EngineSpan>> {
    otlp::spans(Bytes::copy_from_slice(message), |_| {}).ok()
}

/// What is read of the others, `assembly.rs` compares with what `meta_info` told.
#[test]
fn the_span_above_an_engines_root_names_the_routers_request() {
    for (case, name) in [
        ("smg113_trace", "chatcmpl-o5PB7ZLBcZLZ5SSkifVB7dSH"),
        ("router_old_trace", "chatcmpl-d8WqrroZZxcHVktODOs5Iz2A"),
    ] {
        let case = spans::named(&format!("{case}/chat_stream_tp"));
        let found = read(&spans::message(&case.spans)).unwrap();
        let request_id = name.into();
        assert_eq!(found[0].kind, SpanKind::Router { request_id });
        let is_below = |span: &EngineSpan| span.root().is_some() && span.parent == found[0].id;
        assert!(found.iter().any(is_below), "{found:?}");
    }
}

#[test]
fn a_span_that_is_none_of_an_engines_is_left_out() {
    let mut case = spans::named("direct/chat_stream_tp").spans;
    let mut each = case.iter_mut();
    let root = each.find(|span| span["attrs"]["rid"].is_string()).unwrap();
    let read = |spans: &[serde_json::Value]| {
        let mut left_out = Vec::new();
        let message = spans::message(spans).into();
        let found = otlp::spans(message, |why| left_out.push(why)).unwrap();
        (found.len(), left_out)
    };
    for (key, wrong, why) in [
        ("trace_id", "ab".into(), vec![LeftOut::Malformed]),
        ("start_ns", 0.into(), vec![LeftOut::Malformed]),
        ("name", "x".repeat(300_000).into(), vec![]),
    ] {
        let right = std::mem::replace(&mut root[key], wrong);
        assert_eq!(read(std::slice::from_ref(root)), (0, why), "{key}");
        root[key] = right;
    }
}

#[test]
fn a_rid_is_the_whole_one_wherever_it_stands() {
    let mut case = spans::named("direct/generate_stream_rid_underscore");
    let root = |spans: &[serde_json::Value]| {
        let found = read(&spans::message(spans)).unwrap();
        found.into_iter().find_map(|span| match span.kind {
            SpanKind::Root(root) => root.rid,
            _ => None,
        })
    };
    assert_eq!(root(&case.spans).as_deref(), Some("my_rid_81292267"));
    for span in &mut case.spans {
        let attributes = span["attrs"].as_object_mut().unwrap();
        attributes.remove("gen_ai.request.id");
    }
    assert_eq!(root(&case.spans).as_deref(), Some("81292267"));
}

#[test]
fn a_message_that_is_cut_is_malformed() {
    let message = spans::message(&spans::named("direct/chat_stream_n2").spans);
    assert!(read(&message).unwrap().len() > 10);
    assert_eq!(read(b""), Some(Vec::new()));
    for cut in 1..message.len() {
        assert_eq!(read(&message[..cut]), None, "cut at {cut}");
    }
}

proptest! {
    #[test]
    fn any_damage_is_survived(
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let mut message = spans::message(&spans::named("direct/chat_stream_n2").spans);
        for (at, byte) in damage {
            let at = at.index(message.len());
            message[at] = byte;
        }
        let _ = read(&message);
    }
}
