//! Time, order, aborts and ends; what the KV cache does, as clients and dashboards see it; the command line, and values out of range.

use clap::{Args, Command, CommandFactory};
use queuescope::clock::Clock;
use queuescope::sim::Sim;
use queuescope::sim::config::Config;
use queuescope::{sim, traffic};
use serde_json::{Value, json};

use super::told::Told;
use super::{
    START, asked, fast, golden, infos, metric, ms, on_manual_clock, posted, sent, shapes, slow,
    until_load, until_served, with,
};
use crate::support::admin::ask;
use crate::support::assert_says;
use crate::support::generator::flags;
use crate::support::process::{Done, queuescope, run};
use crate::support::recordings::named;
use crate::support::wire::{Client, until_async};

const STREAM_OF_3: &str =
    r#"{"text":"a b c d e","sampling_params":{"max_new_tokens":3},"stream":true,"rid":"r-3"}"#;

#[tokio::test]
async fn a_client_that_goes_frees_its_slot() {
    for (path, stream) in [
        ("/generate", true),
        ("/generate", false),
        ("/v1/completions", true),
        ("/v1/chat/completions", false),
    ] {
        let (sim, manual) = on_manual_clock(slow());
        let body = format!(
            r#"{{"text":"a b","prompt":"a b","messages":[{{"content":"a b"}}],"max_tokens":9,
            "sampling_params":{{"max_new_tokens":9}},"stream":{stream},"rid":"gone"}}"#
        );
        let gone = sent(&sim, path, "", &body, (1, 0)).await;
        let mut next = asked(&sim, STREAM_OF_3, (1, 1)).await;
        drop(gone);
        until_load(sim.addr(), 0, 1).await;
        // At 2 the prefill that was under way ends; the next takes 5 and twice 10.
        manual.set(ms(2));
        until_load(sim.addr(), 1, 0).await;
        manual.set(ms(27));
        assert_eq!(next.response().await.chunks.len(), 4);
        until_served(&sim, 2).await;
        let are_finished = [0, 1].map(|place: usize| sim.served()[place].is_finished);
        assert_eq!(are_finished, [false, true], "{path}");
    }
}

#[tokio::test]
async fn cumulative_events_grow_and_incremental_ones_join_up_to_the_same() {
    let body = r#"{"text":"a","sampling_params":{"max_new_tokens":60},"stream":true}"#;
    let events = async |incremental: bool| -> Vec<Value> {
        let config = with(fast(), |config| config.incremental = incremental);
        let sim = Sim::start(config, Clock::system()).unwrap();
        let response = posted(&sim, "/generate", body).await;
        let data = response.chunks.iter().take(60).map(|chunk| &chunk[6..]);
        data.map(|json| serde_json::from_slice(json).unwrap())
            .collect()
    };
    let (pieces, wholes) = (events(true).await, events(false).await);
    let (mut text, mut ids) = (String::new(), Vec::new());
    for (place, (piece, whole)) in pieces.iter().zip(&wholes).enumerate() {
        text += piece["text"].as_str().unwrap();
        ids.extend(piece["output_ids"].as_array().unwrap().clone());
        assert_eq!(piece["meta_info"]["completion_tokens"], place + 1);
        assert_eq!(whole["text"], text);
        assert_eq!(whole["output_ids"], Value::from(ids.clone()));
    }
    assert_eq!(ids.len(), 60);
    assert!(['🙂', '\n', '"'].iter().all(|c| text.contains(*c)));
}

#[tokio::test]
async fn idle_connections_are_closed_but_not_those_that_wait_for_an_answer() {
    let config = with(slow(), |config| config.keep_alive_s = 0.5);
    let (sim, manual) = on_manual_clock(config);
    let body = r#"{"text":"a","sampling_params":{"max_new_tokens":1}}"#;
    let mut waiting = asked(&sim, body, (1, 0)).await;
    for _ in 0..3 {
        let mut idle = Client::connect(sim.addr()).await;
        idle.send("GET /health HTTP/1.1\r\nhost: h\r\n\r\n").await;
        assert_eq!(idle.response().await.status(), 200);
        assert!(idle.is_closed().await, "without a word");
    }
    manual.set(ms(1));
    assert_eq!(waiting.response().await.status(), 200);
}

