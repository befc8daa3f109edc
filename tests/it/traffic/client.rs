//! One request: what goes out, how connections are used, how it may end.

use super::*;
use std::future::pending;

use crate::support::table;

use queuescope::request::endpoint::Endpoint;
use queuescope::traffic::client::{Client, Job};

const ONE: [&str; 2] = ["--num-prompts", "1"];

#[tokio::test]
async fn a_request_says_who_asks_and_what_for() {
    let server = Upstream::always(recorded("completions_stream_usage")).await;
    let more = flags(
        "--backend sglang-oai --model m1 --api-key secret --header x-team:search --dataset-name random-ids \
         --random-output-len 5 --extra-request-body {\"top_p\":0.5} --num-prompts 1",
    );
    let run = drive(plan(server.addr, &more)).await.unwrap();
    assert_eq!(outcomes(&run), [Outcome::Ok]);
    let seen = &server.seen()[0];
    assert!(
        seen.head.starts_with("POST /v1/completions HTTP/1.1\r\n"),
        "{}",
        seen.head
    );
    let row = &run.records[0];
    assert_eq!(seen.header("x-request-id"), row.req_id.clone());
    let trace = seen.header("traceparent").unwrap();
    let parts: Vec<&str> = trace.split('-').collect();
    assert_eq!((parts[0], parts[3]), ("00", "01"));
    assert_eq!((parts[1].len(), parts[2].len()), (32, 16));
    assert_eq!(row.trace_id.as_deref(), Some(parts[1]));
    assert_eq!(seen.header("x-queuescope-stamps").as_deref(), Some("1"));
    let said = |name: &str| seen.header(name).unwrap();
    assert_eq!(said("authorization"), "Bearer secret");
    assert_eq!(said("x-team"), "search");
    assert_eq!(said("host"), server.addr.to_string());
    let body = body(seen);
    assert_eq!(
        (&body["model"], &body["top_p"]),
        (&"m1".into(), &0.5.into())
    );
    assert_eq!(body["prompt"].as_array().unwrap().len(), 8);
    assert_eq!(row.model.as_deref(), Some("m1"));
    // A router, for all we know: who served it stays open.
    assert_eq!(
        (&row.host, row.timeline.raw(Moment::RouterSend)),
        (&None, None)
    );
}

#[tokio::test]
async fn an_encoded_answer_is_not_read_and_identity_is_no_encoding() {
    for (coding, outcome) in [
        ("gzip", Outcome::Ok),
        ("identity", Outcome::UpstreamDied),
        ("Identity ", Outcome::UpstreamDied),
    ] {
        let head = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-encoding: {coding}\r\n\
             content-length: 4\r\n\r\n"
        );
        let answer = [head.as_bytes(), b"\x1f\x8b\x08\x00".as_slice()].concat();
        let server = Upstream::always(answer).await;
        let run = drive(plan(server.addr, &ONE)).await.unwrap();
        assert_eq!(outcomes(&run), [outcome], "{coding}");
    }
}

#[tokio::test]
async fn the_worker_that_smg_names_is_called_as_the_proxy_calls_it() {
    let answer = b"HTTP/1.1 200 OK\r\nx-smg-routed-worker-id: http://10.0.0.7:30000/\r\n\
        content-type: application/json\r\ncontent-length: 2\r\n\r\n{}";
    let router = Upstream::always(answer.to_vec()).await;
    let run = drive(plan(router.addr, &ONE)).await.unwrap();
    assert_eq!(run.records[0].host.as_deref(), Some("10.0.0.7:30000"));
}

#[tokio::test]
async fn every_api_and_stream_mode_gives_whole_rows() {
    for (backend, streamed, whole) in [
        ("sglang", "generate_stream", "generate_nostream"),
        (
            "sglang-oai",
            "completions_stream_usage",
            "completions_nostream",
        ),
        ("sglang-oai-chat", "chat_stream_usage", "chat_nostream"),
    ] {
        for (case, mode) in [(streamed, ""), (whole, " --disable-stream")] {
            let server = Upstream::always(recorded(case)).await;
            let line = format!("--backend {backend} --model m --num-prompts 2{mode}");
            let run = drive(plan(server.addr, &flags(&line))).await.unwrap();
            assert_eq!(outcomes(&run), [Outcome::Ok; 2], "{case}");
            for row in &run.records {
                assert!(
                    row.actual_output_tokens.is_some() && row.actual_prompt_tokens.is_some(),
                    "{case}"
                );
                assert_eq!(row.stream, Some(mode.is_empty()), "{case}");
                assert_eq!(row.input_length, Some(8), "{case}");
            }
        }
    }
}

