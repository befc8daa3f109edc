//! `/metrics`: what it says is what the rows say, and no client can blow it up.

use std::collections::{BTreeMap, BTreeSet};

use queuescope::sim::server::Sim;

use crate::support::generator;
use crate::support::proxy::{Front, Row, known_workers, rows};
use crate::support::upstream::Upstream;
use crate::support::wire::until;

/// What a scrape says, by metric and labels.
type Scrape = BTreeMap<String, f64>;

fn parsed(text: &str) -> Scrape {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let values = lines.map(|line| {
        let (name, value) = line.rsplit_once(' ').unwrap();
        (name.to_owned(), value.parse().unwrap())
    });
    values.collect()
}

fn scrape(front: &Front) -> Scrape {
    parsed(&front.proxy.metrics().text())
}

/// The sum over all label sets of `name` that have each of these `labels`.
fn total(scrape: &Scrape, name: &str, labels: &[&str]) -> f64 {
    let ours = scrape.iter().filter(|(key, _)| {
        let (metric, set) = key.split_once('{').unwrap_or((key, ""));
        metric == name && labels.iter().all(|label| set.contains(label))
    });
    ours.map(|(_, value)| value).sum()
}

/// The values of a column; of the request's columns, once a request.
fn values<'a>(rows: &[&'a Row], column: &'a str, once: bool) -> Vec<f64> {
    let mut seen = BTreeSet::new();
    let of = rows.iter().filter(|row| {
        let request = row["req_id"].split('#').next().unwrap();
        !once || seen.insert(request.to_owned())
    });
    let cells = of
        .map(|row| row[column].as_str())
        .filter(|cell| !cell.is_empty());
    cells.map(|cell| cell.parse().unwrap()).collect()
}

/// Fails unless a histogram holds just these values.
#[track_caller]
fn assert_holds(scrape: &Scrape, name: &str, labels: &[&str], values: &[f64]) {
    let part = |end: &str| total(scrape, &format!("{name}{end}"), labels);
    assert_eq!(part("_count"), values.len() as f64, "{name} {labels:?}");
    let sum: f64 = values.iter().map(|value| value.max(0.0)).sum();
    assert!(
        (part("_sum") - sum).abs() < 1e-5,
        "{name} {labels:?}: {} {sum}",
        part("_sum")
    );
    let bounds = scrape
        .keys()
        .filter(|key| key.starts_with(&format!("{name}_bucket")));
    let bounds: BTreeSet<&str> = bounds
        .map(|key| {
            key.split("le=\"")
                .nth(1)
                .unwrap()
                .split('"')
                .next()
                .unwrap()
        })
        .collect();
    assert!(bounds.len() > 10);
    for bound in bounds.into_iter().filter(|bound| *bound != "+Inf") {
        let at_most: f64 = bound.parse().unwrap();
        let expected = values.iter().filter(|value| **value <= at_most).count();
        let le = format!("le=\"{bound}\"");
        let labels = [labels, &[le.as_str()]].concat();
        assert_eq!(
            total(scrape, &format!("{name}_bucket"), &labels),
            expected as f64,
            "{name} {labels:?}"
        );
    }
}

fn sim() -> Sim {
    generator::sim(|config| {
        config.profile.tokenize_ms = 0.5;
        config.profile.max_running_requests = 2;
    })
}

const GENERATE: &str =
    r#"{"text":"a b c","stream":true,"sampling_params":{"max_new_tokens":6,"ignore_eos":true}}"#;
