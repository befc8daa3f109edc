//! The simulator as older generations, with its failures, and with a collector that does not keep up.

use clap::ValueEnum;
use queuescope::clock::Clock;
use queuescope::sim::config::{Config, Telemetry};
use queuescope::sim::failures::Failures;
use queuescope::sim::server::Sim;
use queuescope::sim::{Dialect, Outcome};
use serde_json::Value;

use super::{fast, until_served};
use crate::support::collector::{Collector, Mood};
use crate::support::http::{Connection, exchange};
use crate::support::wire::until;

const BODY: &[u8] = br#"{"text":"one two","sampling_params":{"max_new_tokens":8},"stream":true}"#;

fn failing(failures: Failures) -> Sim {
    let config = Config { failures, ..fast() };
    Sim::start(config, Clock::system()).unwrap()
}

/// The keys of a JSON object, in order.
pub(super) fn keys(object: &str) -> Vec<String> {
    let shape = super::shape::Shape::of(object);
    let inner = shape.trim_start_matches('{').trim_end_matches('}');
    let mut depth = 0;
    let mut keys = vec![String::new()];
    for c in inner.chars() {
        match c {
            '{' | '[' => depth += 1,
            '}' | ']' => depth -= 1,
            ',' if depth == 0 => keys.push(String::new()),
            _ => {}
        }
        if depth == 0 && c != ',' {
            keys.last_mut().unwrap().push(c);
        }
    }
    let name = |key: &String| key.split(':').next().unwrap().to_owned();
    keys.iter().map(name).collect()
}

#[tokio::test]
async fn each_generation_says_its_version_and_its_own_times() {
    for dialect in Dialect::value_variants() {
        let config = Config {
            dialect: *dialect,
            ..fast()
        };
        let sim = Sim::start(config, Clock::system()).unwrap();
        let text = exchange(sim.addr(), "POST", "/generate", BODY).await.text();
        let last = text.trim_end().rsplit("\n\n").nth(1).unwrap();
        let (_, info) = last.split_once("\"meta_info\":").unwrap();
        let info = info.strip_suffix('}').unwrap();
        // All of the fork's times are of one clock but for the queue of its first version.
        let info: Value = serde_json::from_str(info).unwrap();
        let served = sim.served();
        if let Some(start) = info["queue_time_start"].as_f64() {
            assert_eq!(start > 1e9, *dialect == Dialect::SeedForkEpoch);
            let queued = served[0]
                .queue_end
                .unwrap()
                .since(served[0].queue_start.unwrap());
            let told = info["queue_time_end"].as_f64().unwrap() - start;
            // Floats of epoch seconds resolve 0.24 µs.
            assert!((told - queued).abs() < 1e-6, "{told} {queued}");
        }
        let version = exchange(sim.addr(), "GET", "/server_info", b"")
            .await
            .text();
        let version: Value = serde_json::from_str(&version).unwrap();
        let name = dialect.to_possible_value().unwrap();
        if !name.get_name().starts_with("seed") {
            assert_eq!(version["version"], name.get_name());
        }
    }
}

