//! Time, order, aborts and ends.

use queuescope::clock::{Clock, Stamp};
use queuescope::sim::{Outcome, Sim};
use serde_json::Value;

use super::{asked, fast, meta, ms, on_manual_clock, sent, slow, until_load, until_served, with};
use crate::support::http::{Connection, exchange};
use crate::support::wire::until_async;

const STREAM_OF_3: &str =
    r#"{"text":"a b c d e","sampling_params":{"max_new_tokens":3},"stream":true,"rid":"r-3"}"#;

#[tokio::test]
async fn a_request_tells_how_long_it_waited_in_the_engines_own_time() {
    let (sim, manual) = on_manual_clock(slow());
    let mut clients = Vec::new();
    for (place, after) in [0, 3].into_iter().enumerate() {
        manual.set(ms(after));
        clients.push(asked(&sim, STREAM_OF_3, (1, place)).await);
    }
    // Picked up at 5, when the first's prefill ended; that one ends at 25, after two steps.
    manual.set(ms(500));
    let response = clients[1].response().await.unwrap();
    let last = &response.chunks[2];
    for (key, at) in [
        ("request_received_ts", 3),
        ("forward_entry_time", 25),
        ("prefill_finished_time", 30),
        ("response_sent_to_client_ts", 500),
    ] {
        let told = Stamp::from_seconds(meta(last)[key].as_f64().unwrap()).unwrap();
        // A float of today resolves 0.24 µs, and a sum of two rounds more than once.
        let off = told.nanos_since(ms(at)).abs();
        assert!(off <= 1_000, "{key} is {off} ns off");
    }
    assert!((meta(last)["queue_time"].as_f64().unwrap() - 0.020).abs() < 1e-6);
    until_served(&sim, 2).await;
    assert_eq!(sim.served()[1].received, ms(3));
}

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
        let gone = sent(&sim, path, &[], &body, (1, 0)).await;
        let mut next = asked(&sim, STREAM_OF_3, (1, 1)).await;
        drop(gone);
        until_load(sim.addr(), 0, 1).await;
        // At 2 the prefill that was under way ends; the next takes 5 and twice 10.
        manual.set(ms(2));
        until_load(sim.addr(), 1, 0).await;
        manual.set(ms(27));
        assert_eq!(next.response().await.unwrap().chunks.len(), 4);
        until_served(&sim, 2).await;
        let outcomes = [0, 1].map(|place: usize| sim.served()[place].outcome);
        assert_eq!(outcomes, [Outcome::Aborted, Outcome::Finished], "{path}");
    }
}

#[tokio::test]
async fn cumulative_events_grow_and_incremental_ones_join_up_to_the_same() {
    let body = br#"{"text":"a","sampling_params":{"max_new_tokens":60},"stream":true}"#;
    let events = async |incremental: bool| -> Vec<Value> {
        let config = with(fast(), |config| config.incremental = incremental);
        let sim = Sim::start(config, Clock::system()).unwrap();
        let response = exchange(sim.addr(), "POST", "/generate", body).await;
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
        let mut idle = Connection::open(sim.addr()).await;
        idle.send("GET", "/health", &[], b"").await;
        assert_eq!(idle.response().await.unwrap().status(), 200);
        assert_eq!(idle.rest().await, b"", "closed without a word");
    }
    manual.set(ms(1));
    assert_eq!(waiting.response().await.unwrap().status(), 200);
}

#[tokio::test]
async fn a_shutdown_cuts_streams_and_neither_a_wrong_abort_nor_a_flush_does() {
    let (sim, manual) = on_manual_clock(slow());
    let addr = sim.addr();
    let mut client = asked(&sim, STREAM_OF_3, (1, 0)).await;
    client.head().await;
    manual.set(ms(5));
    assert!(client.chunk().await.unwrap().is_some());
    for (method, path, status) in [
        ("POST", "/abort_request", 400),
        ("GET", "/flush_cache", 400),
    ] {
        let refused = exchange(addr, method, path, b"no").await;
        assert_eq!(refused.status(), status, "{method} {path}");
    }
    until_load(addr, 1, 0).await;
    sim.shutdown();
    assert!(client.chunk().await.is_err(), "cut, not ended");
    until_served(&sim, 1).await;
    assert_eq!(sim.served()[0].outcome, Outcome::Aborted);
    let is_closed = async || tokio::net::TcpStream::connect(addr).await.is_err();
    until_async("nobody listens", is_closed).await;
}
