//! Tests of request bodies.

use super::*;

fn params(body: &str) -> RequestParams {
    let mut whole = RequestBody::default();
    whole.feed(body.as_bytes());
    let mut bytewise = RequestBody::default();
    body.as_bytes()
        .chunks(1)
        .for_each(|byte| bytewise.feed(byte));
    let both = [&whole, &bytewise].map(|body| format!("{:?}", body.params));
    assert_eq!(both[0], both[1]);
    whole.params
}

#[test]
fn generate() {
    let body = r#"{"rid":"a","text": ["one  two\nthree","\tfour "], "logit":[[1,"]"],{"a":"}"}],
        "sampling_params": {"temperature":0, "max_new_tokens": 7,"n": 2}, "stream": true}"#;
    let params = params(body);
    assert_eq!(params.input_length(), Some(4));
    let told = (params.output_length(), params.n, params.stream);
    assert_eq!(told, (Some(7), Some(2), Some(true)));
}

#[test]
fn token_ids_are_no_words() {
    assert_eq!(params(r#"{"input_ids":[[1,2],[3]]}"#).input_length(), None);
    assert_eq!(params(r#"{"prompt":[[1,2],[3]]}"#).input_length(), None);
}

#[test]
fn chat_counts_the_words_of_all_messages() {
    let body = r#"{"model":"m\u00e9","messages":[{"role":"system","content":"be kind"},
        {"role":"user","content":[{"type":"text","text":"what is this"},
        {"type":"image_url","image_url":{"url":"a b c"}}]}],
        "max_completion_tokens":9,"max_tokens":50,"n":3}"#;
    let params = params(body);
    assert_eq!(params.input_length(), Some(5));
    assert_eq!(params.model.as_deref(), Some("mé"));
    let told = (params.output_length(), params.n, params.stream);
    assert_eq!(told, (Some(9), Some(3), None));
}

#[test]
fn the_room_is_read_at_any_place_and_for_a_batch_the_first() {
    let room = u64::MAX >> 1;
    for text in [
        r#""text":["a","b"],"rid":["x","y"]"#,
        r#""messages":[{"content":"a"}],"n":2"#,
    ] {
        for value in [format!("{room}"), format!("[{room},7]")] {
            let member = format!("\"bootstrap_room\":{value}");
            let host = r#""bootstrap_host":["h","h"],"bootstrap_port":[1,1]"#;
            for body in [
                format!("{{{text},{host},{member}}}"),
                format!("{{{member},{host},{text}}}"),
            ] {
                assert_eq!(params(&body).room, Some(room), "{body}");
            }
        }
    }
    for none in ["0", "null", "[]", "\"7\"", "-1"] {
        let body = format!("{{\"bootstrap_room\":{none}}}");
        assert_eq!(params(&body).room, None, "{body}");
    }
}

#[test]
fn invalid_json_gives_no_parameters() {
    for body in [
        "",
        "hello",
        "{\"stream\" true}",
        "[1,2",
        "{\"text\":{\"a\":1}}",
        "nul",
        "{]",
    ] {
        let params = params(body);
        let told = (params.stream, params.input_length());
        assert_eq!(told, (None, None), "{body}");
    }
}
