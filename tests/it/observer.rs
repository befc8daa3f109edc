//! What no recording shows: odd orders, cut ends, many sequences, and what all of it costs in memory.

use queuescope::offset::Offset;
use queuescope::request::{
    ClockOf, End, Endpoint, MAX_SEQUENCES, Moment, Observer, Outcome, Relation, Row, Side,
};
use serde_json::json;

use crate::support::observed::{AT, JSON, STREAM, at_once, begun, in_pieces};
use crate::support::table;

const SMG_STREAM_ERROR: &str = "{\"error\":{\"message\":\"Stream error: error decoding response body: request or \
    response body error: error reading a body from connection: unexpected EOF during chunk size line\",\
    \"type\":\"stream_error\"}}";

fn generate(kind: &str) -> Observer {
    begun(Endpoint::Generate, kind)
}

fn records(kind: &str, body: &str, end: End) -> Vec<Row> {
    in_pieces(generate(kind), [(0, body)], end)
}

fn event(index: usize, tokens: u64) -> String {
    format!(
        "data: {{\"text\":\"a\",\"meta_info\":{{\"id\":\"i{index}\",\"finish_reason\":null,\
         \"completion_tokens\":{tokens}}},\"index\":{index}}}\n\n"
    )
}

#[test]
fn sequences_are_rows_where_somebody_spoke_of_them_and_those_beyond_the_limit_are_said() {
    let rows = |body: &str| Row::ended(records(STREAM, body, End::Complete));
    // The first stands for the request in sums, whatever came.
    let far = rows(&event(1000, 1));
    let ids: Vec<Option<&str>> = far.iter().map(|row| row.req_id.as_deref()).collect();
    assert_eq!(ids, [Some("r#0"), Some("r#1000")]);
    assert_eq!(far[0].inconsistency, None);
    let many: String = (0..MAX_SEQUENCES + 2).map(|n| event(n, 1)).collect();
    let many = rows(&many);
    assert_eq!(many.len(), MAX_SEQUENCES);
    let said = many[0].inconsistency.as_deref();
    assert_eq!(said, Some("sequences_not_recorded"));
    assert_eq!(many[1].inconsistency, None);
}

#[test]
fn after_its_last_event_an_answer_is_whole_for_the_client_and_once_the_message_is() {
    let cut = event(0, 1);
    let whole = format!("{cut}data: [DONE]\n\n");
    let mut ends = vec![
        (End::Complete, Outcome::Ok, Outcome::UpstreamDied),
        (End::ClientGone, Outcome::Ok, Outcome::ClientAbort),
    ];
    for failed in [Outcome::UpstreamDied, Outcome::Timeout, Outcome::ProxyError] {
        ends.push((End::Failed(failed, "said".to_owned()), failed, failed));
    }
    for (end, of_part, of_cut) in ends {
        let is_whole = Some(end == End::Complete);
        for (body, outcome, generation) in [(&whole, of_part, true), (&cut, of_cut, false)] {
            let row = &records(STREAM, body, end.clone())[0];
            assert_eq!(row.outcome(), outcome, "{end:?}");
            let error = row.error.as_deref().unwrap_or_default();
            let is_after = error.contains("after the generation's end");
            assert_eq!(is_after, generation && outcome != Outcome::Ok, "{error}");
            let parts = (row.message_whole, row.generation_whole);
            assert_eq!(parts, (is_whole, Some(generation)), "{end:?}");
        }
        let mut observer = generate(STREAM);
        observer.response_body(whole.as_bytes(), AT, 0);
        observer.response_end(AT);
        let row = &observer.finish(end, AT)[0];
        let ended = (row.outcome(), row.message_whole);
        assert_eq!(ended, (of_part, Some(true)));
    }
}

#[test]
fn behind_a_front_that_did_not_say_when_it_sent_nobody_saw_the_router_send() {
    let mut observer = Observer::new(Side::Traffic, Endpoint::Generate, "r".to_owned());
    let timeline = &mut observer.row_mut().timeline;
    timeline.upstream_is_server(true);
    timeline.set(Moment::Sent, AT);
    assert_eq!(timeline.raw(Moment::RouterSend), Some(AT));
    timeline.set(Moment::Arrival, AT.plus_nanos(1));
    assert_eq!(timeline.raw(Moment::RouterSend), None);
    timeline.set(Moment::Forwarded, AT.plus_nanos(2));
    assert_eq!(timeline.raw(Moment::RouterSend), Some(AT.plus_nanos(2)));
}

