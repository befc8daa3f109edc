//! What of other APIs' streams is a token, and what ends them: reasoning, calls, typed events; large logprobs.

use queuescope::request::{Endpoint, Outcome, Row, Unread};

use crate::support::observed::{self, JSON, assert_cells, at_once};

/// The first ended row of a stream whose events are read 1 ms apart.
fn streamed(endpoint: Endpoint, events: &[&str]) -> Row {
    // They are folded here only.
    let events = events.iter().map(|event| event.replace('\n', " "));
    Row::ended(observed::streamed(endpoint, events, 1_000_000)).remove(0)
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
    let row = streamed(Endpoint::Chat, &events.each_ref().map(String::as_str));
    let told = "outcome=ok, first_token_time=0.001, last_token_time=0.003, token_chunks=3";
    assert_cells(&row, told, "chat");

    // Shapes of SGLang's serving_responses.py and serving.py of anthropic.
    let row = streamed(
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

    let row = streamed(
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
        let row = streamed(endpoint, events);
        assert_eq!(row.outcome().name(), outcome, "{events:?}");
        let told = row.error.as_deref().unwrap_or_default();
        assert!(told.contains(error), "{events:?}: {told}");
    }
    // Only the end of messages counts their tokens.
    let start = r#"{"type":"message_start","message":{"id":"msg_1","usage":{"input_tokens":9,"output_tokens":0}}}"#;
    let row = streamed(messages, &[start, block, block, block]);
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
    let row = streamed(Endpoint::Generate, &[&event, "[DONE]"]);
    let told = "queue_time_start=0.75, server_created_time=0.5, actual_output_tokens=1";
    assert_cells(&row, told, "large");
}