#[tokio::test]
async fn a_shutdown_cuts_streams_and_neither_a_wrong_abort_nor_a_flush_does() {
    let (sim, manual) = on_manual_clock(slow());
    let addr = sim.addr();
    let mut client = asked(&sim, STREAM_OF_3, (1, 0)).await;
    manual.set(ms(5));
    assert!(client.chunk().await.unwrap().is_some());
    for (method, path, status) in [
        ("POST", "/abort_request", 400),
        ("GET", "/flush_cache", 400),
    ] {
        let refused = ask(addr, method, path, "", "no").await;
        assert_eq!(refused.status(), status, "{method} {path}");
    }
    until_load(addr, 1, 0).await;
    sim.shutdown();
    assert!(client.chunk().await.is_err(), "cut, not ended");
    until_served(&sim, 1).await;
    assert!(!sim.served()[0].is_finished);
    let is_closed = async || tokio::net::TcpStream::connect(addr).await.is_err();
    until_async("nobody listens", is_closed).await;
}

async fn generate(sim: &Sim, text: &str) -> Value {
    let body = json!({"text": text, "sampling_params": {"max_new_tokens": 2}}).to_string();
    let reply = posted(sim, "/generate", &body).await;
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
    let reply = posted(&sim, "/v1/chat/completions", &chat).await.json();
    let second = &reply["choices"][0]["meta_info"];
    let details = json!({"device": 9, "host": 0});
    assert_eq!(second["cached_tokens_details"], details);
    assert_eq!(second["prompt_tokens"], 13);
    assert_eq!(second["cached_tokens"], 9);
    assert!((metric(&sim, "cache_hit_rate").await - 9.0 / 13.0).abs() < 1e-9);
    assert_eq!(metric(&sim, "kv_evictable_tokens").await, 13.0);

    let flushed = posted(&sim, "/flush_cache", "").await;
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
        clients.push(sent(sim, "/generate", &parent, &body, (1, place)).await);
    }
    manual.set(ms(300));
    until_load(sim.addr(), 1, 1).await;
    manual.set(ms(10_000));
    clients[0].response().await;
    let response = clients[1].response().await;
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

#[test]
fn a_port_that_is_taken_is_named_in_one_line() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let pair = "--port 0 --disaggregation-mode prefill --disaggregation-bootstrap-port";
    for words in ["--port", pair] {
        let Done { code, err, .. } = run(queuescope(&flags(&format!("sim {words} {port}"))));
        assert_eq!((code, err.lines().count()), (Some(1), 1), "{err}");
        let flag = words.rsplit(' ').next().unwrap();
        for said in ["error: ", flag, &port.to_string()] {
            assert_says(&err, said);
        }
    }
}

#[test]
fn every_flag_of_a_time_a_rate_or_a_share_takes_the_same_units() {
    let sim = Config::augment_args(Command::new("sim"));
    let mut tried = 0;
    for command in [traffic::Args::command(), sim] {
        for flag in command.get_arguments() {
            let name = flag.get_value_names().map_or("", |names| &names[0]);
            let value = match name {
                "SECONDS" | "S" | "MS" | "US" | "NS" => "20ms",
                "RATE" => "480/min",
                "SHARE" => "20%",
                _ => continue,
            };
            let line = ["x", &format!("--{}", flag.get_long().unwrap()), value];
            let read = command.clone().try_get_matches_from(line);
            assert!(read.is_ok(), "{line:?}: {}", read.unwrap_err());
            tried += 1;
        }
    }
    assert!(tried > 20, "{tried}");
}

/// A runtime in a runtime panics.
#[tokio::test]
async fn within_a_runtime_the_command_refuses_to_run() {
    let error = sim::run(super::fast()).unwrap_err().to_string();
    assert_says(&error, "Sim::start");
}
