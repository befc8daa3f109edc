//! A prefill and a decode server: what both say of a request, in the words of a recorded pair (SGLang 0.5.23).

use queuescope::clock::Clock;
use queuescope::sim::config::{Config, Mode};
use serde_json::{Value, json};

use super::shapes;
use super::told::{Told, above, kind_of_name};
use super::{fast, infos, metric, posted, with};
use crate::support::assert_says;
use crate::support::pair::{self, Leg};
use crate::support::wire::{Client, Reader, until, until_async};

struct Pair {
    prefill: Told,
    decode: Told,
}

impl Pair {
    /// A server of a pair is `change`d before it starts.
    async fn start(change: impl Fn(&mut Config)) -> Pair {
        let server = async |mode| {
            let config = with(fast(), |config| {
                config.disaggregation.disaggregation_mode = mode;
                config.disaggregation.disaggregation_bootstrap_port = 0;
                config.disaggregation.transfer_lost_s = 0.05;
                change(config);
            });
            Told::with(config, Clock::system()).await
        };
        Pair {
            prefill: server(Mode::Prefill).await,
            decode: server(Mode::Decode).await,
        }
    }

    /// Sends both legs of a request; gives their connections: prefill's, decode's.
    async fn send(&self, room: u64, tokens: u32) -> [Client; 2] {
        let body = json!({
            "text": "once upon a time the quick brown fox", "stream": true,
            "sampling_params": { "max_new_tokens": tokens }, "bootstrap_room": room,
        });
        self.send_to("/generate", &body, &body).await
    }

    /// The same with these bodies, but for where the servers meet.
    async fn send_to(&self, path: &str, prefill: &Value, decode: &Value) -> [Client; 2] {
        let prefill = self.send_leg(&self.prefill, path, prefill).await;
        [prefill, self.send_leg(&self.decode, path, decode).await]
    }

    /// Sends one leg alone.
    async fn send_leg(&self, server: &Told, path: &str, body: &Value) -> Client {
        let port = self.prefill.sim.bootstrap_addr().unwrap().port();
        let mut body = body.clone();
        let sequences = body["bootstrap_room"].as_array().map_or(1, Vec::len);
        body["bootstrap_host"] = vec!["127.0.0.1"; sequences].into();
        body["bootstrap_port"] = vec![port; sequences].into();
        let mut leg = Client::connect(server.sim.addr()).await;
        let parent = "traceparent: 00-0000000000000003748d69dd0a867229-00f067aa0ba902b7-01\r\n";
        leg.post(path, parent, body.to_string().as_bytes()).await;
        leg
    }
}

/// The shapes of what a server of a recorded pair said.
fn recorded(leg: &Leg) -> Vec<String> {
    let mut reader = Reader::default();
    leg.reply.iter().for_each(|(_, piece)| reader.feed(piece));
    shapes(&String::from_utf8(reader.body).unwrap())
}

/// The spans of a recorded pair's server.
fn recorded_spans(role: &str) -> Vec<Value> {
    let parents = ["00-a-aa-01", "00-b-bb-01"];
    let rooms = pair::all().into_iter().flat_map(|one| one.rooms);
    let mut spans = rooms.map(|room| pair::spans(room, parents));
    let mut spans = spans.find(|spans| !spans.is_empty()).unwrap();
    let trace = if role == "prefill" { "a" } else { "b" };
    // The simulator sends no span a token.
    spans.retain(|span| span["trace_id"] == trace && span["name"] != "decode_loop");
    spans
}

/// The `meta_info` of each event.
async fn events(leg: &mut Client) -> Vec<Value> {
    infos(&leg.response().await)
}

fn seconds(meta_info: &Value, name: &str) -> f64 {
    meta_info[name].as_f64().unwrap()
}

async fn gauge(server: &Told, name: &str) -> f64 {
    metric(&server.sim, name).await
}

