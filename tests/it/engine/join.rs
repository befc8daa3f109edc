//! Rows of streamed chat get the engine's moments from spans that come after them, late, in part or never.

use std::time::Duration;

use queuescope::clock::{Clock, Stamp};
use queuescope::config::proxy::Config;
use queuescope::request::UpstreamKind;
use queuescope::telemetry::otlp::settings::UpstreamFlag;
use serde_json::{Value, json};

use crate::support::assert_says;
use crate::support::pair::took;
use crate::support::proxy::{Front, Row, assert_cells, number, rows, setting};
use crate::support::spans;
use crate::support::upstream::{Step, Upstream, done};
use crate::support::wire::{self, until};

const BODY: &str =
    "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"a b\"}],\"stream\":true}";
/// Long enough for any span to come on a busy machine.
const LONG_S: f64 = 30.0;

/// A front before a server that streams the recorded chat, and that server's recorded spans.
struct Chat {
    front: Front,
    upstream: Upstream,
    spans: Vec<Value>,
    rid: String,
    began: Stamp,
}

impl Chat {
    /// Asked, and answered whole; its row waits for so many seconds.
    async fn asked(wait_s: f64) -> Chat {
        let wait = |config: &mut Config| config.engine.wait_s = setting(wait_s);
        let chat = Chat::of(None, wait).await;
        chat.ask().await;
        chat
    }

    /// `instead`: what the server does in place of the answer.
    async fn of(instead: Option<Vec<Step>>, change: impl FnOnce(&mut Config)) -> Chat {
        let spans = spans::named("direct/chat_stream_tp").spans;
        let root = spans.iter().find(|span| is_root(span)).unwrap();
        let rid = root["attrs"]["gen_ai.request.id"].as_str().unwrap();
        let answer = instead.unwrap_or_else(|| stream(rid));
        let (rid, upstream) = (rid.to_owned(), Upstream::playing(answer).await);
        let front = Front::with(&[upstream.addr], |config| {
            config.upstream_kind = UpstreamKind::Server;
            config.engine.traces.listen = Some("127.0.0.1:0".parse().unwrap());
            config.engine.wait_s = setting(LONG_S);
            change(config);
        })
        .await;
        let began = Clock::system().now();
        Chat {
            front,
            upstream,
            spans,
            rid,
            began,
        }
    }

    async fn send_request(&self) -> wire::Client {
        let path = "/v1/chat/completions";
        self.front.asked(path, "", BODY.as_bytes()).await
    }

    /// Asks and reads the whole answer.
    async fn ask(&self) {
        let mut client = self.send_request().await;
        assert_says(&client.response().await.text(), "[DONE]");
    }

    /// The recorded spans as the server would have made them of this request.
    fn spans(&self) -> Vec<Value> {
        let parent = self.parent();
        let parts: Vec<&str> = parent.split('-').collect();
        let root = self.spans.iter().find(|span| is_root(span)).unwrap();
        // The server had it 40 ms after we began, and the first token 35 ms later.
        let shift = self.began.nanos() as u64 + 40_000_000 - root["start_ns"].as_u64().unwrap();
        let mut spans = self.spans.clone();
        for span in &mut spans {
            span["trace_id"] = parts[1].into();
            for key in ["start_ns", "end_ns"] {
                span[key] = (span[key].as_u64().unwrap() + shift).into();
            }
            if is_root(span) {
                span["parent"] = parts[2].into();
            }
        }
        spans
    }

    /// What the server was told of its trace.
    fn parent(&self) -> String {
        self.upstream.seen()[0].header("traceparent").unwrap()
    }

    async fn send(&self, spans: &[Value]) {
        let receiver = self.front.proxy.address("engine.traces").unwrap();
        super::send(receiver, &spans::message(spans)).await;
    }

    fn waiting(&self) -> i64 {
        self.front.proxy.metrics().engine_waiting.with(&[]).get()
    }

    fn missing(&self, reason: &str) -> u64 {
        let missing = &self.front.proxy.metrics().timing_missing;
        missing.with(&[reason, "/v1/chat/completions"]).get()
    }

    fn joins(&self, outcome: &str) -> u64 {
        let joins = &self.front.proxy.metrics().engine_joins;
        joins.with(&["trace", outcome]).get()
    }

    /// Fails unless a row has the time in the queue as its span has it.
    fn assert_joined(&self, row: &Row) {
        assert_eq!(row["timing_source"], "trace", "{row:?}");
        let (queue, expected) = (
            number(row, "pure_queue_time"),
            took(&self.spans, "prefill_waiting"),
        );
        assert!((queue - expected).abs() < 1e-6, "{queue}");
    }
}

