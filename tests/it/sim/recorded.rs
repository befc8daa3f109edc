//! Requests that were recorded from a real SGLang, sent to the simulator: replies of the same shape.

use queuescope::clock::Clock;
use queuescope::sim::Sim;

use serde_json::Value;

use super::shapes;
use super::{asked, fast, on_manual_clock, posted, sent, slow, with};
use crate::support::admin::{ask, get};
use crate::support::recordings::{Recording, named};
use crate::support::wire::{Response, headers};

/// Cases whose body is the recorded one to the letter.
const SAME: [&str; 5] = [
    "err_404",
    "err_generate_missing_text",
    "err_generate_missing_text_stream",
    "err_generate_too_long",
    "err_completions_too_long_stream",
];

/// Status, headers and the shape of the body; and a chunk for each event.
fn same(recording: &Recording, response: &Response) {
    let case = &recording.case;
    assert_eq!(response.status(), recording.status, "{case}");
    assert!(response.whole, "{case}");
    assert_eq!(
        comparable(&headers(&response.head)),
        comparable(&recording.headers),
        "{case}"
    );
    let theirs = String::from_utf8(recording.body()).unwrap();
    let ours = response.text();
    assert_eq!(shapes(&ours), shapes(&theirs), "{case}");
    if SAME.contains(&case.as_str()) {
        assert_eq!(ours, theirs, "{case}");
    }
    if response.header("transfer-encoding").is_some() {
        assert_eq!(
            response.chunks.len(),
            ours.matches("\n\n").count(),
            "{case}"
        );
        for chunk in &response.chunks {
            assert!(chunk.ends_with(b"\n\n"), "{case}: an event a chunk");
        }
    }
}

/// Headers without those that tell of the moment, the length or the connection.
fn comparable(headers: &[(String, String)]) -> Vec<(String, String)> {
    let passing = ["date", "content-length", "connection"];
    let mut kept: Vec<_> = headers
        .iter()
        .filter(|(name, _)| !passing.contains(&name.as_str()))
        .cloned()
        .collect();
    kept.sort();
    kept
}

/// Modes of the server, and the cases that were recorded in them; of those at once the time stands still.
const CASES: [(&str, &str); 5] = [
    (
        "",
        "generate_stream generate_stream_1tok generate_stream_rid generate_stream_input_ids generate_stream_cached \
         generate_stream_multibyte generate_stream_n2 generate_stream_batch3 generate_nostream generate_nostream_n2 \
         generate_nostream_batch3 queue12/01 chunked_prefill_stream \
         chat_stream chat_stream_rid chat_stream_usage chat_stream_n2 chat_stream_return_meta_info chat_nostream \
         chat_nostream_return_meta_info completions_stream completions_stream_rid completions_stream_usage \
         completions_nostream queue12_openai/01",
    ),
    (
        "short",
        "err_404 err_generate_missing_text err_generate_missing_text_stream \
         err_generate_too_long err_completions_too_long_stream err_chat_unknown_model info_get_load \
         info_version info_health info_health_generate",
    ),
    (
        "silent",
        "nometrics_generate_stream nometrics_generate_nostream nometrics_chat_stream",
    ),
    (
        "incremental",
        "incr_generate_stream incr_generate_stream_n2",
    ),
    (
        "at once",
        "generate_stream generate_stream_n2 chat_stream_n2 generate_nostream",
    ),
];

#[tokio::test]
async fn replies_have_the_recorded_shape() {
    for (mode, cases) in CASES {
        let config = with(fast(), |config| match mode {
            "short" => config.context_len = 2_048,
            "silent" => config.metrics = false,
            "incremental" => config.incremental = true,
            "at once" => config.instant = true,
            _ => {}
        });
        for recording in cases.split_whitespace().map(named) {
            let clock = match config.instant {
                true => Clock::manual(super::START).0,
                false => Clock::system(),
            };
            let sim = Sim::start(config.clone(), clock).unwrap();
            let body = std::str::from_utf8(&recording.request_body).unwrap();
            let method = if body.is_empty() { "GET" } else { "POST" };
            let response = ask(sim.addr(), method, &recording.path, "", body).await;
            same(&recording, &response);
        }
    }
}

