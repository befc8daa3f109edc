use std::collections::HashSet;

use super::*;

/// What becomes of a request where 200 tokens are the most.
fn parse(endpoint: Endpoint, body: &str) -> Result<GenerationRequest, Refusal> {
    let config = Config {
        context_len: 200,
        ..Config::default()
    };
    GenerationRequest::parse(endpoint, body.as_bytes(), &config)
}

/// Requests, each followed by the lengths of its sequences with their ids, or its refusal.
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
                let rids: HashSet<&str> = request.sequences.iter().map(|of| &*of.rid).collect();
                assert_eq!(
                    rids.len(),
                    request.sequences.len(),
                    "each has an id of its own"
                );
                let told = request.sequences.iter().map(|of| {
                    // One that is made up.
                    let rid = if of.rid.len() == 32 { "*" } else { &*of.rid };
                    format!("{}+{} {rid}", of.prompt_tokens(), of.max_tokens)
                });
                let has_info = request
                    .return_meta_info
                    .then(|| "with meta_info".to_owned());
                told.chain(has_info).collect::<Vec<_>>().join(", ")
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
