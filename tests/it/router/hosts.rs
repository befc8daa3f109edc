//! Hops on another host: a process whose wall clock is an hour off, and that is restarted with yet another.

use std::collections::BTreeMap;

use queuescope::request::record::{COLUMNS, Record, Value};

use crate::support::proxy::Row;
use crate::support::router::Which;
use crate::support::stack::{Hops, Stack};

const FLAGS: &[&str] = &[
    "--backend",
    "sglang",
    "--request-rate",
    "50",
    "--num-prompts",
    "60",
    "--random-input-len",
    "32",
    "--random-output-len",
    "8",
];

/// By how much a wall clock may have been corrected between the starts of two processes, seconds.
const CORRECTED: f64 = 0.001;

fn cell(row: &Row, name: &str) -> f64 {
    row[name]
        .parse()
        .unwrap_or_else(|_| panic!("{name} is empty: {row:?}"))
}

fn seconds(record: &Record, name: &str) -> f64 {
    let column = COLUMNS.iter().find(|column| column.name == name).unwrap();
    match (column.get)(record) {
        Value::Nanos(nanos) => nanos as f64 / 1e9,
        other => panic!("{name}: {other:?}"),
    }
}

/// The front's row, and the hop's row of the same request.
fn check(row: &Row, hop: &Row, ahead: f64) {
    assert_eq!(
        (row["outcome"].as_str(), row["inconsistency"].as_str()),
        ("ok", ""),
        "{row:?}"
    );
    assert_eq!(row["host"], hop["host"]);
    assert_eq!(row["worker"], hop["worker"]);
    assert_eq!(
        (
            hop["seen_by"].as_str(),
            hop["outcome"].as_str(),
            hop["inconsistency"].as_str()
        ),
        ("hop", "ok", "")
    );
    // The stated interval holds the truth.
    let (offset, error) = (
        cell(row, "hop_clock_offset"),
        cell(row, "hop_clock_offset_error"),
    );
    assert!(
        (offset - ahead).abs() <= error + CORRECTED,
        "{offset} ± {error} is not {ahead}"
    );
    // The router held it from our send to the hop's reading: seconds of an hour must not leak in.
    let in_router = cell(row, "queue_time_in_router");
    assert!((-error..5.0).contains(&in_router), "{in_router} ± {error}");
    // The hop's own stamps, moved by the truth, lie within the front's own.
    let arrived = cell(hop, "router_send_time") - ahead;
    assert!(
        arrived >= cell(row, "forwarded_time") - CORRECTED,
        "{row:?} {hop:?}"
    );
    assert!(arrived <= cell(row, "response_head_time") + CORRECTED);
    assert!((cell(row, "router_send_time") - arrived).abs() <= error + CORRECTED);
    // What the hop measured on its own clock is what the front finds through the offsets.
    let (ours, theirs) = (cell(row, "pure_queue_time"), cell(hop, "pure_queue_time"));
    assert!((ours - theirs).abs() < 1e-5, "{ours} {theirs}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hops_an_hour_off_and_restarted() {
    for (which, first, then) in [
        (Which::Sglang032, 3600, -3600),
        (Which::Smg113, -3600, 5400),
    ] {
        let mut stack = Stack::start(which, Hops::Ahead(first), &[]).await;
        let mut runs = vec![(stack.traffic("before", FLAGS).await, first as f64)];
        stack.hops.as_mut().unwrap().restart(then).await;
        runs.push((stack.traffic("after", FLAGS).await, then as f64));

        let served = stack.served();
        let by_span = |rows: Vec<Row>, column: &str| -> BTreeMap<String, Row> {
            rows.into_iter()
                .map(|row| (row[column].clone(), row))
                .collect()
        };
        let hops = by_span(stack.hops.as_mut().unwrap().rows(), "parent_span_id");
        let front = stack.front.rows();
        assert_eq!(
            (front.len(), hops.len()),
            (120, 120),
            "each request once in each file"
        );
        for row in &front {
            let ahead = if row["req_id"].starts_with("before") {
                first
            } else {
                then
            };
            check(row, &hops[&row["span_id"]], ahead as f64);
            assert_eq!(Some(&row["host"]), served.get(&row["req_id"]));
        }
        // The generator puts three clocks on its own.
        for (run, ahead) in &runs {
            assert_eq!(run.records.len(), 60);
            for record in &run.records {
                assert_eq!(record.inconsistency(), "", "{}", record.facts.req_id);
                let (offset, error) = (
                    seconds(record, "hop_clock_offset"),
                    seconds(record, "hop_clock_offset_error"),
                );
                assert!(
                    (offset - ahead).abs() <= error + CORRECTED,
                    "{offset} ± {error} is not {ahead}"
                );
                let (offset, error) = (
                    seconds(record, "clock_offset"),
                    seconds(record, "clock_offset_error"),
                );
                assert!(
                    offset.abs() <= error + 1e-6,
                    "the servers' clock is the generator's: {offset} ± {error}"
                );
            }
        }
    }
}