#[tokio::test]
async fn a_full_queue_has_the_recorded_shape() {
    let config = with(slow(), |config| {
        config.profile.max_queued_requests = Some(1)
    });
    let (sim, manual) = on_manual_clock(config);
    let long = r#"{"text":"a b c","sampling_params":{"max_new_tokens":9}}"#;
    let mut held = Vec::new();
    for waiting in 0..2 {
        held.push(asked(&sim, long, (1, waiting)).await);
    }
    // The scheduler rejects when it comes round: after the prefill, then after each step.
    let rejected = async |path: &str, body: &[u8], round: i64| {
        let body = std::str::from_utf8(body).unwrap();
        let mut client = sent(&sim, path, "", body, (1, 2)).await;
        manual.set(super::ms(round));
        client.response().await
    };
    for (case, round) in [("queuefull_stream/07", 3), ("queuefull_nostream/09", 13)] {
        let recording = named(case);
        let response = rejected("/generate", &recording.request_body, round).await;
        same(&recording, &response);
    }
    // No recording, but SGLang's own notes: an error event inside a 200.
    let body = br#"{"messages":[{"role":"user","content":"x"}],"stream":true}"#;
    let response = rejected("/v1/chat/completions", body, 23).await;
    assert_eq!(response.status(), 200);
    let error = "{error:{object:string,message:string,type:string,param:null,code:int}}";
    assert_eq!(shapes(&response.text()), [error, "[DONE]"]);
}

#[tokio::test]
async fn generate_sends_its_head_before_the_first_token_and_openai_only_with_it() {
    let (sim, manual) = on_manual_clock(slow());
    let body = r#"{"text":"a","prompt":"a","sampling_params":{"max_new_tokens":1},"max_tokens":1,"stream":true}"#;
    let mut generate = asked(&sim, body, (1, 0)).await;
    assert_eq!(generate.head().await.status(), 200);
    let mut openai = sent(&sim, "/v1/completions", "", body, (1, 1)).await;
    let head = tokio::time::timeout(std::time::Duration::from_millis(20), openai.head());
    assert!(head.await.is_err(), "no head while it waits");
    manual.set(super::ms(1_000));
    assert_eq!(openai.response().await.status(), 200);
    assert!(generate.chunk().await.unwrap().is_some());
}

#[tokio::test]
async fn what_it_tells_of_itself_are_fields_and_metrics_of_the_recordings() {
    let config = with(fast(), |config| config.model = "a \"soft\u{ad}ly\"".into());
    let sim = Sim::start(config, Clock::system()).unwrap();
    let body = r#"{"text":"a b","sampling_params":{"max_new_tokens":3}}"#;
    posted(&sim, "/generate", body).await;
    for (path, case, all) in [
        ("/model_info", "info_model_info", false),
        ("/server_info", "info_server_info", false),
        ("/v1/loads", "info_v1_loads", false),
        ("/v1/models", "info_v1_models", true),
    ] {
        let ours = get(sim.addr(), path).await.json();
        let theirs: Value = serde_json::from_slice(&named(case).body()).unwrap();
        let known = within(&ours, &theirs);
        assert!(known.is_ok(), "{path}: {known:?}");
        assert!(!all || within(&theirs, &ours).is_ok(), "{path}");
    }

    let families = |text: &str| -> Vec<String> {
        let types = text.lines().filter(|line| line.starts_with("# TYPE"));
        types.map(str::to_owned).collect()
    };
    let theirs = String::from_utf8(named("info_metrics").body()).unwrap();
    let ours = get(sim.addr(), "/metrics").await.text();
    assert!(families(&ours).len() >= 10);
    let mut series = ours.lines().filter(|line| !line.starts_with('#'));
    let model = "model_name=\"a \\\"soft\u{ad}ly\\\"\"";
    assert!(series.all(|line| line.contains(model)), "{ours}");
    for family in families(&ours) {
        assert!(families(&theirs).contains(&family), "{family}");
    }
    let silent = with(fast(), |config| config.metrics = false);
    let sim = Sim::start(silent, Clock::system()).unwrap();
    let metrics = get(sim.addr(), "/metrics").await;
    assert_eq!(metrics.status(), 404);
}

/// Whether every key of `ours` is one of `theirs`.
fn within(ours: &Value, theirs: &Value) -> Result<(), String> {
    match (ours, theirs) {
        (Value::Object(ours), Value::Object(theirs)) => ours.iter().try_for_each(|(key, value)| {
            let other = theirs.get(key).ok_or_else(|| key.clone())?;
            within(value, other)
        }),
        (Value::Array(ours), Value::Array(theirs)) => {
            ours.iter().zip(theirs).try_for_each(|(a, b)| within(a, b))
        }
        _ => Ok(()),
    }
}
