//! How a request ended, as the proxy and the generator before it tell it of one exchange: they must agree.

use std::net::SocketAddr;

use futures_util::future::join_all;
use queuescope::clock::Stamp;
use queuescope::request::{self, Outcome, csv as lines};

use crate::support::generator;
use crate::support::observed::STREAM;
use crate::support::proxy::{Front, Row, assert_outcome, assert_row, playing};
use crate::support::table;
use crate::support::upstream::{DONE, EVENT, Step, Upstream, refusing};
use crate::support::wire::{chunk, stream_head, until};

/// The generator's row of one request to `addr`, with `more` on its command line.
async fn of_generator(addr: SocketAddr, more: &str) -> Row {
    let line = format!("--num-prompts 1 --random-input-len 3 {more}");
    let plan = generator::plan(&format!("http://{addr}"), &line).unwrap();
    let run = generator::drive(plan).await.unwrap();
    assert_eq!(run.rows.len(), 1);
    as_written(&run.rows[0])
}

fn as_written(row: &request::Row) -> Row {
    let mut text = Vec::new();
    lines::header(&mut text);
    lines::row(row, Stamp::EPOCH, &mut text);
    let mut reader = csv::Reader::from_reader(text.as_slice());
    reader.deserialize().next().unwrap().unwrap()
}

/// The rows of one exchange with `upstream`: the proxy's, that of the generator before it, and that of a generator
/// without a proxy.
async fn rows(upstream: SocketAddr) -> [Row; 3] {
    let alone = of_generator(upstream, "").await;
    let front = Front::start(upstream).await;
    let before = of_generator(front.addr(), "").await;
    [front.only_row().await, before, alone]
}

/// The same of a server that plays these steps.
async fn rows_of(steps: Vec<Step>) -> [Row; 3] {
    rows(Upstream::playing(steps).await.addr).await
}

fn send(bytes: impl Into<Vec<u8>>) -> Step {
    Step::Send(bytes.into())
}

/// A response with this head and body, framed by its length.
fn answer(head: &str, body: &str) -> Step {
    let length = body.len();
    send(format!(
        "HTTP/1.1 {head}\r\ncontent-length: {length}\r\n\r\n{body}"
    ))
}