#[tokio::test]
async fn a_server_that_dies_cuts_its_answer_and_one_that_hangs_stops_it() {
    let sim = failing(Failures {
        die: 1.0,
        ..Failures::default()
    });
    let mut cut = Connection::open(sim.addr()).await;
    cut.send("POST", "/generate", &[], BODY).await;
    let text = String::from_utf8(cut.rest().await).unwrap();
    assert!(
        text.starts_with("HTTP/1.1 200") && !text.contains("[DONE]"),
        "{text}"
    );
    assert!(
        text.ends_with("\r\n") && !text.ends_with("0\r\n\r\n"),
        "{text}"
    );
    until_served(&sim, 1).await;

    let hangs = br#"{"hang":1.0}"#;
    let set = exchange(sim.addr(), "POST", "/sim/failures", hangs).await;
    assert_eq!(set.head.status, 200, "{}", set.text());
    let mut stuck = Connection::open(sim.addr()).await;
    stuck.send("POST", "/generate", &[], BODY).await;
    assert_eq!(stuck.head().await.status, 200);
    until("all tokens are made", || sim.served().len() == 1).await;
    drop(stuck);
    until_served(&sim, 2).await;
    assert_eq!(sim.served()[1].outcome, Outcome::Aborted);

    let wrong = exchange(sim.addr(), "POST", "/sim/failures", br#"{"die":2}"#).await;
    assert_eq!(wrong.head.status, 400);
    let none = exchange(sim.addr(), "POST", "/sim/failures", b"{}").await;
    assert_eq!(none.head.status, 200);
    let whole = exchange(sim.addr(), "POST", "/generate", BODY).await;
    assert!(whole.text().ends_with("[DONE]\n\n"));
}

#[tokio::test]
async fn a_server_refuses_or_is_slow_as_it_was_told() {
    let sim = failing(Failures {
        unavailable: 1.0,
        ..Failures::default()
    });
    let refused = exchange(sim.addr(), "POST", "/generate", BODY).await;
    assert_eq!(refused.head.status, 503);
    let sim = failing(Failures {
        slow: 1.0,
        slow_ms: 50,
        ..Failures::default()
    });
    let slow = exchange(sim.addr(), "POST", "/generate", BODY).await;
    assert_eq!(slow.head.status, 200);
    let served = sim.served();
    let waited = served[0]
        .queue_start
        .unwrap()
        .since(served[0].received.unwrap());
    assert!(waited >= 0.05, "{waited}");
}

#[tokio::test]
async fn a_level_leaves_out_what_is_finer_and_a_collector_that_hangs_holds_nobody_up() {
    let collector = Collector::start().await;
    let telemetry = Telemetry {
        enable_trace: true,
        otlp_traces_endpoint: collector.grpc.to_string(),
        ..Telemetry::default()
    };
    let sim = Sim::start(
        Config {
            telemetry,
            ..fast()
        },
        Clock::system(),
    )
    .unwrap();
    let refused = exchange(sim.addr(), "GET", "/set_trace_level?level=4", b"").await;
    assert_eq!(refused.head.status, 422);
    for path in ["/set_trace_level?level=1", "/sim/failures"] {
        let refused = exchange(sim.addr(), "PUT", path, b"{}").await;
        assert_eq!(refused.head.status, 405, "{path}");
    }
    let names = async |level: u8, count: usize| {
        let path = format!("/set_trace_level?level={level}");
        assert_eq!(
            exchange(sim.addr(), "GET", &path, b"").await.head.status,
            200
        );
        let before = collector.spans().len();
        exchange(sim.addr(), "POST", "/generate", BODY).await;
        until("the spans", || collector.spans().len() >= before + count).await;
        let mut names: Vec<String> = collector.spans()[before..]
            .iter()
            .map(|span| {
                span.name
                    .split(['(', '['])
                    .next()
                    .unwrap()
                    .trim()
                    .to_owned()
            })
            .map(|name| {
                if name.starts_with("Req") {
                    "Req".to_owned()
                } else {
                    name
                }
            })
            .collect();
        names.sort();
        names
    };
    let stages = [
        "Req",
        "Scheduler",
        "Tokenizer",
        "decode_forward",
        "prefill_forward",
        "prefill_waiting",
        "tokenize",
    ];
    assert_eq!(names(1, 7).await, stages);
    let mut parts = [&stages[..], &["api_server_dispatch", "request_process"]].concat();
    parts.sort_unstable();
    assert_eq!(names(2, 9).await, parts);
    assert!(names(0, 0).await.is_empty());
    collector.set(Mood::Holds);
    assert!(names(3, 0).await.is_empty());
    for _ in 0..20 {
        let whole = exchange(sim.addr(), "POST", "/generate", BODY).await;
        assert!(whole.text().ends_with("[DONE]\n\n"));
    }
}
