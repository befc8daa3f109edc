//! `/metrics`: what it says is what the rows say. What it says of responses alone, `golden.rs` has in full.

use std::collections::BTreeSet;

use crate::support::assert_says;
use crate::support::generator;
use crate::support::proxy::{Front, Row, known_workers, rows};
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

const GENERATE: &str =
    r#"{"text":"a b c","stream":true,"sampling_params":{"max_new_tokens":6,"ignore_eos":true}}"#;
const SEVERAL: &str = r#"{"text":"a b c","stream":true,"sampling_params":{"max_new_tokens":4,"n":3,"ignore_eos":true}}"#;
const CHAT: &str = r#"{"model":"sim-llama","messages":[{"role":"user","content":"a b"}],"max_tokens":7,"stream":true,"stream_options":{"include_usage":true}}"#;
const REPLY: &str = r#"{"text":"a b c","sampling_params":{"max_new_tokens":3}}"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn histograms_hold_what_the_rows_say() {
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