/// Status and content type, body, outcome and a piece of its error, whether the generation was whole and has text, and why its
/// body was not read.
const WHOLE: &str = r#"
200 OK, application/json | {"text":"a","meta_info":{"id":"i","e2e_latency":NaN}} | ok | | True | True |
200 OK, application/json | [{"text":"a","score":-Infinity},Infinity] | ok | | True | True |
200 OK, application/json | null | ok | | True | False |
200 OK, application/json | {"foo":1} | ok | | True | False |
200 OK, application/json | <html>not JSON</html> | server_error | neither events nor JSON in place of a generation | | | content_type
200 OK, application/json; content-encoding: gzip | not for us | ok | | | | encoded
200 OK | {"text":"a"} | ok | | True | True |
200 OK | <html>not JSON</html> | server_error | neither events nor JSON | | | content_type
302 Found, application/json; location: /login | | client_error | | | False |
302 Found, text/event-stream | | client_error | | | False |
200 OK, application/json | {"text":"a" | upstream_died | | False | False |
200 OK, text/event-stream; content-encoding: gzip | EVENT DONE | ok | | | | encoded
200 OK, text/plain | hello | server_error | neither events nor JSON in place | | | content_type
200 OK, text/html | hello | server_error | an HTML page | | | html
200 OK, application/xhtml+xml | hello | server_error | an HTML page | | | html
200 OK, text/html; content-encoding: gzip | hello | server_error | an HTML page | | | html
200 OK, text/html | | upstream_died | | False | False |
502 Bad, text/html | sorry | server_error | 502 | | False |
200 OK, text/event-stream; content-encoding:  Identity | EVENT DONE | ok | | True | True |
200 OK, application/json | | upstream_died | without its end | False | False |
204 No Content, text/plain | | upstream_died | without its end | False | False |
200 OK, text/event-stream | | upstream_died | without its end | False | False |
200 OK, text/event-stream | COMMENT | upstream_died | without its end | False | False |
200 OK, text/event-stream | DONE | upstream_died | without its end | False | False |"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_came_whole_is_judged_by_what_is_in_it() {
    // Those who frame a part anew pass on what looks whole.
    let cases = table(WHOLE.trim_start()).map(
        async |[head, body, outcome, error, generation, text, unread]| {
            let head = head.replace(", ", "\r\ncontent-type: ");
            let head = head.replace("; ", "\r\n");
            let body = body.replace("EVENT ", EVENT).replace("DONE", DONE);
            let body = body.replace("COMMENT", ": nothing yet\n\n");
            for row in rows_of(vec![answer(&head, &body)]).await {
                assert_outcome(&row, outcome, error);
                let told = ["generation_whole", "has_generated_text", "unread"];
                let told = told.map(|column| row[column].as_str());
                assert_eq!(told, [generation, text, unread], "{row:?}");
                assert_eq!(row["message_whole"], "True", "{row:?}");
                // What is not read is only timed.
                let tokens = [&row["token_chunks"], &row["first_token_time"]];
                assert!(unread.is_empty() || tokens == ["", ""], "{row:?}");
            }
        },
    );
    join_all(cases).await;
    let nothing = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n";
    for row in rows_of(vec![send(nothing)]).await {
        assert_outcome(&row, "upstream_died", "without its end");
    }
    // Who asked for no stream expects no event.
    let no_content = "HTTP/1.1 204 No Content\r\ncontent-type: application/json\r\n\r\n";
    for (empty, outcome) in [
        (answer("200 OK\r\ncontent-type: application/json", ""), "ok"),
        (send(no_content), "ok"),
        (
            answer(&format!("200 OK\r\ncontent-type: {STREAM}"), ""),
            "upstream_died",
        ),
    ] {
        let (_server, front) = playing(vec![empty], "").await;
        let before = of_generator(front.addr(), "--disable-stream").await;
        for row in [before, front.only_row().await] {
            assert_outcome(&row, outcome, "");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_message_is_not_ok_though_the_generation_came_to_its_end() {
    let framed = |kind: &str, more: &str, body: &str| {
        format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}{more}\r\n\r\n{body}").into_bytes()
    };
    let long = "\r\ncontent-length: 9000";
    let json = r#"{"text":"a","meta_info":{"id":"i"}}"#;
    let json = framed("application/json", long, json);
    let events = |more| framed(STREAM, more, &format!("{EVENT}{DONE}"));
    let stream = [stream_head(), chunk(EVENT), chunk(DONE)].concat();
    let cases = [
        (Step::Close, stream.clone()),
        (Step::Reset, stream.clone()),
        (Step::Close, [&stream[..], b"0\r\n"].concat()),
        (Step::Close, json),
        (Step::Close, events(long)),
        (Step::Reset, events("")),
    ];
    let cases = cases.map(async |(last, bytes)| {
        // A reset takes what has not been read yet with it.
        let pause = Step::Pause(std::time::Duration::from_millis(300));
        let steps = match last {
            Step::Reset => vec![send(bytes), pause, last],
            _ => vec![send(bytes), last],
        };
        for row in rows_of(steps.clone()).await {
            assert_outcome(&row, "upstream_died", "after the generation's end");
            assert_eq!(row["message_whole"], "False", "{row:?}");
            assert_eq!(row["generation_whole"], "True", "{row:?}");
        }
        let (_server, front) = playing(steps, "").await;
        let response = front.ask("/generate", "", b"{}").await;
        assert!(!response.whole, "the client must see it: {response:?}");
    });
    join_all(cases).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_proxys_own_errors_are_told_from_a_servers() {
    let nowhere = refusing().await;
    let front = Front::start(nowhere).await;
    let before = of_generator(front.addr(), "").await;
    let front = front.only_row().await;
    // A server that goes with the first request: the second finds nobody.
    let server = Upstream::playing(vec![Step::Silence]).await;
    let line = "--num-prompts 2 --max-concurrency 1 --random-input-len 3";
    let plan = generator::plan(&format!("http://{}", server.addr), line).unwrap();
    let goes = async {
        until("the first request", || !server.seen().is_empty()).await;
        drop(server);
    };
    let (run, ()) = tokio::join!(generator::drive(plan), goes);
    let run = run.unwrap();
    let mut alone = run.rows.iter();
    let alone = alone.find(|row| row.outcome() == Outcome::ConnectError);
    let alone = as_written(alone.unwrap());
    assert_outcome(&front, "proxy_error", "refused");
    assert_row(&front, "status=502, attempts=0, finish_time=");
    assert_outcome(&before, "proxy_error", "502");
    assert_outcome(&alone, "connect_error", "refused");
    assert_row(&alone, "attempts=0, sent_time=");
    let places = [&front, &before, &alone].map(|row| &*row["ended_in"]);
    assert_eq!(places, ["proxy", "proxy", "connecting"]);

    // Where the upstream is the server itself, the request ended on the way to it.
    let front = Front::balancing(&[nowhere], "random", "").await;
    let before = of_generator(front.addr(), "").await;
    for row in [before, front.only_row().await] {
        let cells = ["ended_in", "host", "attempts"].map(|column| &*row[column]);
        assert_eq!(cells, ["network", &*nowhere.to_string(), "1"], "{row:?}");
    }

    let [front, before, alone] = rows_of(vec![Step::Close]).await;
    assert_outcome(&front, "upstream_died", "");
    assert_outcome(&before, "upstream_died", "502");
    assert_outcome(&alone, "upstream_died", "");

    // A server's error is its own, and one that only says that it is a proxy's of ours is not believed by the proxy.
    for extra in ["", "\r\nx-queuescope-outcome: proxy_error"] {
        let error = answer(&format!("502 Bad{extra}"), "");
        let [front, before, _] = rows_of(vec![error]).await;
        for row in [front, before] {
            assert_outcome(&row, "server_error", "502");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_1xx_is_no_answer() {
    let switched =
        "HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\njunk";
    let server = Upstream::playing(vec![send(switched), Step::Close]).await;
    let row = of_generator(server.addr, "").await;
    assert_outcome(&row, "server_error", "101 is not a final response");
}
