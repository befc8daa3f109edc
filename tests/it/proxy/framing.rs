//! What passes of heads and bodies, and how: word for word, in `tests/data/golden/exchanges.txt` (`UPDATE_GOLDEN=1` writes it anew). Those
//! that could be understood in two ways are refused, or passed on with one meaning.

use futures_util::future::join_all;
use serde::Deserialize;

use super::differential::OURS;
use super::*;
use crate::golden::assert_golden;

#[derive(Deserialize)]
struct Cases {
    case: Vec<Case>,
}

/// A promise, and the requests and answers that show it: each request meets each answer.
#[derive(Deserialize)]
struct Case {
    name: String,
    sends: Vec<String>,
    #[serde(default = "ok")]
    answers: Vec<String>,
    /// The server closes after its answer.
    #[serde(default)]
    closes: bool,
    /// What else the config has.
    #[serde(default)]
    keys: String,
    /// It is a hop that is asked.
    #[serde(default)]
    hop: bool,
}

fn ok() -> Vec<String> {
    vec!["HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}".to_owned()]
}

/// Follows each request, so that its connection ends, and shows whether it was kept.
const LAST: &[u8] = b"GET /last HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n";
/// What is shown of a row, where it is not empty.
const CELLS: &str = "req_id outcome status attempts ended_in host worker failed_attempts disaggregated pure_queue_time labels unread inconsistency error";
/// What is shown of metrics, where it is not 0.
const COUNTERS: &str = "broken_heads_total passed_through_total responses_unread_total label_requests_total hop_stamps_refused_total";

/// A message, without what differs each time.
fn shown(head: &str, body: &[u8]) -> String {
    let line = |line: &str| match line.split_once(": ") {
        Some((name, value)) if is_made(name, value) => format!("{name}: *"),
        _ => line.to_owned(),
    };
    let mut parts: Vec<String> = head.trim_end().split("\r\n").map(line).collect();
    parts.push(body.escape_ascii().to_string());
    parts.join(" | ").trim_end_matches([' ', '|']).to_owned()
}

/// Whether a field has a made id, a trace, stamps or a date, rather than a word of a case.
fn is_made(name: &str, value: &str) -> bool {
    let mut ours = OURS
        .into_iter()
        .chain(["x-queuescope-stamps", "x-queuescope-hop", "req_id"]);
    value.len() > 15 && ours.any(|one| one.eq_ignore_ascii_case(name))
}

impl Case {
    /// What becomes of a request that meets this answer.
    async fn exchange(&self, sends: &str, answer: &str) -> String {
        let steps = [Step::Send(answer.into())].into_iter();
        let steps: Vec<Step> = steps.chain(self.closes.then_some(Step::Close)).collect();
        let upstream = Upstream::start(move |_, request| match request.head.contains(" /last ") {
            true => vec![Step::Send(wire::answer("200 Last", ""))],
            false => steps.clone(),
        });
        let upstream = upstream.await;
        let front = match self.hop {
            true => Front::hops(&[upstream.addr], &self.keys).await,
            false => Front::keyed(&[upstream.addr], &self.keys).await,
        };
        let mut client = front.sent([sends.as_bytes(), LAST].concat()).await;
        let mut read = Vec::new();
        let end = tokio::time::timeout(PATIENCE, client.stream.read_to_end(&mut read));
        let end = end.await.expect("the connection's end");
        let mut text = format!("\nclient: {}\n", sends.as_bytes().escape_ascii());
        text += &format!("server: {}\n", answer.as_bytes().escape_ascii());
        for seen in upstream.seen() {
            text += &format!("  passed on  {}\n", shown(&seen.head, &seen.body));
        }
        let answers = wire::responses(&read, false);
        for answer in &answers {
            text += &format!("  answered   {}\n", shown(&answer.head, &answer.body));
        }
        if end.is_err() || answers.last().is_none_or(|last| !last.whole) {
            let how = if end.is_ok() { "closed" } else { "reset" };
            let last = read.windows(4).rposition(|end| end == b"\r\n\r\n");
            let body = read[last.map_or(0, |at| at + 4)..].escape_ascii();
            text += &format!("  {how} after {body}\n");
        }
        let metrics = front.proxy.metrics().clone();
        for row in front.rows().await {
            let cells = CELLS.split(' ').map(|name| (name, &row[name]));
            let cells = cells.filter(|(name, cell)| !cell.is_empty() && !is_made(name, cell));
            let cells: Vec<String> = cells.map(|(name, cell)| format!("{name}={cell}")).collect();
            text += &format!("  row        {}\n", cells.join(", "));
        }
        for name in COUNTERS.split(' ') {
            let count = metric(&metrics.text(), &format!("queuescope_{name}"));
            if count > 0.0 {
                text += &format!("  counted    {name} {count}\n");
            }
        }
        text.replace(&upstream.addr.to_string(), "SERVER")
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exchanges_are_as_ever() {
    let cases: Cases = toml::from_str(include_str!("../../data/exchanges.toml")).unwrap();
    let mut text = String::new();
    for case in cases.case {
        let answers = |sends| case.answers.iter().map(move |answer| (sends, answer));
        let all = case.sends.iter().flat_map(answers);
        let all = join_all(all.map(|(sends, answer)| case.exchange(sends, answer))).await;
        text += &format!("\n## {}\n{}", case.name, all.concat());
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
