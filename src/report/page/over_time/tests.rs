use serde_json::Value;

use crate::report::files::{RunFile, SeriesRow, ServerFile};
use crate::report::reader::Run;
use crate::report::runs::RunReport;
use crate::table::Cell;

#[test]
fn counts_of_each_server_and_of_all_are_shown() {
    let servers = [1, 2].map(|n| ServerFile {
        name: format!("server-{n}"),
        host: format!("127.0.0.1:3000{n}"),
        ..ServerFile::default()
    });
    // Counts in series files of older runs are ignored.
    let older = SeriesRow {
        source: "records".to_owned(),
        metric: "unknown".to_owned(),
        value: 77.0,
        ..SeriesRow::default()
    };
    let mut run = Run {
        series: vec![older],
        ..Run::default()
    };
    let at = |column, seconds| (column, Cell::Number(seconds));
    let times = [[0.0, 0.25, 0.75, 1.75], [0.5, 0.5, 0.5, 2.5]];
    for (server, [arrival, sent, started, end]) in servers.iter().zip(times) {
        run.table.push([
            ("host", Cell::Word(&server.host)),
            ("outcome", Cell::Word("ok")),
            ("clock_state", Cell::Word("offset")),
            at("arrival_time", arrival),
            at("router_send_time", sent),
            at("queue_time_start", sent),
            at("queue_time_end", started),
            at("finish_time", end),
            at("end_time", end),
        ]);
    }
    run.file = Some(RunFile {
        servers: servers.into(),
        ..RunFile::default()
    });
    let report = RunReport::of(&run);
    let bucket = report.summary.all.flow.over_time.as_ref().unwrap().bucket_s;
    let series = super::series(&report);
    let series = series.as_array().unwrap();
    // How long requests were there, together, and the middle of that.
    for (server, metric, seconds, middle) in [
        ("", "waiting", 0.25, 0.125),
        ("", "queued", 0.5, 0.5),
        ("server-1", "running", 1.0, 1.25),
        ("server-2", "running", 2.0, 1.5),
        ("", "running", 3.0, 4.25 / 3.0),
        ("", "concurrency", 3.75, 4.531 / 3.75),
    ] {
        let mut all = series.iter();
        let of = all.find(|of| of["server"] == server && of["metric"] == metric);
        let [times, values] = ["times", "values"].map(|key| {
            let all = of.unwrap()[key].as_array().unwrap().iter();
            all.filter_map(Value::as_f64).collect::<Vec<_>>()
        });
        let there = values.iter().sum::<f64>() * bucket;
        let at = times.iter().zip(&values).map(|(time, value)| time * value);
        let at = at.sum::<f64>() * bucket / there;
        let is_right = (there - seconds).abs() < 1e-3 && (at - middle).abs() <= bucket;
        assert!(is_right, "{metric} {server}: {there} {at}");
    }
    assert!(
        !series.iter().any(|of| of["metric"] == "unknown"),
        "{series:?}"
    );
}
