//! Time, order, aborts and ends.

use queuescope::clock::{Clock, Stamp};
use queuescope::sim::Outcome;
use queuescope::sim::server::Sim;
use serde_json::Value;

use super::{fast, meta, ms, on_manual_clock, slow, until_load, until_served, with};
use crate::support::http::{Connection, exchange};
use crate::support::wire::until_async;

const STREAM_OF_3: &[u8] =
    br#"{"text":"a b c d e","sampling_params":{"max_new_tokens":3},"stream":true,"rid":"r-3"}"#;

fn epoch(event: &[u8], key: &str) -> Stamp {
    Stamp::from_seconds(meta(event)[key].as_f64().unwrap()).unwrap()
}

fn near(a: Stamp, b: Stamp) -> bool {
    // A float of today resolves 0.24 µs, and a sum of two rounds more than once.
    a.nanos_since(b).abs() <= 1_000
}

#[tokio::test]
async fn a_waiting_request_tells_how_long_it_waited() {
    let (sim, manual) = on_manual_clock(slow());
    let mut first = Connection::open(sim.addr()).await;
    first.send("POST", "/generate", &[], STREAM_OF_3).await;
    until_load(sim.addr(), 1, 0).await;
    manual.set(ms(3));
    let mut second = Connection::open(sim.addr()).await;
    second.send("POST", "/generate", &[], STREAM_OF_3).await;
    until_load(sim.addr(), 1, 1).await;
    // Picked up at 5, when the first's prefill ended; that one ends at 25, after two steps.
    manual.set(ms(100));
    let response = second.response().await.unwrap();
    let told = &response.chunks[0];
    assert!(near(epoch(told, "forward_entry_time"), ms(25)));
    assert!((meta(told)["queue_time"].as_f64().unwrap() - 0.020).abs() < 1e-6);
    assert!(near(epoch(told, "prefill_finished_time"), ms(30)));
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
        let mut gone = Connection::open(sim.addr()).await;
        gone.send("POST", path, &[], body.as_bytes()).await;
        until_load(sim.addr(), 1, 0).await;
        let mut next = Connection::open(sim.addr()).await;
        next.send("POST", "/generate", &[], STREAM_OF_3).await;
        until_load(sim.addr(), 1, 1).await;
        drop(gone);
        until_load(sim.addr(), 0, 1).await;
        // At 2 the prefill that was under way ends; the next takes 5 and twice 10.
        manual.set(ms(2));
        until_load(sim.addr(), 1, 0).await;
        manual.set(ms(27));
        assert_eq!(next.response().await.unwrap().chunks.len(), 4);
        until_served(&sim, 2).await;
        let served = sim.served();
        assert_eq!(
            (served[0].rid.as_str(), served[0].outcome),
            ("gone", Outcome::Aborted),
            "{path}"
        );
        assert_eq!(served[1].outcome, Outcome::Finished);
    }
}