/// What a server does with the n-th request that it gets, from 0.
fn played(turn: usize, server: &str) -> Vec<Step> {
    let whole = recorded("generate_stream");
    let half = whole[..whole.len() / 2].to_vec();
    match (server, turn) {
        ("closes after each", _) => {
            let text = String::from_utf8(whole).unwrap();
            let closing = text.replacen("\r\n", "\r\nconnection: close\r\n", 1);
            vec![Step::Send(closing.into_bytes()), Step::Close]
        }
        ("dies at once", _) | ("dies at the second", 1) => vec![Step::Close],
        ("dies within the second", 1..) => vec![Step::Send(half), Step::Close],
        _ => vec![Step::Send(whole)],
    }
}

/// Servers, flags, and what becomes of requests one after another: `ok` or not, attempts, whether on a kept connection; how many the
/// server saw, and on how many connections. The check before a run opens the first one.
const IN_TURN: &str = "\
keeps them              |                            | ok 1 new, ok 1 kept, ok 1 kept   | 3 on 1
keeps them              | --disable-connection-reuse | ok 1 new, ok 1 new, ok 1 new     | 3 on 3
closes after each       |                            | ok 1 new, ok 1 new, ok 1 new     | 3 on 3
dies at the second      |                            | ok 1 new, ok 2 new, ok 1 kept    | 4 on 2
dies within the second  |                            | ok 1 new, died 1 kept, died 1 new | 3 on 2";

#[tokio::test]
async fn connections_are_kept_and_one_that_died_before_an_answer_is_replaced_once() {
    for [server, more, became, seen] in table(IN_TURN) {
        let name = server.to_owned();
        let upstream = Upstream::start(move |turn, _| played(turn, &name)).await;
        let line = format!("--num-prompts 3 --max-concurrency 1 {more}");
        let run = drive(plan(upstream.addr, &flags(line.trim())))
            .await
            .unwrap();
        let told = run.records.iter().map(|row| {
            let outcome = if row.is_ok() { "ok" } else { "died" };
            let is_kept = row.upstream_reused.unwrap();
            let kept = if is_kept { "kept" } else { "new" };
            format!("{outcome} {} {kept}", row.attempts.unwrap())
        });
        assert_eq!(
            told.collect::<Vec<_>>().join(", "),
            became,
            "{server} {more}"
        );
        let connections = upstream.seen().into_iter().map(|seen| seen.connection);
        let connections: std::collections::BTreeSet<usize> = connections.collect();
        let all = format!("{} on {}", upstream.seen().len(), connections.len());
        assert_eq!(all, seen, "{server} {more}");
    }
}

