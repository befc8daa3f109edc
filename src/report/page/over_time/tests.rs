use serde_json::Value;

use crate::report::files::{RunFile, SeriesRow, ServerFile};
use crate::report::reader::Run;
use crate::report::runs::RunReport;
use crate::table::{Cell, Table};

/// The mean of each half second that is told of a metric.
fn values(run: &Run, server: &str, metric: &str) -> Vec<f64> {
    let told = super::series(&RunReport::of(run));
    let mut told = told.as_array().unwrap().iter();
    let Some(of) = told.find(|of| of["server"] == server && of["metric"] == metric) else {
        return Vec::new();
    };
    let numbers = |of: &Value| -> Vec<f64> {
        let all = of.as_array().unwrap().iter();
        all.map(|value| value.as_f64().unwrap()).collect()
    };
    let mut halves = [0.0; 5];
    for (time, value) in numbers(&of["times"]).iter().zip(numbers(&of["values"])) {
        halves[(time * 2.0) as usize] += value / 10.0;
    }
    halves
        .iter()
        .map(|mean| (mean * 1e6).round() / 1e6)
        .collect()
}

/// A row of each host, with these columns.
fn run(columns: &[&str], rows: &[(&str, &[f64])]) -> Run {
    let mut table = Table::default();
    for (n, (host, row)) in rows.iter().enumerate() {
        let id = format!("x-{n}");
        let numbers = columns.iter().zip(*row);
        let numbers = numbers.map(|(name, value)| (*name, Cell::Number(*value)));
        let words = [
            ("req_id", Cell::Id(&id)),
            ("host", Cell::Word(host)),
            ("outcome", Cell::Word("ok")),
            ("clock_state", Cell::Word("offset")),
        ];
        table.push(words.into_iter().chain(numbers));
    }
    let servers = [1, 2].map(|n| ServerFile {
        name: format!("server-{n}"),
        host: format!("127.0.0.1:3000{n}"),
        ..ServerFile::default()
    });
    // What older runs wrote is counted anew.
    let older = SeriesRow {
        source: "records".to_owned(),
        metric: "running".to_owned(),
        value: 77.0,
        ..SeriesRow::default()
    };
    Run {
        table,
        file: Some(RunFile {
            servers: servers.into(),
            ..RunFile::default()
        }),
        series: vec![older],
        ..Run::default()
    }
}

#[test]
fn two_requests_by_hand() {
    let columns = [
        "arrival_time",
        "router_send_time",
        "queue_time_start",
        "queue_time_end",
        "finish_time",
        "end_time",
    ];
    let two = run(
        &columns,
        &[
            ("127.0.0.1:30001", &[0.0, 0.25, 0.25, 0.75, 1.75, 1.75]),
            ("127.0.0.1:30002", &[0.5, 0.5, 0.5, 0.5, 2.5, 2.5]),
        ],
    );
    for (server, metric, halves) in [
        ("", "waiting", &[0.5, 0.0, 0.0, 0.0, 0.0][..]),
        ("", "queued", &[0.5, 0.5, 0.0, 0.0, 0.0]),
        ("server-1", "running", &[0.0, 0.5, 1.0, 0.5, 0.0]),
        ("server-2", "running", &[0.0, 1.0, 1.0, 1.0, 1.0]),
        ("", "running", &[0.0, 1.5, 2.0, 1.5, 1.0]),
        ("", "concurrency", &[1.0, 2.0, 2.0, 1.5, 1.0]),
        ("", "unknown", &[]),
    ] {
        assert_eq!(values(&two, server, metric), halves, "{metric} {server}");
    }
}
