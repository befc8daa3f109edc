//! A prefill and a decode server: what both say of a request, in the words of a recorded pair (SGLang 0.5.23).

use queuescope::clock::Clock;
use queuescope::sim::config::Config;
use queuescope::sim::disaggregation::{Disaggregation, Mode};
use queuescope::sim::server::Sim;
use serde_json::{Value, json};

use super::fast;
use super::told::{Span, Told};
use crate::support::http::{Connection, exchange};
use crate::support::wire::{until, until_async};

/// Members of `meta_info`, as recorded: of the one event of prefill, of the first event of decode, and of its last.
const PREFILL: &str = "id finish_reason prompt_tokens weight_version num_retractions storage_prefetch_wait \
    storage_staging_wait forward_entry_time prefill_finished_time queue_time reasoning_tokens completion_tokens cached_tokens \
    weight_versions cached_tokens_details dp_rank e2e_latency request_received_ts first_token_latency \
    api_server_dispatch_finish_ts request_finished_ts response_sent_to_client_ts";
const DECODE: &str = "id finish_reason prompt_tokens weight_version num_retractions forward_entry_time queue_time \
    reasoning_tokens completion_tokens cached_tokens cached_tokens_details dp_rank response_sent_to_client_ts";
const DECODE_LAST: &str = "id finish_reason prompt_tokens weight_version num_retractions forward_entry_time queue_time \
    reasoning_tokens completion_tokens cached_tokens weight_versions cached_tokens_details dp_rank e2e_latency \
    request_received_ts first_token_latency api_server_dispatch_finish_ts request_finished_ts response_sent_to_client_ts \
    decode_throughput";
/// Of the only event of a request whose prefill server was lost.
const LOST: &str = "id finish_reason prompt_tokens weight_version num_retractions queue_time reasoning_tokens \
    completion_tokens cached_tokens weight_versions cached_tokens_details dp_rank e2e_latency request_received_ts \
    first_token_latency api_server_dispatch_finish_ts request_finished_ts response_sent_to_client_ts";
/// Spans in the order of their beginning, with what they are part of, as recorded.
const PREFILL_SPANS: &str = "prefill Req < what it came with, PrefillTokenizer < prefill Req, tokenize < PrefillTokenizer, \
    api_server_dispatch < PrefillTokenizer, Prefill Scheduler [TP 0]  [PP 0] < prefill Req, \
    prefill_prepare < Prefill Scheduler [TP 0]  [PP 0], prefill_bootstrap < Prefill Scheduler [TP 0]  [PP 0], \
    prefill_waiting < Prefill Scheduler [TP 0]  [PP 0], prefill_forward < Prefill Scheduler [TP 0]  [PP 0], \
    prefill_transfer_kv_cache < Prefill Scheduler [TP 0]  [PP 0]";
const DECODE_SPANS: &str = "decode Req < what it came with, DecodeTokenizer < decode Req, tokenize < DecodeTokenizer, \
    api_server_dispatch < DecodeTokenizer, Decode Scheduler [TP 0]  [PP 0] < decode Req, \
    decode_prepare < Decode Scheduler [TP 0]  [PP 0], decode_bootstrap < Decode Scheduler [TP 0]  [PP 0], \
    decode_transferred < Decode Scheduler [TP 0]  [PP 0], decode_waiting < Decode Scheduler [TP 0]  [PP 0], \
    decode_forward < Decode Scheduler [TP 0]  [PP 0], decode_loop < decode_forward, \
    decode_loop < decode_forward";

struct Pair {
    prefill: Told,
    decode: Told,
}

impl Pair {
    /// A server of a pair is `change`d before it starts.
    async fn start(change: impl Fn(&mut Config)) -> Pair {
        let server = async |mode| {
            let mut config = Config {
                disaggregation: Disaggregation {
                    disaggregation_mode: mode,
                    disaggregation_bootstrap_port: 0,
                    transfer_lost_s: 0.05,
                    ..Disaggregation::default()
                },
                ..fast()
            };
            change(&mut config);
            Told::with(config, Clock::system()).await
        };
        Pair {
            prefill: server(Mode::Prefill).await,
            decode: server(Mode::Decode).await,
        }
    }

