//! A server that speaks OpenAI's API and takes nothing else.

use super::*;
use crate::support::assert_says;

/// The members that it knows.
const KNOWN: [&str; 6] = [
    "model",
    "messages",
    "temperature",
    "max_tokens",
    "stream",
    "stream_options",
];

/// What it answers: a chat's chunks, a usage, and an end.
fn reply() -> Vec<u8> {
    let chunk = |choices: &str, usage: &str| {
        format!(
            "data: {{\"id\":\"c-1\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\
             \"choices\":[{choices}],\"usage\":{usage}}}\n\n"
        )
    };
    let text = |text: &str, end: &str| {
        let delta = format!("{{\"role\":\"assistant\",\"content\":\"{text}\"}}");
        let choice = format!("{{\"index\":0,\"delta\":{delta},\"finish_reason\":{end}}}");
        chunk(&choice, "null")
    };
    let usage = "{\"prompt_tokens\":9,\"completion_tokens\":2,\"total_tokens\":11}";
    let events = [
        text("one", "null"),
        text(" two", "\"stop\""),
        chunk("", usage),
        "data: [DONE]\n\n".to_owned(),
    ];
    let mut bytes = wire::stream_head();
    bytes.extend(events.iter().flat_map(wire::chunk));
    bytes.extend(wire::chunk(""));
    bytes
}

async fn strict() -> Upstream {
    Upstream::start(|_, seen| {
        let refused = |why: &str| {
            let body = format!("{{\"error\":{{\"message\":\"{why}\"}}}}");
            let length = body.len();
            let head = "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n";
            Step::Send(format!("{head}content-length: {length}\r\n\r\n{body}").into_bytes())
        };
        let models = "{\"object\":\"list\",\"data\":[{\"id\":\"m\",\"object\":\"model\"}]}";
        let body: Value = serde_json::from_slice(&seen.body).unwrap_or_default();
        let mut members = body.as_object().into_iter().flat_map(|body| body.keys());
        let unknown = members.find(|member| !KNOWN.contains(&member.as_str()));
        vec![match unknown {
            None if seen.head.starts_with("GET /v1/models ") => {
                Step::Send(wire::json_response(models))
            }
            None if body["model"] == "m" => Step::Send(reply()),
            None => refused("no such model"),
            Some(name) => refused(&format!("unknown member {name}")),
        }]
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn only_openai_chat_sends_nothing_that_is_sglangs() {
    let folder = tempfile::tempdir().unwrap();
    for (backend, outcome) in [("openai-chat", "ok"), ("sglang-oai-chat", "error")] {
        let server = strict().await;
        let dir = folder.path().join(backend);
        let line = format!("--backend {backend} --num-prompts 5 --random-input-len 8");
        let done = run_aside(command(server.addr, &dir, &line)).await;
        let rows = column(&dir, "outcome");
        assert_eq!(rows.len(), 5, "{done:?}");
        let is_as_told = |row: &String| (row == "ok") == (outcome == "ok");
        assert!(rows.iter().all(is_as_told), "{rows:?}");
        if outcome != "ok" {
            assert_says(&done.out, "unknown member ignore_eos");
            continue;
        }
        done.assert_status(&[0, 3]);
        assert_eq!(column(&dir, "actual_output_tokens"), ["2"; 5]);
        let paths = server.seen().into_iter().map(|seen| {
            let (line, _) = seen.head.split_once(" HTTP").unwrap();
            line.to_owned()
        });
        let chats = paths.filter(|line| line == "POST /v1/chat/completions");
        assert_eq!(chats.count(), 5);
    }
}
