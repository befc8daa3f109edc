//! What the KV cache does, as clients and dashboards see it.

use queuescope::clock::Clock;
use queuescope::sim::config::Config;
use queuescope::sim::server::Sim;
use serde_json::{Value, json};

use super::shape::shapes;
use super::{fast, infos, metric, ms, on_manual_clock, slow, until_load, with};
use crate::support::http::{Connection, exchange};
use crate::support::recordings::named;

fn cached() -> Config {
    with(fast(), |config| config.profile.disable_radix_cache = false)
}

async fn generate(sim: &Sim, text: &str) -> Value {
    let body = json!({"text": text, "sampling_params": {"max_new_tokens": 2}}).to_string();
    let reply = exchange(sim.addr(), "POST", "/generate", body.as_bytes()).await;
    let mut reply: Value = serde_json::from_str(&reply.text()).unwrap();
    reply["meta_info"].take()
}

#[tokio::test]
async fn the_next_turn_of_a_conversation_prefills_only_what_is_new() {
    let sim = Sim::start(cached(), Clock::system()).unwrap();
    let first = generate(&sim, "you are kind and brief what is a queue").await;
    assert_eq!(first["cached_tokens"], 0);
    assert_eq!(first["cached_tokens_details"], Value::Null);
    // A chat's messages are one text.
    let chat = json!({
        "messages": [
            {"role": "system", "content": "you are kind and brief"},
            {"role": "user", "content": "what is a queue"},
            {"role": "assistant", "content": "the quick"},
            {"role": "user", "content": "and why"},
        ],
        "max_tokens": 2,
        "return_meta_info": true,
    })
    .to_string();
    let reply = exchange(sim.addr(), "POST", "/v1/chat/completions", chat.as_bytes());
    let reply: Value = serde_json::from_str(&reply.await.text()).unwrap();
    let second = &reply["choices"][0]["meta_info"];
    assert_eq!(
        (&second["prompt_tokens"], &second["cached_tokens"]),
        (&json!(13), &json!(9))
    );
    assert_eq!(
        second["cached_tokens_details"],
        json!({"device": 9, "host": 0})
    );
    assert!((metric(&sim, "cache_hit_rate", "").await - 9.0 / 13.0).abs() < 1e-9);
    assert_eq!(metric(&sim, "kv_evictable_tokens", "").await, 13.0);
    assert_eq!(metric(&sim, "token_usage", "").await, 0.0);

    let flushed = exchange(sim.addr(), "POST", "/flush_cache", b"").await;
    assert_eq!(flushed.status(), 200);
    assert_eq!(metric(&sim, "kv_evictable_tokens", "").await, 0.0);
    let again = generate(&sim, "you are kind and brief what is a queue").await;
    assert_eq!(again["cached_tokens"], 0);
}

#[tokio::test]
async fn the_cache_is_not_flushed_under_a_request() {
    let (sim, _manual) = on_manual_clock(slow());
    let mut client = Connection::open(sim.addr()).await;
    let body = br#"{"text":"a","sampling_params":{"max_new_tokens":1}}"#;
    client.send("POST", "/generate", &[], body).await;
    until_load(sim.addr(), 1, 0).await;
    let flushed = exchange(sim.addr(), "GET", "/flush_cache", b"").await;
    assert_eq!(flushed.status(), 400);
}

/// Two requests that want more than there is room for.
pub fn short_of_room() -> Config {
    with(slow(), |config| {
        config.profile.max_running_requests = 2;
        config.profile.max_total_tokens = 60;
        config.profile.schedule_conservativeness = 0.01;
    })
}

#[tokio::test]
async fn a_retraction_is_told_as_recorded() {
    let (sim, manual) = on_manual_clock(short_of_room());
    let mut first = Connection::open(sim.addr()).await;
    let body = |prompt: usize, tokens: u32| {
        let text = "w ".repeat(prompt);
        let body =
            json!({"text": text, "stream": true, "sampling_params": {"max_new_tokens": tokens}});
        body.to_string()
    };
    first
        .send("POST", "/generate", &[], body(10, 40).as_bytes())
        .await;
    until_load(sim.addr(), 1, 0).await;
    manual.set(ms(1));
    let mut second = Connection::open(sim.addr()).await;
    second
        .send("POST", "/generate", &[], body(15, 30).as_bytes())
        .await;
    until_load(sim.addr(), 1, 1).await;
    // Picked up at 10, after the first's prefill; retracted some 20 steps later.
    manual.set(ms(300));
    until_load(sim.addr(), 1, 1).await;
    assert_eq!(metric(&sim, "num_retracted_reqs", "").await, 1.0);
    manual.set(ms(10_000));
    let response = second.response().await.unwrap();
    assert_eq!(
        shapes(&response.text()),
        shapes(&String::from_utf8(named("retract/07").body()).unwrap())
    );
    let told = infos(&response);
    let again = told
        .iter()
        .position(|one| one["num_retractions"] == 1)
        .unwrap();
    let (before, at, after) = (&told[again - 1], &told[again], &told[again + 1]);
    // One event more than tokens: the retraction repeats what was there.
    assert_eq!(told.len(), 31);
    assert_eq!(before["completion_tokens"], at["completion_tokens"]);
    assert_eq!(told[30]["completion_tokens"], 30);
    assert_eq!(before["queue_time"], at["queue_time"]);
    let waited = |one: &Value| one["queue_time"].as_f64().unwrap();
    assert!(waited(after) > waited(at) + 0.1, "{at} {after}");
    assert_eq!(waited(&told[30]), waited(after));
    for key in ["forward_entry_time", "prefill_finished_time"] {
        assert!(told.iter().all(|one| one[key] == told[0][key]), "{key}");
    }
    let sum = metric(&sim, "queue_time_seconds_sum", "").await;
    assert!(
        (sum - waited(after)).abs() < 1e-6,
        "{sum}: the first did not wait"
    );
}
