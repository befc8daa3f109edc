use super::*;

fn config() -> Config {
    Config {
        context_len: 200,
        ..Config::default()
    }
}

fn parse(endpoint: Endpoint, body: &str) -> Result<GenerationRequest, Refusal> {
    GenerationRequest::parse(endpoint, body.as_bytes(), &config())
}

/// The lines of a table: path, what is expected, body.
fn cases(table: &str) -> impl Iterator<Item = (Endpoint, &str, &str)> {
    table.lines().map(|line| {
        let (path, rest) = line.split_once(" | ").unwrap();
        let (expected, body) = rest.split_once(" | ").unwrap();
        (Endpoint::from_path(path).unwrap(), expected, body)
    })
}

/// Path, prompt and output tokens of each sequence, body.
const LENGTHS: &str = r#"/generate | 3+128 | {"text":"a b  c"}
/generate | 2+128 1+128 | {"text":["a b","c"]}
/generate | 4+128 | {"input_ids":[5,6,7,8]}
/generate | 1+128 2+128 | {"input_ids":[[5],[6,7]]}
/generate | 1+128 | {"text":"","lora_path":null,"rid":null}
/generate | 2+198 | {"text":"a b","sampling_params":{"max_new_tokens":500}}
/generate | 2+1 | {"text":"a b","sampling_params":{"max_new_tokens":0}}
/v1/completions | 2+128 | {"prompt":"a b"}
/v1/completions | 1+128 2+128 | {"prompt":["a","b c"]}
/v1/completions | 3+128 | {"prompt":[1,2,3]}
/v1/completions | 1+128 2+128 | {"prompt":[[1],[2,3]],"n":1}
/v1/chat/completions | 3+128 | {"messages":[{"role":"system","content":"a b"},{"content":"c"}]}
/v1/chat/completions | 2+128 | {"messages":[{"content":[{"type":"text","text":"a b"},{"type":"image"}]}]}
/v1/chat/completions | 1+3 | {"messages":[{"role":"assistant","content":null}],"max_tokens":3}
/v1/chat/completions | 1+4 | {"messages":[{"content":"a"}],"max_tokens":3,"max_completion_tokens":4}"#;

#[test]
fn every_form_of_prompt_has_its_length() {
    for (endpoint, wanted, body) in cases(LENGTHS) {
        let request = parse(endpoint, body).unwrap();
        let lengths = request.sequences.iter();
        let lengths = lengths.map(|one| format!("{}+{}", one.prompt_tokens(), one.max_tokens));
        assert_eq!(lengths.collect::<Vec<_>>().join(" "), wanted, "{body}");
    }
}

#[test]
fn request_ids_are_the_clients_where_sglang_keeps_them() {
    let rids = |body: &str| -> Vec<String> {
        let request = parse(Endpoint::Generate, body).unwrap();
        request
            .sequences
            .iter()
            .map(|s| s.rid.to_string())
            .collect()
    };
    assert_eq!(rids(r#"{"text":"a","rid":"r"}"#), ["r"]);
    assert_eq!(rids(r#"{"text":["a","b"],"rid":"r"}"#), ["r_0", "r_1"]);
    assert_eq!(rids(r#"{"text":["a","b"],"rid":["x","y"]}"#), ["x", "y"]);
    let generated = rids(r#"{"text":"a","rid":"r","sampling_params":{"n":2}}"#);
    assert!(generated[0] != generated[1] && generated.iter().all(|rid| rid.len() == 32));
}

/// Path, part of the message, body.
const REFUSALS: &str = r#"/generate | EOF | {
/generate | must be a JSON object | ["a",null,null,null,null]
/v1/chat/completions | must be a JSON object | 5
/generate | trailing characters | {"text":"a"}}
/generate | text: must be a string, a list | {"text":5}
/generate | sampling_params.n: invalid type | {"text":"a","sampling_params":{"n":"two"}}
/generate | sampling_params | {"text":["a","b"],"sampling_params":[{"max_new_tokens":3},{"max_new_tokens":4}]}
/generate | not both | {"text":"a","input_ids":[1]}
/generate | from 1 to 4096 here, got 0 | {"text":[]}
/generate | from 1 to 4096 here, got 0 | {"text":"a","sampling_params":{"n":0}}
/generate | from 1 to 4096 here, got 99999999999 | {"text":"a","sampling_params":{"n":99999999999}}
/generate | max_new_tokens (OpenAI: max_tokens) must be at least 0, got -1 | {"text":"a","sampling_params":{"max_new_tokens":-1}}
/v1/completions | prompt | {}
/v1/chat/completions | Messages cannot be empty | {"prompt":"a"}
/v1/chat/completions | empty | {"messages":[]}
/v1/chat/completions | return_meta_info | {"messages":[{"content":"a"}],"stream":true,"return_meta_info":true}"#;

#[test]
fn refusals_name_the_field_and_what_is_valid() {
    for (endpoint, part, body) in cases(REFUSALS) {
        let refusal = parse(endpoint, body).unwrap_err();
        let message = refusal.message;
        assert!(message.contains(part), "{body}: {message}");
    }
    let one = r#"{"prompt":"a","return_meta_info":true,"stream":true}"#;
    let request = parse(Endpoint::Completions, one).unwrap();
    assert!(!request.return_meta_info, "ignored there");
}
