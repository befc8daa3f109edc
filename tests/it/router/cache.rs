//! A router that knows what its servers' caches hold finds more there than one that takes them in turn.

use queuescope::sim::server::Sim;
use serde_json::{Value, json};

use crate::support::generator;
use crate::support::http::Connection;
use crate::support::router::{Router, Which, free_port};

/// An odd number, so that two servers in turn both see every group.
const GROUPS: usize = 5;
const REQUESTS: usize = 40;
/// Words that all prompts of a group begin with.
const SHARED: usize = 256;

/// `cached_tokens` of all replies, sent one after another.
async fn cached_behind(policy: &str) -> u64 {
    let sim = |_| generator::sim(|config| config.profile.disable_radix_cache = false);
    let sims: Vec<Sim> = (0..2).map(sim).collect();
    let workers: Vec<_> = sims.iter().map(Sim::addr).collect();
    let more = ["--policy", policy];
    let router = Router::start_at(Which::Sglang032, free_port(), &workers, &more).await;
    let mut cached = 0;
    for turn in 0..REQUESTS {
        let shared = (0..SHARED).map(|word| format!("group{}word{word}", turn % GROUPS));
        let own = (0..16).map(|word| format!("turn{turn}word{word}"));
        let text: Vec<String> = shared.chain(own).collect();
        let body = json!({"text": text.join(" "), "sampling_params": {"max_new_tokens": 2}});
        let body = body.to_string();
        let mut client = Connection::open(router.addr).await;
        let headers = ["content-type: application/json"];
        client
            .send("POST", "/generate", &headers, body.as_bytes())
            .await;
        let reply = client.response().await.unwrap();
        assert_eq!(reply.head.status, 200, "{}", reply.text());
        let reply: Value = serde_json::from_str(&reply.text()).unwrap();
        cached += reply["meta_info"]["cached_tokens"].as_u64().unwrap();
    }
    cached
}

#[tokio::test]
async fn cache_aware_routing_finds_more_in_the_caches_than_round_robin() {
    let found = |firsts: usize| ((REQUESTS - firsts) * SHARED) as u64;
    // The first of a group finds nothing, on each server that the group comes to.
    assert_eq!(cached_behind("cache_aware").await, found(GROUPS));
    assert_eq!(cached_behind("round_robin").await, found(2 * GROUPS));
}
