//! What no recording shows: odd orders, cut ends, many sequences, and what all of it costs in memory.

use queuescope::clock::Stamp;
use queuescope::request::endpoint::Endpoint;
use queuescope::request::observer::{End, Observer};
use queuescope::request::record::{Outcome, Record};
use queuescope::request::response::MAX_SEQUENCES;
use queuescope::request::timeline::{Moment, Side, Span};

const STREAM: &str = "text/event-stream; charset=utf-8";
const AT: Stamp = Stamp::from_nanos(1_795_168_000_000_000_000);

fn generate(content_type: &str) -> Observer {
    let mut observer = Observer::new(Side::Front, Endpoint::Generate, "r".to_owned());
    observer.response_head(200, Some(content_type), false, AT);
    observer
}

fn records(content_type: &str, body: &str, end: End) -> Vec<Record> {
    let mut observer = generate(content_type);
    observer.response_body(body.as_bytes(), AT, 0);
    observer.finish(end, AT).into_records(None)
}

fn outcome(content_type: &str, body: &str, end: End) -> Outcome {
    records(content_type, body, end)[0].facts.outcome
}

fn event(index: usize, tokens: u64) -> String {
    format!(
        "data: {{\"text\":\"a\",\"meta_info\":{{\"id\":\"i{index}\",\"finish_reason\":null,\
         \"completion_tokens\":{tokens}}},\"index\":{index}}}\n\n"
    )
}

#[test]
fn places_that_nobody_spoke_of_are_no_rows() {
    let rows = records(STREAM, &event(1000, 1), End::Complete);
    let indexes: Vec<u32> = rows.iter().map(|row| row.sequence.index).collect();
    // The first stands for the request in sums, whatever came.
    assert_eq!(indexes, [0, 1000]);
    assert_eq!(rows[1].row_id(), "r#1000");
}

#[test]
fn sequences_beyond_the_limit_are_said() {
    let few = records(STREAM, &event(3, 1), End::Complete);
    assert_eq!(few[0].inconsistency(), "");
    let body: String = (0..MAX_SEQUENCES + 2)
        .map(|index| event(index, 1))
        .collect();
    let rows = records(STREAM, &body, End::Complete);
    assert_eq!(rows.len(), MAX_SEQUENCES);
    assert_eq!(rows[0].inconsistency(), "sequences_not_recorded");
    assert_eq!(rows[1].inconsistency(), "");
}

#[test]
fn after_its_last_event_an_answer_is_whole_however_the_connection_ends() {
    let whole = format!("{}data: [DONE]\n\n", event(0, 1));
    for end in [
        End::Complete,
        End::ClientGone,
        End::UpstreamDied("closed".to_owned()),
        End::Timeout("silent".to_owned()),
    ] {
        assert_eq!(outcome(STREAM, &whole, end.clone()), Outcome::Ok, "{end:?}");
    }
    let cut = event(0, 1);
    for (end, expected) in [
        (End::Complete, Outcome::UpstreamDied),
        (End::ClientGone, Outcome::ClientAbort),
        (
            End::UpstreamDied("closed".to_owned()),
            Outcome::UpstreamDied,
        ),
        (End::Timeout("silent".to_owned()), Outcome::Timeout),
        (End::Shutdown, Outcome::ProxyError),
    ] {
        assert_eq!(outcome(STREAM, &cut, end.clone()), expected, "{end:?}");
    }
}

#[test]
fn moments_out_of_order_are_named_and_stand_as_they_came() {
    let body = r#"{"text":"a","meta_info":{"id":"i","finish_reason":{"type":"stop"},
        "request_received_ts":1795168000.5,"forward_entry_time":1795168001.0,"queue_time":0.75,
        "prefill_finished_time":1795168002.0}}"#;
    let row = &records("application/json", body, End::Complete)[0];
    assert_eq!(
        row.inconsistency(),
        "queue_start<server_created;tokenize_time<0"
    );
    assert_eq!(row.timeline.nanos(Span::TOKENIZE), Some(-250_000_000));
}

#[test]
fn behind_a_front_that_did_not_say_when_it_sent_nobody_saw_the_router_send() {
    let mut observer = Observer::new(Side::Traffic, Endpoint::Generate, "r".to_owned());
    let timeline = observer.timeline_mut();
    timeline.upstream_is_server(true);
    timeline.set(Moment::Sent, AT);
    assert_eq!(timeline.raw(Moment::RouterSend), Some(AT));
    timeline.set(Moment::Arrival, AT.plus_nanos(1));
    assert_eq!(timeline.raw(Moment::RouterSend), None);
    timeline.set(Moment::Forwarded, AT.plus_nanos(2));
    assert_eq!(timeline.raw(Moment::RouterSend), Some(AT.plus_nanos(2)));
}

#[test]
fn an_answer_of_too_much_to_do_is_a_rejection() {
    for (status, expected) in [
        (408, Outcome::Rejected),
        (429, Outcome::Rejected),
        (503, Outcome::Rejected),
        (404, Outcome::ClientError),
        (500, Outcome::ServerError),
    ] {
        let mut observer = Observer::new(Side::Front, Endpoint::Generate, "r".to_owned());
        observer.response_head(status, Some("text/plain"), false, AT);
        let rows = observer.finish(End::Complete, AT).into_records(None);
        assert_eq!(rows[0].facts.outcome, expected, "{status}");
    }
}

#[test]
fn errors_inside_a_200() {
    let json = "application/json";
    for (kind, body, expected) in [
        (
            STREAM,
            "data: {\"error\":{\"message\":\"m\",\"code\":\"503\"}}\n\ndata: [DONE]\n\n",
            Outcome::Rejected,
        ),
        (
            STREAM,
            "data: {\"error\":\"m\"}\n\ndata: [DONE]\n\n",
            Outcome::ServerError,
        ),
        (
            json,
            "{\"object\":\"error\",\"message\":\"m\",\"code\":500}",
            Outcome::ServerError,
        ),
        (
            json,
            "{\"text\":\"a\",\"message\":\"be well\",\"meta_info\":{\"id\":\"i\"}}",
            Outcome::Ok,
        ),
        (
            json,
            "{\"text\":\"a\",\"meta_info\":{\"id\":\"i\"",
            Outcome::UpstreamDied,
        ),
        ("text/plain", "anything", Outcome::Ok),
    ] {
        assert_eq!(outcome(kind, body, End::Complete), expected, "{body}");
    }
}

/// Bytes that an observer holds while the middle of a stream of `sequences` passes.
fn held(sequences: usize) -> i64 {
    let mut kept = None;
    let info = allocation_counter::measure(|| {
        let mut observer = generate(STREAM);
        for tokens in 1..20 {
            for index in 0..sequences {
                observer.response_body(event(index, tokens).as_bytes(), AT, 0);
            }
        }
        kept = Some(observer);
    });
    let itself = size_of::<Observer>() as i64;
    drop(kept);
    info.bytes_current + itself
}

#[test]
fn an_observer_is_small_whatever_the_size_of_events_and_for_up_to_8_sequences() {
    assert!(held(1) < 8 << 10, "{}", held(1));
    assert!(held(8) <= 16 << 10, "{}", held(8));
    let mut big = generate(STREAM);
    let text = "x".repeat(1 << 20);
    let info = allocation_counter::measure(|| {
        big.response_body(b"data: {\"text\":\"", AT, 0);
        (0..64).for_each(|_| big.response_body(text.as_bytes(), AT, 0));
    });
    assert_eq!(info.bytes_total, 0, "64 MiB of one event");
}
