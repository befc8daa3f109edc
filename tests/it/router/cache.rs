//! What knows what its servers' caches hold finds more there than what takes them in turn. Of our own balancer: `experiment/grid.rs`.

use std::net::SocketAddr;

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

/// `cached_tokens` of all replies, sent to `addr` one after another.
async fn cached_behind(addr: SocketAddr) -> u64 {
    let mut cached = 0;
    for turn in 0..REQUESTS {
        let shared = (0..SHARED).map(|word| format!("group{}word{word}", turn % GROUPS));
        let own = (0..16).map(|word| format!("turn{turn}word{word}"));
        let text: Vec<String> = shared.chain(own).collect();
        let body = json!({"text": text.join(" "), "sampling_params": {"max_new_tokens": 2}});
        let body = body.to_string();
        let mut client = Connection::open(addr).await;
        let headers = ["content-type: application/json"];
        client
            .send("POST", "/generate", &headers, body.as_bytes())
            .await;
        let reply = client.response().await.unwrap();
        assert_eq!(reply.status(), 200, "{}", reply.text());
        let reply: Value = serde_json::from_str(&reply.text()).unwrap();
        cached += reply["meta_info"]["cached_tokens"].as_u64().unwrap();
    }
    cached
}

/// What is found in the caches when so many prompts met a server that had not seen their group: nothing then.
fn found(firsts: usize) -> u64 {
    ((REQUESTS - firsts) * SHARED) as u64
}

#[tokio::test]
async fn cache_aware_routing_finds_more_in_the_caches_than_round_robin() {
    let cached = async |policy: &str| {
        let sims =
            [(); 2].map(|()| generator::sim(|config| config.profile.disable_radix_cache = false));
        let more = ["--policy", policy];
        let workers = sims.each_ref().map(Sim::addr);
        let router = Router::start_at(Which::Sglang032, free_port(), &workers, &more).await;
        cached_behind(router.addr).await
    };
    assert_eq!(cached("cache_aware").await, found(GROUPS));
    assert_eq!(cached("round_robin").await, found(2 * GROUPS));
}
