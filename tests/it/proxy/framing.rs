//! Heads and bodies that could be understood in two ways: refused, or passed on with one meaning, word for word (`UPDATE_GOLDEN=1` writes
//! the file anew).

use serde::Deserialize;

use super::differential::Message;
use super::*;
use crate::golden::assert_golden;

#[derive(Deserialize)]
struct Cases {
    case: Vec<Case>,
}

/// A promise, and the requests and answers that show it.
#[derive(Deserialize)]
struct Case {
    name: String,
    sends: Vec<String>,
    #[serde(default = "ok")]
    answers: Vec<String>,
    /// The server closes after its answer.
    #[serde(default)]
    closes: bool,
}

fn ok() -> Vec<String> {
    vec!["HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}".to_owned()]
}

/// Follows each request, so that its connection ends, and shows whether it was kept.
const LAST: &[u8] = b"GET /last HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n";
/// What is shown of a row.
const CELLS: &str = "outcome status attempts ended_in error";

/// What becomes of a request that meets this answer.
async fn exchanged(sends: &str, answer: &str, closes: bool) -> String {
    let steps = [Step::Send(answer.into())].into_iter();
    let steps: Vec<Step> = steps.chain(closes.then_some(Step::Close)).collect();
    let upstream = Upstream::start(move |_, request| match request.head.contains(" /last ") {
        true => vec![Step::Send(wire::answer("200 Last", ""))],
        false => steps.clone(),
    });
    let upstream = upstream.await;
    let front = Front::start(upstream.addr).await;
    let mut client = front.sent([sends.as_bytes(), LAST].concat()).await;
    let mut read = Vec::new();
    let end = client.stream.read_to_end(&mut read).await;
    let mut text = format!("\nclient: {}\n", sends.as_bytes().escape_ascii());
    text += &format!("server: {}\n", answer.as_bytes().escape_ascii());
    for seen in upstream.seen() {
        text += &format!("  passed on  {}\n", Message::of_request(&seen));
    }
    for answer in Message::all(&read, false) {
        text += &format!("  answered   {answer}\n");
    }
    text += if end.is_ok() { "" } else { "  reset\n" };
    let broken = front.counter("queuescope_broken_heads_total ");
    text += if broken > 0 {
        "  counted as broken\n"
    } else {
        ""
    };
    let addr = upstream.addr.to_string();
    for row in front.rows().await {
        let cells = CELLS
            .split(' ')
            .map(|name| format!("{name}={:?}", row[name]));
        let cells: Vec<String> = cells.collect();
        text += &format!(
            "  row        {}\n",
            cells.join(" ").replace(&addr, "SERVER")
        );
    }
    text
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exchanges_are_as_ever() {
    let cases: Cases = toml::from_str(include_str!("../../data/exchanges.toml")).unwrap();
    let mut text = String::new();
    for case in cases.case {
        text += &format!("\n## {}\n", case.name);
        for (sends, answer) in case
            .sends
            .iter()
            .flat_map(|sends| case.answers.iter().map(move |answer| (sends, answer)))
        {
            text += &exchanged(sends, answer, case.closes).await;
        }
    }
    assert_golden("exchanges.txt", text.trim_start());
}

/// Control bytes are looked for in a line that comes in pieces, and nowhere else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_target_that_comes_in_pieces_is_read_whole() {
    let (_upstream, front) = answering("").await;
    let mut client = front.client().await;
    let rest = "\nhost:\th\r\ncontent-length: 2\r\n\r\n\0\0";
    for piece in ["\r\n\r\nPOST /hea", "lth HTTP/1.1\r", rest] {
        client.send(piece).await;
        tokio::task::yield_now().await;
    }
    assert_eq!(client.response().await.status(), 200);
    client.send("POST /gen").await;
    until("the first piece", || front.proxy.metrics().in_flight() == 0).await;
    client.send("erate\x01 HTTP/1.1\r\n\r\n").await;
    assert_eq!(client.response().await.status(), 400);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_with_too_large_a_head_is_not_valid_http() {
    let large = format!("HTTP/1.1 200 OK\r\nx: {}", "y".repeat(2_000_000));
    let (_upstream, front) = playing(vec![Step::Send(large.into())], "").await;
    assert_eq!(front.ask("/generate", "", b"{}").await.status(), 502);
    assert_outcome(&front.only_row().await, "upstream_died", "not valid HTTP");
}