#[tokio::test]
async fn a_new_connection_that_dies_is_no_cause_to_try_again_and_another_one_holds_up_no_send() {
    let server = Upstream::start(|turn, _| played(turn, "dies at once")).await;
    let mut first = plan(server.addr, &ONE);
    first.check_target = false;
    let run = drive(first).await.unwrap();
    assert_eq!(outcomes(&run), [Outcome::UpstreamDied]);
    assert_eq!((run.records[0].attempts, server.seen().len()), (Some(1), 1));

    let server = Upstream::start(|turn, _| played(turn, "dies at the second")).await;
    let options = plan(server.addr, &ONE).client;
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

#[tokio::test]
async fn each_way_to_fail_is_a_row_of_its_own_outcome() {
    let whole = |case: &str| vec![Step::Send(recorded(case))];
    let begun = |bytes: &[u8], last| vec![Step::Send(bytes.to_vec()), last];
    let half = recorded("generate_stream");
    let half = &half[..half.len() / 2];
    let error = "HTTP/1.1 500 X\r\ncontent-length: 0\r\n\r\n";
    for (steps, outcome, part) in [
        (whole("err_generate_too_long"), "client_error", "400"),
        (whole("queuefull_nostream/11"), "rejected", "503"),
        (vec![Step::Send(error.into())], "server_error", "500"),
        (begun(half, Step::Close), "upstream_died", ""),
        (begun(half, Step::Reset), "upstream_died", "reset"),
        (begun(b"no HTTP\r\n\r\n", Step::Close), "upstream_died", ""),
        (vec![Step::Silence], "timeout", "no end after 0.2 s"),
        (begun(half, Step::Silence), "timeout", "no end after 0.2 s"),
    ] {
        let server = Upstream::start(move |_, _| steps.clone()).await;
        let more = [&ONE[..], &["--request-timeout-s", "0.2"]].concat();
        let run = drive(plan(server.addr, &more)).await.unwrap();
        let [row] = &run.records[..] else {
            panic!("{outcome}");
        };
        let error = row.error.as_deref().unwrap();
        assert_eq!(row.outcome().name(), outcome, "{error}");
        let is_told = error.contains(part) && !error.is_empty();
        assert!(is_told, "{outcome}: {error}");
        let failure = failure(&run).unwrap();
        assert!(failure.contains(&format!("{error} (1×)")), "{failure}");
    }
}

#[tokio::test]
async fn nobody_there_is_one_error_before_the_run_and_a_row_within_it() {
    let nowhere = refusing().await;
    let error = drive(plan(nowhere, &ONE)).await.unwrap_err();
    assert!(!error.is_usage());
    let text = error.to_string();
    assert!(
        text.starts_with(&format!("cannot reach http://{nowhere}: ")),
        "{text}"
    );
    assert!(text.contains("refused"), "{text}");

    let mut unchecked = plan(nowhere, &ONE);
    unchecked.check_target = false;
    let run = drive(unchecked).await.unwrap();
    assert_eq!(outcomes(&run), [Outcome::ConnectError]);
    let row = &run.records[0];
    assert!(
        row.error.as_deref().unwrap().contains("refused"),
        "{:?}",
        row.error
    );
    let sent = row.timeline.raw(Moment::Sent);
    assert_eq!((row.attempts, sent), (Some(0), None));
}

#[tokio::test]
async fn a_model_that_was_not_named_is_asked_for() {
    let server = Upstream::start(|_, seen| {
        let models = "{\"data\":[{\"id\":\"tiny\"},{\"id\":\"other\"}]}";
        vec![Step::Send(if seen.head.starts_with("GET /v1/models ") {
            wire::json_response(models)
        } else {
            recorded("chat_stream_usage")
        })]
    })
    .await;
    let more = [&ONE[..], &["--backend", "sglang-oai-chat"]].concat();
    let run = drive(plan(server.addr, &more)).await.unwrap();
    assert_eq!(run.records[0].model.as_deref(), Some("tiny"));

    let server = Upstream::always(wire::json_response("{\"data\":[]}")).await;
    let error = drive(plan(server.addr, &more)).await.unwrap_err();
    let error = error.to_string();
    assert!(error.contains("name one with --model"), "{error}");
}

#[tokio::test]
async fn the_cache_is_flushed_first_and_a_refusal_is_told() {
    let server = Upstream::always(recorded("generate_stream")).await;
    let more = [&ONE[..], &["--flush-cache"]].concat();
    drive(plan(server.addr, &more)).await.unwrap();
    assert!(server.seen()[0].head.starts_with("POST /flush_cache "));

    let server = Upstream::always(recorded("err_404")).await;
    let error = drive(plan(server.addr, &more)).await.unwrap_err();
    let error = error.to_string();
    assert!(
        error.contains("--flush-cache") && error.contains("404"),
        "{error}"
    );
}

#[tokio::test]
async fn a_request_without_an_answer_tells_where_and_how_long_it_waited() {
    let whole = recorded("generate_stream");
    let silent = |steps: Vec<Step>| [steps, vec![Step::Silence]].concat();
    let half = Step::Send(whole[..whole.len() / 2].to_vec());
    for (kind, steps, ended_in) in [
        ("router", silent(vec![]), "router+server"),
        ("server", silent(vec![]), "server"),
        ("server", silent(vec![half]), "decode"),
    ] {
        let server = Upstream::start(move |_, _| steps.clone()).await;
        let more = ["--request-timeout-s", "1", "--upstream-kind", kind];
        let run = drive(plan(server.addr, &[&ONE[..], &more].concat())).await;
        let row = &run.unwrap().records[0];
        assert_eq!(row.outcome(), Outcome::Timeout);
        assert_eq!(row.ended_in.as_deref(), Some(ended_in));
        assert!(row.elapsed >= Some(990_000_000), "{:?}", row.elapsed);
    }
}
