use super::*;

/// What becomes of a request where 200 tokens are the most.
fn parse(endpoint: Endpoint, body: &str) -> Result<GenerationRequest, Refusal> {
    let config = Config {
        context_len: 200,
        ..Config::default()
    };
    GenerationRequest::parse(endpoint, body.as_bytes(), &config)
}

/// Requests, each followed by the lengths of its sequences or its refusal.
const REQUESTS: &str = "tests/data/sim/requests.txt";

#[test]
fn requests_have_the_lengths_of_their_prompts_or_are_refused_by_name() {
    let expected = std::fs::read_to_string(REQUESTS).unwrap();
    let lines = expected.lines().filter(|line| !line.starts_with("  "));
    let told = lines.map(|line| {
        let Some((path, body)) = line.split_once(' ').filter(|_| line.starts_with('/')) else {
            return format!("{line}\n");
        };
        let told = match parse(Endpoint::from_path(path).unwrap(), body) {
            Ok(request) => {
                let lengths = request.sequences.iter();
                let lengths = lengths.map(|of| format!("{}+{}", of.prompt_tokens(), of.max_tokens));
                let has_info = if request.return_meta_info {
                    " with meta_info"
                } else {
                    ""
                };
                lengths.collect::<Vec<_>>().join(" ") + has_info
            }
            Err(refusal) => refusal.message,
        };
        format!("{line}\n  {told}\n")
    });
    let told: String = told.collect();
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(REQUESTS, &told).unwrap();
    }
    assert_eq!(told, expected);
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