/// Name and parent's name of each span, in the order of their beginning.
fn nested(spans: &[Value]) -> Vec<String> {
    let depth =
        |span: &Value| std::iter::successors(above(span, spans), |span| above(span, spans)).count();
    let mut order: Vec<&Value> = spans.iter().collect();
    order.sort_by_key(|span| {
        let [start, end] = ["start_ns", "end_ns"].map(|key| span[key].as_u64());
        (start, depth(span), end)
    });
    let line = |span: &Value| {
        let above = above(span, spans).map_or("what it came with", kind_of_name);
        format!("{} < {above}", kind_of_name(span))
    };
    let mut lines: Vec<String> = order.into_iter().map(line).collect();
    // Not simulated; and a loop a token.
    lines.retain(|line| !line.starts_with("fake_output"));
    lines.dedup();
    lines
}

#[tokio::test(flavor = "multi_thread")]
async fn both_say_what_a_recorded_pair_said() {
    let pair = Pair::start(|config| {
        config.profile.tokenize_ms = 1.0;
        config.profile.schedule_ms = 0.35;
    })
    .await;
    let [mut prefill, mut decode] = pair.send(u64::MAX / 2, 3).await;
    let (prefill, decode) = (events(&mut prefill).await, events(&mut decode).await);
    let length = |length| json!({ "type": "length", "length": length });
    let of_prefill = &prefill[0];
    assert_eq!(of_prefill["finish_reason"], length(0));
    assert_eq!(of_prefill["completion_tokens"], 1);
    // Its reply comes when the KV cache has.
    assert_eq!(of_prefill["first_token_latency"], of_prefill["e2e_latency"]);
    let last = &decode[2];
    assert_eq!(last["finish_reason"], length(3));
    // Decode's queue is the wait for a slot alone: it began when the KV cache had come.
    let ready = seconds(last, "forward_entry_time") - seconds(last, "queue_time");
    assert!(
        ready >= seconds(of_prefill, "prefill_finished_time"),
        "{prefill:?} {last}"
    );

    let told = [
        pair.prefill.until_spans(10).await,
        pair.decode.until_spans(10).await,
    ];
    let end = |name: &str| {
        let mut spans = told[0].iter();
        let named = spans.find(|span| kind_of_name(span).starts_with(name));
        named.unwrap()["end_ns"].as_u64()
    };
    // What ends with the scheduler's span was aborted.
    assert!(end("Prefill Scheduler") > end("prefill_forward"));
    assert!(end("Prefill Scheduler") >= end("prefill_transfer_kv_cache"));
    for (told, role) in told.iter().zip(["prefill", "decode"]) {
        let is_root = |span: &&Value| kind_of_name(span).ends_with(" Req");
        let root = told.iter().find(is_root).unwrap();
        assert_eq!(root["attrs"]["bootstrap_room"], "0x7fffffffffffffff");
        assert_eq!(nested(told), nested(&recorded_spans(role)));
    }
    for server in [&pair.prefill, &pair.decode] {
        until("the log", || server.log().len() == 1).await;
        let line: Value = serde_json::from_str(&server.log()[0]).unwrap();
        let asked = line["request_parameters"].as_str().unwrap();
        let asked: Value = serde_json::from_str(asked).unwrap();
        assert_eq!(asked["bootstrap_room"], u64::MAX / 2);
        assert_eq!(asked["bootstrap_host"], "127.0.0.1");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn replies_have_the_shape_of_recorded_ones() {
    let pair = Pair::start(|config| config.profile.schedule_ms = 0.35).await;
    for dispatch in pair::all() {
        let recorded = [&dispatch.prefill, &dispatch.decode];
        let bodies = recorded.map(|leg| serde_json::from_slice(&leg.body).unwrap());
        let [prefill, decode] = &bodies;
        let legs = pair.send_to(&dispatch.path, prefill, decode).await;
        for (mut leg, recorded) in legs.into_iter().zip(recorded) {
            let reply = leg.response().await.text();
            let (ours, theirs) = (shapes(&reply), self::recorded(recorded));
            let is_alike = match dispatch.rooms.len() {
                // The router broke one off.
                1 => theirs.is_empty() || ours == theirs,
                // Which of several sequences goes first, time says.
                _ => theirs.iter().all(|shape| ours.contains(shape)),
            };
            assert!(is_alike, "{}: {ours:#?} {theirs:#?}", dispatch.name());
            let body: Value = serde_json::from_str(&reply).unwrap_or_default();
            let info = &body["meta_info"];
            assert_eq!(info["first_token_latency"], info["e2e_latency"]);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_decode_server_is_waited_for_on_both() {
    // One runs and none may come beside it: the second waits for its room, and so does its prefill.
    let pair = Pair::start(|config| {
        config.profile.max_running_requests = 1;
        config.profile.decode_step_ms = 20.0;
        config.disaggregation.disaggregation_decode_extra_slots = 0;
    })
    .await;
    let [mut first_prefill, mut first] = pair.send(1, 10).await;
    events(&mut first_prefill).await;
    let [mut second_prefill, mut second] = pair.send(2, 2).await;
    until_async("the second one's wait", async || {
        gauge(&pair.decode, "num_decode_prealloc_queue_reqs").await == 1.0
            && gauge(&pair.prefill, "num_prefill_bootstrap_queue_reqs").await == 1.0
    })
    .await;
    let first = events(&mut first).await.pop().unwrap();
    let second_prefill = events(&mut second_prefill).await.pop().unwrap();
    events(&mut second).await;
    let after =
        seconds(&second_prefill, "forward_entry_time") - seconds(&first, "request_finished_ts");
    // In no queue time of either.
    let queued = seconds(&second_prefill, "queue_time");
    assert!(after >= -0.02 && queued < 0.1, "{first} {second_prefill}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_room_it_is_refused_and_a_client_that_leaves_ends_the_wait_for_its_bootstrap() {
    let pair = Pair::start(|_| {}).await;
    let one_of_two =
        r#"{"text":["a","b"],"bootstrap_host":"h","bootstrap_port":1,"bootstrap_room":7}"#;
    for (server, body) in [
        (&pair.prefill, r#"{"text":"a"}"#),
        (&pair.decode, one_of_two),
    ] {
        let refused = posted(&server.sim, "/generate", body).await;
        assert_eq!(refused.status(), 400);
        assert_says(&refused.text(), "bootstrap_room");
    }
    // Nothing decodes, so prefill waits.
    let waiting = async || gauge(&pair.prefill, "num_prefill_bootstrap_queue_reqs").await;
    let body = |room| json!({ "text": "a b", "stream": true, "bootstrap_room": room });
    let leg = async |room| pair.send_leg(&pair.prefill, "/generate", &body(room)).await;
    let (_stays, leaves) = (leg(1).await, leg(2).await);
    until_async("both wait", async || waiting().await == 2.0).await;
    drop(leaves);
    until_async("one waits", async || waiting().await == 1.0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_prefill_server_is_told_as_recorded() {
    // Its transfers take for ever.
    let pair = Pair::start(|config| config.disaggregation.transfer_ms = 1e5).await;
    let [_prefill, mut decode] = pair.send(3_511_221_067_230_450_483, 4).await;
    until_async("the transfer", async || {
        gauge(&pair.prefill, "num_prefill_inflight_queue_reqs").await == 1.0
            && gauge(&pair.decode, "num_decode_transfer_queue_reqs").await == 1.0
    })
    .await;
    pair.prefill.sim.shutdown();
    let events = events(&mut decode).await;
    let [event] = &events[..] else {
        panic!("{events:?}");
    };
    let recorded = pair::failed_transfer();
    let recorded: Value = serde_json::from_str(&recorded["data: ".len()..]).unwrap();
    let members = |of: &Value| of.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(members(event), members(&recorded["meta_info"]));
    assert_eq!(event["queue_time"], 0.0);
    let rid = event["id"].as_str().unwrap();
    let port = pair.prefill.sim.bootstrap_addr().unwrap().port();
    let message = format!(
        "Decode transfer failed for request rank=0 decode_req.req.rid='{rid}' decode_req.req.bootstrap_room=3511221067230450483 \
         with exception KVTransferError(bootstrap_room=3511221067230450483): Lost connection with prefill instance \
         (bootstrap_addr: 127.0.0.1:{port})"
    );
    let reason =
        json!({ "type": "abort", "message": message, "status_code": 500, "err_type": null });
    assert_eq!(event["finish_reason"], reason);
    // Its place is free again.
    assert_eq!(gauge(&pair.decode, "num_used_tokens").await, 0.0);
}
