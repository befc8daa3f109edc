//! `/metrics` and the live page: what they say is what the rows say. What metrics say of responses alone, `golden.rs` has in full.

use std::collections::BTreeSet;

use queuescope::request::COLUMNS;
use serde_json::Value;

use crate::support::assert_says;
use crate::support::generator;
use crate::support::proxy::{Front, Row, known_workers, number, rows};
use crate::support::upstream::Upstream;
use crate::support::wire::until;

/// The sum over all label sets of `name` that have each of these labels, with spaces between them.
fn total(told: &str, name: &str, labels: &str) -> f64 {
    let values = told.lines().filter_map(|line| {
        let (key, value) = line.rsplit_once(' ')?;
        let (metric, set) = key.split_once('{').unwrap_or((key, ""));
        let is_one = metric == name && labels.split_whitespace().all(|label| set.contains(label));
        is_one.then(|| value.parse::<f64>().unwrap())
    });
    values.sum()
}

/// The values of a column; of the request's columns, once a request.
fn values(rows: &[&Row], column: &str, once: bool) -> Vec<f64> {
    let mut seen = BTreeSet::new();
    let mut is_new = |row: &Row| {
        let request = row["req_id"].split('#').next().unwrap();
        seen.insert(request.to_owned())
    };
    let of = rows.iter().filter(|row| !once || is_new(row));
    let cells = of.filter_map(|row| match (column, row["inconsistency"].as_str()) {
        // Where the way to the server or back cannot be, its clock is not believed.
        ("network_time" | "return_time", "network_time<0" | "return_time<0") => None,
        _ => Some(&row[column]),
    });
    cells.filter_map(|cell| cell.parse().ok()).collect()
}

/// Fails unless a histogram holds just these values, of which there must be some.
#[track_caller]
fn assert_holds(told: &str, name: &str, labels: &str, values: &[f64]) {
    let part = |end: &str, labels: &str| total(told, &format!("{name}_{end}"), labels);
    let what = format!("{name} {labels}");
    assert!(values.len() >= 4, "{what}");
    assert_eq!(part("count", labels), values.len() as f64, "{what}");
    let sum: f64 = values.iter().map(|value| value.max(0.0)).sum();
    let summed = part("sum", labels);
    assert!((summed - sum).abs() < 1e-5, "{what}: {summed} {sum}");
    // Bounds that each of them has.
    for bound in [0.01, 0.1, 1.0] {
        let expected = values.iter().filter(|value| **value <= bound).count();
        let counted = part("bucket", &format!("{labels} le=\"{bound}\""));
        assert_eq!(counted, expected as f64, "{what} {bound}");
    }
}

/// Fails unless the live page tells of each request of one sequence what its row says, and of all of them what all rows say.
async fn assert_live(front: &Front, rows: &[Row]) {
    let news = front.get("/live.json").await.json();
    let requests = news["requests"].as_array().unwrap();
    assert_eq!(requests.len(), 20);
    for shown in requests {
        let id = shown["req_id"].as_str().unwrap();
        let Some(row) = rows.iter().find(|row| row["req_id"] == id) else {
            assert_eq!([&shown["sequences"], &shown["output_tokens"]], [3, 12]);
            continue;
        };
        let told = ["worker", "outcome"].map(|name| shown[name].as_str().unwrap());
        assert_eq!(told, [&row["worker"], &row["outcome"]]);
        if row["outcome"] != "ok" {
            // A server's message is not shown.
            continue;
        }
        same_cells(front, &shown["number"], row).await;
        let tokens = number(row, "request_output_tokens") as u64;
        assert_eq!(shown["output_tokens"], tokens);
        let near = |a: f64, b: f64| assert!((a - b).abs() < 2e-6, "{a} {b} {shown} {row:?}");
        let parts = shown["parts"].as_array().unwrap();
        let end = |part: Option<&Value>| part.unwrap()["end"].as_f64().unwrap();
        near(end(parts.last()), number(row, "total_latency"));
        if row["stream"] == "True" {
            let mut before = parts.iter().filter(|part| part["is_after"] == false);
            near(end(before.next_back()), number(row, "ttft_observed"));
        }
    }
    let mut quantiles = news["window"]["quantiles"].as_array().unwrap().iter();
    let queue = quantiles.find(|one| one["name"] == "pure_queue_time");
    let told = rows.iter().filter(|row| !row["pure_queue_time"].is_empty());
    assert_eq!(queue.unwrap()["count"], told.count());
}

/// Every cell of the request's page is that of its row.
async fn same_cells(front: &Front, shown: &Value, row: &Row) {
    let one = front.get(&format!("/requests/{shown}.json")).await.json();
    let cells = one["columns"].as_array().unwrap();
    for column in &COLUMNS {
        let (name, written) = (column.name, &row[column.name]);
        let cell = cells.iter().find(|cell| cell["name"] == name);
        let is_same = match cell.map(|cell| &cell["values"][0]) {
            None => written.is_empty(),
            Some(Value::Bool(yes)) => written.eq_ignore_ascii_case(&yes.to_string()),
            Some(Value::Number(is)) => (is.as_f64().unwrap() - number(row, name)).abs() < 1e-6,
            Some(value) => value.as_str().unwrap() == written,
        };
        assert!(is_same, "{name} {written} {cell:?}");
    }
}

const GENERATE: &str =
    r#"{"text":"a b c","stream":true,"sampling_params":{"max_new_tokens":6,"ignore_eos":true}}"#;