    /// Sends both legs of a request; gives their connections: prefill's, decode's.
    async fn send(&self, room: u64, tokens: u32) -> [Connection; 2] {
        let body = json!({
            "text": "once upon a time the quick brown fox", "stream": true,
            "sampling_params": { "max_new_tokens": tokens },
            "bootstrap_host": "127.0.0.1", "bootstrap_port": self.prefill.sim.bootstrap_addr().unwrap().port(),
            "bootstrap_room": room,
        });
        let mut legs = Vec::new();
        for server in [&self.prefill, &self.decode] {
            let mut leg = Connection::open(server.sim.addr()).await;
            let parent = "traceparent: 00-0000000000000003748d69dd0a867229-00f067aa0ba902b7-01";
            leg.send("POST", "/generate", &[parent], body.to_string().as_bytes())
                .await;
            legs.push(leg);
        }
        let [prefill, decode] = legs.try_into().unwrap_or_else(|_| unreachable!());
        [prefill, decode]
    }
}

/// The `meta_info` of each event, and that the stream ends as streams do.
async fn events(leg: &mut Connection) -> Vec<Value> {
    let text = leg.response().await.unwrap().text();
    let mut events: Vec<&str> = text.split("\n\n").collect();
    assert_eq!(
        (events.pop(), events.pop()),
        (Some(""), Some("data: [DONE]")),
        "{text}"
    );
    let event = |event: &str| {
        let event: Value = serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap();
        event["meta_info"].clone()
    };
    events.into_iter().map(event).collect()
}

/// `meta_info` has just these members, whose order the file that writes them holds.
fn has_members(meta_info: &Value, expected: &str) {
    let names: Vec<&str> = meta_info
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    let mut expected: Vec<&str> = expected.split_whitespace().collect();
    expected.sort_unstable();
    assert_eq!(names, expected);
}

fn seconds(meta_info: &Value, name: &str) -> f64 {
    meta_info[name].as_f64().unwrap()
}

async fn gauge(server: &Told, name: &str) -> f64 {
    let text = exchange(server.sim.addr(), "GET", "/metrics", b"")
        .await
        .text();
    let line = text
        .lines()
        .find(|line| line.starts_with(&format!("sglang:{name}{{")));
    line.unwrap().rsplit(' ').next().unwrap().parse().unwrap()
}

