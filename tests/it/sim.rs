//! The simulated SGLang over HTTP, and what is compared of two JSON texts: keys, their order, and the types of values.

mod behaviour;
mod generations;
mod golden;
mod h200;
mod pair;
mod recorded;
mod told;

use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;

use queuescope::clock::{Clock, ManualClock, Stamp};
use queuescope::sim::Sim;
use queuescope::sim::config::Config;
use queuescope::sim::engine::Profile;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::support::admin::{self, ask, get};
use crate::support::http::Connection;
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

/// The `meta_info` of each event of a stream, which ends as streams do.
fn infos(response: &Response) -> Vec<Value> {
    let (last, events) = response.chunks.split_last().unwrap();
    assert_eq!(last, b"data: [DONE]\n\n");
    let of_event = |event: &Vec<u8>| {
        let json = event.strip_prefix(b"data: ").unwrap();
        let mut event: Value = serde_json::from_slice(json).unwrap();
        event["meta_info"].take()
    };
    events.iter().map(of_event).collect()
}

/// What a server answers to a body.
async fn posted(sim: &Sim, path: &str, body: &str) -> Response {
    ask(sim.addr(), "POST", path, "", body).await
}

/// The value of a family's only series.
async fn metric(sim: &Sim, family: &str) -> f64 {
    let text = get(sim.addr(), "/metrics").await.text();
    let name = format!("sglang:{family}");
    assert_eq!(text.matches(&format!("\n{name}{{")).count(), 1, "{name}");
    admin::metric(&text, &name)
}

/// Waits until so many requests run and wait, as `/v1/loads` tells it.
async fn until_load(addr: SocketAddr, running: usize, waiting: usize) {
    until_async("the load", async || {
        let reply = get(addr, "/v1/loads").await.json();
        let load = &reply["loads"][0];
        load["num_running_reqs"] == running && load["num_waiting_reqs"] == waiting
    })
    .await;
}

/// Sends with these header lines on a connection of its own; gives it back with so many requests running and waiting.
async fn sent(
    sim: &Sim,
    path: &str,
    extra: &str,
    body: &str,
    (running, waiting): (usize, usize),
) -> Connection {
    let mut client = Connection::open(sim.addr()).await;
    client.client.post(path, extra, body.as_bytes()).await;
    until_load(sim.addr(), running, waiting).await;
    client
}

/// The same to `/generate`.
async fn asked(sim: &Sim, body: &str, load: (usize, usize)) -> Connection {
    sent(sim, "/generate", "", body, load).await
}

/// Waits until the server has entered so many requests into its log.
async fn until_served(sim: &Sim, count: usize) {
    until("the log", || sim.served().len() == count).await;
}

/// The skeleton of a JSON text, such as `{text:string,ids:[int],end:null}`. Arrays list the different
/// shapes of their elements. `cached_tokens_details` is `null` or an object, as the prefix cache has it,
/// so it only needs to be there.
pub fn shape(json: &str) -> String {
    let raw: &RawValue =
        serde_json::from_str(json).unwrap_or_else(|error| panic!("no JSON ({error}): {json}"));
    match raw.get().as_bytes()[0] {
        b'n' => "null".to_owned(),
        b't' | b'f' => "bool".to_owned(),
        b'"' => "string".to_owned(),
        b'[' => {
            let elements: Vec<&RawValue> = serde_json::from_str(json).unwrap();
            let shapes: BTreeSet<String> = elements.iter().map(|one| shape(one.get())).collect();
            format!("[{}]", Vec::from_iter(shapes).join("|"))
        }
        b'{' => {
            let members: HashMap<String, &RawValue> = serde_json::from_str(json).unwrap();
            let mut members = Vec::from_iter(members);
            // In the order of the text.
            members.sort_by_key(|(_, value)| value.get().as_ptr());
            let members = members.iter().map(|(key, value)| match key.as_str() {
                "cached_tokens_details" => format!("{key}:any"),
                _ => format!("{key}:{}", shape(value.get())),
            });
            format!("{{{}}}", members.collect::<Vec<_>>().join(","))
        }
        _ if raw.get().contains(['.', 'e', 'E']) => "float".to_owned(),
        _ => "int".to_owned(),
    }
}

/// The shapes of a body: of each SSE event as it differs from the one before, or of the one JSON text.
/// Also checks the framing: `data: `, one line, a blank line, nothing else.
pub fn shapes(body: &str) -> Vec<String> {
    if !body.starts_with("data: ") {
        return match body {
            "" => Vec::new(),
            json => vec![shape(json)],
        };
    }
    let mut shapes: Vec<String> = Vec::new();
    let events = body.strip_suffix("\n\n").unwrap();
    for event in events.split("\n\n") {
        let data = event.strip_prefix("data: ").unwrap();
        assert!(!data.contains(['\n', '\r']), "one line: {data:?}");
        let event = match data {
            "[DONE]" => data.to_owned(),
            json => shape(json),
        };
        if shapes.last() != Some(&event) {
            shapes.push(event);
        }
    }
    shapes
}
