//! What of a stream is a token, and what ends it, also of other APIs: reasoning, calls, typed events; large logprobs. Figures per token:
//! only where somebody told how many tokens an answer has, and never with events in their place.

use queuescope::request::{End, Endpoint, Outcome, Row, Unread};

use crate::support::observed::{AT, JSON, STREAM, assert_cells, at_once, begun, streamed};
use crate::support::table;

const MS: i64 = 1_000_000;

/// The rows of a stream of chat of which an event is read every 100 ms.
fn chat(events: &[impl AsRef<str>]) -> Vec<Row> {
    let events = events.iter().map(AsRef::as_ref).chain(["[DONE]"]);
    Row::ended(streamed(Endpoint::Chat, events, 100_000_000))
}

fn said(index: usize, text: &str, usage: Option<u64>) -> String {
    let usage = usage.map_or_else(String::new, |n| {
        format!(",\"usage\":{{\"completion_tokens\":{n}}}")
    });
    format!(
        "{{\"id\":\"i\",\"choices\":[{{\"index\":{index},\"delta\":{{\"content\":\"{text}\"}}}}]{usage}}}"
    )
}

fn usage(tokens: u64) -> String {
    format!("{{\"id\":\"i\",\"choices\":[],\"usage\":{{\"completion_tokens\":{tokens}}}}}")
}

/// Events (text or `-`, with the tokens of its choice behind it; a number is that of all tokens), cells, and why.
const FIGURES: &str = "\
- eight eight eight | token_chunks=3, chunk_gap_mean=0.1, chunk_gap_p99=0.1, chunk_gap_max=0.1 | with --stream-interval 8
- eight eight eight | actual_output_tokens=, decode_length=, token_count_source= | nobody told how many
- eight eight eight | tpot=, itl_mean=, itl_p99=, itl_max= | nobody told how many
a a a 17 | decode_length=17, token_count_source=usage, tpot=0.0125, chunk_gap_mean=0.1 | 200 ms for 16 more
a a a 17 | itl_mean=, itl_p99=, itl_max= | usage does not tell the gaps between tokens
a a a 3 | tpot=0.1, itl_mean=0.1, itl_max=0.1 | as many events as tokens: each brought one
a 17 | decode_length=17, tpot=, itl_mean= | an answer in one event has no time per token
a:1 a a:17 | tpot=0.0125, itl_mean=, itl_p99= | of the second event nobody says what it brought
-:0 | actual_output_tokens=0, token_chunks= | none came";

#[test]
fn figures_per_token_are_of_tokens_that_were_told() {
    for [events, cells, what] in table(FIGURES) {
        let event = |event: &str| {
            let (text, tokens) = event.split_once(':').unwrap_or((event, ""));
            let of_choice = said(0, text.trim_matches('-'), tokens.parse().ok());
            event.parse().map_or(of_choice, usage)
        };
        let events: Vec<String> = events.split(' ').map(event).collect();
        assert_cells(&chat(&events)[0], cells, what);
    }
}

/// `"stream_options": {"continuous_usage_stats": true}`: each event counts the tokens of its choice.
#[test]
fn usage_beside_each_event_tells_the_gaps_too() {
    let events = [(0, 1), (1, 3), (0, 9), (1, 3), (0, 17), (1, 7)];
    let events = events.map(|(index, tokens)| said(index, "a", Some(tokens)));
    let rows = chat(&[&events[..], &[usage(24)]].concat());
    let of_first = "decode_length=17, token_count_source=usage, tpot=0.025, itl_mean=0.025, itl_max=0.025, chunk_gap_mean=0.2";
    assert_cells(&rows[0], of_first, "first");
    // Four tokens in the 400 ms after the first event, which brought three.
    let of_second = "decode_length=7, tpot=0.1, itl_mean=0.1, itl_max=0.1, token_chunks=3";
    assert_cells(&rows[1], of_second, "second");
}