/// What comes, as what, and the outcome; inside of a 200, unless a status is named.
const INSIDE: &str = r#"
 | 408 | rejected
 | 429 | rejected
 | 503 | rejected
 | 404 | client_error
 | 500 | server_error
{"error":{"message":"m","code":400}} | stream | client_error
{"error":{"message":"m","code":408}} | stream | rejected
{"error":{"message":"m","code":429}} | stream | rejected
{"error":{"message":"m","code":500}} | stream | server_error
{"error":{"message":"m","code":null}} | stream | server_error
{"error":{"message":"m","code":"429"}} | stream | rejected
{"type":"error","error":{"type":"overloaded_error","message":"m"}} | stream | rejected
{"error":{"message":"m","type":"rate_limit_error","code":null}} | stream | rejected
{"error":{"message":"m","type":"BadRequestError","code":400}} | stream | client_error
{"error":"m"} | stream | server_error
SMG_STREAM_ERROR | stream | upstream_died
{"text":"a","meta_info":{"id":"i","finish_reason":{"type":"abort","message":"m"}}} | stream | engine_abort
{"text":"a","meta_info":{"id":"i","finish_reason":{"type":"abort","message":"m","status_code":null}}} | stream | engine_abort
{"text":"a","meta_info":{"id":"i","finish_reason":{"type":"abort","message":"m","status_code":400}}} | stream | client_error
{"text":"a","meta_info":{"id":"i","finish_reason":{"type":"abort","message":"m","status_code":503}}} | stream | rejected
{"text":"a","meta_info":{"id":"i","finish_reason":{"type":"abort","message":"m","status_code":500}}} | stream | server_error
{"object":"error","message":"m","code":500} | application/json | server_error
{"text":"a","message":"be well","meta_info":{"id":"i"}} | application/json | ok
{"id":"i","choices":[{"index":0,"delta":{"content":"a"},"finish_reason":"abort"}]} | stream | engine_abort
{"id":"i","choices":[{"index":0,"delta":{"content":"a"},"finish_reason":"stop"}]} | stream | ok
{"id":"i","choices":[{"index":0,"message":{"content":"a"},"finish_reason":"abort"}]} | application/json | engine_abort
{"id":"i","choices":[{"index":0,"message":{"content":"a"},"finish_reason":"stop"}]} | application/json | ok"#;

#[test]
fn an_error_is_no_success_inside_a_200_either() {
    for [body, kind, expected] in table(INSIDE.trim_start_matches('\n')) {
        // As smg 1.13.0 sent it when a server died in the middle of a stream.
        let body = body.replace("SMG_STREAM_ERROR", SMG_STREAM_ERROR);
        let (kind, sent) = match kind {
            "stream" => (STREAM, format!("data: {body}\n\ndata: [DONE]\n\n")),
            kind => (kind, body.clone()),
        };
        let (status, kind) = kind
            .parse()
            .map_or((200, kind), |status| (status, "text/plain"));
        let is_chat = body.contains("choices");
        let endpoint = if is_chat {
            Endpoint::Chat
        } else {
            Endpoint::Generate
        };
        let mut observer = Observer::new(Side::Front, endpoint, "r".to_owned());
        observer.response_head(status, Some(kind), false, AT);
        let row = &in_pieces(observer, [(0, sent)], End::Complete)[0];
        assert_eq!(row.outcome().name(), expected, "{body}");
        let error = row.error.as_deref().unwrap_or_default();
        assert!(
            kind != STREAM || is_chat || error.contains('m'),
            "{body}: {error}"
        );
        assert!(!is_chat || row.has_generated_text == Some(true), "{body}");
        let is_whole = row.generation_whole != Some(false);
        assert!(!body.contains("abort") || !is_whole, "{body}");
    }
}

fn apart(nanos: i64, error_nanos: i64) -> Relation {
    Relation::Apart(Offset { nanos, error_nanos })
}

#[test]
fn a_negative_duration_within_the_clocks_error_is_not_wrong() {
    let mut observer = generate(JSON);
    observer.row_mut().timeline.upstream_is_server(true);
    observer.row_mut().timeline.set(Moment::Forwarded, AT);
    // Received 1 ms before it was sent.
    let body = r#"{"text":"a","meta_info":{"id":"i","request_received_ts":1795167999.999}}"#;
    let mut rows = in_pieces(observer, [(0, body)], End::Complete);
    for (error_nanos, wrong) in [(1_100_000, None), (900_000, Some("network_time<0"))] {
        let offset = apart(0, error_nanos);
        rows[0].timeline.relate(ClockOf::Engine, offset);
        let row = &Row::ended(rows.clone())[0];
        assert_eq!(row.inconsistency.as_deref(), wrong);
    }
}