fn is_root(span: &Value) -> bool {
    span["name"].as_str().unwrap().starts_with(" Req ")
}

/// Five events with text, the first 90 ms after the request.
fn stream(rid: &str) -> Vec<Step> {
    let event = |delta: Value| {
        let choice = json!({"index": 0, "delta": delta, "finish_reason": null});
        let event = json!({"id": rid, "choices": [choice]});
        Step::Send(wire::chunk(format!("data: {event}\n\n")))
    };
    let role = event(json!({"role": "assistant", "content": ""}));
    let pause = Step::Pause(Duration::from_millis(90));
    let begun = vec![Step::Send(wire::stream_head()), role, pause];
    let text = vec![event(json!({"content": "x"})); 5];
    [begun, text, done()].concat()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chat_stream_shows_its_queue() {
    let chat = Chat::asked(LONG_S).await;
    until("the row waits", || chat.waiting() == 1).await;
    assert_eq!(rows(&chat.front.records()).len(), 0);
    let mut spans = chat.spans();
    // Children before parents, and in two batches.
    spans.sort_by_key(|span| (is_root(span), span["end_ns"].as_u64()));
    let (first, rest) = spans.split_at(4);
    chat.send(rest).await;
    chat.send(first).await;
    let row = &chat.front.first_row().await;
    chat.assert_joined(row);
    let cells = [
        ("engine_id", &*chat.rid),
        ("output_tokens_from_trace", "8"),
        ("actual_output_tokens", "8"),
        ("token_chunks", "5"),
        ("token_count_source", "trace"),
        ("cached_tokens", "24"),
        ("clock_state", "offset"),
        ("ttft_source", "server_first_token"),
        ("inconsistency", ""),
    ];
    assert_cells(row, cells);
    assert!(!row["tpot"].is_empty() && !row["network_time"].is_empty());
    assert_eq!((chat.joins("joined"), chat.waiting()), (1, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_lost_costs_only_what_it_would_have_told_and_what_comes_late_is_counted() {
    let chat = Chat::asked(1.0).await;
    let mut spans = chat.spans();
    spans.retain(|span| !is_root(span));
    chat.send(&spans).await;
    let row = chat.front.first_row().await;
    assert_eq!(chat.missing("incomplete"), 1);
    chat.assert_joined(&row);
    assert_eq!(row["server_created_time"], "");

    let chat = Chat::asked(0.1).await;
    // A server is told to make spans.
    assert!(chat.parent().ends_with("-01"));
    let row = chat.front.first_row().await;
    assert_cells(&row, [("timing_source", ""), ("outcome", "ok")]);
    assert_eq!(chat.missing("no_spans"), 1);
    chat.send(&chat.spans()).await;
    until("the late one", || chat.joins("late") == 1).await;
    chat.front.first_row().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_left_before_any_id_came_is_found_by_its_trace() {
    let chat = Chat::of(Some(vec![Step::Silence]), |config| {
        config.engine.wait_abort_s = setting(2.0);
    })
    .await;
    let client = chat.send_request().await;
    until("the request", || chat.upstream.seen().len() == 1).await;
    drop(client);
    until("the row waits", || chat.waiting() == 1).await;
    chat.send(&chat.spans()).await;
    let row = &chat.front.first_row().await;
    assert_eq!((&*row["outcome"], &*row["engine_id"]), ("client_abort", ""));
    chat.assert_joined(row);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shutdown_lets_no_row_that_waits_be_lost_and_hears_what_is_told_meanwhile() {
    for is_told in [false, true] {
        let chat = Chat::asked(LONG_S).await;
        until("the row waits", || chat.waiting() == 1).await;
        let told = async {
            // It has begun to end by then; the row waits for ten times as long.
            tokio::time::sleep(Duration::from_millis(200)).await;
            if is_told {
                chat.send(&chat.spans()).await;
            }
        };
        tokio::join!(chat.front.proxy.drain(), told);
        let rows = rows(&chat.front.records());
        assert_eq!((rows.len(), &*rows[0]["outcome"]), (1, "ok"));
        match is_told {
            true => chat.assert_joined(&rows[0]),
            false => assert_eq!(rows[0]["timing_source"], ""),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_waited_for_where_the_user_wants_no_spans() {
    let never = |config: &mut Config| config.otlp.upstream_flag = Some(UpstreamFlag::Never);
    let chat = Chat::of(None, never).await;
    chat.ask().await;
    assert!(chat.parent().ends_with("-00"));
    chat.front.first_row().await;
    assert_eq!((chat.missing("unsampled"), chat.waiting()), (1, 0));
}
