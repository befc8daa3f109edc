//! Tests of request bodies.

use super::*;
use proptest::prelude::*;

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

/// The words of a prompt, the tokens and samples asked for, whether as a stream, and the model.
fn told(params: &RequestParams) -> ([Option<u64>; 3], Option<bool>, Option<&str>) {
    let numbers = [params.input_length(), params.output_length(), params.n];
    (numbers, params.stream, params.model.as_deref())
}

#[test]
fn the_parameters_of_each_api_are_read() {
    let generate = r#"{"rid":"a","text": ["one  two\nthree","\tfour "], "logit":[[1,"]"],{"a":"}"}],
        "sampling_params": {"temperature":0, "max_new_tokens": 7,"n": 2}, "stream": true}"#;
    let chat = r#"{"model":"m\u00e9","messages":[{"role":"system","content":"be kind"},
        {"role":"user","content":[{"type":"text","text":"what is this"},
        {"type":"image_url","image_url":{"url":"a b c"}}]}],
        "max_completion_tokens":9,"max_tokens":50,"n":3}"#;
    // Each prompt has its own limit, but all have as many samples.
    let batch = r#"{"text":["a b","c"],"sampling_params":[{"n":2,"max_new_tokens":7},{"n":2}]}"#;
    let nothing = ([None; 3], None, None);
    for (body, expected) in [
        (generate, ([Some(4), Some(7), Some(2)], Some(true), None)),
        (chat, ([Some(5), Some(9), Some(3)], None, Some("mé"))),
        (batch, ([Some(3), None, Some(2)], None, None)),
        // Token ids are no words.
        (r#"{"input_ids":[[1,2],[3]]}"#, nothing),
        (r#"{"prompt":[[1,2],[3]]}"#, nothing),
        ("", nothing),
        ("hello", nothing),
        ("{\"stream\" true}", nothing),
        ("[1,2", nothing),
        ("{\"text\":{\"a\":1}}", nothing),
        ("nul", nothing),
        ("{]", nothing),
    ] {
        assert_eq!(told(&params(body)), expected, "{body}");
    }
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

fn count(pieces: &[&[u8]]) -> u64 {
    let mut counter = WordCounter::default();
    for piece in pieces {
        counter.feed(piece);
    }
    counter.words
}

proptest! {
    #[test]
    fn as_split_ascii_whitespace_at_any_split(
        text in "([a-z\"\\\\ \n\r\t\u{c}]|[a-z ]{0,80}|é|中文|🦀|\u{a0}|\u{3000}){0,30}",
        cut in 0usize..400,
    ) {
        let json = serde_json::to_string(&text).unwrap();
        let inside = &json.as_bytes()[1..json.len() - 1];
        let cut = cut.min(inside.len());
        let expected = text.split_ascii_whitespace().count() as u64;
        prop_assert_eq!(count(&[&inside[..cut], &inside[cut..]]), expected);
    }
}