/// The last token may bring no text, or come with the chunk that ends the stream: only the usage of all counts it.
#[test]
fn tokens_that_only_the_usage_of_all_counts_are_counted() {
    let mut events: Vec<String> = (1..10).map(|n| said(0, "a", Some(n))).collect();
    let finish = "{\"id\":\"i\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}],\
                  \"usage\":{\"completion_tokens\":10}}";
    events.extend([finish.to_owned(), usage(10)]);
    let rows = chat(&events);
    let whole = "actual_output_tokens=10, request_output_tokens=10, token_count_source=usage, token_chunks=9, itl_mean=0.1";
    assert_cells(&rows[0], whole, "whole");

    // Of two sequences nobody can say which had the tokens that only the whole counts.
    let [first, second] = [0, 1].map(|index| said(index, "a", Some(1)));
    let rows = chat(&[&first, &second, &usage(4)]);
    let of_two = "actual_output_tokens=1, request_output_tokens=4";
    rows.iter()
        .for_each(|row| assert_cells(row, of_two, "of two"));
}

#[test]
fn a_stalled_client_is_no_gap_of_the_engine() {
    // A stall before the first token is not between tokens.
    for (second_at, stalls, stalled) in [(3_010, [0, 3_000], 3_000), (10, [500, 500], 0)] {
        let mut observer = begun(Endpoint::Chat, STREAM);
        for (at, stall) in [0, second_at].into_iter().zip(stalls) {
            let event = format!("data: {}\n\n", said(0, "a", None));
            observer.response_body(event.as_bytes(), AT.plus_nanos(at * MS), stall * MS);
        }
        let row = &observer.finish(End::Complete, AT)[0];
        let told = (row.chunk_gap_max, row.internal.stall_nanos);
        assert_eq!(told, (Some(10 * MS), stalled * MS));
    }
}

/// The first ended row of a stream whose events are read 1 ms apart.
fn ended_row(endpoint: Endpoint, events: &[&str]) -> Row {
    // They are folded here only.
    let events = events.iter().map(|event| event.replace('\n', " "));
    Row::ended(streamed(endpoint, events, 1_000_000)).remove(0)
}

#[test]
fn reasoning_and_calls_are_tokens() {
    let delta =
        |delta: &str| format!("{{\"id\":\"c\",\"choices\":[{{\"index\":0,\"delta\":{delta}}}]}}");
    let events = [
        delta(r#"{"role":"assistant","content":""}"#),
        delta(r#"{"reasoning_content":"hm","content":null}"#),
        delta(r#"{"content":"so"}"#),
        delta(r#"{"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":""}}]}"#),
        delta(r#"{"content":null,"tool_calls":null}"#),
        "[DONE]".to_owned(),
    ];
    let row = ended_row(Endpoint::Chat, &events.each_ref().map(String::as_str));
    let told = "outcome=ok, first_token_time=0.001, last_token_time=0.003, token_chunks=3";
    assert_cells(&row, told, "chat");

    // Shapes of SGLang's serving_responses.py and serving.py of anthropic.
    let row = ended_row(
        Endpoint::Responses,
        &[
            r#"{"type":"response.created","response":{"id":"resp_1","error":null,"usage":null},"sequence_number":0}"#,
            r#"{"item":{"id":"rs","type":"reasoning","summary":[]},"output_index":0,"type":"response.output_item.added"}"#,
            r#"{"content_index":0,"delta":"hm","item_id":"rs","type":"response.reasoning_text.delta"}"#,
            r#"{"item":{"id":"fc","arguments":"","name":"f","type":"function_call"},"type":"response.output_item.added"}"#,
            r#"{"delta":"{}","item_id":"fc","type":"response.function_call_arguments.delta"}"#,
            r#"{"arguments":"{}","item_id":"fc","type":"response.function_call_arguments.done"}"#,
            r#"{"item":{"id":"fc","arguments":"{}","name":"f","type":"function_call"},"type":"response.output_item.done"}"#,
            r#"{"type":"response.completed","response":{"id":"resp_1","output":[{"type":"function_call"}],"error":null,
                "usage":{"input_tokens":9,"input_tokens_details":{"cached_tokens":4},"output_tokens":5}}}"#,
        ],
    );
    let told = "outcome=ok, first_token_time=0.002, last_token_time=0.004, token_chunks=3, engine_id=resp_1, \
                actual_prompt_tokens=9, actual_output_tokens=5, cached_tokens=4";
    assert_cells(&row, told, "responses");

    let row = ended_row(
        Endpoint::Messages,
        &[
            r#"{"type":"message_start","message":{"id":"msg_1","content":[],"usage":{"input_tokens":9,
                "cache_read_input_tokens":4,"output_tokens":0}}}"#,
            r#"{"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":""}}"#,
            r#"{"type":"ping"}"#,
            r#"{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"hm"}}"#,
            r#"{"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"s"}}"#,
            r#"{"type":"content_block_start","index":1,"content_block":{"type":"tool_use","id":"t","name":"f","input":{}}}"#,
            r#"{"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":"{}"}}"#,
            r#"{"type":"content_block_stop","index":1}"#,
            r#"{"type":"message_delta","delta":{"stop_reason":"tool_use"},"usage":{"output_tokens":5}}"#,
            r#"{"type":"message_stop"}"#,
        ],
    );
    // The message's id is not the engine's.
    let told = "outcome=ok, first_token_time=0.003, last_token_time=0.006, token_chunks=3, engine_id=, \
                actual_prompt_tokens=13, actual_output_tokens=5";
    assert_cells(&row, told, "messages");
}

