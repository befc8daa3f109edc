use super::*;
use crate::telemetry::upstreams::UpstreamFigures;
use std::sync::Arc;

/// An upstream without requests.
#[derive(Debug)]
struct Idle;

impl UpstreamFigures for Idle {
    fn name(&self) -> &'static str {
        "a:1"
    }

    fn in_flight(&self) -> usize {
        0
    }

    fn is_out(&self) -> bool {
        false
    }

    fn connect_failures(&self) -> u64 {
        0
    }
}

#[test]
fn the_table_is_what_is_shown() {
    let metrics = Metrics::new().unwrap();
    metrics.request_began();
    metrics.request_ended(Endpoint::Chat, Outcome::Ok);
    metrics.response_unread(Unread::Encoded);
    metrics.rows_lost(Loss::Write, 1);
    metrics.reloaded(true);
    metrics.client_limit(Limit::Stall);
    metrics.fault_injected("w0", "stall");
    metrics.joined("span");
    let upstream: Arc<dyn UpstreamFigures> = Arc::new(Idle);
    metrics.upstreams().add(upstream.clone());
    let shown = String::from_utf8(metrics.text().unwrap()).unwrap();
    let lines = |start: &str| {
        let lines = shown.lines().filter(|line| line.starts_with(start));
        let mut lines: Vec<String> = lines.map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let mut kinds: Vec<String> = METRICS
        .iter()
        .chain(process::METRICS)
        .map(|m| {
            let kind = if m.is_gauge { "gauge" } else { "counter" };
            format!("# TYPE {} {kind}", m.name)
        })
        .collect();
    kinds.sort();
    assert_eq!(lines("# TYPE"), kinds);
}

#[test]
fn what_is_counted_is_shown() {
    let metrics = Metrics::new().unwrap();
    metrics.request_began();
    metrics.request_began();
    metrics.request_ended(Endpoint::Chat, Outcome::ClientAbort);
    metrics.rows_lost(Loss::Write, 3);
    metrics.clone().broken_head();
    let text = String::from_utf8(metrics.text().unwrap()).unwrap();
    for line in [
        r#"queuescope_requests_total{endpoint="/v1/chat/completions",outcome="client_abort"} 1"#,
        r#"queuescope_rows_lost_total{reason="write"} 3"#,
        "queuescope_broken_heads_total 1",
        "queuescope_in_flight 1",
        "queuescope_passed_through_total 0",
    ] {
        assert!(text.lines().any(|l| l == line), "{line}\n{text}");
    }
}
