//! One request: what goes out, how connections are used, how it may end; also through a front of ours, which knows what it sends to.

use std::future::pending;

use queuescope::request::{ColumnId, Endpoint, UpstreamKind};
use queuescope::traffic::client::{Client, Job};

use super::*;
use crate::support::docs::assert_cases;
use crate::support::proxy::Front;
use crate::support::tls::Authority;
use crate::support::{assert_says, table};

#[tokio::test]
async fn a_request_says_who_asks_and_what_for() {
    let server = Upstream::always(recorded("completions_stream_usage")).await;
    let line =
        "--backend sglang-oai --model m1 --api-key secret --header x-team:search --num-prompts 1";
    let run = sent(server.addr, line).await;
    let (row, seen) = (&run.rows[0], &server.seen()[0]);
    let trace = row.trace_id.as_deref().unwrap();
    for said in [
        "POST /v1/completions HTTP/1.1\r\n",
        &format!("\r\nhost: {}\r\n", server.addr),
        &format!("\r\nx-request-id: {}\r\n", row.request_id()),
        &format!("\r\ntraceparent: 00-{trace}-"),
        "\r\nx-queuescope-stamps: 1\r\n",
        "\r\nauthorization: Bearer secret\r\n",
        "\r\nx-team: search\r\n",
    ] {
        assert_says(&seen.head, said);
    }
    let span = seen.header("traceparent").unwrap();
    assert!(span.len() == 55 && span.ends_with("-01"), "{span}");
    assert_eq!(body(seen)["model"], "m1");
    assert_eq!(row.model.as_deref(), Some("m1"));
    // A router, for all we know: who served it stays open.
    let router_send = row.timeline.raw(Moment::RouterSend);
    assert_eq!((&row.host, router_send), (&None, None));
}

/// The beginning of an answer.
fn half() -> Step {
    let whole = recorded("generate_stream");
    Step::Send(whole[..whole.len() / 2].to_vec())
}

/// What a server does with the n-th request that it gets, from 0.
fn played(turn: usize, server: &str) -> Vec<Step> {
    let whole = recorded("generate_stream");
    match (server, turn) {
        ("closes after each", _) => {
            let text = String::from_utf8(whole).unwrap();
            let closing = text.replacen("\r\n", "\r\nconnection: close\r\n", 1);
            vec![Step::Send(closing.into_bytes()), Step::Close]
        }
        ("dies at once", _) | ("dies at the second", 1) => vec![Step::Close],
        ("dies within the second", 1..) => vec![half(), Step::Close],
        _ => vec![Step::Send(whole)],
    }
}

/// Servers, flags, and what becomes of requests one after another: `ok` or not, attempts, whether on a kept connection; how many the
/// server saw, and on how many connections. The check before a run opens the first one, which may be replaced as a kept one.
const IN_TURN: &str = "\
keeps them              |                            | ok 1 new, ok 1 kept, ok 1 kept   | 3 on 1
keeps them              | --disable-connection-reuse | ok 1 new, ok 1 new, ok 1 new     | 3 on 3
closes after each       |                            | ok 1 new, ok 1 new, ok 1 new     | 3 on 3
dies at once            |                            | died 2 new, died 1 new, died 1 new | 4 on 4
dies at the second      |                            | ok 1 new, ok 2 new, ok 1 kept    | 4 on 2
dies within the second  |                            | ok 1 new, died 1 kept, died 1 new | 3 on 2
dies at the second      | --insecure                 | ok 1 new, ok 2 new, ok 1 kept    | 4 on 2";

#[tokio::test]
async fn connections_are_kept_and_one_that_died_before_an_answer_is_replaced_once() {
    for [server, more, became, seen] in table(IN_TURN) {
        let name = server.to_owned();
        let upstream = Upstream::start(move |turn, _| played(turn, &name)).await;
        // The last words of TLS are bytes too, but none of a response.
        let face = Authority::new("ours")
            .face(&["localhost"], upstream.addr)
            .await;
        let url = match more {
            "--insecure" => format!("https://{}", face.addr),
            _ => format!("http://{}", upstream.addr),
        };
        let line = format!("--num-prompts 3 --max-concurrency 1 {more}");
        let plan = generator::plan(&url, &line).unwrap();
        let run = drive(plan).await.unwrap();
        let told = run.rows.iter().map(|row| {
            let outcome = if row.is_ok() { "ok" } else { "died" };
            let is_kept = row.upstream_reused.unwrap();
            let kept = if is_kept { "kept" } else { "new" };
            format!("{outcome} {} {kept}", row.attempts.unwrap())
        });
        let told = told.collect::<Vec<_>>().join(", ");
        let mut connections: Vec<usize> = upstream.seen().iter().map(|s| s.connection).collect();
        let requests = connections.len();
        connections.sort_unstable();
        connections.dedup();
        let all = format!("{requests} on {}", connections.len());
        assert_eq!((&*told, &*all), (became, seen), "{server} {more}");
    }
}

