use serde_json::Value;

use crate::report::files::{RunFile, SeriesRow, ServerFile};
use crate::report::reader::Run;
use crate::report::runs::RunReport;
use crate::report::sample::Sample;

fn numbers(all: &Value) -> Vec<f64> {
    let all = all.as_array().unwrap().iter();
    all.map(|value| value.as_f64().unwrap()).collect()
}

#[test]
fn what_the_rows_tell_is_shown_of_each_server_and_of_all() {
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
    let mut run = Run {
        series: vec![older],
        ..Run::default()
    };
    for (n, server) in (0..).zip(&servers) {
        let sample = Sample::starting(n * 250).host(&server.host);
        run.table.push_row(&sample.row());
    }
    run.file = Some(RunFile {
        servers: servers.into(),
        ..RunFile::default()
    });
    let told = super::series(&RunReport::of(&run));
    let told = told.as_array().unwrap();
    // How long requests were there, together.
    for (server, metric, seconds) in [
        ("", "waiting", 0.006),
        ("", "queued", 0.16),
        ("server-1", "running", 0.395),
        ("server-2", "running", 0.395),
        ("", "running", 0.79),
        ("", "concurrency", 0.998),
    ] {
        let mut all = told.iter();
        let of = all.find(|of| of["server"] == server && of["metric"] == metric);
        let (times, values) = (&of.unwrap()["times"], &of.unwrap()["values"]);
        let times = numbers(times);
        let there = numbers(values).iter().sum::<f64>() * (times[1] - times[0]);
        assert!((there - seconds).abs() < 1e-3, "{metric} {server}: {there}");
    }
    assert!(!told.iter().any(|of| of["metric"] == "unknown"), "{told:?}");
}
