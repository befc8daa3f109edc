//! What the KV cache does, as clients and dashboards see it.

use queuescope::clock::Clock;
use queuescope::sim::Sim;
use serde_json::{Value, json};

use super::shape::shapes;
use super::told::Told;
use super::{START, fast, golden, infos, metric, ms, sent, slow, until_load, until_served, with};
use crate::support::http::exchange;
use crate::support::recordings::named;

async fn generate(sim: &Sim, text: &str) -> Value {
    let body = json!({"text": text, "sampling_params": {"max_new_tokens": 2}}).to_string();
    let reply = exchange(sim.addr(), "POST", "/generate", body.as_bytes()).await;
    reply.json()["meta_info"].take()
}

#[tokio::test]
async fn the_next_turn_of_a_conversation_prefills_only_what_is_new() {
    let config = with(fast(), |config| config.profile.disable_radix_cache = false);
    let sim = Sim::start(config, Clock::system()).unwrap();
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
    let reply = reply.await.json();
    let second = &reply["choices"][0]["meta_info"];
    let details = json!({"device": 9, "host": 0});
    assert_eq!(second["cached_tokens_details"], details);
    assert_eq!(second["prompt_tokens"], 13);
    assert_eq!(second["cached_tokens"], 9);
    assert!((metric(&sim, "cache_hit_rate").await - 9.0 / 13.0).abs() < 1e-9);
    assert_eq!(metric(&sim, "kv_evictable_tokens").await, 13.0);

    let flushed = exchange(sim.addr(), "POST", "/flush_cache", b"").await;
    assert_eq!(flushed.status(), 200);
    assert_eq!(metric(&sim, "kv_evictable_tokens").await, 0.0);
    let again = generate(&sim, "you are kind and brief what is a queue").await;
    assert_eq!(again["cached_tokens"], 0);
}

#[tokio::test]
async fn a_retraction_is_told_as_recorded() {
    // Two requests want more than there is room for.
    let config = with(slow(), |config| {
        config.profile.max_running_requests = 2;
        config.profile.max_total_tokens = 60;
        config.profile.schedule_conservativeness = 0.01;
    });
    let (clock, manual) = Clock::manual(START);
    let it = Told::with(config, clock).await;
    let sim = &it.sim;
    let body = golden::generate("retract-1", 40, true);
    let mut clients = Vec::new();
    for (place, number) in (1..=2).enumerate() {
        let parent = golden::parent_of(number);
        clients.push(sent(sim, "/generate", &[&parent], &body, (1, place)).await);
    }
    manual.set(ms(300));
    until_load(sim.addr(), 1, 1).await;
    manual.set(ms(10_000));
    clients[0].response().await.unwrap();
    let response = clients[1].response().await.unwrap();
    let recorded = String::from_utf8(named("retract/07").body()).unwrap();
    assert_eq!(shapes(&response.text()), shapes(&recorded));
    let told = infos(&response);
    let again = told.iter().position(|one| one["num_retractions"] == 1);
    let again = again.unwrap();
    let (before, at, after) = (&told[again - 1], &told[again], &told[again + 1]);
    // One event more than tokens: the retraction repeats what was there.
    assert_eq!(told.len(), 41);
    assert_eq!(told[40]["completion_tokens"], 40);
    for key in ["completion_tokens", "queue_time"] {
        assert_eq!(before[key], at[key], "{key}");
    }
    let waited = |one: &Value| one["queue_time"].as_f64().unwrap();
    assert!(waited(after) > waited(at) + 0.1, "{at} {after}");
    for key in ["forward_entry_time", "prefill_finished_time"] {
        assert!(told.iter().all(|one| one[key] == told[0][key]), "{key}");
    }
    // The first did not wait.
    let sum = metric(sim, "queue_time_seconds_sum").await;
    assert!((sum - waited(&told[40])).abs() < 1e-6, "{sum}");
    until_served(sim, 2).await;
    golden::same_told("retraction.txt", &it, 2).await;
}