#[tokio::test]
async fn to_replace_a_connection_that_died_holds_up_no_send() {
    let server = Upstream::start(|turn, _| played(turn, "dies at the second")).await;
    let options = plan(server.addr, "").client;
    let client = Client::new(options, Clock::system()).await.unwrap();
    let waited = async || {
        let job = Job {
            req_id: "r".to_owned(),
            endpoint: Endpoint::Generate,
            scheduled: None,
            body: "{}".into(),
        };
        let exchange = client.exchange(job, None, pending()).await;
        exchange.connect_nanos
    };
    assert!(waited().await > 0);
    // To open another one came after the first write.
    assert_eq!(waited().await, 0);
    assert_eq!(server.seen().len(), 3);
}

/// What a server answers by the name of a case: a recording, or one of these.
fn answer(case: &str) -> Vec<Step> {
    let send = |text: &str| Step::Send(text.into());
    let worker = "x-smg-routed-worker-id: http://10.0.0.7:30000/\r\ncontent-length: 2";
    match case {
        "of smg's worker" => vec![send(&format!("HTTP/1.1 200 OK\r\n{worker}\r\n\r\n{{}}"))],
        "500" => vec![Step::Send(BROKEN.into())],
        "no HTTP" => vec![send("no HTTP\r\n\r\n"), Step::Close],
        "nothing" => vec![Step::Silence],
        "half: silence" => vec![half(), Step::Silence],
        "half: close" => vec![half(), Step::Close],
        "half: reset" => vec![half(), Step::Reset],
        _ => vec![Step::Send(recorded(case))],
    }
}

/// The row of the only request, which gets the answer of this name under these flags.
async fn row_of(case: &str) -> String {
    let (name, more) = case.split_once(" |").unwrap();
    let server = Upstream::playing(answer(name)).await;
    let run = sent(server.addr, &format!("--num-prompts 1 {more}")).await;
    let [row] = &run.rows[..] else {
        panic!("{case}");
    };
    let is_late = row.outcome() == Outcome::Timeout;
    assert!(!is_late || row.elapsed >= Some(990_000_000), "{row:?}");
    let kind = |is| if is { "streamed" } else { "whole" };
    let counts = row.actual_output_tokens.zip(row.actual_prompt_tokens);
    let parts = [
        Some(row.outcome().name().to_owned()),
        row.stream.map(|is| kind(is).to_owned()),
        row.input_length.map(|words| format!("{words} words")),
        counts.map(|_| "tokens".to_owned()),
        row.host.as_ref().map(|host| format!("by {host}")),
        Some(format!(
            "in {}",
            (ColumnId::ended_in.column().get)(row).text()
        )),
        row.error.as_ref().map(|error| format!("error {error}")),
    ];
    let told: Vec<String> = parts.into_iter().flatten().collect();
    told.join(", ").replace(&server.addr.to_string(), "SERVER")
}

#[test]
fn golden_rows_of_answers_are_as_ever() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let row_of = |case: &str| runtime.block_on(row_of(case));
    assert_cases("tests/data/traffic/answers.txt", row_of);
}

#[tokio::test]
async fn a_model_that_was_not_named_is_asked_for() {
    let server = Upstream::start(|_, seen| {
        let models = wire::json_response("{\"data\":[{\"id\":\"tiny\"},{\"id\":\"other\"}]}");
        let is_asked = seen.head.starts_with("GET /v1/models ");
        let reply = || recorded("chat_stream_usage");
        vec![Step::Send(if is_asked { models } else { reply() })]
    })
    .await;
    let line = "--num-prompts 1 --backend sglang-oai-chat";
    let run = sent(server.addr, line).await;
    assert_eq!(run.rows[0].model.as_deref(), Some("tiny"));

    let server = Upstream::always(wire::json_response("{\"data\":[]}")).await;
    let error = drive(plan(server.addr, line)).await.unwrap_err();
    assert_says(&error.to_string(), "name one with --model");
}

#[tokio::test]
async fn the_cache_is_flushed_first_and_a_refusal_is_told() {
    let server = good().await;
    let line = "--num-prompts 1 --flush-cache";
    sent(server.addr, line).await;
    assert!(server.seen()[0].head.starts_with("POST /flush_cache "));

    let server = Upstream::always(recorded("err_404")).await;
    let error = drive(plan(server.addr, line)).await.unwrap_err();
    for said in ["--flush-cache", "404"] {
        assert_says(&error.to_string(), said);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_front_says_when_it_sent_and_to_whom_as_far_as_it_knows() {
    let sim = generator::sim(|_| {});
    for kind in [UpstreamKind::Server, UpstreamKind::Router] {
        let front = Front::with(&[sim.addr()], |config| config.upstream_kind = kind).await;
        for more in ["", "--upstream-kind server"] {
            let line = format!("--num-prompts 3 --random-output-len 4 {more}");
            let run = sent(front.addr(), &line).await;
            assert_eq!(outcomes(&run), [Outcome::Ok; 3]);
            for row in &run.rows {
                let forwarded = at(row, Moment::Forwarded);
                assert!(at(row, Moment::Arrival) >= at(row, Moment::Sent));
                assert_eq!(row.inconsistency, None);
                // Of a router it leaves open when that sent, and to whom.
                let is_known = kind == UpstreamKind::Server;
                let router_send = row.timeline.raw(Moment::RouterSend);
                assert_eq!(router_send, is_known.then_some(forwarded));
                assert_eq!(row.server_latency.is_some_and(|took| took > 0), is_known);
                assert_eq!(row.host, is_known.then(|| sim.addr().to_string()));
            }
        }
    }
}
