//! Each way in which a request can end leaves exactly one record, which says who ended it and where it was by then; and the
//! upstream is let go at once.

use futures_util::future::join_all;

use super::*;

const STREAM: &[u8] = br#"{"text":"a b c","stream":true,"sampling_params":{"max_new_tokens":4}}"#;

fn streaming(then: Vec<Step>) -> Vec<Step> {
    [begun(), then].concat()
}

#[track_caller]
fn assert_ended(row: &Row, outcome: &str, ended_in: &str, error: &str) {
    assert_outcome(row, outcome, error);
    assert_eq!(row["ended_in"], ended_in, "{row:?}");
    let start = match row["seen_by"].as_str() {
        "hop" => "router_send_time",
        _ => "arrival_time",
    };
    let elapsed = number(row, "elapsed");
    let waited = number(row, "end_time") - number(row, start);
    assert!(elapsed >= 0.0 && (waited - elapsed).abs() < 2e-6, "{row:?}");
    if !row["finish_time"].is_empty() {
        assert!(row["end_time"] >= row["finish_time"], "{row:?}");
    }
}

/// What stands in front of the server (a router, a hop of ours alone, or nothing), what the server does, what the client does then (`stops`:
/// leaves within its body), and how it ended: outcome, place, status and a piece of the error.
const ENDINGS: &str = "\
router | silence        | stops  | client_abort  | to proxy      |     | client
hop    | silence        | leaves | client_abort  | server        |     | client
router | silence        | leaves | client_abort  | router+server |     | client
server | silence        | resets | client_abort  | server        |     | client
router | begins silence | leaves | client_abort  | decode        | 200 | client
router | begins silence | resets | client_abort  | decode        | 200 | client
server | reset          | reads  | upstream_died | server        | 502 | 127.0.0.1:
server | close          | reads  | upstream_died | server        | 502 | 127.0.0.1:
server | short close    | reads  | upstream_died | server        | 200 |
server | begins reset   | reads  | upstream_died | decode        | 200 | 127.0.0.1:
server | begins close   | reads  | upstream_died | decode        | 200 | 127.0.0.1:
router | silence        | reads  | timeout       | router+server | 504 | silent for too long
router | begins silence | reads  | timeout       | decode        | 200 | silent for too long
server | full           | reads  | rejected      | server        | 503 | 503
server | begins last    | reads  | upstream_died | decode        | 200 | without its end
router | begins ends    | reads  | ok            | done          | 200 |
router | unframed close | reads  | ok            | done          | 200 |";

/// Cells of a stream that came whole through a router.
const WHOLE: &str = "upstream_reused=False, input_length=3, expected_output_length=4, \
    stream=True, host=, router_send_time=, engine_id=e, inconsistency=";

