use crate::report::load::tests::*;

#[test]
fn counts_of_each_server_and_of_all_are_shown() {
    let servers = [1, 2].map(|n| ServerFile::of(&format!("server-{n}"), &format!("h{n}:1")));
    // Counts in series files of older runs are ignored.
    let older = SeriesRow {
        source: "records".to_owned(),
        metric: "unknown".to_owned(),
        value: 77.0,
        ..SeriesRow::default()
    };
    let times = [[0.0, 0.25, 0.75, 1.75], [0.5, 0.5, 0.5, 2.5]];
    let rows = servers.iter().zip(times).map(|(server, [arrival, sent, started, end])| {
        format!(
            "host={}, outcome=ok, clock_state=offset, arrival_time={arrival}, router_send_time={sent}, queue_time_start={sent}, \
            queue_time_end={started}, finish_time={end}, end_time={end}",
            server.host
        )
    });
    let mut run = Run::of_lines(rows);
    run.series = vec![older];
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
        let is_it = |of: &&Value| of["server"] == server && of["metric"] == metric;
        let of = series.iter().find(is_it).unwrap();
        let all = |key: &str| of[key].as_array().unwrap().iter().filter_map(Value::as_f64);
        let there = all("values").sum::<f64>() * bucket;
        let at = all("times")
            .zip(all("values"))
            .map(|(time, value)| time * value);
        let at = at.sum::<f64>() * bucket / there;
        let is_right = (there - seconds).abs() < 1e-3 && (at - middle).abs() <= bucket;
        assert!(is_right, "{metric} {server}: {there} {at}");
    }
    let is_older = series.iter().any(|of| of["metric"] == "unknown");
    assert!(!is_older, "{series:?}");
}
