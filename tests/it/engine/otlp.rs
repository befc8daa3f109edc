//! The walk through a message: what it finds, and what it makes of anything else.

use bytes::Bytes;
use proptest::prelude::*;
use queuescope::engine::otlp;
use queuescope::engine::span::{EngineSpan, SpanKind, Stage};
use queuescope::telemetry::prometheus::LeftOut;

use crate::support::spans;

/// `None`: the message is broken.
fn read(message: &[u8]) -> Option<Vec<EngineSpan>> {
    otlp::spans(Bytes::copy_from_slice(message), |_| {}).ok()
}

#[test]
fn of_each_recorded_request_the_spans_that_a_join_needs_are_found() {
    let case = spans::named("smg113_trace/chat_stream_tp");
    let found = read(&spans::message(&case.spans)).unwrap();
    let parts: Vec<&SpanKind> = found.iter().map(|span| &span.kind).collect();
    let [
        SpanKind::Router { request_id },
        SpanKind::Root(root),
        SpanKind::Scheduler(scheduler),
        SpanKind::Stage(Stage::Process),
        SpanKind::Stage(Stage::Waiting),
        SpanKind::Stage(Stage::Prefill),
    ] = parts[..]
    else {
        panic!("{parts:?}");
    };
    assert_eq!(&**request_id, "chatcmpl-o5PB7ZLBcZLZ5SSkifVB7dSH");
    let rid = "4632628700ff490fafbf437a0908c081";
    assert_eq!(root.rid.as_deref(), Some(rid));
    let tokens = [root.prompt_tokens, root.cached_tokens, root.output_tokens];
    assert_eq!(tokens, [31, 30, 8].map(Some));
    let first_token = found[1].start.plus_nanos(16_135_624);
    assert_eq!(root.first_token, Some(first_token));
    assert_eq!((scheduler.tp_rank, scheduler.pp_rank), (Some(0), Some(0)));
    assert_eq!(scheduler.dp_rank, None);
    assert!(!scheduler.is_aborted);
    assert_eq!(found[0].id, found[1].parent);
    assert_eq!(found[1].trace, 0x282d_1faa_21ee_8724_447c_542d_cd3c_5670);
    assert_eq!(found[1].start.nanos(), 1_795_170_262_925_971_712);
    assert_eq!(found[1].end.nanos(), 1_795_170_262_971_626_752);
    // The older router names its requests, too.
    let case = spans::named("router_old_trace/chat_stream_tp");
    let found = read(&spans::message(&case.spans)).unwrap();
    let request_id = "chatcmpl-d8WqrroZZxcHVktODOs5Iz2A".into();
    assert_eq!(found[0].kind, SpanKind::Router { request_id });
}

#[test]
fn a_span_that_is_none_of_an_engines_is_left_out() {
    let mut case = spans::named("direct/chat_stream_tp").spans;
    let all = read(&spans::message(&case)).unwrap().len();
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
    root["attrs"]["long"] = "x".repeat(300_000).into();
    assert_eq!(read(&case), (all - 1, vec![LeftOut::TooLarge]));
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