const UNFRAMED: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";
const SHORT: &[u8] =
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 90\r\n\r\n{";

/// What a server does by a word.
fn steps(word: &str) -> Vec<Step> {
    let send = |bytes: &[u8]| vec![Step::Send(bytes.to_vec())];
    match word {
        // A reset takes what has not been read yet with it.
        "begins" => streaming(vec![Step::Pause(Duration::from_millis(300))]),
        "ends" => done(),
        "last" => vec![Step::Send(chunk(""))],
        "unframed" => [
            send(UNFRAMED),
            send(EVENT.as_bytes()),
            send(DONE.as_bytes()),
        ]
        .concat(),
        "silence" => vec![Step::Silence],
        "reset" => vec![Step::Reset],
        "close" => vec![Step::Close],
        "full" => send(b"HTTP/1.1 503 Full\r\ncontent-length: 2\r\n\r\n{}"),
        "short" => send(SHORT),
        other => panic!("{other}"),
    }
}

/// What the response to a request that was read to its end must be like.
fn assert_response(response: &Response, does: &str, outcome: &str, status: &str) {
    assert_eq!(response.status().to_string(), status);
    let is_ours = match status {
        "502" => "bad_gateway",
        "504" => "gateway_timeout",
        _ => "",
    };
    if !is_ours.is_empty() {
        let error = &response.json()["error"];
        assert_eq!(error["type"], is_ours);
        assert_eq!(error["code"].to_string(), status);
        assert!(response.header("x-request-id").is_some());
        return;
    }
    // The client must see what was cut.
    let is_cut = matches!(outcome, "upstream_died" | "timeout") && does != "begins last";
    assert_eq!(response.whole, !is_cut, "{does}");
    if does.starts_with("begins") && outcome != "ok" {
        assert_eq!(response.body, EVENT.as_bytes());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_ends_it_is_told_where_it_was() {
    let case = async |[kind, does, then, outcome, ended_in, status, error]: [&str; 7]| {
        let streams = does.starts_with("begins");
        let upstream = Upstream::playing(does.split(' ').flat_map(steps).collect()).await;
        let silence = if then == "reads" { 1 } else { 1800 };
        let keys = format!("upstream_kind = \"{kind}\"\nupstream_read_timeout_s = {silence}");
        // What one server has begun is not sent to another.
        let other = Upstream::ok().await;
        let front = match kind {
            "hop" => Front::hop(upstream.addr).await,
            "server" => Front::keyed(&[upstream.addr, other.addr], &keys).await,
            _ => Front::keyed(&[upstream.addr], &keys).await,
        };
        let half = &post("/generate", "", &[b' '; 300_000])[..200_000];
        let mut client = match then {
            "stops" => front.sent(half).await,
            _ => front.asked("/generate", "", STREAM).await,
        };
        if then == "reads" {
            assert_response(&client.response().await, does, outcome, status);
        } else {
            let is_there = || match then {
                "stops" => upstream.received() > 100_000,
                _ => upstream.seen().len() == 1,
            };
            until("the request", is_there).await;
            if streams {
                client.read_until(|reader| !reader.body.is_empty()).await;
            }
            match then {
                "resets" => client.reset(),
                _ => drop(client),
            }
        }
        if outcome == "client_abort" || outcome == "timeout" {
            until("the upstream let go", || upstream.gone() == 1).await;
        }
        if then == "stops" {
            let seen = &upstream.seen()[0];
            assert!(!seen.whole && !seen.body.is_empty(), "a part of the body");
        }
        // Whatever ended it, its upstream's queue is shorter by one.
        front.counts("queuescope_upstream_in_flight", 0).await;
        assert!(other.seen().is_empty());
        let row = front.only_row().await;
        assert_ended(&row, outcome, ended_in, error);
        assert_row(&row, &format!("attempts=1, status={status}"));
        if kind != "router" {
            assert_eq!(row["host"], upstream.addr.to_string(), "answered or not");
        }
        let has_token = ended_in == "decode" || outcome == "ok";
        assert_eq!(!row["first_token_time"].is_empty(), has_token);
        match outcome {
            "rejected" => assert_eq!(row["end_time"], row["finish_time"]),
            "client_abort" if !streams => assert_row(&row, "finish_time=, total_latency="),
            "ok" => assert_whole(&row),
            _ => {}
        }
    };
    join_all(table(ENDINGS).map(case)).await;
}

/// Fails unless it is the row of a stream that came whole through a router.
fn assert_whole(row: &Row) {
    assert_eq!(row["end_time"], row["finish_time"]);
    assert_eq!(row["elapsed"], row["total_latency"]);
    assert!(number(row, "arrival_time") > 1.7e9);
    assert!(number(row, "first_token_time") <= number(row, "finish_time"));
    assert_row(row, WHOLE);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_while_it_reads_nothing() {
    let (upstream, front) = playing(endless(), "").await;
    let mut client = Client::with_small_buffer(front.addr()).await;
    client.post("/generate", "", STREAM).await;
    assert!(upstream.stands_still().await < 300);
    client.reset();
    assert_outcome(&front.only_row().await, "client_abort", "client");
}