#[test]
fn the_last_send_of_another_clock_is_as_early_as_its_error_allows() {
    let mut observer = generate(STREAM);
    let timeline = &mut observer.row_mut().timeline;
    timeline.set(Moment::Forwarded, AT);
    assert_eq!(timeline.last_send(), Some(AT));
    timeline.set(Moment::WorkerForwarded, AT.plus_nanos(5_000));
    timeline.relate(ClockOf::Hop, apart(1_000, 40));
    assert_eq!(timeline.last_send(), Some(AT.plus_nanos(3_960)));
}

#[test]
fn usage_speaks_of_a_sequence_only_where_nothing_better_does_and_the_id_is_the_firsts() {
    let [one, other] = [0, 1].map(|index| json!({"index": index, "message": {"content": "a"}}));
    let meta = json!({"completion_tokens": 3, "cached_tokens": 2});
    let told = json!([{"index": 0, "meta_info": meta}]);
    let details = json!({"cached_tokens": 4});
    let usage = json!({"completion_tokens": 9, "prompt_tokens_details": details});
    for (choices, expected) in [
        (json!([one]), &[(Some(9), Some(4))][..]),
        (told, &[(Some(3), Some(2))]),
        (json!([one, other]), &[(None, None); 2]),
    ] {
        let body = format!("{{\"id\":\"e\",\"choices\":{choices},\"usage\":{usage}}}");
        let rows = at_once(Endpoint::Chat, JSON, &body);
        if let [first, second] = &rows[..] {
            let ids = [first, second].map(|row| row.engine_id.as_deref());
            assert_eq!(ids, [Some("e"), None]);
        }
        let rows = rows.into_iter();
        let tokens = rows.map(|row| (row.output_tokens(), row.cached_tokens));
        assert_eq!(Vec::from_iter(tokens), expected, "{choices}");
    }
}

#[test]
fn numbers_that_are_none_cost_no_token_at_any_split() {
    let event = |n: u64| {
        format!(
            "data: {{\"text\":\"a\",\"score\":NaN,\"list\":[Infinity,NaN],\"meta_info\":{{\"id\":\"i\",\
             \"e2e_latency\":-Infinity,\"queue_time\":Infinity,\"completion_tokens\":{n}}},\"index\":0}}\n\n"
        )
    };
    let body = format!("{}{}data: [DONE]\n\n", event(1), event(2));
    for cut in 0..body.len() {
        let (first, rest) = body.split_at(cut);
        let pieces = [(0, first), (0, rest)];
        let row = &in_pieces(generate(STREAM), pieces, End::Complete)[0];
        let tokens = [row.token_chunks, row.actual_output_tokens];
        let told = (row.outcome(), tokens, row.pure_queue_time);
        assert_eq!(told, (Outcome::Ok, [Some(2); 2], None), "{cut}");
    }
}

#[test]
fn prefill_ended_when_the_first_event_says_whatever_came_of_a_retraction() {
    let event = |prefill: &str, retractions: u64, finish: &str| {
        format!(
            "data: {{\"text\":\"a\",\"meta_info\":{{\"id\":\"i\",\"finish_reason\":{finish},\
             \"num_retractions\":{retractions},\"prefill_finished_time\":{prefill}}}}}\n\n"
        )
    };
    let first = event("1795168001.5", 0, "null");
    let last = event("1795168007.5", 1, "{\"type\":\"stop\"}");
    let body = format!("{first}{last}data: [DONE]\n\n");
    let row = &records(STREAM, &body, End::Complete)[0];
    let prefill_end = AT.plus_nanos(1_500_000_000);
    assert_eq!(row.timeline.raw(Moment::PrefillEnd), Some(prefill_end));
    assert_eq!(row.num_retractions, Some(1));
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
    assert!(held(1) < 9 << 10, "{}", held(1));
    assert!(held(8) <= 16 << 10, "{}", held(8));
    let mut big = generate(STREAM);
    let text = "x".repeat(1 << 20);
    let info = allocation_counter::measure(|| {
        big.response_body(b"data: {\"text\":\"", AT, 0);
        (0..64).for_each(|_| big.response_body(text.as_bytes(), AT, 0));
    });
    assert_eq!(info.bytes_total, 0, "64 MiB of one event");
}