const SEVERAL: &str = r#"{"text":"a b c","stream":true,"sampling_params":{"max_new_tokens":4,"n":3,"ignore_eos":true}}"#;
const CHAT: &str = r#"{"model":"sim-llama","messages":[{"role":"user","content":"a b"}],"max_tokens":7,"stream":true,"stream_options":{"include_usage":true}}"#;
const REPLY: &str = r#"{"text":"a b c","sampling_params":{"max_new_tokens":3}}"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn histograms_and_the_live_page_hold_what_the_rows_say() {
    let sim = generator::sim(|config| {
        config.profile.tokenize_ms = 0.5;
        config.profile.max_running_requests = 2;
    });
    let full = Upstream::always(b"HTTP/1.1 503 Full\r\ncontent-length: 2\r\n\r\n{}".to_vec()).await;
    let servers = [full.addr, sim.addr()];
    let (hops, workers) = known_workers(&servers);
    let router = Upstream::retrying(hops, str::to_owned).await;
    let front = Front::with(&[router.addr], |config| config.workers = workers).await;
    // What has not happened is shown as 0.
    let metrics = front.proxy.metrics().clone();
    let idle = metrics.text();
    for key in [
        "queuescope_attempts_total{outcome=\"ok\",worker=\"w1\"}",
        "queuescope_worker_in_flight{phase=\"streaming\",worker=\"w1\"}",
        "queuescope_joins_total{by=\"nothing\"}",
        "queuescope_passed_through_total",
    ] {
        assert_says(&idle, &format!("\n{key} 0\n"));
    }
    let asked = [
        ("/generate", GENERATE),
        ("/generate", SEVERAL),
        ("/v1/chat/completions", CHAT),
        ("/generate", REPLY),
        ("/generate", "{}"),
    ];
    let mut clients = Vec::new();
    for (path, body) in asked.iter().cycle().take(4 * asked.len()) {
        let client = front.asked(path, "", body.as_bytes()).await;
        clients.push(client);
    }
    for client in &mut clients {
        client.response().await;
    }
    let path = front.records();
    until("all rows", || rows(&path).len() == 4 * (asked.len() + 2)).await;
    // A hop may end its attempt when the row of the front's request is written already: each request has one at each server.
    let attempts = "queuescope_attempts_total";
    let ended = || total(&metrics.text(), attempts, "") == (2 * clients.len()) as f64;
    until("all attempts", ended).await;
    let told = metrics.text();
    assert_live(&front, &rows(&path)).await;
    let rows = front.rows().await;
    let all: Vec<&Row> = rows.iter().collect();
    let is_ok = |row: &&Row| row["outcome"] == "ok";
    let ok: Vec<&Row> = rows.iter().filter(is_ok).collect();
    assert_eq!((ok.len(), all.len()), (24, 28));

    // What each sequence waited for is judged when the proxy ends, at the latest.
    let ended = metrics.text();
    let causes = "slots kv_memory prefill_turn not_seen_here unknown".split(' ');
    let causes = causes.map(|cause| format!("cause=\"{cause}\""));
    let wait = "queuescope_wait_cause_seconds_total";
    let judged: f64 = causes.map(|cause| total(&ended, wait, &cause)).sum();
    let waited: f64 = values(&all, "pure_queue_time", false).iter().sum();
    assert!(waited > 0.01, "{waited}");
    assert!((judged - waited).abs() < 1e-5, "{judged} {waited}");

    for (stage, column, once) in [
        ("router_queue", "queue_time_in_router", true),
        ("network", "network_time", false),
        ("tokenize", "tokenize_time", false),
        ("server_queue", "pure_queue_time", false),
        ("prefill", "prefill_time", false),
        ("return", "return_time", false),
        ("client_stall", "client_stall", true),
    ] {
        let labels = format!("stage=\"{stage}\" worker=\"w1\"");
        let stages = "queuescope_stage_duration_seconds";
        assert_holds(&told, stages, &labels, &values(&ok, column, once));
    }
    let overhead = values(&ok, "overhead", true);
    assert_holds(&told, "queuescope_overhead_seconds", "", &overhead);
    // Only what a row tells of its first token, not of bytes before it.
    let seen = values(&ok, "router_return_time", false).len() as f64;
    let stage = "queuescope_stage_duration_seconds_count";
    assert!(seen > 4.0);
    assert_eq!(total(&told, stage, "stage=\"router_return\""), seen);
    for (name, labels, expected) in [
        ("queuescope_requests_total", "outcome=\"ok\"", 16.0),
        ("queuescope_requests_total", "outcome=\"client_error\"", 4.0),
        (attempts, "worker=\"w0\" outcome=\"rejected\"", 20.0),
        (attempts, "worker=\"w1\" outcome=\"ok\"", 16.0),
        ("queuescope_in_flight", "", 0.0),
        ("queuescope_worker_in_flight", "", 0.0),
        (
            "queuescope_upstream_connections_total",
            &format!("upstream=\"{}\"", router.addr),
            20.0,
        ),
    ] {
        assert_eq!(total(&told, name, labels), expected, "{name} {labels}");
    }
    let sent: usize = asked.iter().map(|(_, body)| 4 * body.len()).sum();
    let bytes = |kind: &str| total(&told, "queuescope_bytes_total", kind);
    assert_eq!(bytes("request"), sent as f64);
    assert!(bytes("response") > 1000.0);
    let clock = format!("clock=\"{}\"", sim.addr());
    assert!(total(&told, "queuescope_clock_offset_error_seconds", &clock) > 0.0);
}