#[tokio::test]
async fn abort_request_matches_by_prefix() {
    let (sim, manual) = on_manual_clock(slow());
    let mut clients = Vec::new();
    for (place, rid) in ["job-1", "job-2", "other"].into_iter().enumerate() {
        let body = format!(
            r#"{{"input_ids":[1,2],"sampling_params":{{"max_new_tokens":4}},"stream":true,"rid":"{rid}"}}"#
        );
        let mut client = Connection::open(sim.addr()).await;
        client.send("POST", "/generate", &[], body.as_bytes()).await;
        until_load(sim.addr(), 1, place).await;
        clients.push(client);
    }
    manual.set(ms(2));
    clients[0].head().await;
    assert!(clients[0].chunk().await.unwrap().is_some());
    let aborted = exchange(sim.addr(), "POST", "/abort_request", br#"{"rid":"job"}"#).await;
    assert_eq!(aborted.status(), 200);

    let running = clients[0].chunk().await.unwrap().unwrap();
    let reason = &meta(&running)["finish_reason"];
    assert_eq!(
        (&reason["type"], &reason["message"]),
        (&"abort".into(), &"Aborted".into())
    );
    let waiting = clients[1].response().await.unwrap();
    let waiting = meta(&waiting.chunks[0]);
    assert_eq!(
        waiting["finish_reason"]["message"],
        "Abort in waiting queue"
    );
    assert_eq!(waiting["prompt_tokens"], Value::Null, "minimal: {waiting}");
    manual.set(ms(1_000));
    let other = clients[2].response().await.unwrap();
    assert_eq!(meta(&other.chunks[3])["finish_reason"]["type"], "length");

    for (method, status) in [("POST", 400), ("GET", 405)] {
        let wrong = exchange(sim.addr(), method, "/abort_request", b"no").await;
        assert_eq!(wrong.status(), status);
    }
}

#[tokio::test]
async fn cumulative_events_grow_and_incremental_ones_join_up_to_the_same() {
    let body = br#"{"text":"a","sampling_params":{"max_new_tokens":60},"stream":true}"#;
    let events = async |incremental: bool| -> Vec<Value> {
        let config = with(fast(), |config| config.incremental = incremental);
        let sim = Sim::start(config, Clock::system()).unwrap();
        let response = exchange(sim.addr(), "POST", "/generate", body).await;
        let events = response.chunks.iter().take(60);
        let data = events.map(|chunk| chunk.strip_prefix(b"data: ").unwrap());
        data.map(|json| serde_json::from_slice(json).unwrap())
            .collect()
    };
    let (pieces, wholes) = (events(true).await, events(false).await);
    let mut joined = (String::new(), Vec::new());
    for (place, (piece, whole)) in pieces.iter().zip(&wholes).enumerate() {
        joined.0.push_str(piece["text"].as_str().unwrap());
        joined
            .1
            .extend(piece["output_ids"].as_array().unwrap().clone());
        assert_eq!(piece["meta_info"]["completion_tokens"], place + 1);
        assert_eq!(whole["text"], joined.0);
        assert_eq!(whole["output_ids"], Value::from(joined.1.clone()));
    }
    assert_eq!(joined.1.len(), 60);
    assert!(joined.0.contains('🙂') && joined.0.contains('\n') && joined.0.contains('"'));
}

#[tokio::test]
async fn a_skewed_engine_tells_its_own_time_everywhere() {
    let config = with(slow(), |config| config.clock_skew_s = -2.5);
    let (sim, manual) = on_manual_clock(config);
    let mut client = Connection::open(sim.addr()).await;
    client.send("POST", "/generate", &[], STREAM_OF_3).await;
    until_load(sim.addr(), 1, 0).await;
    manual.set(ms(500));
    let response = client.response().await.unwrap();
    let last = &response.chunks[2];
    for (key, at) in [
        ("request_received_ts", -2_500),
        ("forward_entry_time", -2_500),
        ("prefill_finished_time", -2_495),
        ("response_sent_to_client_ts", -2_000),
    ] {
        assert!(near(epoch(last, key), ms(at)), "{key}");
    }
    until_served(&sim, 1).await;
    assert_eq!(sim.served()[0].received, Some(ms(-2_500)));
}

#[tokio::test]
async fn instant_replies_are_whole_and_at_once() {
    let config = with(slow(), |config| config.instant = true);
    // The clock never moves: nothing waits for time.
    let (sim, _manual) = on_manual_clock(config);
    let body = br#"{"text":"a","sampling_params":{"max_new_tokens":64},"stream":true}"#;
    let mut client = Connection::open(sim.addr()).await;
    for _ in 0..20 {
        client.send("POST", "/generate", &[], body).await;
        let response = client.response().await.unwrap();
        assert_eq!(response.chunks.len(), 65);
        assert_eq!(meta(&response.chunks[63])["completion_tokens"], 64);
    }
    until_served(&sim, 20).await;
    assert!(sim.served().iter().all(|s| s.outcome == Outcome::Finished));
}

#[tokio::test]
async fn idle_connections_are_closed_but_not_those_that_wait_for_an_answer() {
    let config = with(slow(), |config| config.keep_alive_s = 0.5);
    let (sim, manual) = on_manual_clock(config);
    let mut waiting = Connection::open(sim.addr()).await;
    let body = br#"{"text":"a","sampling_params":{"max_new_tokens":1}}"#;
    waiting.send("POST", "/generate", &[], body).await;
    until_load(sim.addr(), 1, 0).await;
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
async fn shutdown_cuts_streams_and_ends_listening() {
    let (sim, manual) = on_manual_clock(slow());
    let addr = sim.addr();
    let mut client = Connection::open(addr).await;
    client.send("POST", "/generate", &[], STREAM_OF_3).await;
    client.head().await;
    until_load(addr, 1, 0).await;
    manual.set(ms(5));
    assert!(client.chunk().await.unwrap().is_some());
    sim.shutdown();
    assert!(client.chunk().await.is_err(), "cut, not ended");
    until_served(&sim, 1).await;
    assert_eq!(sim.served()[0].outcome, Outcome::Aborted);
    let is_closed = async || tokio::net::TcpStream::connect(addr).await.is_err();
    until_async("nobody listens", is_closed).await;
}