const SEVERAL: &str = r#"{"text":"a b c","stream":true,"sampling_params":{"max_new_tokens":4,"n":3,"ignore_eos":true}}"#;
const CHAT: &str = r#"{"model":"sim-llama","messages":[{"role":"user","content":"a b"}],"max_tokens":7,"stream":true,"stream_options":{"include_usage":true}}"#;
const REPLY: &str = r#"{"text":"a b c","sampling_params":{"max_new_tokens":3}}"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn histograms_hold_what_the_rows_say() {
    let sim = sim();
    let full = Upstream::always(b"HTTP/1.1 503 Full\r\ncontent-length: 2\r\n\r\n{}".to_vec()).await;
    let servers = [full.addr, sim.addr()];
    let (hops, workers) = known_workers(&servers);
    let router = Upstream::retrying(hops, str::to_owned).await;
    let front = Front::with(&[router.addr], |config| config.workers = workers).await;
    // What has not happened is shown as 0.
    let idle = scrape(&front);
    for (family, label) in [
        ("queuescope_attempts_total", "outcome=\"ok\",worker=\"w1\""),
        (
            "queuescope_worker_in_flight",
            "phase=\"streaming\",worker=\"w1\"",
        ),
        ("queuescope_joins_total", "by=\"nothing\""),
        ("queuescope_passed_through_total", "endpoint=\"other\""),
    ] {
        let key = format!("{family}{{{label}}}");
        assert_eq!(idle.get(&key), Some(&0.0), "{key} {idle:?}");
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
    let ended = || total(&scrape(&front), attempts, &[]) == (2 * clients.len()) as f64;
    until("all attempts", ended).await;
    let scrape = scrape(&front);
    let metrics = front.proxy.metrics().clone();
    let rows = front.rows().await;
    let all: Vec<&Row> = rows.iter().collect();
    let ok: Vec<&Row> = rows.iter().filter(|row| row["outcome"] == "ok").collect();
    let failed: Vec<&Row> = rows.iter().filter(|row| row["outcome"] != "ok").collect();
    assert_eq!((ok.len(), failed.len()), (24, 4), "{failed:?}");

    // What each sequence waited for is judged when the proxy ends, at the latest.
    let ended = parsed(&metrics.text());
    let causes = [
        "slots",
        "kv_memory",
        "prefill_turn",
        "not_seen_here",
        "unknown",
    ];
    let judged = causes.map(|cause| {
        let cause = format!("cause=\"{cause}\"");
        total(&ended, "queuescope_wait_cause_seconds_total", &[&cause])
    });
    let (judged, waited) = (
        judged.iter().sum::<f64>(),
        values(&all, "pure_queue_time", false).iter().sum::<f64>(),
    );
    assert!(
        waited > 0.01 && (judged - waited).abs() < 1e-5,
        "{judged} {waited}"
    );

    let duration = "gen_ai_server_request_duration_seconds";
    assert_holds(&scrape, duration, &[], &values(&all, "elapsed", true));
    let well = ["error_type=\"\""];
    assert_holds(&scrape, duration, &well, &values(&ok, "elapsed", true));
    let chats: Vec<&Row> = ok
        .iter()
        .copied()
        .filter(|row| row["model"] == "sim-llama")
        .collect();
    let chat = [
        "gen_ai_operation_name=\"chat\"",
        "gen_ai_request_model=\"sim-llama\"",
    ];
    let ttft = "gen_ai_server_time_to_first_token_seconds";
    assert_holds(&scrape, ttft, &chat, &values(&chats, "ttft", false));
    assert_holds(&scrape, ttft, &[], &values(&ok, "ttft", false));
    let tpot = "gen_ai_server_time_per_output_token_seconds";
    assert_holds(&scrape, tpot, &[], &values(&ok, "tpot", false));
    assert!(values(&ok, "tpot", false).len() > 8);
    for (stage, column, once) in [
        ("router_queue", "queue_time_in_router", true),
        ("network", "network_time", false),
        ("tokenize", "tokenize_time", false),
        ("server_queue", "pure_queue_time", false),
        ("prefill", "prefill_time", false),
        ("return", "return_time", false),
        ("client_stall", "client_stall", true),
    ] {
        let values = values(&ok, column, once);
        assert!(!values.is_empty(), "{stage}");
        let labels = [format!("stage=\"{stage}\""), "worker=\"w1\"".into()];
        let labels = labels.each_ref().map(String::as_str);
        assert_holds(
            &scrape,
            "queuescope_stage_duration_seconds",
            &labels,
            &values,
        );
    }
    // Only what a row tells of its first token, not of bytes before it.
    let seen = values(&ok, "router_return_time", false).len() as f64;
    let stage = "queuescope_stage_duration_seconds_count";
    assert!(seen > 4.0);
    assert_eq!(total(&scrape, stage, &["stage=\"router_return\""]), seen);
    let untold = total(&scrape, stage, &["stage=\"server\""]);
    assert!(untold >= 4.0, "the chats: {untold}");
    let overhead = values(&ok, "overhead", true);
    assert!(overhead.iter().all(|overhead| *overhead > 0.0));
    assert_holds(&scrape, "queuescope_overhead_seconds", &[], &overhead);

    // Every gap: as many as tokens after the first, and as long as from the first token to the last.
    let told = ok.iter().filter(|row| !row["itl_mean"].is_empty());
    let told = told.map(|row| {
        let of = |column: &str| row[column].parse::<f64>().unwrap();
        (of("actual_output_tokens") - 1.0, of("itl_mean"))
    });
    let told: Vec<(f64, f64)> = told.collect();
    let gaps: f64 = told.iter().map(|(gaps, _)| gaps).sum();
    let long: f64 = told.iter().map(|(gaps, mean)| gaps * mean).sum();
    let inter = "queuescope_inter_token_seconds";
    assert_eq!(total(&scrape, &format!("{inter}_count"), &[]), gaps);
    assert!(gaps >= 4.0 * (5.0 + 3.0 * 3.0), "{gaps}");
    assert!((total(&scrape, &format!("{inter}_sum"), &[]) - long).abs() < 1e-4);

    let count = |name: &str, labels: &[&str]| total(&scrape, name, labels);
    for (name, labels, expected) in [
        ("queuescope_requests_total", "outcome=\"ok\"", 16.0),
        ("queuescope_requests_total", "outcome=\"client_error\"", 4.0),
        (attempts, "worker=\"w0\" outcome=\"rejected\"", 20.0),
        (attempts, "worker=\"w1\" outcome=\"ok\"", 16.0),
        (
            "queuescope_ended_in_total",
            "outcome=\"client_error\" stage=\"server\"",
            4.0,
        ),
        (
            "queuescope_timing_missing_total",
            "reason=\"openai_stream\" /v1/chat/completions",
            4.0,
        ),
        ("queuescope_timing_missing_total", "", 4.0),
        ("queuescope_in_flight", "", 0.0),
        ("queuescope_worker_in_flight", "", 0.0),
    ] {
        let of: Vec<&str> = labels.split(' ').collect();
        assert_eq!(count(name, &of), expected, "{name} {labels}");
    }
    for (kind, column) in [
        ("output", "request_output_tokens"),
        ("prompt", "request_prompt_tokens"),
        ("cached", "request_cached_tokens"),
    ] {
        let told: f64 = values(&all, column, true).iter().sum();
        let kind = format!("type=\"{kind}\"");
        assert_eq!(count("queuescope_tokens_total", &[&kind]), told, "{kind}");
    }
    let sent: usize = asked.iter().map(|(_, body)| 4 * body.len()).sum();
    assert_eq!(count("queuescope_bytes_total", &["request"]), sent as f64);
    assert!(count("queuescope_bytes_total", &["response"]) > 1000.0);
    let front_only = format!("upstream=\"{}\"", router.addr);
    assert_eq!(
        count("queuescope_upstream_connections_total", &[&front_only]),
        20.0
    );
    let offsets = "queuescope_clock_offset_error_seconds";
    assert!(count(offsets, &[&format!("clock=\"{}\"", sim.addr())]) > 0.0);
}
