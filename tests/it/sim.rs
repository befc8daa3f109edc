//! The simulated SGLang over HTTP.

mod behaviour;
mod cache;
mod generations;
mod golden;
mod h200;
mod pair;
mod recorded;
mod shape;
mod told;
mod usage;

use std::net::SocketAddr;

use queuescope::clock::{Clock, ManualClock, Stamp};
use queuescope::sim::Sim;
use queuescope::sim::config::Config;
use queuescope::sim::engine::Profile;
use serde_json::Value;

use crate::support::admin;
use crate::support::http::{Connection, exchange};
use crate::support::wire::{Response, until, until_async};

/// When manual clocks start: some day in 2026.
const START: Stamp = Stamp::from_nanos(1_795_000_000_000_000_000);

/// A config that differs from another.
fn with(mut config: Config, change: impl FnOnce(&mut Config)) -> Config {
    change(&mut config);
    config
}

/// 1 ms a prompt token, 10 ms a decode step, one request at a time.
fn slow() -> Config {
    with(Config::default(), |config| {
        config.port = 0;
        config.profile = Profile {
            max_running_requests: 1,
            max_prefill_tokens: 1_000,
            prefill_tokens_per_s: 1_000.0,
            decode_step_ms: 10.0,
            decode_step_per_seq_ms: 0.0,
            ..Profile::bare()
        };
    })
}

/// Fast enough that no test waits for it.
fn fast() -> Config {
    with(slow(), |config| {
        config.profile.max_running_requests = 4;
        config.profile.prefill_tokens_per_s = 1e6;
        config.profile.decode_step_ms = 0.2;
    })
}

/// A server whose time stands still until the test moves it.
fn on_manual_clock(config: Config) -> (Sim, ManualClock) {
    let (clock, manual) = Clock::manual(START);
    (Sim::start(config, clock).unwrap(), manual)
}

/// Milliseconds after [`START`].
fn ms(after: i64) -> Stamp {
    START.plus_nanos(after * 1_000_000)
}

/// The `meta_info` of an event.
fn meta(event: &[u8]) -> Value {
    let json = event.strip_prefix(b"data: ").unwrap();
    let mut event: Value = serde_json::from_slice(json).unwrap();
    event["meta_info"].take()
}

/// That of each event of a stream, which ends as streams do.
fn infos(response: &Response) -> Vec<Value> {
    let (last, events) = response.chunks.split_last().unwrap();
    assert_eq!(last, b"data: [DONE]\n\n");
    events.iter().map(|event| meta(event)).collect()
}

/// The value of a family's only series.
async fn metric(sim: &Sim, family: &str) -> f64 {
    let text = exchange(sim.addr(), "GET", "/metrics", b"").await.text();
    let name = format!("sglang:{family}");
    assert_eq!(text.matches(&format!("\n{name}{{")).count(), 1, "{name}");
    admin::metric(&text, &name)
}

/// Waits until so many requests run and wait, as `/v1/loads` tells it.
async fn until_load(addr: SocketAddr, running: usize, waiting: usize) {
    until_async("the load", async || {
        let reply = exchange(addr, "GET", "/v1/loads", b"").await.json();
        let load = &reply["loads"][0];
        load["num_running_reqs"] == running && load["num_waiting_reqs"] == waiting
    })
    .await;
}

/// Sends with these headers on a connection of its own; gives it back with so many requests running and waiting.
async fn sent(
    sim: &Sim,
    path: &str,
    headers: &[&str],
    body: &str,
    (running, waiting): (usize, usize),
) -> Connection {
    let mut client = Connection::open(sim.addr()).await;
    client.send("POST", path, headers, body.as_bytes()).await;
    until_load(sim.addr(), running, waiting).await;
    client
}

/// The same to `/generate`.
async fn asked(sim: &Sim, body: &str, load: (usize, usize)) -> Connection {
    sent(sim, "/generate", &[], body, load).await
}

/// Waits until the server has entered so many requests into its log.
async fn until_served(sim: &Sim, count: usize) {
    until("the log", || sim.served().len() == count).await;
}
