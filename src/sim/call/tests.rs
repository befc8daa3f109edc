use super::*;

fn config() -> Config {
    Config {
        default_output_len: 7,
        context_len: 100,
        ..Config::default()
    }
}

fn call(endpoint: Endpoint, body: &str) -> Result<Call, Refusal> {
    Call::parse(endpoint, body.as_bytes(), &config())
}

/// `(prompt tokens, output tokens)` of each sequence.
fn lengths_of(endpoint: Endpoint, body: &str) -> Vec<(u32, u32)> {
    let call = call(endpoint, body).unwrap();
    let each = call.sequences.iter();
    each.map(|s| (s.prompt_tokens(), s.wanted)).collect()
}

#[test]
fn every_form_of_prompt_has_its_length() {
    use Endpoint::{Chat, Completions, Generate};
    for (endpoint, body, wanted) in [
        (Generate, r#"{"text":"a b  c"}"#, vec![(3, 7)]),
        (Generate, r#"{"text":["a b","c"]}"#, vec![(2, 7), (1, 7)]),
        (Generate, r#"{"input_ids":[5,6,7,8]}"#, vec![(4, 7)]),
        (
            Generate,
            r#"{"input_ids":[[5],[6,7]]}"#,
            vec![(1, 7), (2, 7)],
        ),
        (
            Generate,
            r#"{"text":"","lora_path":null,"rid":null}"#,
            vec![(1, 7)],
        ),
        (Completions, r#"{"prompt":"a b"}"#, vec![(2, 7)]),
        (
            Completions,
            r#"{"prompt":["a","b c"]}"#,
            vec![(1, 7), (2, 7)],
        ),
        (Completions, r#"{"prompt":[1,2,3]}"#, vec![(3, 7)]),
        (
            Completions,
            r#"{"prompt":[[1],[2,3]],"n":1}"#,
            vec![(1, 7), (2, 7)],
        ),
        (
            Chat,
            r#"{"messages":[{"role":"system","content":"a b"},{"content":"c"}]}"#,
            vec![(3, 7)],
        ),
        (
            Chat,
            r#"{"messages":[{"content":[{"type":"text","text":"a b"},{"type":"image"}]}]}"#,
            vec![(2, 7)],
        ),
        (
            Chat,
            r#"{"messages":[{"role":"assistant","content":null}],"max_tokens":3}"#,
            vec![(1, 3)],
        ),
        (
            Chat,
            r#"{"messages":[{"content":"a"}],"max_tokens":3,"max_completion_tokens":4}"#,
            vec![(1, 4)],
        ),
    ] {
        assert_eq!(lengths_of(endpoint, body), wanted, "{body}");
    }
}

#[test]
fn lengths_keep_to_the_context() {
    let body = r#"{"text":"a b","sampling_params":{"max_new_tokens":500}}"#;
    assert_eq!(lengths_of(Endpoint::Generate, body), [(2, 98)]);
    let body = r#"{"text":"a b","sampling_params":{"max_new_tokens":0}}"#;
    assert_eq!(lengths_of(Endpoint::Generate, body), [(2, 1)]);
    let body = format!(r#"{{"text":"{}","stream":true}}"#, "a ".repeat(100));
    let refusal = call(Endpoint::Generate, &body).unwrap_err();
    assert!(refusal.stream && refusal.message.contains("(100 tokens) is longer"));
}

#[test]
fn request_ids_are_the_clients_where_the_real_server_keeps_them() {
    let rids = |body: &str| -> Vec<String> {
        let call = call(Endpoint::Generate, body).unwrap();
        call.sequences.iter().map(|s| s.rid.to_string()).collect()
    };
    assert_eq!(rids(r#"{"text":"a","rid":"r"}"#), ["r"]);
    assert_eq!(rids(r#"{"text":["a","b"],"rid":"r"}"#), ["r_0", "r_1"]);
    assert_eq!(rids(r#"{"text":["a","b"],"rid":["x","y"]}"#), ["x", "y"]);
    let made = rids(r#"{"text":"a","rid":"r","sampling_params":{"n":2}}"#);
    assert!(made[0] != made[1] && made.iter().all(|rid| rid.len() == 32));
}

#[test]
fn each_prompt_of_a_batch_may_have_its_own_length() {
    let body =
        r#"{"text":["a","b"],"sampling_params":[{"max_new_tokens":3},{"max_new_tokens":4}]}"#;
    assert_eq!(lengths_of(Endpoint::Generate, body), [(1, 3), (1, 4)]);
}

fn check_refusals(endpoint: Endpoint, cases: &[(&str, RefusalKind, &str)]) {
    for (body, kind, words) in cases {
        let refusal = call(endpoint, body).unwrap_err();
        assert_eq!(refusal.kind, *kind, "{body}: {}", refusal.message);
        assert!(
            refusal.message.contains(words),
            "{body}: {}",
            refusal.message
        );
    }
}

#[test]
fn refusals_of_generate_name_the_field_and_what_would_be_right() {
    use RefusalKind::{Invalid, Unfit};
    let cases = [
        ("{", Invalid, "EOF"),
        ("[1]", Invalid, "JSON"),
        (r#"{"text":5}"#, Invalid, "text and rid must be"),
        (r#"{"input_ids":"x"}"#, Invalid, "input_ids must be"),
        (
            r#"{"text":"a","sampling_params":{"n":"two"}}"#,
            Invalid,
            "sampling_params must be",
        ),
        (r#"{"text":"a","input_ids":[1]}"#, Unfit, "not both"),
        (r#"{"text":[]}"#, Unfit, "empty"),
        (
            r#"{"text":"a","sampling_params":{"n":0}}"#,
            Unfit,
            "n must be at least 1, got 0",
        ),
        (
            r#"{"text":"a","sampling_params":{"n":99999999999}}"#,
            Unfit,
            "at most",
        ),
        (
            r#"{"text":"a","sampling_params":{"max_new_tokens":-1}}"#,
            Unfit,
            "max_new_tokens must be at least 0, got -1",
        ),
    ];
    check_refusals(Endpoint::Generate, &cases);
}

#[test]
fn refusals_of_the_openai_endpoints_name_the_field_and_what_would_be_right() {
    use RefusalKind::{Invalid, Unfit, Unsupported};
    let cases = [
        ("{}", Invalid, "prompt"),
        (r#"{"prompt":{}}"#, Invalid, "prompt must be"),
    ];
    check_refusals(Endpoint::Completions, &cases);
    let meta = r#"{"messages":[{"content":"a"}],"stream":true,"return_meta_info":true}"#;
    let cases = [
        (r#"{"prompt":"a"}"#, Invalid, "messages"),
        (r#"{"messages":[]}"#, Unfit, "empty"),
        (meta, Unsupported, "return_meta_info"),
    ];
    check_refusals(Endpoint::Chat, &cases);
    let one = r#"{"prompt":"a","return_meta_info":true,"stream":true}"#;
    let call = call(Endpoint::Completions, one).unwrap();
    assert!(!call.return_meta_info, "ignored there");
}