#[test]
fn streams_of_typed_events_end_by_their_own_event() {
    let text = r#"{"delta":"a","type":"response.output_text.delta"}"#;
    let failed = r#"{"type":"response.failed","response":{"id":"r","error":{"code":"server_error","message":"oom"}}}"#;
    let block =
        r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"a"}}"#;
    let stop = r#"{"type":"message_stop"}"#;
    let unsaid = r#"{"type":"response.failed","response":{"id":"r","error":null}}"#;
    let cancelled = r#"{"type":"response.cancelled","response":{"id":"r"}}"#;
    let no = r#"{"type":"error","code":null,"message":"no","param":null}"#;
    let (responses, messages) = (Endpoint::Responses, Endpoint::Messages);
    let wordless = "an error without a message";
    for (endpoint, events, outcome, error) in [
        (responses, &[text][..], "upstream_died", "without its end"),
        (responses, &[text, failed], "server_error", "oom"),
        (responses, &[text, unsaid], "server_error", wordless),
        (
            responses,
            &[text, cancelled],
            "engine_abort",
            "the engine aborted it",
        ),
        (responses, &[no], "server_error", "no"),
        (messages, &[block], "upstream_died", "without its end"),
        (messages, &[block, stop], "ok", ""),
    ] {
        let row = ended_row(endpoint, events);
        assert_eq!(row.outcome().name(), outcome, "{events:?}");
        let told = row.error.as_deref().unwrap_or_default();
        assert!(told.contains(error), "{events:?}: {told}");
    }
    // Only the end of messages counts their tokens.
    let start = r#"{"type":"message_start","message":{"id":"msg_1","usage":{"input_tokens":9,"output_tokens":0}}}"#;
    let row = ended_row(messages, &[start, block, block, block]);
    let told = "outcome=upstream_died, first_token_time=0.001, last_token_time=0.003, token_chunks=3, \
                actual_prompt_tokens=9, actual_output_tokens=";
    assert_cells(&row, told, "cut");
}

#[test]
fn the_status_of_a_reply_is_read() {
    let background = Some(Unread::Background);
    for (status, outcome, unread, whole) in [
        ("queued", Outcome::Ok, background, None),
        ("in_progress", Outcome::Ok, background, None),
        ("completed", Outcome::Ok, None, Some(true)),
        ("failed", Outcome::ServerError, None, Some(false)),
        ("cancelled", Outcome::EngineAbort, None, Some(false)),
    ] {
        let body = format!(
            r#"{{"id":"resp_1","object":"response","output":[],"status":"{status}","usage":null,"error":null}}"#
        );
        let row = &at_once(Endpoint::Responses, JSON, &body)[0];
        let told = (row.outcome(), row.unread, row.generation_whole);
        assert_eq!(told, (outcome, unread, whole), "{status}");
    }
}

#[test]
fn large_logprobs_hide_no_timing() {
    let logprobs = "[-0.5,11,\"\\\"}]\"],".repeat(100_000);
    let event = format!(
        "{{\"text\":\"a\",\"meta_info\":{{\"id\":\"i\",\"forward_entry_time\":1795168001.0,\"queue_time\":0.25,\
         \"input_token_logprobs\":[{logprobs}null],\"output_token_logprobs\":[[-0.5,11,null]],\"completion_tokens\":1,\
         \"finish_reason\":{{\"type\":\"stop\"}},\"request_received_ts\":1795168000.5}}}}"
    );
    let row = ended_row(Endpoint::Generate, &[&event, "[DONE]"]);
    let told = "queue_time_start=0.75, server_created_time=0.5, actual_output_tokens=1";
    assert_cells(&row, told, "large");
}
