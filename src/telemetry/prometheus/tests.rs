use super::*;
use crate::telemetry::upstreams::UpstreamCounts;
use std::sync::Arc;

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
    metrics.joined(Joined::Span);
    let upstream = Arc::new(UpstreamCounts::new("a:1"));
    metrics.upstreams().add(&upstream);
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
#[test]
fn upstreams_are_shown_while_somebody_uses_them() {
    let metrics = Metrics::new().unwrap();
    let upstreams = ["a:1", "a:1", "b:1"].map(|name| Arc::new(UpstreamCounts::new(name)));
    for upstream in &upstreams {
        metrics.upstreams().add(upstream);
        upstream.request_began();
        upstream.connect_failed();
    }
    upstreams[1].set_out(true);
    let lines = || {
        let text = String::from_utf8(metrics.text().unwrap()).unwrap();
        let lines = text.lines().filter(|l| l.contains("{upstream="));
        let lines = lines.map(|line| line.strip_prefix("queuescope_upstream_").unwrap());
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let both = [
        r#"connect_failures_total{upstream="a:1"} 2"#,
        r#"connect_failures_total{upstream="b:1"} 1"#,
        r#"healthy{upstream="a:1"} 0"#,
        r#"healthy{upstream="b:1"} 1"#,
        r#"in_flight{upstream="a:1"} 2"#,
        r#"in_flight{upstream="b:1"} 1"#,
    ];
    assert_eq!(lines(), both);
    assert_eq!(lines(), both, "nothing is added twice");
    let [first, second, gone] = upstreams;
    drop(second);
    drop(gone);
    first.request_ended();
    assert_eq!(
        lines(),
        [
            r#"connect_failures_total{upstream="a:1"} 1"#,
            r#"healthy{upstream="a:1"} 1"#,
            r#"in_flight{upstream="a:1"} 0"#,
        ]
    );
}