/// Name and parent's name of each span, in the order of their beginning.
fn nested(spans: &[Span]) -> String {
    let name = |span: &Span| match span.name.split_once(" Req ") {
        Some((of, _)) => format!("{of} Req"),
        None => span.name.split("(host:").next().unwrap().trim().to_owned(),
    };
    let above = |span: &Span| spans.iter().find(|other| other.id == span.parent);
    let depth = |span: &Span| std::iter::successors(Some(span), |span| above(span)).count();
    let mut order: Vec<&Span> = spans.iter().collect();
    order.sort_by_key(|span| (span.start, depth(span), span.end));
    let line = |span: &Span| {
        let above = above(span).map_or("what it came with".to_owned(), name);
        format!("{} < {above}", name(span))
    };
    order.into_iter().map(line).collect::<Vec<_>>().join(", ")
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
    let [of_prefill] = &prefill[..] else {
        panic!("{prefill:?}");
    };
    has_members(of_prefill, PREFILL);
    assert_eq!(
        of_prefill["finish_reason"],
        json!({ "type": "length", "length": 0 })
    );
    assert_eq!(of_prefill["completion_tokens"], 1);
    // Its reply comes when the KV cache has.
    assert_eq!(of_prefill["first_token_latency"], of_prefill["e2e_latency"]);
    assert_eq!(decode.len(), 3);
    let (first, last) = (&decode[0], &decode[2]);
    has_members(first, DECODE);
    has_members(last, DECODE_LAST);
    assert_eq!(
        last["finish_reason"],
        json!({ "type": "length", "length": 3 })
    );
    // Decode's queue is the wait for a slot alone: it began when the KV cache had come.
    let ready = seconds(last, "forward_entry_time") - seconds(last, "queue_time");
    assert!(
        ready >= seconds(of_prefill, "prefill_finished_time"),
        "{prefill:?} {last}"
    );

    let spans = [
        pair.prefill.until_spans(10).await,
        pair.decode.until_spans(12).await,
    ];
    let end = |name: &str| {
        let span = spans[0].iter().find(|span| span.name.starts_with(name));
        span.unwrap().end
    };
    // What ends with the scheduler's span was aborted.
    assert!(end("Prefill Scheduler") > end("prefill_forward"));
    assert!(end("Prefill Scheduler") >= end("prefill_transfer_kv_cache"));
    let [prefill, decode] = spans.map(|spans| {
        let root = spans
            .iter()
            .find(|span| span.name.contains(" Req "))
            .unwrap();
        let room = root
            .attributes
            .iter()
            .find(|(name, _)| name == "bootstrap_room")
            .unwrap();
        assert_eq!(room.1, "0x7fffffffffffffff");
        nested(&spans)
    });
    assert_eq!(prefill, PREFILL_SPANS);
    assert_eq!(decode, DECODE_SPANS);
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
    assert!(
        seconds(&second_prefill, "forward_entry_time")
            >= seconds(&first, "request_finished_ts") - 0.02,
        "{first} {second_prefill}"
    );
    // In no queue time of either.
    assert!(
        seconds(&second_prefill, "queue_time") < 0.1,
        "{second_prefill}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_for_its_bootstrap_is_aborted_as_what_waits_in_a_queue() {
    // Nothing decodes, so prefill waits.
    let prefill = Pair::start(|_| {}).await.prefill;
    let waiting = async || gauge(&prefill, "num_prefill_bootstrap_queue_reqs").await;
    let mut legs = Vec::new();
    for (rid, room) in [("own-1", 1), ("other", 2)] {
        let body = json!({ "text": "a b", "stream": true, "rid": rid, "bootstrap_host": "127.0.0.1", "bootstrap_port": 1,
            "bootstrap_room": room });
        let mut leg = Connection::open(prefill.sim.addr()).await;
        leg.send("POST", "/generate", &[], body.to_string().as_bytes())
            .await;
        legs.push(leg);
    }
    until_async("both wait", async || waiting().await == 2.0).await;
    let abort = async |body: &[u8]| {
        let answer = exchange(prefill.sim.addr(), "POST", "/abort_request", body).await;
        assert_eq!(answer.status(), 200);
    };
    abort(br#"{"rid": "own"}"#).await;
    let told = events(&mut legs[0]).await;
    let reason = json!({ "type": "abort", "message": "Abort in waiting queue" });
    assert_eq!((told.len(), &told[0]["finish_reason"]), (1, &reason));
    assert_eq!(waiting().await, 1.0, "the other's id begins otherwise");
    abort(br#"{"abort_all": true}"#).await;
    assert_eq!(events(&mut legs[1]).await[0]["finish_reason"], reason);
    assert_eq!(waiting().await, 0.0);
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
    has_members(event, LOST);
    assert_eq!(
        (&event["queue_time"], &event["completion_tokens"]),
        (&json!(0.0), &json!(0))
    );
    let (rid, port) = (
        event["id"].as_str().unwrap(),
        pair.prefill.sim.bootstrap_addr().unwrap().port(),
    );
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

#[tokio::test(flavor = "multi_thread")]
async fn a_request_without_a_room_is_refused() {
    let pair = Pair::start(|_| {}).await;
    for (server, body) in [
        (&pair.prefill, json!({ "text": "a b" })),
        (
            &pair.decode,
            json!({ "text": ["a", "b"], "bootstrap_host": "h", "bootstrap_port": 1, "bootstrap_room": 7 }),
        ),
    ] {
        let refused = exchange(
            server.sim.addr(),
            "POST",
            "/generate",
            body.to_string().as_bytes(),
        )
        .await;
        assert_eq!(refused.status(), 400);
        assert!(
            refused.text().contains("bootstrap_room"),
            "{}",
            refused.text()
        );
    }
}

#[tokio::test]
async fn a_bootstrap_port_that_is_taken_is_told_by_its_flag() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let config = Config {
        disaggregation: Disaggregation {
            disaggregation_mode: Mode::Prefill,
            disaggregation_bootstrap_port: taken.local_addr().unwrap().port(),
            ..Disaggregation::default()
        },
        ..fast()
    };
    let error = Sim::start(config, Clock::system()).unwrap_err().to_string();
    let told = "(--host, --disaggregation-bootstrap-port)";
    assert!(error.contains(told), "{error}");
}
